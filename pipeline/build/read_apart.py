"""Describes outputs off which an application reads something else than off the original's."""

from __future__ import annotations

import math

from pipeline.graph.accuracy.verdict import WORST_BELOW, Shortfall


def told_apart(missed: Shortfall) -> str:
    """In words, how much of what an application reads off an output is as in the original."""
    found = missed.figures.agreement
    assert found is not None
    if missed.kind == "flips":
        return (
            f"a share of {found.flips:.2g} of the clear choices of output {missed.label!r} is expected to differ on"
            f" other inputs, by the margins and errors of {found.of}"
        )
    if missed.kind == "choices" and found.of == 1:
        return f"the only clear choice of output {missed.label!r} is {'' if found.share == 1 else 'not '}the same"
    if missed.kind == "choices":
        return f"{found.share:.4g} of the {found.of} clear choices of output {missed.label!r} are the same"
    return f"output {missed.label!r} covers {found.share:.3g} alike, {found.worst:.3g} in {found.worst_sample}"


def accepted_shares(missed: Shortfall) -> dict[str, float]:
    """The threshold that an output would keep to, by its key in the config, rounded down."""
    found = missed.figures.agreement
    assert found is not None
    assert missed.kind in ("choices", "overlap"), "flips are an aim, and no gate"
    share = found.share if missed.kind == "choices" else min(found.share, 1 - (1 - found.worst) / WORST_BELOW)
    return {missed.kind: math.floor(share * 1000) / 1000}
