"""Voice activity and wake words over streams of sound, state handed on from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tests.real_models.model import Application, Array, Run, Share, equal_decisions, first
from tests.real_models.sounds import commands, street

_NEW, _KEPT = 512, 64  # silero's samples in a step at 16 kHz, and those of the step before that go in again
_STEP = 1280  # openWakeWord's samples in a step


def voice(*, with_rate: bool) -> Application[float]:
    """silero-vad over 16 seconds: 500 probabilities. Some of its exports take the sample rate as an input."""

    def use(run: Run, share: Share) -> list[float]:
        sound = street(share, 16.0)
        state = np.zeros((2, 1, 128), np.float32)
        before = np.zeros(_KEPT, np.float32)
        found = []
        for start in range(0, len(sound) - _NEW + 1, _NEW):
            heard = np.concatenate([before, sound[start : start + _NEW]])
            feeds: dict[str, Array] = {"input": heard[None], "state": state}
            if with_rate:
                feeds["sr"] = np.array(16_000, np.int64)
            outputs = run("vad", feeds)
            found.append(float(outputs["output"].ravel()[0]))
            state, before = outputs["stateN"], heard[-_KEPT:]
        return found

    return Application(use, equal_decisions)


def voice_with_two_states() -> Application[float]:
    """An older silero-vad over 16 seconds: no samples of the step before, and the two states of its LSTM by name."""

    def use(run: Run, share: Share) -> list[float]:
        sound = street(share, 16.0)
        states: dict[str, Array] = {name: np.zeros((2, 1, 64), np.float32) for name in ("h", "c")}
        found = []
        for start in range(0, len(sound) - _NEW + 1, _NEW):
            heard: dict[str, Array] = {"input": sound[None, start : start + _NEW], "sr": np.array(16_000, np.int64)}
            outputs = run("vad", heard | states)
            found.append(float(outputs["output"].ravel()[0]))
            states = {"h": outputs["hn"], "c": outputs["cn"]}
        return found

    return Application(use, equal_decisions)


def wake_word(component: str, given: str, kept: int, spoken: Sequence[str]) -> Application[float]:
    """openWakeWord with one word: `kept` embeddings go into its input `given`; all of its scores count."""

    def use(run: Run, share: Share) -> list[float]:
        embeddings = np.zeros((kept, 96), np.float32)
        found: list[float] = []
        for step, embedding in enumerate(_embeddings(run, share, spoken)):
            embeddings = np.concatenate([embeddings, embedding])[-kept:]
            scores = first(run(component, {given: embeddings[None]}))
            if step >= kept:
                found += scores.ravel().tolist()
        return found

    return Application(use, equal_decisions)


def _wake_words(run: Run, share: Share) -> list[float]:
    """openWakeWord with two words: sixteen embeddings to a score for each."""
    embeddings = np.zeros((16, 96), np.float32)
    found = []
    for step, embedding in enumerate(_embeddings(run, share, ["alexa", "hey mycroft"])):
        embeddings = np.concatenate([embeddings, embedding])[-16:]
        alexa = first(run("alexa", {"onnx::Flatten_0": embeddings[None]}))
        mycroft = first(run("hey_mycroft", {"input_1": embeddings[None]}))
        if step >= 16:
            found += [float(alexa.ravel()[0]), float(mycroft.ravel()[0])]
    return found


def _embeddings(run: Run, share: Share, spoken: Sequence[str]) -> Iterator[Array]:
    """openWakeWord's embedding of each step of sound, float32 [1, 96]: sound to mel spectra, spectra to embeddings."""
    sound = commands(share, spoken) * 32767
    heard = np.zeros(480, np.float32)
    spectra = np.ones((76, 32), np.float32)
    for start in range(0, len(sound) - _STEP + 1, _STEP):
        heard = np.concatenate([heard[-480:], sound[start : start + _STEP].round().astype(np.float32)])
        mel = first(run("melspectrogram", {"input": heard[None]})).reshape(-1, 32)
        spectra = np.concatenate([spectra, mel / 10 + 2])[-76:].astype(np.float32)
        yield first(run("embedding", {"input_1": spectra[None, :, :, None]})).reshape(1, 96)


WAKE_WORDS: Application[float] = Application(_wake_words, equal_decisions)
