"""Reader `speech`: runs a speech model's original on sounds as in use, and gives the runs as samples of both parts.

A sample is a window: one call of the encoder, and calls of the decoder after some of the tokens that it wrote itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pipeline.contracts.samples import SOUNDS
from pipeline.errors import CalibrationError
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.model_file import load_graph
from pipeline.inputs.samples.found_files import found_files
from pipeline.inputs.samples.request import Call, ReadRequest, Sample
from pipeline.inputs.samples.sound_files import read_sound
from pipeline.qnn_release.errors import ReleaseError
from pipeline.qnn_release.sound_features import HOP, RATE, log_mel, waveform
from pipeline.qnn_release.transcription import Arrays, Run, Transcriber, speech_setting

FEATURES = "input_features"
_SHORTEST = RATE // 10


def transcriber(source: Path, encoder: Path, decoder: Path, runs: Sequence[Run] = ()) -> Transcriber:
    """A speech model of `source`, the folder with its files, by the graphs `encoder` and `decoder` on the CPU.

    `runs` run the two in their place, if they are given.

    Raises:
        CalibrationError: a file beside the model does not fit it.
    """
    if not runs:
        sessions = [load_session(each) for each in (encoder, decoder)]
        runs = [partial(run, session) for session in sessions]
    past = {
        given.name: [dim.dim_value for dim in given.type.tensor_type.shape.dim]
        for given in load_graph(decoder).graph.input
        if given.name.startswith("past_")
    }
    try:
        setting = speech_setting(source)
    except ReleaseError as error:
        raise CalibrationError(error.what, where=error.where, why=error.why, remedy=error.next) from None
    return Transcriber(setting, runs[0], runs[1], past)


def read(request: ReadRequest) -> Iterator[Call]:
    """The calls of each window, with files in the order of their paths.

    Raises:
        CalibrationError: there are no sounds, or one can't be read.
    """
    reading = request.calibration.speech
    assert reading is not None
    folder = request.existing(request.samples, "folder")
    model = transcriber(request.source, request.models["encoder"], request.models["decoder"])
    setting, index = model.setting, 0
    for path in found_files(folder, SOUNDS, "sound"):
        name = path.relative_to(folder).as_posix()
        sound = read_sound(path, name)
        try:
            wave = waveform(sound.values, sound.rate)
        except ReleaseError as error:
            raise CalibrationError(error.what, where=name, why=error.why, remedy=error.next) from None
        for start in range(0, wave.size, setting.frames * HOP):
            window = wave[start : start + setting.frames * HOP]
            if index >= (request.calibration.max_samples or index + 1):
                return
            if window.size < _SHORTEST:
                continue
            sample = Sample(index, name if not start else f"{name}, from {start / RATE:g} s")
            features = log_mel(window, setting.bands, setting.frames)
            yield request.call("encoder", {FEATURES: features}, sample)
            crossing = model.encode_features(features)
            language = reading.language or (model.heard(crossing) if setting.languages else "")
            prompt = setting.prompt(language, reading.task, times=False)
            kept = _Kept(reading.steps)
            model.decode(crossing, prompt, seen=kept)
            for feed in kept.spread():
                yield request.call("decoder", feed, sample)
            index += 1


class _Kept:
    """Keeps a few of many runs, evenly spread, whose number is not known before the last: never more than twice."""

    def __init__(self, count: int) -> None:
        self._count, self._every, self._number = count, 1, 0
        self._feeds: list[Arrays] = []

    def __call__(self, feed: Arrays) -> None:
        if self._number % self._every == 0:
            self._feeds.append(feed)
        if len(self._feeds) > 2 * self._count:
            self._feeds, self._every = self._feeds[::2], 2 * self._every
        self._number += 1

    def spread(self) -> Iterator[Arrays]:
        """The runs that are kept, in their order."""
        fewer = min(self._count, len(self._feeds))
        yield from (self._feeds[number * len(self._feeds) // fewer] for number in range(fewer))
