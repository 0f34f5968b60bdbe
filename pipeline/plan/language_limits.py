"""Checks what a config asks of a language model as soon as ingest has read it, before any step that takes long."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.config.load import ModelConfig
from pipeline.contracts import ingest
from pipeline.errors import ConfigError


def check_language(config: ModelConfig, facts: Mapping[str, ingest.Facts]) -> None:
    """Check the config against the model, by the `facts` of ingest.

    Raises:
        ConfigError: a context is longer than the model was made for, or there are more parts than layers and a head.
    """
    language = config.language
    for model in (found.language for found in facts.values()):
        if language is None or model is None:
            continue
        longest = language.contexts[-1]
        if longest > model.context:
            raise ConfigError(
                f"the context of {longest} tokens is longer than {config.name} was made for",
                where=config.place("language_model.context"),
                why=f"the model, or a window that some of its layers see, ends at {model.context}",
                remedy=f"write language_model: {{context: {model.context}}} or less",
            )
        if language.parts != "auto" and language.parts > model.layers + 1:
            raise ConfigError(
                f"{config.name} can't be split into {language.parts} parts",
                where=config.place("language_model.parts"),
                why=f"it has {model.layers} layers, and a head behind them; layers are not split",
                remedy=f"write language_model: {{parts: {model.layers + 1}}} or less, or parts: auto",
            )
