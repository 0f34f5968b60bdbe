"""The contract of `words`."""

from __future__ import annotations

from pipeline.contracts.codec import Contract
from pipeline.contracts.language import LanguageFigures
from pipeline.contracts.measures import OverBuckets, SamplePart
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`part` is the part of the samples that the words are of."""

    part: SamplePart


@dataclass(frozen=True)
class WordFigures(Contract):
    """Words of the built model on `windows` of speech: `wrong` of the original's `words` differ (replaced, added, left
    out).

    `steps` compares the distributions of the next token, each after the original's tokens. `worst` is the name of the
    window with the most wrong words, `original` and `made` its texts by both; empty if no word is wrong.
    """

    windows: int
    words: int
    wrong: int
    steps: LanguageFigures
    worst: str = ""
    original: str = ""
    made: str = ""

    @property
    def error_rate(self) -> float:
        """The word error rate against the original, as a share."""
        return self.wrong / max(self.words, 1)


@dataclass(frozen=True)
class Facts(Contract):
    """The comparison; None if no sample was held out."""

    figures: WordFigures | None
