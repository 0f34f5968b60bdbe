"""The node tests that ship with ONNX, taken through ingest, shape and every rewrite: outputs stay what they were.

Each test is a model of one operator (or of the operators that an operator is defined by) with inputs. It is run as it
came, and again after our steps, on onnxruntime's CPU without any optimization. Most give all they read as inputs, where
a model of the world has constants, which is what steps and rewrites look at; so each is taken through a second time
with all inputs but the first as constants.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, checker
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from pipeline.errors import PipelineError
from pipeline.graph.cpu import unoptimized_session
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.fused import ATTENTION
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.ir.inference import is_static
from pipeline.graph.rewrites import apply_all
from pipeline.model import StageInput
from pipeline.stages import rewrite
from tests.support.node_tests import node_tests, static, step, variants

pytestmark = pytest.mark.slow

Arrays = Mapping[str, NDArray[Any]]

STEPS = 8
"""How many steps of its float type, relative to the largest element, an output may move by where a rewrite reorders
arithmetic, or float16 is folded (which leaves out roundings between nodes). Four roundings in a row before, four
after; an error of meaning is a thousand times that."""

KEYLESS = ("test_attention_causal_boolmask_nan_robustness", "test_attention_23_boolmask_fullymasked_row_nan_robustness")
"""Rows that may look at no key: onnxruntime makes 0 of them, `make_masks_finite` the mean of all."""

_REFUSED_BY_ORT = (
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.NotImplemented,
    errors.RuntimeException,
    RuntimeError,
)


@dataclass(frozen=True)
class Outcome:
    """What became of one test. `refused` says who couldn't take it and why, `problem` what is wrong with the result."""

    name: str
    refused: str = ""
    applied: tuple[str, ...] = ()
    problem: str = ""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    cases = node_tests()
    folder = tmp_path_factory.mktemp("nodes")
    found = []
    for case in cases:
        for variant, model, feeds in variants(case):
            name = case.name + (f", {variant}" if variant else "")
            with contextlib.redirect_stdout(io.StringIO()):
                found.append(_outcome(name, model, feeds, folder))
    return found


def test_no_output_changes(outcomes: list[Outcome]) -> None:
    changed = [outcome for outcome in outcomes if outcome.problem]
    assert [outcome for outcome in changed if outcome.name.partition(",")[0] not in KEYLESS] == []
    assert {outcome.name.partition(",")[0] for outcome in changed} == {*KEYLESS}, "they may be judged as others are"


def test_most_of_the_tests_go_through(outcomes: list[Outcome]) -> None:
    through = [outcome for outcome in outcomes if not outcome.refused]
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.refused:
            by_reason[outcome.refused].append(outcome.name)
    tests = {outcome.name.partition(",")[0] for outcome in through}
    print(f"{len(through)} of {len(outcomes)}, of {len(tests)} tests, went through; the others:")
    for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):5d}  {reason}  ({', '.join(names[:2])})")

    assert len(tests) >= 1450
    assert len(through) >= 2400


def test_rewrites_match_some_of_them(outcomes: list[Outcome]) -> None:
    matches = Counter(rewrite for outcome in outcomes for rewrite in outcome.applied)
    for outcome in outcomes:
        if outcome.applied:
            print(outcome.name, *outcome.applied)
    print(dict(matches))

    assert matches["make_masks_finite"] >= 10, "the attention tests that are written out"


def _outcome(name: str, model: ModelProto, feeds: Arrays, folder: Path) -> Outcome:
    try:
        before = _run(model, feeds, folder)
    except _REFUSED_BY_ORT as error:
        return Outcome(name, refused=f"onnxruntime: {type(error).__name__}")
    try:
        rewritten = _prepared(model, feeds, folder)
    except PipelineError as error:
        return Outcome(name, refused=_reason(error))
    counts = rewritten.facts["applied"]
    assert isinstance(counts, dict)
    applied = tuple(rewrite for rewrite, count in counts.items() if count)
    written_out = any(node.op_type in ATTENTION for node in model.graph.node)
    problem = _problem(before, feeds, rewritten, bool(applied) or written_out)
    if problem and not all(map(_equal, before, _run(model, feeds, folder))):
        return Outcome(name, refused="onnxruntime: other outputs each time")
    return Outcome(name, applied=applied, problem=problem)


def _prepared(model: ModelProto, feeds: Arrays, folder: Path) -> StageInput:
    """The model after ingest, shape and rewrite."""
    return step(rewrite.run, folder / "rewrite", {}, {"shape": static(model, feeds, folder)})


def _problem(before: Sequence[Any], feeds: Arrays, rewritten: StageInput, changed: bool) -> str:
    """What is wrong with a rewritten model, or nothing."""
    path = rewritten.folder / MODEL
    model = load_graph(path)
    checker.check_model(str(path))
    known = GraphIndex(model, rewritten.folder).types
    untyped = [name for node in model.graph.node for name in node.output if name and not is_static(known.get(name))]
    if untyped:
        return f"no static type for {untyped}"
    for number, (expected, actual) in enumerate(zip(before, _run(model, feeds, rewritten.folder), strict=True)):
        if not _equal(expected, actual) and not (
            (changed or expected.dtype == np.float16) and _close(expected, actual)
        ):
            return f"output {number} is {actual!r}, not {expected!r}"
    return f"applied a second time: {again}" if any((again := apply_all(model, rewritten.folder)).values()) else ""


def _run(model: ModelProto, feeds: Arrays, folder: Path) -> list[Any]:
    session = unoptimized_session(model, folder)
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    names = [value.name for value in session.get_inputs()]
    if not all(isinstance(feeds[name], np.ndarray) for name in names):
        lists: list[Any] = session.run(None, {name: feeds[name] for name in names})
        return lists
    values = {name: _ort_value(feeds[name], types[name]) for name in names}
    return [_array_of(value) for value in session.run_with_ort_values(None, values)]


def _ort_value(array: NDArray[Any], kind: int) -> ort.OrtValue:
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.isbuiltin != 1:  # float8, bfloat16 and others that numpy has from a package
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _array_of(value: ort.OrtValue) -> Any:
    """A value as numpy has it, or the bytes of a type that numpy doesn't have."""
    try:
        return value.numpy() if value.is_tensor() else value
    except RuntimeError:
        return np.frombuffer(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()), np.uint8)


def _equal(expected: Any, actual: Any) -> bool:
    """Whether two outputs are the same, to the bit; lists (sequences) are never."""
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return False
    same = expected.dtype == actual.dtype and expected.shape == actual.shape
    return same and (
        expected.tolist() == actual.tolist() if expected.dtype.hasobject else expected.tobytes() == actual.tobytes()
    )


def _close(expected: NDArray[Any], actual: NDArray[Any]) -> bool:
    if expected.dtype != actual.dtype or expected.shape != actual.shape or expected.dtype.kind != "f":
        return False
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
        return False
    largest = np.abs(expected[finite]).max(initial=0.0)
    error = np.abs(expected[finite].astype(np.float64) - actual[finite].astype(np.float64))
    dtype = np.float32 if expected.dtype == np.float64 else expected.dtype  # `narrow_doubles` computes it in float32
    return bool((error <= STEPS * np.finfo(dtype).eps * largest).all())


def _reason(error: PipelineError) -> str:
    """What is said to the user, without names."""
    words = error.what.split()
    return "steps: " + " ".join(word for word in words if not word.startswith(("'", "(")))
