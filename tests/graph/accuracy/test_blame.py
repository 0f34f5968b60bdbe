"""Models that are made to go wrong in a known way: the value at fault is named, and why."""

from __future__ import annotations

import json
import resource
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from pipeline.graph.accuracy.blame.blame import Row, compare_values, first_wrong, ranked
from pipeline.graph.accuracy.blame.quantization_blame import quantized_values
from pipeline.graph.accuracy.figures import trace, value_errors
from pipeline.graph.accuracy.figures.trace import TracedModel, View
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.quantization.calibration.ranges import read_ranges
from pipeline.ladder import EXACT_DB
from pipeline.model import StageInput
from tests.support.contexts import edit
from tests.support.fresh import fresh
from tests.support.graphs import attention, graph, sentence
from tests.support.stage_runs import Component

Arrays = Mapping[str, NDArray[Any]]
Ranges = dict[str, list[float]]

LENGTH = 16
SENTENCES = [sentence(length, seed=length) for length in (5, 8, 11, 14)]
WIDTH = 128


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.asarray(np.random.default_rng(seed).normal(size=shape), np.float32)


def padded(calls: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
    return [
        {name: np.pad(array, ((0, 0), (0, LENGTH - array.shape[1]))) for name, array in call.items()} for call in calls
    ]


def transformer(folder: Path, filler: float = -100.0) -> Component:
    return Component(folder, attention(filler=filler), {"16": {"sequence": LENGTH}})


def layers(folder: Path, body: str, constants: Mapping[str, Any]) -> Component:
    """A model from `x` to `y`, both float32 [1, 64, 128]."""
    text = f"g (float[1,64,{WIDTH}] x) => (float[1,64,{WIDTH}] y) {{ {body} }}"
    return Component(folder, graph(text, constants), {"all": {}})


def rows_of(
    component: Component,
    calls: Sequence[Arrays],
    *,
    ranges: Callable[[Ranges], None] | None = None,
    model: Callable[[ModelProto], None] | None = None,
    activations: str = "uint16",
) -> list[Row]:
    """The quantization rung, with the calibrated ranges or the QDQ model changed."""
    (bucket,) = component.buckets
    calibrated = component.calibrate(calls)
    if ranges is not None:
        path = calibrated.folder / "ranges.json"
        found: Ranges = json.loads(path.read_text())
        ranges(found)
        path.write_text(json.dumps(found))
    quantized = component.quantize(bucket, calibrated, activations=activations)
    if model is not None:
        edit(quantized.folder / MODEL, model)
    feeds = padded(calls) if bucket == "16" else calls
    return quantized_values(
        view(component.rewrite[bucket], feeds),
        view(quantized, feeds),
        view(component.ingest, calls),
        read_ranges(calibrated.folder / "ranges.json"),
    )


def view(step: StageInput, feeds: Sequence[Arrays]) -> View:
    return View(TracedModel(step.folder / MODEL), feeds)


def row(rows: Sequence[Row], value: str) -> Row:
    return next(row for row in rows if row.value == value)


def name(row: Row) -> str:
    return row.reason.name if row.reason else ""


def text(row: Row) -> str:
    return row.reason.text if row.reason else ""


def test_every_float_value_is_measured_and_nothing_is_wrong_with_a_good_model(tmp_path: Path) -> None:
    component = transformer(tmp_path)

    rows = rows_of(component, SENTENCES)

    graph = TracedModel(component.rewrite["16"].folder / MODEL)
    assert [row.value for row in rows] == graph.floats()
    assert min(row.sqnr_db or 0 for row in rows) > 30
    assert first_wrong(rows, 30) == []
    query = row(rows, "query")
    assert (query.op, query.inputs, query.node) == ("MatMul", ("x",), "'MatMul_6' (MatMul)")
    assert query.encoding is not None
    assert query.encoding.dtype == "uint16"
    assert query.own_db is not None
    assert query.weights_db is not None
    assert query.own_db > query.weights_db, "16 bit activations, 8 bit weights"
    assert query.calibrated is not None
    assert query.calibrated.low <= query.observed.low
    assert query.calibrated.high >= query.observed.high
    turned = row(rows, "turned")
    assert (turned.own_db, turned.local) == (EXACT_DB, None), "a Transpose in its input's encoding loses nothing"


def test_a_value_left_in_float_has_no_encoding(tmp_path: Path) -> None:
    component = transformer(tmp_path)

    def bare(model: ModelProto) -> None:
        """Let the Gelu read and give floats."""
        for node in model.graph.node:
            for position, given in enumerate(node.input):
                if given in ("u_DequantizeLinear_Output", "g_DequantizeLinear_Output"):
                    node.input[position] = given.partition("_")[0]
        kept = [node for node in model.graph.node if not node.name.startswith(("u_", "g_"))]
        del model.graph.node[:]
        model.graph.node.extend(kept)

    rows = rows_of(component, SENTENCES, model=bare)

    assert row(rows, "g").encoding is None
    assert row(rows, "g").own_db is None
    assert row(rows, "g").sqnr_db is not None
    assert row(rows, "down").inputs == ("g",)


def test_an_outlier_channel_is_found_where_its_neighbours_are_needed(tmp_path: Path) -> None:
    weight = random(WIDTH, WIDTH) / np.float32(np.sqrt(WIDTH))
    loud = np.where(np.arange(WIDTH) == 7, np.float32(300), np.float32(1))
    component = layers(
        tmp_path,
        "h = MatMul (x, w) quiet = Mul (h, turn_down) y = MatMul (quiet, v)",
        {"w": weight * loud, "turn_down": 1 / loud, "v": weight.T},
    )
    component.rewrite = component.shape  # `scale_weights` would make the outlier's weights small again

    rows = rows_of(component, [{"x": random(1, 64, WIDTH, seed=seed)} for seed in range(3)], activations="uint8")

    first = first_wrong(rows, 20)
    assert [row.value for row in first] == ["quiet"]
    assert name(first[0]) == "outlier range"
    assert "of its input 'h'" in text(first[0])
    assert "times as wide as 98% of its elements" in text(first[0])


def test_a_mask_constant_that_was_left_in(tmp_path: Path) -> None:
    component = transformer(tmp_path, filler=-1e6)
    component.rewrite = component.shape

    rows = rows_of(component, SENTENCES)

    (first,) = first_wrong(rows, 20)
    assert first.value == "masked"
    assert first.line() == f"'masked' {first.sqnr_db:.1f} dB, 'Where_14' (Where): mask constant: {text(first)}"
    assert "the constant -1e+06 sets the range" in text(first)
    assert "of 65536 steps are left" in text(first)
    assert ranked(rows)[0] == first


def test_a_range_that_is_too_small(tmp_path: Path) -> None:
    def halved(ranges: Ranges) -> None:
        ranges["h"] = [bound / 3 for bound in ranges["h"]]

    rows = rows_of(transformer(tmp_path), SENTENCES, ranges=halved)

    (first,) = first_wrong(rows, 20)
    assert (first.value, name(first)) == ("h", "saturated")
    assert "are cut off to" in text(first)
    up = row(rows, "up")
    assert name(up) == "inherited"
    assert up.local is not None
    assert up.local.name == "weight", "what is lost at the node itself is little, and said too"


def test_a_range_of_a_constant(tmp_path: Path) -> None:
    def still(ranges: Ranges) -> None:
        ranges["context"] = [0.0, 0.0]

    rows = rows_of(transformer(tmp_path), SENTENCES, ranges=still)

    (first,) = first_wrong(rows, 20)
    assert (first.value, name(first)) == ("context", "degenerate")
    assert "calibrated as a constant" in text(first)


def test_a_weight_whose_scales_are_wrong(tmp_path: Path) -> None:
    def spoilt(model: ModelProto) -> None:
        scale = next(tensor for tensor in model.graph.initializer if tensor.name == "w1_scale")
        scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(1.3), "w1_scale"))

    rows = rows_of(transformer(tmp_path), SENTENCES, model=spoilt)

    (first,) = first_wrong(rows, 20)
    assert (first.value, name(first)) == ("up", "weight")
    assert first.own_db is not None
    assert first.own_db > 60
    assert text(first) == f"the node's quantized constants alone give {first.weights_db:.1f} dB"


def test_a_softmax_in_8_bits(tmp_path: Path) -> None:
    component = layers(tmp_path, "p = Softmax (x) y = MatMul (p, v)", {"v": random(WIDTH, WIDTH, seed=1)})
    x = random(1, 64, WIDTH) / 4
    x[0, 0, 0] = 30  # one sharp row, so that the encoding has to reach 1

    rows = rows_of(component, [{"x": x}], activations="uint8")

    softmax = row(rows, "p")
    assert name(softmax) == "8 bit softmax"
    assert text(softmax) == "probabilities below 0.002 become 0; give it uint16"


def test_a_difference_of_almost_equal_values_amplifies(tmp_path: Path) -> None:
    noise = random(WIDTH, WIDTH, seed=3) / 50
    component = layers(
        tmp_path,
        "h = MatMul (x, w) k = MatMul (x, w2) d = Sub (h, k) y = Mul (d, many)",
        {"w": random(WIDTH, WIDTH), "w2": random(WIDTH, WIDTH) + noise, "many": np.float32(100)},
    )

    rows = rows_of(component, [{"x": random(1, 64, WIDTH, seed=2)}])

    (first,) = first_wrong(rows, 20)
    assert (first.value, name(first)) == ("d", "amplified")


@pytest.mark.parametrize("take", ["Gather <axis = 1> (a, last)", "Slice (a, last, end, along)"])
def test_the_last_place_of_a_bucket_is_padding(take: str, tmp_path: Path) -> None:
    model = graph(
        f"g (float[1,frames,4] x) => (float[1,k,4] y) {{ a = Relu (x)  l = {take}  y = Neg (l) }}",
        {"last": np.array([-1]), "end": np.array([1 << 40]), "along": np.array([1])},
    )
    component = Component(tmp_path, model, {"24": {"frames": 24}})
    calls = [{"x": random(1, length, 4)} for length in (17, 19)]
    feeds = [{"x": np.pad(call["x"], ((0, 0), (0, 24 - call["x"].shape[1]), (0, 0)))} for call in calls]

    rows = compare_values("padding", view(component.ingest, calls), view(component.shape["24"], feeds))

    (first,) = first_wrong(rows, 60)
    assert first.value == "l"
    assert "end the component at 'a' with cut, and take the last that a sample has" in text(first)


def test_padding_that_is_copied_into_the_valid_part(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,4,frames] x) => (float[1,4,frames] y) {
            wide = Pad <mode = "edge"> (x, pads)
            y = Conv <kernel_shape = [5]> (wide, w)
        }""",
        {"pads": np.array([0, 0, 2, 0, 0, 2]), "w": random(4, 4, 5)},
    )
    component = Component(tmp_path, model, {"24": {"frames": 24}})
    calls = [{"x": random(1, 4, length)} for length in (17, 19)]
    feeds = [{"x": np.pad(call["x"], ((0, 0), (0, 0), (0, 24 - call["x"].shape[2])))} for call in calls]

    rows = compare_values("padding", view(component.ingest, calls), view(component.shape["24"], feeds))

    (first,) = first_wrong(rows, 60)
    assert (first.value, first.op) == ("wide", "Pad")
    assert "copies the padded tail into valid positions" in text(first)
    assert first.encoding is None


def test_a_rewrite_that_changes_a_value(tmp_path: Path) -> None:
    component = transformer(tmp_path)

    def spoilt(model: ModelProto) -> None:
        next(node for node in model.graph.node if node.op_type == "LayerNormalization").attribute.add(
            name="epsilon", type=1, f=0.5
        )

    edit(component.rewrite["16"].folder / MODEL, spoilt)
    feeds = padded(SENTENCES)

    rows = compare_values(
        "rewrite",
        view(component.shape["16"], feeds),
        view(component.rewrite["16"], feeds),
        view(component.ingest, SENTENCES),
    )

    assert [row.value for row in first_wrong(rows, 60)] == ["x"]
    assert "d" not in [row.value for row in rows], "the Gelu was fused, what was inside of it is gone"


def test_a_wrong_value_that_nobody_sees_is_not_named(tmp_path: Path) -> None:
    """Scores of masked keys differ by the filler, and are gone behind the Softmax."""
    component = transformer(tmp_path, filler=float(np.finfo(np.float32).min))
    feeds = padded(SENTENCES)

    rows = compare_values("rewrite", view(component.shape["16"], feeds), view(component.rewrite["16"], feeds))

    masked = row(rows, "masked")
    assert masked.sqnr_db is None or masked.sqnr_db < 1
    assert first_wrong(rows, 60) == []


def test_where_errors_add_up_the_largest_is_named(tmp_path: Path) -> None:
    rows = rows_of(transformer(tmp_path), SENTENCES, activations="uint8")

    (first,) = first_wrong(rows, 24)
    masked = row(rows, "masked")
    assert (first.op, name(first)) == ("Softmax", "inherited")
    assert (
        text(first) == f"errors before it add up; the most, {masked.local_db:.1f} dB, is from 'masked', {masked.node}"
    )
    assert name(masked) == "inherited", "nor is it wrong by itself"


def test_at_most_five_are_named_in_the_order_of_the_graph(tmp_path: Path) -> None:
    body = (
        "".join(f"h{i} = MatMul (x, w{i}) " for i in range(7))
        + "y = Sum ("
        + ", ".join(f"h{i}" for i in range(7))
        + ")"
    )
    component = layers(tmp_path, body, {f"w{i}": random(WIDTH, WIDTH, seed=i) for i in range(7)})

    def small(ranges: Ranges) -> None:
        for i in range(7):
            ranges[f"h{i}"] = [bound / 4 for bound in ranges[f"h{i}"]]

    rows = rows_of(component, [{"x": random(1, 64, WIDTH, seed=9)}], ranges=small)

    assert [row.value for row in first_wrong(rows, 20)] == [f"h{i}" for i in range(5)]


TOKENS = 4096
SCORES_MB = TOKENS * TOKENS * 4 / 2**20


def _peak_mb(original: StageInput, rewritten: StageInput, qdq: StageInput, ranges: Path, calls: list[Arrays]) -> float:
    """By how much this process grows while it looks at all values."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = quantized_values(
        view(rewritten, calls), view(qdq, calls), view(original, calls), read_ranges(ranges / "ranges.json")
    )
    assert row(rows, "scores").sqnr_db is not None
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


@pytest.mark.slow
def test_a_value_larger_than_the_budget_is_there_a_few_times(tmp_path: Path) -> None:
    """Scores of 64 MB, budgets of less: 22 times their size were needed, of which models kept half."""
    text = """g (float[1,tokens,64] x) => (float[1,tokens,64] y) {
        t = Transpose <perm = [0, 2, 1]> (x)  scores = MatMul (x, t)  scaled = Mul (scores, few)
        shares = Softmax (scaled)  c = MatMul (shares, x)  y = Add (x, c)
    }"""
    component = Component(tmp_path, graph(text, {"few": np.float32(0.1)}), {"all": {"tokens": TOKENS}})
    calls: list[Arrays] = [{"x": random(1, TOKENS, 64)}]
    ranges = component.calibrate(calls)
    quantized = component.quantize("all", ranges)

    peak = fresh(_peak_mb, component.ingest, component.rewrite["all"], quantized, ranges.folder, calls)

    assert SCORES_MB * 2 < peak < SCORES_MB * 6.5


def test_a_value_in_parts_is_measured_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    component = transformer(tmp_path, float(np.finfo(np.float32).min))
    whole = rows_of(component, SENTENCES)
    monkeypatch.setattr(value_errors, "_AT_ONCE", 100)

    for one, parts in zip(whole, rows_of(component, SENTENCES), strict=True):
        assert (parts.value, parts.observed) == (one.value, one.observed)
        for figure in ("sqnr_db", "own_db", "weights_db"):
            assert getattr(parts, figure) == pytest.approx(getattr(one, figure))


@pytest.mark.parametrize("shape", [(), (7,), (3, 50), (2, 3, 4), (300,), (2, 101), (2, 3, 5, 1, 41)])
def test_parts_have_every_element_once(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_errors, "_AT_ONCE", 40)
    elements = np.arange(np.prod(shape, dtype=int)).reshape(shape)

    parts = [elements[region] for region in value_errors._regions(shape)]

    np.testing.assert_array_equal(np.concatenate([part.ravel() for part in parts]), elements.ravel())
    assert max(part.size for part in parts) <= 40
    assert elements[value_errors._spread(shape)].size <= 2 * 40


def test_groups_of_any_size_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    component = transformer(tmp_path)
    at_once = rows_of(component, SENTENCES)
    opened = Counter[Path]()
    session = TracedModel.session

    def counted(model: TracedModel, *args: Any) -> Any:
        opened[model.folder] += 1
        return session(model, *args)

    monkeypatch.setattr(trace, "BYTES_AT_ONCE", 20_000)
    monkeypatch.setattr(TracedModel, "session", counted)

    assert rows_of(component, SENTENCES) == at_once
    assert len(opened) == 3, "original, rewritten and QDQ model"
    assert min(opened.values()) > 3, "several groups, in each"
