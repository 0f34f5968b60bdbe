"""The doit face: steps as doit tasks, command-line filters, and the reporter. The only module that imports doit."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import queue
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import doit.cmd_run
import doit.dependency
import doit.doit_cmd
from doit.action import PythonAction
from doit.exceptions import BaseFail, TaskFailed, UnmetDependency
from doit.runner import MThreadRunner
from doit.task import Task, dict_to_task

from pipeline import artifacts, hosts, interrupt, project_file, run_record
from pipeline.artifact_folders import folders
from pipeline.build import Outcome, bring_up_to_date, is_current, needed
from pipeline.config import ModelConfig, load_all
from pipeline.doctor.guard import Guard
from pipeline.engine.crew import Crew, cores
from pipeline.engine.schedule import WithdrawnError
from pipeline.errors import ConfigError, PipelineError, WaitingError
from pipeline.filters import choose
from pipeline.lasting import end_with_reader
from pipeline.plan import ON_DEMAND, STAGES, Step, plan
from pipeline.project_commands import ProjectCommand, commands
from pipeline.release.commands import check_signing_key, nothing_to_package, package_model, remove_archives
from pipeline.release.commands import needed as needed_to_package
from pipeline.reporter import TRACEBACK_VARIABLE, Reporter, refuse
from pipeline.storage import database
from pipeline.storage.durable import disk_errors
from pipeline.storage.manifests import read_manifest
from pipeline.storage.store import DamagedError
from pipeline.suggest import did_you_mean
from pipeline.upkeep import commands as upkeep
from pipeline.verdict import explain, judge
from pipeline.workspace import Workspace

_THREADS = 32  # each waits for the turn of one step; among more that wait, the order would hardly matter
_AWAKE_S = 0.2
_T = TypeVar("_T")
REPORT = "report.txt"
"""The file of a step's output that is written for a reader."""
Command = dict[str, Any]
"""A task of shell commands, as doit takes it."""


class Project:
    """The models of one checkout, narrowed by the command line, as doit tasks."""

    def __init__(self, root: Path, arguments: Iterable[str], variables: Mapping[str, str]) -> None:
        configs = load_all(root / "configs")
        self.workspace = Workspace.at(root).configured(project_file.load(root / "configs"))
        targets = sorted({target.soc for config in configs.values() for target in config.targets})
        chosen = choose(variables, {"models": sorted(configs), "targets": targets})
        self.configs = {name: config for name, config in configs.items() if name in chosen["models"]}
        self._named = "models" in variables
        self._targets = chosen["targets"]
        self._all_targets = "targets" not in variables
        self.is_whole = not variables
        self.steps = {step.id: step for config in self.configs.values() for step in plan(config) if self._wanted(step)}
        hosts.check(self.steps.values(), self.workspace.project)
        self.crew = Crew(self.workspace, self.steps.values())
        self.guard = Guard(self.workspace)
        self.announce: Callable[[Step], None] = lambda _: None
        self.results: dict[str, tuple[str, float]] = {}
        self.missed: set[str] = set()
        self.waiting: dict[str, WaitingError] = {}
        self._remade = False
        self.session = upkeep.Session(self.workspace)
        self.status = 0
        self._checks: dict[str, Callable[[Sequence[str]], None]] = {}
        self._check_names(arguments)

    def tasks(self, stage: str) -> Iterator[Task]:
        """The group task of a stage and one task for each of its steps."""
        steps = [step for step in self.steps.values() if step.stage == stage]
        yield _group(stage, STAGES[stage], [step.id for step in steps])
        for step in steps:
            yield _task(
                step.id,
                stage,
                doc=f"{stage} of {step.name}",
                actions=[(_reported, [partial(self._bring, step)])],
                file_dep=[str(self.workspace.current(name)) for name in step.after],
                targets=[str(self.workspace.current(step))],
                uptodate=[partial(self._is_current, step)],
            )

    def build_tasks(self) -> Iterator[Task]:
        """`build`, which is all models but those marked on_request, and `build:<model>` for each."""
        built = [name for name, config in self.configs.items() if self._named or not config.on_request]
        doc = "Build the artifacts of every model (on_request models only when named)."
        yield _group("build", doc, [f"build:{name}" for name in built])
        for name, config in self.configs.items():
            steps = self._steps_of(config)
            yield _task(
                f"build:{name}",
                "build",
                doc=f"build artifacts/{name}" + (" (on request)" if config.on_request else ""),
                actions=[(_reported, [partial(self._publish, config)])],
                task_dep=[step.id for step in steps],
                uptodate=[partial(self._is_published, config)],
                clean=[Removal(self._clean, [name])],
            )

    def package_tasks(self) -> Iterator[Task]:
        """`package`, which is all models that have a release but those marked on_request, and `package:<model>`."""
        doc = "Make a release of each model whose config has one: one archive, or one for each target."
        released = [f"package:{config.name}" for config in self._released()]
        said = [] if released else [(_say, [nothing_to_package(self.configs.values())])]
        yield _group("package", doc, released, said)
        for name, config in self.configs.items():
            before, _ = needed_to_package(config, self._steps_of(config))
            doc, run = f"make releases of artifacts/{name}", partial(self._package, config)
            yield _task(f"package:{name}", "package", doc=doc, actions=[(_reported, [run])], task_dep=before)

    def command_tasks(self) -> Iterator[Task]:
        """The commands that are no steps, one task for each."""
        models = [(config, self._steps_of(config)) for config in self.configs.values()]
        for command in commands(models, self._released(), self._targets, self.workspace, self.session):
            takes = {"pos_arg": "given"} if command.takes_names else {}
            self._checks[command.name] = command.check
            yield dict_to_task(
                {
                    "name": command.name,
                    "doc": command.doc,
                    "actions": [self._action(command)],
                    "params": [*command.options],
                    "task_dep": [*command.before],
                    "verbosity": 2,
                    **takes,
                }
            )

    def check_given(self, command: str, names: Sequence[str]) -> None:
        """Raise PipelineError if a command can do nothing with the names that it was given."""
        task, _, _ = command.partition(":")
        if task == "package":
            check_signing_key()
        elif task in self._checks:
            self._checks[task](names)

    def manifests(self) -> dict[str, Any]:
        """What every step produced last, by step id."""
        found = {step.id: read_manifest(self.workspace.current(step)) for step in self.steps.values()}
        return {name: manifest for name, manifest in found.items() if manifest is not None}

    def report_of(self, step: Step) -> str:
        """What a step has to say to a reader, once: if it ran now, or is there for nothing else."""
        manifest = read_manifest(self.workspace.current(step))
        entry = manifest.files.get(REPORT) if manifest else None
        if entry is None or not (step.id in self.results or step.stage in ON_DEMAND):
            return ""
        try:
            return self.workspace.store.object_path(entry.sha256).read_text("utf-8").rstrip()
        except (OSError, ValueError):  # lost since, or damaged: the next build sees to it
            return ""

    def _wanted(self, step: Step) -> bool:
        wanted = step.config.targets if _is_whole(step.config) else step.targets
        return not step.targets or any(target.soc in self._targets for target in wanted)

    def _steps_of(self, config: ModelConfig) -> list[Step]:
        """What a build of a model takes."""
        return [step for step in self.steps.values() if step.config is config and step.stage not in ON_DEMAND]

    def _released(self) -> list[ModelConfig]:
        """The models that `package` and `publish` without a name are about."""
        found = [config for config in self.configs.values() if config.release]
        return [config for config in found if self._named or not config.on_request]

    def _is_current(self, step: Step, *_: object) -> bool:
        try:
            return is_current(step, self.workspace) and judge(step, self.workspace) is None
        except (PipelineError, OSError):
            return False  # bringing it up to date raises the same error where it can be reported

    def _bring(self, step: Step) -> None:
        """Bring a step up to date and see that its output may ship."""
        self._bring_ungated(step)
        if miss := judge(step, self.workspace):
            self.missed.add(step.id)
            raise explain(miss, step, self.steps, self.workspace, self.crew)

    def _bring_ungated(self, step: Step) -> None:
        """Bring a step up to date, whatever its gates say."""
        bring = partial(bring_up_to_date, step, self.workspace, self.crew, partial(self._start, step))
        try:
            result = self._healed(bring, needed(step, self.steps))
        except WaitingError as error:
            self.waiting[error.step] = error
            raise
        if result.outcome is not Outcome.CURRENT:
            self.results[step.id] = (result.outcome.value, result.seconds)

    def _start(self, step: Step) -> None:
        self.guard.before_work()
        self.announce(step)

    def _healed(self, act: Callable[[], _T], steps: Iterable[Step], bring: Callable[[Step], None] | None = None) -> _T:
        """What `act` returns; if a file of these steps turns out damaged, they are made again before another try."""
        try:
            return act()
        except DamagedError:
            self._remade = True
            for step in steps:
                before = self.results.get(step.id)
                (bring or self._bring)(step)
                if self.results.get(step.id) is not before:
                    self.workspace.store.tell(f"made again: {step.id}")
            return act()

    def _is_published(self, config: ModelConfig, *_: object) -> bool:
        try:
            found = folders(config, self._steps_of(config), self.workspace)
        except PipelineError:
            return False
        dropped = []
        if self._all_targets or _is_whole(config):
            dropped = artifacts.leftovers(config.name, found, self.workspace)
            artifacts.tell_strangers(config.name, found, self.workspace)
        published = [artifacts.is_published(folder, self.workspace) for folder in found]  # each tells what it finds
        return not dropped and all(published)

    def _publish(self, config: ModelConfig) -> None:
        steps = self._steps_of(config)
        for step in steps if self._remade else ():  # it may have come out otherwise after others had used it
            self._bring(step)
        self._healed(partial(self._write_artifacts, config, steps), steps)
        self.results[f"build:{config.name}"] = ("built", 0.0)

    def _package(self, config: ModelConfig) -> None:
        steps, bring = self._steps_of(config), self._bring_ungated  # what packages knows which gates count
        write = partial(package_model, config, steps, self._targets, self.workspace, bring)
        if self._healed(write, steps, bring):
            self.results[f"package:{config.name}"] = ("built", 0.0)

    def _write_artifacts(self, config: ModelConfig, steps: Sequence[Step]) -> None:
        wanted = folders(config, steps, self.workspace)
        for folder in wanted:
            artifacts.publish(folder, self.workspace)
        if self._all_targets or _is_whole(config):
            for path in artifacts.leftovers(config.name, wanted, self.workspace):
                artifacts.remove_folder(path, self.workspace.memo)
                name = path.relative_to(self.workspace.root).as_posix()
                self.workspace.store.tell(f"removed {name}: the config of {config.name} does not make it any more")

    def _action(self, command: ProjectCommand) -> Callable[..., TaskFailed | None]:
        """What doit calls: it looks at the names of parameters to see what to give."""

        def run(*names: list[str], **options: Any) -> None:
            status = command.run(*names, **options)
            self.status = self.status or status

        if command.takes_names:
            return lambda given, **options: _reported(partial(run, given or [], **options))
        return lambda **options: _reported(partial(run, **options))

    def _clean(self, model: str) -> None:
        try:
            archives = remove_archives(self.configs[model], self.workspace)
            for path in (*artifacts.remove(model, self.workspace), *archives):
                print(f"removed {path.relative_to(self.workspace.root)}")
        except PipelineError as error:
            refuse(error)

    def _check_names(self, arguments: Iterable[str]) -> None:
        """Refuse `stage:name` arguments that match nothing: doit ignores a glob without a match."""
        whole = ("build", "package")
        known = [*self.steps, *(f"{task}:{name}" for task in whole for name in self.configs)]
        for argument in arguments:
            if argument.split(":")[0] in (*STAGES, *whole) and ":" in argument and not fnmatch.filter(known, argument):
                raise ConfigError(
                    f"no step is named '{argument}'{did_you_mean(argument, known)}",
                    where="command line",
                    remedy="'doit list --all' prints every name",
                )


def _is_whole(config: ModelConfig) -> bool:
    """Whether a model is built for all of its targets or for none: they may share binaries."""
    return config.packing in ("socs", "auto")


class Removal(PythonAction):  # type: ignore[misc]  # doit is untyped
    """The action of `doit clean build:<model>`."""

    def __str__(self) -> str:
        """What doit says that it executes."""
        return f"remove artifacts/{self.args[0]}"


class StepFailed(TaskFailed):  # type: ignore[misc]  # doit is untyped
    """A failure that carries the error a user should see."""

    def __init__(self, error: PipelineError) -> None:
        super().__init__(str(error))
        self.error = error


class Answers(queue.Queue[Any]):
    """A queue at which who waits wakes up now and then: on Windows no signal reaches a thread that waits for a lock.

    (https://docs.python.org/3/library/threading.html#threading.Lock.acquire: interrupted on POSIX.)
    """

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next item, as of any queue."""
        while block and timeout is None:
            with contextlib.suppress(queue.Empty):
                return super().get(timeout=_AWAKE_S)
        return super().get(block, timeout)


class Runner(MThreadRunner):  # type: ignore[misc]  # doit is untyped
    """doit's runner with a thread for every step that could run: which of them do, the crew decides."""

    Queue = Answers if os.name == "nt" else queue.Queue
    _stop_running: bool

    def __init__(
        self, manager: object, reporter: Reporter, continue_: bool, always: bool, stream: object, num_process: int = 0
    ) -> None:
        if num_process < 1:
            refuse(
                ConfigError(
                    f"-n {num_process}: no step could run",
                    where="command line",
                    remedy="give a number from 1 on, or leave it out: then as many steps run as there are cores",
                )
            )
        super().__init__(manager, reporter, continue_, always, stream, _THREADS)
        reporter.keep_going = continue_
        reporter.project.crew.set_up(num_process, keep_going=continue_)

    def _handle_task_error(self, node: Any, base_fail: BaseFail) -> None:
        """Go on with what doesn't stand on a step that waits for another host; a failure stops as it did.

        What is not tried as it stands on something stops nothing either: that did, if it was to.
        """
        stopping = self._stop_running
        super()._handle_task_error(node, base_fail)
        if isinstance(getattr(base_fail, "error", None), WaitingError) or isinstance(base_fail, UnmetDependency):
            self._stop_running = stopping


def declare(root: Path) -> tuple[Project, dict[str, Any]]:
    """The project at `root` and doit's settings for it; a wrong config ends the process with its exit code."""
    if run_record.is_build(sys.argv[1:]):
        run_record.begin(root / ".build")
    try:
        project = Project(root, sys.argv[1:], _variables())
        with disk_errors(project.workspace.build):
            project.workspace.build.mkdir(exist_ok=True)
    except PipelineError as error:
        if run_record.is_build(sys.argv[1:]):
            run_record.refused(root / ".build", sys.argv[1:], error)
        refuse(error)
    Reporter.project = project
    database.install(doit.dependency.JsonDB)
    # doit lets a project bring its reporter, not its runner; the others are for -n 0 and -P process.
    doit.cmd_run.Runner = doit.cmd_run.MRunner = doit.cmd_run.MThreadRunner = Runner
    interrupt.install()
    end_with_reader(True)  # until a reporter says otherwise: `doit list | head`
    settings = {
        "default_tasks": ["build"],
        "dep_file": str(project.workspace.build / "doit.json"),
        "backend": "json",
        "reporter": Reporter,
        "par_type": "thread",
        "num_process": cores(),
        "verbosity": 2,
        "sort": "definition",
    }
    return project, settings


def _variables() -> Mapping[str, str]:
    # doit has get_var for a known name, and no way to ask which names were given
    return doit.doit_cmd._CMDLINE_VARS or {}


def _say(line: str) -> None:
    """Print a line; doit takes no built-in function for an action."""
    print(line)


def _reported(run: Callable[[], None]) -> TaskFailed | None:
    """Do something, and hand its error to doit."""
    try:
        run()
    except PipelineError as error:
        return _failure(error)
    except WithdrawnError:
        return TaskFailed("not started, as another step failed", report=False)
    return None


def _failure(error: PipelineError) -> StepFailed:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    return StepFailed(error)


def _group(name: str, doc: str, members: list[str], actions: Sequence[object] = ()) -> Task:
    return Task(name, [*actions] or None, doc=doc, has_subtask=True, task_dep=members, verbosity=2)


def _task(name: str, group: str, **attributes: object) -> Task:
    task = dict_to_task({"name": name, "verbosity": 2, **attributes})
    task.subtask_of = group
    return task
