"""Which models a command line is about: the steps of no other need to be planned."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from pipeline.command_line import CommandLine
from pipeline.config.file_names import model_names
from pipeline.errors import ConfigError
from pipeline.plain_text import did_you_mean
from pipeline.plan.steps import STAGES

WHOLE = ("build", "buckets", "package", "report", "chat")
"""Tasks of whole models."""
_OF_MODELS = frozenset({*STAGES, *WHOLE})
_GLOB = re.compile(r"[*?\[/]")


def models_about(line: CommandLine, models: Collection[str]) -> set[str]:
    """Those of `models` whose steps the command may need; all of them where its words don't tell."""
    if line.command == "list" and not (line.names or line.options):
        return set()  # it prints what there is for every model
    if line.command != "run" or not line.names:
        return {*models}
    found: set[str] = set()
    for word in line.names:
        group, _, name = word.partition(":")
        if group not in _OF_MODELS or not name:
            return {*models}
        literal = _GLOB.split(name, maxsplit=1)[0]
        is_whole = name == literal or name[len(literal)] == "/"
        found |= {model for model in models if model == literal or (not is_whole and model.startswith(literal))}
    return found


def models_read(line: CommandLine, folder: Path) -> set[str] | None:
    """The models whose configs a command needs to read; None for all of them."""
    names = model_names(folder)
    about = models_about(line, names)
    if line.command != "run" or not about or len(about) == len(names):
        return None  # of a name that no model has, the message suggests one out of all
    return about


def check_names(
    names: Iterable[str], planned: Collection[str], models: Iterable[str], every_step: Callable[[], Iterable[str]]
) -> None:
    """Refuse `stage:name` that matches none of the steps that were planned: doit ignores a glob without a match.

    Raises ConfigError, with a suggestion out of all steps.
    """
    known = [*planned, *(f"{task}:{model}" for task in WHOLE for model in models)]
    for name in names:
        if name.split(":")[0] in _OF_MODELS and ":" in name and not fnmatch.filter(known, name):
            raise ConfigError(
                f"no step is named '{name}'{did_you_mean(name, {*known, *every_step()})}",
                where="command line",
                remedy="'doit list --all' prints every name",
            )
