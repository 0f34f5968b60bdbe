"""What this project puts between itself and doit: tasks, failures that carry their error, and a runner of our own."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from getopt import GetoptError
from itertools import takewhile
from typing import Any, NoReturn, TextIO

from doit.action import PythonAction
from doit.cmd_base import DodoTaskLoader
from doit.cmd_help import Help
from doit.cmdparse import CmdOption, CmdParseError
from doit.doit_cmd import DoitMain
from doit.exceptions import BaseFail, TaskFailed, UnmetDependency
from doit.runner import MThreadRunner
from doit.task import Task

from pipeline.build import interrupt
from pipeline.build.schedule import WithdrawnError
from pipeline.command_line import WHERE, CommandLine
from pipeline.errors import ConfigError, PipelineError, UsageError, WaitingError
from pipeline.plain_text import did_you_mean
from pipeline.report.reporter import TRACEBACK_VARIABLE, Reporter, refuse
from pipeline.shortage import shortage

_THREADS = 32  # each waits for the turn of one step; among more that wait, the order would hardly matter
_AWAKE_S = 0.2


class Removal(PythonAction):  # type: ignore[misc]  # doit is untyped
    """The action of `doit clean build:<model>`."""

    def __str__(self) -> str:
        """What doit says that it executes."""
        return f"remove artifacts/{self.args[0]}"

    def execute(self, out: TextIO | None = None, err: TextIO | None = None) -> Any:
        """What doit does, with an error told: it would keep it for the end of an action that ends the process."""
        return super().execute(out, err or sys.stderr)


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
        super().__init__(manager, reporter, continue_, always, stream, max(_THREADS, num_process))
        reporter.project.crew.set_up(num_process, keep_going=continue_)

    def run_all(self, task_dispatcher: object) -> Any:
        """Run the tasks, or end in one message where the system gives no more memory, addresses or threads.

        Threads that are left may wake as the interpreter ends, and ending a thread takes memory, too (pthread_exit
        loads a library, and else aborts): so the process does not wait for them.
        """
        try:
            return super().run_all(task_dispatcher)
        except Exception as error:
            found = shortage(error)
            if found is None:
                raise
            if os.environ.get(TRACEBACK_VARIABLE):
                traceback.print_exception(error)
            say_error = partial(print, file=sys.stderr)
            interrupt.leave(say_error, message=f"error: {found}", exit_code=found.exit_code)

    def _handle_task_error(self, node: Any, base_fail: BaseFail) -> None:
        """Go on with what doesn't stand on a step that waits for another host; a failure stops as it did.

        What is not tried as it stands on something stops nothing either: that did, if it was to.
        """
        stopping = self._stop_running
        super()._handle_task_error(node, base_fail)
        if isinstance(getattr(base_fail, "error", None), WaitingError) or isinstance(base_fail, UnmetDependency):
            self._stop_running = stopping


class ProjectTask(Task):  # type: ignore[misc]  # doit is untyped
    """A task of doit's that refuses options as everything else here is refused."""

    def init_options(self, args: Sequence[str] | None = None) -> Any:
        """What follows the options in `args`, which are read once."""
        known = [f"--{option['long']}" for option in self.params]
        for each in args or ():
            word = each.partition("=")[0]
            # Python's getopt takes the beginning of an option for it, so that a misspelt --day is a --days.
            if len(word) > len("--") and word not in known and any(option.startswith(word) for option in known):
                refuse(self._not_understood(args or (), word, f"option {word} not recognized"))
        try:
            return super().init_options(args)
        except CmdParseError as error:
            wrong = error.__context__
            word = wrong.opt if isinstance(wrong, GetoptError) else ""
            if word in ("help", "h"):
                self._help()
            refuse(self._not_understood(args or (), f"--{word}" if len(word) > 1 else f"-{word}", str(wrong)))

    def _help(self) -> NoReturn:
        """What `doit help` prints of a task; nothing is done."""
        print(f"{self.name}  {self.doc}")
        for option in self.params:
            print("\n".join(CmdOption(option).help_doc()))
        raise SystemExit(0)

    def _not_understood(self, args: Sequence[str], asked: str, why: str) -> ConfigError:
        known = [f"--{option['long']}" for option in self.params]
        near = "" if asked in known else did_you_mean(asked, known)
        return ConfigError(
            f"{self.name} does not understand its options{near}",
            where=f"command line: {' '.join((self.name, *args))}",
            why=why,
            remedy=f"it takes {', '.join(known) or 'none'}; options of a build come before: doit -n 2 build",
        )


def check_options(line: CommandLine) -> None:
    """Refuse the beginning of an option of doit's, which Python's getopt takes for it: `run --al` does all anew.

    Raises UsageError.
    """
    own = line.options[: len(line.options) - sum(word.startswith("-") for word in line.rest)]
    own = [*takewhile(lambda word: word != "--", own)]  # what follows is a name, whatever it begins with
    if not any(option.startswith("--") for option in own):
        return
    commands = {each.get_name(): each for each in DoitMain.DOIT_CMDS if each is not Help}
    if line.command not in commands:
        return
    options = commands[line.command](task_loader=DodoTaskLoader()).get_options()
    known = [f"--{name}" for option in options for name in (option.long, option.inverse) if name]
    for each in own:
        word = each.partition("=")[0]
        if len(word) > len("--") and word.startswith("--") and word not in known:
            meant = [option for option in known if option.startswith(word)]
            if meant:
                raise UsageError(
                    f"doit {line.command} has no option {word}; did you mean '{meant[0]}'?",
                    where=WHERE,
                    remedy=f"write options in full; 'doit help {line.command}' lists them",
                )


def say(line: str) -> None:
    """Print a line; doit takes no built-in function for an action."""
    print(line)


def reported(run: Callable[[], None]) -> TaskFailed | None:
    """Do something, and hand its error to doit."""
    try:
        run()
    except PipelineError as error:
        return _failure(error)
    except WithdrawnError:
        return TaskFailed("not started, as another step failed", report=False)
    except Exception as error:
        if found := shortage(error):
            return _failure(found)
        raise
    return None


def _failure(error: PipelineError) -> StepFailed:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    return StepFailed(error)


def group(name: str, doc: str, members: list[str], actions: Sequence[object] = (), *, more: str = "") -> Task:
    """A task that stands for others. `more` is said below the line that is its `doc`, of which doit keeps one."""
    made = ProjectTask(name, [*actions] or None, doc=doc, has_subtask=True, task_dep=members, verbosity=2)
    made.doc += more
    return made


def task(name: str, group: str, **attributes: object) -> Task:
    """One of the tasks that a group stands for, "" for none; `attributes` are doit's own."""
    actions = attributes.pop("actions")
    made = ProjectTask(name, actions, **{"verbosity": 2, **attributes})
    made.subtask_of = group or None
    return made
