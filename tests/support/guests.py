"""A project whose stage `shape` does, for each bucket, what native code may do to the process that it is a guest in.

The stage is changed in the project's own copy of the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.support import tiny_models
from tests.support.project import Project

MODEL = "tiny"
GOOD = 4
"""A bucket to which nothing happens."""

SEGFAULT, ABORT, EXIT_127, EXIT_0, EXIT_3, KILLS_GROUP, GARBAGE, NO_MEMORY, EATS_MEMORY, MEMORY_ERROR = range(5, 15)
HANGS, NESTED = 15, 16
"""Hangs, whatever it is asked to; waits for a child that compiles, and hangs as well."""

DEEDS: Mapping[int, str] = {
    SEGFAULT: "import ctypes; ctypes.string_at(0)",
    ABORT: "import os; os.abort()",
    EXIT_127: "import os; os._exit(127)",
    EXIT_0: "import os; print('last words', flush=True); os._exit(0)",
    EXIT_3: "import os; os._exit(3)",
    KILLS_GROUP: "import os, signal; os.killpg(0, signal.SIGKILL)",
    GARBAGE: (
        "import os, random\n"
        "block = random.Random(0).randbytes(1 << 20)\n"
        "for _ in range(100): os.write(1, block)\n"
        "os.write(1, b'\\n\\x1b[31mthe \\xff end\\x1b[0m\\n'); os.abort()"
    ),
    NO_MEMORY: (
        "import os, sys\n"
        "print(\"terminate called after throwing an instance of 'std::bad_alloc'\", file=sys.stderr, flush=True)\n"
        "os.abort()"
    ),
    EATS_MEMORY: (
        "import subprocess, sys\n"
        "eat = 'import time; have = []\\nwhile True: have.append(bytearray(b\"x\") * (1 << 24)); time.sleep(0.01)'\n"
        "subprocess.run([sys.executable, '-c', eat], start_new_session=True)"
    ),
    MEMORY_ERROR: "raise MemoryError('Unable to allocate 99 GiB')",
    HANGS: (
        "import os, signal, time\n"
        "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)\n"
        "open(request.out.parent / 'hangs', 'w').close()\n"
        "while True: time.sleep(60)"
    ),
    NESTED: (
        "from pipeline.qnn import child\nfrom pipeline.contracts.target import HtpTarget\n"
        "child.compile_apart(request.out / 'm.onnx', 'm', HtpTarget(60, 73), request.out)"
    ),
}
"""What is done before the stage does its work, by bucket. What hangs leaves a file `hangs` beside its output first."""

_CONFIG = """\
source: {path: ../model}
components:
  net: {file: model.onnx}
buckets: {sequence: [BUCKETS]}
calibration: {reader: npz, folder: calibration}
targets: [sm8650]
limits: {memory_mb: 600}
"""


def create(root: Path, store: Path, *buckets: int) -> Project:
    """A project with these buckets; those in :data:`DEEDS` are no good."""
    project = Project.create(root, store)
    tiny_models.float_model(root / "model", sequence="sequence")
    (root / "calibration").mkdir(exist_ok=True)
    np.savez(root / "calibration" / "0.npz", x=tiny_models.sample(8))
    project.write(f"configs/{MODEL}.yaml", _CONFIG.replace("BUCKETS", ", ".join(map(str, buckets))))
    deeds = repr({str(bucket): code for bucket, code in DEEDS.items()})
    (root / "pipeline" / "stages" / "shape.py").rename(root / "pipeline" / "graph" / "true_shape.py")
    project.write(
        "pipeline/stages/shape.py",
        "from pipeline.graph import true_shape\n\n\n"
        "def run(request):\n"
        f"    exec({deeds}.get(request.step.rsplit('/', 1)[-1], ''), {{'request': request}})\n"
        "    return true_shape.run(request)\n",
    )
    # The child hangs once it is there.
    told = "import time; (Path(request_path).parents[1] / 'hangs').touch(); time.sleep(600)"
    begins = "    try:\n        told = does(request, work)"
    project.edit("pipeline/qnn/child.py", begins, f"    {told}\n{begins}")
    return project
