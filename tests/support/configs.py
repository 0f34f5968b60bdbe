"""Reading all configs of a folder."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.load import ModelConfig, load_healthy


def load_all(folder: Path) -> dict[str, ModelConfig]:
    """The models of a folder by name; raises the ConfigError that lists all mistakes."""
    configs, refusal = load_healthy(folder)
    if refusal is not None:
        raise refusal
    return configs
