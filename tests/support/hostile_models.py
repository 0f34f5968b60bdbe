"""ONNX files that nobody should meet, each with what a user is told of it. All end with exit code 12."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    StringStringEntryProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@dataclass(frozen=True)
class Bad:
    """How a file is made; what must be said of it; the step that says so, `ingest` or `shape`."""

    make: Callable[[], ModelProto | bytes]
    said: str
    stage: str = "ingest"


def value(name: str, dims: Sequence[int | str] | None, kind: int = FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


RELU = node("Relu", ["x"])
ADD = node("Add", ["x", "w"])


def built(
    *nodes: NodeProto,
    inputs: Sequence[ValueInfoProto] = (),
    outputs: Sequence[ValueInfoProto] = (),
    tensors: Sequence[TensorProto] = (),
    opset: int = 17,
    ir_version: int = 8,
    **constants: Any,
) -> ModelProto:
    """`x` float32 [n, 4] -> `y` float32 [n, 4] if nothing else is said; nothing is checked."""
    graph = helper.make_graph(
        nodes,
        "g",
        inputs or [value("x", ["n", 4])],
        outputs or [value("y", ["n", 4])],
        [*tensors, *(numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def lying(dims: Sequence[int], kind: int = FLOAT, **data: Any) -> ModelProto:
    """A weight `w` of these dims, whatever data it has."""
    return built(ADD, tensors=[TensorProto(name="w", data_type=kind, dims=dims, **data)])


def added(*nodes: NodeProto, **constants: Any) -> ModelProto:
    """A model that adds `c`, a float that these nodes make of constants, to its input."""
    return built(*nodes, node("Add", ["x", "c"]), **constants)


def quotient(op: str, dividend: NDArray[Any], divisor: NDArray[Any]) -> ModelProto:
    return added(node(op, ["a", "b"], ["q"]), node("Cast", ["q"], ["c"], to=FLOAT), a=dividend, b=divisor)


def filled(size: ArrayLike) -> ModelProto:
    """A constant of this shape, summed up."""
    return added(node("ConstantOfShape", ["s"], ["big"]), node("ReduceSum", ["big"], ["c"], keepdims=0), s=size)


def endless(times: int = 2**62) -> ModelProto:
    """A loop over constants that runs as many times."""
    inner = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), node("Identity", ["v"], ["v_on"])],
        "body",
        [value("i", [], INT64), value("go", [], TensorProto.BOOL), value("v", [])],
        [value("go_on", [], TensorProto.BOOL), value("v_on", [])],
    )
    loop = node("Loop", ["times", "true", "zero"], ["c"], body=inner)
    return added(loop, times=np.array(times), true=np.array(True), zero=np.float32(0))


def functions(*made: FunctionProto, calls: NodeProto | None = None) -> ModelProto:
    model = built(calls or node("f", ["x"], domain="local"))
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.functions.extend(made)
    return model


def function(name: str, *nodes: NodeProto) -> FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a"], ["b"], nodes, imports)


def doubling(levels: int) -> ModelProto:
    """A function that calls another twice, which calls another twice, and so on."""
    calls = [
        function(
            f"f{level}" if level else "f",
            node(f"f{level + 1}", ["a"], ["t"], domain="local"),
            node(f"f{level + 1}", ["t"], ["b"], domain="local"),
        )
        for level in range(levels)
    ]
    return functions(*calls, function(f"f{levels}", node("Relu", ["a"], ["b"])))


def nested(levels: int) -> bytes:
    """Branches within branches, written by hand: protobuf's own writer refuses more than a hundred."""
    graph = b""
    for _ in range(levels):
        attribute = _field(1, b"then_branch") + _field(6, graph) + b"\xa0\x01\x05"
        graph = _field(1, _field(4, b"If") + _field(5, attribute))
    return b"\x08\x08" + _field(7, graph) + _field(8, b"\x10\x11")


def _field(number: int, body: bytes) -> bytes:
    size, length = len(body), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + body


def sparse() -> ModelProto:
    model = built(RELU)
    values, indices = (
        TensorProto(name="s", data_type=FLOAT, dims=[1], float_data=[1]),
        TensorProto(name="i", data_type=INT64, dims=[1], int64_data=[0]),
    )
    model.graph.sparse_initializer.append(SparseTensorProto(values=values, indices=indices, dims=[2**50]))
    return model


def external(location: str, **entries: str) -> ModelProto:
    """A weight that is in another file."""
    listed = {"location": location, **entries}
    data = [StringStringEntryProto(key=key, value=text) for key, text in listed.items()]
    return lying([512], data_location=TensorProto.EXTERNAL, external_data=data)


def weight(bad: float) -> ModelProto:
    values = np.zeros((4, 512), np.float32)
    values[1, 7] = bad
    return built(node("MatMul", ["x", "w"]), outputs=[value("y", ["n", 512])], w=values)


def branch_of(condition: ArrayLike) -> ModelProto:
    branch = helper.make_graph([node("Identity", ["x"], ["e"])], "branch", [], [value("e", None)])
    return built(node("If", ["w"], then_branch=branch, else_branch=branch), w=condition)


def attribute(name: str, **fields: Any) -> ModelProto:
    softmax = node("Softmax", ["x"])
    softmax.attribute.add(name=name, **fields)
    return built(softmax)


def bare_graph() -> bytes:
    data: bytes = ModelProto(ir_version=8, graph=GraphProto(name="g")).SerializeToString()
    return data


WHOLE: bytes = built(ADD, w=np.zeros(4, np.float32)).SerializeToString()

NOT_ONNX = "is not an ONNX model, or is damaged"
INVALID = "is not a valid ONNX model"
LEAST = np.iinfo(np.int64).min

MODELS: Mapping[str, Bad] = {
    # files
    "empty": Bad(lambda: b"", NOT_ONNX),
    "zeros": Bad(lambda: bytes(1000), NOT_ONNX),
    "text": Bad(lambda: b"<html>404 Not Found</html>", NOT_ONNX),
    **{f"cut-{size}": Bad(lambda size=size: WHOLE[:size], NOT_ONNX) for size in (1, 9, 40, len(WHOLE) - 1)},  # type: ignore[misc]
    "no-graph": Bad(lambda: b"\x08\x08", "it holds no graph"),
    "empty-graph": Bad(bare_graph, "the model has no outputs"),
    "nested-1000": Bad(lambda: nested(1000), "nested more than 30 deep"),
    # graphs
    "cycle": Bad(
        lambda: built(node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Neg", ["b"])),
        "input 'b' of node",
    ),
    "nobody-makes": Bad(lambda: built(node("Add", ["x", "nobody"])), "input 'nobody' of node"),
    "no-output": Bad(lambda: built(node("Relu", ["x"], ["z"])), "Graph output 'y' is not an output of any node"),
    "made-twice": Bad(lambda: built(RELU, node("Neg", ["x"])), "'y' has been used as output names multiple times"),
    "output-twice": Bad(lambda: built(RELU, outputs=[value("y", ["n", 4])] * 2), "gives one output twice"),
    "tensor-twice": Bad(
        lambda: built(ADD, tensors=[numpy_helper.from_array(np.zeros(4, np.float32), "w")] * 2),
        "w initializer name is not unique",
    ),
    "input-twice": Bad(lambda: built(RELU, inputs=[value("x", ["n", 4]), value("x", [5])]), "'x' has been used"),
    "no-rank": Bad(lambda: built(RELU, inputs=[value("x", None)]), "input 'x' has no rank"),
    "sparse": Bad(sparse, "initializer 's' is sparse"),
    # versions
    "opset-999": Bad(lambda: built(RELU, opset=999), "the model is of opset 999"),
    "opset-negative": Bad(lambda: built(RELU, opset=-3), "No Op registered for Relu with domain_version of -3"),
    "ir-999": Bad(lambda: built(RELU, ir_version=999), "ir_version 999 is higher"),
    "unknown-domain": Bad(lambda: built(node("Evil", ["x"], domain="evil")), "no operator that onnxruntime knows"),
    "unknown-operator": Bad(lambda: built(node("Reluu", ["x"])), "No Op registered for Reluu"),
    # tensors that lie
    "dims-2-40": Bad(lambda: lying([2**40]), "(tensor name: w) should contain one and only one value field"),
    "dims-overflow": Bad(lambda: lying([2**32, 2**32], raw_data=b""), "Tensor dimension product overflow"),
    "dims-overflow-large": Bad(
        lambda: lying([2**32, 2**31], raw_data=bytes(2048)), "needs 36893488147419103232 bytes, its length says 2048"
    ),
    "dims-negative": Bad(lambda: lying([-4], raw_data=bytes(16)), "Negative dimension value"),
    "dims-none-of-many": Bad(lambda: lying([0, 2**62], raw_data=b""), "tensor 'w' carries other data"),
    "dims-hundred": Bad(lambda: lying([1] * 100, raw_data=bytes(4)), "tensor 'w' carries other data"),
    "type-99": Bad(lambda: lying([4], 99, raw_data=bytes(16)), "tensor 'w' has no known element type"),
    "type-0": Bad(lambda: lying([4], 0, raw_data=bytes(16)), "UNDEFINED is not allowed"),
    "data-twice": Bad(lambda: lying([4], raw_data=bytes(16), float_data=[1] * 4), "one and only one value field"),
    "too-short": Bad(lambda: lying([4], raw_data=bytes(8)), "raw_data size (8 bytes) is too small"),
    "bad-text": Bad(
        lambda: built(
            node("Identity", ["w"]),
            outputs=[value("y", [1], TensorProto.STRING)],
            tensors=[TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff"])],
        ),
        "node 'y' (Identity) is of strings",
    ),
    "nan": Bad(lambda: weight(np.nan), "tensor 'w' holds NaN"),
    # operators
    "training": Bad(
        lambda: built(node("BatchNormalization", ["x", *"wwww"], training_mode=1), w=np.ones(4, np.float32)),
        "is in training mode",
    ),
    "quantized": Bad(
        lambda: built(node("QMoE", ["x", "s"], domain="com.microsoft"), s=np.float32(1)),
        "is quantized in a form that can't be turned into floats",
    ),
    "dynamic-quantized": Bad(
        lambda: built(node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])), "quantized by a scale that is found"
    ),
    "context": Bad(lambda: built(node("EPContext", ["x"], domain="com.microsoft")), "is a compiled context model"),
    "attribute-type": Bad(lambda: attribute("axis", type=3, s=b"one"), "Mismatched attribute type"),
    "attribute-reference": Bad(lambda: attribute("axis", type=2, ref_attr_name="a"), "from a function, and is in none"),
    "branch-missing": Bad(lambda: built(node("If", ["w"]), w=np.array(True)), "'else_branch' is missing"),
    "branch-of-many": Bad(lambda: branch_of([True, False]), "is not one value", "shape"),
    "constant-empty": Bad(lambda: added(node("Constant", [], ["c"])), "has no value that can be used"),
    "sequence-in": Bad(
        lambda: built(
            RELU,
            inputs=[
                helper.make_value_info(
                    "x", helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [4]))
                )
            ],
        ),
        "'x' is not a tensor",
    ),
    # functions
    "calls-itself": Bad(
        lambda: functions(function("f", node("f", ["a"], ["b"], domain="local"))), "function 'f' of the model calls"
    ),
    "calls-each-other": Bad(
        lambda: functions(
            function("f", node("g", ["a"], ["b"], domain="local")),
            function("g", node("f", ["a"], ["b"], domain="local")),
        ),
        "'f' -> 'g' -> 'f'",
    ),
    "calls-doubling": Bad(lambda: doubling(40), "1099511627776 with its functions written out"),
    "calls-too-much": Bad(
        lambda: functions(function("f", node("Relu", ["a"], ["b"])), calls=node("f", ["x"] * 9, domain="local")),
        "can't be written out",
    ),
    "function-twice": Bad(
        lambda: functions(function("f", node("Relu", ["a"], ["b"])), function("f", node("Neg", ["a"], ["b"]))),
        "can't be written out",
    ),
    # what constants come to
    "divided-by-zero": Bad(lambda: quotient("Div", np.array([1]), np.array([0])), "Integer division by zero"),
    "divided-too-far": Bad(lambda: quotient("Div", np.array([LEAST]), np.array([-1])), "by -1 does not fit int64"),
    "modulo-too-far": Bad(lambda: quotient("Mod", np.array([LEAST]), np.array([-1])), "by -1 does not fit int64"),
    "filled-negative": Bad(lambda: filled(np.array([-5])), "must have non-negative elements"),
    "gathered-beyond": Bad(
        lambda: added(node("Gather", ["k", "i"], ["c"]), k=np.zeros(4, np.float32), i=np.array([2**40])),
        "out of data bounds",
    ),
    "reshaped-negative": Bad(
        lambda: added(node("Reshape", ["k", "s"], ["c"]), k=np.zeros(4, np.float32), s=np.array([-7])), "-7"
    ),
    # sizes that no chip has
    "filled-2-40": Bad(lambda: filled(np.array([2**40])), "value 'big' is too large: float32 [1099511627776]", "shape"),
    "input-2-60": Bad(
        lambda: built(RELU, inputs=[value("x", ["n", 2**60])], outputs=[value("y", ["n", 2**60])]),
        "value 'x' is too large",
        "shape",
    ),
    "tiled-2-50": Bad(
        lambda: added(
            node("Tile", ["k", "s"], ["big"]), node("ReduceSum", ["big"], ["c"], keepdims=0),
            k=np.zeros(4, np.float32), s=np.array([2**50]),
        ),
        "value 'big' is too large",
        "shape",
    ),
    "padded-negative": Bad(
        lambda: built(node("Pad", ["x", "p"]), p=np.array([0, -9, 0, -9])), "the output shape of node", "shape"
    ),
    "transposed-beyond": Bad(lambda: built(node("Transpose", ["x"], perm=[5, -9])), "Invalid attribute perm", "shape"),
    "weight-of-integers": Bad(lambda: built(ADD, w=np.arange(4)), "inputs that contradict each other", "shape"),
    "weight-of-text": Bad(
        lambda: built(ADD, tensors=[TensorProto(name="w", data_type=8, dims=[4], string_data=[b"a"] * 4)]),
        "node 'y' (Add) is of strings",
    ),
    "stride-0": Bad(
        lambda: built(
            node("Conv", ["x", "w"], strides=[0, 0]), inputs=[value("x", [1, 1, "n", 4])],
            outputs=[value("y", [1, 1, "a", "b"])], w=np.zeros((1, 1, 2, 2), np.float32),
        ),
        "strides must only contain positive values",
        "shape",
    ),
    "declared-wrongly": Bad(
        lambda: built(RELU, outputs=[value("y", ["n", 4], INT64)]), "output 'y' is not what the model declares", "shape"
    ),
    "escapes-in-names": Bad(
        lambda: built(node("Evil\x1b]0;title\x07", ["x"], name="\x1b[31mred\u202e", domain="\x1b[2J")),
        r"'\x1b[31mred\u202e' (\x1b[2J::Evil\x1b]0;title\x07)",
    ),
}  # fmt: skip


def chain(count: int) -> ModelProto:
    """As many nodes, one after another, each with a weight of its own, of operators that patterns reach through."""
    operators = ("Add", "Max", "Sub", "Min")
    nodes = [
        node(operators[step % 4], [f"v{step}" if step else "x", f"w{step}"], [f"v{step + 1}"]) for step in range(count)
    ]
    nodes[-1].output[0] = "y"
    weights: dict[str, Any] = {f"w{step}": np.full(4, -1e9 if step % 3 else step, np.float32) for step in range(count)}
    return built(*nodes, **weights)
