"""What may not ship, judged on facts alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pipeline.build import gates
from pipeline.build.gates import Miss, wish
from pipeline.config.thresholds import Thresholds
from pipeline.contracts import context, emulate, rewrite, verify
from pipeline.contracts.cost import CostFacts
from pipeline.contracts.limits import OutputLimits
from pipeline.contracts.measures import Agreement, Figures, Measured, Outlier, Score, Subject
from pipeline.errors import ModelError, PipelineError
from pipeline.model import Json, Manifest

NAME = "minilm/encoder/64"


def check(stage: str, name: str, facts: Mapping[str, Json], thresholds: Thresholds) -> Miss | None:
    return gates.check(name, Manifest(stage, "", {}, facts), thresholds)


def output(sqnr_db: float | None = 80.0, cosine: float | None = 1.0) -> Figures:
    return Figures(sqnr_db, sqnr_db, sqnr_db, worst_sample="held_out.txt:3", cosine=cosine, max_abs_error=0.1)


def verified(total: float | None = 80.0, score: Score | None = None, **rungs: Measured) -> verify.Facts:
    measured = {"padding": {"y": output()}, "rewrite": {"y": output()}, "quantization": {"y": output()}, **rungs}
    return verify.Facts(samples=16, shorter=0, rungs=measured, outputs={"y": output(total)}, score=score)


def may_ship(facts: verify.Facts, thresholds: Thresholds) -> bool:
    return check("verify", NAME, facts.to_json(), thresholds) is None


def missed(facts: verify.Facts, thresholds: Thresholds = Thresholds()) -> Miss:  # noqa: B008
    miss = check("verify", NAME, facts.to_json(), thresholds)
    assert miss is not None
    return miss


def test_what_keeps_to_every_threshold_may_ship() -> None:
    assert may_ship(verified(), Thresholds())
    assert check("calibrate", NAME, {}, Thresholds()) is None


def test_what_was_not_measured_has_missed_nothing() -> None:
    assert may_ship(verify.UNMEASURED, Thresholds(cosine=0.9, score_change=0.1))


def test_the_upper_rung_is_told_and_its_worst_output() -> None:
    padding = {"a": output(59.9), "b": output(30), "c": output(90)}
    miss = missed(verified(padding=padding, quantization={"y": output(12)}))
    assert miss.rung == "padding"
    assert miss.error.exit_code == 16
    assert "output 'b' is 30.0 dB against the original model, 60 dB are asked for" in miss.error.what
    assert miss.error.where == f"{NAME}, worst of 16 samples: held_out.txt:3 (30.0 dB)"
    assert miss.error.remedy.endswith("thresholds: {padding_db: 30, quantization_db: 12}")


def test_a_miss_tells_its_own_figure_in_db() -> None:
    assert missed(verified(12.0, quantization={"y": output(9)})).sqnr_db == 9
    assert missed(verified(12.0)).sqnr_db == 12
    worst = replace(verified(30), outputs={"y": replace(output(30), worst_db=9.9)})
    assert missed(worst).sqnr_db == 9.9
    assert missed(verified(30, rewrite={"y": output(19)}), Thresholds(cosine=0.9)).sqnr_db == 19
    pointing = replace(verified(), outputs={"y": output(80, cosine=0.5)})
    assert missed(pointing, Thresholds(cosine=0.9)).sqnr_db is None


def test_a_value_far_outside_is_told_first_and_by_name() -> None:
    outlier = Outlier("s17", -98300.0, 0.0, 1.0, 98300.0)
    facts = replace(verified(52.3), outputs={"y": replace(output(52.3), outlier=outlier)})
    miss = missed(facts)
    assert miss.error.what == "output 'y' of s17 is -98300 where the original's are 0 to 1"
    assert "accept" not in miss.error.remedy
    near = replace(facts, outputs={"y": replace(output(52.3), outlier=replace(outlier, times=0.9))})
    assert may_ship(near, Thresholds())
    assert not may_ship(near, Thresholds(outside=0.5))
    broken = replace(facts, outputs={"y": replace(output(None), outlier=replace(outlier, value=None, times=None))})
    assert "output 'y' of s17 is not a number" in missed(broken).error.what


@pytest.mark.parametrize("rung", ["padding", "rewrite"])
def test_what_no_precision_cures_is_told_before_the_value_far_outside_that_it_makes(rung: str) -> None:
    far = replace(output(-1.7), outlier=Outlier("s17", 45.0, 4.0, 20.0, 1.6))
    facts = replace(verified(-1.7), outputs={"y": far})

    assert missed(facts).rung == "total"
    assert missed(replace(facts, rungs={**facts.rungs, rung: {"y": output(-1.7)}})).rung == rung
    assert missed(replace(facts, rungs={**facts.rungs, "quantization": {"y": output(-1.7)}})).rung == "total"


def test_the_worst_sample_is_a_gate_of_its_own() -> None:
    facts = replace(verified(30), outputs={"y": replace(output(30), worst_db=9.9)})
    miss = missed(facts)
    assert "output 'y' is 9.9 dB against the original model in held_out.txt:3, 10 dB are asked for in every" in str(
        miss
    )
    assert miss.error.remedy.endswith("thresholds: {worst_db: 9}")
    assert may_ship(facts, Thresholds(worst_db=5))
    whole = replace(facts, subjects={"y": Subject("y", by="equality")})
    assert may_ship(whole, Thresholds()), "of integers, one of a sample's few may differ"


def test_what_is_between_0_and_1_may_keep_to_an_error_instead() -> None:
    near_zero = replace(output(3.0), max_abs_error=0.019)
    facts = replace(verified(), rungs={"compile": {"y": near_zero}}, outputs={"y": near_zero})
    assert not may_ship(facts, Thresholds())
    bounded = replace(facts, subjects={"y": Subject("y", bounded=True)})
    assert may_ship(bounded, Thresholds())
    assert not may_ship(bounded, Thresholds(total_db=30)), "whoever asks for more gets a smaller error"
    off = replace(near_zero, max_abs_error=0.021)
    assert not may_ship(replace(bounded, outputs={"y": off}), Thresholds())
    rewritten = replace(bounded, rungs={"rewrite": {"y": near_zero}})
    assert missed(rewritten, Thresholds(rewrite_db=60)).rung == "rewrite", "40 dB more: a hundredth of that"


def test_an_output_with_an_error_of_its_own_is_judged_by_that() -> None:
    given = replace(verified(3.0), outputs={"y": replace(output(3.0), max_abs_error=0.5)}, rungs={})
    assert may_ship(given, Thresholds(outputs={"y": OutputLimits(max_abs_error=0.5)}))
    limits = Thresholds(outputs={"y": OutputLimits(max_abs_error=0.4)})
    assert (
        "output 'y' is off by up to 0.5 against the original model, 0.4 is allowed" in missed(given, limits).error.what
    )
    both = Thresholds(outputs={"y": OutputLimits(max_abs_error=0.5, total_db=5)})
    assert "output 'y' is 3.0 dB" in missed(given, both).error.what


def test_padding_that_does_harm_tells_the_lengths_to_build() -> None:
    facts = replace(verified(padding={"y": output(12)}), lengths={"sequence": (3, 5, 9)})
    remedy = missed(facts).error.remedy
    assert "verification: {truth: padded}" in remedy
    assert "verification: {truth: exact}, here buckets: {sequence: [3, 5, 9]}, two samples or more of each" in remedy


def test_lengths_of_several_axes_are_told_as_a_configuration_takes_them() -> None:
    given = verified(padding={"y": output(12)})
    two = missed(replace(given, lengths={"a": (3, 3, 6), "b": (4, 5, 4)})).error.remedy
    assert "{truth: exact}, here buckets: [{a: 3, b: 4}, {a: 3, b: 5}, {a: 6, b: 4}], two samples" in two
    many = missed(replace(given, lengths={"a": (1,) * 7 + (2,) * 7, "b": (*range(7), *range(7))})).error.remedy
    of_a, of_b = "1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2", "0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6"
    assert f"{{truth: exact}}, here buckets: {{a: [{of_a}], b: [{of_b}]}}, two samples" in many, "place by place"
    most = missed(replace(given, lengths={"a": (*range(257),), "b": (*range(257),)})).error.remedy
    assert "here buckets" not in most, "more than a configuration takes"


def test_an_output_without_a_figure_is_a_miss_and_the_worst() -> None:
    miss = missed(verified(rewrite={"a": output(10), "b": output(None)}))
    assert miss.rung == "rewrite"
    assert "output 'b' is not a number against the rung above" in miss.error.what


def test_a_rewrite_is_judged_by_the_end_unless_the_config_asks_more_of_it() -> None:
    """A rewrite is a means, so it may cost what the total permits; padding may not."""
    facts = verified(30, rewrite={"y": output(49.1)})
    assert may_ship(facts, Thresholds())
    assert missed(facts, Thresholds(rewrite_db=60)).rung == "rewrite"
    assert missed(facts, Thresholds(total_db=50, quantization_db=50)).rung == "rewrite", "no later rung makes it up"
    own = Thresholds(outputs={"y": OutputLimits(rewrite_db=60)})
    assert missed(facts, own).rung == "rewrite"
    assert missed(verified(rewrite={"y": output(19.9)})).rung == "rewrite", "a broken one"
    state = replace(facts, subjects={"y": Subject("y", state=True)}, outputs={"y": output(49)})
    assert may_ship(state, Thresholds())
    assert missed(replace(state, rungs={"rewrite": {"y": output(39.9)}})).rung == "rewrite", "20 dB more of a state"
    assert missed(verified(padding={"y": output(49.1)})).rung == "padding"


def test_a_figure_from_few_samples_is_judged_with_a_margin() -> None:
    """Two of nine samples of a line detector gave 22.5 dB, all nine 13.5."""

    def emulated(db: float, samples: int, of: int = 9) -> emulate.Facts:
        return emulate.Facts(
            samples=samples, of=of, rungs={"compile": {"y": output(db)}}, outputs={"y": output(db)}, score=None
        )

    def judged(facts: emulate.Facts, thresholds: Thresholds = Thresholds()) -> Miss | None:  # noqa: B008
        return check("emulate", f"{NAME}/sm8650", facts.to_json(), thresholds)

    miss = judged(emulated(22.5, 2))
    assert miss is not None
    assert miss.rung == "compile"
    assert "22.5 dB against the rung above, 26.3 dB are asked for" in miss.error.what
    assert "2 of 9 samples were emulated, and few are judged with a margin" in miss.error.remedy
    assert "accept it with thresholds: {compile_db: 22}" in miss.error.remedy
    assert judged(emulated(22.5, 2), Thresholds(compile_db=22, few_db=0)) is None
    assert judged(emulated(26.3, 2)) is None
    assert judged(emulated(22.5, 9)) is None
    assert judged(emulated(20.0, 16, of=16)) is None
    assert judged(emulated(29.8, 1, of=157)) is not None


def test_nobody_is_advised_to_accept_noise() -> None:
    assert "accept" not in missed(verified(padding={"y": output(9.9)})).error.remedy


def test_the_sum_of_small_errors() -> None:
    miss = missed(verified(19.96))
    assert miss.rung == "total"
    assert "output 'y' is 20.0 dB" not in miss.error.what, "19.96 must not be shown as what is asked for"


def test_a_cosine() -> None:
    facts = replace(verified(), outputs={"y": output(cosine=0.98)})
    assert may_ship(facts, Thresholds())
    assert "cosine 0.98, not 0.99" in missed(facts, Thresholds(cosine=0.99)).error.what


@pytest.mark.parametrize("changed", [0.85, 0.95])
def test_a_score_may_change_by_so_much_in_either_direction(changed: float) -> None:
    facts = verified(score=Score("accuracy", 0.9, qdq=changed))
    assert may_ship(facts, Thresholds(score_change=0.06))
    error = missed(facts, Thresholds(score_change=0.04)).error
    emulated = emulate.Facts(samples=2, of=16, rungs={}, outputs=facts.outputs, score=facts.score).to_json()
    assert check("emulate", NAME, emulated, Thresholds(score_change=0.04)) is None, "of a few samples it says little"
    assert f"accuracy() is {changed:g} for the qdq model and 0.9 for the original" in error.what


def test_what_qnn_alone_gives_has_to_be_equal_whatever_the_thresholds() -> None:
    told = emulate.SecondOpinion(1, ("output 'y' differs in 1 of 9 values, the first is 1, 2 by ONNX Runtime",))
    facts = emulate.Facts(samples=1, of=1, rungs={}, outputs={}, score=None, second_opinion=told)
    miss = check("emulate", NAME, facts.to_json(), Thresholds(compile_db=-100, total_db=-100))
    assert miss is not None
    assert told.disagreements[0] in miss.error.why
    assert miss.rung == "", "another precision does not cure it"
    agreed = emulate.Facts(samples=1, of=1, rungs={}, outputs={}, score=None, second_opinion=emulate.SecondOpinion(1))
    assert check("emulate", NAME, agreed.to_json(), Thresholds()) is None


def refused(facts: context.Facts, thresholds: Thresholds) -> PipelineError:
    miss = check("context", NAME, facts.to_json(), thresholds)
    assert miss is not None
    return miss.error


def compiled(partitions: int, *nodes: tuple[str, bool]) -> context.Facts:
    made = context.PartFacts(
        bucket="64",
        axes={"sequence": 64},
        context_model="encoder_64_ctx.onnx",
        binaries=("encoder_64_ctx_qnn.bin",),
        inputs=(),
        outputs=(),
        partitions=partitions,
        cpu_nodes=tuple(context.CpuNode(f"n{at}", op, "", edge) for at, (op, edge) in enumerate(nodes)),
        targets=(),
        sdk="",
        compatibility="",
        cost=CostFacts(
            macs={},
            elements=0,
            weight_bytes=0,
            activation_bytes=0,
            edge_bytes=0,
            operators={},
            vtcm_bytes=0,
            spill_bytes=0,
        ),
    )
    return context.Facts("separate", {"64": context.Part({}, made)})


def test_conversions_at_the_edge_do_not_count() -> None:
    facts = compiled(1, ("QuantizeLinear", True), ("DequantizeLinear", True))
    assert check("context", NAME, facts.to_json(), Thresholds()) is None


def test_other_nodes_on_the_cpu_do() -> None:
    error = refused(compiled(2, ("Erf", False), ("DequantizeLinear", False)), Thresholds())
    assert error.what == "2 nodes would run on the CPU, 0 may"
    assert "Erf 'n0': no reason given" in error.why
    assert "Gelu" in error.remedy
    assert "thresholds: {max_cpu_nodes: 2, max_partitions: 2}" in error.remedy


def test_partitions() -> None:
    facts = compiled(2, ("Erf", False))
    assert "split into 2 partitions, 1 may be" in refused(facts, Thresholds(max_cpu_nodes=1)).what
    assert check("context", NAME, facts.to_json(), Thresholds(max_cpu_nodes=1, max_partitions=2)) is None


WISHED = Thresholds(quantization_db=30, compile_db=30, total_db=30, worst_db=20, probability_error=0.0)


def test_what_a_default_aims_at_is_told_by_the_rung_that_falls_short() -> None:
    short = wish("verify", verified(23.1, quantization={"y": output(23.2)}).to_json(), WISHED)
    assert short is not None
    assert short.rung == "quantization"
    assert "keeps to every threshold on the CPU, but 23.2 dB of output 'y' is less than the 30 dB" in short.error.what
    assert wish("verify", verified(31, quantization={"y": output(35)}).to_json(), WISHED) is None
    assert wish("context", {}, WISHED) is None


def test_an_error_that_is_small_where_nothing_happens_is_no_aim_reached() -> None:
    quiet = replace(output(23.0), max_abs_error=0.001)
    facts = replace(verified(quantization={"y": quiet}), subjects={"y": Subject("y", bounded=True)})
    assert may_ship(facts, Thresholds(quantization_db=24))
    assert wish("verify", facts.to_json(), WISHED) is not None


def test_what_is_read_otherwise_is_told_in_words_and_is_an_aim_before_decibels() -> None:
    flips = Agreement(0.985, 640, 0.9, "line.png")
    read = replace(output(35.0), agreement=flips)
    subject = Subject("y", reads="likeliest", axis=1, tie=0.05)
    facts = replace(verified(quantization={"y": read}), outputs={"y": read}, subjects={"y": subject})
    found = missed(facts)
    assert found.rung == "total"
    assert found.error.what.startswith("0.985 of the 640 clear choices of output 'y' are the same as in the original")
    assert found.read
    assert found.error.remedy is not None
    assert found.error.remedy.endswith("; or accept it with thresholds: {choices: 0.985}")
    assert may_ship(facts, Thresholds(choices=0.985))
    far = replace(read, agreement=Agreement(0.5, 640, 0.2, "line.png"))
    assert "accept" not in str(missed(replace(facts, outputs={"y": far})).error.remedy)
    short = wish("verify", facts.to_json(), WISHED)
    assert short is not None
    assert short.read
    level = replace(facts, subjects={"y": Subject("y", bounded=True, reads="level")})
    assert may_ship(level, Thresholds())
    short = wish("verify", level.to_json(), replace(WISHED, overlap=0.99))
    assert short is not None
    assert "output 'y' covers 0.985 alike, 0.9 in line.png, and a default aims at 0.99" in short.error.what


def test_what_goes_into_something_else_is_aimed_at_higher_where_it_is_said() -> None:
    facts = replace(verified(35, quantization={"y": output(36)}), subjects={"y": Subject("y")})
    assert wish("verify", facts.to_json(), WISHED) is None
    short = wish("verify", facts.to_json(), WISHED, features_db=40)
    assert short is not None
    assert "36.0 dB of output 'y' is less than the 40 dB" in short.error.what
    read = replace(facts, subjects={"y": Subject("y", reads="largest", axis=0, tie=0.1)})
    assert wish("verify", read.to_json(), WISHED, features_db=40) is None


def test_a_state_has_more_to_keep_to_and_no_aim() -> None:
    facts = replace(verified(45, quantization={"y": output(45)}), subjects={"y": Subject("y", state=True)})
    assert wish("verify", facts.to_json(), WISHED) is None


def test_a_worst_map_that_covers_too_little_is_accepted_by_the_overlap_it_keeps_to() -> None:
    read = replace(output(25.0), agreement=Agreement(0.93, 400, 0.65, "page.png"))
    level = {"y": Subject("y", bounded=True, reads="level")}
    facts = replace(verified(quantization={"y": read}), outputs={"y": read}, subjects=level)
    remedy = missed(facts).error.remedy
    assert remedy is not None
    assert remedy.endswith("thresholds: {overlap: 0.86}")
    assert may_ship(facts, Thresholds(overlap=0.86))


def test_what_only_the_cpu_could_compute_is_refused_where_it_may_not() -> None:
    value = "its input 'a' float32 [2, 2, 2, 3, 2, 4]"
    node = rewrite.TooManyDims("node 'ArgMax_2' (ArgMax)", value, 6, 5, 4, ("r",))
    edge = rewrite.TooManyDims("input 'x'", "input 'x' float32 [1, 2, 3, 4, 2, 4]", 6, 5)

    def refused(found: rewrite.TooManyDims | None, limits: Thresholds) -> PipelineError | None:
        facts = rewrite.Facts(inputs=(), outputs=(), nodes=1, applied={}, too_many_dims=found)
        miss = gates.check("net/net/16", Manifest("rewrite", "0" * 64, {}, facts.to_json()), limits)
        return miss.error if miss is not None else None

    told = refused(node, Thresholds())
    assert isinstance(told, ModelError)
    assert (told.what, told.where) == ("node 'ArgMax_2' (ArgMax) has a tensor of 6 dims: QNN takes at most 5", value)
    assert told.remedy.startswith("end the component before it with cut: ['r'] in the config")
    assert "thresholds: {max_cpu_nodes: 20, max_partitions: 2}" in told.remedy
    assert "let the application reshape" in str(refused(edge, Thresholds()))
    assert refused(node, Thresholds(max_cpu_nodes=1)) is None
    assert refused(None, Thresholds()) is None
