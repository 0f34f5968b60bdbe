"""Hostile and broken configs, pins and manifests: refused at once, whatever they hold."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import buckets
from pipeline.errors import ConfigError, PipelineError
from pipeline.inputs.pins import read_pins
from pipeline.release import prune
from pipeline.release.published.artifact_folders import SCHEMA_VERSION
from tests.support.configs import load_all
from tests.support.hostile_sources import make_pipe
from tests.support.project import ROOT

GOOD = (
    "source: {path: ../models/mine}\ncomponents: {net: {file: model.onnx}}\ntargets: [sm8650]\n"
    "quantization: {precision: fp16}\n"
)
MANY = "\n".join(f"  misspelt{number}: {number}" for number in range(9000))
ALIASES = "a: &a [x,x,x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a} '] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)

Maker = Callable[[Path], object]


def text(written: str) -> Maker:
    return lambda path: path.write_text(written, "utf-8")


def data(written: bytes) -> Maker:
    return lambda path: path.write_bytes(written)


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 << 20)


CONFIGS: dict[str, tuple[Maker, str]] = {
    "aliases": (text(ALIASES), "expected the value written out"),
    "tag": (text(GOOD + "fixed: !!python/object/apply:os.system ['touch evil']\n"), "tag"),
    "100 MB": (large, "is too large"),
    "deep": (text("a: " + "[" * 200_000), "nested too deeply"),
    "deep keys": (text("? " * 50_000), "nested too deeply"),
    "deep blocks": (text("- " * 50_000), "nested too deeply"),
    "zero byte": (data(b"source: {path: a\0b}\n"), "character U+0000 is not allowed"),
    "escape": (data(b"source: {path: a\x1b[2Jb}\n"), "character U+001B is not allowed"),
    "key twice": (text(GOOD + "targets: [sm8650]\n"), "key 'targets' is written twice"),
    "latin-1": (data("# caf\xe9\n".encode("latin-1")), "is not UTF-8"),
    "utf-16": (data(GOOD.encode("utf-16")), "is not UTF-8"),
    "tab": (text("source:\n\tpath: ../models/mine\n"), "no tabs in indentation"),
    "two documents": (text(GOOD + "---\n" + GOOD), "a second document begins here"),
    "binary": (data(bytes(range(256)) * 100), "is not UTF-8"),
    "empty": (data(b""), "is empty"),
    "a folder": (Path.mkdir, "is a folder, a device or a pipe"),
    "many unknown keys": (text(GOOD + f"limits:\n{MANY}\n"), "and 8900 more"),
    "many values": (text(GOOD + f"buckets: {{n: [{','.join(map(str, range(1, 19_000)))}]}}\n"), "has 18999 entries"),
    "many targets": (text(GOOD.replace("[sm8650]", f"[{','.join(map(str, range(9000)))}]")), "has 9000 entries"),
    "long word": (text(GOOD + "x" * 900_000 + ": 1\n"), "could not find expected ':'"),
    "long text": (text(GOOD.replace("sm8650", "s" * 900_000)), "unknown target 'ssss"),
    "long bucket": (
        text(GOOD + f"buckets: [{{{', '.join(f'axis{n}: 1234567' for n in range(40))}}}]\n"),
        "the bucket's name in file names would have 319 characters",
    ),
    "component in capitals": (text(GOOD.replace("net:", "Net:")), "expected a name of at most 64"),
    "component that Windows reserves": (text(GOOD.replace("net:", "aux:")), "none that Windows reserves"),
    "component with a dot at its end": (text(GOOD.replace("net:", "net.:")), "expected a name of at most 64"),
    "component that escapes": (text(GOOD.replace("net:", "../net:")), "expected a name of at most 64"),
    "file that escapes": (text(GOOD.replace("model.onnx", "../model.onnx")), "without '..'"),
    "file that is absolute": (text(GOOD.replace("model.onnx", "/model.onnx")), "without '..'"),
    "file of a drive": (text(GOOD.replace("model.onnx", "C:/model.onnx")), "without '..'"),
    "hub name that escapes": (
        text(GOOD.replace("{path: ../models/mine}", "{hub: ../x, revision: main}")),
        "expected a repository as owner/name",
    ),
    "revision that escapes": (
        text(GOOD.replace("{path: ../models/mine}", "{hub: a/x, revision: ../../etc}")),
        "expected a commit of 40 hex digits",
    ),
    "code elsewhere": (text(GOOD + "verification: {score: 'tests/x.py:run'}\n"), "calibration/<file>.py:<function>"),
    "code above": (text(GOOD + "verification: {score: 'calibration/../x.py:run'}\n"), "calibration/<file>.py"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_is_refused(tmp_path: Path, case: str) -> None:
    make, said = CONFIGS[case]
    (tmp_path / "configs").mkdir()
    make(tmp_path / "configs" / "mine.yaml")
    since = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        load_all(tmp_path / "configs")
    message = str(caught.value)
    assert said in message, message[:3000]
    assert len(message) < 300_000
    assert all(char.isprintable() or char == "\n" for char in message)
    assert time.monotonic() - since < 30
    assert [path.name for path in tmp_path.rglob("*")] == ["configs", "mine.yaml"]


@pytest.mark.skipif(sys.platform == "win32", reason="makes a pipe and links to devices")
def test_a_pipe_or_a_device_in_the_folder_of_configs_does_not_stop_a_build(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    make_pipe(tmp_path / "configs" / "pipe.yaml")
    (tmp_path / "configs" / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "configs" / "gone.yaml").symlink_to("nowhere")
    (tmp_path / "configs" / "loop.yaml").symlink_to("loop.yaml")
    configs = str(tmp_path / "configs")
    code = f"from pathlib import Path; from tests.support.configs import load_all; load_all(Path({configs!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "configs")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = re.findall(r"^  (configs/\w+\.yaml):1:1: ", done.stderr, re.MULTILINE)
    assert told == [f"configs/{name}.yaml" for name in ("gone", "loop", "pipe", "zero")], done.stderr


def test_a_byte_order_mark_and_windows_line_ends_are_no_harm(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert list(load_all(tmp_path / "configs")) == ["mine"]


def test_names_of_our_own_fit_every_file_system() -> None:
    longest = f"{'m' * 64}_{'8' * buckets._LONGEST_NAME}_ctx_qnn.bin"
    assert len(longest) < 160  # NTFS, ext4 and APFS take 255, eCryptfs 143


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_code_behind_a_link_out_of_the_project_is_not_run(tmp_path: Path) -> None:
    """Neither behind a link in the folder, nor where the folder itself is one."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "code.py").write_text("raise AssertionError\n")
    for number, link in enumerate(("calibration", "calibration/inner", "calibration/inner/code.py")):
        project = tmp_path / str(number)
        (project / "configs").mkdir(parents=True)
        (project / link).parent.mkdir(parents=True, exist_ok=True)
        (project / link).symlink_to(tmp_path / "elsewhere" / ("code.py" if link.endswith(".py") else "."))
        inner = "" if number == 0 else "inner/"
        score = f"verification: {{score: 'calibration/{inner}code.py:run'}}\n"
        (project / "configs" / "mine.yaml").write_text(GOOD + score)
        with pytest.raises(ConfigError, match="leads out of calibration/"):
            load_all(project / "configs")


COMMIT = "0" * 40
PINS: dict[str, tuple[Maker, str]] = {
    "aliases": (text(ALIASES), "expected the value written out"),
    "tag": (text("a/b@main: !!python/object/apply:os.system ['id']\n"), "tag"),
    "100 MB": (large, "is too large"),
    "deep": (text("a: " + "[" * 200_000), "nested too deeply"),
    "zero byte": (data(b"a: b\0\n"), "U+0000"),
    "utf-16": (data(f"a/b@main: {COMMIT}\n".encode("utf-16")), "is not UTF-8"),
    "key twice": (text(f"a/b@main: {COMMIT}\n" * 2), "is written twice"),
    "a list": (text("[1, 2]"), "it is not a mapping"),
    "a number": (text("a/b@main: 12\n"), "is not a commit of 40 hex digits"),
    "a mapping": (text("a/b@main: {c: d}\n"), "is not a commit of 40 hex digits"),
    "a folder": (Path.mkdir, "is a folder, a device or a pipe"),
}


@pytest.mark.parametrize("case", PINS)
def test_pins_are_refused(tmp_path: Path, case: str) -> None:
    make, said = PINS[case]
    make(tmp_path / "pins.yaml")
    with pytest.raises(ConfigError) as caught:
        read_pins(tmp_path / "pins.yaml")
    assert said in str(caught.value)
    assert "pins.yaml can't be read" in caught.value.what


def test_pins_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pins.yaml"
    assert read_pins(path) == {}
    for empty in ("", "# only this\n", "\n\n"):
        path.write_text(empty)
        assert read_pins(path) == {}
    path.write_text(f"# header\na/b@main: {COMMIT}\n'c/d@v1': '{'9' * 40}'\n")
    assert read_pins(path) == {"a/b@main": COMMIT, "c/d@v1": "9" * 40}


def manifest(**bucket: Any) -> dict[str, Any]:
    entry = {
        "context_model": "net_8_ctx.onnx",
        "binaries": ["net_8_ctx_qnn.bin"],
        "files": {name: {"sha256": "0" * 64, "bytes": 1} for name in ("net_8_ctx.onnx", "net_8_ctx_qnn.bin")},
        "verification": {"emulator": None},
        **bucket,
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "targets": [{"name": "sm8650", "soc_model": 57}],
        "components": {"net": {"packing": "socs", "buckets": [entry]}},
    }


def named(name: str) -> dict[str, Any]:
    files = {each: {"sha256": "0" * 64, "bytes": 1} for each in (name, "net_8_ctx_qnn.bin")}
    return manifest(context_model=name, files=files)


FOLDERS: dict[str, tuple[object, int]] = {
    "not JSON": (b"{", 17),
    "deep": (b"[" * 200_000, 17),
    "a list": ([], 17),
    "another version": ({**manifest(), "schema_version": 99}, 17),
    "up": (named("../../secret"), 17),
    "up alone": (named(".."), 17),
    "no name": (named(""), 17),
    "absolute": (named("/etc/passwd"), 17),
    "backslash": (named("..\\secret"), 17),
    "a drive": (named("C:secret"), 17),
    "a zero byte": (named("a\0b"), 17),
    "its own name": (named("manifest.json"), 17),
    "a number": (manifest(context_model=7), 17),
    "no packing": ({**manifest(), "components": {"net": {"buckets": []}}}, 17),
    "a target without id": ({**manifest(), "targets": [{"name": "sm8650"}]}, 17),
    "targets that are none": ({**manifest(), "targets": 3}, 17),
    "files that are missing": (manifest(), 17),
    "another hash": (manifest(files={"net_8_ctx.onnx": {"sha256": []}, "net_8_ctx_qnn.bin": {"sha256": "0"}}), 17),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_is_not_pruned(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    content, status = FOLDERS[case]
    (tmp_path / "secret").write_bytes(b"secret")
    folder = tmp_path / "artifacts" / "socs"
    folder.mkdir(parents=True)
    written = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "manifest.json").write_bytes(written)
    assert prune.main([str(folder), "sm8650", "--out", str(tmp_path / "out")]) == status
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert "Traceback" not in told
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["manifest.json", "secret"]


@pytest.mark.skipif(sys.platform == "win32", reason="makes a pipe")
def test_a_pipe_as_manifest_does_not_stop_prune(tmp_path: Path) -> None:
    make_pipe(tmp_path / "manifest.json")
    with pytest.raises(PipelineError, match="no manifest of ours"):
        prune.prune_folder(tmp_path, ["sm8650"], tmp_path.parent / "out")
