"""What a build prints while it runs and at its end, by the interface that doit has for reporters."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import IO, NoReturn, Protocol, TextIO, cast

from pipeline import interrupt, run_record, summary
from pipeline.config import ModelConfig
from pipeline.console import Console
from pipeline.doctor.guard import Guard
from pipeline.engine.crew import Crew
from pipeline.errors import PipelineError, WaitingError
from pipeline.lasting import Lasting, end_with_reader
from pipeline.model import Manifest
from pipeline.plan import Step
from pipeline.system import stopping
from pipeline.upkeep.commands import Session
from pipeline.workspace import Workspace

TRACEBACK_VARIABLE = "PIPELINE_TRACEBACK"
_REASON_CHARS = 200
_BUG = 3
"""doit's exit code for an exception that it did not expect."""


class Task(Protocol):
    """What is used of a task of doit."""

    name: str
    task_dep: list[str]
    pos_arg_val: list[str] | None


class Failure(Protocol):
    """What is used of a failure of doit."""

    message: str
    report: bool

    def get_name(self) -> str:
        """The name of its class."""
        ...

    def get_msg(self) -> str:
        """Its text."""
        ...


class Build(Protocol):
    """What a reporter knows of the project that is built."""

    announce: Callable[[Step], None]

    def check_given(self, command: str, names: Sequence[str]) -> None: ...  # noqa: D102

    @property
    def workspace(self) -> Workspace: ...  # noqa: D102

    @property
    def configs(self) -> Mapping[str, ModelConfig]: ...  # noqa: D102

    @property
    def steps(self) -> Mapping[str, Step]: ...  # noqa: D102

    @property
    def crew(self) -> Crew: ...  # noqa: D102

    @property
    def results(self) -> Mapping[str, tuple[str, float]]: ...  # noqa: D102

    @property
    def missed(self) -> Set[str]: ...  # noqa: D102

    @property
    def waiting(self) -> Mapping[str, WaitingError]: ...  # noqa: D102

    @property
    def status(self) -> int: ...  # noqa: D102

    @property
    def is_whole(self) -> bool: ...  # noqa: D102

    @property
    def session(self) -> Session: ...  # noqa: D102

    @property
    def guard(self) -> Guard: ...  # noqa: D102

    def manifests(self) -> dict[str, Manifest]:
        """What every step produced last, by step id."""
        ...

    def report_of(self, step: Step) -> str:
        """What a step has to say to a reader."""
        ...


class Reporter:
    """doit's reporter interface: a line a step, errors with their remedies, and at the end what was built."""

    desc = "a line a step, then a table"
    project: Build
    keep_going = False
    """Whether steps are started after one has failed."""

    def __init__(self, outstream: IO[str] | None, options: Mapping[str, object]) -> None:
        end_with_reader(False)
        sys.stdout = cast("TextIO", Lasting(outstream))  # for what actions print, too
        self._console = Console(sys.stdout)
        self.project.announce = self._started
        self._errors: list[PipelineError | None] = []
        self._failed: dict[str, list[str]] = {}
        self._needs: dict[str, str] = {}
        self._checked: set[str] = set()
        self._selected: list[str] = []
        self._waiting = False
        self._clock = run_record.Clock()
        self._names: set[str] = set()
        self._refusal: PipelineError | None = None

    def initialize(self, tasks: Mapping[str, Task], selected_tasks: Iterable[str]) -> None:
        """Called once, before anything runs."""
        project = self.project
        self._selected = list(selected_tasks)
        names = self._names = _closure(tasks, self._selected) & set(project.steps)
        if self._is_build():
            run_record.begin(project.workspace.build)
        project.workspace.store.tell = self._console.line
        try:
            for name in self._selected:
                project.check_given(name, tasks[name].pos_arg_val or ())
            project.session.open(self._selected)
            project.guard.expect(step for name, step in project.steps.items() if name in names)
        except PipelineError as error:
            self._refusal = error
            refuse(error)
        self._console.start(names)

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

    def add_failure(self, task: Task, fail: Failure) -> None:
        """Called when a task failed, or could not start because one it needs failed."""
        if fail.get_name() == "UnmetDependency":
            if ":" in task.name or task.name == "publish":  # a group is no more than its members
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
        if text not in self._failed:  # what is wrong with a model may be met by several steps at once
            self._errors.append(error)
            self._console.failed(task.name, text)
        self._failed.setdefault(text, []).append(task.name)

    def _waits(self, task: str, error: WaitingError) -> None:
        """A step may not run here: no failure, and nothing else stops for it."""
        self._waiting = True
        if error.step != task:  # what packages makes steps itself
            self._needs[task] = error.step
        self._console.waiting(error.step, error.hosts)

    def _cause(self, names: Sequence[str]) -> str:
        """Of tasks that a task could not do without, one that failed, else one that waits."""
        waiting = self.project.waiting

        def waits(name: str) -> bool:
            while name in self._needs:
                name = self._needs[name]
            return name in waiting

        return next((name for name in names if not waits(name)), names[0])

    def cleanup_error(self, exception: Failure) -> None:
        """Called when a teardown failed."""
        self._console.line(exception.get_msg())

    def runtime_error(self, msg: str) -> None:
        """Called when doit itself failed."""
        if msg not in self._failed:
            self._errors.append(None)
        self._failed.setdefault(msg, []).append("doit")
        self._console.line(msg)

    def teardown_task(self, task: Task) -> None:
        """Called before a teardown."""

    def complete_run(self) -> None:
        """Print the end of the report; leave with the exit code of the first error."""
        project = self.project
        project.session.close()
        if stopping.asked() or isinstance(sys.exc_info()[1], KeyboardInterrupt):
            project.crew.stop()
            project.workspace.memo.save()
            self._console.stop()
            with contextlib.suppress(Exception):  # whatever it is, we are to stop
                self._record(self._ran(), interrupt.INTERRUPTED)
            interrupt.leave(self._console.line)
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
        for text in (*summary.tables(ran), summary.last_lines(ran)) if self._is_build() else ():
            if text:
                self._console.line(f"\n{text}")
        exit_code = self._exit_code()
        self._record(ran, exit_code)
        if exit_code:
            raise SystemExit(exit_code)

    def _exit_code(self) -> int:
        """That of the first error; waiting is none."""
        if self._errors:
            return self._errors[0].exit_code if self._errors[0] else 1
        return self.project.status or (WaitingError.exit_code if self._waiting else 0)

    def _is_build(self) -> bool:
        """Whether the command is about steps, or would be if there were any."""
        return bool(self._names) or any(run_record.builds(name) for name in self._selected)

    def _record(self, ran: summary.Ran, exit_code: int) -> None:
        """Keep what was done for those who can't watch."""
        if not self._is_build():
            return
        found = zip(self._failed.items(), self._errors, strict=True)
        failures = [run_record.Failure(names, text, error) for (text, names), error in found]
        if self._refusal:
            failures.append(run_record.Failure([], str(self._refusal), self._refusal))
        bug = sys.exc_info()[1]
        if bug is not None and not isinstance(bug, SystemExit | KeyboardInterrupt):
            failures.append(run_record.Failure([], f"{type(bug).__name__}: {bug}"))
            exit_code = exit_code or _BUG
        project = self.project
        whole = project.is_whole and "build" in self._selected
        content = run_record.record(
            ran,
            failures,
            tried=self._names,
            whole=whole,
            clock=self._clock,
            exit_code=exit_code,
            root=project.workspace.root,
        )
        run_record.write(project.workspace.build, content, self._console.line)

    def _ran(self) -> summary.Ran:
        project = self.project
        return summary.Ran(
            project.steps,
            [name for name, config in project.configs.items() if config.on_request],
            self._selected,
            self._checked,
            frozenset(project.missed),  # copies: when interrupted, threads still change them
            dict(project.waiting),
            dict(project.results),
            project.manifests(),
            [summary.Failed(names, _in_a_line(text)) for text, names in self._failed.items()],
            self._needs,
            self.keep_going,
        )


def refuse(error: PipelineError) -> NoReturn:
    """End the process before anything ran."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(error.exit_code) from None


def _in_a_line(text: str) -> str:
    """What a message begins with, and why."""
    what, *rest = text.splitlines()
    why = next((line.split(": ", 1)[1].split("; ")[0] for line in rest if line.startswith("  why: ")), "")
    line = f"{what}: {why}" if why else what
    return line if len(line) <= _REASON_CHARS else f"{line[: _REASON_CHARS - 1]}…"


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
