"""What counts of our modules is remembered by content, and never believed of other bytes or other rules."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from pipeline.model import Json
from pipeline.plan import counted_code, keys, known_code
from pipeline.plan.keys import CodeDigests
from pipeline.plan.known_code import KnownCode
from pipeline.store.digests import StatMemo
from tests.support.project import ROOT, Project


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(known_code, "_ROOT", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "room" / "module.py"
    path.parent.mkdir()
    path.write_text("import json\nX = 1\n", "utf-8")
    return path


def of(path: Path) -> Json:
    return counted_code.counted_code(path.read_bytes(), own=True).to_json()


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_module_is_parsed_once(module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kept"
    first, expected = KnownCode(folder), of(module)
    assert first.counted(module) == expected
    first.save()
    monkeypatch.setattr(counted_code, "counted_code", None)
    assert KnownCode(folder).counted(module) == expected


def test_other_bytes_under_the_same_name_count_for_what_they_are(module: Path, tmp_path: Path) -> None:
    known = KnownCode(tmp_path / "kept")
    before = known.counted(module)
    known.save()
    module.write_text("import json\nX = 2\n", "utf-8")
    again = KnownCode(tmp_path / "kept").counted(module)
    assert again == of(module) != before


def test_what_other_rules_found_is_not_believed_and_goes(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    rules = tmp_path / "rules.py"
    rules.write_text("RULES = 1\n", "utf-8")
    monkeypatch.setattr(counted_code, "__file__", str(rules))
    known = KnownCode(folder)
    known.counted(module)
    known.save()
    (before,) = kept(folder)
    rules.write_text("RULES = 1  # another way to count\n", "utf-8")
    again = KnownCode(folder)
    assert not again._entries
    again.counted(module)
    again.save()
    assert before not in kept(folder)
    assert len(kept(folder)) == 1


def test_a_damaged_file_costs_only_time(module: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    known = KnownCode(folder)
    known.counted(module)
    known.save()
    (name,) = kept(folder)
    (folder / name).write_bytes((folder / name).read_bytes().replace(b"json", b"jsom"))
    assert not KnownCode(folder)._entries
    assert KnownCode(folder).counted(module) == of(module)


def test_modules_that_are_gone_are_forgotten(module: Path, tmp_path: Path) -> None:
    known = KnownCode(tmp_path / "kept")
    known.counted(module)
    module.unlink()
    known.save()
    assert not KnownCode(tmp_path / "kept")._entries


def test_without_bytecode_nothing_is_written(module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = KnownCode(tmp_path / "kept")
    known.counted(module)
    known.save()
    assert not (tmp_path / "kept").exists()


def test_keys_are_the_same_with_and_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    digests: list[str] = []
    for folder in (None, tmp_path, tmp_path):
        known = KnownCode(folder)
        monkeypatch.setattr(known_code, "beside_bytecode", lambda known=known: known)
        digests.append(CodeDigests(StatMemo(tmp_path / f"memo {len(digests)}")).stage("shape"))
    assert len({*digests}) == 1
    assert known._entries
    assert not known._grew


def test_digests_hold_while_no_file_of_theirs_changes(tmp_path: Path) -> None:
    script, near = tmp_path / "script.py", tmp_path / "near.py"
    script.write_text("import near\n", "utf-8")
    near.write_text("X = 1\n", "utf-8")
    time.sleep(0.15)  # what was changed just now is not believed to stay as it is
    memo = StatMemo(tmp_path / "memo")
    digests = CodeDigests(memo)
    before = digests.script(script, tmp_path)
    assert digests.now() is digests
    status = near.stat()
    near.write_text("X = 2\n", "utf-8")
    os.utime(near, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digests.script(script, tmp_path) == before
    assert digests.now().script(script, tmp_path) != before


def test_digests_of_a_file_that_was_just_written_are_taken_anew(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("X = 1\n", "utf-8")
    digests = CodeDigests(StatMemo(tmp_path / "memo"))
    digests.script(script, tmp_path)
    assert digests.now() is not digests


def test_modules_of_ours_are_looked_up_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    class Asked(KnownCode):
        def counted(self, path: Path) -> Json:
            asked.append(path)
            return super().counted(path)

    known = Asked(None)
    monkeypatch.setattr(known_code, "beside_bytecode", lambda: known)
    mine = tmp_path / "mine.py"
    mine.write_text("X = 1\n", "utf-8")
    code = CodeDigests(StatMemo(tmp_path / "memo"))
    code.script(mine, tmp_path)
    assert not asked
    code.counted(Path(keys.__file__))
    assert asked == [Path(keys.__file__)]


def test_projects_of_tests_know_what_counts_of_their_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project.create(tmp_path / "first", tmp_path / "store").copy(tmp_path / "second")
    known = KnownCode(project.root / "pipeline" / "plan" / "__pycache__")
    monkeypatch.setattr(counted_code, "counted_code", None)
    assert {path.name for path in (ROOT / "pipeline").rglob("*.py") if known.counted(path)} > {"keys.py"}
