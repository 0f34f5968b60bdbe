"""Makes the context model of a binary that no execution provider wrote: its graph, and conversions at the edge.

What the binary takes as integers with an encoding and the model as floats is quantized and dequantized beside the
EPContext node, by the binary's own numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.qnn.compatibility import Compatibility
from pipeline.qnn.format.context_binary import BinaryInfo, GraphInfo
from pipeline.qnn.format.context_model import COMPATIBILITY
from pipeline.qnn.format.graph_io import EdgeTensor

_IN_BINARY = "_in_binary"
"""Behind the name of an input or output: what the binary takes or gives for it."""


def context_model(source: ModelProto, binary: str, info: BinaryInfo, sdk: str, target: HtpTarget) -> ModelProto:
    """The context model of `binary`, compiled of `source`, which it takes the place of.

    Raises:
        CompileError: the binary has other inputs or outputs, or several graphs.
    """
    if len(info.graphs) != 1:
        raise _other(binary, f"it has {len(info.graphs)} graphs")
    (graph,) = info.graphs
    nodes: list[NodeProto] = []
    constants: list[TensorProto] = []
    behind: list[NodeProto] = []
    taken, left = (_pairs(source, graph, binary, inputs=inputs) for inputs in (True, False))
    given = [_edge(value, tensor, nodes, constants, goes_in=True) for value, tensor in taken]
    made = [_edge(value, tensor, behind, constants, goes_in=False) for value, tensor in left]
    own = {*graph_names(source)}
    renamed = "".join(f"{name}={name.removesuffix(_IN_BINARY)};" for name in (*given, *made) if name not in own)
    context = helper.make_node(
        "EPContext", given, made, graph.name, domain="com.microsoft", io_name_overrides=renamed, main_context=1,
        source="QNNExecutionProvider", partition_name=graph.name, is_multi_soc_ep_context=0, ep_sdk_version=info.sdk,
        embed_mode=0, max_size=0, ep_cache_context=binary,
    )  # fmt: skip
    body = helper.make_graph(
        [*nodes, context, *behind], "graph", list(source.graph.input), list(source.graph.output), constants
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    for value, tensor in _pairs(source, graph, binary, inputs=False):
        if f"{value.name}{_IN_BINARY}" in made:
            dtype = helper.np_dtype_to_tensor_dtype(tensor.dtype)
            body.value_info.append(helper.make_tensor_value_info(f"{value.name}{_IN_BINARY}", dtype, tensor.shape))
    model: ModelProto = helper.make_model(body, opset_imports=imports, ir_version=10)
    entry = model.metadata_props.add()
    entry.key, entry.value = COMPATIBILITY, str(_compatibility(info, sdk, target))
    return model


def graph_names(model: ModelProto) -> list[str]:
    """The names of a model's inputs and outputs."""
    return [value.name for value in (*model.graph.input, *model.graph.output)]


def _compatibility(info: BinaryInfo, sdk: str, target: HtpTarget) -> Compatibility:
    api = f"5.{sdk.partition('.')[2]}"
    vtcm_mb = str(target.vtcm_mb or 0)
    return Compatibility(str(info.backend), sdk, api, (str(info.htp_arch),), (str(info.soc_model),), (vtcm_mb,), "0")


def _pairs(
    source: ModelProto, graph: GraphInfo, binary: str, *, inputs: bool
) -> Iterator[tuple[ValueInfoProto, EdgeTensor]]:
    values = source.graph.input if inputs else source.graph.output
    tensors = {tensor.name: tensor for tensor in (graph.inputs if inputs else graph.outputs)}
    if {value.name for value in values} != tensors.keys():
        kind = "inputs" if inputs else "outputs"
        raise _other(binary, f"its {kind} are {sorted(tensors)}, the model's {sorted(value.name for value in values)}")
    for value in values:
        shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        if tensors[value.name].shape != shape:
            raise _other(binary, f"{value.name!r} is {list(tensors[value.name].shape)}, {list(shape)} in the model")
        yield value, tensors[value.name]


def _edge(
    value: ValueInfoProto, tensor: EdgeTensor, nodes: list[NodeProto], constants: list[TensorProto], *, goes_in: bool
) -> str:
    """The name that the EPContext node has for an input or output; conversions are added where there have to be."""
    is_float = value.type.tensor_type.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16)
    if tensor.encoding is None or not is_float:
        return str(value.name)
    name, inside = value.name, f"{value.name}{_IN_BINARY}"
    scale, zero_point = f"{name}_scale", f"{name}_zero_point"
    constants.append(numpy_helper.from_array(np.asarray(tensor.encoding.scale, np.float32), scale))
    constants.append(numpy_helper.from_array(np.asarray(tensor.encoding.zero_point, tensor.dtype), zero_point))
    op, given, made = ("QuantizeLinear", name, inside) if goes_in else ("DequantizeLinear", inside, name)
    nodes.append(helper.make_node(op, [given, scale, zero_point], [made], f"{name}_{op}"))
    return inside


def _other(binary: str, why: str) -> CompileError:
    return CompileError(
        "the binary that Qualcomm's tools made is not of this model", where=binary, why=why, remedy="report it"
    )
