"""The task score of the demo model: is the language right?

Used by `configs/demo.yaml` under `verification.score`. Verification calls a score function once for the original model
and once for what was built from it, with the same samples, and reports the two figures side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from pipeline.inputs.samples.held_out import ScoredSample

LANGUAGES = ("de", "en", "es", "fr", "it", "ko", "nl", "pl", "pt", "ru", "uk")
"""What each logit stands for."""


def accuracy(samples: Sequence[ScoredSample], outputs: Sequence[Mapping[str, NDArray[Any]]]) -> float:
    """The share of samples, from 0 to 1, whose own language has the largest logit.

    `samples` are lines of a `.tsv` file of texts, each with its language as `label`; `outputs` has the model's outputs
    for each of them, in the same order: `logits`, float32 [1, languages].

    Raises:
        ValueError: there are no samples, or one's label is not a language of the model.
    """
    if not samples:
        raise ValueError("there are no samples to score")
    right = 0
    for sample, output in zip(samples, outputs, strict=True):
        if sample.label not in LANGUAGES:
            raise ValueError(f"{sample.text!r} is labelled {sample.label!r}, which is none of {', '.join(LANGUAGES)}")
        right += LANGUAGES[int(output["logits"].argmax())] == sample.label
    return right / len(samples)
