"""The models that the benchmark builds, each a folder with `model.onnx` and `tokenizer.json`.

`python -m tests.bench.models NAME FOLDER` makes one of random weights; that needs gigabytes, so it is a process of its
own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = ROOT / "calibration" / "minilm" / "sentences.txt"
HELD_OUT = ROOT / "calibration" / "minilm" / "heldout.txt"


@dataclass(frozen=True)
class Model:
    """A model to build: inputs int64 [batch, sequence], calibrated with lines of text."""

    name: str
    folder: Path
    buckets: tuple[int, ...]
    samples: int = 16

    @property
    def file(self) -> Path:
        """The float model."""
        return self.folder / "model.onnx"

    def sentences(self) -> list[str]:
        """The lines to calibrate with."""
        return SENTENCES.read_text("utf-8").splitlines()[: self.samples]


def minilm(given: Path | None, folder: Path) -> Model:
    """all-MiniLM-L6-v2 with its real weights: from a folder given, else from the hub at the commit of its config.

    Raises:
        OSError: neither can be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("onnx/model.onnx", "tokenizer.json"):
        found = _given(given, name) if given else _fetched(name)
        shutil.copyfile(found, folder / Path(name).name)
    return Model("minilm", folder, (32, 64, 128))


def bert_base(folder: Path) -> Model:
    """A model of BERT-base's size, 435 MB, with random weights."""
    return _made("bert-base", folder, (128,))


def stand_in(folder: Path) -> Model:
    """A tiny encoder, to try the benchmark with."""
    return _made("stand-in", folder, (16, 32))


def _made(name: str, folder: Path, buckets: tuple[int, ...]) -> Model:
    if not (folder / "model.onnx").exists():
        subprocess.run([sys.executable, "-m", "tests.bench.models", name, str(folder)], cwd=ROOT, check=True)
    return Model(name, folder, buckets)


def _given(folder: Path, name: str) -> Path:
    path = folder / name
    return path if path.exists() else folder / path.name


def _fetched(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    source = yaml.safe_load((ROOT / "configs" / "minilm.yaml").read_text("utf-8"))["source"]
    return Path(hf_hub_download(source["hub"], name, revision=source["revision"]))


def main(arguments: Sequence[str]) -> None:
    """Write a model of random weights to a folder."""
    from tests.bench.bert_base import encoder
    from tests.support.models import bert
    from tests.support.models.builder import save

    name, folder = arguments[0], Path(arguments[1])
    (folder / "tokenizer.json").parent.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(bert.tokenizer()), "utf-8")
    save(encoder() if name == "bert-base" else bert.encoder(), folder / "model.onnx")


if __name__ == "__main__":
    main(sys.argv[1:])
