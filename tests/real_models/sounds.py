"""Sound at 16 kHz: speech by espeak-ng, and silence, noise and tones by numpy."""

from __future__ import annotations

import io
import shutil
import subprocess
import wave
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tests.real_models.model import Share

Sound = NDArray[np.float32]  # from -1 to 1

RATE = 16_000
_TOOL = "espeak-ng"
_SAID = {
    Share.CALIBRATION: [
        ("en", "The train to the airport leaves from platform nine in twelve minutes."),
        ("de", "Bitte stellen Sie die Milch zurück in den Kühlschrank."),
        ("fr", "Nous avons réservé une table pour quatre personnes ce soir."),
        ("es", "Mañana por la tarde va a llover en toda la costa."),
        ("it", "Il museo apre alle nove e chiude alle diciotto."),
    ],
    Share.UNSEEN: [
        ("en", "Could you tell me how long the repair is going to take?"),
        ("nl", "De winkel om de hoek verkoopt vers brood en kaas."),
        ("pt", "O autocarro para o centro passa de dez em dez minutos."),
        ("pl", "Proszę zamknąć okno, bo robi się zimno."),
        ("de", "Der Schlüssel liegt unter der Fußmatte vor der Tür."),
    ],
}
_VOICES = {Share.CALIBRATION: ("", "+f2", "+m3", "+f4"), Share.UNSEEN: ("+m1", "+f3", "+m5", "+f1")}


class SpeechMissingError(Exception):
    """The host has no speech synthesizer."""


@cache
def speech(text: str, voice: str, pitch: int, speed: int) -> Sound:
    """The text, spoken by espeak-ng.

    Raises:
        SpeechMissingError: the program is not there.
    """
    if shutil.which(_TOOL) is None:
        raise SpeechMissingError(f"{_TOOL} is not installed; Debian and Ubuntu: apt-get install {_TOOL}")
    command = [_TOOL, "--stdout", "-v", voice, "-p", str(pitch), "-s", str(speed), text]
    said = subprocess.run(command, capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(said)) as file:
        rate = file.getframerate()
    start = said.index(b"data") + 8  # a stream's header has no length that wave would believe
    samples = np.frombuffer(said[start : start + (len(said) - start) // 2 * 2], "<i2") / 32768
    return _resampled(samples, rate)


def _resampled(samples: NDArray[np.float64], rate: int) -> Sound:
    """To 16 kHz: what is above 8 kHz is cut off in the spectrum, then interpolated."""
    spectrum = np.fft.rfft(samples)
    spectrum[np.fft.rfftfreq(len(samples), 1 / rate) > RATE / 2 * 0.95] = 0
    smooth = np.fft.irfft(spectrum, len(samples))
    times = np.arange(int(len(samples) * RATE / rate)) / RATE
    return np.asarray(np.interp(times, np.arange(len(samples)) / rate, smooth), np.float32)


def tones(rng: np.random.Generator, seconds: float) -> Sound:
    """Chords with overtones that swell and fade, like music."""
    times = np.arange(int(seconds * RATE)) / RATE
    out = np.zeros_like(times)
    for start in np.arange(0, seconds, 0.4):
        root = 110 * 2 ** (rng.integers(0, 24) / 12)
        shape = np.exp(-3 * np.maximum(times - start, 0)) * (times >= start)
        for step in (1, 1.26, 1.5):
            for overtone in (1, 2, 3):
                out += shape * np.sin(2 * np.pi * root * step * overtone * times) / overtone**2
    return np.asarray(0.2 * out / np.abs(out).max(), np.float32)


def noise(rng: np.random.Generator, seconds: float, level: float) -> Sound:
    """Noise whose power falls with frequency, as in a room or a street."""
    count = int(seconds * RATE)
    spectrum = np.fft.rfft(rng.standard_normal(count)) / np.sqrt(np.arange(count // 2 + 1) + 20)
    samples = np.fft.irfft(spectrum, count)
    return np.asarray(level * samples / samples.std(), np.float32)


def street(share: Share, seconds: float) -> Sound:
    """Speech of several voices and languages between silence, noise and music; some of it with noise below."""
    rng = share.rng(11)
    parts: list[Sound] = [np.zeros(RATE // 2, np.float32)]
    said = _SAID[share]
    while sum(len(part) for part in parts) < seconds * RATE:
        language, text = said[len(parts) % len(said)]
        voice = language + str(rng.choice(_VOICES[share]))
        words = speech(text, voice, int(rng.integers(30, 70)), int(rng.integers(140, 190)))
        words = words * float(rng.uniform(0.3, 1.0))
        if rng.random() < 0.5:
            words = words + noise(rng, len(words) / RATE + 1, float(rng.uniform(0.003, 0.03)))[: len(words)]
        between: Sequence[Sound] = (
            np.zeros(int(0.7 * RATE), np.float32),
            noise(rng, 0.8, 0.02),
            tones(rng, 1.0),
            noise(rng, 0.6, 1e-4),
        )
        parts += [words.astype(np.float32), between[len(parts) // 2 % len(between)]]
    return np.concatenate(parts)[: int(seconds * RATE)]


def commands(share: Share, spoken: Sequence[str]) -> Sound:
    """Each of the given words by several voices, with pauses, and other speech and noise between."""
    rng = share.rng(12)
    parts: list[Sound] = [noise(rng, 1.5, 1e-3)]
    for number, voice in enumerate(_VOICES[share]):
        for word in spoken:
            language = ("en-us", "en-gb")[number % 2]
            parts.append(speech(word, language + voice, int(rng.integers(35, 65)), int(rng.integers(130, 165))))
            parts.append(noise(rng, 0.9, 2e-3))
        language, text = _SAID[share][number]
        parts += [0.6 * speech(text, language + voice, 50, 165), noise(rng, 0.8, 0.01)]
    return np.concatenate([*parts, tones(rng, 1.0)])
