"""Chooses which tokens of which conversation the emulator runs."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.contracts.language import Lengths
from pipeline.inputs.samples.spoken import SpokenText

_DECODED = (3, 8)
"""The fewest and the most tokens of a conversation that the emulator decodes; the budget says how many."""
_READ = 16
"""How many tokens the CPU reads before those to decode if no conversation has an answer within the twin's cache."""


def decoded_count(step_s: float, budget_s: float) -> int:
    """How many tokens to decode in `budget_s` seconds if each takes `step_s`, within the bounds of :data:`_DECODED`."""
    fewest, most = _DECODED
    return max(fewest, min(most, int(budget_s / step_s) if step_s else most))


def to_prefill(texts: Sequence[SpokenText], lengths: Lengths) -> tuple[list[int], int]:
    """The tokens of a conversation, and how many of them come before the window that prefill runs on the emulator.

    The window ends where an answer begins: its last position gives the answer's first token, and it reads a cache.
    It is that of the first conversation whose question fits into the twin's cache. If there is none, it is the first
    window of the first conversation, which says less: if the template begins all conversations alike, it is the same
    in all of them.
    """
    for text in texts:
        if text.answer is not None and lengths.sequence <= text.answer <= lengths.total:
            return text.tokens[: text.answer + 1], text.answer - lengths.sequence
    return texts[0].tokens[: lengths.total], 0


def to_decode(texts: Sequence[SpokenText], lengths: Lengths, count: int) -> tuple[list[int], int, int]:
    """The tokens of a conversation, how many come before those to decode, and how many are decoded.

    At most `count` tokens of an answer are decoded, in the first of the conversations from whose answers the twin's
    cache takes the most. If it takes too few from every answer, the first conversation is decoded from near its
    beginning.
    """
    room = [0 if text.answer is None else min(lengths.total, len(text.tokens)) - text.answer for text in texts]
    at = max(range(len(texts)), key=lambda place: min(room[place], count))
    answer = texts[at].answer
    if answer is not None and room[at] >= min(_DECODED[0], count):
        return texts[at].tokens, answer, min(room[at], count)
    tokens = texts[0].tokens[: lengths.total]
    return tokens, min(_READ, len(tokens) - count), count
