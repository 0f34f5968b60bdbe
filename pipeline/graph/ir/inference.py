"""Types and shapes of one node's outputs, from those of its inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from onnx import (
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    checker,
    defs,
    helper,
    numpy_helper,
    version_converter,
)
from onnx.shape_inference import InferenceError, infer_node_outputs

from pipeline.graph.ir.attributes import integers
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, reads

Types = Mapping[str, TypeProto]


REFUSALS = (
    InferenceError,
    checker.ValidationError,
    version_converter.ConvertError,
    RuntimeError,
    ValueError,
    IndexError,
)
"""What ONNX's native code raises for a model it can't make sense of: its own classes, and those of C++ exceptions."""


class ShapeError(Exception):
    """The types or shapes of a node's inputs don't go together; the text says how."""


_TYPE_OF_INPUT = ("MeanVarianceNormalization",)
"""Defined by ONNX without an inference of types, and not inferred by onnxruntime either."""


@dataclass(frozen=True)
class Opsets:
    """What a model's nodes mean: the operator set versions it imports, and its IR version."""

    versions: Mapping[str, int]
    ir_version: int

    @classmethod
    def of(cls, model: ModelProto) -> Opsets:
        """The operator sets of a model."""
        versions = {_domain(entry.domain): entry.version for entry in model.opset_import}
        return cls(versions, model.ir_version)

    @functools.cached_property
    def protos(self) -> list[OperatorSetIdProto]:
        """The import list of a model with these operator sets."""
        return [helper.make_opsetid(domain, version) for domain, version in self.versions.items()]

    def schema(self, node: NodeProto) -> defs.OpSchema | None:
        """ONNX's definition of a node's operator, or None when ONNX has none."""
        domain = _domain(node.domain)
        try:
            return defs.get_schema(node.op_type, self.versions.get(domain, 1), domain)
        except defs.SchemaError:
            return None


def infer_outputs(
    node: NodeProto, types: Types, small_constant: Callable[[str], TensorProto | None], opsets: Opsets
) -> dict[str, TypeProto]:
    """Types of a node's outputs as far as they can be told without running it.

    `types` has the types of all it reads; `small_constant` gives the value of an input that is known and short, such
    as the target of a Reshape. Operators that ONNX doesn't define (com.microsoft) are asked of onnxruntime.

    Raises:
        ShapeError: the input shapes contradict each other or the node's attributes.
    """
    schema = opsets.schema(node)
    constants = {name: tensor for name in node.input if name and (tensor := small_constant(name)) is not None}
    if schema is not None and schema.has_type_and_shape_inference_function:
        needed = {name: types[name] for name in reads(node)}
        try:
            inferred: dict[str, TypeProto] = infer_node_outputs(
                schema, node, needed, constants, opset_imports=opsets.protos, ir_version=opsets.ir_version
            )
        except REFUSALS as error:
            raise ShapeError(str(error).rpartition("] ")[2].strip()) from None
        if node.op_type in ("Resize", "Upsample"):
            _scale_in_float32(node, needed, constants, inferred)
        if all(is_static(inferred.get(name)) for name in node.output if name):
            return inferred
    else:
        inferred = {}
    if schema is not None and node.op_type in _TYPE_OF_INPUT:
        return {node.output[0]: types[node.input[0]]}
    # For ONNX's own operators onnxruntime knows no more than ONNX does, but for functions without inference.
    if schema is None or not inferred:
        return _asked_of_onnxruntime(node, types, constants, opsets) or inferred
    return inferred


def _scale_in_float32(
    node: NodeProto, types: Types, constants: Mapping[str, TensorProto], inferred: Mapping[str, TypeProto]
) -> None:
    """Size what a Resize makes as onnxruntime does: 10 by a scale of 2.3 is 23 in float32, and 22.99 in ONNX's own."""
    inputs = [*node.input, ""]
    scales = constants.get(inputs[1 if len(node.input) == 2 else 2])
    given, made = types.get(node.input[0]), inferred.get(node.output[0])
    crops = any(attribute.s == b"tf_crop_and_resize" for attribute in node.attribute)
    if scales is None or crops or not is_static(given) or not is_static(made) or given is None or made is None:
        return
    before = shape_of(given)
    factors = numpy_helper.to_array(scales).astype(np.float32)
    for axis, factor in zip(integers(node, "axes", range(len(before))), factors, strict=False):
        made.tensor_type.shape.dim[axis].dim_value = int(np.float32(before[axis]) * factor)


def is_static(kind: TypeProto | None) -> bool:
    """Whether this is the type of a tensor all of whose dims are numbers."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return False
    # Slices are lists, which are walked in half the time.
    dims = kind.tensor_type.shape.dim[:]
    return all(dim.dim_value > 0 or (dim.dim_value == 0 and dim.HasField("dim_value")) for dim in dims)


def shape_of(kind: TypeProto) -> tuple[int, ...]:
    """The dims of a static tensor type."""
    return tuple([dim.dim_value for dim in kind.tensor_type.shape.dim[:]])


def spell(kind: TypeProto | None) -> str:
    """A type as a message shows it: ``float32 [1, 64, ?]``."""
    if kind is None or not kind.HasField("tensor_type"):
        return "no tensor"
    tensor = kind.tensor_type
    name = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name if tensor.elem_type else "?"
    dims = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim]
    return f"{name} [{', '.join(dims)}]" if tensor.HasField("shape") else f"{name} of unknown rank"


def one_node_session(
    node: NodeProto, inputs: Types, outputs: Types, initializers: list[TensorProto], opsets: Opsets
) -> ort.InferenceSession:
    """An onnxruntime CPU session for a graph of this node alone. Raises onnxruntime's own exceptions."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # what a session computed keeps its arena alive: 1 MB for each constant
    graph = helper.make_graph(
        [node],
        "node",
        [ValueInfoProto(name=name, type=kind) for name, kind in inputs.items()],
        [ValueInfoProto(name=name, type=outputs.get(name)) for name in node.output if name],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=opsets.protos, ir_version=opsets.ir_version)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _asked_of_onnxruntime(
    node: NodeProto, types: Types, constants: Mapping[str, TensorProto], opsets: Opsets
) -> dict[str, TypeProto]:
    inputs = {name: types[name] for name in reads(node) if name not in constants}
    try:
        session = one_node_session(node, inputs, {}, list(constants.values()), opsets)
    except Exception as error:  # onnxruntime's exception classes have no common base of their own
        raise ShapeError(_first_line(error)) from None
    return {output.name: _type(output) for output in session.get_outputs() if output.type.startswith("tensor(")}


def _domain(name: str) -> str:
    return "" if name in DEFAULT_DOMAINS else name


def _type(output: ort.NodeArg) -> TypeProto:
    element = output.type.removeprefix("tensor(").removesuffix(")")
    names = {"float": "FLOAT", "double": "DOUBLE"}
    kind = TensorProto.DataType.Value(names.get(element, element.upper()))
    return helper.make_tensor_type_proto(kind, output.shape or None)  # it says [] for an unknown rank, too


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
