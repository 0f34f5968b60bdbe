from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.accuracy.search.candidates import Candidates, in_float, settled
from pipeline.graph.accuracy.search.pricing import Pricing
from pipeline.graph.accuracy.search.scheme_yaml import label, scheme_of
from pipeline.graph.accuracy.search.sensitivity import Choice, Feed, Sensitivity, Trials, groups, load_trials
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.ranges import read_ranges
from pipeline.graph.quantization.qdq.packed_tables import PackedTable
from pipeline.graph.quantization.qdq.rounding import Encoded
from pipeline.graph.quantization.quantizer import quantize
from tests.support.graphs import attention, graph, save, sentence
from tests.support.precision_runs import SENSITIVE, frames, outlier
from tests.support.stage_runs import Component

SENTENCES = [Feed(sentence(16, seed=seed), ((1, 16, 32),)) for seed in range(4)]


def trials_of(component: Component, calls: list[dict[str, NDArray[Any]]]) -> Trials:
    (folder,) = (rewritten.folder for rewritten in component.rewrite.values())
    return load_trials(folder / "model.onnx", read_ranges(component.calibrate(calls).folder / "ranges.json"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    component = Component(tmp_path_factory.mktemp("attention"), attention(), {"16": {"sequence": 16}})
    return trials_of(component, [dict(feed.inputs) for feed in SENTENCES])


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return trials_of(Component(tmp_path_factory.mktemp("outlier"), outlier(), {"16": {"frames": 16}}), frames(4))


@pytest.fixture(scope="module")
def encoder_noise(encoder: Trials) -> Sensitivity:
    return encoder.sensitivity(SENTENCES)


@pytest.fixture(scope="module")
def net_noise(net: Trials) -> Sensitivity:
    return net.sensitivity([Feed(call, ((1, 16, 16),)) for call in frames(2)])


def everything(trials: Trials) -> Choice:
    constants = frozenset([*trials.weights, *trials.lookups])
    return Choice(frozenset(range(len(trials.groups))), constants, frozenset(trials.packable))


def grouped(body: str, values: tuple[str, ...], tmp_path: Path, **constants: NDArray[Any]) -> list[tuple[str, ...]]:
    source = graph(f"g (float[1,4,4] x) => (float[1,4,4] y) {{ {body} }}", constants)
    return [group.nodes for group in groups(GraphIndex(load_graph(save(source, tmp_path)), tmp_path), values)]


SQUARE = np.ones((4, 4), np.float32)
COLUMN = np.ones(4, np.float32)


def test_a_bias_and_what_moves_the_result_join_a_product(tmp_path: Path) -> None:
    body = "a = MatMul (x, w) b = Add (c, a) d = Transpose <perm = [0, 2, 1]> (b) y = Softmax (d)"
    found = grouped(body, tuple("xabdy"), tmp_path, w=SQUARE, c=COLUMN)
    assert found == [("MatMul_0", "Add_1", "Transpose_2"), ("Softmax_3",)]


def test_a_sum_of_two_values_is_a_group_of_its_own(tmp_path: Path) -> None:
    found = grouped("a = MatMul (x, w) y = Add (x, a)", tuple("xay"), tmp_path, w=SQUARE)
    assert found == [("MatMul_0",), ("Add_1",)]


def test_a_bias_does_not_join_what_others_read_too(tmp_path: Path) -> None:
    found = grouped("a = MatMul (x, w) b = Add (a, c) y = Mul (a, b)", tuple("xaby"), tmp_path, w=SQUARE, c=COLUMN)
    assert found == [("MatMul_0",), ("Add_1",), ("Mul_2",)]


def test_nodes_around_a_value_without_an_encoding_are_together(tmp_path: Path) -> None:
    found = grouped("a = MatMul (x, w) b = Sqrt (x) y = Div (a, b)", ("x", "y"), tmp_path, w=SQUARE)
    assert found == [("MatMul_0", "Sqrt_1", "Div_2")]


def test_each_reader_of_a_value_can_round_it_alone(encoder: Trials) -> None:
    # `x` is read by three products and, past them, by the sum of the residual.
    readers = [site.reader for point in encoder.points for site in point.sites if site.value == "x"]
    assert sorted(filter(None, readers)) == ["Add_17", "MatMul_6", "MatMul_7", "MatMul_8"]
    maker = encoder.group_of["LayerNormalization_5"]
    for point in encoder.points:
        if any(site.value == "x" and site.reader for site in point.sites):
            assert not point.low(point.of | {maker}), (
                "where it is made in 8 bits, its readers have nothing left to round"
            )


def test_the_layer_with_the_outlier_is_the_most_sensitive(net: Trials, net_noise: Sensitivity) -> None:
    alone = {group: net_noise.noise(Choice(low=frozenset([number]))) for number, group in enumerate(net.groups)}
    ranked = sorted(net.groups, key=lambda group: -alone[group])
    assert {*ranked[0].nodes, *ranked[1].nodes} == set(SENSITIVE)
    assert alone[ranked[1]] > 5 * alone[ranked[2]]


def test_a_constant_is_rounded_anew_only_where_its_precision_changes(
    encoder: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    rounded, unpacked = Encoded.constant, PackedTable.real

    def constant(encoded: Encoded, name: str) -> NDArray[np.float32]:
        made.append(name)
        return rounded(encoded, name)

    def real(table: PackedTable) -> NDArray[np.float32]:
        made.append("a packed table")
        return unpacked(table)

    monkeypatch.setattr(Encoded, "constant", constant)
    monkeypatch.setattr(PackedTable, "real", real)

    def rounded_by(choice: Choice) -> list[str]:
        made.clear()
        for feed in SENTENCES:
            encoder.run(choice, feed)
        return made.copy()

    rounded_by(Choice())
    assert rounded_by(Choice()) == []
    table, weight = encoder.packable[0], encoder.weights[0]
    assert rounded_by(Choice(narrow=frozenset([table, weight]))) == [
        name for name in encoder.constants if name in (table, weight)
    ]
    assert rounded_by(Choice(narrow=frozenset([table]), packed=frozenset([table]))).count("a packed table") == 1


def test_noises_add_up(encoder: Trials, encoder_noise: Sensitivity) -> None:
    every = sorted(everything(encoder).low)
    reference = [encoder.run(Choice(), feed)[0] for feed in SENTENCES]
    signal = sum((array**2).sum() for array in reference)
    for low in (every, every[::2], every[::3], every[1::4]):
        choice = Choice(low=frozenset(low), narrow=frozenset(encoder.weights[:1]))
        outputs = [encoder.run(choice, feed)[0] for feed in SENTENCES]
        noise = sum(((one - other) ** 2).sum() for one, other in zip(outputs, reference, strict=True)) / signal
        assert 10 * math.log10(encoder_noise.noise(choice) / noise) == pytest.approx(0, abs=1.5)


@pytest.mark.parametrize("scheme", ["w8a16", "w8a8", "w4a8"])
def test_bytes_are_those_of_the_qdq_model(scheme: str, encoder: Trials) -> None:
    low = everything(encoder).low if scheme.endswith("a8") else frozenset[int]()
    choice = Choice(low, frozenset(encoder.weights if scheme.startswith("w4") else ()))
    assert label(choice, encoder) == scheme == scheme_of(choice, encoder).name.removesuffix(" in blocks of 32")

    price = Pricing(encoder, "speed").price(choice)

    weights, table = (4 if scheme == "w4a8" else 8), (8 if scheme.endswith("a8") else 16)
    products = 3 * 32 * 32 + 2 * 32 * 64
    tables = 100 * 32 + 16 * 32
    assert price.weight_bytes == pytest.approx((products * weights + tables * table) / 8, abs=700), (
        "and small constants"
    )
    assert price.share_8bit == (1.0 if low else 0.0)


def test_prices_are_relative_to_w8a16(encoder: Trials) -> None:
    pricing = Pricing(encoder, "speed")
    groups_of_all = everything(encoder).low
    assert pricing.relative(Choice()) == 1.0
    assert pricing.relative(everything(encoder)) < pricing.relative(Choice(low=groups_of_all)) < 0.72
    assert pricing.relative(Choice(exact=groups_of_all)) > 1.3


def test_a_price_lies_between_that_of_its_bytes_and_that_of_its_work(encoder: Trials, net: Trials) -> None:
    for trials in (encoder, net):
        pricing = Pricing(trials, "speed")
        reference = pricing.price(Choice())
        for choice in (
            everything(trials),
            Choice(low=everything(trials).low),
            Choice(narrow=frozenset(trials.weights)),
        ):
            price = pricing.price(choice)
            of_each = price.weight_bytes / reference.weight_bytes, price.work / reference.work
            assert min(of_each) <= pricing.relative(choice) <= max(of_each)


def test_bits_of_weights_count_for_more_where_they_do_less_work(encoder: Trials, tmp_path: Path) -> None:
    few = [dict(sentence(4, seed=seed)) for seed in range(4)]
    shorter = trials_of(Component(tmp_path, attention(), {"4": {"sequence": 4}}), few)

    def price_of_narrow_weights(trials: Trials) -> float:
        return Pricing(trials, "speed").relative(Choice(narrow=frozenset(trials.weights)))

    assert price_of_narrow_weights(shorter) < price_of_narrow_weights(encoder)


def test_size_looks_at_bytes_first_and_at_work_where_they_are_equal(net: Trials) -> None:
    pricing = Pricing(net, "size")
    weight = min(net.weights, key=net.stored_bytes.__getitem__)
    lows = [Choice(low=frozenset([group])) for group in everything(net).low]
    narrow = pricing.relative(Choice(narrow=frozenset([weight])))
    assert all(narrow < pricing.relative(low) for low in lows), "the smallest weight saves more than any work"
    assert min(pricing.relative(low) for low in lows) < pricing.relative(Choice())


def test_a_conversion_has_a_price(encoder: Trials) -> None:
    pricing = Pricing(encoder, "speed")
    softmax = frozenset([encoder.group_of["Softmax_15"]])
    assert pricing.price(Choice(low=softmax)).work > pricing.price(Choice()).work, "two conversions for one small node"
    assert settled(Choice(low=softmax), pricing) == Choice()
    assert settled(everything(encoder), pricing) == everything(encoder)


def test_candidates_go_from_everything_low_to_w8a16(encoder: Trials, encoder_noise: Sensitivity) -> None:
    found = Candidates(encoder, encoder_noise, Pricing(encoder, "speed")).up_to(40.0)
    assert (found[0], found[-1]) == (everything(encoder), Choice())
    assert len(found) > 10
    noises = [encoder_noise.noise(choice) for choice in found]
    assert all(later <= earlier * 1.0001 for earlier, later in itertools.pairwise(noises))


def test_what_makes_the_most_noise_is_raised_and_the_rest_is_not(net: Trials, net_noise: Sensitivity) -> None:
    found = Candidates(net, net_noise, Pricing(net, "speed")).up_to(31.0)
    choice = next(choice for choice in found if net_noise.noise(choice) < 10**-2.6)
    assert {name for group in everything(net).low - choice.low for name in net.groups[group].nodes} == set(SENSITIVE)


def test_what_does_not_fit_into_the_noise_is_passed_over(encoder: Trials, encoder_noise: Sensitivity) -> None:
    loudest = max(encoder_noise.weights, key=encoder_noise.weights.__getitem__)
    noise = Sensitivity(encoder_noise.points, {**encoder_noise.weights, loudest: 10.0}, encoder_noise.packed)
    found = Candidates(encoder, noise, Pricing(encoder, "speed")).up_to(40.0)
    assert all(loudest not in choice.narrow for choice in found[1:])
    assert any(choice.narrow for choice in found[1:]), "the others are still there to be lowered"


def test_groups_stay_in_float_one_after_another(net: Trials) -> None:
    gains = net.exact_gains([Feed(call, ((1, 16, 16),)) for call in frames(2)])
    found = list(in_float(gains, Pricing(net, "speed")))
    assert [len(choice.exact) for choice in found] == [*range(1, len(net.groups) + 1)]
    first = net.groups[min(found[0].exact)].nodes
    assert set(first) <= set(SENSITIVE), "the rounded value that is read by small weights"


def test_a_choice_is_a_scheme_with_rules_for_exactly_its_nodes(encoder: Trials) -> None:
    every = sorted(everything(encoder).low)
    exact = frozenset(every[1::4])
    choice = Choice(frozenset(every[::3]) - exact, frozenset(encoder.weights[:2]), exact=exact)

    scheme = scheme_of(choice, encoder)

    nodes = {node.name: node.op_type for node in encoder.index.model.graph.node}
    (low, *narrow, in_float) = (
        {name for name, op_type in nodes.items() if rule.matches_node(op_type, name)} for rule in scheme.overrides
    )
    kinds = [(rule.activations, rule.weights, rule.block, rule.precision) for rule in scheme.overrides]
    assert (scheme.activations, kinds) == (
        "uint16",
        [
            ("uint8", None, None, None),
            (None, "int4", None, None),  # where it computes in 8 bits
            (None, "int4", 32, None),
            (None, None, None, "fp16"),
        ],
    )
    assert narrow[0] <= low
    assert not narrow[1] & low
    assert low == {name for group in choice.low for name in encoder.groups[group].nodes}
    assert set().union(*narrow) == {encoder.index.readers[name][0].name for name in choice.narrow}
    assert in_float == {name for group in exact for name in encoder.groups[group].nodes}


def test_what_most_nodes_do_needs_no_rule(encoder: Trials) -> None:
    every = replace(everything(encoder), packed=frozenset())
    assert scheme_of(every, encoder).overrides == ()
    (rule,) = scheme_of(Choice(low=every.low - {0}), encoder).overrides
    assert rule.activations == "uint16"
    everything_in_float = scheme_of(Choice(exact=every.low), encoder)
    assert [rule.nodes for rule in everything_in_float.overrides] == [("*",)]


def test_a_table_has_a_rung_of_its_own_and_is_not_its_reader(encoder: Trials, encoder_noise: Sensitivity) -> None:
    """The embedding of a transformer is most of its bytes, and what reads it may need 16 bits."""
    bytes_of = [
        Pricing(encoder, "speed").price(choice).weight_bytes
        for choice in (
            Choice(),
            Choice(narrow=frozenset(["words"])),
            Choice(narrow=frozenset(["words"]), packed=frozenset(["words"])),
        )
    ]
    assert (bytes_of[0] - bytes_of[1], bytes_of[1] - bytes_of[2]) == (100 * 32, 100 * (32 - 17))
    assert encoder_noise.packed["words"] > 10 * encoder_noise.weights["words"] > 0

    found = Candidates(encoder, encoder_noise, Pricing(encoder, "speed")).up_to(60.0)

    assert all(choice.packed <= choice.narrow for choice in found)
    assert any("words" in choice.packed for choice in found)
    reader = encoder.constants["words"]
    assert any("words" in choice.narrow and reader not in choice.low for choice in found)


@pytest.mark.parametrize("packed", [True, False])
def test_a_trial_of_a_table_is_what_its_qdq_model_gives(packed: bool, encoder: Trials, tmp_path: Path) -> None:
    tables = frozenset(["words"])
    choice = Choice(narrow=tables, packed=tables if packed else frozenset())
    component = Component(tmp_path, attention(), {"16": {"sequence": 16}})
    calibrated = component.calibrate([dict(feed.inputs) for feed in SENTENCES])
    folder = component.rewrite["16"].folder
    ranges = read_ranges(calibrated.folder / "ranges.json")
    scheme = scheme_of(choice, encoder)
    assert [(rule.weights, rule.block) for rule in scheme.overrides] == [("int4", 32) if packed else ("int8", None)]
    model = quantize(load_graph(folder / "model.onnx"), folder, ranges, scheme).model
    stored = next(tensor for tensor in model.graph.initializer if tensor.name == "words_quantized")
    assert tuple(stored.dims) == (100, 16 if packed else 32)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    session = load_session(tmp_path / "model.onnx")

    for feed in SENTENCES:
        (given,) = run(session, feed.inputs).values()
        tried, reference = (encoder.run(each, feed)[0] for each in (choice, Choice()))
        assert np.abs(given - tried).max() < np.abs(reference - tried).max() / 4
