"""What the forecast says of models that HTP computes wrongly, and that it says nothing of those it computes right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from pipeline.contracts.forecast import Forecast, harmful
from pipeline.contracts.scheme import Rule
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.ranges import Range, Ranges, read_integers, read_ranges
from pipeline.graph.quantization.forecast.htp_errors import forecast
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, without_rewrites

FP16 = (Rule(nodes=("*",), precision="fp16"),)
NUMBERS = np.random.default_rng(0)


def foretold(
    root: Path, model: ModelProto, x: ArrayLike, rules: Sequence[Rule] = (), activations: str = "uint16",
    *, quiet: bool = True,
) -> list[Forecast]:  # fmt: skip
    component = without_rewrites(root, model)
    ranges = component.calibrate([{"x": np.asarray(x, np.float32)}], quiet=quiet)
    quantized = component.quantize("all", ranges, rules=rules, activations=activations)
    return of(quantized.folder, read_ranges(ranges.folder / "ranges.json"))


def of(folder: Path, ranges: Ranges, integers: Mapping[str, Range] | None = None) -> list[Forecast]:
    return forecast(GraphIndex(load_graph(folder / MODEL), folder), ranges, integers)


def normal(*shape: int) -> NDArray[np.float32]:
    return NUMBERS.normal(size=shape).astype(np.float32)


def test_a_sum_too_large_for_float16(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,1] y) { s = ReduceSum (x) \n y = Sqrt (s) }")
    large = np.full((1, 64), 2000.0)

    (found,) = foretold(tmp_path / "float", model, large, FP16)
    assert (found.rule, found.value, found.limit) == ("fp16_overflow", "s", 65504)
    assert found.figure == pytest.approx(128000, rel=0.01)
    assert found.nodes == ("ReduceSum_0", "Sqrt_1"), "and who reads it, or that would be what overflows"
    assert foretold(tmp_path / "integers", model, large) == []
    assert foretold(tmp_path / "kept", model, large, (*FP16, Rule(nodes=found.nodes, activations=found.instead))) == []
    assert foretold(tmp_path / "small", model, large / 10, FP16) == []


@pytest.mark.parametrize(
    ("op", "largest", "limit"), [("Sin", 128, 100), ("Cos", 128, 100), ("Tan", 128, 100), ("Atan", 40000, 32768)]
)
def test_an_argument_too_large_for_a_float16_function(op: str, largest: float, limit: float, tmp_path: Path) -> None:
    model = graph(f"g (float[1,64] x) => (float[1,64] y) {{ y = {op} (x) }}")
    x = np.linspace(-0.4, 1, 64)[None]

    (found,) = foretold(tmp_path / "float", model, x * largest, FP16)
    assert (found.rule, found.value, found.limit) == ("fp16_overflow", "x", limit)
    in_integers = foretold(tmp_path / "integers", model, x * largest)
    assert [each.rule for each in in_integers] == (["integer_function"] if op == "Tan" else []), "a tangent has poles"
    assert foretold(tmp_path / "small", model, x * limit * 0.9, FP16) == []


def test_a_norm_whose_squares_are_too_large(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,1] y) { y = ReduceL2 <axes = [-1]> (x) }")
    x = np.linspace(40, 60, 64)[None]
    for name, rules in (("float", FP16), ("integers", ())):
        (found,) = foretold(tmp_path / name, model, x, rules)
        assert (found.rule, found.limit, found.nodes) == ("fp16_overflow", 361, ())
    assert foretold(tmp_path / "small", model, x / 2, FP16) == []


def test_a_divisor_whose_inverse_is_subnormal(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { a = Abs (x) \n y = Div (x, a) }")
    assert [found.rule for found in foretold(tmp_path / "large", model, np.linspace(1e4, 3e4, 64)[None], FP16)] == [
        "fp16_flush"
    ]
    assert foretold(tmp_path / "small", model, np.linspace(1e3, 1.5e4, 64)[None], FP16) == []


def test_what_the_forecast_says_of_overflow_is_so_on_the_chip(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { s = Mul (x, x) \n y = Mul (s, k) }", {"k": np.float32(1e-3)})
    feeds = [{"x": NUMBERS.uniform(500, 2000, size=(1, 64)).astype(np.float32)}]
    component = without_rewrites(tmp_path / "net", model)
    ranges = component.calibrate(feeds)
    figures = []
    for number, rules in enumerate((FP16, (*FP16, Rule(nodes=("Mul_0", "Mul_1"), activations="uint16")))):
        quantized = component.quantize("all", ranges, rules=rules)
        told = of(quantized.folder, read_ranges(ranges.folder / "ranges.json"))
        assert [each.rule for each in told] == (["fp16_overflow"] if number == 0 else [])
        on_htp = on_chip(quantized, feeds, tmp_path / str(number)).outputs
        figures.append(sqnr_db(on_cpu(component.ingest, feeds), on_htp, "y"))
    assert figures[0] < 1
    assert figures[1] > 60


def test_a_logarithm_of_what_float16_flushes(tmp_path: Path) -> None:
    model = graph(
        "g (float[1,64] x) => (float[1,64] y) { c = Clip (x, floor) \n y = Log (c) }", {"floor": np.float32(1e-10)}
    )
    quiet = np.geomspace(1e-10, 1.0, 64).reshape(1, 64)

    (found,) = foretold(tmp_path / "float", model, quiet, FP16)
    assert (found.rule, found.value, found.nodes) == ("fp16_flush", "c", ("Clip_0", "Log_1"))
    assert found.figure == pytest.approx(1e-10, rel=0.2)
    loud = np.linspace(0.01, 1.0, 64).reshape(1, 64)
    assert foretold(tmp_path / "loud", model, loud, FP16, quiet=False) == []
    assert foretold(tmp_path / "held", model, loud / 1e5, FP16, quiet=False) == [], "a Log of 1e-7 is right"
    assert [each.rule for each in foretold(tmp_path / "silence", model, loud, FP16)] == ["fp16_flush"]


def test_a_quotient_by_what_float16_flushes(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { y = Div (one, x) }", {"one": np.float32(1)})
    (found,) = foretold(tmp_path / "float", model, np.geomspace(2e-5, 1.0, 64).reshape(1, 64), FP16)
    assert (found.rule, found.value) == ("fp16_flush", "x")


def test_near_dead_channels_are_told_as_mended(tmp_path: Path) -> None:
    weight = normal(8, 256, 1)
    weight[1::2] *= np.float32(2.0**-16)
    model = graph("g (float[1,256,32] x) => (float[1,8,32] y) { y = Conv (x, w) }", {"w": weight})
    (found,) = foretold(tmp_path, model, normal(1, 256, 32))
    assert (found.rule, found.value, found.channels, found.mended) == ("requantize_underflow", "y", 4, True)
    assert harmful([found]) == ()
    assert "4 channels" in found.line()
    assert foretold(tmp_path / "low", model, normal(1, 256, 32), activations="uint8") == []


def test_ranges_narrower_than_what_was_seen(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { y = Relu (x) }")
    component = without_rewrites(tmp_path, model)
    ranges = component.calibrate([{"x": normal(1, 64)}])
    quantized = component.quantize("all", ranges)
    seen = {"y": Range(0.0, 30.0)}
    (found,) = of(quantized.folder, Ranges(seen))
    assert (found.rule, found.value, found.figure) == ("saturation", "y", 30.0)


def test_comparisons_of_unequal_encodings(tmp_path: Path) -> None:
    model = graph(
        "g (float[1,64] x) => (bool[1,64] y) { a = Mul (x, three) \n y = Greater (x, a) }", {"three": np.float32(3)}
    )
    (found,) = foretold(tmp_path / "unequal", model, normal(1, 64))
    assert (found.rule, found.nodes, found.instead) == ("unequal_comparison", ("Mul_0", "Greater_1"), "fp16")
    assert foretold(tmp_path / "float", model, normal(1, 64), (Rule(nodes=found.nodes, precision="fp16"),)) == []


def test_exponentials_whose_small_ones_are_needed(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { e = Exp (x) \n y = Log (e) }")
    (found,) = foretold(tmp_path / "wide", model, np.linspace(-15, 2, 64).reshape(1, 64))
    assert (found.rule, found.value, found.nodes) == ("exponent", "e", ("Exp_0", "Log_1"))
    assert foretold(tmp_path / "narrow", model, np.linspace(-5, 2, 64).reshape(1, 64)) == []


def test_exponentials_that_are_divided_may_lose_their_small_ones(tmp_path: Path) -> None:
    """A softmax that is written out."""
    model = graph(
        "g (float[1,64] x) => (float[1,64] y) { e = Exp (x) \n s = ReduceSum (e, a) \n y = Div (e, s) }",
        {"a": np.array([-1])},
    )
    assert foretold(tmp_path, model, np.linspace(-15, 2, 64).reshape(1, 64)) == []


def test_sums_of_exponentials_that_rounding_makes_0(tmp_path: Path) -> None:
    model = graph(
        "g (float[8,8] x) => (float[8,1] y) { e = Exp (x) \n s = ReduceSum (e, a) \n y = Log (s) }",
        {"a": np.array([-1])},
    )
    rows = np.linspace(-15, 2, 64).reshape(8, 8)
    (found,) = foretold(tmp_path / "quiet rows", model, rows)
    assert (found.rule, found.value, found.nodes) == ("exponent", "e", ("Exp_0", "ReduceSum_1", "Log_2"))
    assert foretold(tmp_path / "a large one in each", model, rows.T) == []


def test_an_input_too_large_for_float16(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { y = Mul (x, k) }", {"k": np.float32(1e-3)})
    large = np.linspace(0, 1e5, 64)[None]

    (found,) = foretold(tmp_path / "float", model, large, FP16)
    assert (found.rule, found.value, found.nodes, found.instead) == ("fp16_overflow", "x", ("Mul_0",), "uint16")
    assert foretold(tmp_path / "integers", model, large) == []
    assert foretold(tmp_path / "small", model, large / 2, FP16) == []


@pytest.mark.parametrize(
    ("op", "wrong", "right"), [("Sin", 1e-3, 0.1), ("Elu", 1e-3, 0.1), ("Softmax", 0.01, 0.2), ("Tan", 1.54, 1.2)]
)
def test_a_function_of_integers_that_is_coarse_inside(op: str, wrong: float, right: float, tmp_path: Path) -> None:
    model = graph(f"g (float[1,64] x) => (float[1,64] y) {{ y = {op} (x) }}")
    x = np.linspace(-1, 1, 64)[None]

    (found,) = foretold(tmp_path / "wrong", model, x * wrong)
    assert (found.rule, found.value) == ("integer_function", "y")
    assert foretold(tmp_path / "right", model, x * right) == []
    if found.instead:
        assert foretold(tmp_path / "mended", model, x * wrong, (Rule(nodes=found.nodes, precision="fp16"),)) == []


@pytest.mark.parametrize("op", ["Elu", "Softmax"])
@pytest.mark.parametrize(("low", "high"), [(-0.045, 0.045), (-0.002, 0.08), (-0.08, 0.002)])
def test_a_function_whose_argument_has_too_narrow_an_encoding(op: str, low: float, high: float, tmp_path: Path) -> None:
    """However far from zero it goes: what counts is how much it covers, which is half more than one sample takes."""
    model = graph(f"g (float[1,64] x) => (float[1,64] y) {{ h = Mul (x, k) y = {op} (h) }}", {"k": np.float32(0.8)})
    x = 1.25 * np.linspace(low, high, 64)[None]

    (found,) = foretold(tmp_path / "narrow", model, x)
    assert (found.rule, found.value, found.limit, found.instead) == ("integer_function", "y", 0.15, "fp16")
    assert found.figure == pytest.approx(1.5 * (high - low), rel=0.01)
    assert foretold(tmp_path / "wide", model, x * 1.6) == []
    assert foretold(tmp_path / "bytes", model, x, activations="uint8") == []


@pytest.mark.parametrize(("op", "limit"), [("Elu", 20000), ("Selu", 100000)])
@pytest.mark.parametrize("activations", ["uint16", "uint8"])
def test_an_argument_too_large_for_a_function_of_integers(
    op: str, limit: float, activations: str, tmp_path: Path
) -> None:
    model = graph(f"g (float[1,64] x) => (float[1,64] y) {{ y = {op} (x) }}")
    x = np.linspace(-1, 1, 64)[None]

    (found,) = foretold(tmp_path / "large", model, x * limit * 1.1, activations=activations)
    assert (found.rule, found.limit, found.instead) == ("integer_function", limit, "fp16")
    assert foretold(tmp_path / "small", model, x * limit * 0.9, activations=activations) == []
    if op == "Elu":
        assert foretold(tmp_path / "float", model, x * limit * 1.1, FP16) == []


def test_scores_too_large_for_a_softmax_in_float16(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { y = Softmax (x) }")
    x = np.linspace(-1, 1, 64)[None]

    (found,) = foretold(tmp_path / "large", model, x * 300, FP16)
    assert (found.rule, found.limit, found.instead) == ("fp16_overflow", 256, "uint16")
    assert foretold(tmp_path / "masked", model, np.where(x < 0, -10000, x), FP16) == [], "a mask is no score"


def test_integers_that_count_too_far(tmp_path: Path) -> None:
    text = "g (float[1,4] x, int64[1,4] n) => (float[1,4] y, int64[1,4] s) {{ y = Relu (x) s = {made} }}"
    x = np.linspace(0.1, 1, 4, dtype=np.float32)[None]
    for name, made, numbers, expected in (
        ("sum", "CumSum (n, one)", [2**24, 1, 2, 3], [("s", 2**24)]),
        ("small sum", "CumSum (n, one)", [2**23, 1, 2, 3], []),
        ("product", "Mul (n, n)", [2**16, 1, 2, 3], [("s", 2**31 - 1)]),
        ("small product", "Mul (n, n)", [2**15, 1, 2, 3], []),
        ("input", "Identity (n)", [2**40, 1, 2, 3], [("n", 2**31 - 1), ("s", 2**31 - 1)]),
    ):
        model = graph(text.format(made=made), {"one": np.array(1)})
        component = without_rewrites(tmp_path / name, model)
        ranges = component.calibrate([{"x": x, "n": np.array([numbers])}])
        quantized = component.quantize("all", ranges)
        told = of(quantized.folder, read_ranges(ranges.folder / "ranges.json"), read_integers(ranges.folder))
        assert [(each.value, each.limit) for each in told] == expected, name
        assert {each.rule for each in told} <= {"integer_overflow"}
        assert all(each.beyond > 0 for each in told)


def test_negative_indices_that_the_model_is_given(tmp_path: Path) -> None:
    model = graph("g (float[4,3] x, int64[2] ids) => (float[2,3] y) { y = Gather (x, ids) }")
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    for ids, rules, expected in (
        ([-1, 2], (), [("negative_index", "ids", -1)]),
        ([1, 2], (), []),
        ([-1, 2], FP16, []),
    ):
        component = without_rewrites(tmp_path / f"{ids}{len(rules)}", model)
        ranges = component.calibrate([{"x": x, "ids": np.array(ids)}])
        quantized = component.quantize("all", ranges, rules=rules)
        told = of(quantized.folder, read_ranges(ranges.folder / "ranges.json"), read_integers(ranges.folder))
        assert [(each.rule, each.value, each.figure) for each in told] == expected
        assert all(each.beyond > 0 for each in told)


def test_a_lookup_in_a_table_of_floats_is_mended_though_its_rows_go_on_as_integers(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    tables = {name: numbers.standard_normal((16, 16)).astype(np.float32) for name in ("table", "w")}
    model = graph("g (int64[1,4] ids) => (float[1,4,16] y) { e = Gather (table, ids) y = MatMul (e, w) }", {**tables})
    for rules, expected, in_float in (
        ((), ["negative_index"], []),
        ((Rule(ops=("Gather",), precision="fp16"),), [], ["'Gather_0' (Gather)"]),
    ):
        component = without_rewrites(tmp_path / str(len(rules)), model)
        ranges = component.calibrate([{"ids": np.array([[-1, 2, 0, 3]])}])
        quantized = component.quantize("all", ranges, rules=rules)
        told = of(quantized.folder, read_ranges(ranges.folder / "ranges.json"), read_integers(ranges.folder))
        assert [each.rule for each in told] == expected
        assert quantized.facts["float_nodes"] == in_float


def test_a_logarithm_whose_quiet_part_has_no_step(tmp_path: Path) -> None:
    model = graph(
        "g (float[1,64] x) => (float[1,64] y) { p = Mul (x, x) f = Max (p, floor) y = Log (f) }",
        {"floor": np.array(1e-12, np.float32)},
    )
    x = np.linspace(0.1, 1, 64)[None]  # no sample is quiet; silence is at the floor all the same

    (found,) = [each for each in foretold(tmp_path / "integers", model, x) if each.rule == "quiet_logarithm"]
    assert found.nodes == ("Mul_0", "Max_1", "Log_2"), "all that lies between the input and the logarithm"
    assert found.share == pytest.approx(1 - np.log(2 * 65535 / 1.25) / np.log(1e12), abs=0.01)
    assert "off" in found.effect
    rules = (Rule(nodes=found.nodes, precision=found.instead),)
    assert not [each for each in foretold(tmp_path / "float", model, x, rules) if each.rule == "quiet_logarithm"]
    ended = graph("g (float[1,64] x) => (float[1,64] y) { e = Exp (x) y = Log (e) }")
    assert not [each for each in foretold(tmp_path / "exp", ended, x) if each.rule == "quiet_logarithm"]


def test_integers_that_are_rescaled_too_far(tmp_path: Path) -> None:
    text = "g (float[1,64] x) => (float[1,64] y) { y = Clip (x, zero, top) }"
    x = np.linspace(-30000, 20, 64)[None]
    for name, top, activations, expected in (
        ("wrapped", 4.0, "uint16", 2**28 / 54520),
        ("right", 16.0, "uint16", None),
        ("8 bits", 4.0, "uint8", None),
    ):
        model = graph(text, {"zero": np.float32(0), "top": np.float32(top)})
        told = foretold(tmp_path / name, model, x, activations=activations)
        assert [(each.rule, each.instead) for each in told] == ([("rescale_overflow", "fp16")] if expected else [])
        for each in told:
            assert each.limit == pytest.approx(expected, rel=0.02)
            assert each.figure > each.limit
            assert foretold(tmp_path / "float", model, x, (Rule(nodes=each.nodes, precision="fp16"),)) == []
    small = graph(
        "g (float[1,64] x) => (float[1,64] y) { y = Min (x, top) }",
        {"top": np.linspace(-1, 1, 64)[None].astype(np.float32)},
    )
    (found,) = foretold(tmp_path / "min", small, np.where(np.arange(64) == 0, 500, 0.1)[None], activations="uint8")
    assert (found.rule, found.limit) == ("rescale_overflow", 128)


def test_divisors_that_their_encoding_makes_0(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { a = Abs (x) y = Div (one, a) }", {"one": np.float32(1)})
    x = np.where(np.arange(64) == 3, 0.01, np.linspace(1, 100, 64))[None]

    (found,) = foretold(tmp_path / "8 bits", model, x, activations="uint8")
    assert (found.rule, found.value, found.nodes) == (
        "integer_divisor",
        "a",
        ("Abs_0", "Div_1"),
    )
    assert foretold(tmp_path / "16 bits", model, x) == []
    assert foretold(tmp_path / "float", model, x, (Rule(nodes=found.nodes, precision="fp16"),), "uint8") == []
    floored = graph(
        "g (float[1,64] x) => (float[1,64] y) { a = Max (x, floor) y = Div (one, a) }",
        {"one": np.float32(1), "floor": np.float32(0.01)},
    )
    assert foretold(tmp_path / "raised", floored, x, activations="uint8") == [], "the quantizer raises the floor"


def test_a_gelu_whose_results_are_small(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { y = Gelu (x) }", opset=20)
    (found,) = foretold(tmp_path / "negative", model, np.linspace(-4, -0.01, 64)[None])
    assert (found.rule, found.instead) == ("integer_function", "")
    assert foretold(tmp_path / "both", model, np.linspace(-4, 1, 64)[None]) == []
    assert foretold(tmp_path / "8 bits", model, np.linspace(-4, -0.01, 64)[None], activations="uint8") == []


@pytest.mark.parametrize("op", ["Sigmoid", "Softmax"])
def test_a_logarithm_of_a_small_share_in_float16(op: str, tmp_path: Path) -> None:
    model = graph(f"g (float[1,8] x) => (float[1,8] y) {{ s = {op} (x) y = Log (s) }}")
    small, large = np.linspace(-8, 2, 8)[None], np.linspace(0.5, 1.5, 8)[None]
    (found,) = foretold(tmp_path / "small", model, small, FP16, quiet=False)
    assert (found.rule, found.value, found.limit, found.instead) == ("fp16_flush", "s", 2**-6, "uint16")
    assert foretold(tmp_path / "large", model, large, FP16, quiet=False) == []


@pytest.mark.parametrize("op", ["Sin", "Tan"])
def test_an_angle_too_small_for_float16(op: str, tmp_path: Path) -> None:
    model = graph(f"g (float[1,64] x) => (float[1,64] y) {{ y = {op} (x) }}")
    x = np.linspace(-1, 1, 64)[None]
    (found,) = foretold(tmp_path / "small", model, x * 0.01, FP16)
    assert (found.rule, found.value, found.limit, found.instead) == ("fp16_flush", "x", 0.02, "uint16")
    assert foretold(tmp_path / "large", model, x * 0.1, FP16) == []
    assert foretold(tmp_path / "integers", model, x * 0.01) == []
