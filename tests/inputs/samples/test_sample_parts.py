"""One set of samples for calibration, verification and a search: which sample serves what."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import CalibrationError
from pipeline.inputs.samples.request import Call, Sample
from pipeline.inputs.samples.sample_set import SampleSetWriter, calibration_calls, stored_calls, write_npz


def written(folder: Path, *components: str) -> Path:
    """A set of one call a sample, of these components in turn."""
    writer = SampleSetWriter(folder)
    for number, component in enumerate(components):
        writer.add(Call(component, {"x": np.ones(1)}, Sample(number, f"{number}", None, None)))
    writer.finish()
    return folder


def names(folder: Path, component: str, part: str) -> str:
    return "".join(call.name for call in stored_calls(folder, component, part))


def test_the_bytes_of_a_call_are_the_same_from_every_python(tmp_path: Path) -> None:
    """Known from Python 3.11.2 on ARM64 and 3.11.7 on x86_64, which mark entries in ZIP64 form in different ways."""
    write_npz(tmp_path / "0.npz", {"ids": np.arange(5).reshape(1, 5), "mask": np.ones((1, 5), np.float32)})
    data = (tmp_path / "0.npz").read_bytes()
    assert hashlib.sha256(data).hexdigest() == "9eebd49cdfebe75561560cc1916095d1572d1e4b7a9c6ed961fe00baff2d0160"
    with np.load(tmp_path / "0.npz") as read:
        assert read["ids"].tolist() == [[0, 1, 2, 3, 4]]


def test_every_fourth_is_held_out_and_a_search_has_samples_of_its_own(tmp_path: Path) -> None:
    folder = written(tmp_path, *"aaaaaaaa")
    asked = "all", "kept", "held out", "calibrated", "searched", "not searched"
    assert {part: names(folder, "a", part) for part in asked} == {
        "all": "01234567", "kept": "023467", "held out": "15", "calibrated": "0246", "searched": "37",
        "not searched": "012456",
    }  # fmt: skip


def test_by_length_every_length_has_samples_of_its_own_in_every_part(tmp_path: Path) -> None:
    writer = SampleSetWriter(tmp_path)
    for number, length in enumerate((3, 5, 3, 3, 5, 3, 7)):
        writer.add(Call("a", {"x": np.ones(length)}, Sample(number, f"{number}", None, None)))
    writer.finish()
    parts = {part: names(tmp_path, "a", f"{part} by length") for part in ("kept", "held out", "calibrated", "searched")}
    assert parts == {"kept": "01356", "held out": "24", "calibrated": "0136", "searched": "5"}


def test_each_component_is_split_by_its_own_samples(tmp_path: Path) -> None:
    folder = written(tmp_path, *"abcdabcdabcdabcd")
    for component in "abcd":
        assert len(stored_calls(folder, component, "held out")) == 1
        assert len(stored_calls(folder, component, "kept")) == 3


def test_a_small_set_is_searched_where_it_was_calibrated(tmp_path: Path) -> None:
    assert names(written(tmp_path, *"aa"), "a", "searched") == "0"


def test_none_to_measure_on_is_no_error_and_none_to_calibrate_with_is(tmp_path: Path) -> None:
    folder = written(tmp_path, "a")
    assert stored_calls(folder, "b") == []
    with pytest.raises(CalibrationError, match="no sample for component 'b'"):
        calibration_calls(folder, "b")
