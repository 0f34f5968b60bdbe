"""What moves an input of the model in front of a Concat or Pad is rescaled there: the chip does not do it inside."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.contracts.scheme import Scheme
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.qdq.qdq_model import Encoding, encoding_of
from pipeline.graph.quantization.quantizer import quantize
from tests.conformance.batches import run_batch
from tests.conformance.formats import observed
from tests.support.graphs import graph, outputs

STEPS = {"uint16": 2**16, "uint8": 2**8}
RANDOM = np.random.default_rng(0)
WIDE = RANDOM.uniform(0, 3, (2, 4, 8)).astype(np.float32)
NARROW = RANDOM.uniform(0, 0.7, (2, 8, 4)).astype(np.float32)
CONSTANTS: Mapping[str, NDArray[Any]] = {
    "dims": np.array([2, 4, 8]), "ends": np.array([0, 0, 1, 0, 0, 1]), "two": np.array(2, np.float32),
    "none": np.array([0]), "one": np.array([1]), "four": np.array([4]),
}  # fmt: skip
JOINED = {
    "transposed": "t = Transpose <perm = [0, 2, 1]> (z) y = Concat <axis = 1> (x, t)",
    "reshaped": "t = Reshape (z, dims) y = Concat <axis = 1> (t, x)",
    "padded": "t = Transpose <perm = [0, 2, 1]> (z) y = Pad (t, ends, two)",
    "joined before": "c = Concat <axis = 2> (z, z) t = Transpose <perm = [0, 2, 1]> (c)"
    " s = Slice (t, none, four, one) y = Concat <axis = 1> (x, s)",
}
OTHERS = {
    "as it came": "y = Concat <axis = 1> (x, u)",
    "computed": "a = Mul (z, z) t = Transpose <perm = [0, 2, 1]> (a) y = Concat <axis = 1> (x, t)",
}


def quantized(body: str, activations: str) -> tuple[ModelProto, dict[str, NDArray[Any]]]:
    dims = "2,4,10" if "Pad" in body else "2,8,8"
    used = {name: array for name, array in CONSTANTS.items() if f"{name}" in body}
    model = graph(
        f"g (float[2,4,8] x, float[2,8,4] z, float[2,4,8] u) => (float[{dims}] y) {{ {body} }}", used, opset=21
    )
    feeds = {"x": WIDE, "z": NARROW, "u": NARROW.reshape(WIDE.shape)}
    scheme = Scheme(activations, "uint8", per_channel=True)
    return quantize(model, Path(), observed(model, feeds), scheme).model, feeds


def read_in(model: ModelProto) -> tuple[list[Encoding | None], Encoding | None]:
    """The encodings of what the last Concat or Pad reads, and of what it makes."""
    index = GraphIndex(model, Path())
    node = [node for node in model.graph.node if node.op_type in ("Concat", "Pad")][-1]
    given = node.input[:1] if node.op_type == "Pad" else node.input
    return [encoding_of(index, name) for name in given], encoding_of(index, "y")


@pytest.mark.parametrize("activations", ["uint16", "uint8"])
@pytest.mark.parametrize("form", JOINED)
def test_a_moved_input_is_read_in_the_encoding_of_the_result(form: str, activations: str) -> None:
    model, _ = quantized(JOINED[form], activations)
    read, made = read_in(model)
    assert made is not None
    assert made in read


@pytest.mark.parametrize("form", OTHERS)
def test_others_are_read_as_they_are(form: str) -> None:
    read, made = read_in(quantized(OTHERS[form], "uint16")[0])
    assert made is not None
    assert read[1] is not None
    assert read[1].scale != made.scale


def test_what_is_joined_to_itself_many_times_is_looked_at_once() -> None:
    doubled = [
        f"c{number} = Concat <axis = 2> (v{number}, v{number}) v{number + 1} = Slice (c{number}, none, four, two)"
        for number in range(22)
    ]
    text = f"g (float[2,8,4] z) => (float[2,8,4] v22) {{ v0 = Mul (z, z) {' '.join(doubled)} }}"
    constants = {"none": np.array([0]), "four": np.array([4]), "two": np.array([2])}
    model = graph(text, constants, opset=21)
    feeds = {"z": NARROW}
    ranges = observed(model, feeds)
    begun = time.process_time()
    quantize(model, Path(), ranges, Scheme("uint16", "uint8", per_channel=True))
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("activations", ["uint16", "uint8"])
def test_the_chip_joins_them_rightly(activations: str, tmp_path: Path) -> None:
    made = [quantized(body, activations) for body in JOINED.values()]
    found = run_batch([model for model, _ in made], [feeds for _, feeds in made], tmp_path / "work")
    for (model, feeds), chip in zip(made, found, strict=True):
        np.testing.assert_allclose(chip.outputs[0], outputs(model, feeds)["y"], atol=5 / STEPS[activations])
