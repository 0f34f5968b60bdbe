"""The doit face: steps as doit tasks, command-line filters, and the reporter. The only module that imports doit."""

from __future__ import annotations

import fnmatch
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import doit.cmd_run
import doit.doit_cmd
from doit.exceptions import BaseFail, TaskFailed
from doit.runner import MThreadRunner
from doit.task import Task, dict_to_task

from pipeline import artifacts, process, summary
from pipeline.artifact_folders import folders
from pipeline.build import Outcome, bring_up_to_date, is_current
from pipeline.config import ModelConfig, load_all
from pipeline.console import Console
from pipeline.crew import Crew, cores
from pipeline.errors import ConfigError, PipelineError
from pipeline.filters import choose
from pipeline.plan import ON_DEMAND, STAGES, Step, plan
from pipeline.schedule import WithdrawnError
from pipeline.store import disk_errors, read_manifest
from pipeline.suggest import did_you_mean
from pipeline.verdict import explain, judge
from pipeline.workspace import Workspace

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended
TRACEBACK_VARIABLE = "PIPELINE_TRACEBACK"
_THREADS = 32  # each waits for the turn of one step; among more that wait, the order would hardly matter
REPORT = "report.txt"
"""The file of a step's output that is written for a reader."""
Command = dict[str, Any]
"""A task of shell commands, as doit takes it."""


class Project:
    """The models of one checkout, narrowed by the command line, as doit tasks."""

    def __init__(self, root: Path, arguments: Iterable[str], variables: Mapping[str, str]) -> None:
        self.workspace = Workspace.at(root)
        configs = load_all(root / "configs")
        targets = sorted({target.soc for config in configs.values() for target in config.targets})
        chosen = choose(variables, {"models": sorted(configs), "targets": targets})
        self.configs = {name: config for name, config in configs.items() if name in chosen["models"]}
        self._named = "models" in variables
        self._targets = chosen["targets"]
        self._all_targets = "targets" not in variables
        self.steps = {step.id: step for config in self.configs.values() for step in plan(config) if self._wanted(step)}
        self.crew = Crew(self.workspace, self.steps.values())
        self.announce: Callable[[Step], None] = lambda _: None
        self.results: dict[str, tuple[str, float]] = {}
        self.missed: set[str] = set()
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
                actions=[(self._act, [step])],
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
                actions=[(self._publish, [config])],
                task_dep=[step.id for step in steps],
                uptodate=[partial(self._is_published, config)],
                clean=[(self._clean, [name])],
            )

    def store_check(self) -> Task:
        """A task that hashes all of the store."""
        doc = "Hash every file of the store, and drop those that are corrupt."
        return dict_to_task({"name": "check_store", "doc": doc, "actions": [self._check_store], "verbosity": 2})

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
        return self.workspace.store.object_path(entry.sha256).read_text("utf-8").rstrip()

    def _wanted(self, step: Step) -> bool:
        wanted = step.config.targets if _is_whole(step.config) else step.targets
        return not step.targets or any(target.soc in self._targets for target in wanted)

    def _steps_of(self, config: ModelConfig) -> list[Step]:
        """What a build of a model takes."""
        return [step for step in self.steps.values() if step.config is config and step.stage not in ON_DEMAND]

    def _is_current(self, step: Step, *_: object) -> bool:
        try:
            return is_current(step, self.workspace) and judge(step, self.workspace) is None
        except (PipelineError, OSError):
            return False  # bringing it up to date raises the same error where it can be reported

    def _act(self, step: Step) -> TaskFailed | None:
        try:
            result = bring_up_to_date(step, self.workspace, self.crew, partial(self.announce, step))
            if result.outcome is not Outcome.CURRENT:
                self.results[step.id] = (result.outcome.value, result.seconds)
            miss = judge(step, self.workspace)
            self.missed |= {step.id} if miss else set()
            return _failure(explain(miss, step, self.steps, self.workspace, self.crew)) if miss else None
        except WithdrawnError:
            return TaskFailed("not started, as another step failed", report=False)
        except PipelineError as error:
            return _failure(error)

    def _is_published(self, config: ModelConfig, *_: object) -> bool:
        try:
            found = folders(config, self._steps_of(config), self.workspace)
        except PipelineError:
            return False
        dropped = (
            artifacts.leftovers(config.name, found, self.workspace) if self._all_targets or _is_whole(config) else []
        )
        return not dropped and all(artifacts.is_published(folder, self.workspace) for folder in found)

    def _publish(self, config: ModelConfig) -> StepFailed | None:
        try:
            wanted = folders(config, self._steps_of(config), self.workspace)
            for folder in wanted:
                artifacts.publish(folder, self.workspace)
            if self._all_targets or _is_whole(config):
                for path in artifacts.leftovers(config.name, wanted, self.workspace):
                    artifacts.remove_folder(path)
        except PipelineError as error:
            return _failure(error)
        self.results[f"build:{config.name}"] = ("built", 0.0)
        return None

    def _check_store(self) -> StepFailed | None:
        try:
            dropped = [*self.workspace.store.corrupt()]
        except PipelineError as error:
            return _failure(error)
        for path in dropped:
            print(f"corrupt, removed: {path}")
        print(f"{len(dropped)} corrupt files" + ("; the next build makes them again" if dropped else ""))
        return None

    def _clean(self, model: str) -> None:
        for path in artifacts.remove(model, self.workspace):
            print(f"removed {path.relative_to(self.workspace.root)}")

    def _check_names(self, arguments: Iterable[str]) -> None:
        """Refuse `stage:name` arguments that match nothing: doit ignores a glob without a match."""
        known = [*self.steps, *(f"build:{name}" for name in self.configs)]
        for argument in arguments:
            if argument.split(":")[0] in (*STAGES, "build") and ":" in argument and not fnmatch.filter(known, argument):
                raise ConfigError(
                    f"no step is named '{argument}'{did_you_mean(argument, known)}",
                    where="command line",
                    remedy="'doit list --all' prints every name",
                )


def _is_whole(config: ModelConfig) -> bool:
    """Whether a model is built for all of its targets or for none: they may share binaries."""
    return config.packing in ("socs", "auto")


class StepFailed(TaskFailed):  # type: ignore[misc]  # doit is untyped
    """A failure that carries the error a user should see."""

    def __init__(self, error: PipelineError) -> None:
        super().__init__(str(error))
        self.error = error


class Runner(MThreadRunner):  # type: ignore[misc]  # doit is untyped
    """doit's runner with a thread for every step that could run: which of them do, the crew decides."""

    def __init__(
        self, manager: object, reporter: Reporter, continue_: bool, always: bool, stream: object, num_process: int
    ) -> None:
        super().__init__(manager, reporter, continue_, always, stream, _THREADS)
        reporter.project.crew.set_up(num_process, keep_going=continue_)


class Reporter:
    """doit's reporter interface: a line a step, errors with their remedies, and at the end what was built."""

    desc = "a line a step, then a table"
    project: Project

    def __init__(self, outstream: IO[str], options: Mapping[str, object]) -> None:
        self._console = Console(outstream)
        self.project.announce = self._started
        self._failures: list[PipelineError | None] = []
        self._told: set[str] = set()
        self._checked: set[str] = set()
        self._selected: list[str] = []

    def initialize(self, tasks: Mapping[str, Task], selected_tasks: Iterable[str]) -> None:
        """Called once, before anything runs."""
        self._selected = list(selected_tasks)
        self._console.start(_closure(tasks, self._selected) & set(self.project.steps))

    def get_status(self, task: Task) -> None:
        """Called before a task is checked."""

    def execute_task(self, task: Task) -> None:
        """Called when a task gets a thread, where it may still wait for its turn."""

    def _started(self, step: Step) -> None:
        """Called when a step's worker starts."""
        self._console.started(step.id, self.project.workspace.log(step))

    def add_success(self, task: Task) -> None:
        """Called when a task ended well."""
        self._checked.add(task.name)
        outcome, seconds = self.project.results.get(task.name, ("current", 0.0))
        if task.name in self.project.steps:
            self._console.finished(task.name, outcome, seconds)

    def skip_uptodate(self, task: Task) -> None:
        """Called when a task needs nothing."""
        self._checked.add(task.name)
        if task.name in self.project.steps:
            self._console.finished(task.name, "current", 0.0)

    def skip_ignore(self, task: Task) -> None:
        """Called when the user told doit to ignore a task."""
        self._console.line(f"{task.name}: ignored, as told by 'doit ignore'")

    def add_failure(self, task: Task, fail: BaseFail) -> None:
        """Called when a task failed, or could not start because one it needs failed."""
        error = fail.error if isinstance(fail, StepFailed) else None
        if error is None and not fail.report:
            return
        self.project.crew.failed()
        text = str(error) if error else f"{fail.get_name()}\n{fail.get_msg()}"
        if text not in self._told:  # what is wrong with a model may be met by several steps at once
            self._told.add(text)
            self._failures.append(error)
            self._console.failed(task.name, text)

    def cleanup_error(self, exception: BaseFail) -> None:
        """Called when a teardown failed."""
        self._console.line(exception.get_msg())

    def runtime_error(self, msg: str) -> None:
        """Called when doit itself failed."""
        self._failures.append(None)
        self._console.line(msg)

    def teardown_task(self, task: Task) -> None:
        """Called before a teardown."""

    def complete_run(self) -> None:
        """Print the end of the report; leave with the exit code of the first error."""
        project = self.project
        interrupted = isinstance(sys.exc_info()[1], KeyboardInterrupt)
        if interrupted:
            process.end_all()
        project.crew.close()
        project.workspace.memo.save()
        self._console.stop()
        if interrupted:
            self._console.line("\nInterrupted. What was built is kept: run the same command again to resume.")
            raise SystemExit(INTERRUPTED)
        ran = self._ran()
        for step in ran.current:
            if text := project.report_of(step):
                self._console.line(f"\n{step.id}\n{text}")
        for text in (*summary.tables(ran), summary.last_lines(ran)):
            if text:
                self._console.line(f"\n{text}")
        if self._failures:
            raise SystemExit(self._failures[0].exit_code if self._failures[0] else 1)

    def _ran(self) -> summary.Ran:
        project = self.project
        return summary.Ran(
            project.steps,
            [name for name, config in project.configs.items() if config.on_request],
            self._selected,
            self._checked,
            project.missed,
            project.results,
            project.manifests(),
            len(self._failures),
        )


def declare(root: Path) -> tuple[Project, dict[str, Any]]:
    """The project at `root` and doit's settings for it; a wrong config ends the process with its exit code."""
    try:
        project = Project(root, sys.argv[1:], _variables())
        with disk_errors(project.workspace.build):
            project.workspace.build.mkdir(exist_ok=True)
    except PipelineError as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    Reporter.project = project
    doit.cmd_run.MThreadRunner = Runner  # doit lets a project bring its reporter, not its runner
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stopped job ends its workers as Ctrl-C does
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


def _failure(error: PipelineError) -> StepFailed:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    return StepFailed(error)


def _group(name: str, doc: str, members: list[str]) -> Task:
    return Task(name, None, doc=doc, has_subtask=True, task_dep=members)


def _task(name: str, group: str, **attributes: object) -> Task:
    task = dict_to_task({"name": name, "verbosity": 2, **attributes})
    task.subtask_of = group
    return task


def _closure(tasks: Mapping[str, Task], selected: Iterable[str]) -> set[str]:
    """Names of the selected tasks and of all they need."""
    reached: set[str] = set()
    pending = list(selected)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += tasks[name].task_dep
    return reached
