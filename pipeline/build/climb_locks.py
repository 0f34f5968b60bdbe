"""Lets one thread of one process at a time decide on the precision of a component.

The last outputs of a component's steps are those of the precision that was tried last. So a build that wants one of
these steps waits while another process climbs. Otherwise the step would use a precision that is only being tried, and
the climb would judge an output that it did not make.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline.build.bring import needed
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.store import locks
from pipeline.store.durable import disk_errors


class ClimbLocks:
    """The locks of one build's components, each by its quantize step. Safe to use from several threads."""

    def __init__(self, steps: Mapping[str, Step], workspace: Workspace) -> None:
        self._steps = steps
        self._workspace = workspace
        self._guard = threading.Lock()
        self._here: dict[str, threading.Lock] = {}

    @contextmanager
    def climbing(self, quantize: Step) -> Iterator[None]:
        """A context to climb in, for the component of a quantize step."""
        with self._guard:
            lock = self._here.setdefault(quantize.id, threading.Lock())
        with lock, self._alone(quantize):
            yield

    @contextmanager
    def beside(self, step: Step, quantize: Step | None) -> Iterator[None]:
        """A context to bring a step up to date in. Entering it waits while another process climbs for the component.

        For a quantize step the context also keeps other processes from starting a climb, which would start with it.
        """
        if quantize is None or quantize.climb is None or self._climbs_here(quantize):
            yield
        elif step.id == quantize.id:
            with self._alone(quantize):
                yield
        else:
            if self._file(quantize).exists() and quantize in needed(step, self._steps):
                with self._alone(quantize):
                    pass
            yield

    def climbed_here(self, quantize: Step | None) -> bool:
        """Whether this build began a climb for the component. Waits until that climb has ended."""
        lock = self._here.get(quantize.id) if quantize is not None else None
        if lock is None:
            return False
        with lock:
            return True

    def _climbs_here(self, quantize: Step) -> bool:
        lock = self._here.get(quantize.id)
        return lock is not None and lock.locked()

    @contextmanager
    def _alone(self, quantize: Step) -> Iterator[None]:
        """Wait until no other process decides on the precision, and keep others from it."""
        path = self._file(quantize)
        with disk_errors(self._workspace.build):
            path.parent.mkdir(parents=True, exist_ok=True)
        with locks.held(path, f"the precision of {quantize.name}", tell=self._workspace.store.tell):
            yield

    def _file(self, quantize: Step) -> Path:
        return self._workspace.build / "climbs" / f"{quantize.name.replace('/', '@')}.lock"
