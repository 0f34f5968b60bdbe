"""Which side files an ONNX file takes its weights from."""

from __future__ import annotations

from pathlib import Path

from pipeline.graph.files.lean_parse import parse_lean
from pipeline.graph.ir.traverse import all_tensors


def locations(path: Path) -> list[str]:
    """The external data that an ONNX file names, each once, in the file's order.

    Raises:
        ModelError: the file is no ONNX model.
    """
    model = parse_lean(path)
    found: dict[str, None] = {}
    for tensor in all_tensors(model.graph):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value != path.name:
                found[entry.value] = None
    return list(found)
