"""What can be done with a project beside building it: no steps, and one command each."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.config.load import ModelConfig, load_healthy
from pipeline.config.project_file import ENGINE_ADDRESS
from pipeline.errors import ConfigError
from pipeline.frozen import dataclass
from pipeline.plain_text import did_you_mean
from pipeline.plan.about import check_left_out, nobody_to_talk_to
from pipeline.plan.planner import plan, plan_all
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.release.commands import (
    check_destinations,
    check_device,
    check_signing_key,
    measure_on_device,
    nothing_to_package,
    publish_models,
    record_releases,
    reproduce_release,
    verify_files,
)
from pipeline.upkeep import commands as upkeep
from pipeline.upkeep.doctor import entry

if TYPE_CHECKING:
    from pipeline.build.cluster.dispatcher import Dispatcher

ENGINE = "engine"
"""The variable of the command line that names a cluster."""
_JSON = {"name": "as_json", "long": "json", "type": bool, "default": False, "help": "print JSON"}
_MARKDOWN = {"name": "as_markdown", "long": "markdown", "type": bool, "default": False, "help": "print Markdown"}
_NO_BROWSER = {
    "name": "no_browser", "long": "no-browser", "type": bool, "default": False, "help": "only write them",
}  # fmt: skip
_KEY = {"name": "key", "long": "key", "default": "", "help": "public key, PEM, that it must be signed with"}

_REPLAY = {"name": "replay", "long": "replay", "default": "", "help": "record to run again with the release"}
_SAMPLES = {"name": "samples", "long": "samples", "type": int, "default": 2, "help": "samples of each context"}
_EMULATOR = {
    "name": "emulator", "long": "emulator", "type": bool, "default": False, "help": "QNN's emulator; minutes a word",
}  # fmt: skip
_HEARD = (
    _EMULATOR,
    {"name": "language", "long": "language", "default": "", "help": "of the speech; when left out, what is heard"},
    {"name": "translate", "long": "translate", "type": bool, "default": False, "help": "into English"},
)
_SAY = {"name": "say", "long": "say", "default": "", "help": "one question, in place of those that are typed"}
_TOKENS = {"name": "tokens", "long": "tokens", "type": int, "default": 200, "help": "tokens of an answer, at most"}
_DEVICE = (
    _SAMPLES,
    {"name": "seconds", "long": "seconds", "type": int, "default": 10, "help": "to time each context for"},
    {"name": "python", "long": "python", "default": "python3", "help": "the device's Python"},
    {"name": "folder", "long": "folder", "default": ".qnn-device", "help": "a folder of ours on the device"},
    {"name": "ssh_config", "long": "ssh-config", "default": "", "help": "a file in place of ~/.ssh/config"},
    {"name": "performance_mode", "long": "performance-mode", "default": "", "help": "in place of the target's"},
)
_TARGETS = {"name": "wanted", "long": "targets", "default": "", "help": "chips to build for, commas between"}

_ELSEWHERE = {
    "targets": "; those are of the configs, and 'The catalogue' in docs/config.md lists every chip that one may name"
}
"""Where there are more names than the configs have, by the filter."""
Models = Sequence[tuple[ModelConfig, Sequence[Step]]]
"""Models, and what a build of each takes."""


@dataclass(frozen=True)
class ProjectCommand:
    """A command: its name, what it says of itself, what it does, and its options as doit takes them.

    `run` is given the options by name, and first the names after the command if it `takes_names`. It returns the exit
    code, or raises PipelineError. `before` are tasks that come first; `check` is given the names and the options before
    those run, and raises PipelineError.
    """

    name: str
    doc: str
    run: Callable[..., int]
    options: Sequence[Mapping[str, Any]] = ()
    takes_names: bool = False
    before: Sequence[str] = ()
    check: Callable[[Sequence[str], Mapping[str, Any]], None] = lambda names, options: None


def commands(
    models: Models,
    released: Sequence[ModelConfig],
    targets: Collection[str],
    workspace: Workspace,
    session: upkeep.StoreSession,
    given: Sequence[str],
) -> Iterator[ProjectCommand]:
    """All of them; `released` are the models to publish, for these targets; `given` is what follows the command."""
    yield ProjectCommand(
        "publish",
        "Publish releases: doit publish FOLDER, hf://OWNER/NAME or any URL that fsspec opens.",
        partial(_publish, [config for config, _ in models], released, targets, workspace),
        takes_names=True,
        before=[f"package:{config.name}" for config in released],
        check=_check_publish,
    )
    doc = "Check releases: doit verify-release [--key PUBLIC_KEY] [--replay RECORD] FILE…"
    yield ProjectCommand("verify-release", doc, _verify, [_KEY, _REPLAY], takes_names=True)
    doc = "Record what the contexts of a release give: doit record [--samples 2] FILE…"
    yield ProjectCommand("record", doc, partial(_record, workspace, models), [_SAMPLES], takes_names=True)
    doc = "Run a model's release on a device over ssh, record it and measure how long it takes: HOST build:MODEL."
    yield ProjectCommand(
        "device",
        doc,
        partial(_device, models, targets, workspace),
        _DEVICE,
        takes_names=True,
        before=[f"package:{config.name}" for config, _ in models if f"build:{config.name}" in given],
        check=partial(check_device, models),
    )
    doc = "Make a wheel of the runtime, which applications install: artifacts/releases/qnn_release-….whl."
    yield ProjectCommand("wheel", doc, partial(_wheel, workspace))
    doc = "Write a first config: doit init [--targets sm8650,…] NAME SOURCE (a file, folder or hub repo)."
    yield ProjectCommand("init", doc, partial(_init, workspace), [_TARGETS], takes_names=True)
    doc = "Build a release again in a clean folder and compare: doit reproduce ARCHIVE or release.json."
    yield ProjectCommand("reproduce", doc, partial(_reproduce, workspace), takes_names=True)
    doc = "Compare with another run: doit compare [--json | --markdown] LAST.json [NOW.json]."
    yield ProjectCommand("compare", doc, partial(_compare, workspace), [_JSON, _MARKDOWN], takes_names=True)
    configs = [config for config, _ in models]
    for name in ("", *(config.name for config in configs)):
        doc = f"Write the report of {name} and open it." if name else "Write the reports and open them in a browser."
        task = f"report:{name}" if name else "report"
        yield ProjectCommand(task, doc, partial(_report, configs, name, workspace), [_NO_BROWSER])
    talking = sorted(config.name for config in configs if config.language)
    doc = "Talk to a language model here: doit chat:MODEL [--emulator] [--say TEXT] [--tokens 200]."
    yield ProjectCommand("chat", doc, partial(_chat_alone, talking), [_EMULATOR, _SAY, _TOKENS])
    for config, steps in models:
        if config.language:
            doc = f"Talk to {config.name} here: its QDQ model on the CPU, or [--emulator]; [--say TEXT] [--tokens 200]."
            needed = [step.id for step in steps if step.stage in ("ingest", "rewrite", "quantize")]
            run = partial(_chat, config, steps, workspace)
            yield ProjectCommand(f"chat:{config.name}", doc, run, [_EMULATOR, _SAY, _TOKENS], before=needed)
    hearing = sorted(config.name for config in configs if config.speech)
    doc = "Write down speech by a speech model: doit transcribe:MODEL [--emulator] [--language en] FILE…"
    yield ProjectCommand("transcribe", doc, partial(_transcribe_alone, hearing), _HEARD, takes_names=True)
    for config, steps in models:
        if config.speech:
            doc = f"Write down speech by {config.name}: its QDQ models on the CPU, or [--emulator]; FILE…"
            needed = [step.id for step in steps if step.stage in ("fetch", "rewrite", "quantize")]
            run = partial(_transcribe, config, steps, workspace)
            yield ProjectCommand(f"transcribe:{config.name}", doc, run, _HEARD, takes_names=True, before=needed)
    doc = "Say what is wrong with this host, its packages and this project."
    yield ProjectCommand("doctor", doc, partial(_doctor, workspace), [_JSON])
    for name, run in {"fsck": partial(_fsck, workspace, models), "gc": partial(_gc, workspace, session)}.items():
        yield ProjectCommand(name, upkeep.DOCS[name], run, upkeep.OPTIONS[name])


def _check_publish(urls: Sequence[str], _: Mapping[str, Any]) -> None:
    check_destinations(urls)
    check_signing_key()


def _publish(
    configs: Sequence[ModelConfig],
    released: Sequence[ModelConfig],
    targets: Collection[str],
    workspace: Workspace,
    urls: Sequence[str],
) -> int:
    if not released:
        print(nothing_to_package(configs))
        return 0
    publish_models(released, targets, workspace, urls)
    return 0


def _init(workspace: Workspace, given: Sequence[str], *, wanted: str) -> int:
    from pipeline.propose.first_config import write_first_config  # reads models

    return write_first_config(given, wanted, workspace)


def _wheel(workspace: Workspace) -> int:
    from pipeline.release.wheel import write_wheel

    print(write_wheel(workspace.root).relative_to(workspace.root).as_posix())
    return 0


def _verify(files: Sequence[str], *, key: str, replay: str) -> int:
    if late := next((file for file in files if file.startswith("--")), None):  # doit takes all that follows for names
        remedy = "write it before: doit verify-release --key PUBLIC_KEY FILE…"
        raise ConfigError(f"{late} comes after a file", where="command line", remedy=remedy)
    verify_files(files, key, replay)
    return 0


def _record(workspace: Workspace, models: Models, files: Sequence[str], *, samples: int) -> int:
    record_releases(files, models, workspace, samples)
    return 0


def _device(
    models: Models, targets: Collection[str], workspace: Workspace, given: Sequence[str], **options: Any
) -> int:
    measure_on_device(given, models, targets, workspace, options)
    return 0


def _reproduce(workspace: Workspace, files: Sequence[str]) -> int:
    reproduce_release(files, workspace)
    return 0


def _compare(workspace: Workspace, files: Sequence[str], *, as_json: bool, as_markdown: bool) -> int:
    from pipeline.report import compare

    limits = workspace.project.settings.compare
    return compare.run(files, workspace.build, limits, as_json=as_json, as_markdown=as_markdown)


def _report(configs: Sequence[ModelConfig], name: str, workspace: Workspace, *, no_browser: bool) -> int:
    from pipeline.report.page.command import report

    return report([(config, [*plan(config)]) for config in configs], name, workspace, no_browser=no_browser)


def _chat(
    config: ModelConfig, steps: Sequence[Step], workspace: Workspace, *, emulator: bool, say: str, tokens: int
) -> int:
    from pipeline.chat.command import chat  # loads models

    return chat(config, steps, workspace, emulator=emulator, say=say, tokens=tokens)


def _chat_alone(talking: Sequence[str], **_: object) -> int:
    """`chat` alone is in the list and has a help; where it is run, as by a glob, it asks for a model."""
    raise nobody_to_talk_to("", talking, talking)


def _transcribe(
    config: ModelConfig,
    steps: Sequence[Step],
    workspace: Workspace,
    files: Sequence[str],
    *,
    emulator: bool,
    language: str,
    translate: bool,
) -> int:
    from pipeline.chat.transcribe import transcribe  # loads models

    return transcribe(config, steps, workspace, files, emulator=emulator, language=language, translate=translate)


def _transcribe_alone(hearing: Sequence[str], *_: object, **__: object) -> int:
    raise ConfigError(
        "transcribe needs a model, and none is given",
        where="command line",
        remedy=f"doit transcribe:{next(iter(hearing), 'MODEL')} FILE.wav; docs/speech-models.md says how to build one",
    )


def _doctor(workspace: Workspace, *, as_json: bool) -> int:
    return entry.run(workspace.root, json=as_json)


def _fsck(workspace: Workspace, models: Models, *, dry_run: bool, as_json: bool) -> int:
    return upkeep.fsck(workspace, _all_steps(workspace), models, dry_run=dry_run, as_json=as_json)


def _gc(workspace: Workspace, session: upkeep.StoreSession, **options: Any) -> int:
    upkeep.gc(workspace, session, _all_steps(workspace), **options)
    return 0


def _all_steps(workspace: Workspace) -> list[Step]:
    """Those of all configs, whatever the command line says."""
    return plan_all(load_healthy(workspace.root / "configs")[0].values())


def engine(variables: Mapping[str, str], workspace: Workspace) -> Dispatcher | None:
    """The cluster that the command line (`engine=tcp://host:8786`, `engine=` for none) or the project names, if any.

    Raises ConfigError for an address that is none, or where no store is shared.
    """
    settings = workspace.project.settings.engine
    url = variables.get(ENGINE, settings.dask if settings else "")
    where = f"command line: {ENGINE}={url}" if ENGINE in variables else workspace.project.place("engine.dask")
    if not url:
        return None
    if not re.fullmatch(ENGINE_ADDRESS, url):
        raise ConfigError(
            f"'{url}' is no address of a Dask scheduler", where=where, remedy="write it as tcp://host:8786 or tls://…"
        )
    from pipeline.build.cluster.dispatcher import Dispatcher

    return Dispatcher(url, where, workspace)


def choose(
    variables: Mapping[str, str], known: Mapping[str, list[str]], names: Sequence[str] = ()
) -> dict[str, set[str]]:
    """The names that each filter of the command line (`models=a,b targets=x`) chose of those that are known; all of
    them where it is not given. `names` are the tasks beside it.

    Raises:
        ConfigError: a variable that is no filter, a name that no config has, or a task that a filter leaves out.
    """
    for name in variables:
        if name not in known:
            raise ConfigError(
                f"unknown variable '{name}'{did_you_mean(name, known)}",
                where=f"command line: {name}={variables[name]}",
                remedy=f"the variables are {' and '.join(f'{filter_}=…' for filter_ in known)}",
            )
    chosen = {}
    for filter_, there in known.items():
        given = [name for name in variables.get(filter_, "").split(",") if name]
        for name in given:
            if name not in there:
                raise ConfigError(
                    f"{filter_}={name}: no config has that{did_you_mean(name, there)}",
                    where="command line",
                    remedy=f"known {filter_}: {', '.join(there)}{_ELSEWHERE.get(filter_, '')}",
                )
        chosen[filter_] = set(given or there)
    check_left_out(names, variables, known, chosen)
    return chosen
