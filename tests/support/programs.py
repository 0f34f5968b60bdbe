"""ExecuTorch's own runtime with its QNN backend, in an environment of its own: it needs PyTorch.

The environment is made once, in ``.build/executorch``. EXECUTORCH_PYTHON names the Python of another to use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_qnn
from numpy.typing import NDArray

from tests.support.environments import python_with, run

REQUIREMENTS = ("executorch==1.5.1", "torch==2.13.0", "numpy>=2")
_FOLDER = Path(__file__).parents[2] / ".build" / "executorch"
_SDK_LIBRARIES = "lib/x86_64-linux-clang"


def execute(program: Path, feeds: Mapping[str, Sequence[NDArray[Any]]], work: Path) -> dict[str, list[NDArray[Any]]]:
    """What each method of a program returns for its inputs, on QNN's emulator."""
    libraries = Path(onnxruntime_qnn.get_qnn_htp_path()).parent
    linked = work / "sdk" / _SDK_LIBRARIES
    linked.parent.mkdir(parents=True)
    linked.symlink_to(libraries)
    arrays: dict[str, Any] = {f"{name}/{at}": array for name, feed in feeds.items() for at, array in enumerate(feed)}
    np.savez(work / "inputs.npz", **arrays, allow_pickle=False)
    script = Path(__file__).with_name("run_program.py")
    files = [str(each) for each in (program, libraries, work / "inputs.npz", work / "outputs.npz")]
    own = {"QNN_SDK_ROOT": str(work / "sdk"), "LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": ""}
    run([str(_python()), "-W", "ignore", str(script), *files, *feeds], {**os.environ, **own})
    with np.load(work / "outputs.npz", allow_pickle=False) as made:
        return {name: [made[key] for key in made.files if key.rpartition("/")[0] == name] for name in feeds}


def _python() -> Path:
    """The Python that has what is required."""
    if given := os.environ.get("EXECUTORCH_PYTHON"):
        return Path(given)
    return python_with(REQUIREMENTS, _FOLDER)
