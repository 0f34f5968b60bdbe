"""Checks the project: its configs, the files that they name, and its variables in the environment."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.config.file_names import RESERVED
from pipeline.config.load import LocalSource, ModelConfig, load
from pipeline.errors import PipelineError
from pipeline.inputs.pins import read_pins
from pipeline.inputs.source import local_files
from pipeline.plan.named_files import mistakes, named_in_source
from pipeline.plan.planner import plan
from pipeline.plan.workspace import Workspace
from pipeline.processes.memory import given_bytes
from pipeline.qnn import drivers
from pipeline.upkeep.doctor.finding import CONFIG, SOURCE, Check, Finding

VARIABLES = (
    "PIPELINE_HOST",
    "PIPELINE_MEMORY",
    "PIPELINE_SHARED_STORE",
    "PIPELINE_SIGNING_KEY",
    "PIPELINE_STORE",
    "PIPELINE_TRACEBACK",
    "PIPELINE_WORKERS",
)
"""The environment variables that a user may set."""

INTERNAL = ("PIPELINE_LIFELINE", "PIPELINE_PROGRESS", "PIPELINE_STEP_LOG", "PIPELINE_STEP_MEMORY")
"""The environment variables that a build sets for its own children."""

_CONFIGS, _PINS = Check("project.configs", CONFIG), Check("project.pins", CONFIG)
_SOURCE, _CALIBRATION = Check("project.source", SOURCE), Check("project.calibration", CONFIG)
_VARIABLES, _DRIVER = Check("project.variables", CONFIG), Check("targets.driver", CONFIG)
_ALIKE = 0.85  # difflib's ratio: PIPLINE_STORE and PIPELINE_STOR are that near to PIPELINE_STORE


def check_configs(folder: Path, pins: Path, right: list[ModelConfig]) -> Iterator[Finding]:
    """Whether each config, and the file of pins, can be read. Configs without mistakes are added to `right`."""
    paths = [path for path in sorted(folder.glob("[!.]*.yaml")) if path.name not in RESERVED]
    for path in paths:
        check = _CONFIGS.about(f"{folder.name}/{path.name}")
        try:
            config = load(path)
        except PipelineError as problem:
            yield check.error(problem.what, remedy=problem.remedy)
        else:
            right.append(config)
            yield check.ok("is valid" + (", built when it is named" if config.on_request else ""))
    misnamed = sorted(folder.glob("[!.]*.yml"))
    for path in misnamed:
        yield _CONFIGS.about(f"{folder.name}/{path.name}").error(
            "would not be read", remedy=f"call it {path.stem}.yaml"
        )
    if not paths and not misnamed:
        remedy = "write one: doit init does, or docs/index.md shows how"
        yield _CONFIGS.warning("there is no config: nothing would be built", remedy=remedy)
    try:
        read_pins(pins)
    except PipelineError as problem:
        yield _PINS.error(problem.what, problem.why, problem.remedy)


def check_files(configs: Sequence[ModelConfig], workspace: Workspace) -> Iterator[Finding]:
    """Whether the local models and the calibration files that configs name are there."""
    for config in configs:
        if isinstance(config.source, LocalSource):
            yield _local_source(config, config.source, workspace)
        check = _CALIBRATION.about(config.name)
        missing: dict[tuple[str, str], PipelineError] = {}
        for step in plan(config):
            for problem in mistakes(step, workspace) if step.stage != "fetch" else ():
                missing.setdefault((problem.what, problem.why), problem)
        for lacking in missing.values():
            yield _absent(check, config, f"{lacking.what} ({lacking.where})", lacking.why, lacking.remedy)
        if not missing:
            yield check.ok("what the config names is there")


def check_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about variables that look like ours and aren't, and about values without a meaning."""
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
        wrong.append(_VARIABLES.about(variable).warning(f"{variable} has no effect", why, remedy))
    wrong += _values(environ)
    yield from wrong
    if not wrong:
        given = [variable for variable in VARIABLES if environ.get(variable)]
        yield _VARIABLES.ok(f"set: {', '.join(given)}" if given else "none of ours is set")


def check_drivers(configs: Sequence[ModelConfig], sdk: str) -> Iterator[Finding]:
    """The driver rule for every target whose config says how old its driver may be."""
    silent: set[str] = set()
    for config in configs:
        for index, target in enumerate(config.targets):
            check, driver = _DRIVER.about(f"{config.name}/{target.soc}"), target.driver_sdk
            if driver is None:
                silent.add(target.soc)
            elif not sdk:
                yield check.unchecked("the driver rule", "onnxruntime-qnn does not say which QAIRT it has")
            elif drivers.refuses(sdk, driver):
                where = config.place(f"targets[{index}].driver_sdk")
                what = f"its driver is of QAIRT {driver}, and contexts are made with {sdk} here ({where})"
                yield check.error(what, drivers.RULE, drivers.remedy(sdk, driver))
            elif seen := drivers.is_stale(sdk, driver):
                why = f"seen with driver {seen.driver}: {seen.what} ({seen.source})"
                remedy = f"install an onnxruntime-qnn whose QAIRT is nearer to {driver}"
                yield check.warning(f"QAIRT {sdk} may be too old for its driver", why, remedy)
            else:
                yield check.ok(f"QAIRT {sdk} is not newer than its driver's {driver}")
    if silent:
        remedy = f"see that every device has QAIRT {sdk or 'as here'} or newer, or say driver_sdk: in the config"
        what = f"the driver rule for {', '.join(sorted(silent))}"
        yield _DRIVER.unchecked(what, "the configs don't say how old the drivers are", remedy)


def _local_source(config: ModelConfig, source: LocalSource, workspace: Workspace) -> Finding:
    check = _SOURCE.about(config.name)
    try:
        found = local_files(source.path, [*named_in_source(config)], workspace.memo)
    except PipelineError as problem:
        check = check.about(config.name, problem.exit_code)
        if not source.path.exists():
            return _absent(check, config, problem.what, problem.where, problem.remedy)
        return check.error(problem.what, problem.where, problem.remedy)
    except OSError as problem:
        return check.error(f"can't be read: {problem}", remedy="make its files readable")
    size = sum(path.stat().st_size for path in found.values())
    return check.ok(f"{len(found)} files, {size / 1e6:.1f} MB")


def _absent(check: Check, config: ModelConfig, what: str, why: str, remedy: str) -> Finding:
    """The finding on a missing file: an error if every build makes the model, "not checked" if it is on request."""
    if config.on_request:
        return check.unchecked(what, f"{why}; no build needs it but doit build:{config.name}", remedy)
    return check.error(what, why, remedy)


def _values(environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        given_bytes(environ)
    except PipelineError as problem:
        yield _VARIABLES.about("PIPELINE_MEMORY").error(problem.what, remedy=problem.remedy)
    yield from _signing_key(environ)
    workers = environ.get("PIPELINE_WORKERS", "warm")
    if workers not in ("warm", "fresh"):  # builds refuse it
        what = f"PIPELINE_WORKERS={workers} means nothing"
        yield _VARIABLES.about("PIPELINE_WORKERS").error(what, remedy="write fresh or warm, or unset it")
    endpoint = environ.get("HF_ENDPOINT", "")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        what = "HF_ENDPOINT is no address of a hub: it begins neither with https:// nor with http://"
        remedy = "write it as https://hub.example.com, or unset it"
        yield _VARIABLES.about("HF_ENDPOINT", SOURCE).error(what, remedy=remedy)


def _signing_key(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What is wrong with the key that signs releases; never the key itself."""
    variable = "PIPELINE_SIGNING_KEY"
    if not environ.get(variable, "").strip():
        return
    check = _VARIABLES.about(variable)
    try:
        from pipeline.release.signing_key import private_key  # imports cryptography, which may be what is missing

        private_key(environ)
    except ImportError as problem:
        yield check.unchecked("the key to sign with", f"a package can't be imported: {problem.name}")
    except PipelineError as problem:
        what = f"no release can be signed: {problem.why}"
        yield check.about(variable, problem.exit_code).error(what, remedy=problem.remedy)
