"""How far a language model's distributions of the next token are from another one's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.language import LanguageFigures

Floats = NDArray[np.float32]


@dataclass
class Divergence:
    """Sums over positions; add texts one by one, then ask for the figures."""

    _tokens: int = 0
    _followed: int = 0
    _kl: float = 0.0
    _alike: int = 0
    _loss: float = 0.0
    _reference: float = 0.0

    def add(self, reference: Floats, made: Floats, tokens: Sequence[int]) -> None:
        """Take in a text's logits, both float32 [positions, vocabulary], the first of them at its first token.

        `tokens` are those of the text, as many or one more: each position but the last is judged by what follows it.
        """
        for at in range(len(reference)):
            was, now = _log_softmax(reference[at]), _log_softmax(made[at])
            self._kl += float(np.sum(np.exp(was) * (was - now)))
            self._alike += int(np.argmax(was) == np.argmax(now))
            self._tokens += 1
            if at + 1 < len(tokens):
                self._loss -= float(now[tokens[at + 1]])
                self._reference -= float(was[tokens[at + 1]])
                self._followed += 1

    def figures(self) -> LanguageFigures:
        """The figures over all positions so far."""
        count, followed = max(self._tokens, 1), max(self._followed, 1)
        return LanguageFigures(
            tokens=self._tokens,
            kl=_known(self._kl / count),
            top1=_known(self._alike / count),
            perplexity=_exp(self._loss / followed) if self._followed else None,
            reference=_exp(self._reference / followed) if self._followed else None,
        )


def _log_softmax(logits: Floats) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - math.log(float(np.exp(wide).sum())))


def _known(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _exp(value: float) -> float | None:
    return _known(math.exp(value)) if math.isfinite(value) and value < 700 else None
