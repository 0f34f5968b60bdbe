"""Names that are suggested where one is misspelt."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pipeline.config.file import ModelFile
from pipeline.config.judging import ThresholdsFile
from pipeline.config.quantization import NodesRule
from pipeline.config.readers import TextReader
from pipeline.config.targets import Target
from pipeline.plain_text import did_you_mean, nearest
from pipeline.qnn import catalog


def keys_of(form: type[Any]) -> tuple[str, ...]:
    """What a part of a config may hold."""
    return tuple(field.name for field in fields(form))


KEYS = keys_of(ModelFile)


@pytest.mark.parametrize(
    ("word", "meant", "known"),
    [
        ("const", "constants", KEYS),
        ("thres", "thresholds", KEYS),
        ("compo", "components", KEYS),
        ("tragets", "targets", KEYS),
        ("prec", "precision", keys_of(NodesRule)),
        ("max_sa", "max_samples", keys_of(TextReader)),
        ("wors", "worst_db", keys_of(ThresholdsFile)),
        ("worst", "worst_db", keys_of(ThresholdsFile)),
        ("compiler_op", "compiler_options", keys_of(Target)),
        ("snapdragon-8g3", "snapdragon-8-gen-3", catalog.spellings()),
        ("sm8560", "sm8650", catalog.spellings()),
        ("sm8505", "sm8550", catalog.spellings()),
        ("nothing like it", "", KEYS),
    ],
)
def test_the_beginning_of_a_long_name_is_meant_before_another_short_one(
    word: str, meant: str, known: tuple[str, ...]
) -> None:
    assert nearest(word, known) == meant


def test_a_name_is_not_suggested_in_its_own_place() -> None:
    assert did_you_mean("model.onnx", ["model.onnx"]) == ""
    assert did_you_mean("model.onnx", ["model.onnx", "modle.onnx"]) == "; did you mean 'modle.onnx'?"
