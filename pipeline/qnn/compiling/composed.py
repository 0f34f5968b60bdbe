"""Compares the binary that a DLC was composed to with the context that was compiled from the same model."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.qnn.child import run_raw_apart
from pipeline.qnn.format.context_binary import HTP_BACKEND, BinaryInfo, GraphInfo, read_binary
from pipeline.qnn.format.graph_io import EdgeTensor

_SEED = 0


def check_composed(composed: Path, context: Path, graph: GraphInfo, target: HtpTarget) -> GraphInfo:
    """The graph of a binary that was composed of a DLC, once it is for `target` and has the edge of `graph`.

    Raises:
        CompileError: it is for another chip, or takes or gives something else than the `graph` of the `context`.
    """
    made = read_binary(composed)
    for what, is_, asked in _sides(made, target):
        if is_ != asked:
            raise _differs(composed, f"its {what} is {is_}, {asked} was asked for")
    if len(made.graphs) != 1:
        raise _differs(composed, f"it has {len(made.graphs)} graphs")
    (own,) = made.graphs
    for kind in ("inputs", "outputs"):
        ours, theirs = ({tensor.name: tensor for tensor in getattr(each, kind)} for each in (own, graph))
        if ours != theirs:
            has, had = _listed(getattr(own, kind)), _listed(getattr(graph, kind))
            raise _differs(composed, f"its {kind} are {has}, those of {context.name} {had}")
    return own


def compare(composed: Path, own: GraphInfo, context: Path, graph: GraphInfo, target: HtpTarget, work: Path) -> None:
    """Run a composed graph and the context's once, on inputs made here, and check that their outputs are equal bits.

    Both should compute the same from any input, so no sample is needed. Integers that are no encoded floats are 0 or 1,
    as they may be places in a table; encoded floats are any integers; floats are drawn from a normal distribution.

    Raises:
        CompileError: an output differs, or one of them does not run.
    """
    random = np.random.default_rng(_SEED)
    feed = {tensor.name: _values(tensor, random) for tensor in graph.inputs}
    made = []
    for binary, each in ((composed, own), (context, graph)):
        with tempfile.TemporaryDirectory(dir=work) as folder:
            outputs = run_raw_apart(binary, each.name, target, feed, Path(folder))
        if isinstance(outputs, str):
            raise _differs(composed, f"{each.name} of {binary.name} does not run: {outputs}")
        made.append({tensor.name: array for tensor, array in zip(each.outputs, outputs, strict=True)})
    for name, array in made[0].items():
        other = made[1][name]
        unequal = int(np.count_nonzero(_bits(array) != _bits(other)))
        if unequal:
            most = np.abs(array.astype(np.float64) - other.astype(np.float64)).max()
            raise _differs(
                composed, f"output {name!r} differs in {unequal} of {array.size} values, by {most:g} at most"
            )


def _sides(made: BinaryInfo, target: HtpTarget) -> Sequence[tuple[str, int, int]]:
    return (
        ("backend", made.backend, HTP_BACKEND),
        ("SoC", made.soc_model, target.soc_model),
        ("HTP architecture", made.htp_arch, target.htp_arch),
    )


def _values(tensor: EdgeTensor, random: np.random.Generator) -> NDArray[Any]:
    if tensor.dtype.kind == "f":
        return random.standard_normal(tensor.shape).astype(tensor.dtype)
    if tensor.encoding is None or tensor.dtype.kind == "b":
        return random.integers(0, 2, tensor.shape).astype(tensor.dtype)
    limits = np.iinfo(tensor.dtype)
    return random.integers(limits.min, limits.max, tensor.shape, dtype=tensor.dtype, endpoint=True)


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """The values in one row, to be compared bit by bit."""
    return np.ascontiguousarray(array).reshape(-1).view(f"V{array.dtype.itemsize}")


def _listed(tensors: Sequence[EdgeTensor]) -> str:
    return ", ".join(f"{tensor} ({tensor.encoding or 'not encoded'})" for tensor in tensors)


def _differs(composed: Path, why: str) -> CompileError:
    return CompileError(
        "what a DLC is composed to is not what its context is",
        where=composed.name,
        why=why,
        remedy="leave 'dlc' out of 'outputs', and report it with the model",
    )
