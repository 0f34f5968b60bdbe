"""`doit transcribe:<model> FILE…`: what a speech model that was built hears, segment by segment as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pipeline.chat.built_speaker import CPU, EMULATOR, built_output
from pipeline.config.load import ModelConfig
from pipeline.config.speech import DECODER, ENCODER
from pipeline.contracts import context
from pipeline.errors import CalibrationError, ConfigError
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.inputs.samples.sound_files import read_sound
from pipeline.inputs.samples.speech import transcriber
from pipeline.model import Manifest
from pipeline.plain_text import printable
from pipeline.plan import stage_params
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.qnn.child import compile_apart, run_apart
from pipeline.qnn_release.errors import ReleaseError
from pipeline.qnn_release.sound_features import RATE
from pipeline.qnn_release.transcription import Arrays, Run, Transcriber


def transcribe(
    config: ModelConfig,
    steps: Sequence[Step],
    workspace: Workspace,
    files: Sequence[str],
    *,
    emulator: bool,
    language: str,
    translate: bool,
) -> int:
    """Print what each sound file says.

    Raises:
        ConfigError: no file is given, nothing is built, or the model does not know the language.
        CalibrationError: a file is no sound that can be read.
    """
    if not files:
        remedy = f"doit transcribe:{config.name} FILE.wav"
        raise ConfigError("no sound is given to write down", where="command line", remedy=remedy)
    for file in files:
        if not Path(file).is_file():
            raise ConfigError(f"there is no file {file}", where="command line", remedy="name WAV or FLAC files")
    sounds = [(file, read_sound(Path(file), Path(file).name)) for file in files]
    with workspace.store.scratch() as folder:
        model = _built(config, steps, workspace, folder, emulator=emulator)
        for file, sound in sounds:
            if len(sounds) > 1:
                print(f"{printable(file)}:")
            began = time.monotonic()
            try:
                task = "translate" if translate else "transcribe"
                several = len(sound.values) / sound.rate * RATE > model.setting.frames * 160
                for segment in model.segments(sound.values, sound.rate, language=language, task=task):
                    times = f"[{segment.start:7.2f} to {segment.end:7.2f}]" if several else ""
                    print(f"{times}{printable(segment.text)}".strip(), flush=True)
            except ReleaseError as error:
                raise ConfigError(error.what, where=error.where, why=error.why, remedy=error.next) from None
            seconds, heard = time.monotonic() - began, len(sound.values) / sound.rate
            spoken = f", {model.language}" if model.language else ""
            print(
                f"[{heard:.1f} s of sound{spoken}, in {seconds:.1f} s, on {EMULATOR if emulator else CPU}]", flush=True
            )
    return 0


def _built(
    config: ModelConfig, steps: Sequence[Step], workspace: Workspace, folder: Path, *, emulator: bool
) -> Transcriber:
    """The model that steps left, over onnxruntime's CPU or the emulator.

    Raises:
        ConfigError: a step has no output.
    """
    by_id = {step.id: step for step in steps}

    def output(name: str) -> Manifest:
        return built_output(config.name, workspace, by_id[name])

    workspace.store.place(output(f"fetch:{config.name}"), folder / "source")
    (bucket,) = config.buckets
    for part in (ENCODER, DECODER):
        name = f"quantize:{config.name}/{part}"
        made = output(name).part(bucket.name) if name in by_id else None
        if made is None:
            made = output(f"rewrite:{config.name}/{part}/{bucket.name}")
        workspace.store.place(made, folder / part)
    weights = (folder / "source" / config.components[ENCODER].file).parent
    graphs = folder / ENCODER / MODEL, folder / DECODER / MODEL
    try:
        if not emulator:
            return transcriber(weights, graphs[0], graphs[1])
        runs = [_emulated(config, folder / part, folder / f"{part}-runs") for part in (ENCODER, DECODER)]
        return transcriber(weights, graphs[0], graphs[1], runs)
    except CalibrationError as error:
        raise ConfigError(error.what, where=error.where, why=error.why, remedy=error.remedy) from None


def _emulated(config: ModelConfig, folder: Path, work: Path) -> Run:
    """A function that runs the graph in a folder on the emulator, compiled by itself; each run is a process."""
    target, numbers = stage_params.of_target(config.targets[0]), count()
    work.mkdir()
    (out := work / "context").mkdir()
    compiled: context.CompiledModel = compile_apart(folder / MODEL, folder.name, target, out)
    names = [given.name for given in load_graph(out / compiled.context_model).graph.output]

    def run(feed: dict[str, NDArray[Any]]) -> Arrays:
        (here := work / str(next(numbers))).mkdir()
        (result,) = run_apart(out, compiled.context_model, target, [feed], here, log=work / "log")
        return dict(zip(names, result, strict=True))

    return run
