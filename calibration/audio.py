"""How far synthetic speech is from what it should be, as one listens to it.

Used by `configs/supertonic-tts-2.yaml` under `components.voice_decoder.score`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pipeline.inputs.samples.held_out import ScoredSample

RATE = 44_100
"""Samples a second of the voice decoder's waveform (the model's config.json)."""
WINDOW = 2048
HOP = 512
BANDS = 80
FLOOR = 1e-5
"""Amplitude below which a band counts as silent: 100 dB under full scale."""


def log_mel_distance(
    samples: Sequence[ScoredSample],
    outputs: Sequence[Mapping[str, NDArray[Any]]],
    reference: Sequence[Mapping[str, NDArray[Any]]],
) -> float:
    """The mean distance of log-mel spectrograms in dB, 0 for equal waveforms; about 1 dB can just be heard.

    `outputs` and `reference` have a model's and the original's `waveform`, float32 [1, samples], for each sample.
    """
    distances = [
        np.abs(_log_mel(output["waveform"].ravel()) - _log_mel(truth["waveform"].ravel())).mean()
        for output, truth in zip(outputs, reference, strict=True)
    ]
    return float(np.mean(distances))


def _log_mel(waveform: NDArray[Any]) -> NDArray[Any]:
    """The spectrogram in dB, [frames, BANDS]."""
    padded = np.pad(waveform.astype(np.float64), (0, max(0, WINDOW - waveform.size)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(WINDOW))) * (2 / WINDOW)
    return 20 * np.log10(np.maximum(spectrum @ _mel_bands(), FLOOR))


def _mel_bands() -> NDArray[np.float64]:
    """Triangular bands, equally wide in mel (O'Shaughnessy's 2595 log10(1 + f / 700)), [bins, BANDS]."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE)[:, None]
    rising = (bins - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - bins) / (corners[2:] - corners[1:-1])
    return np.clip(np.minimum(rising, falling), 0, None)
