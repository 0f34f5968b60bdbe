"""Finds the models that a command line is about. Only their steps are planned."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from pipeline.command_line import WHERE, CommandLine
from pipeline.config.file_names import model_names
from pipeline.errors import ConfigError
from pipeline.plain_text import did_you_mean, nearest
from pipeline.stage_table import STAGES

_CHAT, _TRANSCRIBE, _BUCKETS = "chat", "transcribe", "buckets"
WHOLE = ("build", _BUCKETS, "package", "report", _CHAT, _TRANSCRIBE)
"""Tasks of whole models."""
OTHERS = (
    "publish", "verify-release", "wheel", "record", "device", "init", "reproduce", "compare", "doctor", "fsck", "gc",
    "check",
)  # fmt: skip
"""Tasks that are neither of models nor of steps."""
_OF_MODELS = frozenset({*STAGES, *WHOLE})
_PLAIN = re.compile(r"[\w.-]{2,}")
"""Matches a plain word: not a glob, a path or a drive."""
_SHOWN = 5
_NAMED = 3
_GLOB = re.compile(r"[*?\[/]")


def models_about(line: CommandLine, models: Collection[str]) -> set[str]:
    """Those of `models` whose steps the command may need; all of them if its words don't tell."""
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


def names_stages(line: CommandLine) -> bool:
    """Whether a command names steps, so that it needs only these and their inputs."""
    return any(name.partition(":")[0] in STAGES for name in line.names)


def models_read(line: CommandLine, folder: Path) -> set[str] | None:
    """The models whose configs a command needs to read; None for all of them.

    `doit init` reads none: it writes the first config of a model whatever the other configs say.
    """
    if line.command == "run" and [*line.names[:1]] == ["init"] and not line.asks_for_help:
        return set()
    names = model_names(folder)
    about = models_about(line, names)
    if line.command != "run" or not about or len(about) == len(names):
        return None  # of a name that no model has, the message suggests one out of all
    return about


def check_names(
    line: CommandLine,
    planned: Collection[str],
    models: Collection[str],
    talking: Collection[str],
    every_step: Callable[[], Iterable[str]],
) -> None:
    """Refuse `stage:name` that matches none of the steps that were planned: doit ignores a glob without a match.

    `chat` and `buckets` are of one model, so alone they are refused where they would run.
    `talking` are the language models out of `models`, as far as their configs were read. Raises ConfigError, with a
    suggestion out of all steps.
    """
    whole = (f"{task}:{model}" for task in WHOLE for model in (talking if task == _CHAT else models))
    known = [*planned, *whole]
    runs = line.command == "run" and not line.asks_for_help
    for name in line.names:
        task, _, model = name.partition(":")
        if runs and name == _BUCKETS:
            raise ConfigError("buckets needs a model, and none is given", where=WHERE, remedy=_of_one(_BUCKETS, models))
        if (runs or model) and task == _CHAT and not fnmatch.filter(talking, model):
            raise nobody_to_talk_to(model, models, sorted(talking))
        if task in _OF_MODELS and ":" in name and not fnmatch.filter(known, name):
            raise _no_step(name, models, {*known, *every_step()})


def check_left_out(
    names: Iterable[str],
    variables: Mapping[str, str],
    known: Mapping[str, Collection[str]],
    chosen: Mapping[str, Collection[str]],
) -> None:
    """Refuse a task of one model, or of one target, beside a filter that leaves that one out.

    `known` are all `models` and `targets`, `chosen` those of the filters. Raises ConfigError.
    """
    for name in names:
        task, _, rest = name.partition(":")
        model, *others = rest.split("/")
        for filter_, one in (("models", model), ("targets", others[-1] if others else "")):
            if task in _OF_MODELS and one in known[filter_] and one not in chosen[filter_]:
                narrowed = f"{filter_}={variables.get(filter_, '')}"
                other = "" if task in (_CHAT, _BUCKETS) else f", or the name: doit {task} {narrowed}"
                raise ConfigError(
                    f"{name} is of {one}, which {narrowed} leaves out",
                    where=WHERE,
                    why=f"{filter_}= narrows what a command is about, and a task with a name is about that alone",
                    remedy=f"leave out the filter: doit {name}{other}",
                )


def _no_step(name: str, models: Collection[str], known: Iterable[str]) -> ConfigError:
    """Why a step's name is refused, with the nearest of its own kind: another kind of step is not what was meant."""
    task, _, rest = name.partition(":")
    alike = sorted(each.partition(":")[2] for each in known if each.startswith(f"{task}:"))
    there = "" if rest.partition("/")[0] in models else f"{_listed(models)}; "
    meant = _meant(rest, alike)
    below = [each for each in alike if each.startswith(f"{meant}/")]
    near = did_you_mean(rest, alike).replace("'", f"'{task}:", 1)
    if meant and (meant in alike or fnmatch.filter(alike, meant)):
        near = f"; did you mean '{task}:{meant}'?"
    elif meant and below and not (near and meant.count("/") < rest.count("/")):
        near, named = "", ", ".join(f"'{task}:{each}'" for each in below[:_NAMED])
        more = f" and {len(below) - _NAMED} more" if len(below) > _NAMED else ""
        there += f"of {meant} there {'is' if len(below) == 1 else 'are'} {named}{more}, all by '{task}:{meant}/*'; "
    return ConfigError(
        f"no step is named '{name}'{near}", where=WHERE, remedy=f"{there}'doit list --all' prints every name"
    )


def _meant(asked: str, names: Sequence[str]) -> str:
    """`asked` with each of its parts, between slashes, as some of `names` have it, up to one that is far from all."""
    found = ""
    for depth, part in enumerate(asked.split("/")):
        alike = [name.split("/") for name in names if fnmatch.fnmatchcase("/".join(name.split("/")[:depth]), found)]
        there = sorted({parts[depth] for parts in alike if len(parts) > depth})
        near = part if fnmatch.filter(there, part) else nearest(part, there)
        if not near:
            break
        found = f"{found}/{near}" if found else near
    return found


def check_words(line: CommandLine, models: Collection[str]) -> None:
    """Refuse a first word that is no command or stage, and a model beside a stage in place of behind a colon.

    Raises ConfigError, where doit would print its own help.
    """
    if line.command == "help" or not line.names:
        return
    first = line.names[0]
    task = first.partition(":")[0]
    # What stands behind an option may be its value.
    beside = (word for word in takewhile(lambda word: not word.startswith("-"), line.rest) if "=" not in word)
    takes_files = task == _TRANSCRIBE
    for word in [first, *(beside if task in _OF_MODELS and not takes_files else [])]:
        named, colon, rest = word.partition(":")
        known = _OF_MODELS if colon else {*_OF_MODELS, *OTHERS}
        if named in known or not _PLAIN.fullmatch(named if colon else word):
            continue
        suggested = did_you_mean(named, sorted(known), rest=colon + rest)
        if named in models:
            suggested = f"; did you mean '{task if task in _OF_MODELS else 'build'}:{named}'?"
        raise ConfigError(
            f"no command or stage is named '{named}'{suggested}"
            if named not in OTHERS
            else f"'{named}' takes nothing behind a colon",
            where=WHERE,
            remedy=f"a model is named behind a colon, as in doit build:MODEL; {_listed(models)}; 'doit list' prints"
            " the commands, docs/commands.md explains them",
        )


def _listed(models: Collection[str]) -> str:
    """The names of the first few models, for a message."""
    named = ", ".join(sorted(models)[:_SHOWN])
    more = f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else ""
    return f"models are {named}{more}" if models else "there is no model yet"


def nobody_to_talk_to(model: str, models: Collection[str], talking: Sequence[str]) -> ConfigError:
    """Why `chat` of `model` is refused, or of none where that is empty; `talking` are the language models."""
    if model in models:
        what = f"{model} is no language model"
    else:
        what = (
            f"no model is named '{model}'{did_you_mean(model, talking)}"
            if model
            else "chat needs a model, and none is given"
        )
    known = _of_one(_CHAT, talking) if talking else "doit chat:MODEL, of a model whose config has 'language_model'"
    return ConfigError(what, where=WHERE, remedy=f"{known}; docs/language-models.md says how to build one")


def _of_one(task: str, models: Iterable[str]) -> str:
    """What to type for a task of one model, the first of `models` for an example."""
    return f"doit {task}:{min(models, default='MODEL')}"
