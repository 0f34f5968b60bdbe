"""Nodes and constants of a language model under construction, and the blocks that architectures are put together from.

Names are those of the work: the node `/layers.3/query` makes the value `/layers.3/query`. Matrices stay in the files of
the source, each with a note of its form there, and are what MatMul takes: [inputs, outputs]. Those that are looked up
and multiplied with (tied embeddings) are there once, and multiplied with by Gemm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from pipeline.errors import ModelError
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import EXTERNAL_BYTES, inline_tensor, set_external
from pipeline.graph.files.stored_form import StoredForm, StoredWeight
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.language.hyper import Hyper, Weights

OPSET = 23
"""The first with RMSNormalization, for which HTP has an operator."""
SEQUENCE, PAST = "sequence", "past"
"""The axes: tokens that a run takes, and positions of the cache before them."""
MASKED = -50.0
"""Added to the scores of positions that are not to be seen, by the graph contract of qai-hub-models 0.65."""


def _beside(path: Path) -> str:
    """The file itself, where the graph lies beside it."""
    return path.name


class GraphBuilder:
    """Collects what :meth:`model` makes a graph of."""

    def __init__(
        self, hyper: Hyper, weights: Weights, blob: BlobWriter, blob_of: Callable[[Path], str] = _beside
    ) -> None:
        """`blob_of` names the blob that a file of the source is: weights stay in it, in whatever form they are there.

        What the graph needs otherwise than the source has it goes to `blob`.
        """
        self.hyper = hyper
        self.weights = weights
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self._blob = blob
        self._blob_of = blob_of
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        """Add an input of the graph."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, source: str, shape: Sequence[int | str]) -> None:
        """Make a value an output of the graph, under another name."""
        for node in reversed(self.nodes):
            if source in node.output:
                node.output[:] = [name if each == source else each for each in node.output]
        for node in self.nodes:
            node.input[:] = [name if each == source else each for each in node.input]
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def op(self, kind: str, *inputs: str, name: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; the name of what it makes, or of the first of several: `<name>`, `<name>_2`."""
        made = [name, *(f"{name}_{number}" for number in range(2, outputs + 1))]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name, **attributes))
        return name

    def whole_numbers(self, *numbers: int) -> str:
        """An int64 constant, the same for the same numbers."""
        return self.constant(f"int64_{'_'.join(map(str, numbers))}", np.array(numbers, np.int64))

    def constant(self, name: str, values: NDArray[Any]) -> str:
        """A small constant."""
        self.initializers[name] = inline_tensor(name, values)
        return name

    def reshape(self, value: str, *shape: int, name: str) -> str:
        """A value in another shape; 0 keeps a dim, -1 takes what is left."""
        return self.op("Reshape", value, self.whole_numbers(*shape), name=name)

    def linear(self, value: str, weight: str, name: str, shape: tuple[int, int], scale: float = 1.0) -> str:
        """`value` times a matrix of the source, which is [outputs, inputs], plus its bias if it has one.

        Raises:
            ModelError: it is missing, or of another shape.
        """
        stem = weight.removesuffix(".weight")
        if f"{name}_weight" not in self.initializers:
            self.initializers[f"{name}_weight"] = self._matrix(f"{name}_weight", weight, shape, scale)
        bias = f"{stem}.bias"
        if self.weights.shape(bias) is None:
            return self.op("MatMul", value, f"{name}_weight", name=name)
        product = self.op("MatMul", value, f"{name}_weight", name=f"{name}_product")
        added = self.array(bias, shape[:1]) * np.float32(scale)
        self.initializers[f"{name}_bias"] = self._blob.tensor(f"{name}_bias", added)
        return self.op("Add", product, f"{name}_bias", name=name)

    def norm(self, value: str, weight: str, name: str, size: int, scale: float = 1.0, *, shrunk: float = 1.0) -> str:
        """RMSNormalization over the last axis, its result times `scale`; `value` is `shrunk` times too small."""
        gamma = self.array(weight, (size,)) * np.float32(scale)
        self.initializers[f"{name}_weight"] = self._blob.tensor(f"{name}_weight", gamma)
        epsilon = self.hyper.epsilon / shrunk**2
        return self.op("RMSNormalization", value, f"{name}_weight", name=name, axis=-1, epsilon=epsilon)

    def layer_norm(self, value: str, stem: str, name: str, size: int) -> str:
        """LayerNormalization over the last axis, with scale and bias."""
        for part in ("weight", "bias"):
            self.stored(f"{name}_{part}", self.array(f"{stem}.{part}", (size,)))
        inputs = (value, f"{name}_weight", f"{name}_bias")
        return self.op("LayerNormalization", *inputs, name=name, axis=-1, epsilon=self.hyper.epsilon)

    def stored(self, name: str, values: NDArray[np.float32]) -> str:
        """A constant of any size, whose bytes go to the blob."""
        self.initializers[name] = self._blob.tensor(name, values)
        return name

    def table(self, weight: str, name: str, shape: tuple[int, ...]) -> str:
        """A matrix as the source has it, too large to hold."""
        if name not in self.initializers:
            pieces = self._pieces(weight, shape)
            for _ in pieces:  # each is looked at as it is read
                pass
            stored = self.weights.stored(weight)
            self.initializers[name] = self._kept(name, stored, stored.form, shape)
        return name

    def array(self, weight: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A tensor of the source.

        Raises:
            ModelError: it is missing, of another shape, or holds what is no finite number.
        """
        found: NDArray[np.float32] = self._pieces(weight, shape).array()
        if not np.isfinite(found).all():
            raise not_finite(weight)
        return found

    def _matrix(self, name: str, weight: str, shape: tuple[int, int], scale: float) -> TensorProto:
        """A matrix of the source as MatMul takes it, [inputs, outputs]."""
        for _ in self._pieces(weight, shape):
            pass
        stored = self.weights.stored(weight)
        return self._kept(name, stored, replace(stored.form, transposed=True, scale=scale), shape[::-1])

    def _kept(self, name: str, stored: StoredWeight, form: StoredForm, shape: tuple[int, ...]) -> TensorProto:
        """A tensor whose bytes stay in the source."""
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        if 4 * math.prod(shape) < EXTERNAL_BYTES:
            return inline_tensor(name, form.array(stored.path, stored.offset, shape))
        set_external(tensor, self._blob_of(stored.path), stored.offset, form.nbytes, form)
        return tensor

    def model(self, name: str) -> bytes:
        """The graph as a serialized ONNX model without weights.

        Raises:
            ModelError: the source has tensors that the graph does not read: with them it is another model.
        """
        if unread := sorted(self.weights.unread()):
            more = f", and {len(unread) - 8} more" if len(unread) > 8 else ""
            raise ModelError(
                f"the source has {len(unread)} tensor(s) that architecture {self.hyper.architecture!r} does not have",
                why=f"they are not read: {', '.join(repr(each[:100]) for each in unread[:8])}{more}",
                remedy="take a file whose architecture is as its name says, or bring an ONNX export of this model",
            )
        graph = helper.make_graph(self.nodes, name, self._inputs, self._outputs, list(self.initializers.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11)
        return bytes(model.SerializeToString(deterministic=True))

    def _pieces(self, weight: str, shape: tuple[int, ...]) -> Pieces:
        found = self.weights.shape(weight)
        if found is None:
            raise ModelError(
                f"the source has no tensor {weight!r}",
                why=f"a model of architecture {self.hyper.architecture!r} needs one of shape {list(shape)}",
                remedy="fetch the file again; if it is whole, its architecture differs from what its metadata says",
            )
        if found != shape:
            raise ModelError(
                f"tensor {weight!r} has shape {list(found)}",
                why=f"by the model's metadata it is {list(shape)}",
                remedy="fetch the file again; if it is whole, report it with the model",
            )
        pieces = self.weights.pieces(weight)
        return Pieces(pieces.dtype, pieces.shape, lambda: (_finite(weight, each) for each in pieces))


def not_finite(weight: str) -> ModelError:
    """The error for a weight with NaN or infinity in it."""
    return ModelError(
        f"tensor {weight!r} holds NaN or infinity",
        why="whatever is computed with it is NaN too",
        remedy="fetch the file again; if it is so in the source, take another quantization of the model",
    )


def _finite(weight: str, piece: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(piece).all():
        raise not_finite(weight)
    return piece
