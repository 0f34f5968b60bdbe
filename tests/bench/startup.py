"""How long `doit list` and a build with nothing to do take: `uv run python -m tests.bench.startup [RUNS]`.

The project is made for it: 20 models of ten steps each, that is 200 steps, all of them built with the real compiler
and emulator, the first model once and the others from its store. Prints wall and CPU seconds of whole processes, as
medians beside those of an empty interpreter, in turns, so that a drift of the machine's speed shows in all of them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.support import tiny_models

ROOT = Path(__file__).resolve().parents[2]
MODELS = 20
CONFIG = """\
source: {path: ../models/tiny}
components:
  layers: {file: model.onnx}
buckets: {sequence: [8]}
calibration: {reader: npz, folder: calibration/tiny}
thresholds: {padding_db: 0, rewrite_db: 0, quantization_db: 0, compile_db: 0, total_db: 0}
targets: [sm8650]
"""
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "doit list": ["-m", "doit", "list"],
    "doit build, nothing to do": ["-m", "doit", "build"],
}


def create(root: Path) -> None:
    """A project in `root`: our code, one tiny model, and a config for each of the models that are made of it."""
    shutil.copytree(ROOT / "pipeline", root / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "dodo.py", root)
    tiny_models.float_model(root / "models" / "tiny", sequence="sequence")
    samples = root / "calibration" / "tiny"
    samples.mkdir(parents=True)
    for number in range(8):
        np.savez(samples / f"{number}.npz", x=tiny_models.sample(8, number))
    (root / "configs").mkdir()
    for number in range(MODELS):
        (root / "configs" / f"model-{number:02}.yaml").write_text(CONFIG, "utf-8")


def run(arguments: list[str], root: Path) -> tuple[float, float]:
    """Wall and CPU seconds of one command."""
    before, started = os.times(), time.perf_counter()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PIPELINE_", "PYTHON"))}
    subprocess.run([sys.executable, *arguments], cwd=root, env=environ, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, cpu


def main(runs: int) -> None:
    """Print medians and ratios to the empty interpreter for each command."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        create(root)
        run(["-m", "doit", "build"], root)
        print(f"{sum(1 for _ in root.glob('.build/steps/**/*.json'))} steps of {MODELS} models, medians of {runs} runs")
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
        for _ in range(runs + 1):
            for name, arguments in COMMANDS.items():
                taken[name].append(run(arguments, root))
    base = statistics.median(wall for wall, _ in taken["python -c pass"][1:])
    for name, each in taken.items():
        wall, cpu = (statistics.median(column) for column in zip(*each[1:], strict=True))
        print(f"{name:32} {wall:6.3f} s  {wall / base:5.1f}x  {cpu:6.3f} s CPU")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
