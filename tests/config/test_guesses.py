"""Lines of a config that `doit init` guessed, and that nobody has looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.guesses import guesses, still_guessed
from pipeline.propose.config_text import config_text
from pipeline.propose.found_model import FoundModel
from pipeline.propose.proposal import Choices, Said


def test_what_init_marks_is_found_until_the_word_is_taken_out(tmp_path: Path) -> None:
    said = Choices()
    said.fixed = {"N": Said(1, "a batch"), "x[2]": Said(224, f"height: GUESS: {'as most have it ' * 8}")}
    said.reader = {
        "reader": Said("images"),
        "fit": Said("resize", "GUESS: or crop"),
        "vocabulary": Said({"file": "vocab.txt"}, f"GUESS: {'6 tokens ' * 20}"),
        "folder": Said("calibration/mine", "pictures"),
    }
    said.constants = {"sr": Said(0, "it selects a branch (If): GUESS, no number is known")}
    text = config_text("mine", FoundModel({"path": "x"}, {}, []), {}, said, ["sm8650"])
    file = tmp_path / "mine.yaml"
    file.write_text(text, "utf-8")
    assert guesses(file) == ["sr", "x[2]", "fit", "vocabulary"]
    file.write_text(text.replace("GUESS: or crop", "or crop"), "utf-8")
    assert guesses(file) == ["sr", "x[2]", "vocabulary"]


@pytest.mark.parametrize("text", ["", "# GUESS marks what\n", "a: 'GUESS: no comment'\n", "a: 1 # a guess: no\n"])
def test_what_is_no_guess_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert guesses(tmp_path / "a.yaml") == []
    assert guesses(tmp_path / "none.yaml") == []
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe")
    assert guesses(tmp_path / "b.yaml") == []


def test_many_are_counted() -> None:
    text = still_guessed("a.yaml", [f"k{number}" for number in range(10)])
    assert "k7 and 2 more" in text
    assert "k8" not in text
