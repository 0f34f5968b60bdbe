"""Decides what of a language model may not ship: a rung whose next tokens are too far from the original's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pipeline.config.thresholds import Thresholds
from pipeline.contracts import bundle, converse, reading, words
from pipeline.contracts.language import LanguageFigures
from pipeline.errors import VerificationError

_FEW = 64
"""With fewer tokens than this, the share of equal tokens is not judged."""
_FEW_FOR_PERPLEXITY = 256
"""The same for the perplexity, which a few unlikely tokens decide: over 160 tokens that SmolLM2 decoded, rounding that
costs 0.022 nats took 4.9 % off it."""
_NOISE_DB = 10.0
"""At this SQNR the error is a third of the signal. No message advises to accept less."""
_WHY: Mapping[str, str] = {
    "rewrite": "a rewrite for HTP, or fixing the shape, changed what the model computes",
    "quantization": "rounding weights, cache and activations to their encodings loses too much",
    "compile": "HTP computes a node otherwise than onnxruntime's CPU does",
}


def missed(name: str, figures: Mapping[str, LanguageFigures], thresholds: Thresholds) -> Iterator[VerificationError]:
    """Why the output of a verify or emulate step may not ship; `name` is the step's, as `smollm2/model/1x511`."""
    for rung, found in figures.items():
        for what, asked in _misses(found, thresholds):
            yield VerificationError(
                f"the {rung} rung misses its threshold: {what}",
                where=f"{name}, {found.tokens} tokens",
                why=_WHY.get(rung, ""),
                remedy=f"raise the precision under quantization.overrides, or accept it with thresholds: {{{asked}}}",
            )


def misheard(name: str, facts: words.Facts, thresholds: Thresholds) -> Iterator[VerificationError]:
    """Why a speech model may not ship: it writes down other words than the original, or its next tokens are others."""
    found = facts.figures
    if found is None:
        return
    if found.error_rate > thresholds.words:
        yield VerificationError(
            f"{found.wrong} of {found.words} words differ from the original's, a share of {found.error_rate:.4f};"
            f" {thresholds.words:g} is allowed",
            where=f"{name}, {found.windows} windows, the worst {found.worst}",
            why=f"the original hears {found.original.strip()[:200]!r}, the artifact {found.made.strip()[:200]!r}",
            remedy="raise the precision under quantization.overrides, or accept it with"
            f" thresholds: {{words: {_up(found.error_rate)}}}",
        )
    yield from missed(name, {"quantization": found.steps}, replace(thresholds, perplexity=math.inf))


def misread(name: str, facts: reading.Facts, thresholds: Thresholds) -> Iterator[VerificationError]:
    """Why a language model may not ship that llama.cpp reads otherwise."""
    found = facts.reading.language
    if found is None:
        return
    safer = "report this with the file; until it is mended, take the model as safetensors, or another file of it"
    for what, why in (
        ("the tokenizer that would ship splits a text otherwise than llama.cpp does", found.ids),
        ("the chat template is rendered otherwise than llama.cpp does it", found.template),
    ):
        if why is not None:
            yield VerificationError(what, where=f"{name}, {found.texts} texts", why=why, remedy=safer)
    for logits in facts.figures.values():
        least = found.least_db(thresholds.reading_db)
        if logits.sqnr_db is None or logits.sqnr_db < least:
            shown = "no number" if logits.sqnr_db is None else f"{logits.sqnr_db:.1f} dB"
            own = "" if found.own_db is None else f"; llama.cpp's own rounding leaves {found.own_db:.1f} dB"
            yield VerificationError(
                f"the reading rung misses its threshold: the logits are {shown} from llama.cpp's on the same file,"
                f" {least:.1f} dB are asked for",
                where=f"{name}, {facts.reading.samples} places, the worst {logits.worst_sample}",
                why=f"the model that was read computes something else than llama.cpp {found.version} does{own}",
                remedy=safer
                + (
                    f"; or accept it with thresholds: {{reading_db: {math.floor(logits.sqnr_db)}}}"
                    if logits.sqnr_db is not None and logits.sqnr_db >= _NOISE_DB
                    else ""
                ),
            )


def bundled(name: str, facts: bundle.Facts) -> Iterator[VerificationError]:
    """Why the files for engines may not ship: faults that engines do not notice but compute wrong results from."""
    if facts.faults:
        yield VerificationError(
            f"what engines would read is wrong: {facts.faults[0]}",
            where=name,
            why="no engine notices" + "".join(f"\n    | {fault}" for fault in facts.faults[1:]),
            remedy="report this with the model; the files are in the step's output",
        )


def conversed(name: str, facts: converse.Facts) -> Iterator[VerificationError]:
    """Why contexts may not ship: an engine refused them, or it gave other tokens than the reference loop."""
    if facts.differences:
        yield VerificationError(
            f"what was emulated is not what would ship: {facts.differences[0]}",
            where=name,
            why="graphs that share a binary are to have the inputs and outputs that they have by themselves",
            remedy="build with packing: separate, and report this with the model",
        )
    for engine, spoken in facts.engines.items():
        if spoken.refused is not None:
            yield VerificationError(
                f"{engine} does not run what was written for it",
                where=name,
                why=spoken.refused,
                remedy="report this with the model and the log of the step",
            )
        elif spoken.tokens != facts.expected:
            yield VerificationError(
                f"{engine} answers {[*spoken.tokens]}, the reference loop {[*facts.expected]}",
                where=f"{name}, after {facts.prompt} tokens, on graphs of {facts.twin}",
                why="mask, rotation or cache are not what the engine takes them for",
                remedy="report this with the model",
            )


def _misses(found: LanguageFigures, thresholds: Thresholds) -> Iterator[tuple[str, str]]:
    """The figures that miss, each with the threshold that it would keep to."""
    if found.kl is None or found.kl > thresholds.kl:
        shown = "no number" if found.kl is None else f"{found.kl:.4f}"
        yield f"a divergence of {shown} nats where {thresholds.kl:g} are allowed", f"kl: {_up(found.kl)}"
    if found.tokens < _FEW:
        return
    if found.top1 is None or found.top1 < thresholds.top1:
        shown = "none" if found.top1 is None else f"{found.top1:.3f}"
        yield f"{shown} of the likeliest tokens are the original's, {thresholds.top1:g} are asked for", f"top1: {shown}"
    if found.tokens < _FEW_FOR_PERPLEXITY:
        return
    if found.change is None or found.change > thresholds.perplexity:
        shown = "no number" if found.change is None else f"{found.change:.1%}"
        text = f"the perplexity differs by {shown} from the original's, {thresholds.perplexity:.1%} are allowed"
        yield text, f"perplexity: {_up(found.change)}"


def _up(value: float | None) -> str:
    return "..." if value is None else f"{value * 1.1:.2g}"
