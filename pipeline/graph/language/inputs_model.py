"""The model `inputs.onnx`: from positions and what is seen to the inputs that a language model's context takes.

onnxruntime-genai counts positions and knows which tokens are padding; cosines, sines and the additive mask it does not
make (`WindowedPositionInputs` in its `src/models/position_inputs.cpp`, 0.16). This model makes them on the CPU, with
the encodings of the context:

    position_ids     int32 [1, AR]      to position_ids_cos, _sin [1, 1, AR, head_dim / 2], also `_local`
    attention_seen   int32 [1, N]       to attention_mask [1, 1, AR, N]: 0 where a token sees a position, else -50
    input_ids        int32 [1, AR]      to inputs_embeds [1, AR, hidden], where the context takes rows of a table

Cosines and sines are looked up, in tables that numpy computes as :mod:`pipeline.graph.language.loop` does: the integers
are the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from pipeline.contracts.language import Edges, LanguageFacts
from pipeline.graph.files.model_file import inline_tensor, set_external
from pipeline.graph.language.builder import MASKED
from pipeline.graph.language.loop import stored
from pipeline.graph.language.names import EMBEDDED, IDS, TABLE

OPSET, IR_VERSION = 17, 8
POSITIONS, SEEN, MASK = "position_ids", "attention_seen", "attention_mask"


def inputs_model(facts: LanguageFacts, total: int, edges: Edges) -> bytes:
    """The serialized model for contexts that see `total` positions and take integers by `edges`."""
    return _Inputs(facts, total, edges).model()


class _Inputs:
    def __init__(self, facts: LanguageFacts, total: int, edges: Edges) -> None:
        self._facts, self._total, self._edges = facts, total, edges
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, TensorProto] = {}
        self._outputs: list[ValueInfoProto] = []

    def model(self) -> bytes:
        """All of it."""
        for suffix, rotation in self._facts.rotations.items():
            angles = np.outer(np.arange(self._total), np.array(rotation.frequencies))
            self._looked_up(f"position_ids_cos{suffix}", np.cos(angles).astype(np.float32))
            self._looked_up(f"position_ids_sin{suffix}", np.sin(angles).astype(np.float32))
        self._mask()
        given = [
            helper.make_tensor_value_info(POSITIONS, TensorProto.INT32, [1, "tokens"]),
            helper.make_tensor_value_info(SEEN, TensorProto.INT32, [1, self._total]),
        ]
        if EMBEDDED in self._edges:
            self._rows()
            given.append(helper.make_tensor_value_info(IDS, TensorProto.INT32, [1, "tokens"]))
        graph = helper.make_graph(self._nodes, "inputs", given, self._outputs, list(self._constants.values()))
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        return bytes(made.SerializeToString(deterministic=True))

    def _looked_up(self, name: str, table: NDArray[np.float32]) -> None:
        kept = self._constant(f"{name}_table", stored(table, self._edges, name))
        rows = self._op("Gather", f"{name}_rows", kept, POSITIONS, axis=0)
        self._op("Unsqueeze", name, rows, self._constant("axis_1", np.array([1], np.int64)))
        self._output(name, table.shape[1])

    def _rows(self) -> None:
        """A row of the table for each token; the table stays in its file, which every engine reads."""
        shape = self._facts.vocabulary, self._facts.hidden
        table = TensorProto(name="embedding_table", data_type=TensorProto.UINT16, dims=shape)
        set_external(table, TABLE, 0, 2 * shape[0] * shape[1])
        self._constants[table.name] = table
        self._op("Gather", EMBEDDED, table.name, IDS, axis=0)
        self._outputs.append(helper.make_tensor_value_info(EMBEDDED, TensorProto.UINT16, [1, "tokens", shape[1]]))

    def _mask(self) -> None:
        """A token sees what is there, itself, and what is before it; the tokens of a run are the last of all."""
        zero, one = (self._constant(f"int32_{number}", np.array(number, np.int32)) for number in (0, 1))
        columns = self._constant("columns", np.arange(self._total, dtype=np.int32)[None, :])
        shape = self._op("Shape", "positions_shape", POSITIONS)
        count = self._op("Gather", "count", shape, self._constant("at_1", np.array(1, np.int64)), axis=0)
        tokens = self._op("Cast", "tokens", count, to=TensorProto.INT32)
        first = self._op("Sub", "first", self._constant("total", np.array(self._total, np.int32)), tokens)
        places = self._op("Range", "places", zero, tokens, one)
        last = self._op("Add", "last", places, first)
        rows = self._op("Unsqueeze", "last_rows", last, self._constant("axis_1", np.array([1], np.int64)))
        before = self._op("LessOrEqual", "before", columns, rows)
        there = self._op("Greater", "there", SEEN, zero)
        sees = self._op("And", "sees", before, there)
        choice = self._op("Cast", "choice", sees, to=TensorProto.INT32)
        # onnxruntime's Where takes no uint16 on the CPU, its Gather does.
        values = stored(np.array([MASKED, 0], np.float32), self._edges, MASK)
        flat = self._op("Gather", "mask_rows", self._constant("mask_values", values), choice, axis=0)
        self._op("Unsqueeze", MASK, flat, self._constant("axes_0_1", np.array([0, 1], np.int64)))
        self._output(MASK, self._total)

    def _op(self, kind: str, made: str, *inputs: str, axis: int | None = None, to: int | None = None) -> str:
        node = helper.make_node(kind, list(inputs), [made], made)
        given = (("axis", axis), ("to", to))
        node.attribute.extend(helper.make_attribute(name, value) for name, value in given if value is not None)
        self._nodes.append(node)
        return made

    def _constant(self, name: str, array: NDArray[np.generic]) -> str:
        self._constants[name] = inline_tensor(name, array)
        return name

    def _output(self, name: str, size: int) -> None:
        edge = self._edges.get(name)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(edge.dtype if edge else np.float32))
        self._outputs.append(helper.make_tensor_value_info(name, kind, [1, 1, "tokens", size]))
