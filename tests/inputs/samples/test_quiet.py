"""Samples that are made quieter: which, how, and what of them stays."""

from __future__ import annotations

import numpy as np

from pipeline.inputs.samples.held_out import ScoredSample
from pipeline.inputs.samples.quiet import quieter


def sample(name: str, loudness: float) -> ScoredSample:
    arrays = {"sound": np.full((1, 8), loudness, np.float32), "rate": np.array(16_000)}
    return ScoredSample(name, "words", None, arrays)


def test_the_loudest_fade_are_quiet_and_one_is_silent() -> None:
    made = quieter([sample("a", 0.5), sample("b", 0), sample("c", -2), sample("d", 1), sample("e", 0.1)], ["sound"])

    assert [each.name for each in made] == [
        "c, fading", "d, fading", "a, fading", "c, quiet", "d, quiet", "a, quiet", "c, silent",
    ]  # fmt: skip
    fading, quiet, silent = made[0].inputs["sound"], made[3].inputs["sound"], made[6].inputs["sound"]
    np.testing.assert_array_equal(fading, np.repeat([-2, -2 / 16, -2 / 256, 0], 2)[None].astype(np.float32))
    np.testing.assert_array_equal(quiet, np.full((1, 8), -2 / 64, np.float32))
    assert not silent.any()
    assert {fading.dtype, quiet.dtype, silent.dtype} == {np.dtype(np.float32)}
    assert all(each.inputs["rate"] == 16_000 for each in made)


def test_of_silence_nothing_is_made() -> None:
    assert quieter([sample("a", 0)], ["sound"]) == []
    assert quieter([], ["sound"]) == []
