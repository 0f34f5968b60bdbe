"""The judge itself: what it must not let pass."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.real_models import packages, read_text
from tests.real_models.boxes import Box, compare_boxes, connected, without_overlaps
from tests.real_models.cases import CASES
from tests.real_models.model import Application, Arrays, Recorder, Share, equal_decisions, equal_share
from tests.real_models.report import write
from tests.real_models.run_case import Outcome

BOX = Box(10, 10, 50, 40, 1, 0.9, 0.4)


def _package(folder: Path, members: dict[str, bytes]) -> packages.Package:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    (folder / "packages").mkdir()
    (folder / "packages" / "tiny_pack-1.0-py3-none-any.whl").write_bytes(data.getvalue())
    return packages.Package("tiny-pack", "1.0", hashlib.sha256(data.getvalue()).hexdigest())


def test_a_wheel_is_read_only_with_the_pinned_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "HOME", tmp_path)
    package = _package(tmp_path, {"a/model.onnx": b"weights", "../../escape": b"x"})
    assert packages.read(package, "a/model.onnx") == b"weights"
    with pytest.raises(ValueError, match="has SHA-256"):
        packages.read(replace(package, sha256="0" * 64), "a/model.onnx")
    assert not (tmp_path.parent / "escape").exists()


def test_every_case_has_a_config_of_axes_samples_and_targets_alone() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        keys = [line.split(":")[0] for line in case.config("sm8650").splitlines() if line and line[0] != " "]
        assert set(keys) <= {
            "source",
            "components",
            "fixed",
            "buckets",
            "constants",
            "calibration",
            "targets",
            "release",
        }


def test_a_recorder_hands_on_what_went_in_unchanged() -> None:
    recorder = Recorder(lambda _, feeds: {"y": feeds["x"] + 1})
    given = np.zeros(3)
    made = recorder("one", {"x": given})["y"]
    given += 5
    assert made.tolist() == [1, 1, 1]
    assert [feeds["x"].tolist() for feeds in recorder.feeds["one"]] == [[0, 0, 0]]


def test_the_original_is_held_against_the_tested_on_unseen_inputs_only() -> None:
    seen: list[Share] = []

    def use(run: object, share: Share) -> list[int]:
        seen.append(share)
        return [1, 2] if len(seen) == 1 else [1, 3]

    application = Application(use, lambda one, other: equal_share(one, other, "labels"))
    verdict = application.judge(_nothing, _nothing)
    assert (verdict.agrees, verdict.text, set(seen)) == (False, "labels 1/2", {Share.UNSEEN})


def _nothing(component: str, feeds: object) -> Arrays:
    return {}


@pytest.mark.parametrize(
    ("actual", "agrees"),
    [([0.1, 0.9], True), ([0.14, 0.86], True), ([0.1, 0.84], False), ([0.1, np.nan], False), ([0.1, -98304], False)],
)
def test_decisions_must_be_equal_and_close(actual: list[float], agrees: bool) -> None:
    assert equal_decisions([0.1, 0.9], actual).agrees is agrees


def test_a_decision_that_flips_is_wrong_unless_it_is_on_a_tie() -> None:
    assert not equal_decisions([0.477], [0.501]).agrees
    assert equal_decisions([0.499], [0.501]).agrees
    assert not equal_decisions([0.499], [0.555]).agrees


@pytest.mark.parametrize(
    ("found", "agrees"),
    [
        ([BOX], True),
        ([replace(BOX, left=10.5)], True),
        ([replace(BOX, left=12)], False),
        ([replace(BOX, left=15)], False),
        ([replace(BOX, label=2)], False),
        ([], False),
        ([BOX, Box(60, 60, 90, 90, 1, 0.9, 0.4)], False),
        ([BOX, Box(60, 60, 90, 90, 1, 0.52, 0.02)], True),
    ],
    ids=[
        "same",
        "half a pixel",
        "two pixels",
        "five pixels",
        "another label",
        "none",
        "one too many",
        "one that hangs on rounding",
    ],
)
def test_boxes_must_be_found_again(found: list[Box], agrees: bool) -> None:
    assert compare_boxes([[BOX]], [found]).agrees is agrees


def test_one_box_may_be_off_by_little_among_many() -> None:
    many = [replace(BOX, left=left, right=left + 40) for left in range(10, 900, 60)]
    assert compare_boxes([many], [[replace(many[0], right=many[0].right - 2), *many[1:]]]).agrees
    assert not compare_boxes([many], [[replace(many[0], right=many[0].right - 6), *many[1:]]]).agrees


def test_pictures_without_boxes_judge_nothing() -> None:
    assert not compare_boxes([[]], [[]]).agrees


def test_overlapping_boxes_keep_the_best() -> None:
    assert without_overlaps([replace(BOX, score=0.5), BOX, replace(BOX, left=200, right=240)], 0.45) == [
        BOX,
        replace(BOX, left=200, right=240),
    ]


def test_regions_that_touch_at_a_corner_or_meet_below_are_one() -> None:
    mask = np.array([[1, 0, 1, 0, 0], [1, 0, 1, 0, 1], [0, 1, 0, 0, 1]], np.bool_)
    assert sorted(len(region) for region in connected(mask)) == [2, 5]


def test_a_run_replaces_its_own_rows_of_the_table(tmp_path: Path) -> None:
    outcome = Outcome(
        "magika", "file types", "magika==1", "abc", "2026-01-01", "refused", 14, "", {}, "", 1.0, 6, 0.0,
        "error: no | range", "log",
    )  # fmt: skip
    write(outcome, tmp_path)
    write(replace(outcome, name="nudenet", result="right", status=0, rungs={"compile": 31.04}), tmp_path)
    write(replace(outcome, result="right", status=0, scheme="w8a16"), tmp_path)
    page = (tmp_path / "real-models.md").read_text("utf-8")
    assert "2 models: 2 right, 0 refused, 0 wrong." in page
    assert "| 31.0 |" in page
    assert "refused (14)" not in page


@pytest.mark.parametrize(
    ("steps", "classes", "clear"),
    [
        ([[0, 0.9, 0.1], [0, 0.9, 0.1], [1, 0, 0], [0, 0.8, 0.2]], (1, 1), True),
        ([[0, 0.51, 0.49], [0, 0.9, 0.1]], (1,), True),
        ([[0, 0.51, 0.49], [1, 0, 0]], (1,), False),
        ([[1, 0, 0]], (), True),
    ],
    ids=["a letter twice", "clear in its second step", "a tie", "nothing"],
)
def test_texts_are_read_without_repeats_and_blanks(
    steps: list[list[float]], classes: tuple[int, ...], clear: bool
) -> None:
    assert read_text._decoded(np.array(steps)) == read_text.Reading(classes, clear)


def test_texts_on_a_tie_do_not_count() -> None:
    clear, tie = read_text.Reading((1, 2), True), read_text.Reading((3,), False)
    assert read_text._same_texts([clear, tie], [clear, replace(tie, classes=(4,))]).agrees
    assert not read_text._same_texts([clear, tie], [replace(clear, classes=(1,)), tie]).agrees
    assert not read_text._same_texts([tie], [tie]).agrees, "nothing was judged"
