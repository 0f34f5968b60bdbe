"""The project: its configs, what they name, and the variables of the environment that are ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import RESERVED, LocalSource, ModelConfig, load
from pipeline.doctor.finding import CONFIG, SOURCE, Finding, error, ok, unchecked, warning
from pipeline.errors import PipelineError
from pipeline.pins import read_pins
from pipeline.plan import plan
from pipeline.qnn import drivers
from pipeline.resolve import fetched_files
from pipeline.source import local_files
from pipeline.system.memory import given_bytes
from pipeline.workspace import Workspace

VARIABLES = (
    "PIPELINE_HOST",
    "PIPELINE_MEMORY",
    "PIPELINE_SHARED_STORE",
    "PIPELINE_SIGNING_KEY",
    "PIPELINE_STORE",
    "PIPELINE_TRACEBACK",
    "PIPELINE_WORKERS",
)
"""The variables that a user may set."""

INTERNAL = ("PIPELINE_LIFELINE", "PIPELINE_STEP_LOG")
"""Those that a build sets for its own children."""

_ALIKE = 0.85  # of difflib: PIPLINE_STORE and PIPELINE_STOR are that near to PIPELINE_STORE


@dataclass(frozen=True)
class Loaded:
    """A config file, and what became of it: a model, or the error that it was refused with."""

    file: str
    config: ModelConfig | None
    problem: str = ""
    remedy: str = ""


def load_configs(folder: Path) -> list[Loaded]:
    """Every config by itself, so that one that is wrong hides nothing of the others."""
    found = []
    for path in sorted(folder.glob("[!.]*.yaml")):
        if path.name in RESERVED:
            continue
        try:
            found.append(Loaded(f"{folder.name}/{path.name}", load(path)))
        except PipelineError as problem:
            found.append(Loaded(f"{folder.name}/{path.name}", None, problem.what, problem.remedy))
    for path in sorted(folder.glob("[!.]*.yml")):
        remedy = f"call it {path.stem}.yaml"
        found.append(Loaded(f"{folder.name}/{path.name}", None, "would not be read", remedy))
    return found


def check_configs(loaded: Sequence[Loaded], pins: Path) -> Iterator[Finding]:
    """Whether configs and pins can be read."""
    name = "project.configs"
    for each in loaded:
        if each.config is None:
            yield error(name, each.problem, CONFIG, each.file, remedy=each.remedy)
        else:
            models = "is valid" + (", built when it is named" if each.config.on_request else "")
            yield ok(name, models, each.file)
    if not loaded:
        remedy = "write one: the README shows how"
        yield warning(name, "there is no config: nothing would be built", remedy=remedy)
    try:
        read_pins(pins)
    except PipelineError as problem:
        yield error("project.pins", problem.what, CONFIG, why=problem.why, remedy=problem.remedy)


def check_files(configs: Sequence[ModelConfig], workspace: Workspace) -> Iterator[Finding]:
    """Whether the local models and the calibration files that configs name are there."""
    for config in configs:
        if isinstance(config.source, LocalSource):
            yield _local_source(config, config.source, workspace)
        missing = _missing(config)
        for path in missing:
            what = f"{path.name} does not exist"
            where = f"looked for {path}"
            remedy = "create it, or correct the path in the config"
            yield error("project.calibration", what, CONFIG, config.name, why=where, remedy=remedy)
        if not missing:
            yield ok("project.calibration", "what the config names is there", config.name)


def check_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that look like ours and aren't, and values that mean nothing."""
    name = "project.variables"
    wrong = []
    for variable in sorted(environ):
        if variable in VARIABLES or variable in INTERNAL:
            continue
        near = difflib.get_close_matches(variable.upper(), VARIABLES, 1, _ALIKE)
        if not near and not variable.upper().startswith("PIPELINE_"):
            continue
        guess = (near or difflib.get_close_matches(variable.upper(), VARIABLES, 1, 0.5) or [""])[0]
        why = f"the variables of this project are {', '.join(VARIABLES)}"
        remedy = f"write {guess}" if guess else "unset it"
        wrong.append(warning(name, f"{variable} has no effect", variable, why=why, remedy=remedy))
    wrong += _values(environ)
    yield from wrong
    if not wrong:
        given = [variable for variable in VARIABLES if environ.get(variable)]
        yield ok(name, f"set: {', '.join(given)}" if given else "none of ours is set")


def check_drivers(configs: Sequence[ModelConfig], sdk: str) -> Iterator[Finding]:
    """The driver rule for every target that says how old its driver may be."""
    name = "targets.driver"
    silent: set[str] = set()
    for config in configs:
        for index, target in enumerate(config.targets):
            subject = f"{config.name}/{target.soc}"
            if target.driver_sdk is None:
                silent.add(target.soc)
            elif not sdk:
                yield unchecked(name, "the driver rule", subject, why="onnxruntime-qnn does not say which QAIRT it has")
            elif drivers.refuses(sdk, target.driver_sdk):
                where = config.places.get(f"targets[{index}].driver_sdk", config.path.name)
                what = f"its driver is of QAIRT {target.driver_sdk}, and contexts are made with {sdk} here ({where})"
                remedy = drivers.remedy(sdk, target.driver_sdk)
                yield error(name, what, CONFIG, subject, why=drivers.RULE, remedy=remedy)
            elif seen := drivers.is_stale(sdk, target.driver_sdk):
                why = f"seen with driver {seen.driver}: {seen.what} ({seen.source})"
                remedy = f"install an onnxruntime-qnn whose QAIRT is nearer to {target.driver_sdk}"
                yield warning(name, f"QAIRT {sdk} may be too old for its driver", subject, why=why, remedy=remedy)
            else:
                yield ok(name, f"QAIRT {sdk} is not newer than its driver's {target.driver_sdk}", subject)
    if silent:
        remedy = f"see that every device has QAIRT {sdk or 'as here'} or newer, or say driver_sdk: in the config"
        what = f"the driver rule for {', '.join(sorted(silent))}"
        yield unchecked(name, what, why="the configs don't say how old the drivers are", remedy=remedy)


def _local_source(config: ModelConfig, source: LocalSource, workspace: Workspace) -> Finding:
    name = "project.source"
    try:
        found = local_files(source.path, fetched_files(config), workspace.memo)
    except PipelineError as problem:
        return error(name, problem.what, problem.exit_code, config.name, why=problem.where, remedy=problem.remedy)
    except OSError as problem:
        return error(name, f"can't be read: {problem}", SOURCE, config.name, remedy="make its files readable")
    size = sum(path.stat().st_size for path in found.values())
    return ok(name, f"{len(found)} files, {size / 1e6:.1f} MB", config.name)


def _missing(config: ModelConfig) -> list[Path]:
    named = {path for step in plan(config) for path in (*step.files.values(), *step.scripts.values())}
    return sorted(path for path in named if not path.exists())


def _values(environ: Mapping[str, str]) -> Iterator[Finding]:
    name = "project.variables"
    try:
        given_bytes(environ)
    except PipelineError as problem:
        yield error(name, problem.what, CONFIG, "PIPELINE_MEMORY", remedy=problem.remedy)
    yield from _signing_key(environ)
    workers = environ.get("PIPELINE_WORKERS", "warm")
    if workers not in ("warm", "fresh"):  # builds refuse it
        what = f"PIPELINE_WORKERS={workers} means nothing"
        yield error(name, what, CONFIG, "PIPELINE_WORKERS", remedy="write fresh or warm, or unset it")
    endpoint = environ.get("HF_ENDPOINT", "")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        what = "HF_ENDPOINT is no address of a hub: it begins neither with https:// nor with http://"
        yield error(name, what, SOURCE, "HF_ENDPOINT", remedy="write it as https://hub.example.com, or unset it")


def _signing_key(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What is wrong with the key that releases are signed with; never the key."""
    name, variable = "project.variables", "PIPELINE_SIGNING_KEY"
    if not environ.get(variable, "").strip():
        return
    try:
        from pipeline.signing_key import private_key  # imports cryptography, which may be what is missing

        private_key(environ)
    except ImportError as problem:
        yield unchecked(name, "the key to sign with", variable, why=f"a package can't be imported: {problem.name}")
    except PipelineError as problem:
        what = f"no release can be signed: {problem.why}"
        yield error(name, what, problem.exit_code, variable, remedy=problem.remedy)
