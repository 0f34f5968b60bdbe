"""Models that transformers saved compute here what they compute there."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.inputs.safetensors.source import safetensors_source
from tests.support.exported import save_language_models
from tests.support.language_logits import TOKENS, logits
from tests.support.safetensors_files import tiny_folder

pytestmark = [pytest.mark.export, pytest.mark.slow]

KINDS = ["llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3", "phi3"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("saved")
    save_language_models(KINDS, TOKENS, out)
    tiny_folder(out / "tiny")
    for kind in KINDS:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(out / "tiny" / name, out / kind)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind: str, saved: Path) -> None:
    folder = saved / kind

    found = logits(safetensors_source(folder / "model.safetensors.index.json"), folder)

    expected = np.load(folder / "logits.npy")
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
