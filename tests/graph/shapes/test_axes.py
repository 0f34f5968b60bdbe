"""Axis names and expressions, and fixing the inputs of a model."""

from __future__ import annotations

import pytest

from pipeline.errors import ConfigError
from pipeline.graph.files.model_file import signature
from pipeline.graph.shapes.axes import DimError, axis_names, dim_size, fix_inputs, model_axes, name_dims
from tests.support.sources import model

AXES = {"batch": 2, "past": 3, "sequence": 5, "samples": 16000, "seq-len": 9, "s0": 4, "x y": 6}


@pytest.mark.parametrize(
    ("dim", "names", "size"),
    [
        ("batch", ("batch",), 2),
        ("past + sequence", ("past", "sequence"), 8),
        ("past+sequence + 1", ("past", "sequence"), 9),
        ("2*sequence", ("sequence",), 10),
        ("sequence - past", ("sequence", "past"), 2),
        ("2 + 3 * sequence - (past + 1) * 2", ("sequence", "past"), 9),
        ("-past + sequence", ("past", "sequence"), 2),
        ("samples//320", ("samples",), 50),
        ("((((((((samples//80)) - 3)//2)) - 1)//2)) + 1", ("samples",), 49),
        ("floor(samples/321)", ("samples",), 49),
        ("ceil(samples / 321)", ("samples",), 50),
        ("Max(1, s0)", ("s0",), 4),
        ("min(sequence, past, s0)", ("sequence", "past", "s0"), 3),
        ("seq-len", ("seq-len",), 9),
        ("x y", ("x y",), 6),
        ("sequence / 5", ("sequence",), 1),
    ],
)
def test_dims(dim: str, names: tuple[str, ...], size: int) -> None:
    assert axis_names(dim) == names
    assert dim_size(dim, AXES) == size


@pytest.mark.parametrize(
    "dim",
    [
        "",
        "(",
        "1 +",
        "a b",
        "f(x",
        "__import__('os')",
        "a[0]",
        "a ** 2",
        "길이",
        "(" * 80 + "a" + ")" * 80,
        "a*" * 400 + "a",
    ],
)
def test_what_is_no_expression_is_a_name(dim: str) -> None:
    assert axis_names(dim) == (dim,)
    assert dim_size(dim, {dim: 4}) == 4


@pytest.mark.parametrize(
    ("dim", "why"),
    [
        ("sequence / 2", "it comes to 5/2"),
        ("past - sequence", "it comes to -2"),
        ("past - 3", "it comes to 0"),
        ("past // (sequence - 5)", "it divides by zero"),
        ("past + width", "width has no value"),
    ],
)
def test_dims_without_a_size(dim: str, why: str) -> None:
    with pytest.raises(DimError, match=why):
        dim_size(dim, AXES)


def test_dims_without_a_name_go_by_their_place() -> None:
    source = model("g (float[batch,?,3] x, float[0,M] y) => (float[?] z) { z = Foo (x, y) }")
    source.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "-1"
    name_dims(source)
    assert model_axes(source) == {"batch": ["x"], "x[1]": ["x"], "y[1]": ["y"]}, "0 is a size, as onnxruntime has it"


def test_axes_name_the_inputs_that_carry_them() -> None:
    source = model("g (int64[batch,N] ids, int64[batch,M] past) => (float[?] z) { z = Foo (ids, past) }")
    source.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "N + M"
    assert model_axes(source) == {"batch": ["ids", "past"], "N": ["ids", "past"], "M": ["past"]}


def test_inputs_become_static() -> None:
    source = model("g (int64[batch,N] ids, int64[batch,M] past) => (float[?] z) { z = Foo (ids, past) }")
    source.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "N + M"
    fix_inputs(source, {"batch": 1, "N": 8, "M": 4, "other": 3})
    assert [value.shape for value in signature(source).inputs] == [(1, 8), (1, 12)]


def test_axes_that_nobody_fixed_are_listed_with_their_inputs() -> None:
    source = model("g (int64[batch,sequence] ids, int64[batch,sequence] mask) => (float[?] z) { z = Foo (ids, mask) }")
    with pytest.raises(ConfigError) as caught:
        fix_inputs(source, {"seqence": 64})
    assert caught.value.exit_code == 10
    assert str(caught.value) == (
        "axes have no value: 'batch' (of 'ids', 'mask'), 'sequence' (of 'ids', 'mask')\n"
        "  why: HTP runs fixed shapes only, so every axis needs one; "
        "'seqence' is no axis of this component; did you mean 'sequence'?\n"
        "  next: give each a value under 'fixed', or a list of values under 'buckets', such as fixed: {batch: 1}"
    )


def test_expressions_without_a_size_name_the_input() -> None:
    source = model("g (float[batch,N] x) => (float[?] z) { z = Foo (x) }")
    source.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "N / 2"
    with pytest.raises(ConfigError) as caught:
        fix_inputs(source, {"batch": 1, "N": 7})
    assert str(caught.value) == (
        "dim 1 of input 'x' has no size: 'N / 2'\n"
        "  where: N = 7\n"
        "  why: it comes to 7/2\n"
        "  next: choose axis values for which it is a positive whole number"
    )
