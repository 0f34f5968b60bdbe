"""The score of synthetic speech that configs/supertonic-tts-2.yaml uses."""

from __future__ import annotations

import runpy
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.project import ROOT

SCORE = runpy.run_path(str(ROOT / "calibration" / "audio.py"))  # by file, as verification runs it
FLOOR, RATE = SCORE["FLOOR"], SCORE["RATE"]
TONE = 0.3 * np.sin(2 * np.pi * 440 * np.arange(RATE // 4) / RATE).astype(np.float32)[None]


def distance(waveform: NDArray[Any], truth: NDArray[Any] = TONE) -> float:
    return float(SCORE["log_mel_distance"]([], [{"waveform": waveform}], [{"waveform": truth}]))


def test_the_same_waveform_is_at_no_distance() -> None:
    assert distance(TONE) == 0


def test_half_the_loudness_is_6_db_where_there_is_sound() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (1, RATE // 4)).astype(np.float32)
    assert distance(noise / 2, noise) == pytest.approx(20 * np.log10(2), abs=0.01)


def test_what_is_below_the_floor_is_silence() -> None:
    silence = np.zeros_like(TONE)
    assert distance(silence + FLOOR / 1e3, silence) == 0


def test_an_octave_up_is_far() -> None:
    octave = 0.3 * np.sin(2 * np.pi * 880 * np.arange(RATE // 4) / RATE).astype(np.float32)[None]
    assert distance(octave) > 5


def test_a_waveform_shorter_than_a_window_is_padded() -> None:
    assert distance(TONE[:, :100], TONE[:, :100]) == 0
