"""Models that transformers saved compute here what they compute there."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.inputs.safetensors.source import safetensors_source
from tests.fuzz import config_json
from tests.support.chat_templates import MESSAGES, REFUSED, TEMPLATES
from tests.support.exported import ask_transformers, save_language_models
from tests.support.language_logits import TOKENS, logits
from tests.support.safetensors_files import tiny_folder

pytestmark = [pytest.mark.export, pytest.mark.slow]

KINDS = [
    "llama", "llama3", "llama-linear", "llama-biases", "llama-bfloat16", "mistral", "mistral-float16", "qwen2",
    "qwen2-untied", "qwen3", "qwen3-biases", "gemma3", "gemma3-rotations", "gemma3-layers", "phi3",
]  # fmt: skip


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


def test_templates_are_rendered_and_refused_as_there(tmp_path: Path) -> None:
    asked = [(template, MESSAGES, answer) for template, answer, _ in TEMPLATES.values()]
    asked += [(template, MESSAGES, False) for template, _ in REFUSED.values()]

    told = ask_transformers([], TOKENS, tmp_path, asked).rendered

    assert told[: len(TEMPLATES)] == [text for *_, text in TEMPLATES.values()]
    assert all(isinstance(each, dict) for each in told[len(TEMPLATES) :])


def test_changed_configs_are_refused_or_compute_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert config_json.main(["--count", "60", "--seed", "7"]) == 0
    assert "60 changes" in capsys.readouterr().out
