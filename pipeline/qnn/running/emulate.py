"""Runs a context on QNN's emulator of the HTP, which comes with the compiler on x86_64.

It computes what the chip computes, slowly, and says nothing about the chip's speed. To be called in a child process:
a context that the emulator can't take may end the one it is in.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from pipeline.contracts.target import HtpTarget
from pipeline.errors import VerificationError
from pipeline.graph.files.model_file import load_graph
from pipeline.progress import counted
from pipeline.qnn import failures
from pipeline.qnn.format.context_binary import read_binaries
from pipeline.qnn.format.context_model import binary_names, is_flexible, partitions
from pipeline.qnn.native_log import recorded
from pipeline.qnn.session import EP, session_options


@dataclass(frozen=True)
class TimeLimit:
    """A limit of CPU seconds. No sample is begun that would exceed it if it took as long as the longest so far.

    One sample is always run. CPU time counts, so a busy machine runs no fewer samples.
    """

    cpu_s: float

    def allows(self, number: int, elapsed_s: float, dearest_s: float) -> bool:
        """Whether one more sample may be run after `number` that took `elapsed_s` in all, the longest `dearest_s`."""
        return number == 0 or elapsed_s + dearest_s <= self.cpu_s


def run_context(
    folder: Path, context_model: str, target: HtpTarget, feeds: Sequence[Mapping[str, NDArray[Any]]]
) -> list[list[NDArray[Any]]]:
    """The outputs of :func:`run_each`, in a list."""
    return list(run_each(folder, context_model, target, feeds))


def run_each(
    folder: Path,
    context_model: str,
    target: HtpTarget,
    feeds: Iterable[Mapping[str, NDArray[Any]]],
    limit: TimeLimit | None = None,
) -> Iterator[list[NDArray[Any]]]:
    """The outputs of the context, in graph order, for each of `feeds` (input name -> array of the input's shape).

    With a `limit`, of as many of the first as it allows.

    The libraries see names relative to `folder` only, in which the process is meanwhile: on Windows they don't take
    paths of every alphabet (https://github.com/microsoft/WindowsAppSDK/issues/6173).

    Raises:
        CompileError: the QNN EP can't be used here, or a binary can't be read.
        VerificationError: the context is for another target, can't be loaded, fails to run, or would not run on QNN.
    """
    for name in binary_names(load_graph(folder / context_model)):
        _check_target(folder / name, target)
    settings = session_options(target)
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with recorded() as log, contextlib.chdir(folder):
        try:
            session = ort.InferenceSession(context_model, settings)
            _check_assignment(session, context_model)
            yield from _within(limit, session, feeds)
        except VerificationError:
            raise
        except Exception as error:  # onnxruntime raises classes of its extension module, without a common base
            raise _cant_run(context_model, target, [str(error), *log.errors()], log.text()) from error


def _cant_run(context_model: str, target: HtpTarget, said: Sequence[str], log: str) -> VerificationError:
    why, remedy = failures.explain(said, log)
    return VerificationError(f"the emulator can't run {context_model}", where=str(target), why=why, remedy=remedy)


def can_emulate(folder: Path, context_model: str) -> bool:
    """Whether the emulator takes the form of a context: one target, and a binary of its own.

    Of a binary that several buckets share, or that is for several SoCs, it gives an error or ends the process.
    """
    model = load_graph(folder / context_model)
    if is_flexible(model):
        return False
    graphs = [graph for name in binary_names(model) for info in read_binaries(folder / name) for graph in info.graphs]
    return len(graphs) == len(partitions(model))


def _check_target(binary: Path, target: HtpTarget) -> None:
    """Refuse a context of another target: the emulator would run it, and the device would not."""
    if not binary.is_file():
        return  # onnxruntime's own message about it is in the table of failures
    have = [HtpTarget(info.soc_model, info.htp_arch) for info in read_binaries(binary)]
    if HtpTarget(target.soc_model, target.htp_arch) not in have:
        raise VerificationError(
            f"{binary.name} is for {' and '.join(map(str, have))}, not for {target}",
            why="the emulator runs it all the same, the device does not",
            remedy="build the context for the target that it is to be verified for",
        )


def _check_assignment(session: ort.InferenceSession, context_model: str) -> None:
    where = {
        node.name: part.ep_name
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
        if node.op_type == "EPContext"
    }
    astray = [name for name, ep in where.items() if ep != EP]
    if astray or not where:
        raise VerificationError(
            f"{context_model} would not run on QNN",
            why=f"{', '.join(astray)} went elsewhere" if astray else "it holds no EPContext node",
            remedy="give a context model that was compiled for QNN",
        )


def _within(
    limit: TimeLimit | None, session: ort.InferenceSession, feeds: Iterable[Mapping[str, NDArray[Any]]]
) -> Iterator[list[NDArray[Any]]]:
    start, dearest = time.process_time(), 0.0
    most = operator.length_hint(feeds)  # 0 where nobody knows
    for number, feed in enumerate(counted(feeds, "on the emulator: sample", most)):
        before = time.process_time()
        if limit is not None and not limit.allows(number, before - start, dearest):
            return
        outputs = _run(session, feed)
        dearest = max(dearest, time.process_time() - before)
        yield outputs


def _run(session: ort.InferenceSession, feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    return [np.asarray(output) for output in session.run(None, dict(feed))]
