"""The pure parts of tests/arm64.py; the whole needs root, Debian and minutes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pipeline.model import FileEntry, Manifest
from pipeline.store.costs import Cost, Costs
from pipeline.store.manifests import write_manifest
from tests import arm64
from tests.support import arm64_guest

A, B = "a" * 64, "b" * 64
MOUNTINFO = """\
22 28 0:20 / /proc rw,relatime - proc proc rw
28 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 28 0:21 / /var/tmp/arm64-x/root/proc rw - proc proc rw
31 28 0:22 / /var/tmp/arm64-x/with\\040blank rw - tmpfs tmpfs rw
32 28 0:22 / /var/tmp/arm64-xy rw - tmpfs tmpfs rw
"""
ENABLED = "enabled\ninterpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P\nflags: POF\noffset 0\nmagic 7f454c46\n"


def made(checkout: Path, step: str, *, key: str = A, sha256: str = A, db: float = 1.0) -> None:
    stage, name = step.split(":")
    path = checkout / ".build" / "steps" / stage / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_manifest(path, Manifest(stage, key, {"model.onnx": FileEntry(sha256, 3)}, {"db": db}))


def test_equal_steps_are_equal_and_say_what_they_took(tmp_path: Path) -> None:
    for name, seconds in (("one", 0.25), ("other", 12.5)):
        made(tmp_path / name, "fetch:demo")
        costs = Costs(tmp_path / name / ".build" / "store" / "costs.json")
        costs.learn("fetch:demo", Cost(seconds, 1.0, 1, 1))
        costs.save()

    rows = arm64.compared(tmp_path / "one", tmp_path / "other")

    assert rows == [arm64.Compared("fetch:demo", key=True, payload=True, differ=(), seconds=(0.25, 12.5))]
    assert arm64.table(rows).split("\n") == [
        "step        key    bytes  x86_64 s  aarch64 s",
        "fetch:demo  equal  equal       0.2       12.5",
        "",
        "1 of 1 steps are equal in key and bytes",
    ]


def test_what_differs_is_named(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for step in ("fetch:demo", "shape:demo/net/8", "calibrate:demo/net", "verify:demo/net/8", "quantize:demo/net"):
        made(one, step)
    made(other, "fetch:demo")
    made(other, "shape:demo/net/8", sha256=B)
    made(other, "calibrate:demo/net", key=B)
    made(other, "verify:demo/net/8", db=1.01)

    found = {row.step: (row.key, row.payload, row.differ) for row in arm64.compared(one, other)}

    assert found == {
        "fetch:demo": (True, True, ()),
        "shape:demo/net/8": (True, False, ("model.onnx",)),
        "calibrate:demo/net": (False, True, ()),
        "verify:demo/net/8": (True, False, ("facts",)),
        "quantize:demo/net": (False, False, ("not made on aarch64",)),
    }
    shown = arm64.table(arm64.compared(one, other))
    assert "1 of 5 steps are equal in key and bytes" in shown
    assert "shape:demo/net/8: model.onnx\n" in shown


def test_a_mount_in_the_folder_is_seen() -> None:
    found = arm64.mounts_below(Path("/var/tmp/arm64-x"), MOUNTINFO)
    assert found == ["/var/tmp/arm64-x/root/proc", "/var/tmp/arm64-x/with blank"]


def test_nothing_is_deleted_through_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").touch()
    monkeypatch.setattr(arm64, "mounts_below", lambda *_: [f"{tmp_path}/root/proc"])
    with pytest.raises(arm64.RefusedError, match="is a mount, and not ours"):
        arm64.delete(tmp_path / "root")
    assert (tmp_path / "root" / "file").exists()

    monkeypatch.undo()
    arm64.delete(tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (ENABLED, True),
        (ENABLED.replace("enabled", "disabled"), False),
        (ENABLED.replace("POF", "OC"), False),  # qemu would have to be in the root
        ("", False),
    ],
)
def test_what_the_system_runs_by_itself(described: str, expected: bool) -> None:
    assert arm64.handled(described) == expected


def test_what_is_registered_is_a_line_of_binfmt_misc() -> None:
    line = arm64_guest.registration("/usr/bin/qemu-aarch64-static")
    _, name, kind, offset, magic, mask, interpreter, flags = line.split(":")
    assert (name, kind, offset, interpreter, flags) == ("qemu-aarch64", "M", "", "/usr/bin/qemu-aarch64-static", "F")
    header, bits = (bytes.fromhex(text.replace("\\x", "").replace("ELF", "454c46")) for text in (magic, mask))
    assert len(header) == len(bits) == 20
    # A shared object of this machine, ABI of GNU, as Python's executable is.
    python = b"\x7fELF\x02\x01\x01\x03" + bytes(8) + b"\x03\x00\xb7\x00"
    assert bytes(byte & bit for byte, bit in zip(python, bits, strict=True)) == header
    other = python[:18] + b"\x3e\x00"
    assert bytes(byte & bit for byte, bit in zip(other, bits, strict=True)) != header


def test_a_copy_has_what_git_knows_and_what_is_new(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for name in (".gitignore", "dodo.py", "new.py", "gone.py", ".build/store/x", "sub/with blank.txt"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("/.build/\n" if name == ".gitignore" else name)
    for command in (["init", "-q"], ["add", "dodo.py", "gone.py", ".gitignore"]):
        subprocess.run(["git", "-C", str(source), *command], check=True)
    (source / "gone.py").unlink()
    (target / ".build").mkdir(parents=True)

    arm64.copy_checkout(source, target)

    found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert found == [".gitignore", "dodo.py", "new.py", "sub/with blank.txt"]
    assert not (target / ".build").exists()


def test_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    monkeypatch.setattr("sys.argv", ["arm64"])
    monkeypatch.setattr(os, "nice", lambda _: 0, raising=False)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert arm64.main() == 2
    assert "error: " in capsys.readouterr().err
