"""Which tokens of which conversation the emulator runs."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.contracts.language import Lengths
from pipeline.inputs.samples.spoken import SpokenText

_DECODED = (3, 8)
"""The fewest and the most tokens of a conversation that the emulator decodes; the budget says how many."""
_READ = 16
"""Tokens that the CPU reads before them where no conversation has an answer that the twin reaches."""


def decoded_count(step_s: float, budget_s: float) -> int:
    """How many tokens to decode: those that a budget in seconds pays for, within :data:`_DECODED`.

    A step takes `step_s`.
    """
    fewest, most = _DECODED
    return max(fewest, min(most, int(budget_s / step_s) if step_s else most))


def to_prefill(texts: Sequence[SpokenText], lengths: Lengths) -> tuple[list[int], int]:
    """The tokens of a conversation, and how many come before the window to run: that which ends where an answer begins.

    Of it an application has the token that an answer begins with, by which its last position is judged, and it reads a
    cache. That of the first conversation whose question the twin's cache holds; if there is none, the first window of
    the first conversation, which is the same in all of them where a template begins them alike.
    """
    for text in texts:
        if text.answer is not None and lengths.sequence <= text.answer <= lengths.total:
            return text.tokens[: text.answer + 1], text.answer - lengths.sequence
    return texts[0].tokens[: lengths.total], 0


def to_decode(texts: Sequence[SpokenText], lengths: Lengths, count: int) -> tuple[list[int], int, int]:
    """The tokens of a conversation, how many come before those to decode, and how many are decoded.

    The first of the conversations of whose answers the twin's cache takes most tokens, `count` at most; if it takes
    fewer than are due of any, the first conversation after a few of its tokens.
    """
    room = [0 if text.answer is None else min(lengths.total, len(text.tokens)) - text.answer for text in texts]
    at = max(range(len(texts)), key=lambda place: min(room[place], count))
    answer = texts[at].answer
    if answer is not None and room[at] >= min(_DECODED[0], count):
        return texts[at].tokens, answer, min(room[at], count)
    tokens = texts[0].tokens[: lengths.total]
    return tokens, min(_READ, len(tokens) - count), count
