"""Models that PyTorch exports, in an environment of its own: torch is no dependency of this project.

The environment is made once, in ``.build/exporters``. EXPORT_PYTHON names the Python of another one to use instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
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


@dataclass(frozen=True)
class Answers:
    """What transformers makes of folders: `logits` float32 [tokens, vocabulary] or an error each, and of templates."""

    logits: Sequence[NDArray[np.float32] | str]
    rendered: Sequence[str | Mapping[str, str]]


def ask_transformers(
    folders: Sequence[Path],
    tokens: Sequence[int],
    work: Path,
    templates: Sequence[tuple[str, Sequence[Mapping[str, object]], bool]] = (),
) -> Answers:
    """The answers of :mod:`tests.support.ask_transformers`; `work` is a folder for what goes between."""
    script = Path(__file__).with_name("ask_transformers.py")
    asked = {"folders": [str(folder) for folder in folders], "tokens": [*tokens], "templates": [*templates]}
    (work / "asked.json").write_text(json.dumps(asked), "utf-8")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    run([str(_python()), "-W", "ignore", str(script), str(work / "asked.json"), str(work / "told.npz")], environment)
    told = json.loads((work / "told.json").read_text("utf-8"))
    with np.load(work / "told.npz", allow_pickle=False) as arrays:
        found = [arrays[str(n)] if str(n) in arrays else told["errors"][str(n)] for n in range(len(folders))]
    return Answers(found, told["rendered"])
