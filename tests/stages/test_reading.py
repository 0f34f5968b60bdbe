"""What was read of a file, held against the file itself: injected misreadings, rounding of the file, files that no
engine runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from pipeline.build.gates import check
from pipeline.config.thresholds import Thresholds
from pipeline.contracts.measures import Subject
from pipeline.contracts.reading import Facts, Looked, Params
from pipeline.contracts.verify import REFERENCES
from pipeline.graph.floats.rewriting import Replacing
from pipeline.graph.ir.traverse import all_nodes
from pipeline.graph.shapes import drop_rounding
from pipeline.inputs.samples.request import Call, Sample
from pipeline.inputs.samples.sample_set import SampleSetWriter, write_npz
from pipeline.model import Json, Manifest, StageInput
from tests.support.graphs import graph
from tests.support.read_files import net, numbers, of_mixed_signs
from tests.support.stage_runs import given, run_stage

Arrays = Mapping[str, NDArray[Any]]
CONV = """g (float[1,4,8,8] x) => (float[1,6,4,4] y) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, k, c)
    r = Relu (a)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    y = Conv <kernel_shape = [1, 1]> (p, o)
}"""


def conv() -> ModelProto:
    return graph(CONV, {"k": numbers(6, 4, 3, 3) / 6, "c": numbers(6), "o": numbers(6, 6, 1, 1, seed=1) / 2})


def rows(count: int = 4) -> list[dict[str, NDArray[Any]]]:
    """Calls of `net` whose first row is loud, so that a scale for all of a value is coarse for the others."""
    calls = [{"x": numbers(1, 4 + number, 32, seed=10 + number)} for number in range(count)]
    for call in calls:
        call["x"][:, 0] *= 30
    return calls


def pictures() -> list[dict[str, NDArray[Any]]]:
    return [{"x": numbers(1, 4, 8, 8, seed=20 + number)} for number in range(3)]


@dataclass
class _Ranges(CalibrationDataReader):  # type: ignore[misc]
    calls: list[dict[str, NDArray[Any]]]

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return self.calls.pop() if self.calls else None


def in_static_integers(form: QuantFormat) -> Callable[[Path], None]:
    def quantize(path: Path) -> None:
        quantize_static(
            path,
            path,
            _Ranges(pictures()),
            quant_format=form,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )

    return quantize


def in_dynamic_integers(path: Path) -> None:
    quantize_dynamic(path, path, weight_type=QuantType.QUInt8)


def in_float16(path: Path) -> None:
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    model.graph.ClearField("value_info")
    onnx.save(model, path)


def read(
    folder: Path,
    model: ModelProto | Path,
    calls: Sequence[Arrays],
    *,
    outputs: Sequence[str] = ("y",),
    subjects: Mapping[str, Subject] | None = None,
    part: Mapping[str, Json] | None = None,
) -> Facts:
    """The facts of `reading` for a file and samples of one bucket; `part` has parameters of ingest such as `cut`."""
    source = folder / "source"
    if isinstance(model, ModelProto):
        source.mkdir()
        onnx.save(model, source / "net.onnx")
    fetched = given(source, {})
    ingested = run_stage("ingest", folder / "ingest", {"file": "net.onnx", **(part or {})}, {"fetch": fetched})
    made, verified = folder / "samples", folder / "verify"
    made.mkdir()
    verified.mkdir()
    writer = SampleSetWriter(made)
    for number, call in enumerate(calls):
        writer.add(Call("net", call, Sample(number, f"sample {number}")))
    writer.finish()
    write_npz(verified / REFERENCES, {})
    judged = subjects or {name: Subject(name) for name in outputs}
    looked = Looked(samples=len(calls), order=tuple(range(len(calls))), subjects=judged)
    inputs = {
        "fetch": fetched,
        "ingest": ingested,
        "samples": given(made, {}),
        "verify/all": StageInput(verified, given(verified, {}).files, looked.to_json()),
    }
    taken: dict[str, Json] = {name: value for name, value in (part or {}).items() if name in ("cut", "begin")}
    params = Params(component="net", buckets={"all": {}}, padding={}, part="all", truth="unpadded", file="net.onnx")
    facts = run_stage("reading", folder / "reading", {**params.to_json(), **taken}, inputs).facts
    return Facts.from_json(facts)


def saved(folder: Path, model: ModelProto, change: Callable[[Path], None]) -> Path:
    """A file of a model, changed in place."""
    (folder / "source").mkdir()
    path = folder / "source" / "net.onnx"
    onnx.save(model, path)
    change(path)
    return path


def refusal(facts: Facts, thresholds: Thresholds | None = None) -> str:
    """The message of the gate; empty if the component may ship."""
    miss = check("net/net", Manifest("reading", "", {}, facts.to_json()), thresholds or Thresholds())
    return str(miss.error) if miss else ""


def test_a_float_file_is_read_exactly(tmp_path: Path) -> None:
    facts = read(tmp_path, net(), rows())
    assert facts.reading.shown == "exact"
    assert facts.reading.samples == 4
    assert facts.figures["y"].sqnr_db == 100.0
    assert not refusal(facts)


ROUNDING = {
    "dynamic int8": (net, in_dynamic_integers, rows),
    "static int8, QDQ": (conv, in_static_integers(QuantFormat.QDQ), pictures),
    "static int8, QOperator": (conv, in_static_integers(QuantFormat.QOperator), pictures),
}


@pytest.mark.parametrize("kind", ROUNDING)
def test_what_a_file_rounds_by_itself_is_told_apart(tmp_path: Path, kind: str) -> None:
    make, quantize, calls = ROUNDING[kind]
    facts = read(tmp_path, saved(tmp_path, make(), quantize), calls())
    whole = facts.figures["y"].sqnr_db
    assert whole is not None
    assert whole < 60
    assert facts.reading.shown == "own rounding", facts.reading.why
    assert not refusal(facts)


def test_a_float16_file_is_read_exactly_or_rounds_by_itself(tmp_path: Path) -> None:
    calls = [{"x": call["x"].astype(np.float16)} for call in rows()]
    facts = read(tmp_path, saved(tmp_path, net(), in_float16), calls)
    assert facts.reading.shown in ("exact", "own rounding"), facts.reading.why


FUNCTION = """<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
g (float[1,rows,32] x) => (float[1,rows,32] y) { y = own.bend (x) }
<opset_import: ["" : 17], domain: "own">
bend <alpha: float = 0.3> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }"""
TABLE = """g (int64[1,rows] ids) => (float[1,rows,8] y) {
    one = Constant <value = int64 {1}> ()
    places = Add (ids, one)
    y = Gather (table, places)
}"""


def replaced(model: ModelProto, name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    found = next(each for each in model.graph.initializer if each.name == name)
    found.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(change(numpy_helper.to_array(found))), name))


def without_defaults(model: ModelProto) -> None:
    for function in model.functions:
        for node in function.node:
            node.ClearField("attribute")
        function.ClearField("attribute_proto")


def with_epsilon(model: ModelProto, value: float) -> None:
    for node in all_nodes(model.graph):
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = value


def one_later(model: ModelProto) -> None:
    next(node for node in model.graph.node if node.op_type == "Constant").attribute[0].t.CopyFrom(
        numpy_helper.from_array(np.array(2, np.int64))
    )


def embedded() -> ModelProto:
    return graph(TABLE, {"table": numbers(40, 8)})


def ids() -> list[dict[str, NDArray[Any]]]:
    return [{"ids": np.random.default_rng(number).integers(0, 30, (1, 6))} for number in range(3)]


MISREAD: dict[str, tuple[Callable[[], ModelProto], Callable[[], Any], Callable[[ModelProto], None]]] = {
    "a default of a function": (lambda: onnx.parser.parse_model(FUNCTION), rows, without_defaults),
    "a tensor skipped": (net, rows, lambda model: replaced(model, "bias", np.zeros_like)),
    "a tensor taken for another": (
        net,
        rows,
        lambda model: replaced(model, "gamma", lambda _: numbers(32)),
    ),
    "a weight transposed": (net, rows, lambda model: replaced(model, "w", np.transpose)),
    "a weight in other layout": (conv, pictures, lambda model: replaced(model, "k", lambda k: k[:, :, ::-1])),
    "an epsilon": (net, rows, lambda model: with_epsilon(model, 1e-5)),
    "an id off by one": (embedded, ids, one_later),
}


def misread(monkeypatch: pytest.MonkeyPatch, change: Callable[[ModelProto], None]) -> None:
    """Break the code that reads files, and that alone: the file itself runs as it is."""

    def broken(path: Path) -> ModelProto:
        model = onnx.load(path)
        change(model)
        return model

    monkeypatch.setattr("pipeline.stages.ingest.parse_lean", broken)


@pytest.mark.parametrize("kind", MISREAD)
def test_a_misreading_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    make, calls, change = MISREAD[kind]
    misread(monkeypatch, change)
    facts = read(tmp_path, make(), calls())
    assert facts.reading.shown == "differs"
    told = refusal(facts)
    assert "the reading rung misses its threshold: output 'y'" in told
    assert "against the source's own file" in told
    assert "gives something else than was read of it" in told


DIFFERENCE, NUMBER = Replacing.difference, Replacing.number


def zero_dropped(sound: Callable[..., str], place: int, node: str) -> Callable[..., str]:
    """A reader that takes the zero point of one operand, its argument at `place`, for 0."""

    def broken(made: Replacing, *given: Any, **more: Any) -> str:
        if made.node.name.startswith(node):
            given = (*given[:place], "", *given[place + 1 :])
        return sound(made, *given, **more)

    return broken


@pytest.mark.parametrize("node", ["MatMul_0", "MatMul_4", "MatMul_6"])
def test_one_zero_point_of_a_file_that_rounds_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    monkeypatch.setattr(Replacing, "difference", zero_dropped(DIFFERENCE, 1, node))
    facts = read(tmp_path, saved(tmp_path, net(), in_dynamic_integers), rows())
    assert facts.reading.shown == "differs"
    assert f"node '{node}" in refusal(facts)


def test_a_zero_point_of_activations_in_static_integers_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 is taken for 0."""
    sound = drop_rounding._Passing._encoding

    def broken(passing: Any, node: NodeProto) -> Any:
        found = sound(passing, node)
        return found and dataclasses.replace(found, zero=found.zero - 16)

    path = saved(tmp_path, conv(), in_static_integers(QuantFormat.QDQ))
    monkeypatch.setattr(drop_rounding._Passing, "_encoding", broken)
    facts = read(tmp_path, path, pictures())
    assert facts.reading.shown == "differs"
    assert "on the file's own inputs" in refusal(facts)


def in_bfloat16() -> ModelProto:
    """A sum in bfloat16, which onnxruntime's CPU does not compute."""
    return graph(
        """g (float[1,4] x) => (float[1,4] y) {
            half = Cast <to = 16> (x)
            sum = Add (half, half)
            y = Cast <to = 1> (sum)
        }"""
    )


def whole_numbers() -> list[dict[str, NDArray[Any]]]:
    return [{"x": np.arange(3, 7, dtype=np.float32)[None] + number} for number in range(3)]


def lines() -> list[dict[str, NDArray[Any]]]:
    return [{"x": numbers(1, 4, 6, seed=number)} for number in range(3)]


def test_a_file_that_onnxruntime_does_not_run_goes_to_the_reference_evaluator(tmp_path: Path) -> None:
    facts = read(tmp_path, in_bfloat16(), whole_numbers())
    assert facts.reading.shown == "exact"
    assert facts.reading.by == "onnx.reference"
    assert facts.reading.samples == 2, "it takes a hundred times as long"


def test_the_reference_evaluator_catches_a_misreading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(model: ModelProto) -> None:
        model.graph.node[1].op_type = "Mul"

    misread(monkeypatch, shifted)
    facts = read(tmp_path, in_bfloat16(), whole_numbers())
    assert facts.reading.shown == "differs"
    assert "gives something else than was read of it" in refusal(facts)


def test_rounding_is_told_apart_by_the_reference_evaluator_too(tmp_path: Path) -> None:
    facts = read(tmp_path, of_mixed_signs("Identity (r)"), lines())
    assert facts.reading.shown == "own rounding", facts.reading.why
    assert facts.reading.by == "onnx.reference"


def test_a_file_that_no_engine_runs_is_not_proven(tmp_path: Path) -> None:
    facts = read(tmp_path, of_mixed_signs("com.microsoft.QLinearSigmoid (r, scale, zero, scale, zero)"), lines())
    assert facts.reading.shown == "not proven"
    assert not facts.figures
    assert not refusal(facts)
    told = refusal(facts, dataclasses.replace(Thresholds(), reading_required=True))
    assert "nothing shows whether the file was read as it is meant" in told
    assert "neither engine runs the file; onnxruntime: Could not find an implementation for QLinearConv" in told
    assert "onnx.reference: " in told
    assert "verification: {reading: measured}" in told


TWO_PARTS = """<ir_version: 10, opset_import: ["" : 17]>
g (float[1,rows,32] x, float scale, float[1,rows,32] unused) => (float[1,rows,32] y, float[1,rows,32] z) {
    a = MatMul (x, w)
    b = Mul (a, scale)
    c = Relu (b)
    y = MatMul (c, w)
    z = Add (y, unused)
}"""


def two_parts() -> ModelProto:
    model: ModelProto = onnx.parser.parse_model(TWO_PARTS)
    model.graph.initializer.append(numpy_helper.from_array(numbers(32, 32) / 6, "w"))
    return model


PARTS: dict[str, tuple[dict[str, Json], str, tuple[str, ...]]] = {
    "cut": ({"cut": ["b", "y"]}, "x", ("b", "y")),
    "begin": ({"begin": ["b"]}, "b", ("y", "z")),
    "begin and cut": ({"begin": ["b"], "cut": ["y"]}, "b", ("y",)),
}


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("sound", [True, False])
def test_a_part_of_a_file_is_held_against_that_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sound: bool
) -> None:
    part, name, outputs = PARTS[kind]
    given = {name: numbers(1, 5, 32, seed=3), "scale": np.array(0.7, np.float32), "unused": numbers(1, 5, 32)}
    calls = [{each: given[each] for each in takes(kind)}]
    if not sound:
        misread(monkeypatch, lambda model: replaced(model, "w", np.transpose))
    facts = read(tmp_path, two_parts(), calls, outputs=outputs, part=part)
    assert facts.reading.shown == ("exact" if sound else "differs"), facts.reading.why


def takes(kind: str) -> tuple[str, ...]:
    return {"cut": ("x", "scale"), "begin": ("unused", "b"), "begin and cut": ("b",)}[kind]


@pytest.mark.parametrize("sound", [True, False])
def test_inputs_that_the_config_fixes_are_fed_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound: bool
) -> None:
    if not sound:
        misread(monkeypatch, lambda model: replaced(model, "w", np.transpose))
    call = {"x": numbers(1, 5, 32), "unused": numbers(1, 5, 32, seed=1)}
    facts = read(tmp_path, two_parts(), [call], outputs=("y", "z"), part={"constants": {"scale": 0.7}})
    assert facts.reading.shown == ("exact" if sound else "differs"), facts.reading.why


def test_external_data_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def outside(path: Path) -> None:
        model = onnx.load(path)
        onnx.save(model, path, save_as_external_data=True, location="net.data", size_threshold=0)

    exact = read(tmp_path, saved(tmp_path, net(), outside), rows())
    assert exact.reading.shown == "exact"
    other = tmp_path / "other"
    other.mkdir()
    misread(monkeypatch, lambda model: replaced(model, "w", np.transpose))
    assert read(other, saved(other, net(), outside), rows()).reading.shown == "differs"


CELL = """g (float[steps,1,8] x, float[1,1,4] h) => (float[1,1,4] hn, int64[1] best) {
    y, hn = GRU <hidden_size = 4> (x, w, r, , , h)
    flat = Reshape (hn, row)
    best = ArgMax <axis = 1, keepdims = 0> (flat)
}"""


def cell() -> ModelProto:
    weights = {"w": numbers(1, 12, 8), "r": numbers(1, 12, 4, seed=1), "row": np.array([1, 4])}
    return graph(CELL, weights)


def test_states_and_whole_numbers_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [{"x": numbers(3 + number, 1, 8), "h": numbers(1, 1, 4, seed=number)} for number in range(3)]
    judged = {"hn": Subject("hn", state=True), "best": Subject("best", by="equality")}
    facts = read(tmp_path, cell(), calls, outputs=("hn", "best"), subjects=judged)
    assert facts.reading.shown == "exact"
    assert {label: each.sqnr_db for label, each in facts.figures.items()} == {"hn": 100.0, "best": 100.0}
    other = tmp_path / "other"
    other.mkdir()
    misread(monkeypatch, lambda model: replaced(model, "r", np.zeros_like))
    assert read(other, cell(), calls, outputs=("hn", "best"), subjects=judged).reading.shown == "differs"


LOOP = """g (float[1,8] x, bool flag) => (float[1,8] y) {
    y = If (flag) <
        then_branch = big () => (float[1,8] t) { t = Mul (x, w) },
        else_branch = small () => (float[1,8] e) { e = Sub (x, w) }
    >
}"""


@pytest.mark.parametrize("sound", [True, False])
def test_branches_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound: bool) -> None:
    if not sound:
        misread(monkeypatch, lambda model: replaced(model, "w", np.flip))
    calls = [{"x": numbers(1, 8), "flag": np.array(flag)} for flag in (True, False)]
    facts = read(tmp_path, graph(LOOP, {"w": numbers(8, seed=2)}), calls)
    assert facts.reading.shown == ("exact" if sound else "differs"), facts.reading.why
