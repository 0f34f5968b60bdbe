"""What a build prints while it runs and at its end: a reporter of doit."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import IO, NoReturn, Protocol, TextIO, cast

from pipeline.build import interrupt
from pipeline.build.crew import Crew
from pipeline.config.load import ModelConfig
from pipeline.errors import PipelineError, WaitingError
from pipeline.model import Json, Manifest
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.processes import stopping
from pipeline.report import run_record, summary
from pipeline.report.account import Account
from pipeline.report.console import Console
from pipeline.report.output_stream import LastingStream, end_with_reader
from pipeline.report.summary import BuildFailure
from pipeline.shortage import shortage_handled

TRACEBACK_VARIABLE = "PIPELINE_TRACEBACK"
_BUG = 3
"""doit's exit code for an exception that it did not expect."""


class Task(Protocol):
    """The part of a doit task that the reporter uses."""

    name: str
    task_dep: list[str]
    pos_arg_val: list[str] | None
    options: Mapping[str, object] | None


class DoitFailure(Protocol):
    """The part of a doit failure that the reporter uses."""

    message: str
    report: bool

    def get_name(self) -> str: ...  # noqa: D102

    def get_msg(self) -> str: ...  # noqa: D102


Given = tuple[Sequence[str], Mapping[str, object]]
"""The names after a command, and its options by name."""


class Build(Protocol):
    """What a reporter knows of the project that is built."""

    announce: Callable[[Step], None]
    announce_end: Callable[[Step], None]
    workspace: Workspace
    configs: dict[str, ModelConfig]
    steps: dict[str, Step]
    crew: Crew
    results: dict[str, tuple[str, float]]
    unchanged: Mapping[str, Account]
    missed: set[str]
    waiting: dict[str, WaitingError]
    status: int
    is_whole: bool

    def open(self, given: Mapping[str, Given], steps: Collection[str]) -> None:
        """Prepare to run tasks and these steps; raises PipelineError if that makes no sense.

        `given` maps the tasks of the command line to the names and the options that each was given.
        """
        ...

    def close(self) -> None:
        """Let go of the store."""
        ...

    def tell_removed(self) -> None:
        """Tell the user of artifacts whose config is gone."""
        ...

    def publish_rest(self, models: Iterable[str], checked: Set[str]) -> dict[str, list[str]]:
        """Publish the components that passed, of models with failed ones; returns each model's missing components."""
        ...

    def manifests(self) -> dict[str, Manifest]:
        """What every step produced last, by step id."""
        ...

    def report_of(self, step: Step) -> str:
        """The text that a step wrote for a reader."""
        ...

    def keep_unchanged(self, ran: summary.Ran) -> None:
        """Remember the models that need no further work, for the next build."""
        ...

    def write_pages(self, ran: summary.Ran, run: Mapping[str, Json], tell: Callable[[str], None]) -> None:
        """Write the pages of the models that a command was about, where something changed."""
        ...


class Reporter:
    """doit's reporter interface: a line a step, errors with their remedies, and at the end what was built."""

    desc = "a line a step, then a table"
    project: Build

    def __init__(self, outstream: IO[str] | None, options: Mapping[str, object]) -> None:
        end_with_reader(False)
        sys.stdout = cast("TextIO", LastingStream(outstream))  # actions print there, too
        self._console = Console(sys.stdout)
        self.project.announce = self._started
        self.project.announce_end = self._ended
        self._failures: dict[str, BuildFailure] = {}
        self._needs: dict[str, str] = {}
        self._checked: set[str] = set()
        self._selected: list[str] = []
        self._waiting = False
        self._clock = run_record.Clock()
        self._names: set[str] = set()
        self._refusal: PipelineError | None = None
        self._partial: Mapping[str, Sequence[str]] = {}
        self._began: dict[str, float] = {}
        self._running: dict[str, float] = {}
        self._runs: dict[str, list[tuple[float, float]]] = {}

    def initialize(self, tasks: Mapping[str, Task], selected_tasks: Iterable[str]) -> None:
        """Called once, before anything runs."""
        project = self.project
        self._selected = list(selected_tasks)
        names = self._names = _closure(tasks, self._selected) & set(project.steps)
        if self._is_build():
            run_record.begin(project.workspace.build)
        project.workspace.store.tell = self._console.line
        try:
            given = {name: (tasks[name].pos_arg_val or (), tasks[name].options or {}) for name in self._selected}
            project.open(given, names)
            if self._is_build():
                project.tell_removed()
        except PipelineError as error:
            self._refusal = error
            refuse(error)
        self._console.start(names, project.crew.left_s)

    def get_status(self, task: Task) -> None:
        """Called before a task is checked."""

    def execute_task(self, task: Task) -> None:
        """Called when a task gets a thread. It may still wait for its turn there."""

    def _started(self, step: Step) -> None:
        """Called when a step's worker starts."""
        since = self._running[step.id] = self._clock.since()
        self._began.setdefault(step.id, since)
        self._console.started(step.id, self.project.workspace.log(step))

    def _ended(self, step: Step) -> None:
        """Called when a step's worker has ended, whatever comes of it."""
        self._console.ended(step.id)
        if (since := self._running.pop(step.id, None)) is not None:
            self._runs.setdefault(step.id, []).append((since, self._clock.since() - since))

    def add_success(self, task: Task) -> None:
        """Called when a task ended well."""
        self._checked.add(task.name)
        outcome, seconds = self.project.results.get(task.name, ("current", 0.0))
        if task.name in self.project.steps:
            self._console.finished(task.name, outcome, seconds)

    def skip_uptodate(self, task: Task) -> None:
        """Called when a task is up to date."""
        self._checked.add(task.name)
        if task.name in self.project.steps:
            self._console.finished(task.name, "current", 0.0)

    def skip_ignore(self, task: Task) -> None:
        """Called when the user told doit to ignore a task."""
        self._console.line(f"{task.name}: ignored, as told by 'doit ignore'")

    def add_failure(self, task: Task, fail: DoitFailure) -> None:
        """Called when a task failed, or could not start because one it needs failed."""
        if fail.get_name() == "UnmetDependency":
            if ":" in task.name or task.name == "publish":  # a group only stands for its members
                self._needs[task.name] = self._cause(fail.message.split())
            return
        error: PipelineError | None = getattr(fail, "error", None)
        if error is None and not fail.report:
            return
        if isinstance(error, WaitingError):
            self._waits(task.name, error)
            return
        self.project.crew.failed()
        text = str(error) if error else f"{fail.get_name()}\n{fail.get_msg()}"
        if text not in self._failures:  # several steps may meet what is wrong with a model
            self._console.failed(task.name, text)
        self._failures.setdefault(text, BuildFailure(text, error)).tasks.append(task.name)

    def _waits(self, task: str, error: WaitingError) -> None:
        """Note a step that may not run on this host. That is no failure: other steps go on."""
        self._waiting = True
        if error.step != task:  # `package` and `publish` bring steps up to date themselves
            self._needs[task] = error.step
        self._console.waiting(error.step, error.hosts)

    def _cause(self, names: Sequence[str]) -> str:
        """Of the tasks that a task needs, one that failed; if none failed, one that waits."""
        waiting = self.project.waiting
        return next((name for name in names if summary.cause(name, self._needs) not in waiting), names[0])

    def cleanup_error(self, exception: DoitFailure) -> None:
        """Called when a teardown failed."""
        self._console.line(exception.get_msg())

    def runtime_error(self, msg: str) -> None:
        """Called when doit itself failed."""
        self._failures.setdefault(msg, BuildFailure(msg)).tasks.append("doit")
        self._console.line(msg)

    def teardown_task(self, task: Task) -> None:
        """Called before a teardown."""

    def complete_run(self) -> None:
        """Print the end of the report; leave with the exit code of the first error."""
        project = self.project
        project.close()
        if stopping.asked() or isinstance(sys.exc_info()[1], KeyboardInterrupt):
            project.crew.stop()
            project.workspace.memo.save()
            self._console.stop()
            with contextlib.suppress(Exception):  # an error must not keep us from stopping
                self._record(self._ran(), interrupt.INTERRUPTED)
            interrupt.leave(self._console.line)
        if short := shortage_handled():
            self._refusal = short  # the runner says it; tables and pages would need what there is too little of
            with contextlib.suppress(Exception):  # either may meet the shortage, too
                self._console.stop()
            with contextlib.suppress(Exception):
                self._record(self._ran(), short.exit_code)
            return
        self._publish_rest()
        project.crew.close()
        project.workspace.memo.save()
        self._console.stop()
        ran = self._ran()
        if isinstance(sys.exc_info()[1], SystemExit):  # refused before anything ran
            if self._refusal:
                self._record(ran, self._refusal.exit_code)
            return
        for step in ran.current:
            if text := project.report_of(step):
                self._console.line(f"\n{step.id}\n{text}")
        for text in summary.told(ran) if self._is_build() else ():
            self._console.line(text)
        exit_code = self._exit_code()
        self._record(ran, exit_code)
        if self._is_build():
            with contextlib.suppress(PipelineError, OSError):  # it only saves time
                project.keep_unchanged(ran)
        if exit_code:
            raise SystemExit(exit_code)

    def _publish_rest(self) -> None:
        """Publish the components that passed, of models with failed ones."""
        waiting = self.project.waiting
        built = [name for name in self._needs if name.startswith("build:")]
        models = [name.removeprefix("build:") for name in built if summary.cause(name, self._needs) not in waiting]
        try:
            self._partial = self.project.publish_rest(models, self._checked)
        except PipelineError as error:
            self._console.line(str(error))

    def _exit_code(self) -> int:
        """That of the first error; waiting is none."""
        for failure in self._failures.values():
            return failure.exit_code
        return self.project.status or (WaitingError.exit_code if self._waiting else 0)

    def _is_build(self) -> bool:
        """Whether the command is about steps, or would be if there were any."""
        return bool(self._names) or any(run_record.builds(name) for name in self._selected)

    def _record(self, ran: summary.Ran, exit_code: int) -> None:
        """Write run.json, if the command is a build."""
        if not self._is_build():
            return
        failures = [*ran.failures]
        if self._refusal:
            failures.append(BuildFailure(str(self._refusal), self._refusal))
        bug = sys.exc_info()[1]
        if bug is not None and not (self._refusal or isinstance(bug, SystemExit | KeyboardInterrupt)):
            failures.append(BuildFailure(f"{type(bug).__name__}: {bug}"))
            exit_code = exit_code or _BUG
        workspace = self.project.workspace
        content = run_record.record(
            ran if failures == ran.failures else replace(ran, failures=failures),
            exit_code,
            workspace.root,
            tried=self._names,
            whole=self.project.is_whole and "build" in self._selected,
            clock=self._clock,
        )
        run_record.write(workspace.build, content, self._console.line)
        if not (self._refusal or stopping.asked()):
            self.project.write_pages(ran, content, self._console.line)

    def _ran(self) -> summary.Ran:
        project = self.project
        return summary.Ran(
            self._selected,
            project.steps,
            [name for name, config in project.configs.items() if config.on_request],
            self._checked,
            frozenset(project.missed),  # copies: when interrupted, threads still change them
            dict(project.waiting),
            dict(project.results),
            project.manifests(),
            [*self._failures.values()],
            self._needs,
            self._partial,
            dict(self._began),
            {step: [*runs] for step, runs in self._runs.copy().items()},
            {name: told for name, told in project.unchanged.items() if f"build:{name}" in self._checked},
        )


def refuse(error: PipelineError) -> NoReturn:
    """End the process before anything ran."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(error.exit_code) from None


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
