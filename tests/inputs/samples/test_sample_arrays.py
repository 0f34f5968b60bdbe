"""The samples step with readers `npz` and `python`, on two small graphs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import CalibrationError
from pipeline.inputs.samples.sample_set import calibration_calls
from pipeline.model import Json
from tests.support.sample_sets import BUCKETS, SampleStep, calls, ids, npz, refusal, two_components, write_code

NPZ: dict[str, Json] = {"reader": "npz"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> SampleStep:
    return two_components(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def two(pair: SampleStep) -> SampleStep:
    inputs = {role: value for role, value in pair.inputs.items() if role != "ingest/one"}
    return SampleStep(inputs, {"two": BUCKETS}, pair.scratch)


def test_npz_files_are_read_by_name_and_converted_where_nothing_is_lost(two: SampleStep, tmp_path: Path) -> None:
    npz(tmp_path / "b.npz", bias=np.ones((1, 2, 2)), input_ids=ids(3, 4).astype(np.int32))
    npz(tmp_path / "a.npz", input_ids=ids(7), bias=np.full((1, 1, 2), 0.5, np.float32), label="left")
    (tmp_path / "README.txt").write_text("not a sample")
    output = two.run(NPZ, tmp_path)
    first, second = calls(output, "two")
    assert [(call.name, call.sample.label) for call in (first, second)] == [("a.npz", "left"), ("b.npz", None)]
    loaded = second.load()
    assert list(loaded) == ["input_ids", "bias"]
    assert [array.dtype.name for array in loaded.values()] == ["int64", "float32"]
    assert loaded["input_ids"].tolist() == [[3, 4]]


GOOD: dict[str, NDArray[Any]] = {"input_ids": ids(1, 2, 3), "bias": np.zeros((1, 3, 2), np.float32)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_id": ids(1)}, "the component has no input 'input_id'; did you mean 'input_ids'?"),
        ({"bias": None}, "the sample has no array for bias: float32 [batch, sequence, 2]"),
        ({"input_ids": np.array([1, 2, 3])}, "input 'input_ids' has rank 1, shape [3]"),
        ({"bias": np.zeros((1, 3, 4), np.float32)}, "input 'bias' has 4 in dim 2, shape [1, 3, 4]"),
        ({"bias": np.zeros((1, 4, 2), np.float32)}, "it is 3 in 'input_ids' and 4 in 'bias'"),
        ({"bias": np.full((1, 3, 2), np.nan, np.float32)}, "input 'bias' holds NaN or infinity"),
        ({"bias": np.full((1, 3, 2), -np.inf, np.float32)}, "such as -100"),
        ({"bias": np.full((1, 3, 2), 1e300)}, "input 'bias' holds NaN or infinity"),
        ({"bias": np.zeros((1, 3, 2), np.int64)}, "input 'bias' is int64, the model takes float32"),
        ({"input_ids": np.full((1, 3), 1.5)}, "input 'input_ids' is float64, the model takes int64"),
        ({"input_ids": np.full((1, 3), 2**63, np.uint64)}, "some values don't fit that type"),
        ({"input_ids": np.array([["a", "b", "c"]])}, "the model takes int64"),
        ({name: array[:, :0] for name, array in GOOD.items()}, "input 'input_ids' is empty, shape [1, 0]"),
        (
            {"input_ids": ids(*range(17)), "bias": np.zeros((1, 17, 2), np.float32)},
            "the sample fits no bucket: sequence 17",
        ),
        (
            {name: np.concatenate([array, array]) for name, array in GOOD.items()},
            "axis 'batch' is 2, and it must be 1",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    two: SampleStep, tmp_path: Path, change: dict[str, NDArray[Any] | None], said: str
) -> None:
    given = {name: array for name, array in {**GOOD, **change}.items() if array is not None}
    npz(tmp_path / "bad.npz", **given)
    text = refusal(two, NPZ, tmp_path)
    assert said in text
    assert "where: bad.npz, component 'two'" in text


@pytest.mark.parametrize("content", [b"PK\x03\x04 cut short", b"", b"plain"])
def test_a_damaged_file_is_named(two: SampleStep, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "0.npz").write_bytes(content)
    assert "can't read the arrays in 0.npz" in refusal(two, NPZ, tmp_path)


def test_a_file_under_the_other_suffix_is_named(pair: SampleStep, tmp_path: Path) -> None:
    with (tmp_path / "0.npz").open("wb") as stream:
        np.save(stream, np.ones(3))
    assert "it is a single array without a name" in refusal(pair, NPZ, tmp_path)
    (tmp_path / "0.npz").unlink()
    with (tmp_path / "0.npy").open("wb") as stream:
        npz(stream, **GOOD)
    assert "it is an archive of several arrays" in refusal(pair, NPZ, tmp_path)


def test_pickled_objects_are_never_loaded(two: SampleStep, tmp_path: Path) -> None:
    npz(tmp_path / "0.npz", input_ids=np.array([{"a": 1}], object), bias=GOOD["bias"])
    assert "can't read the arrays in 0.npz" in refusal(two, NPZ, tmp_path)


def test_a_folder_a_sample_and_a_lone_npy_are_samples_too(pair: SampleStep, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    for name, array in GOOD.items():
        np.save(tmp_path / "first" / f"{name}.npy", array)
    np.save(tmp_path / "wave.npy", np.ones((1, 5), np.float32))
    output = pair.run(NPZ, tmp_path)
    assert output.facts["count"] == {"two": 1, "one": 1}
    assert [call.name for call in calls(output, "one")] == ["wave.npy"]


def test_a_component_has_its_own_folder_or_takes_the_files_that_hold_its_inputs(
    pair: SampleStep, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    npz(tmp_path / "one" / "x.npz", wave=np.ones((1, 2), np.float32))
    npz(tmp_path / "0.npz", **GOOD)
    output = pair.run(NPZ, tmp_path)
    assert [call.name for call in calls(output, "one")] == ["one/x.npz"]
    assert [call.name for call in calls(output, "two")] == ["0.npz"]


def test_one_file_can_hold_the_inputs_of_several_components(pair: SampleStep, tmp_path: Path) -> None:
    npz(tmp_path / "0.npz", wave=np.ones((1, 2), np.float32), **GOOD)
    output = pair.run(NPZ, tmp_path)
    assert [call.sample.index for name in ("one", "two") for call in calls(output, name)] == [0, 0]
    npz(tmp_path / "0.npz", wave=np.ones((1, 2), np.float32), waves=np.ones(1))
    assert "no component has an input 'waves'; did you mean 'wave'?" in refusal(pair, NPZ, tmp_path)


def test_an_empty_folder_says_what_belongs_in_it(two: SampleStep, tmp_path: Path) -> None:
    text = refusal(two, NPZ, tmp_path)
    assert "the calibration set is empty" in text
    assert "numpy.savez(" in text


def test_a_component_without_samples_is_told_of_where_they_are_needed(pair: SampleStep, tmp_path: Path) -> None:
    npz(tmp_path / "0.npz", **GOOD)
    output = pair.run(NPZ, tmp_path)
    assert output.facts["count"] == {"two": 1, "one": 0}
    with pytest.raises(CalibrationError, match="no sample for component 'one'"):
        calibration_calls(output.folder, "one")


EMPTY = np.zeros((1, 0), np.float32)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"one/0.npz": {"wave": np.ones((1, 2))}, "one/1.npz": {"wave": EMPTY}}, "input 'wave' is empty, shape [1, 0]"),
        ({"one/0.npz": {"wave": np.ones((1, 9))}}, "frames"),
        ({"one/0.npz": {"waves": np.ones((1, 2))}}, "the component has no input 'waves'; did you mean 'wave'?"),
        ({"one/0.npy": None}, "can't read the arrays in 0.npy"),
        ({"one/README": None}, "the calibration set is empty: one holds no .npz file"),
        ({"1.npz": {"wave": EMPTY, **GOOD}}, "input 'wave' is empty, shape [1, 0]"),
    ],
)
def test_a_sample_that_does_not_fit_a_component_fails_no_other(
    files: dict[str, Any], said: str, pair: SampleStep, tmp_path: Path
) -> None:
    npz(tmp_path / "0.npz", **GOOD)
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch() if content is None else npz(path, **content)
    output = pair.run(NPZ, tmp_path)
    good = calibration_calls(output.folder, "two")
    assert good
    assert output.facts["count"] == {"two": len(good), "one": 0}
    with pytest.raises(CalibrationError) as told:
        calibration_calls(output.folder, "one")
    assert said in str(told.value)
    assert "next: " in str(told.value) or "why: " in str(told.value)
    with pytest.raises(CalibrationError):
        calls(output, "one")


def test_where_no_component_has_samples_the_step_fails(pair: SampleStep, tmp_path: Path) -> None:
    npz(tmp_path / "0.npz", wave=EMPTY, input_ids=ids(1), bias=np.zeros((1, 0, 2), np.float32))
    assert "is empty, shape [1, 0" in refusal(pair, NPZ, tmp_path)


# reader: python

PYTHON: dict[str, Json] = {"reader": "python", "run": "run"}
MAKES_ITEMS = """
import random
import numpy as np

def run(path):
    for line in path.read_text().splitlines():
        n = int(line)
        yield {
            "two": {"input_ids": np.ones((1, n), np.int64), "bias": np.random.rand(1, n, 2)},
            "one": {"wave": [[random.random()]]},
        }
    yield {"wave": np.zeros((1, 3), np.float32), "label": "quiet"}
"""


def test_a_function_yields_samples_for_all_components_or_for_each(pair: SampleStep, tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("2\n4\n")
    code = write_code(tmp_path, MAKES_ITEMS)
    output = pair.run(PYTHON, file, code)
    assert output.facts["count"] == {"two": 2, "one": 3}
    last = calls(output, "one")[-1]
    assert (last.name, last.sample.label) == ("calibration/code.py:run[2]", "quiet")
    before = {name: entry.sha256 for name, entry in output.files.items()}
    again = pair.run(PYTHON, file, code)
    assert {name: entry.sha256 for name, entry in again.files.items()} == before


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "def run(path):\n    yield {}\n    raise ValueError('broken')\n",
            ["run() failed", "ValueError: broken", ":3, in run"],
        ),
        ("def run(path):\n    exit('no')\n", ["run() failed", "SystemExit: no", "code.py:2, in run"]),
        ("import nowhere_to_be_found\n", ["can't be loaded", "ModuleNotFoundError", "code.py:1, in <module>"]),
        ("def run(path)\n    pass\n", ["can't be loaded", "SyntaxError", "calibration/code.py:1"]),
        ("def runs(path):\n    pass\n", ["has no function 'run'; did you mean 'runs'?", "def run(...)"]),
        ("def run(path):\n    return 3\n", ["run() failed", "'int' object is not iterable"]),
        ("def run(path):\n    yield 3\n", ["yielded int, not a mapping", "code.py:run[0]"]),
        ("def run(path):\n    yield {'too': {}}\n", ["no component 'too'; did you mean 'two'?"]),
        ("def run(path):\n    return []\n", ["the calibration set is empty: the function gives no samples"]),
    ],
)
def test_an_error_in_the_users_code_is_shown_with_its_line(
    two: SampleStep, tmp_path: Path, code: str, said: list[str]
) -> None:
    first = "yield {}"
    good = "import numpy; yield {'input_ids': [[1]], 'bias': numpy.zeros((1, 1, 2))}"
    text = refusal(two, PYTHON, None, write_code(tmp_path, code.replace(first, good)))
    assert all(part in text for part in said), text


def test_code_outside_the_projects_folder_is_not_run(two: SampleStep, tmp_path: Path) -> None:
    outside = tmp_path / "code.py"
    outside.write_text("raise AssertionError('this ran')\n")
    assert "code.py is not in the project's calibration/ folder" in refusal(two, PYTHON, None, outside)
    inside = tmp_path / "calibration" / "linked.py"
    inside.parent.mkdir()
    try:
        inside.symlink_to(outside)
    except OSError:
        pytest.skip("no right to make symbolic links here")
    assert "linked.py is not in the project's calibration/ folder" in refusal(two, PYTHON, None, inside)


def test_running_code_writes_no_bytecode(two: SampleStep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write_code(tmp_path, "import numpy\nITEM = {'input_ids': [[1]], 'bias': numpy.zeros((1, 1, 2))}\n", "beside_it.py")
    code = write_code(tmp_path, "from calibration.beside_it import ITEM\n\ndef run(path):\n    return [ITEM]\n")
    assert two.run(PYTHON, None, code).facts["samples"] == 1
    assert [path.name for path in tmp_path.rglob("*.pyc")] == []
    assert sys.dont_write_bytecode is False
