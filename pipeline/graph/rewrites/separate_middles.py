"""Multiply with weights of 4 bits that have minima as HTP can: with steps around zero, and with what they stand around.

Before, with a weight [inputs, outputs] whose bytes are blocks of Q4_1 or Q4_K::

    MatMul(x, weight)

After::

    Add(MatMul(x, weight_steps), MatMul(MatMul(x, block_means), weight_middles))

`weight_steps` is a scale times an integer from -8 to 7, for each 32 inputs, and `weight_middles` [inputs / 32, outputs]
has what lies in the middle of these. `block_means` [inputs, inputs / 32] makes the mean of each 32 inputs, and the
middles are times 32: so the means are no larger than the inputs. The sum is the product, but for rounding of float32.

HTP (2.51) computes blocks of 4 bits with zero points wrongly, so such weights had to be rounded again. Steps have none:
int4 holds them as they are. Not applied to every model: at 8 bits it gains nothing. :func:`apply` is called where the
scheme has weights of 4 bits in blocks.

The result keeps its name, the first product the node's; each new node has that name with more behind it. Left alone:
weights in any other form, a Gemm with a bias, a factor, or a weight that it does not turn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from pipeline.graph.files.blocks import BLOCK
from pipeline.graph.files.model_file import external_range, is_external, set_external
from pipeline.graph.files.stored_form import StoredForm, form_of
from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import GraphIndex, is_op, prune
from pipeline.graph.language.names import BLOCK_MEANS, JOINED, MEANS, MIDDLES


def apply(model: ModelProto, folder: Path) -> int:
    """Change the model in place; returns the number of products changed."""
    return _Separation(model, folder).apply()


class _Separation:
    def __init__(self, model: ModelProto, folder: Path) -> None:
        self._model = model
        self._index = GraphIndex(model, folder)
        self._new: dict[str, TensorProto] = {}
        self._means: dict[str, str] = {}

    def apply(self) -> int:
        """See :func:`apply`."""
        nodes: list[NodeProto] = []
        separated = 0
        for node in self._model.graph.node:
            form = self._form(node)
            if form is None:
                nodes.append(node)
            else:
                nodes += self._separate(node, form)
                separated += 1
        if separated:
            copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
            del self._model.graph.node[:]
            self._model.graph.node.extend(copies)
            self._model.graph.initializer.extend(self._new.values())
            prune(self._model)
        return separated

    def _form(self, node: NodeProto) -> StoredForm | None:
        """The form of the weight that a product reads, if it is one to separate."""
        if not is_op(node, "MatMul", "Gemm") or len(node.input) != 2 or node.input[1] not in self._index.initializers:
            return None
        weight = self._index.initializers[node.input[1]]
        form = form_of(weight) if is_external(weight) else None
        if form is None or form.separated() is None or len(weight.dims) != 2 or node.input[0] not in self._index.types:
            return None
        if is_op(node, "MatMul"):  # which reads [inputs, outputs], what follows [outputs, inputs]
            return form if form.transposed else None
        return form if settings(node) == {"transB": 1} and not form.transposed else None

    def _separate(self, node: NodeProto, form: StoredForm) -> list[NodeProto]:
        value, result = str(node.input[0]), str(node.output[0])
        steps, middles = self._constants(str(node.input[1]), form)
        made: list[NodeProto] = []
        if value not in self._means:
            self._means[value] = self._unused(f"{value}{MEANS}")
            averages = self._averages(form.columns)
            made.append(helper.make_node("MatMul", [value, averages], [self._means[value]], f"{node.name}{MEANS}"))
            self._describe(self._means[value], value, form.columns // BLOCK)
        first, second = self._unused(f"{result}_steps"), self._unused(f"{result}{MIDDLES}")
        made.append(helper.make_node(node.op_type, [value, steps], [first], node.name))
        made.append(helper.make_node(node.op_type, [self._means[value], middles], [second], f"{node.name}{MIDDLES}"))
        for each in made[-2:]:
            each.attribute.extend(node.attribute)
        for name in (first, second):
            self._describe(name, value, form.rows)
        made.append(helper.make_node("Add", [first, second], [result], f"{node.name}{JOINED}"))
        return made

    def _constants(self, name: str, form: StoredForm) -> tuple[str, str]:
        """The two weights that one becomes, which read the same bytes."""
        names = f"{name}_steps", f"{name}{MIDDLES}"
        parts = form.separated()
        assert parts is not None
        place = external_range(self._index.initializers[name])
        for own, part, scale in zip(names, parts, (form.scale, BLOCK * form.scale), strict=True):
            if own not in self._new:
                dims = (part.columns, part.rows) if part.transposed else (part.rows, part.columns)
                tensor = TensorProto(name=own, data_type=TensorProto.FLOAT, dims=dims)
                read = StoredForm(part.blocks, part.rows, part.columns, part.heads, part.transposed, scale)
                set_external(tensor, place.location, place.offset, read.nbytes, read)
                self._new[own] = tensor
        return names

    def _averages(self, inputs: int) -> str:
        """[inputs, inputs / 32]: a 32nd where an input is one of a block's."""
        name = f"{BLOCK_MEANS}{inputs}"
        if name not in self._new:
            each = np.repeat(np.eye(inputs // BLOCK, dtype=np.float32), BLOCK, axis=0) / BLOCK
            self._new[name] = numpy_helper.from_array(each, name)
        return name

    def _describe(self, name: str, like: str, last: int) -> None:
        """Note the type of a new value: that of another with another last dim."""
        given = self._index.types[like].tensor_type
        dims = [*(dim.dim_value for dim in given.shape.dim[:-1]), last]
        self._model.graph.value_info.append(helper.make_tensor_value_info(name, given.elem_type, dims))

    def _unused(self, name: str) -> str:
        return self._index.unused(name)
