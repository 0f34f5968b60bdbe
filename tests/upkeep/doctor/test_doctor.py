"""What the doctor finds, from facts: hosts, packages, folders and hubs that this machine doesn't have."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from pipeline.config.load import load
from pipeline.plan.workspace import Workspace
from pipeline.upkeep.doctor import compiler, finding, host, hub, project, report, space, store
from pipeline.upkeep.doctor import host as machine
from tests.support.findings import levels, the
from tests.support.project import ROOT
from tests.support.releases import keys

LINUX = host.HostFacts(
    "Linux",
    "6.1",
    "x86_64",
    "x86_64",
    (3, 12, 1),
    libc=("glibc", "2.36"),
    wheel_glibc="2.35",
    libraries={"libc++-71bc.so.1.0": ("libQnnHtp.so",), "libatomic.so.1": ("libQnnSystem.so",)},
    bundled=("libc++-71bc.so.1.0",),
    missing=(),
)
WINDOWS = replace(LINUX, system="Windows", release="11", libc=("", ""))
ARM = replace(WINDOWS, machine="aarch64", python_machine="aarch64")


def test_a_good_host_is_good() -> None:
    for facts in (LINUX, WINDOWS, ARM):
        assert set(levels(host.check(facts)).values()) == {"ok"}
        assert host.refusal(facts) is None


@pytest.mark.parametrize(
    ("facts", "check", "level", "text"),
    [
        (replace(ARM, python_machine="x86_64"), "host.architecture", "error", "x86_64 Python on an ARM64 machine"),
        (replace(ARM, python_machine="x86", bits=32), "host.architecture", "error", "32-bit Python for x86"),
        (replace(LINUX, bits=32), "host.architecture", "error", "32-bit Python"),
        (replace(LINUX, machine="aarch64"), "host.architecture", "warning", "all of it is emulated"),
        (replace(LINUX, python_machine="aarch64"), "host.architecture", "warning", "ARM64 Python on an x86_64 machine"),
        (replace(WINDOWS, python_machine="aarch64"), "host.architecture", "error", "64-bit Python for aarch64"),
        (replace(LINUX, system="Darwin", machine="aarch64"), "host.system", "error", "has no wheel for it"),
        (replace(LINUX, machine="riscv64"), "host.system", "error", "has no wheel for it"),
        (replace(LINUX, python=(3, 10, 4)), "host.python", "error", "CPython 3.10.4: there are no wheels for it"),
        (replace(LINUX, python=(3, 15, 0)), "host.python", "error", "there are no wheels for it"),
        (replace(LINUX, implementation="PyPy"), "host.python", "error", "wheels are made for CPython"),
        (replace(LINUX, free_threaded=True), "host.python", "error", "without GIL"),
        (replace(ARM, python=(3, 11, 9)), "host.python", "warning", "on Windows for ARM64"),
        (replace(LINUX, libc=("glibc", "2.31")), "host.glibc", "error", "glibc 2.31 is older than 2.35"),
        (replace(LINUX, libc=("glibc", "2.4")), "host.glibc", "error", "glibc 2.4 is older than 2.35"),
        (replace(LINUX, libc=("", "")), "host.glibc", "error", "no glibc here"),
        (replace(LINUX, libc=("musl", "1.2")), "host.glibc", "error", "no glibc here, but musl"),
        (replace(LINUX, missing=("libatomic.so.1",)), "host.libraries", "error", "libatomic.so.1 can't be loaded"),
    ],
)
def test_a_bad_host(facts: host.HostFacts, check: str, level: str, text: str) -> None:
    found = the(host.check(facts), check)
    assert (found.level, text in found.what) == (level, True), found
    refused = host.refusal(facts)
    assert (refused is not None) == (level == "error" and check not in ("host.glibc", "host.libraries"))


def test_a_missing_library_names_who_needs_it_and_what_to_install() -> None:
    found = the(host.check(replace(LINUX, missing=("libatomic.so.1",))), "host.libraries")
    assert found.why == "libQnnSystem.so of onnxruntime-qnn need it"
    assert found.remedy == "install it (Debian: apt-get install libatomic1)"


def test_the_npus_driver_is_not_missed_by_a_host_without_an_npu() -> None:
    users = ("libQnnHtpV73Stub.so", "libQnnHtpV81Stub.so")
    facts = replace(LINUX, libraries={"libcdsprpc.so": users}, missing=("libcdsprpc.so",))
    found = the(host.check(facts), "host.libraries")
    assert (found.level, found.subject) == ("warning", "libcdsprpc.so"), found
    needed_by_all = replace(facts, libraries={"libcdsprpc.so": (*users, "libQnnHtp.so")})
    assert the(host.check(needed_by_all), "host.libraries").level == "error"


def test_an_arm64_wheel_needs_an_older_glibc() -> None:
    facts = replace(LINUX, machine="aarch64", python_machine="aarch64", libc=("glibc", "2.34"), wheel_glibc="")
    assert levels(host.check(facts))["host.glibc"] == "ok"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PROCESSOR_ARCHITECTURE": "AMD64"}, "x86_64"),
        ({"PROCESSOR_ARCHITECTURE": "x86", "PROCESSOR_ARCHITEW6432": "AMD64"}, "x86_64"),
        ({"PROCESSOR_ARCHITECTURE": "x86", "PROCESSOR_ARCHITEW6432": "ARM64"}, "aarch64"),
        ({"PROCESSOR_ARCHITECTURE": "AMD64", "PROCESSOR_IDENTIFIER": "ARMv8 (64-bit) Family 8"}, "aarch64"),
        ({"PROCESSOR_ARCHITECTURE": "ARM64", "PROCESSOR_IDENTIFIER": "ARMv8 (64-bit) Family 8"}, "aarch64"),
    ],
)
def test_the_machine_that_windows_tells_of(environ: dict[str, str], expected: str) -> None:
    assert machine.environment_machine(environ) == expected


def test_this_machine_is_what_it_is() -> None:
    facts = host.gather()
    assert facts.machine == machine.canonical(facts.machine) != ""
    assert facts.python_machine == facts.machine
    assert host.cheap_facts() == replace(facts, libc=("", ""), wheel_glibc="", libraries={}, bundled=(), missing=None)
    if sys.platform == "linux":
        assert facts.missing == ()
        assert "libatomic.so.1" in facts.libraries
        assert any(name.startswith("libc++") for name in facts.bundled)


def test_what_is_no_library_says_nothing(tmp_path: Path) -> None:
    good = Path(sys.executable).resolve().read_bytes()
    for size in (0, 3, 16, 64, 200, 1000, 5000):
        (tmp_path / "cut").write_bytes(good[:size])
        assert host.needed_libraries(tmp_path / "cut") == ()
    (tmp_path / "other").write_bytes(b"MZ" + bytes(100))
    assert host.needed_libraries(tmp_path / "other") == ()
    assert host.read_machine(tmp_path / "other") == host.read_machine(tmp_path / "none") == ""
    (tmp_path / "arm").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, 183))
    assert host.read_machine(tmp_path / "arm") == "aarch64"
    (tmp_path / "lies").write_bytes(b"\x7fELF\x02\x01" + b"\xff" * 200)
    assert host.needed_libraries(tmp_path / "lies") == ()
    strings, strings_size, nothing = (5, 1 << 40), (10, 8), (0, 0)
    for entries in ((nothing,), (strings, nothing), (strings, strings_size)):  # no table of strings, or one nowhere
        table = b"".join(struct.pack("<qQ", *entry) for entry in entries)
        head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1)
        segment = struct.pack("<IIQQQQQQ", 2, 6, 120, 120, 120, len(table), len(table), 8)
        (tmp_path / "damaged").write_bytes(head.ljust(64, b"\0") + segment + table)
        assert host.needed_libraries(tmp_path / "damaged") == ()


# --- folders, space


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        (store.FolderFacts("/s"), "ok", "can be written"),
        (store.FolderFacts("/s", case_sensitive=False), "ok", "upper and lower case are the same"),
        (store.FolderFacts("/s", "Read-only file system (/s)"), "error", "can't be written"),
        (store.FolderFacts("/s", locks=False), "error", "can't be locked"),
        (store.FolderFacts("/s", links=False), "warning", "no hard links"),
        (store.FolderFacts("/s", syncs=False), "warning", "can't be forced to the disk"),
        (store.FolderFacts("/s", names=False), "warning", "only plain names"),
        (store.FolderFacts("/s", keeps_times=False), "warning", "modification times are not kept"),
        (store.FolderFacts("/s", clock_skew_s=-90), "warning", "its clock is -90 s off"),
        (store.FolderFacts("C:/" + "x" * 150, limit=260), "warning", "paths may become too long"),
        (store.FolderFacts("C:/x", limit=260), "ok", "can be written"),
    ],
)
def test_folders(facts: store.FolderFacts, level: str, text: str) -> None:
    (found,) = store.check_folder("store.folder", "the store", facts)
    assert (found.level, text in found.what) == (level, True), found
    assert found.exit_code == (17 if level == "error" else 0)


def test_a_full_disk_is_not_a_folder_to_make_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    (found,) = store.check_folder("store.folder", "the store", store.try_folder(tmp_path))
    assert found.remedy == "free some space, or set PIPELINE_STORE to a folder on another disk"
    assert "No space left" in found.why


def test_trying_a_folder_leaves_nothing(tmp_path: Path) -> None:
    facts = store.try_folder(tmp_path / "not" / "there")
    assert not facts.problem
    assert facts.locks
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").write_text("in the way")
    assert store.try_folder(tmp_path / "file" / "store").problem == f"{tmp_path / 'file'} is a file"


GB = 10**9


@pytest.mark.parametrize(
    ("free", "need", "unknown", "level"),
    [
        (10 * GB, GB, (), "ok"),
        (10 * GB, 9 * GB, (), "warning"),
        (10 * GB, 11 * GB, (), "error"),
        (10_000_000, 0, (), "error"),
        (10 * GB, GB, ("big",), "not checked"),
        (10 * GB, 11 * GB, ("big",), "error"),
    ],
)
def test_free_space(free: int, need: int, unknown: tuple[str, ...], level: str) -> None:
    found = space.check_disk(space.DiskFacts(("/s",), free, need, unknown))
    assert found.level == level
    assert found.exit_code == (17 if level == "error" else 0)


def test_too_little_space_for_any_build() -> None:
    facts = space.DiskFacts(("/s",), 10_000_000, 0)
    assert space.check_disk(facts).what == "10.0 MB free, at least 50.0 MB must be free"
    idle = space.check_disk(replace(facts, idle=True))
    assert (idle.level, idle.exit_code) == ("warning", 0)
    short = space.check_disk(space.DiskFacts(("/s",), 90_000_000, 2 * GB))
    assert short.what == "90.0 MB free, about 2.0 GB needed"


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        (space.MemoryFacts(8 * GB, 6 * GB, "quantize:a/b", GB), "ok"),
        (space.MemoryFacts(8 * GB, 6 * GB, "quantize:a/b", 7 * GB), "warning"),
        (space.MemoryFacts(8 * GB, 6 * GB, "quantize:a/b", 9 * GB), "warning"),
        (space.MemoryFacts(8 * GB, 6 * GB, unknown=("a",)), "not checked"),
        (space.MemoryFacts(8 * GB, 6 * GB, idle=True), "ok"),
    ],
)
def test_free_memory(facts: space.MemoryFacts, level: str) -> None:
    assert space.check_memory(facts).level == level


# --- variables


@pytest.mark.parametrize(
    ("environ", "level", "text"),
    [
        ({}, "ok", "none of ours is set"),
        ({"PIPELINE_STORE": "/s", "HOME": "/h", "PIPELINE_LIFELINE": "3"}, "ok", "set: PIPELINE_STORE"),
        ({"PIPELINE_STOR": "/s"}, "warning", "write PIPELINE_STORE"),
        ({"PIPLINE_STORE": "/s"}, "warning", "write PIPELINE_STORE"),
        ({"pipeline_memory": "1G"}, "warning", "write PIPELINE_MEMORY"),
        ({"PIPELINE_FOO": "1"}, "warning", "PIPELINE_FOO has no effect"),
        ({"PIPELINE_MEMORY": "lots"}, "error", "PIPELINE_MEMORY=lots is not an amount of memory"),
        ({"PIPELINE_WORKERS": "freshh"}, "error", "PIPELINE_WORKERS=freshh means nothing"),
        ({"PIPELINE_WORKERS": ""}, "error", "PIPELINE_WORKERS= means nothing"),
        ({"PIPELINE_WORKERS": "warm"}, "ok", "set: PIPELINE_WORKERS"),
        ({"PIPELINE_SIGNING_KEY": ""}, "ok", "none of ours is set"),
        (
            {"PIPELINE_SIGNING_KEY": "/none.pem"},
            "error",
            "no release can be signed: the file can't be read: No such file",
        ),
        ({"PIPELINE_SIGNING_KEY": "-----BEGIN SECRET"}, "error", "no release can be signed: it is no private key"),
        ({"HF_ENDPOINT": "hub.example.com"}, "error", "HF_ENDPOINT is no address of a hub"),
    ],
)
def test_variables(environ: Mapping[str, str], level: str, text: str) -> None:
    found = next(iter(project.check_variables(environ)))
    assert found.level == level
    assert text in found.what + found.remedy


def test_a_key_to_sign_with_is_looked_at_and_not_shown(tmp_path: Path) -> None:
    private, _ = keys(tmp_path)
    found = [*project.check_variables({"PIPELINE_SIGNING_KEY": private})]
    assert [(each.level, each.what) for each in found] == [("ok", "set: PIPELINE_SIGNING_KEY")]
    (wrong,) = project.check_variables({"PIPELINE_SIGNING_KEY": private.replace("MC4", "MC5")})
    assert (wrong.level, wrong.exit_code, wrong.subject) == ("error", 10, "PIPELINE_SIGNING_KEY")
    assert "PRIVATE" not in str(wrong)


def test_every_variable_of_ours_is_known() -> None:
    named = {
        name
        for path in (ROOT / "pipeline").rglob("*.py")
        for name in re.findall(r"\"(PIPELINE_[A-Z_]+)\"", path.read_text("utf-8"))
    }
    assert named == {*project.VARIABLES, *project.INTERNAL}


# --- hub


MODEL = hub.Access("m", "owner/m", "main", cached=False, on_request=False)
HUB = hub.HubFacts("https://hub", offline=False, reached=True, models=(MODEL,))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (HUB, {"hub.reach": "ok", "hub.token": "ok", "hub.model": "ok"}),
        (replace(HUB, models=()), {"hub.reach": "not checked"}),
        (replace(HUB, token="valid"), {"hub.reach": "ok", "hub.token": "ok", "hub.model": "ok"}),
        (replace(HUB, token="refused"), {"hub.reach": "ok", "hub.token": "error", "hub.model": "ok"}),
        (replace(HUB, token="unknown"), {"hub.reach": "ok", "hub.token": "not checked", "hub.model": "ok"}),
        (replace(HUB, reached=False, remedy="r"), {"hub.reach": "error", "hub.model": "error"}),
        (
            replace(HUB, reached=False, remedy="r", models=(replace(MODEL, cached=True),)),
            {"hub.reach": "warning", "hub.model": "ok"},
        ),
        (
            replace(HUB, reached=False, remedy="r", models=(replace(MODEL, on_request=True),)),
            {"hub.reach": "warning", "hub.model": "warning"},
        ),
        (replace(HUB, offline=True, reached=False), {"hub.reach": "ok", "hub.model": "error"}),
        (
            replace(HUB, clock_skew_s=4000.0),
            {"hub.reach": "ok", "hub.token": "ok", "hub.clock": "warning", "hub.model": "ok"},
        ),
        (
            replace(HUB, models=(replace(MODEL, problem="owner/m is gated", remedy="accept"),)),
            {"hub.reach": "ok", "hub.token": "ok", "hub.model": "error"},
        ),
    ],
)
def test_hubs(facts: hub.HubFacts, expected: Mapping[str, str]) -> None:
    findings = [*hub.check(facts)]
    assert levels(findings) == expected
    assert all(found.exit_code in (0, 11) for found in findings)


# --- compiler


DONE = compiler.ChildRun({"compile": "x", "readback": "y"}, 1.0)
RAN = compiler.ChildRun({"emulate": "z"}, 1.0)
X86 = compiler.CompilerFacts("x86_64", "sm8650", DONE, RAN)
NPU = compiler.CompilerFacts("aarch64", "sm8650", DONE)
CRASH = compiler.ChildRun({}, 1.0, status=-11, log="last words")


@pytest.mark.parametrize(
    ("facts", "stages", "parts"),
    [
        (X86, "ok", ("ok", "ok", "ok")),
        (replace(X86, compiled=CRASH, emulated=None), "ok", ("error", "not checked", "not checked")),
        (
            replace(X86, compiled=compiler.ChildRun({"compile": "x"}, 1.0, "wrong SoC"), emulated=None),
            "ok",
            ("ok", "error", "not checked"),
        ),
        (replace(X86, emulated=compiler.ChildRun({}, 90.0, status=None)), "ok", ("ok", "ok", "error")),
        (replace(X86, emulated=compiler.ChildRun({}, 1.0, "off by 0.5")), "ok", ("ok", "ok", "error")),
        (
            compiler.CompilerFacts("x86_64", "sm8650", skipped="why"),
            "ok",
            ("not checked", "not checked", "not checked"),
        ),
        (NPU, "warning", ("ok", "ok", "not checked")),
        (
            replace(NPU, compiled=compiler.ChildRun({}, 1.0, "no device")),
            "warning",
            ("warning", "not checked", "not checked"),
        ),
    ],
)
def test_the_trial(facts: compiler.CompilerFacts, stages: str, parts: tuple[str, str, str]) -> None:
    findings = [*compiler.check(facts)]
    named = ("compiler.compile", "compiler.readback", "compiler.emulate")
    assert levels(findings) == {"compiler.stages": stages} | dict(zip(named, parts, strict=True))
    codes = {found.check: found.exit_code for found in findings if found.level == "error"}
    assert set(codes.values()) <= {15, 16, 18}


def test_a_limit_of_the_machine_is_no_fault_of_the_compiler() -> None:
    short = compiler.ChildRun(
        {}, 1.0, "the system gave the trial no more memory", "limited", "raise it", of_machine=True
    )
    found = the(compiler.check(replace(X86, compiled=short, emulated=None)), "compiler.compile")
    assert (found.level, found.exit_code) == ("error", 18)


def test_a_crash_is_decoded_with_its_last_words() -> None:
    found = the(compiler.check(replace(X86, compiled=CRASH, emulated=None)), "compiler.compile")
    assert "signal 11 (SIGSEGV)" in found.why
    assert "| last words" in found.why


def test_arm64_says_what_it_can_do() -> None:
    assert "contexts for its own SoC only" in the(compiler.check(NPU), "compiler.stages").what
    bare = replace(NPU, compiled=compiler.ChildRun({}, 1.0, "no device"))
    assert "but not context, emulate" in the(compiler.check(bare), "compiler.stages").what


# --- the report


FINDINGS = (
    finding.Check("host.system").ok("Linux"),
    finding.Check("store.folder", subject="/s").warning("no hard links", "copies", "use another disk"),
    finding.Check("hub.token", finding.SOURCE).error("refused", remedy="set HF_TOKEN"),
    finding.Check("hub.model", finding.CONFIG, "m").error("gone", remedy="two\nlines"),
    finding.Check("space.disk").unchecked("free space", "unknown"),
)


def test_the_exit_code_is_that_of_the_first_error() -> None:
    assert finding.exit_code(FINDINGS) == 11
    assert finding.exit_code(FINDINGS[:2]) == 0


def test_the_text() -> None:
    text = report.as_text(FINDINGS)
    assert "host:\n  ok           Linux\nstore:\n  warning      /s: no hard links\n" in text
    assert "               why: copies\n               next: use another disk\n" in text
    assert "               next: two\n                     lines\n" in text
    assert text.endswith("\n1 ok, 1 warning, 2 error, 1 not checked")


def test_the_json_is_as_documented() -> None:
    schema = json.loads((ROOT / "docs" / "doctor.schema.json").read_text("utf-8"))
    told = json.loads(report.as_json(FINDINGS))
    jsonschema.validate(told, schema)
    assert (told["ok"], told["exit_code"], told["schema"]) == (False, 11, report.SCHEMA)
    assert told["counts"] == {"ok": 1, "warning": 1, "error": 2, "not checked": 1}
    for field in ("check", "level", "what", "exit_code"):
        broken = json.loads(report.as_json(FINDINGS))
        del broken["findings"][0][field]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)


@pytest.mark.parametrize(("on_request", "level"), [("", "error"), ("on_request: true\n", "not checked")])
def test_what_is_built_only_when_it_is_named_need_not_be_there(tmp_path: Path, on_request: str, level: str) -> None:
    (tmp_path / "configs").mkdir()
    path = tmp_path / "configs" / "net.yaml"
    path.write_text(
        "source: {path: ../models/net}\ncomponents: {net: {file: a.onnx}}\n"
        f"calibration: {{reader: npz, folder: samples}}\ntargets: [sm8650]\n{on_request}",
        "utf-8",
    )
    found = [*project.check_files([load(path)], Workspace.at(tmp_path))]
    assert [(each.check, each.level) for each in found] == [("project.source", level), ("project.calibration", level)]
    assert "the model folder net does not exist" in found[0].what
    assert ("no build needs it but doit build:net" in found[0].why) == bool(on_request)


def test_samples_that_are_not_there_are_told_of_as_a_build_tells_of_them(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "arrays").mkdir()
    path = tmp_path / "configs" / "net.yaml"
    path.write_text(
        "source: {path: ../models/net}\ncomponents: {net: {file: a.onnx}}\n"
        "calibration: {reader: npz, folder: array}\n"
        "verification: {score: 'calibration/score.py:f'}\ntargets: [sm8650]\n",
        "utf-8",
    )
    samples, score = [*project.check_files([load(path)], Workspace.at(tmp_path))][1:]
    assert samples.what == (
        "the folder of samples array does not exist; did you mean 'arrays'?"
        " (configs/net.yaml:3:36, for samples:net/calibration)"
    )
    assert samples.why == f"looked for {tmp_path / 'array'}"
    assert samples.remedy.startswith("put 32 or more .npz files with the model's inputs there, or correct the path")
    assert samples.exit_code == 10
    assert "score.py does not exist (configs/net.yaml:4:" in score.what, "once, and not for each bucket"
