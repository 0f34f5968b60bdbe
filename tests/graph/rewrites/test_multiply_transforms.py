from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all, multiply_transforms
from tests.support.graphs import constant, graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

# The dims that are given, the axis, the length if it is said, and the attributes.
TRANSFORMS: dict[str, tuple[tuple[int, ...], int, int | None, str]] = {
    "real": ((3, 16, 1), 1, None, ""),
    "complex": ((3, 15, 2), 1, None, ""),
    "half": ((3, 16, 1), 1, None, "onesided = 1"),
    "half of an odd one": ((3, 15, 1), 1, None, "onesided = 1"),
    "inverse": ((3, 16, 2), 1, None, "inverse = 1"),
    "inverse of real numbers": ((3, 16, 1), 1, None, "inverse = 1"),
    "the first axis": ((12, 3, 4, 2), 0, None, ""),
    "an axis between": ((2, 3, 12, 4, 1), 2, None, "onesided = 1"),
    "padded": ((3, 10, 1), 1, 16, "onesided = 1"),
    "of four dims": ((2, 16, 4, 2), 1, None, ""),
    "cut": ((3, 20, 2), 1, 13, "inverse = 1"),
    "cut, complex": ((2, 20, 4, 2), 1, 9, ""),
}
HALVES_BACK: dict[str, tuple[tuple[int, ...], int, int | None, str]] = {
    "half, inverse": ((3, 9, 2), 1, 16, "inverse = 1, onesided = 1"),
    "half of an odd one, inverse": ((3, 8, 2), 1, 15, "inverse = 1, onesided = 1"),
    "half, inverse, the first axis": ((9, 3, 2), 0, 16, "inverse = 1, onesided = 1"),
}

Form = tuple[tuple[int, ...], int, int | None, str]


def build(form: Form, opset: int = 20) -> tuple[ModelProto, dict[str, NDArray[np.float32]]]:
    dims, axis, length, how = form
    constants: dict[str, Any] = {} if length is None else {"length": np.array(length)}
    reads = "x, length" if length is not None else "x"
    if opset >= 20:
        constants["axis"] = np.array(axis)
        reads += ", axis" if length is not None else ", , axis"
    else:
        how = ", ".join(filter(None, (how, f"axis = {axis}")))
    made = ",".join("abcdefg"[: len(dims)])
    text = f"g (float{list(dims)} x) => (float[{made}] y) {{ y = DFT {f'<{how}>' if how else ''} ({reads}) }}"
    x = np.random.default_rng(0).normal(size=dims).astype(np.float32)
    return graph(text, constants, opset=opset), {"x": x}


def close(made: NDArray[Any], expected: NDArray[Any], most: float = 1e-6) -> None:
    np.testing.assert_allclose(made, expected, atol=most * float(np.abs(expected).max()), rtol=0)


def truth(x: NDArray[np.float32], axis: int, length: int | None, how: str) -> NDArray[np.float64]:
    """The transform in float64."""
    given = x[..., 0] + (1j * x[..., 1].astype(np.float64) if x.shape[-1] == 2 else 0)
    if "onesided" in how:
        made = (np.fft.irfft if "inverse" in how else np.fft.rfft)(given, length, axis=axis)
    else:
        made = (np.fft.ifft if "inverse" in how else np.fft.fft)(given, length, axis=axis)
    parts = [made.real, made.imag] if np.iscomplexobj(made) else [made.real]
    return np.stack(parts, -1)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_is_a_product(name: str, opset: int, tmp_path: Path) -> None:
    model, feeds = build(TRANSFORMS[name], opset)
    before = outputs(model, feeds)["y"]

    assert apply_all(model, tmp_path)["multiply_transforms"] == 1

    assert operators(model)["MatMul"] == 1
    assert operators(model)["DFT"] == 0
    after = outputs(model, feeds)["y"]
    close(after, before, 2e-5)  # onnxruntime's own error, where a length is no power of two
    close(after, truth(feeds["x"], *TRANSFORMS[name][1:]))
    assert multiply_transforms.apply(model, tmp_path) == 0


@pytest.mark.parametrize("name", HALVES_BACK)
def test_half_a_spectrum_comes_back(name: str, tmp_path: Path) -> None:
    model, feeds = build(HALVES_BACK[name])
    expected = truth(feeds["x"], *HALVES_BACK[name][1:])
    close(outputs(model, feeds)["y"], expected, 2e-5)

    assert multiply_transforms.apply(model, tmp_path) == 1

    close(outputs(model, feeds)["y"], expected)


def test_transforms_of_one_length_share_their_weights(tmp_path: Path) -> None:
    text = (
        "g (float[2,16,16,2] x) => (float[2,16,16,2] y) { a = DFT (x, , one)  b = DFT (a, , two) y = DFT (b, , one) }"
    )
    model = graph(text, {"one": np.array(1), "two": np.array(2)}, opset=20)
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 16, 16, 2)).astype(np.float32)}
    before = outputs(model, feeds)["y"]

    assert multiply_transforms.apply(model, tmp_path) == 3

    assert len([tensor for tensor in model.graph.initializer if list(tensor.dims) == [32, 32]]) == 1
    assert constant(model, "a_waves").dtype == np.float32
    close(outputs(model, feeds)["y"], before, 2e-5)


# The dims of a signal, the step, the length if it is said, whether there is a window, and the attribute.
FRAMES: dict[str, tuple[tuple[int, ...], int, int | None, bool, int | None]] = {
    "real": ((2, 96, 1), 8, 16, True, 1),
    "both halves": ((1, 96, 1), 12, 16, True, 0),
    "side by side": ((1, 96, 1), 16, 16, True, 1),
    "without a window": ((1, 96, 1), 8, 15, False, 1),
    "as long as the window": ((1, 96, 1), 8, None, True, 1),
    "complex": ((1, 96, 2), 8, 16, True, 0),
}


def frames(form: tuple[tuple[int, ...], int, int | None, bool, int | None]) -> tuple[ModelProto, dict[str, Any]]:
    dims, step, length, has_window, onesided = form
    constants: dict[str, Any] = {"step": np.array(step)}
    if length is not None:
        constants["length"] = np.array(length)
    if has_window:
        constants["window"] = np.hanning(length or 16).astype(np.float32)
    how = "" if onesided is None else f"<onesided = {onesided}>"
    reads = ", ".join(name if name in constants else "" for name in ("window", "length")).rstrip(", ")
    text = f"g (float{list(dims)} x) => (float[b,f,k,two] y) {{ y = STFT {how} (x, step, {reads}) }}"
    return graph(text, constants), {"x": np.random.default_rng(0).normal(size=dims).astype(np.float32)}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_are_a_convolution(name: str, tmp_path: Path) -> None:
    model, feeds = frames(FRAMES[name])
    before = outputs(model, feeds)["y"]

    assert apply_all(model, tmp_path)["multiply_transforms"] == 1

    assert operators(model)["Conv"] == 1
    close(outputs(model, feeds)["y"], before, 2e-5)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,4096,2] x) => (float[2,4096,2] y) { y = DFT <axis = 1> (x) }",
        "g (float[2,64,2] x, int64 n) => (float[2,m,2] y) { y = DFT <axis = 1> (x, n) }",
        "g (double[2,64,2] x) => (double[2,64,2] y) { y = DFT <axis = 1> (x) }",
        "g (float[2,64,1] x, float[16] w) => (float[2,7,9,2] y) { y = STFT <onesided = 1> (x, eight, w) }",
        "g (float[2,64,1] x) => (float[2,8,8,2] y) { y = STFT <onesided = 0> (x, eight, , eight) }",
        "g (float[3,12,2] x) => (float[3,16,1] y) { y = DFT <axis = 1, inverse = 1, onesided = 1> (x, sixteen) }",
    ],
    ids=["large", "a computed length", "doubles", "a computed window", "side by side", "half of another length"],
)
def test_others_are_left_alone(text: str, tmp_path: Path) -> None:
    constants = {name: np.array(size) for name, size in (("eight", 8), ("sixteen", 16)) if name in text}
    assert multiply_transforms.apply(graph(text, constants), tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("name", [*TRANSFORMS, *HALVES_BACK, *FRAMES])
def test_the_chip_takes_it(name: str, rounded: bool, tmp_path: Path) -> None:
    model, feeds = frames(FRAMES[name]) if name in FRAMES else build((TRANSFORMS | HALVES_BACK)[name])
    component = with_rewrites(tmp_path / "model", model)
    made = component.rewrite["all"]
    if rounded:
        made = component.quantize("all", component.calibrate([feeds]), weights="int16")

    chip = on_chip(made, [feeds], tmp_path / "chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, [feeds]), chip.outputs, "y") > 60


@pytest.mark.slow
def test_qnn_has_neither_in_integers(tmp_path: Path) -> None:
    for name, (model, feeds) in (("a", build(TRANSFORMS["real"])), ("b", frames(FRAMES["real"]))):
        component = without_rewrites(tmp_path / name / "model", model)
        quantized = component.quantize("all", component.calibrate([feeds]))
        with pytest.raises(Exception, match="compiled nothing"):
            on_chip(quantized, [feeds], tmp_path / name / "chip")
