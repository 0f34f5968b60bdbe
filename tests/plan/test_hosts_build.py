"""Builds on hosts that may not run all steps: what goes on, what is told, what is left alone."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.support import tiny_project
from tests.support.project import Project

CONTEXT = "context:tiny/net/8/sm8650"
EMULATE = "emulate:tiny/net/8/sm8650"
RULES = "stages: {context: {hosts: [compiler]}}\n"


def small(root: Path, *, rules: str = RULES, more: str = "") -> Project:
    """One bucket for one target, with rules about who may run what."""
    made = tiny_project.create(root / "one", root / "store", buckets=[8], targets=["sm8650"])
    made.write("configs/project.yaml", rules)
    if more:
        path = made.root / tiny_project.CONFIG
        path.write_text(path.read_text("utf-8") + more, "utf-8")
    return made


def pretend(project: Project, arch: str, soc: str | None) -> None:
    """Let a checkout take its host for another one."""
    project.edit(
        "pipeline/config/host_names.py",
        "    arch = _SAME.get(arch, arch)\n",
        f'    return "{arch}", "linux", {soc!r}\n',
    )


def end_of(text: str) -> str:
    """What is said of waiting steps at the end."""
    return text[text.index("WAITING:") :]


def test_what_waits_stops_nothing_and_is_told_at_the_end(tmp_path: Path) -> None:
    project = small(tmp_path)
    ran = project.doit("build", check=False)
    assert ran.status == 19
    assert "verify:tiny/net/8" in ran.built
    assert f"waiting            {CONTEXT}  for compiler" in ran.text
    assert "FAILED" not in ran.text
    assert "error:" not in ran.text
    assert end_of(ran.text).rstrip() == (
        "WAITING: 1 step(s) that may not run on this host (x86_64, linux, linux-x86_64).\n"
        f"  {CONTEXT}\n"
        "    why: stages.context.hosts names compiler (configs/project.yaml:1:27)\n"
        "    next: run 'doit build:tiny' on compiler, then come back\n"
        f"  Not tried until then: {EMULATE}, build:tiny"
    )
    assert not project.artifacts()
    again = project.doit("build", check=False)
    assert again.status == 19
    assert not again.built | again.restored
    assert end_of(again.text) == end_of(ran.text)
    there = project.doit("build", PIPELINE_HOST="Compiler, spare")
    assert there.built == {CONTEXT, EMULATE}
    here = project.doit("build")  # the rule is about who makes a context, not about who has one
    assert not here.built
    assert "Nothing to do" in here.text


def test_one_step_that_is_asked_for_by_name_waits_too(tmp_path: Path) -> None:
    project = small(tmp_path, rules="stages: {fetch: {hosts: [elsewhere]}}\n")
    ran = project.doit("fetch:tiny", check=False)
    assert ran.status == 19
    assert "next: run 'doit build:tiny' on elsewhere, then come back" in ran.text
    assert project.doit("run", "--continue", "fetch", check=False).status == 19
    assert project.doit("run", "-n", "1", "fetch", check=False).status == 19


@pytest.mark.parametrize("arguments", [("build",), ("run", "--continue", "build")])
def test_a_failure_ends_a_build_as_ever_and_its_code_wins(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    project = small(tmp_path, more="quantization: {activations: uint16}\nthresholds: {quantization_db: 90}\n")
    ran = project.doit(*arguments, check=False)
    assert ran.status == 16
    assert "FAILED: 1 step(s)" in ran.text
    if "--continue" in arguments:
        assert "Not tried, as verify:tiny/net/8 failed" in ran.text
        assert CONTEXT in end_of(ran.text)


def test_nothing_is_packaged_or_published_while_something_waits(tmp_path: Path) -> None:
    project = small(tmp_path, more="release: {version: '1.0'}\n")
    for arguments in (("package",), ("publish", "../released")):
        ran = project.doit(*arguments, check=False)
        assert ran.status == 19
        assert "package:tiny" in end_of(ran.text)
        assert not (project.root / "artifacts" / "releases").exists()
        assert not (tmp_path / "released").exists()
    assert "publish" in end_of(ran.text)


def test_what_packages_unverified_artifacts_waits_too(tmp_path: Path) -> None:
    project = small(tmp_path, more="release: {version: '1.0', unverified: [net]}\n")
    ran = project.doit("package", check=False)
    assert ran.status == 19
    assert f"  {CONTEXT}\n    why: stages.context.hosts names compiler" in end_of(ran.text)
    assert "Not tried until then: package:tiny" in end_of(ran.text)


def test_models_on_request_make_nobody_wait(tmp_path: Path) -> None:
    project = small(tmp_path, more="on_request: true\n")
    ran = project.doit("build")
    assert "WAITING" not in ran.text
    assert "Not built, as only on request: doit build:tiny" in ran.text
    assert project.doit("build:tiny", check=False).status == 19


@pytest.mark.slow
def test_forms_that_were_not_chosen_wait_for_nobody(tmp_path: Path) -> None:
    project = tiny_project.create(tmp_path / "one", tmp_path / "store", buckets=[8, 16], targets=["sm8650"])
    project.write("configs/project.yaml", RULES)
    path = project.root / tiny_project.CONFIG
    path.write_text(path.read_text("utf-8") + "packing: auto\n", "utf-8")
    ran = project.doit("build", check=False)
    assert ran.status == 19
    chosen = "context:tiny/net/buckets/sm8650"
    separate = {"context:tiny/net/8/sm8650", "context:tiny/net/16/sm8650"}
    waiting = {name for name in (chosen, *separate) if f"waiting            {name}" in ran.text}
    built = {name for name in ran.built if name.startswith("context")}
    assert waiting | built == {chosen, *separate}
    assert waiting in ({chosen}, separate)


def test_a_branch_is_pinned_by_a_host_that_may_fetch(tmp_path: Path) -> None:
    project = small(tmp_path, rules="stages: {fetch: {hosts: [downloader]}}\n")
    project.edit(tiny_project.CONFIG, "{path: ../model}", "{hub: owner/name, revision: main}")
    ran = project.doit("fetch:tiny", check=False, HF_ENDPOINT="http://127.0.0.1:1")
    assert ran.status == 19
    assert "for downloader" in ran.text
    assert "; 'main' of owner/name is not pinned here: the host that fetches it writes configs/pins.yaml" in ran.text
    assert not (project.root / "configs" / "pins.yaml").exists()


def test_a_rule_that_no_host_could_meet_is_refused_before_anything_runs(tmp_path: Path) -> None:
    project = small(tmp_path, rules="stages: {'*': {hosts: [windows-aarch64]}}\n")
    ran = project.doit("list", check=False)
    assert ran.status == 10
    assert "no host could run context:tiny/net/8/sm8650" not in ran.text  # such a laptop may have that SoC
    assert "error: no host could run emulate:tiny/net/8/sm8650\n  where: configs/project.yaml:1:23\n" in ran.text


def test_what_went_bad_waits_for_who_may_make_it_again(tmp_path: Path) -> None:
    project = small(tmp_path, rules="stages: {quantize: {hosts: [quantizer]}}\n")
    project.doit("quantize", PIPELINE_HOST="quantizer")
    manifest = json.loads((project.root / ".build" / "steps" / "quantize" / "tiny" / "net.json").read_text("utf-8"))
    digests = set(re.findall("[0-9a-f]{64}", json.dumps(manifest)))
    for path in (tmp_path / "store" / "objects").rglob("*"):
        if path.name in digests:
            stat = path.stat()
            path.chmod(0o644)
            path.write_bytes(bytes(stat.st_size))
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    ran = project.doit("build", check=False)
    assert ran.status == 19
    assert "damaged" in ran.text
    assert "  quantize:tiny/net\n    why: stages.quantize.hosts names quantizer" in end_of(ran.text)
    assert "build:tiny" in end_of(ran.text)
    assert project.doit("build", PIPELINE_HOST="quantizer").built >= {"quantize:tiny/net", CONTEXT}


@pytest.mark.slow
def test_a_search_of_what_went_wrong_says_where_it_runs(tmp_path: Path) -> None:
    project = small(tmp_path, rules="{}", more="quantization: {weights: uint8}\nthresholds: {compile_db: 200}\n")
    first = project.doit("build", check=False)
    assert first.status == 16
    assert "first to go wrong" in first.text
    other = project.copy(tmp_path / "two")
    pretend(other, "aarch64", "sm8650")
    for path in (tmp_path / "store" / "manifests").rglob("*.json"):
        if '"probe"' in path.read_text("utf-8"):
            path.unlink()
    (other.root / ".build" / "steps" / "probe" / "tiny" / "net" / "8" / "sm8650.json").unlink()
    second = other.doit("build", check=False)
    assert second.status == 16
    assert "where it went wrong first is found by 'doit probe:tiny/net/8/sm8650' on x86_64" in second.text


@pytest.mark.slow
def test_a_context_made_on_the_device_is_emulated_and_judged_elsewhere(tmp_path: Path) -> None:
    """The device is played by this machine: what it compiles can be emulated here."""
    host = tiny_project.create(tmp_path / "host", tmp_path / "store", buckets=[8], targets=["sm8350"])
    device = host.copy(tmp_path / "device")
    pretend(device, "aarch64", "sm8350")
    ran = host.doit("build", check=False)
    assert ran.status == 19
    assert "for HTP v68 the device itself compiles" in ran.text
    assert "next: run 'doit build:tiny' on sm8350, then come back; or compile it anywhere" in ran.text
    there = device.doit("build", check=False)
    assert there.status == 19
    assert there.built == {"context:tiny/net/8/sm8350"}
    assert "emulate:tiny/net/8/sm8350  for x86_64" in there.text
    strict = host.copy(tmp_path / "strict")
    path = strict.root / tiny_project.CONFIG
    path.write_text(
        path.read_text("utf-8") + "quantization: {rounding: gptq, clip: hessian}\nthresholds: {compile_db: 200}\n",
        "utf-8",
    )  # what is built for v68 by default, written out so that nothing climbs
    missed = strict.doit("build", check=False)
    assert missed.status == 16
    assert missed.restored == {"context:tiny/net/8/sm8350"}
    back = host.doit("build")
    assert back.restored == {"context:tiny/net/8/sm8350", "emulate:tiny/net/8/sm8350"}
    assert any(name.endswith("_ctx_qnn.bin") for name in host.artifacts())
    host.edit(tiny_project.CONFIG, "[sm8350]", "[{soc: sm8350, compile: host}]")
    assert host.doit("build").built >= {"context:tiny/net/8/sm8350"}  # what the device made is not taken for it
