from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import WorkerError
from pipeline.model import FileEntry, Manifest
from pipeline.plan import keys
from pipeline.plan.keys import CodeDigests, canonical_json, payload_digest, step_key
from pipeline.stage_table import STAGES
from pipeline.store.digests import StatMemo, sha256_file
from pipeline.store.files_read import FilesRead, recording

MANIFEST = Manifest("shape", "0" * 64, {"model.onnx": FileEntry("1" * 64, 10)}, {"nodes": 3})
PARTS: dict[str, Any] = {
    "code": "c",
    "params": {"axes": {"sequence": 64}},
    "inputs": {"ingest": MANIFEST},
    "files": {"samples": "d"},
    "tools": {"onnx": "1"},
}


def test_the_same_work_has_the_same_key() -> None:
    reordered = dict(reversed(PARTS.items()))
    assert step_key("shape", **PARTS) == step_key("shape", **reordered)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("code", "other"),
        ("params", {"axes": {"sequence": 65}}),
        ("inputs", {"rewrite": MANIFEST}),
        ("files", {"samples": "e"}),
        ("tools", {"onnx": "2"}),
    ],
)
def test_each_part_is_in_the_key(part: str, value: object) -> None:
    assert step_key("shape", **PARTS) != step_key("shape", **{**PARTS, part: value})
    assert step_key("shape", **PARTS) != step_key("rewrite", **PARTS)


def test_an_input_counts_by_what_it_holds_and_not_by_how_it_was_made() -> None:
    same = Manifest("other", "f" * 64, MANIFEST.files, MANIFEST.facts)
    assert payload_digest(same) == payload_digest(MANIFEST)
    for other in (
        Manifest("shape", "0" * 64, {"model.onnx": FileEntry("2" * 64, 10)}, MANIFEST.facts),
        Manifest("shape", "0" * 64, MANIFEST.files, {"nodes": 4}),
    ):
        assert payload_digest(other) != payload_digest(MANIFEST)


def test_canonical_json_has_one_spelling_and_no_nan() -> None:
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": float("nan")})


def write_module(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_code_counts_by_import_closure(tmp_path: Path) -> None:
    def digest() -> str:
        return CodeDigests(StatMemo(tmp_path / "memo")).script(stage, tmp_path)

    stage = write_module(tmp_path, "pkg/stage.py", "import json\nfrom pkg import near\n")
    write_module(tmp_path, "pkg/__init__.py", "")
    write_module(tmp_path, "pkg/near.py", "def f():\n    import pkg.lazy\n")
    write_module(tmp_path, "pkg/lazy.py", "X = 1\n")
    write_module(tmp_path, "pkg/unrelated.py", "X = 1\n")
    before = digest()
    write_module(tmp_path, "pkg/unrelated.py", "X = 22\n")
    assert digest() == before
    write_module(tmp_path, "pkg/lazy.py", "X = 22\n")
    assert digest() != before


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        ("from .wav import g", {"top/__init__.py", "top/wav.py"}),
        ("from . import wav", {"top/__init__.py", "top/wav.py"}),
        ("from .deep import low", {"top/__init__.py", "top/deep/__init__.py", "top/deep/low.py"}),
        ("from .deep.low import x", {"top/__init__.py", "top/deep/__init__.py", "top/deep/low.py"}),
        ("import top.deep.low", {"top/__init__.py", "top/deep/__init__.py", "top/deep/low.py"}),
        ("from .up import x", {"top/__init__.py", "top/up/__init__.py", "top/wav.py"}),
        ("from .deep import *", {"top/__init__.py", "top/deep/__init__.py", "top/deep/low.py"}),
        ("from ..other import x", {"top/__init__.py"}),  # beyond what is a package: Python refuses it
        ("import json", {"top/__init__.py"}),
    ],
)
def test_relative_imports_and_packages_count(text: str, reached: set[str], tmp_path: Path) -> None:
    names = ("top/__init__.py", "top/wav.py", "top/deep/__init__.py", "top/deep/low.py", "top/unused.py", "other.py")
    for name in names:
        write_module(tmp_path, name, "x = 1\n")
    write_module(tmp_path, "top/up/__init__.py", "from ..wav import x\n")
    path = write_module(tmp_path, "top/main.py", text + "\n")
    code = CodeDigests(StatMemo(tmp_path / "memo"))
    assert {file.relative_to(tmp_path).as_posix() for file in code.closure(path, tmp_path)} == {"top/main.py", *reached}


def test_where_docstrings_are_read_they_count(tmp_path: Path) -> None:
    def digest() -> str:
        return CodeDigests(StatMemo(tmp_path / "memo")).script(path, tmp_path)

    path = write_module(tmp_path, "main.py", "import part\n")
    write_module(tmp_path, "part.py", '"""One."""\n')
    before = digest()
    write_module(tmp_path, "part.py", '"""Two."""\n')
    assert digest() == before
    write_module(tmp_path, "main.py", "import part\nTEXT = part.__doc__\n")
    before = digest()
    write_module(tmp_path, "part.py", '"""One."""\n')
    assert digest() != before


def test_no_stage_counts_the_defaults_of_thresholds(tmp_path: Path) -> None:
    code = CodeDigests(StatMemo(tmp_path / "memo"))
    root = Path(keys.__file__).parents[2]
    for stage in STAGES:
        reached = code.closure(root / "pipeline" / "stages" / f"{stage}.py", root)
        assert not [path for path in reached if path.is_relative_to(root / "pipeline" / "config")]


def test_a_change_of_a_rewrite_quantizes_nothing_anew(tmp_path: Path) -> None:
    root = Path(keys.__file__).parents[2]
    reached = CodeDigests(StatMemo(tmp_path / "memo")).closure(root / "pipeline" / "stages" / "quantize.py", root)
    rewrites = root / "pipeline" / "graph" / "rewrites"
    assert rewrites.is_dir()
    assert not [path.name for path in reached if path.is_relative_to(rewrites)]


def test_an_import_is_found_wherever_a_statement_may_be(tmp_path: Path) -> None:
    text = """
import a.one
class C:
    from a import two
    async def f(self):
        with x:
            import a.three
        for _ in y:
            pass
        else:
            import a.four
        try:
            import a.five
        except E:
            import a.six
        finally:
            import a.seven
        match x:
            case 1:
                import a.eight
        while x:
            if y: pass
            elif z: import a.nine
            else: import a.ten
"""
    path = write_module(tmp_path, "m.py", text)
    found = set(CodeDigests(StatMemo(tmp_path / "memo")).counted(path).imports)
    numbers = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    assert found == {"a"} | {f"a.{number}" for number in numbers}


def test_every_stage_has_code_and_known_tools() -> None:
    stages = {path.stem for path in Path(keys.__file__).parents[1].joinpath("stages").glob("[!_]*.py")}
    assert set(STAGES) == stages
    for stage in stages:
        assert all(keys.tool_versions(stage).values())


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_every_package_that_a_stage_computes_with_is_in_its_key(stage: str, tmp_path: Path) -> None:
    computing = {"flatbuffers", "jinja2", "numpy", "onnx", "onnxruntime", "onnxruntime_qnn", "tokenizers"}
    code = CodeDigests(StatMemo(tmp_path / "memo"))
    root = Path(keys.__file__).parents[2]
    files = code.closure(root / "pipeline" / "stages" / f"{stage}.py", root)
    used = {name.split(".")[0] for file in files for name in code.counted(file).imports} & computing
    declared = {name.replace("-", "_") for name in STAGES[stage].tools} - {"qairt"}
    assert used == declared or (stage == "fetch" and not declared), "fetch parses, and copies what it is given"


def test_qairt_version_is_the_one_the_wheel_says() -> None:
    import onnxruntime_qnn.build_and_package_info as info

    assert keys.qairt_version() == info.qnn_version


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(WorkerError, match="the package no-such-package is not installed") as caught:
        keys.package_version("no-such-package")
    assert "uv sync" in caught.value.remedy


def settle(path: Path) -> None:
    """Make a file old enough for its stat to be trusted."""
    past = time.time() - 10
    os.utime(path, (past, past))


def test_an_unchanged_file_is_read_once(tmp_path: Path) -> None:
    calls = []

    def compute(path: Path) -> str:
        calls.append(path)
        return sha256_file(path)

    path = write_module(tmp_path, "f", "text")
    settle(path)
    memo = StatMemo(tmp_path / "memo.json")
    assert memo.value(path, "sha", compute) == memo.value(path, "sha", compute) == sha256_file(path)
    memo.save()
    assert StatMemo(tmp_path / "memo.json").value(path, "sha", compute) == sha256_file(path)
    assert len(calls) == 1


def test_a_changed_file_of_the_same_size_and_mtime_is_read_again(tmp_path: Path) -> None:
    path = write_module(tmp_path, "f", "text")
    settle(path)
    memo = StatMemo(tmp_path / "memo.json")
    before, stat = memo.sha256(path), path.stat()
    path.write_text("TEXT")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert memo.sha256(path) != before


def test_a_file_written_just_now_is_not_remembered(tmp_path: Path) -> None:
    path = write_module(tmp_path, "f", "text")
    memo = StatMemo(tmp_path / "memo.json")
    before, stat = memo.sha256(path), path.stat()
    path.write_text("TEXT")  # within the clock's granularity the stat could stay the same
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert memo.sha256(path) != before


def test_a_file_that_was_renamed_into_place_is_not_read_to_know_its_digest(tmp_path: Path) -> None:
    path = write_module(tmp_path, "f", "text")
    memo = StatMemo(tmp_path / "memo.json")
    memo.remember(path, "digest")
    memo.save()
    assert StatMemo(tmp_path / "memo.json").sha256(path) == "digest"
    path.write_text("another")
    assert memo.sha256(path) == sha256_file(path)


def test_a_folder_counts_by_names_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    write_module(folder, "a.npz", "1")
    write_module(folder, "b/c.npz", "2")
    memo = StatMemo(tmp_path / "memo.json")
    before = memo.sha256(folder)
    write_module(folder, ".hidden", "3")
    write_module(folder, "__pycache__/x.pyc", "3")
    assert memo.sha256(folder) == before
    (folder / "a.npz").rename(folder / "z.npz")
    assert memo.sha256(folder) != before


def test_a_damaged_memo_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "memo.json").write_text("{not json")
    path = write_module(tmp_path, "f", "text")
    assert StatMemo(tmp_path / "memo.json").sha256(path) == sha256_file(path)


def emulated(soc: int, work: str | None, digest: str, stage: str = "emulate") -> str:
    """The key of a step on the context of a SoC that computes `work` and has these bytes."""
    context = Manifest("context", "0" * 64, {"a.bin": FileEntry(digest * 64, 10)}, {"work": work, "soc": soc})
    params = {"target": {"soc_model": soc, "htp_arch": 73}, "bucket": "8"}
    return step_key(stage, **{**PARTS, "params": params, "inputs": {**PARTS["inputs"], "context": context}})


def test_what_is_emulated_is_what_a_context_computes_whatever_its_target() -> None:
    assert emulated(60, "w", "1") == emulated(43, "w", "2")
    assert emulated(60, "w", "1") != emulated(60, "other", "1")
    assert emulated(60, None, "1") != emulated(43, None, "1"), "what is not known to be equal is not"
    assert emulated(60, "w", "1", "probe") != emulated(43, "w", "2", "probe")


def test_a_module_that_comes_to_lie_beside_a_user_s_code_is_noticed(tmp_path: Path) -> None:
    """What an import finds may be another file from then on."""
    folder = tmp_path / "calibration"
    folder.mkdir()
    (folder / "mine.py").write_text("from . import wave\n", "utf-8")
    digests, read = CodeDigests(StatMemo(tmp_path / "memo.json")), FilesRead()
    with recording(read):
        digests.script(folder / "mine.py", tmp_path)
    assert {str(folder), str(folder / "mine.py")} <= read.files.keys()
    assert read.are_unchanged(lambda _: "", {})
    (folder / "wave.py").write_text("VERSION = 2\n", "utf-8")
    assert not read.are_unchanged(lambda _: "", {})


def test_steps_that_start_together_parse_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stage.py").write_text("import other\n", "utf-8")
    (tmp_path / "other.py").write_text("x = 1\n", "utf-8")
    parsed: list[Path] = []

    def slow(path: Path) -> Any:
        parsed.append(path)
        time.sleep(0.05)
        return counted(path)

    counted = keys._remembered
    monkeypatch.setattr(keys, "_remembered", slow)
    code = CodeDigests(StatMemo(tmp_path / "memo"))
    with ThreadPoolExecutor(3) as steps:
        digests = {*steps.map(lambda _: code.script(tmp_path / "stage.py", tmp_path), range(3))}
    assert len(digests) == 1
    assert sorted(path.name for path in parsed) == ["other.py", "stage.py"]
