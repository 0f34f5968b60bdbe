from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.norms import normalize_along_last_axis
from tests.conformance.batches import run_batch
from tests.conformance.cases import single
from tests.conformance.formats import in_format
from tests.support.graphs import operators, outputs

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 3, 4, 6)).astype(np.float32)


def of(*dims: int) -> NDArray[np.float32]:
    return np.asarray(RANDOM.normal(size=dims), np.float32)


def norm(
    operator: str,
    *factors: NDArray[np.float32],
    axis: int = -1,
    constants: tuple[int, ...] = (1, 2),
    outputs: int = 1,
) -> tuple[ModelProto, dict[str, NDArray[Any]]]:
    """A norm of X, which is RMSNormalization from opset 23 on."""
    constants = tuple(place for place in constants if place <= len(factors))
    return single(operator, [X, *factors], constants=constants, outputs=outputs, opset=23, axis=axis)


@pytest.mark.parametrize("axis", [0, 1, 2, -2, -4])
@pytest.mark.parametrize("factors", ["a scale", "a scale and a bias", "a scale along the last axis"])
def test_the_axes_are_put_together(axis: int, factors: str, tmp_path: Path) -> None:
    over = X.shape[axis:]
    given = [of(6) if "last" in factors else of(*over), *([of(*over)] if "bias" in factors else [])]
    model, feeds = single("LayerNormalization", [X, *given], constants=(1, 2), axis=axis, epsilon=0.01)
    before = outputs(model, feeds)["y0"]

    assert apply_all(model, tmp_path)["normalize_along_last_axis"] == 1

    assert operators(model) == {"Reshape": 2, "LayerNormalization": 1}
    np.testing.assert_allclose(outputs(model, feeds)["y0"], before, atol=1e-5)
    assert normalize_along_last_axis.apply(model, tmp_path) == 0


@pytest.mark.parametrize("dims", [(1, 1, 4, 6), (1, 4, 6), (4, 1), (1, 1, 1, 6), (1, 1, 1), (1,), ()])
def test_factors_are_spread_over_the_axes(dims: tuple[int, ...], tmp_path: Path) -> None:
    model, feeds = single("LayerNormalization", [X, of(*dims), of(*dims)], constants=(1, 2), axis=2)
    before = outputs(model, feeds)["y0"]
    assert normalize_along_last_axis.apply(model, tmp_path) == 1
    np.testing.assert_allclose(outputs(model, feeds)["y0"], before, atol=1e-5)


ONES = [(1, 6), (1, 1, 6), (1, 1, 1, 6), (1,), (1, 1), ()]


@pytest.mark.parametrize("dims", ONES)
@pytest.mark.parametrize("operator", ["LayerNormalization", "RMSNormalization"])
def test_a_scale_of_the_last_axis_gets_one_dim(operator: str, dims: tuple[int, ...], tmp_path: Path) -> None:
    bias = [of(*dims)] if operator == "LayerNormalization" else []
    model, feeds = norm(operator, of(*dims), *bias)
    before = outputs(model, feeds)["y0"]

    assert apply_all(model, tmp_path)["normalize_along_last_axis"] == 1

    (node,) = model.graph.node
    sizes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    assert [sizes[name] for name in node.input[1:]] == [[6]] * (1 + len(bias))
    np.testing.assert_allclose(outputs(model, feeds)["y0"], before, atol=1e-5)


@pytest.mark.parametrize("dims", [(2, 3, 4, 6), (2, 1, 1, 1), (3, 1, 1), (1, 3, 4, 6)])
@pytest.mark.parametrize("place", ["scale", "bias"])
def test_factors_that_differ_in_front_of_the_axes_stand_apart(
    dims: tuple[int, ...], place: str, tmp_path: Path
) -> None:
    factors = [of(*dims), of(6)] if place == "scale" else [of(4, 6), of(*dims)]
    model, feeds = norm("LayerNormalization", *factors, axis=2)
    before = outputs(model, feeds)["y0"]
    assert normalize_along_last_axis.apply(model, tmp_path) == 1
    assert operators(model) == {"Reshape": 2, "LayerNormalization": 1, "Add": 1} | (
        {"Mul": 1} if place == "scale" else {}
    )
    np.testing.assert_allclose(outputs(model, feeds)["y0"], before, atol=1e-5)
    assert normalize_along_last_axis.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("operator", "dims", "axis", "steps"),
    [
        ("LayerNormalization", (6,), -1, {"Mul": 1}),
        ("LayerNormalization", (4, 6), 2, {"Mul": 1, "Reshape": 2}),
        ("RMSNormalization", (1, 6), -1, {"Mul": 1}),
        ("RMSNormalization", (4, 6), 2, {"Mul": 1, "Reshape": 2}),
    ],
)
def test_a_computed_scale_stands_apart(
    operator: str, dims: tuple[int, ...], axis: int, steps: dict[str, int], tmp_path: Path
) -> None:
    model, feeds = norm(operator, of(*dims), constants=(), axis=axis)
    before = outputs(model, feeds)["y0"]
    assert normalize_along_last_axis.apply(model, tmp_path) == 1
    assert operators(model) == {operator: 1, **steps}
    np.testing.assert_allclose(outputs(model, feeds)["y0"], before, atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "axis", "constants", "results"),
    [
        ("LayerNormalization", 3, (1,), 1),
        ("LayerNormalization", -1, (1,), 1),
        ("LayerNormalization", 2, (1,), 2),
        ("RMSNormalization", -1, (1,), 1),
        ("RMSNormalization", -1, (), 1),
    ],
    ids=["the last", "from the end", "the mean is read", "root mean square", "its computed scale"],
)
def test_others_are_left_alone(
    operator: str, axis: int, constants: tuple[int, ...], results: int, tmp_path: Path
) -> None:
    model, _ = norm(operator, of(*X.shape[axis:]), constants=constants, outputs=results, axis=axis)
    assert normalize_along_last_axis.apply(model, tmp_path) == 0


FORMS = [
    *[
        (operator, dims, -1, (1,))
        for operator in ("LayerNormalization", "RMSNormalization")
        for dims in (*ONES, (4, 6))
    ],
    ("LayerNormalization", (4, 6), 2, (1,)),
    ("RMSNormalization", (4, 6), 2, (1,)),
    ("LayerNormalization", (6,), -1, ()),
    ("RMSNormalization", (6,), -1, ()),
    ("RMSNormalization", (6,), 1, ()),
]
WRONG = [(operator, dims) for operator, dims, axis, _ in FORMS if axis == -1 and dims in ONES[3:] and "RMS" in operator]


@pytest.mark.parametrize("number_format", ["fp16", "u16"])
def test_the_chip_takes_all_forms(number_format: str, tmp_path: Path) -> None:
    models, given = [], []
    for operator, dims, axis, constants in FORMS:
        model, feeds = norm(operator, np.abs(of(*dims)) + np.float32(0.5), constants=constants, axis=axis)
        wanted = outputs(model, feeds)["y0"]
        normalize_along_last_axis.apply(model, tmp_path)
        models.append(in_format(model, feeds, number_format, {}))
        given.append((feeds, wanted))
    made = run_batch(models, [feeds for feeds, _ in given], tmp_path / "work")
    for form, (_, wanted), chip in zip(FORMS, given, made, strict=True):
        assert (chip.refused, chip.on_cpu) == ("", ()), form
        np.testing.assert_allclose(chip.outputs[0], wanted, atol=0.02, err_msg=str(form))


def test_the_chip_takes_no_other_form(tmp_path: Path) -> None:
    """A form that passes here no longer needs the rewrite."""
    forms = [("LayerNormalization", (1, 6), -1), ("LayerNormalization", (4, 6), 2), ("RMSNormalization", (4, 6), -1)]
    models = [norm(operator, of(*dims), axis=axis) for operator, dims, axis in forms]
    made = run_batch([model for model, _ in models], [feeds for _, feeds in models], tmp_path / "refused")
    for form, chip in zip(forms, made, strict=True):
        assert chip.on_cpu == (form[0],) or chip.refused, form
    wrong = [norm(operator, of(*dims)) for operator, dims in WRONG]
    made = run_batch([model for model, _ in wrong], [feeds for _, feeds in wrong], tmp_path / "wrong")
    for case, (model, feeds), chip in zip(WRONG, wrong, made, strict=True):
        wanted = outputs(model, feeds)["y0"]
        assert np.abs(chip.outputs[0] - wanted).max() > np.abs(wanted).max() / 2, case
