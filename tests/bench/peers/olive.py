"""Microsoft Olive, in an environment of its own, as a tool of the benchmark: one run for each bucket and SoC.

What it takes to make it work with the QNN execution provider as a plugin: the compile on a `PythonEnvironment` (its
local system asks the plain onnxruntime whether it has the provider, which it has not), QNNPreprocess before all else,
no `metadata_props` in the model, and CI=1, without which its telemetry waits for a network.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.measure import Usage, added, folder_bytes, run
from tests.bench.models import Model
from tests.bench.tools import ARTIFACTS, PROVIDER_OPTIONS, TARGETS, Outcome, Target, replaced, write_lines

_HERE = Path(__file__).parent
_REQUIREMENTS = _HERE / "olive.txt"


def version() -> str:
    """The version of Olive that is measured."""
    return _REQUIREMENTS.read_text("utf-8").partition("olive-ai==")[2].split()[0]


def install(folder: Path) -> Path:
    """Make Olive's environment in `folder`, unless it is there; its folder of programs.

    Raises:
        FileNotFoundError: there is no uv.
        CalledProcessError: the packages can't be had.
    """
    stamp = folder / "installed"
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        uv = os.environ.get("UV") or shutil.which("uv")
        if uv is None:
            raise FileNotFoundError("uv is needed to make Olive's environment")
        shutil.rmtree(folder, ignore_errors=True)
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        subprocess.run([uv, "venv", "--quiet", "--python", python, folder], check=True)
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", "--requirement", _REQUIREMENTS],
            check=True,
        )
        stamp.write_text(wanted)
    return folder / "bin"


class Olive:
    """A folder in which Olive runs, with its cache."""

    name = "Olive"

    def __init__(self, model: Model, folder: Path, programs: Path) -> None:
        """`folder` is emptied."""
        self._model = model
        self._folder = folder
        self._programs = programs
        self._lines = folder / "lines.txt"
        shutil.rmtree(folder, ignore_errors=True)
        write_lines(self._lines, model.sentences())

    def cold(self) -> Outcome:
        """A run for each bucket, with an empty cache, which they share."""
        shutil.rmtree(self._folder / "cache", ignore_errors=True)
        shutil.rmtree(self._folder / "out", ignore_errors=True)
        return self._run(TARGETS[0])

    def again(self) -> Outcome:
        """The same runs once more."""
        return self._run(TARGETS[0])

    def changed_sample(self) -> Outcome:
        """The same runs after a calibration line was replaced. The text `outputs` says if it was noticed."""
        before = self._digests()
        lines = self._model.sentences()
        write_lines(self._lines, replaced(lines))
        outcome = self._run(TARGETS[0])
        write_lines(self._lines, lines)
        stale = self._digests() == before
        return Outcome(outcome.usage, outcome.numbers, {"outputs": ["stale" if stale else "new"]})

    def second_soc(self) -> Outcome:
        """A run for each bucket with the other SoC; all but the compile is in the cache."""
        return self._run(TARGETS[1])

    def _run(self, target: Target) -> Outcome:
        parts = [self._run_bucket(bucket, target) for bucket in self._model.buckets]
        numbers = {
            "shipped_bytes": folder_bytes(self._folder / "out", suffixes=ARTIFACTS),
            "kept_bytes": folder_bytes(self._folder / "cache"),
        }
        return Outcome(added(parts), numbers, parts=tuple(parts))

    def _run_bucket(self, bucket: int, target: Target) -> Usage:
        config = self._folder / f"{bucket}-{target.name}.json"
        config.write_text(json.dumps(self._config(bucket, target), indent=1), "utf-8")
        return run(
            [self._programs / "python", "-m", "olive", "run", "--config", config],
            cwd=self._folder,
            log=config.with_suffix(".log"),
            env={name: value for name, value in os.environ.items() if not name.startswith("HF_")} | {"CI": "1"},
        )

    def _config(self, bucket: int, target: Target) -> dict[str, object]:
        data = {
            "name": "texts",
            "user_script": str(_HERE / "olive_data.py"),
            "load_dataset_config": {
                "type": "lines_of_text",
                "params": {
                    "lines": str(self._lines),
                    "tokenizer": str(self._model.folder / "tokenizer.json"),
                    "length": bucket,
                },
            },
            "dataloader_config": {"batch_size": 1},
        }
        npu = {"device": "npu", "execution_providers": ["QNNExecutionProvider"]}
        return {
            "input_model": {"type": "ONNXModel", "model_path": str(self._model.file)},
            "systems": {
                "npu": {
                    "type": "PythonEnvironment",
                    "python_environment_path": str(self._programs),
                    "accelerators": [npu],
                }
            },
            "data_configs": [data],
            "passes": {
                "preprocess": {"type": "QNNPreprocess"},
                "shapes": {
                    "type": "DynamicToFixedShape",
                    "dim_param": ["batch", "sequence"],
                    "dim_value": [1, bucket],
                },
                "quantize": {
                    "type": "OnnxStaticQuantization",
                    "data_config": "texts",
                    "activation_type": "uint16",
                    "precision": "uint8",
                    "per_channel": True,
                },
                "context": {
                    "type": "EPContextBinaryGenerator",
                    "provider_options": {**PROVIDER_OPTIONS, "soc_model": str(target.soc_model)},
                },
            },
            "target": "npu",
            "evaluate_input_model": False,
            "cache_dir": str(self._folder / "cache"),
            "output_dir": str(self._folder / "out" / target.name / str(bucket)),
        }

    def _digests(self) -> Sequence[str]:
        """Of everything that is shipped."""
        files = sorted(path for path in (self._folder / "out").rglob("*") if path.suffix in ARTIFACTS)
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
