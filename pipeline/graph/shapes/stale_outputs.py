"""Outputs whose declaration in the file is not what is computed."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TypeProto, ValueInfoProto

from pipeline.graph.ir.inference import shape_of, spell
from pipeline.graph.shapes import shape_errors
from pipeline.graph.shapes.axes import DimError, dim_size


def declared_otherwise(value: ValueInfoProto, actual: TypeProto, axes: Mapping[str, int]) -> list[str]:
    """What the model declares of an output that it is not: onnxruntime computes it all the same, with a warning.

    Raises:
        ModelError: it is of another element type.
    """
    declared = value.type.tensor_type
    dims = shape_of(actual)
    if declared.elem_type not in (0, actual.tensor_type.elem_type):
        raise shape_errors.wrong_output(value, actual)
    if not declared.HasField("shape"):
        return []
    if len(declared.shape.dim) != len(dims):
        return [f"{value.name} is declared {spell(value.type)} and is {spell(actual)}"]
    found = []
    for position, (dim, size) in enumerate(zip(declared.shape.dim, dims, strict=True)):
        if dim.dim_value > 0 and dim.dim_value != size:
            found.append(f"{value.name}[{position}] is declared {dim.dim_value} and is {size}")
        try:
            named = dim_size(dim.dim_param, axes) if dim.dim_param else size
        except DimError:  # a name of the exporter's making, which no input has
            continue
        if named != size:
            found.append(f"{value.name}[{position}] is named {dim.dim_param!r} ({named}) and is {size}")
    return found
