"""What is said where no precision keeps to the gates: true of what was found, with advice that can be followed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.build.climb import nothing_keeps
from pipeline.build.gates import check
from pipeline.build.remedies import FLOAT, Able, Tried
from pipeline.config.load import load
from pipeline.config.thresholds import Thresholds
from pipeline.contracts import emulate
from pipeline.contracts.climb import Attempt
from pipeline.contracts.forecast import Forecast
from pipeline.contracts.measures import Figures, Subject
from pipeline.contracts.scheme import Rule, Scheme
from pipeline.errors import CompileError
from pipeline.model import Manifest
from tests.support.config_mistakes import GOOD, write

W8A16 = Scheme("uint16", "uint8", per_channel=True)
FP16 = replace(W8A16, overrides=(FLOAT,))
ALL = Able(float16=True, wide_weights=True, blocks=True)
REFUSED = CompileError(
    "QNN compiled nothing of net_all for SoC 60", why="QNN refused a node", remedy="look at the node the log names"
)
WRONGLY = "HTP computes it wrongly"


def attempt(label: str, sqnr_db: float | None = None) -> Attempt:
    return Attempt(label, "emulate:net/net/all/sm8650", "missed", {} if sqnr_db is None else {"total": sqnr_db}, 0)


def test_what_qnn_does_not_compile_is_not_said_to_be_computed_wrongly() -> None:
    tried = [Tried(scheme, "compile", (3, -1e9), failed=REFUSED) for scheme in (W8A16, FP16)]
    error = nothing_keeps("net/net", [attempt("w8a16"), attempt("fp16")], tried, ALL)
    assert WRONGLY not in error.remedy
    assert error.remedy == ("no precision could be made, and no other cures that: look at the node the log names")
    assert error.why.endswith("QNN compiled nothing of net_all for SoC 60: QNN refused a node")


def test_targets_without_float16_are_not_to_blame_for_what_qnn_does_not_compile() -> None:
    error = nothing_keeps(
        "net/net", [attempt("w8a16")], [Tried(W8A16, "compile", (3, -1e9), failed=REFUSED)], replace(ALL, float16=False)
    )
    assert error.remedy.startswith("no precision could be made, and no other cures that: look at the node")


def test_what_is_wrong_in_one_precision_and_not_compiled_in_another_is_told_apart() -> None:
    wrong = Tried(W8A16, "quantization", (1, 13.0), accepts="thresholds: {total_db: 13}")
    tried = [wrong, Tried(FP16, "compile", (3, -1e9), failed=REFUSED)]
    error = nothing_keeps("net/net", [attempt("w8a16", 13.0), attempt("fp16")], tried, ALL)
    assert "what could be made of it HTP computes wrongly, and for the rest look at the node the log" in error.remedy
    assert error.remedy.endswith("; w8a16 comes closest, and ships with thresholds: {total_db: 13}")


def test_what_rounded_inputs_lose_may_be_an_order_that_a_topk_makes() -> None:
    """A YOLO that gives its 300 best boxes in order lost 3 dB of all by that, and is right with a cut before it."""

    def remedy(choices: tuple[str, ...] | None) -> str:
        lost = [
            Tried(scheme, "quantization", (1, -1.7), inputs_db=lambda: 3.1, choices=lambda: choices)
            for scheme in (W8A16, FP16)
        ]
        return nothing_keeps("net/net", [attempt("w8a16", -1.7), attempt("fp16", -1.7)], lost, ALL).remedy

    assert "rounding the inputs, with all else in float32, leaves 3.1 dB" in remedy(("scores", "boxes"))
    assert "where the TopK or NonMaxSuppression inside puts what comes out in order" in remedy(("scores", "boxes"))
    assert "end the component before it with cut: ['scores', 'boxes'], and choose" in remedy(("scores", "boxes"))
    assert "end the component before it with 'cut', and choose in the application" in remedy(())
    assert "TopK" not in remedy(None)
    assert "'Inputs in two parts'" in remedy(None)


def test_a_state_that_misses_is_accepted_as_an_output_as_a_config_can_say_it(tmp_path: Path) -> None:
    figures = {"hn[:1]": Figures(34.2, 34.2, 34.2, worst_sample="1.npz", cosine=1.0, max_abs_error=0.1)}
    facts = emulate.Facts(
        samples=3, of=3, score=None, rungs={"compile": figures}, outputs=figures,
        subjects={"hn[:1]": Subject("hn", state=True)},
    )  # fmt: skip
    made = Manifest("emulate", "", {}, facts.to_json())
    miss = check("net/net/all/sm8650", made, Thresholds())
    assert miss is not None
    assert miss.state
    tried = [Tried(FP16, miss.rung, (4, 34.2), state=True, accepts=miss.accepts)]
    remedy = nothing_keeps("net/net", [attempt("fp16", 34.2)], tried, ALL).remedy
    assert "thresholds" not in remedy
    _, written = remedy.split("fp16 comes closest, and ships with ")
    advice, _, rest = written.partition("}}},")
    assert (advice, rest) == (
        'verification: {outputs: {"hn[:1]": {total_db: 34', " if its states are not handed on",
    )  # fmt: skip
    config = load(write(tmp_path, f"{GOOD}{advice}}}}}}}\n"))
    assert check("net/net/all/sm8650", made, config.components["encoder"].thresholds) is None


def test_where_inputs_are_too_coarse_that_is_what_is_said() -> None:
    tried = [Tried(W8A16, "quantization", (1, 15.0)), Tried(FP16, "compile", (4, 3.0), inputs_db=lambda: 5.6)]
    remedy = nothing_keeps("net/net", [attempt("w8a16", 15.0), attempt("fp16", 3.0)], tried, ALL).remedy
    assert WRONGLY not in remedy
    assert "rounding the inputs, with all else in float32, leaves 5.6 dB of the worst sample" in remedy
    assert "export the model from there on" in remedy


def test_noise_is_offered_to_nobody() -> None:
    error = nothing_keeps("net/net", [attempt("fp16", 3.0)], [Tried(FP16, "compile", (4, 3.0))], ALL)
    assert error.remedy.endswith(f"{WRONGLY} in every precision they have")


def test_what_misses_on_the_cpu_is_not_said_to_be_computed_wrongly() -> None:
    tried = [Tried(W8A16, "quantization", (1, 15.0)), Tried(FP16, "rewrite", (0, 19.9))]
    remedy = nothing_keeps("net/net", [attempt("w8a16", 15.0), attempt("fp16", 19.9)], tried, ALL).remedy
    assert WRONGLY not in remedy
    assert "no precision they have is fine enough for it" in remedy


def test_of_many_tries_the_first_the_best_and_the_last_are_listed() -> None:
    attempts = [attempt(f"try {number}", 19.5 if number == 20 else number / 10) for number in range(40)]
    tried = [Tried(W8A16, "quantization", (1, 15.0))] * len(attempts)
    lines = nothing_keeps("net/net", attempts, tried, ALL).why.splitlines()
    listed = [line.split(":")[0].removeprefix("    | ") for line in lines[1:]]
    assert listed == [
        "try 0", "try 1", "try 2", "... 17 more, none of them better, are in the log of the build", "try 20",
        "... 16 more, none of them better, are in the log of the build", "try 37", "try 38", "try 39",
    ]  # fmt: skip


def test_what_no_remedy_changes_is_said_and_what_foretold_it() -> None:
    told = Forecast("fp16_overflow", "stream", "'Add_7' (Add)", 100963.0, 65504.0)
    rules = [Rule(nodes=(str(number),), precision="fp16") for number in range(8)]
    tried = [
        Tried(W8A16.with_rules([rule]), "quantization", (1, 19.2 + n / 10), foretold=(told,))
        for n, rule in enumerate(rules)
    ]
    tried += [Tried(FP16, "compile", (4, 8.0))]
    attempts = [attempt(str(number), 19.6) for number in range(9)]
    assert "whatever they change" not in str(nothing_keeps("net/net", attempts[1:], tried[1:], ALL))
    why = nothing_keeps("net/net", attempts, tried, ALL).why
    assert (
        "; 8 that are in integers but for some nodes come to 19.2 to 19.9 dB at the quantization rung whatever" in why
    )
    assert "foretold was fp16_overflow: 'stream' of 'Add_7' (Add): 1.01e+05, limit 6.55e+04" in why
