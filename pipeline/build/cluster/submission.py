"""Hands steps to Dask's scheduler, those of one kind in one message."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pipeline.build.cluster import on_worker
from pipeline.build.cluster.job import StepJob
from pipeline.frozen import dataclass

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
