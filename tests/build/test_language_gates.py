"""What of a language model does not ship."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.build.language_gates import bundled, conversed, missed
from pipeline.config.thresholds import Thresholds
from pipeline.contracts import bundle, converse
from pipeline.contracts.language import LanguageFigures
from pipeline.graph.accuracy.figures.next_tokens import Divergence

GOOD = LanguageFigures(tokens=300, kl=0.01, top1=0.95, perplexity=10.1, reference=10.0)


def told(**changes: Any) -> list[str]:
    figures = LanguageFigures(**{**GOOD.to_json(), **changes})
    return [str(error) for error in missed("m/model/1x511", {"quantization": figures}, Thresholds())]


def test_what_is_near_enough_passes() -> None:
    assert told() == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kl": 0.05}, "a divergence of 0.0500 nats where 0.03 are allowed"),
        ({"kl": None}, "a divergence of no number"),
        ({"top1": 0.8}, "0.800 of the likeliest tokens are the original's, 0.9 are asked for"),
        ({"perplexity": 11.0}, "the perplexity differs by 10.0% from the original's, 3.0% are allowed"),
        ({"perplexity": None}, "differs by no number"),
    ],
)
def test_each_figure_is_judged(changes: dict[str, Any], text: str) -> None:
    (error,) = told(**changes)

    assert text in error
    assert "m/model/1x511, 300 tokens" in error


def test_a_few_tokens_are_judged_by_their_divergence_alone() -> None:
    assert told(tokens=16, top1=0.5, perplexity=20.0) == []
    assert len(told(tokens=16, kl=1.0)) == 1
    assert told(tokens=200, perplexity=20.0) == []
    assert len(told(tokens=200, top1=0.5)) == 1


def test_figures_are_those_of_the_distributions() -> None:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((6, 9)).astype(np.float32)
    tokens = [1, 4, 2, 0, 8, 3]
    same, other = Divergence(), Divergence()

    same.add(reference, reference + 3, tokens)  # a constant changes no distribution
    made = reference.copy()
    made[0, 5] += 9
    other.add(reference, made, tokens)

    shares = np.exp(reference) / np.exp(reference).sum(axis=1, keepdims=True)
    loss = -np.mean([np.log(shares[at, tokens[at + 1]]) for at in range(5)])
    assert same.figures().kl == pytest.approx(0, abs=1e-5)
    assert same.figures().top1 == 1
    assert same.figures().reference == pytest.approx(np.exp(loss), rel=1e-5)
    now = np.exp(made[0]) / np.exp(made[0]).sum()
    kl = float(np.sum(shares[0] * np.log(shares[0] / now))) / 6
    assert other.figures().kl == pytest.approx(kl, rel=1e-4)
    assert other.figures().top1 == pytest.approx(5 / 6, abs=1e-5)


def shown(**changes: Any) -> converse.Facts:
    genie = converse.Spoken(version="1.21.0", opened=True, tokens=(1, 2))
    facts = converse.Facts(prompt=10, twin="8x24", expected=(1, 2), engines={"genie": genie}, differences=())
    return replace(facts, **changes)


def test_engines_that_answer_as_the_loop_does_pass() -> None:
    assert [*conversed("m/model/soc", shown())] == []
    assert [*bundled("m/model/soc", bundle.Facts(configs={}))] == []


@pytest.mark.parametrize(
    ("spoken", "text"),
    [
        ({"tokens": (1, 3)}, "genie answers [1, 3], the reference loop [1, 2]"),
        ({"refused": "no"}, "genie does not run what was written for it"),
    ],
)
def test_an_engine_that_does_otherwise_fails_the_build(spoken: dict[str, Any], text: str) -> None:
    genie = replace(shown().engines["genie"], **spoken)

    (error,) = conversed("m/model/soc", shown(engines={"genie": genie}))

    assert text in str(error)


def test_a_shared_binary_that_differs_from_what_was_emulated_fails_the_build() -> None:
    (error,) = conversed("m/model/soc", shown(differences=("logits differ",)))

    assert "what was emulated is not what would ship: logits differ" in str(error)


def test_a_fault_that_no_engine_notices_fails_the_build() -> None:
    (error,) = bundled("m/model/soc", bundle.Facts(configs={}, faults=("rope-theta is wrong", "and more")))

    assert "what engines would read is wrong: rope-theta is wrong" in str(error)
    assert "| and more" in str(error)
