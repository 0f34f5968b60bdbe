"""The values of a graph that are known before it runs, and folding: computing more of them.

Nodes are evaluated by onnxruntime's CPU kernels, one at a time: what is folded is what the model would have computed,
bit for bit (float16 aside, where onnxruntime leaves out the roundings between nodes that it computes in float32). Large
results are not computed until they are written, one after another, so that folding takes no more memory than the
largest of them.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from pipeline.errors import ModelError
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import EXTERNAL_BYTES, is_external, packed_size, tensor_array
from pipeline.graph.ir.inference import Opsets, ShapeError, infer_outputs, is_static, one_node_session, shape_of
from pipeline.graph.ir.ops import VIEWS
from pipeline.graph.ir.traverse import all_nodes, attribute_graphs, label, reads

FOLD_LIMIT = 64 << 20
"""A node whose result would be larger than this, and than twice its inputs, is left in the graph."""

_GROWTH: Mapping[str, int] = {"DequantizeLinear": 16}
"""How many times its inputs a result may take whatever its size, where that is not twice: weights are unpacked."""

_AT_ONCE = 1 << 20
"""Results up to this many bytes are computed when their node is folded, larger ones when they are written."""

_FOREIGN = frozenset(
    f"tensor({name})"
    for name in ("bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float4e2m1", "int4",
                 "uint4", "int2", "uint2")
)  # fmt: skip
"""Types that numpy has not, as onnxruntime spells them."""

_LONGEST_S = 20.0
"""A node with a loop inside that takes longer to compute is refused: it may have no end."""

_DEFERRED = 3
"""So many results on top of each other wait to be computed: each may be computed again for all that read it."""

RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Operators that draw numbers, others in each run."""


@dataclass(frozen=True)
class _Result:
    """One output of a node that is evaluated on demand; `index` counts the outputs that have a name.

    `depth` is 1, or one more than that of the results it is computed from.
    """

    node: NodeProto
    index: int
    depth: int


_Content = tuple[bytes, tuple[tuple[str, tuple[int, ...], bytes], ...]]
_SMALL, _MOST_ALIKE = 1 << 10, 1 << 12
"""Bytes up to which what a node reads is looked up among those that were evaluated, and how many of these are kept.
Layers compute the same shapes again, and a session of onnxruntime takes 1 ms."""


@dataclass(frozen=True)
class _View:
    """The elements of another constant, in other dims."""

    of: str


class Constants:
    """The known values of one graph, by name."""

    def __init__(self, initializers: Iterable[TensorProto], folder: Path, opsets: Opsets) -> None:
        """`folder` is where external data of the initializers lies."""
        self.types: dict[str, TypeProto] = {}
        self._sources: dict[str, TensorProto | NDArray[Any] | _Result | _View] = {}
        self._folder = folder
        self._opsets = opsets
        self._latest: tuple[NodeProto, list[NDArray[Any]]] | None = None
        self._alike: dict[_Content, list[NDArray[Any]]] = {}
        for tensor in initializers:
            self.add_tensor(tensor)

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    def __len__(self) -> int:
        return len(self._sources)

    def add_tensor(self, tensor: TensorProto) -> None:
        """Add an initializer; its data is read when it is needed."""
        self._sources[tensor.name] = tensor
        self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)

    def add_array(self, name: str, array: NDArray[Any]) -> None:
        """Add a computed value."""
        self._sources[name] = array
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.types[name] = helper.make_tensor_type_proto(kind, array.shape)

    def value(self, name: str) -> NDArray[Any]:
        """The value of a constant, read or computed now.

        Raises:
            ModelError: its data is not what the model says, or onnxruntime can't evaluate the node that makes it.
        """
        source = self._sources[name]
        if isinstance(source, np.ndarray):
            return source
        if isinstance(source, TensorProto):
            return tensor_array(source, self._folder)
        if isinstance(source, _View):
            return self.value(source.of).reshape(shape_of(self.types[name]))
        return self._evaluate(source.node)[source.index]

    def small(self, name: str) -> TensorProto | None:
        """A constant of less than EXTERNAL_BYTES as an inline tensor; None if it is larger or not known."""
        source = self._sources.get(name)
        if source is None or self.nbytes(name) >= EXTERNAL_BYTES:
            return None
        if isinstance(source, TensorProto) and not is_external(source):
            return source
        return numpy_helper.from_array(self.value(name), name)

    def tensor(self, name: str, blob: BlobWriter) -> TensorProto:
        """A constant as an initializer: as it came if it did, else inside the graph file or in `blob` by size."""
        source = self._sources[name]
        return source if isinstance(source, TensorProto) else blob.tensor(name, self.value(name))

    def stored(self, name: str) -> TensorProto | None:
        """A constant as a tensor of this name and its dims whose bytes came with the model; None if it was computed."""
        source = self._sources[name]
        if isinstance(source, TensorProto):
            return source
        base = self.stored(source.of) if isinstance(source, _View) else None
        if base is None:
            return None
        tensor = TensorProto()
        tensor.CopyFrom(base)
        tensor.name = name
        del tensor.dims[:]
        tensor.dims.extend(shape_of(self.types[name]))
        return tensor

    def nbytes(self, name: str) -> int:
        """The bytes of a constant's value."""
        return type_bytes(self.types[name])

    def covers(self, node: NodeProto) -> bool:
        """Whether all that a node reads is known, and reading it again would give the same."""
        return all(name in self._sources for name in reads(node)) and not is_random(node)

    def fold(self, node: NodeProto, outputs: Mapping[str, TypeProto] | None = None) -> bool:
        """Make the outputs of a node constants if its inputs are; False if they aren't, or it would grow too large.

        `outputs` are its output types where they have been inferred already.

        Raises:
            ShapeError: the node's inputs contradict each other.
            ModelError: onnxruntime can't evaluate it.
        """
        if not self.covers(node):
            return False
        if node.op_type == "Constant":
            self.add_tensor(constant_tensor(node))
            return True
        if outputs is None:
            outputs = infer_outputs(node, self.types, self.small, self._opsets)
        given = sum(self.nbytes(name) for name in reads(node))
        named = [name for name in node.output if name]
        if not all(is_static(outputs.get(name)) for name in named):
            if given > _AT_ONCE:
                return False
            return self._keep(node)
        size = sum(type_bytes(outputs[name]) for name in named)
        if size > max(FOLD_LIMIT, _GROWTH.get(node.op_type, 2) * given):
            return False
        if node.op_type in VIEWS and node.domain == "":
            before, after = (math.prod(shape_of(each)) for each in (self.types[node.input[0]], outputs[node.output[0]]))
            if before != after:
                raise ShapeError(f"{before} elements can't be in dims of {after}")
            source = self._sources[node.input[0]]
            self._sources[node.output[0]] = source if isinstance(source, _View) else _View(node.input[0])
        elif size <= _AT_ONCE or (depth := self._depth(node)) > _DEFERRED:
            return self._keep(node)
        else:
            self._sources |= {name: _Result(node, index, depth) for index, name in enumerate(named)}
        self.types |= {name: outputs[name] for name in named}
        return True

    def _keep(self, node: NodeProto) -> bool:
        values = self._evaluate(node)
        if not all(isinstance(value, np.ndarray) for value in values):
            return False
        for name, value in zip((name for name in node.output if name), values, strict=True):
            self.add_array(name, value)
        return True

    def _is_packed(self, name: str) -> bool:
        """Whether onnxruntime takes a value as an initializer only: its Python interface knows numpy's own types."""
        return helper.tensor_dtype_to_np_dtype(self.types[name].tensor_type.elem_type).isbuiltin != 1

    def _depth(self, node: NodeProto) -> int:
        """How many results that wait to be computed one of this node would be on top of, and it."""
        given = [self._sources[name] for name in reads(node)]
        given = [self._sources[source.of] if isinstance(source, _View) else source for source in given]
        return 1 + max((source.depth for source in given if isinstance(source, _Result)), default=0)

    def _evaluate(self, node: NodeProto) -> list[NDArray[Any]]:
        if self._latest is not None and self._latest[0] is node:
            return self._latest[1]
        feeds = {name: self.value(name) for name in reads(node)}
        content = _content(node, feeds)
        if content in self._alike:
            return [each.copy() for each in self._alike[content]]
        try:
            _check_division(node, feeds)
            packed = [
                numpy_helper.from_array(_wider(feeds.pop(name)), name) for name in [*feeds] if self._is_packed(name)
            ]
            known = {name: self.types[name] for name in feeds}
            session = one_node_session(node, known, self.types, packed, self._opsets)
            results = _run(session, feeds, bounded=any(True for _ in attribute_graphs(node)))
        except Exception as error:  # onnxruntime raises classes of its own without a common base
            raise ModelError(
                f"node {label(node)} is constant, and onnxruntime can't evaluate it",
                where=", ".join(f"{name!r}: {feeds[name].dtype} {list(feeds[name].shape)}" for name in feeds),
                why=str(error).strip().splitlines()[0],
                remedy=_remedy(feeds),
            ) from None
        self._latest = (node, results)
        if content is not None and len(self._alike) < _MOST_ALIKE and _is_small(results):
            self._alike[content] = [each.copy() for each in results]
        return results


def _remedy(feeds: Mapping[str, NDArray[Any]]) -> str:
    """What to do where a node can't be computed in a bucket."""
    if gone := next((name for name, array in feeds.items() if array.size == 0), None):
        return f"take larger sizes in the config, such as the application gives the model: nothing is left of {gone!r}"
    return (
        "check that the original model runs in onnxruntime on the CPU with the sizes of this bucket:"
        " a table of positions may end before"
    )


def constant_tensor(node: NodeProto) -> TensorProto:
    """The value of a Constant node, named like its output.

    Raises:
        ModelError: it has no value, or a sparse one.
    """
    tensor = TensorProto()
    attribute = node.attribute[0] if len(node.attribute) == 1 else AttributeProto()
    match attribute.name:
        case "value":
            tensor.CopyFrom(attribute.t)
        case "value_float" | "value_floats":
            values: Any = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            tensor = numpy_helper.from_array(np.array(values, np.float32))
        case "value_int" | "value_ints":
            values = attribute.i if attribute.name == "value_int" else list(attribute.ints)
            tensor = numpy_helper.from_array(np.array(values, np.int64))
        case "value_string" | "value_strings":
            values = attribute.s if attribute.name == "value_string" else list(attribute.strings)
            tensor = numpy_helper.from_array(np.array(values, np.object_))
        case other:
            raise ModelError(
                f"node {label(node)} has no value that can be used",
                why=f"it is {other!r}" if other else "a Constant has exactly one value attribute",
                remedy="export the model with dense constants",
            )
    tensor.name = node.output[0]
    return tensor


def _content(node: NodeProto, feeds: Mapping[str, NDArray[Any]]) -> _Content | None:
    """What the results of a node depend on, whatever names it has; None where that is large or has a subgraph."""
    if not _is_small(feeds.values()) or node.ByteSize() > _SMALL or any(True for _ in attribute_graphs(node)):
        return None
    places = {name: str(place) for place, name in enumerate(feeds)}
    bare = NodeProto()
    bare.CopyFrom(node)
    bare.name = bare.doc_string = ""
    bare.input[:] = [places.get(name, "") for name in node.input]
    bare.output[:] = [name and "made" for name in node.output]
    values = tuple((array.dtype.name, array.shape, array.tobytes()) for array in feeds.values())
    return bare.SerializeToString(deterministic=True), values


def _is_small(values: Collection[object]) -> bool:
    """Whether these are arrays of few bytes; objects have more than numpy counts."""
    arrays = [each for each in values if isinstance(each, np.ndarray) and not each.dtype.hasobject]
    return len(arrays) == len(values) and sum(array.nbytes for array in arrays) <= _SMALL


def _run(session: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]], *, bounded: bool) -> list[NDArray[Any]]:
    """What a session computes; with `bounded`, an error after :data:`_LONGEST_S`."""
    results: list[NDArray[Any]]
    if not bounded:
        if any(each.type in _FOREIGN for each in session.get_outputs()):
            values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
            return [_array(value) for value in session.run_with_ort_values(None, values)]
        results = session.run(None, dict(feeds))
        return results
    options = ort.RunOptions()
    timer = threading.Timer(_LONGEST_S, lambda: setattr(options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        results = session.run(None, dict(feeds), options)
    except Exception:
        if options.terminate:
            raise TimeoutError(f"it takes longer than {_LONGEST_S:.0f} s: a loop in it may have no end") from None
        raise
    finally:
        timer.cancel()
    return results


def _wider(array: NDArray[Any]) -> NDArray[Any]:
    """Numbers of 4 bits in float8, which has them all: onnxruntime 1.31 has no kernels for them. Others as they are."""
    narrow, wide = (
        helper.tensor_dtype_to_np_dtype(kind) for kind in (TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E4M3FN)
    )
    return array.astype(wide) if array.dtype == narrow else array


def _array(value: ort.OrtValue) -> NDArray[Any]:
    """A value of any element type."""
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return numpy_helper.to_array(TensorProto(data_type=value.element_type(), dims=value.shape(), raw_data=raw))


def _check_division(node: NodeProto, feeds: Mapping[str, NDArray[Any]]) -> None:
    """Raise OverflowError for a quotient that does not fit its type: onnxruntime 1.31 divides, and the processor traps.

    The least integer has no counterpart.
    """
    if node.op_type not in ("Div", "Mod") or len(feeds) != 2 or len(node.input) != 2:
        return
    dividend, divisor = (feeds[name] for name in node.input)
    if dividend.dtype.kind == "i" and (divisor == -1).any() and (dividend == np.iinfo(dividend.dtype).min).any():
        raise OverflowError(f"{np.iinfo(dividend.dtype).min} by -1 does not fit {dividend.dtype}")


def is_random(node: NodeProto) -> bool:
    """Whether a node, or one inside it, gives something else each time."""
    inner = (each for graph in attribute_graphs(node) for each in all_nodes(graph))
    return any(each.op_type in RANDOM for each in (node, *inner))


def type_bytes(kind: TypeProto) -> int:
    """The bytes of a value of a static tensor type; 64 for each string."""
    probe, count = TensorProto(data_type=kind.tensor_type.elem_type), math.prod(shape_of(kind))
    return packed_size(probe, count) if probe.data_type != TensorProto.STRING else 64 * count
