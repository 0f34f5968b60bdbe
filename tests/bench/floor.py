"""The work that nobody can leave out, measured by itself: inference of the calibration samples, and QNN's compile.

Only the calls are measured, not the imports and the reading of files around them: `session.run` on the float model as
it is fetched, every sample padded to the smallest bucket that holds it; and onnxruntime's compile call on the very QDQ
models that the pipeline made, with its options, each in a process of its own.

    python -m tests.bench.floor infer MODEL TOKENIZER LINES BUCKETS
    python -m tests.bench.floor compile QDQ_MODEL TARGET
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.measure import CommandFailedError, Usage
from tests.bench.models import ROOT, Model
from tests.bench.tools import Outcome, Target, write_lines


def inference(model: Model, work: Path) -> Outcome:
    """Run the calibration samples through the float model."""
    write_lines(work / "lines.txt", model.sentences())
    buckets = ",".join(map(str, model.buckets))
    return _alone("infer", model.file, model.folder / "tokenizer.json", work / "lines.txt", buckets)


def compiles(qdq_models: Sequence[Path], target: Target) -> Outcome:
    """Compile QDQ models one after the other.

    The number `wall_on_2_s` is what two at a time would take at best; `process_cpu_s` is what the processes used from
    beginning to end, with the interpreter's start, the imports, and reading the model.
    """
    before = os.times()
    each = [_alone("compile", path, target.name).usage for path in qdq_models]
    after = os.times()
    usage = Usage(
        sum(one.wall_s for one in each),
        sum(one.cpu_s for one in each),
        max(one.peak_process_bytes for one in each),
        max(one.peak_tree_bytes for one in each),
    )
    process_cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Outcome(usage, {"wall_on_2_s": makespan([one.wall_s for one in each], 2), "process_cpu_s": process_cpu_s})


def makespan(seconds: Sequence[float], workers: int) -> float:
    """How long jobs take when each worker takes the longest that is left."""
    loads = [0.0] * workers
    for job in sorted(seconds, reverse=True):
        loads[loads.index(min(loads))] += job
    return max(loads)


def _alone(*arguments: object) -> Outcome:
    command = [sys.executable, "-m", "tests.bench.floor", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise CommandFailedError(f"exit status {done.returncode} of {' '.join(command)}\n{done.stderr[-2000:]}")
    raw = json.loads(done.stdout.splitlines()[-1])
    return Outcome(Usage(raw["wall_s"], raw["cpu_s"], raw["peak_bytes"], raw["peak_bytes"]), {})


def _infer(model: Path, tokenizer: Path, lines: Path, buckets: Sequence[int]) -> None:
    import numpy as np
    import onnxruntime as ort
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.no_padding()
    encoder.enable_truncation(max(buckets))
    feeds = []
    for encoding in encoder.encode_batch(lines.read_text("utf-8").splitlines()):
        length = min(bucket for bucket in buckets if bucket >= len(encoding.ids))
        encoding.pad(length)
        given = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask}
        feeds.append({name: np.array([values], np.int64) for name, values in given.items()})
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    _report(lambda: [session.run(None, feed) for feed in feeds])


def _compile(model: Path, target: str) -> None:
    import onnxruntime as ort

    from pipeline.contracts.target import HtpTarget
    from pipeline.qnn import catalog
    from pipeline.qnn.compiling.compiler import COMPILE_OPTIONS
    from pipeline.qnn.session import session_options

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        soc = catalog.resolve(target)
        settings = session_options(HtpTarget(soc.soc_model, soc.htp_arch, soc.vtcm_mb), COMPILE_OPTIONS)
        _report(lambda: ort.ModelCompiler(settings, str(model)).compile_to_file("compiled_ctx.onnx"))


def _report(work: Callable[[], object]) -> None:
    """Do the work and print what it used."""
    import resource

    before, started = os.times(), time.perf_counter()
    work()
    wall_s, after = time.perf_counter() - started, os.times()
    cpu_s = after.user + after.system - before.user - before.system
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": peak_bytes}))


if __name__ == "__main__":
    what, first, *others = sys.argv[1:]
    if what == "infer":
        _infer(Path(first), Path(others[0]), Path(others[1]), [int(bucket) for bucket in others[2].split(",")])
    else:
        _compile(Path(first).resolve(), others[0])
