"""Has steps made by the workers of a Dask cluster. Dask decides where and when, the shared store has all data.

What a worker has made is found by its key, so a worker, a scheduler or an answer that is lost costs time alone.

Says why no worker of a cluster makes a step: none of those that are there may, or all of them were refused.

Hands steps to Dask's scheduler, those of one kind in one message.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from pipeline.build.cluster import REFUSALS_REMEDY, on_worker
from pipeline.build.cluster.certificates import check_certificates
from pipeline.build.cluster.job import Answer, StepJob
from pipeline.build.cluster.together import Together
from pipeline.errors import ConfigError, PipelineError, StoreError, WaitingError, WorkerError
from pipeline.frozen import dataclass
from pipeline.plan import hosts
from pipeline.plan.keys import tool_versions
from pipeline.plan.resolve import Resolved
from pipeline.plan.steps import ON_DEMAND
from pipeline.plan.workspace import Workspace
from pipeline.processes import stopping

_ANSWERS_S = 15.0  # within which a scheduler answers that is there
_AWAKE_S = 0.5  # between two looks at whether to stop: with hundreds of steps under way, each look counts
_KNOWN_S = 1.0  # for which it is believed who is there: among many workers, the answer is long
_LOOKS_S = 5.0  # between two looks at who is there for a step that nobody takes
_PATIENCE_S = 600.0  # for a scheduler that is gone, or for a worker that may run a step: clusters grow and restart
_RETURN_S = 60.0  # the same where a worker was refused: a scheduler that restarted does not know the others yet
_DEATHS = 5  # of workers at one step, one after the other
_PAUSE_S = 2.0  # before a step is asked for again of which a worker could not read or write the data; then twice that


class Dispatcher:
    """The cluster behind one scheduler, for one build. Safe to use from several threads."""

    def __init__(self, url: str, where: str, workspace: Workspace) -> None:
        """`where` says where the URL was given. Raises ConfigError where no shared store is configured."""
        if workspace.shared is None:
            raise ConfigError(
                "a cluster needs a shared store",
                where=where,
                why="outputs travel between machines by it, never by the scheduler",
                remedy="write store: {shared: URL} into configs/project.yaml, here and for the workers",
            )
        self._url, self._where, self._workspace, self._shared = url, where, workspace, workspace.shared
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._client: Client = None
        self._submit = Together(submitted)
        self._refused: dict[str, str] = {}
        self._known: tuple[float, Client, dict[str, set[str]]] = (0.0, None, {})
        self._met_s = 0.0

    def takes(self, resolved: Resolved) -> bool:
        """Whether the cluster may make a step. Steps that read files of this checkout, or secrets, are made here."""
        step = resolved.step
        return not resolved.files and step.stage != "fetch" and step.stage not in ON_DEMAND

    def make(self, resolved: Resolved, started: Callable[[], None]) -> float:
        """Have a worker make a step and put it into the shared store. Returns for how many seconds it ran.

        Raises:
            PipelineError: what it failed with there.
            WaitingError: no worker may run it.
            WorkerError: the cluster is out of reach, or one worker after the other died of it.
        """
        self._shared.settle(manifest.key for manifest in resolved.inputs.values())
        step, workspace = resolved.step, self._workspace
        job = StepJob.of(resolved, workspace.code.stage(step.stage), tool_versions(step.stage))
        started()
        deaths, since = 0, time.monotonic()
        answer = None
        cut_off: set[str] = set()
        while True:
            answer = self._asked(job, resolved, cut_off, refused=answer is not None and bool(answer.refusal))
            if answer is not None and answer.log:
                path = workspace.log(step)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(answer.log, "utf-8")
            if answer is None or answer.is_cut_off:
                deaths += 1
                if deaths >= _DEATHS or time.monotonic() - since > _PATIENCE_S * _DEATHS:
                    if answer is not None and answer.failure:
                        raise answer.failure.error()
                    raise WorkerError(
                        f"{deaths} workers of the cluster died of {step.id}, or were lost at it",
                        where=self._url,
                        remedy="look at the logs of the workers; run the same command again to go on",
                    )
                if answer is not None:
                    cut_off.add(answer.worker)
                    self._pause(_PAUSE_S * deaths)
                continue
            if answer.refusal:
                self._refuse(answer)
                continue
            if answer.failure:
                raise answer.failure.error()
            return answer.seconds

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            stopping.check()
            time.sleep(_AWAKE_S)

    def lost(self, resolved: Resolved) -> StoreError:
        """The error for an output that a worker made and that the shared store does not give."""
        return StoreError(
            f"a worker has made {resolved.step.id}, and the shared store of this machine does not have it",
            where=self._url,
            why=self._shared.unread or "the worker writes to another place, or the output was damaged since",
            remedy="see that store.shared in configs/project.yaml is the same place here and for the workers",
        )

    def close(self) -> None:
        """Let go of the scheduler; steps that workers are at go on, and the shared store gets what they make."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close(timeout=1)

    def _asked(
        self, job: StepJob, resolved: Resolved, cut_off: Collection[str] = (), *, refused: bool = False
    ) -> Answer | None:
        """A worker's answer; None if it died, or the scheduler did.

        Workers that are `cut_off` from the data are asked if no other may run the step. `refused`: one was, just now.
        """
        client = self._connected()
        from distributed import CancelledError, KilledWorker

        future = None
        try:
            if refused and not self._able(resolved, client):
                raise self._nobody(resolved)
            # Whoever asks twice, as after a lost scheduler, asks a second time: workers know what was made by its key.
            workers = self._chosen(resolved, client, cut_off)
            future = self._submit(Wanted(client, job, self._resources(resolved, client), workers))
            self._wait(future, client, resolved, workers)
            return Answer.from_json(future.result(timeout=_ANSWERS_S))
        except (CancelledError, KilledWorker, TimeoutError, OSError):
            self._drop(client)
            return None
        except PipelineError:
            raise
        except Exception as error:  # of Dask, or of a worker that was not started by us
            if client.status != "running":  # one without a scheduler raises what it comes upon
                self._drop(client)
                return None
            raise WorkerError(
                f"the cluster could not run {resolved.step.id}",
                where=self._url,
                why=f"{type(error).__name__}: {error}",
                remedy="see that every worker was started by 'python -m pipeline.build.cluster' (docs/cluster.md)",
            ) from error
        finally:
            if future is not None and not future.done():
                with contextlib.suppress(Exception):  # the scheduler is gone, and nobody is at it any more
                    future.cancel()

    def _wait(self, future: Future, client: Client, resolved: Resolved, workers: Sequence[str] | None) -> None:
        """Wait until a future is done, asked of some workers or, if they are None, of all.

        Raises:
            OSError: its scheduler is gone, or only a worker that it was not asked of may run it by now.
            WaitingError: no worker may run it.
        """
        since = looked = time.monotonic()
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not (done.wait(_AWAKE_S) or future.done()):
            stopping.check()
            if client.status != "running":
                raise OSError("the scheduler is gone")
            if time.monotonic() - looked < _LOOKS_S:
                continue
            looked = time.monotonic()
            if self._able(resolved, client, workers):
                since = looked
            elif workers is not None and self._able(resolved, client):
                raise OSError("the workers that the step was asked of are gone, and another has come")
            elif looked - since > (_RETURN_S if self._refused else _PATIENCE_S):
                raise self._nobody(resolved)

    def _connected(self) -> Client:
        """The client, connected; waits for a scheduler that is starting again."""
        try:
            import distributed
        except ImportError:
            raise ConfigError(
                "an engine is configured, and the package that runs it is not installed",
                where=self._where,
                remedy="run 'uv sync --extra cluster', on every machine of the cluster",
            ) from None
        # Of a scheduler that is gone Dask prints tracebacks; what there is to say of it we say ourselves.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        since, told = time.monotonic(), False
        with self._lock:
            if self._client is None:
                check_certificates(self._url, "client", self._where)
            while self._client is None:
                stopping.check()
                try:
                    self._client = distributed.Client(self._url, timeout=_ANSWERS_S, set_as_default=False)
                except (OSError, TimeoutError, ValueError) as error:
                    if isinstance(error, ValueError) or time.monotonic() - since > _PATIENCE_S or not self._ever():
                        raise WorkerError(
                            f"the scheduler of the cluster can't be reached: {self._url}",
                            where=self._where,
                            why=str(error) or type(error).__name__,
                            remedy="start it with 'dask scheduler', with certificates if the address begins with tls://"
                            " (docs/cluster.md); or build without an engine",
                        ) from None
                    if not told:
                        told = True
                        self._workspace.store.tell(f"waiting for the scheduler of the cluster ({self._url})")
                self._met_s = time.monotonic()  # those whom it is yet to know have from now on to come
            self._was_there = True
            return self._client

    _was_there = False

    def _ever(self) -> bool:
        """Whether the scheduler was there in this build: who types a wrong address is not kept waiting."""
        return self._was_there

    def _drop(self, client: Any) -> None:
        """Connect anew next time, unless the scheduler is still there."""
        with self._lock:
            if self._client is not client or client.status == "running":
                return
            self._client = None
        self._workspace.store.tell(f"the scheduler of the cluster is gone ({self._url}); its steps are asked for again")
        client.close(timeout=1)

    def _resources(self, resolved: Resolved, client: Client) -> Mapping[str, float]:
        """What a worker must announce: a name for each rule of hosts. Those of one that is there come first."""
        rules = hosts.rules(resolved.step, resolved.params, resolved.inputs, self._workspace.project)
        known: set[str] = set()
        if any(len(names) > 1 for names in rules):  # most steps leave no choice, and nobody is asked who is there
            known.update(*self._names(client).values())
        return {on_worker.resource(next((name for name in names if name in known), names[0])): 0.0 for names in rules}

    def _able(self, resolved: Resolved, client: Client, among: Sequence[str] | None = None) -> bool:
        """Whether a worker is there, among some or all, that may run a step, and was not refused."""
        rules = hosts.rules(resolved.step, resolved.params, resolved.inputs, self._workspace.project)
        there = {name: names for name, names in self._names(client).items() if name not in self._refused}
        able = (name for name, names in there.items() if all(names & {*rule} for rule in rules))
        return any(among is None or name in among for name in able)

    def _names(self, client: Client) -> dict[str, set[str]]:
        """The host names that each worker announces, by its name, as they were a second ago at most."""
        with self._asking:  # one thread asks, and the others wait for what it gets
            asked_s, of, names = self._known
            if of is not client or time.monotonic() - asked_s > _KNOWN_S:
                workers = client.scheduler_info(n_workers=-1)["workers"].values()
                names = {str(each["name"]): on_worker.host_names(each["resources"]) for each in workers}
                self._known = time.monotonic(), client, names
            if any(name not in self._refused for name in names):
                self._met_s = time.monotonic()
            return names

    def _chosen(self, resolved: Resolved, client: Client, cut_off: Collection[str]) -> list[str] | None:
        """The workers to ask: of :meth:`_others`, those that are not `cut_off`, if one of them may run the step."""
        workers = self._others(resolved, client)
        rest = [name for name in workers or self._names(client) if name not in cut_off] if cut_off else []
        return rest if self._able(resolved, client, rest) else workers

    def _others(self, resolved: Resolved, client: Client) -> list[str] | None:
        """The workers that were not refused; None if none was: newcomers may then take a step as well.

        Where all were refused, it waits for another one: Dask takes no names for any worker, and each would refuse.

        Raises:
            OSError: the scheduler is gone.
            WaitingError: no other was there for a minute. The steps of a build wait for the same one.
        """
        while self._refused:
            others = [name for name in self._names(client) if name not in self._refused]
            if others:
                return others
            stopping.check()
            if client.status != "running":
                raise OSError("the scheduler is gone")
            if time.monotonic() - self._met_s > _RETURN_S:
                raise self._nobody(resolved)
            time.sleep(_AWAKE_S)
        return None

    def _refuse(self, answer: Answer) -> None:
        with self._lock:
            new = answer.worker not in self._refused
            self._refused[answer.worker] = answer.refusal
        if new:
            told = f"worker {answer.worker} is not used: {answer.refusal}; {REFUSALS_REMEDY}"
            self._workspace.store.tell(told)

    def _nobody(self, resolved: Resolved) -> WaitingError:
        rules = hosts.rules(resolved.step, resolved.params, resolved.inputs, self._workspace.project)
        return nobody(resolved.step.id, self._url, rules, self._known[2], self._refused)


_NAMED = 4
_START = "start a worker on such a host (docs/cluster.md)"


def nobody(
    step: str, url: str, rules: Sequence[Sequence[str]], there: Collection[str], refused: Mapping[str, str]
) -> WaitingError:
    """The error for a step that no worker makes. Of each of `rules` a host needs one name.

    `there` are the workers that are known to the scheduler, `refused` those that are not as the build is, and why.
    """
    needed = [" or ".join(rule) for rule in rules]
    why = [f"it needs {' and '.join(needed)}"] if needed else []
    why += [f"{name} was refused: {told}" for name, told in [*refused.items()][:_NAMED]]
    if len(refused) > _NAMED:
        why.append(f"so were {len(refused) - _NAMED} more")
    all_refused = bool(refused) and {*there} <= {*refused}
    what, remedy, hosts = f"no worker of the cluster may run {step}", _START, tuple(rules[0]) if rules else ()
    if all_refused:
        whose = "the only one that is there was" if len(refused) == 1 else f"all {len(refused)} that are there were"
        what = f"{what}: {whose} refused"
        remedy, hosts = f"{REFUSALS_REMEDY}; then run the same command again", ()
    elif refused:
        remedy = f"{REFUSALS_REMEDY}; or {_START}"
    elif not rules:
        why, remedy = ["no worker is there"], "start one (docs/cluster.md)"
    error = WaitingError(what, where=url, why="; ".join(why), remedy=remedy, hosts=hosts, step=step)
    error.of_cluster = True
    return error


Client: TypeAlias = Any
Future: TypeAlias = Any
"""Both of distributed, an optional package without types."""


@dataclass(frozen=True)
class Wanted:
    """A step to be made by a worker that announces some resources and, unless it is None, has one of these names."""

    client: Client
    job: StepJob
    resources: Mapping[str, float]
    workers: Sequence[str] | None


class SubmissionError(Exception):
    """Dask did not take a step. Each step gets an error of its own, as each is waited for by another thread."""


def submitted(wanted: Sequence[Wanted]) -> list[Future | SubmissionError]:
    """The futures of several steps; the scheduler gets a message for all whose demands are the same.

    Those of a message that is not taken have errors, and the others their futures: one may be for a client that was
    closed, while the steps of the next client go on.
    """
    alike: dict[object, list[Wanted]] = {}
    for each in wanted:
        workers = None if each.workers is None else tuple(each.workers)
        alike.setdefault((each.client, tuple(each.resources), workers), []).append(each)
    futures: dict[int, Future | SubmissionError] = {}
    for several in alike.values():
        try:
            made = several[0].client.map(
                eval,
                [on_worker.CALL] * len(several),
                [{"job": each.job.to_json()} for each in several],
                key=[f"{each.job.stage}-{each.job.name.replace('/', '-')}-{uuid.uuid4().hex[:8]}" for each in several],
                pure=False,
                resources=several[0].resources,
                workers=several[0].workers,
            )
        except Exception as error:  # of Dask
            made = [SubmissionError(f"{type(error).__name__}: {error}") for _ in several]
        futures.update(zip(map(id, several), made, strict=True))
    return [futures[id(each)] for each in wanted]
