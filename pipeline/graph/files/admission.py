"""Which ONNX models are taken in: what is refused, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, checker, defs

from pipeline.errors import ModelError
from pipeline.graph.files.functions import Identity, identity_of
from pipeline.graph.files.model_file import is_external, value_signature
from pipeline.graph.files.runtime_operators import set_runtime_operators_aside
from pipeline.graph.files.stored_form import KEY
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import CONTRIB_DOMAIN
from pipeline.graph.ir.inference import REFUSALS
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, all_graphs, all_nodes, all_tensors, attribute_graphs, label

NODE_LIMIT = 1_000_000
"""The most nodes a model may have, its functions written out."""

_DEEPEST_CALL = 100

# Domains whose operators onnxruntime's CPU package implements, apart from ONNX's own.
_KNOWN_DOMAINS = frozenset({*DEFAULT_DOMAINS, "ai.onnx.ml", "com.microsoft"})

# Fused operators of onnxruntime that are for GPUs alone, or keep a cache or search: none is written out (graph/fused).
_GPU_OR_CACHE = frozenset(
    {
        "BeamSearch", "BiasAdd", "BiasSplitGelu", "DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention",
        "GreedySearch", "GroupNorm", "GroupQueryAttention", "LongformerAttention", "MoE", "NhwcConv",
        "PackedAttention", "PackedMultiHeadAttention", "PagedAttention", "Sampling", "SkipGroupNorm",
        "SparseAttention", "WhisperBeamSearch",
    }
)  # fmt: skip

# Ensembles of trees, and what stands around them in files of nothing else.
_TREES = frozenset({"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"})
_AROUND_TREES = frozenset({"Cast", "Concat", "Flatten", "Identity", "Normalizer", "Reshape", "Scaler", "ZipMap"})

# Layouts that onnxruntime's optimizer chooses for the processor it runs on.
_BLOCKED_DOMAINS = frozenset({"com.microsoft.nchwc", "com.ms.internal.nhwc"})

# Operators of onnxruntime's quantized models that graph/floats can't write as float operators: forms for one kind of
# GPU, and products of integers that nothing turns into numbers.
_QUANTIZED_OPS = frozenset(
    {
        "Attention8bit", "DequantizeBFP", "DequantizeWithOrder", "MatMulBlockQuantizedFp4Weight",
        "MatMulBlockQuantizedFp8Weight", "MatMulFpQ4", "MatMulInteger16", "MatMulNBitsMlp", "MatMulNBitsQkv",
        "MulInteger", "QMoE", "QuantizeBFP", "QuantizeWithOrder", "ReduceSumInteger",
    }
)  # fmt: skip
_QUANTIZED_PREFIX = "QOrdered"
# How the hub's converters name quantized and half-precision variants of model.onnx.
_VARIANT = re.compile(r"_(quantized|quant|u?int8|u?int4|q4|q4f16|q8|bnb4|fp8|qdq|qint8\w*|quint8\w*)(?=\.onnx$)")


def check_functions(model: ModelProto) -> None:
    """Refuse model-local functions that call themselves, or that grow beyond all bounds when written out.

    Raises:
        ModelError: they do.
    """
    functions = {identity_of(function): function for function in model.functions}
    sizes: dict[Identity, int] = {}
    size = sum(_written_out(identity_of(node), functions, sizes) for node in all_nodes(model.graph))
    if size > NODE_LIMIT:
        raise ModelError(
            "the model has too many nodes",
            why=f"{size} with its functions written out, the limit is {NODE_LIMIT}",
            remedy="split the model into components",
        )


def check_model(model: ModelProto, file: str) -> None:
    """Refuse a model that can't be built, or that ONNX's checker doesn't accept. Functions must be inlined already.

    `file` is the model's name in its source.

    Raises:
        ModelError: with the reason.
    """
    for node in all_nodes(model.graph):
        _check_node(node, file)
    _check_for_trees(model, file)
    for graph in all_graphs(model.graph):
        if graph.sparse_initializer:
            raise ModelError(
                f"initializer {graph.sparse_initializer[0].values.name!r} is sparse",
                why="QNN takes dense tensors only",
                remedy="export the model with dense weights",
            )
    _check_interface(model)
    light = _without_weights(model)
    set_runtime_operators_aside(light)
    try:
        checker.check_model(light)
    except REFUSALS as error:
        raise ModelError(
            f"{file} is not a valid ONNX model",
            why=" ".join(str(error).split())[:500],
            remedy="check it with onnx.checker.check_model, and export it again",
        ) from None


def _check_node(node: NodeProto, file: str) -> None:
    if node.op_type == "EPContext":
        raise ModelError(
            f"{file} is a compiled context model",
            where=f"node {label(node)}",
            why="it holds a binary for one chip instead of operators",
            remedy="name the ONNX model it was compiled from",
        )
    if node.op_type in _QUANTIZED_OPS or node.op_type.startswith(_QUANTIZED_PREFIX):
        raise ModelError(
            f"{file} is quantized in a form that can't be turned into floats",
            where=f"node {label(node)}",
            why="HTP needs its own quantization, made from the float model",
            remedy=f"name the fp32 file of the component: {_float_file(file)}",
        )
    if node.domain == CONTRIB_DOMAIN and node.op_type in _GPU_OR_CACHE:
        raise ModelError(
            f"{file} was optimized for another runtime",
            where=f"node {label(node)}",
            why="this operator is for GPUs, or keeps a cache or searches, and is not written in ONNX's own",
            remedy=f"name the file that it was made of: {_float_file(file)}; a language model is built from GGUF or"
            " safetensors, with 'language_model' in the config",
        )
    if node.domain in _BLOCKED_DOMAINS:
        raise ModelError(
            f"{file} was optimized for one kind of processor",
            where=f"node {label(node)}",
            why="onnxruntime stored its channels in blocks as wide as that processor's registers (ORT_ENABLE_ALL)",
            remedy="name the file that it was made of, or have onnxruntime save it with ORT_ENABLE_EXTENDED",
        )
    if node.domain not in _KNOWN_DOMAINS:
        raise ModelError(
            f"node {label(node)} is no operator that onnxruntime knows",
            where=f"domain {node.domain!r}",
            why="custom operators and training operators run in the program that brings them only",
            remedy="export the model with ONNX operators only",
        )
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            raise ModelError(
                f"node {label(node)} takes its attribute {attribute.name!r} from a function, and is in none",
                why=f"only calls of a function have the attribute {attribute.ref_attr_name!r}",
                remedy="export the model again",
            )
    if node.op_type == "BatchNormalization" and integer(node, "training_mode"):
        raise ModelError(
            f"node {label(node)} is in training mode",
            why="it would normalize by the batch at hand and change its own weights",
            remedy="call model.eval() before you export",
        )


def _check_for_trees(model: ModelProto, file: str) -> None:
    """Refuse a model of trees and nothing else; what stands behind a network may be left to the CPU."""
    trees = [node for node in all_nodes(model.graph) if node.op_type in _TREES]
    if trees and all(node.op_type in _TREES | _AROUND_TREES for node in all_nodes(model.graph)):
        raise ModelError(
            f"{file} is an ensemble of decision trees",
            where=f"node {label(trees[0])}",
            why="QNN has no operator that walks trees, so nothing of it would run on the NPU",
            remedy="let onnxruntime run it on the CPU, as it is; or train a network on what it gives, and export that",
        )


def _check_interface(model: ModelProto) -> None:
    initialized = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initialized]
    for value in (*inputs, *model.graph.output):
        value_signature(value)
    for value in inputs:
        if not value.type.tensor_type.HasField("shape"):
            raise ModelError(
                f"input {value.name!r} has no rank",
                why="without it there are no axes to give values to",
                remedy="export the model with the shape of each input, dynamic dims named",
            )
    names = [value.name for value in model.graph.output]
    if not names or len(set(names)) < len(names):
        raise ModelError(
            "the model gives one output twice" if names else "the model has no outputs", remedy="export the model again"
        )
    for entry in model.opset_import:
        if entry.domain in DEFAULT_DOMAINS and entry.version > defs.onnx_opset_version():
            raise ModelError(
                f"the model is of opset {entry.version}",
                why=f"the newest that is known here is {defs.onnx_opset_version()}",
                remedy="export the model with an earlier opset",
            )


def _check_external(tensor: TensorProto) -> None:
    """Refuse an entry of external data that is ours alone."""
    if any(entry.key == KEY for entry in tensor.external_data):
        raise ModelError(
            f"the external data of tensor {tensor.name!r} has an entry {KEY!r}",
            why="ONNX knows location, offset, length, checksum and basepath",
            remedy="export the model again",
        )


def _without_weights(model: ModelProto) -> ModelProto:
    """The model with its external tensors emptied: ONNX's checker would look for their files.

    Outputs have a rank, which the checker wants and onnxruntime does not.
    """
    light = ModelProto()
    light.CopyFrom(model)
    for value in light.graph.output:
        if not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
    for tensor in all_tensors(light.graph):
        _check_external(tensor)
        if is_external(tensor):
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0], raw_data=b""))
    return light


def _float_file(file: str) -> str:
    """The name the fp32 model has where the hub's converters made this one."""
    plain = _VARIANT.sub("", file)
    return repr(plain) if plain != file else "on the hub it is usually 'onnx/model.onnx'"


def _written_out(
    identity: Identity,
    functions: Mapping[Identity, FunctionProto],
    sizes: dict[Identity, int],
    callers: Sequence[Identity] = (),
) -> int:
    """Nodes that a call of this function becomes; a node that is no call is one."""
    if identity not in functions:
        return 1
    if identity in callers or len(callers) > _DEEPEST_CALL:
        raise ModelError(
            f"function {identity[1]!r} of the model calls itself"
            if identity in callers
            else f"functions of the model call each other more than {_DEEPEST_CALL} deep",
            where=" -> ".join(repr(name) for _, name, _ in (*callers[:5], identity)),
            remedy="export the model again",
        )
    if identity not in sizes:
        calls = (each for node in functions[identity].node for each in (node, *_inside(node)))
        path = (*callers, identity)
        sizes[identity] = sum(_written_out(identity_of(node), functions, sizes, path) for node in calls)
    return sizes[identity]


def _inside(node: NodeProto) -> Iterator[NodeProto]:
    for graph in attribute_graphs(node):
        yield from all_nodes(graph)
