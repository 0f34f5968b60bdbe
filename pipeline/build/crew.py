"""Runs steps in worker processes: when a step's turn comes, in a child that starts warm where there can be one."""

from __future__ import annotations

import contextlib
import fnmatch
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import progress
from pipeline.build.schedule import Schedule, remaining_s
from pipeline.build.warm import AVAILABLE, NotForkedError, Template, TemplateLostError
from pipeline.build.work import Work
from pipeline.build.worker import SECRETS, SHARED_STORE, SIGNING_KEY, dump_request, load_answer, load_usage
from pipeline.errors import ConfigError
from pipeline.model import StageRequest, StageResult
from pipeline.plan.steps import ON_DEMAND, Step
from pipeline.plan.workspace import Workspace
from pipeline.processes import process
from pipeline.processes.memory import STEP_VARIABLE, budget_bytes, given_bytes, oom_kills, total_bytes
from pipeline.store.costs import Cost, Costs

if TYPE_CHECKING:
    from pipeline.build.cluster.dispatcher import Dispatcher
    from pipeline.processes.watch import Watch, Watched

WORKERS_VARIABLE = "PIPELINE_WORKERS"
_ALLOCATOR = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")  # they would take the compiler the heap of its own
_KILLED = -9  # by SIGKILL, as the system does when memory runs out
_PATIENCE, _LONGEST_PATIENCE_S = 0.01, 1.0  # of what is left to do behind a step, and at most
_MEMORY_SHARE = 0.9  # of the machine's, that one step may use if nothing else is said


class Crew:
    """The worker processes of one build, and the order in which they get work. Safe to use from several threads."""

    def __init__(self, workspace: Workspace, steps: Iterable[Step], environ: Mapping[str, str] = os.environ) -> None:
        self._workspace = workspace
        self._steps = {step.id: step for step in steps}
        self._environ = environ
        self._costs = Costs(workspace.store.root / "costs.json")
        given_bytes(environ)  # a wrong value is refused at once, how much is free is looked up when it matters
        self._schedule = Schedule(cores(), partial(budget_bytes, environ))
        self._lock = threading.Lock()
        self._remaining: Mapping[str, float] | None = None
        self._behind: dict[str, list[str]] = {}
        self._asked: set[str] = set()
        self._template: Template | None = None
        self._keep_going = True  # until told otherwise: doit's serial runner stops by itself
        self._warm = AVAILABLE and _wants_warm(environ)
        self._watch: Watch | None = None
        self.cluster: Dispatcher | None = None

    def set_up(self, slots: int, *, keep_going: bool) -> None:
        """How many steps may run at once, and whether steps are started after one has failed."""
        self._schedule.limit(min(slots, cores()) if self.cluster else slots)
        self._keep_going = keep_going

    def work(
        self, step: Work, request: StageRequest, scratch: Path, started: Callable[[], None]
    ) -> tuple[StageResult, float]:
        """Run a step when its turn comes, and call `started` then. Returns its result and for how many seconds it ran.

        `scratch` is for what is exchanged with its worker.

        Raises:
            PipelineError: what the worker answered.
            WorkerError: it died without an answer, or was ended as it took more than its model's limits allow.
            WithdrawnError: another step failed before this one could start.
        """
        inputs = {entry.sha256: entry.bytes for given in request.inputs.values() for entry in given.files.values()}
        input_bytes = sum(inputs.values())
        peak = self._costs.peak_bytes(step.id, input_bytes)
        wished, remaining = self._costs.wished_bytes(step.id, peak), self._remaining_s(step.id)
        patience = self._patience_s(step.id)
        with self._schedule.admitted(
            peak_bytes=peak, remaining_s=remaining, wished_bytes=wished, patience_s=patience
        ) as granted:
            started()
            since = time.monotonic()
            answer = scratch / "answer.json"
            try:
                watched, killed = self._watched(step), oom_kills()
                status = self._run(step, request, scratch / "request.json", answer, watched, granted)
                oom_killed = status == _KILLED and oom_kills() != killed
                if (status == _KILLED or watched.excess) and not process.ending():
                    self._learn_ended(step, watched, peak, input_bytes)
                result = self._answered(step, answer, status, watched, oom_killed=oom_killed)
            except BaseException:
                self.failed()  # before its place is given to the next
                raise
            finally:
                with contextlib.suppress(OSError):
                    progress.file_of(self._workspace.log(step)).unlink(missing_ok=True)
            seconds = time.monotonic() - since
            cpu_seconds, peak = load_usage(answer)
            self._costs.learn(step.id, Cost(round(seconds, 3), cpu_seconds, peak, input_bytes))
        return result, seconds

    def left_s(self, running_s: Mapping[str, float], unfinished: Collection[str]) -> float | None:
        """An estimate of the seconds until these steps are done; None if most of that time would be a guess.

        `running_s` has the seconds that the running ones have taken so far. The estimate is the longest path, or all
        work divided by the number of steps that run at once, whichever is more.
        """
        steps = {name: each for name, each in self._steps.items() if name in unfinished}
        seconds = {name: self._costs.seconds(name, _share(each)) for name, each in steps.items()}
        if sum(seconds[name] for name in steps if self._costs.knows(name)) < sum(seconds.values()) / 2:
            return None
        left = {name: max(0.0, all_s - running_s.get(name, 0.0)) for name, all_s in seconds.items()}
        paths = remaining_s(left, {name: each.after for name, each in steps.items()})
        return max([sum(left.values()) / self._schedule.slots, *paths.values()])

    def failed(self) -> None:
        """Note that a step failed: start no more steps, unless told to keep going. Steps that run go on."""
        if not self._keep_going:
            self._schedule.close()

    def stop(self) -> None:
        """Start no more steps, and end those that run at once."""
        self._schedule.close()
        process.end_all()
        self.close()

    def close(self) -> None:
        """End what still runs, and keep what was learned."""
        with self._lock:
            template, self._template, self._warm = self._template, None, False
        if template is not None:
            template.close()
        if self.cluster is not None:
            self.cluster.close()
        self._costs.save()

    def _run(self, step: Work, request: StageRequest, path: Path, answer: Path, watched: Watched, granted: int) -> int:
        """Run a worker on the request, which may use the bytes that are `granted`; its exit status."""
        assert self._watch is not None
        during = partial(self._watch.over, watched=watched, end=process.end)
        log = self._workspace.log(step)
        memory = {STEP_VARIABLE: str(min(granted, watched.allowance.bytes))}
        environ = {**self._environment(step, log), **memory}
        path.write_text(dump_request(request, step.stage, answer), "utf-8")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")  # a disk that is full or read-only is met here, and not by a child that can't tell
        template = self._started_template()
        if template is not None:
            try:
                return template.run(path, step.stage, log=log, cwd=path.parent, env=environ, during=during)
            except NotForkedError:
                pass  # a fresh process may find room where a copy of the template did not
            except TemplateLostError:
                self._give_up(template, request.out)
        command = [sys.executable, "-P", "-m", "pipeline.build.worker", str(path)]
        return process.run(command, log=log, cwd=path.parent, env=environ, during=during)

    def _watched(self, step: Work) -> Watched:
        from pipeline.processes.watch import Allowance, Watch, Watched  # psutil takes 60 ms

        limits = step.limits
        with self._lock:
            if self._watch is None:
                self._watch = Watch()
        allowed = limits.memory_mb << 20 if limits.memory_mb else int(total_bytes() * _MEMORY_SHARE)
        return Watched(Allowance(limits.minutes * 60, allowed))

    def _learn_ended(self, step: Work, watched: Watched, peak: int, input_bytes: int) -> None:
        """Remember that a step that was killed needs more memory than it was taken to, unless it was for its time."""
        excess = watched.excess
        if excess is None:
            self._costs.learn_killed(step.id, peak, input_bytes)
        elif excess.for_memory:
            self._costs.learn_killed(step.id, max(peak, excess.bytes), input_bytes)

    def _started_template(self) -> Template | None:
        with self._lock:
            if self._template is None and self._warm:
                log = self._workspace.build / "logs" / "template.log"
                self._template = Template(log=log, cwd=self._workspace.root, env=self._environment())
            return self._template

    def _give_up(self, template: Template, out: Path) -> None:
        """Do without templates, as one died, or could not be; what its child wrote is removed."""
        with self._lock:
            self._warm = False
            if self._template is template:
                self._template = None
        template.close()
        shutil.rmtree(out, ignore_errors=True)  # a child that failed has removed it
        out.mkdir()

    def _answered(self, step: Work, answer: Path, status: int, watched: Watched, *, oom_killed: bool) -> StageResult:
        try:
            return load_answer(answer)
        except (OSError, ValueError, KeyError) as error:
            from pipeline.build.worker_errors import died, exceeded

            log = self._workspace.log(step)
            if watched.excess is not None:
                raise exceeded(step, watched.excess, log) from error
            raise died(step, status, log, oom_killed=oom_killed) from error

    def _remaining_s(self, name: str) -> float:
        with self._lock:
            if self._remaining is None:
                built = {name: each for name, each in self._steps.items() if each.stage not in ON_DEMAND}
                seconds = {name: self._costs.seconds(name, _share(each)) for name, each in built.items()}
                self._remaining = remaining_s(seconds, {name: each.after for name, each in built.items()})
                for name, each in built.items():
                    for given in each.after:
                        self._behind.setdefault(given, []).append(name)
            return self._remaining.get(name, 0.0)

    def _patience_s(self, name: str) -> float:
        """For how many seconds a step lets others go first that became ready with it and have a longer path to go.

        The end of one step makes several ready at once, and these ask for their turns in any order. The wait is short,
        as some of them are restored from the store and never ask.
        """
        remaining = self._remaining_s(name)
        with self._lock:
            self._asked.add(name)
            known = self._steps.get(name)
            if known is None or self._remaining is None:
                return 0.0
            left = self._remaining
            ready = (each for given in known.after for each in self._behind.get(given, ()))
            ahead = any(left[each] > remaining for each in ready if each not in self._asked)
        return min(_LONGEST_PATIENCE_S, remaining * _PATIENCE) if ahead else 0.0

    def _environment(self, step: Work | None = None, log: Path | None = None) -> Mapping[str, str]:
        from pipeline.processes import addresses  # loads ctypes: a build with nothing to do need not pay for it

        environ = dict(self._environ)
        paths = (str(self._workspace.root), environ.get("PYTHONPATH", ""))
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environ["PYTHONUNBUFFERED"] = "1"  # the log is read while the step runs
        environ["PYTHONUTF8"] = "1"
        environ |= addresses.ENVIRONMENT
        for pattern in (*_ALLOCATOR, SIGNING_KEY, *SHARED_STORE):
            for name in fnmatch.filter(environ, pattern):
                del environ[name]
        if log is not None:
            environ["PIPELINE_STEP_LOG"] = str(log)
            environ[progress.VARIABLE] = str(progress.file_of(log))
        if step is None or step.stage != "fetch":
            for name in SECRETS:
                environ.pop(name, None)
        return environ


def _wants_warm(environ: Mapping[str, str]) -> bool:
    """Whether workers are to start warm; raises ConfigError for a value of PIPELINE_WORKERS that is none."""
    value = environ.get(WORKERS_VARIABLE, "warm")
    if value not in ("warm", "fresh"):
        raise ConfigError(
            f"{WORKERS_VARIABLE}={value} is no way to start workers",
            where="environment",
            remedy=f"{WORKERS_VARIABLE}=fresh starts a new interpreter for each step, warm is the default; or unset it",
        )
    return value == "warm"


def _share(step: Step) -> float:
    """How large a step's bucket is against the largest of the model."""
    sizes = [math.prod(bucket.axes.values()) for bucket in step.config.buckets]
    return math.prod(step.bucket.axes.values()) / max(sizes) if step.bucket else 1.0


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
