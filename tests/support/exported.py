"""Models that PyTorch exports, in an environment of its own: torch is no dependency of this project.

The environment is made once, in ``.build/exporters``. EXPORT_PYTHON names the Python of another one to use instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from onnx import ModelProto

from pipeline.graph.files.model_file import load_graph
from tests.support.environments import python_with, run

REQUIREMENTS = ("torch==2.13.0", "transformers==5.23.0", "onnxscript==0.7.2", "onnx==1.23.2")
"""What exports; an exporter of another version writes other graphs."""

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / ".build" / "exporters"


def export(names: Sequence[str], out: Path) -> dict[str, ModelProto]:
    """The models that :mod:`tests.support.export_models` makes of these names, by name."""
    script = Path(__file__).with_name("export_models.py")
    # Nothing of ours on its path, and nothing asked of the hub.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    run([str(_python()), "-W", "ignore", str(script), str(out), *names], environment)
    return {name: load_graph(out / f"{name}.onnx") for name in names}


def save_language_models(kinds: Sequence[str], tokens: Sequence[int], out: Path) -> None:
    """What :mod:`tests.support.save_language_models` makes of these kinds, in folders of `out` by their names."""
    script = Path(__file__).with_name("save_language_models.py")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    run([str(_python()), "-W", "ignore", str(script), str(out), json.dumps([*tokens]), *kinds], environment)


def _python() -> Path:
    """The Python that has what is required."""
    given = os.environ.get("EXPORT_PYTHON")
    if given:
        return Path(given)
    return python_with(REQUIREMENTS, _FOLDER)
