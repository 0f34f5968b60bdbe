"""Decides what a build may not ship: outputs that miss a threshold of the accuracy ladder, and nodes left to the CPU.

Stages measure and report facts. This module decides in every build whether the facts are good enough. So a threshold
can be changed without measuring again, and a miss fails every build until it is gone.

Which exact lengths to build where padding does harm.

Describes outputs off which an application reads something else than off the original's.

The error for values of more dims than HTP has, where no nodes may be left to the CPU.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.build import language_gates
from pipeline.config.buckets import MOST
from pipeline.config.thresholds import Thresholds
from pipeline.contracts import bundle, context, converse, emulate, reading, rewrite, verify, words
from pipeline.contracts.limits import WORST_BELOW_DB
from pipeline.contracts.measures import Subject
from pipeline.contracts.rewrite import TooManyDims
from pipeline.errors import ModelError, PipelineError, VerificationError
from pipeline.frozen import dataclass
from pipeline.graph.accuracy.verdict import TOTAL, WORST_BELOW, Shortfall, shortfalls
from pipeline.ladder import READING, RUNGS
from pipeline.model import Json, Manifest
from pipeline.plain_text import cutting
from pipeline.qnn.compiling import hints

Ladder = verify.Facts | emulate.Facts

READ = ("choices", "flips", "overlap")
"""Kinds of shortfall that concern what an application reads off an output, such as the choice of a class."""
_WISHED = ("db", "worst", *READ)
_UNLIKE = 0.8
"""Below this share an application reads something else. No message advises to accept that."""
NOISE_DB = 10.0
"""At this SQNR the error is a third of the signal. No message advises to accept less."""

COARSE = "HTP computes a node with less accuracy than onnxruntime's CPU does"
_AGAINST = {READING: "the source's own file", "padding": "the original model", TOTAL: "the original model"}
"""The model that a rung is held against, where it is not the rung above."""
_CAUSES: Mapping[str, tuple[str, str]] = {
    "padding": (
        "the padded tail reaches into the valid part: a norm, a mean, a softmax or a recurrence over the length without"
        " a mask",
        "export the model with a mask input; or, if the application always pads, say verification: {{truth: padded}};"
        " or build the exact lengths that are used, with verification: {{truth: exact}}",
    ),
    "rewrite": (
        "a rewrite for HTP changed what the model computes",
        "report it with the model; the manifest lists the rewrites that were applied",
    ),
    "quantization": (
        "rounding to the encodings loses too much",
        "leave 'quantization' out, and the build looks for a precision that keeps to this; or keep what {blame} ranks"
        " first in 16 bits or fp16 under quantization.overrides, or calibrate with more or more typical samples",
    ),
    "compile": (
        COARSE,
        "leave 'quantization' out, and the build looks for a precision that keeps to this; or name what went wrong:"
        " quantization.overrides: [{{nodes: [...], precision: fp16}}] keeps it in float, activations: uint16 does not",
    ),
    "total": (
        "the errors of all rungs add up to too much",
        "leave 'quantization' out, and the build looks for a precision that keeps to this; or raise the precision of"
        " what {blame} ranks first under quantization.overrides",
    ),
}


@dataclass(frozen=True)
class Miss:
    """Why a step's output may not ship. `rung` is the rung of the ladder that it misses; empty if it misses none.

    `state`: a state misses, which the next run takes in. `read`: an application reads something else off an output.
    `accepts` is what to write into a config to ship it all the same; empty if nobody should. `sqnr_db` is the figure
    that misses, if it is in dB. `whole`: whole numbers miss, which should all be equal. `left` are the nodes that QNN
    leaves to the CPU, without conversions; None if that is not the reason. `lacking`: it has no operator for too many.
    """

    error: PipelineError
    rung: str = ""
    state: bool = False
    read: bool = False
    accepts: str = ""
    sqnr_db: float | None = None
    whole: bool = False
    left: tuple[str, ...] | None = None
    lacking: bool = False


def check(name: str, made: Manifest, thresholds: Thresholds) -> Miss | None:
    """The first reason why the output of a step may not ship; None if it may. `name` is such as `minilm/encoder/64`."""
    if made.stage == "verify":
        return next(_misses(name, made.read(verify.Facts.from_json), thresholds), None)
    if made.stage == "emulate":
        emulated = made.read(emulate.Facts.from_json)
        if (opinion := emulated.second_opinion) and opinion.disagreements:
            return Miss(_contradicted(name, opinion))
        return next(_misses(name, emulated, thresholds), None)
    if made.stage == "reading":
        return next(_misread(name, made.read(reading.Facts.from_json), thresholds), None)
    if made.stage == "rewrite":
        deep = made.read(rewrite.Facts.from_json).too_many_dims
        return Miss(too_many_dims(deep)) if deep is not None and not thresholds.max_cpu_nodes else None
    if made.stage == "words":
        return next(map(Miss, language_gates.misheard(name, made.read(words.Facts.from_json), thresholds)), None)
    if made.stage == "bundle":
        return next(map(Miss, language_gates.bundled(name, made.read(bundle.Facts.from_json))), None)
    if made.stage == "converse":
        return next(map(Miss, language_gates.conversed(name, made.read(converse.Facts.from_json))), None)
    if made.stage == "context":
        parts = made.read(context.Facts.from_json).parts.values()
        return next((miss for each in parts for miss in _fallbacks(each.facts, thresholds)), None)
    return None


def wish(stage: str, facts: Mapping[str, Json], wished: Thresholds, *, features_db: float = 0.0) -> Miss | None:
    """The figure of a ladder that is furthest below the aim of a default; None if every figure reaches it.

    No gate asks for the aim. States have none, as their thresholds are higher already. `features_db` is the aim for
    outputs that nothing is read off: the effect of an error in them is not known.
    """
    if stage not in ("verify", "emulate"):
        return None
    ladder: Ladder = (verify.Facts if stage == "verify" else emulate.Facts).from_json(facts)
    so_far = "keeps to every threshold" + " on the CPU" * (stage == "verify")
    own = ["quantization"] if stage == "verify" else ["compile"]
    measured = {rung: ladder.rungs[rung] for rung in own if rung in ladder.rungs} | {TOTAL: ladder.outputs}
    subjects = {label: ladder.subjects.get(label, Subject(label)) for label in ladder.outputs}
    aims = dict.fromkeys((label for label, subject in subjects.items() if not subject.state), wished)
    if features_db > wished.total_db:
        finer = replace(wished, quantization_db=features_db, compile_db=features_db, total_db=features_db)
        aims |= {label: finer for label in aims if subjects[label].by == "values" and subjects[label].reads is None}
    found = [
        missed
        for rung, figures in measured.items()
        for label, aim in aims.items()
        for missed in shortfalls(rung, {label: figures[label]} if label in figures else {}, subjects, aim)
        if missed.kind in _WISHED
    ]
    if not found:
        return _quiet_wish(ladder, wished, so_far)
    # A rung that is short tells more of the reason than the total that it is part of, and what is read the most.
    worst = max(found, key=lambda missed: (missed.kind in READ, missed.rung != TOTAL, missed.missing))
    if worst.kind in READ:
        told = f"{so_far}, but {told_apart(worst)}, and a default aims at {worst.asked:.3g}"
        return Miss(VerificationError(told), TOTAL, read=True)
    figure = worst.figures.worst_db if worst.kind == "worst" else worst.figures.sqnr_db
    one = f" in {worst.figures.worst_sample}" if worst.kind == "worst" else ""
    told = f"{so_far}, but {_shown(figure)} of output {worst.label!r}{one} is less than"
    return Miss(VerificationError(f"{told} the {worst.asked:g} dB that a default aims at"), worst.rung)


def _misses(name: str, facts: Ladder, thresholds: Thresholds) -> Iterator[Miss]:
    yield from map(Miss, language_gates.missed(name, facts.language, thresholds))
    if isinstance(facts, emulate.Facts):
        thresholds = thresholds.for_few(facts.samples, facts.of)
    total = shortfalls(TOTAL, facts.outputs, facts.subjects, thresholds)
    of_rungs = {rung: shortfalls(rung, facts.rungs.get(rung, {}), facts.subjects, thresholds) for rung in RUNGS[1:]}
    # What padding or a rewrite changes is of no precision, and explains what lies outside behind it. That is told
    # before how much rounding costs in dB.
    of_form = [missed for rung in ("padding", "rewrite") for missed in of_rungs.pop(rung)]
    outside = [missed for missed in total if missed.kind == "outside"]
    for missed in (*of_form, *outside, *(each for found in of_rungs.values() for each in found)):
        yield _miss(name, missed, facts, thresholds)
    yield from (_miss(name, missed, facts, thresholds) for missed in total)
    yield from (_quiet_miss(name, missed) for missed in shortfalls(TOTAL, facts.quiet, _quiet(facts), thresholds))
    if isinstance(facts, verify.Facts):  # on the few samples that are emulated, one label may be a tenth of the score
        yield from map(Miss, _score_changed(name, facts, thresholds))


def _misread(name: str, facts: reading.Facts, thresholds: Thresholds) -> Iterator[Miss]:
    """Why a component may not ship that was not shown to be the source's file."""
    found = facts.reading
    if found.shown == "not proven" and thresholds.reading_required:
        yield Miss(
            VerificationError(
                "nothing shows whether the file was read as it is meant",
                where=name,
                why=found.why or "",
                remedy="export the file with operators that onnxruntime's CPU runs, or add held-out samples; for a GGUF"
                " file, install llama.cpp with 'uv sync --extra llamacpp'; or let it ship all the same with"
                " verification: {reading: measured}",
            ),
            READING,
        )
    yield from (Miss(error, READING) for error in language_gates.misread(name, facts, thresholds))
    if found.language is not None:
        return
    for missed in shortfalls(READING, facts.figures, facts.subjects, thresholds):
        if found.shown == "own rounding":
            return
        least = min(_floor(each.sqnr_db) for each in facts.figures.values())
        accepts = f"thresholds: {{reading_db: {least}}}" if least >= NOISE_DB else ""
        error = VerificationError(
            _told(missed, state=False),
            where=f"{name}, worst of {found.samples} samples: {missed.figures.worst_sample}",
            why=f"the model that was read computes something else than the file in {found.by}: {found.why}",
            remedy="report it with the file, as it is read wrongly; until that is mended, build from another export of"
            " the model" + (f"; or accept it with {accepts}" if accepts else ""),
        )
        yield Miss(error, READING, accepts=accepts, sqnr_db=missed.figures.sqnr_db)


def _floor(sqnr_db: float | None) -> int:
    return math.floor(sqnr_db or 0)


def _miss(name: str, missed: Shortfall, facts: Ladder, thresholds: Thresholds) -> Miss:
    rung, remedy = missed.rung, _CAUSES[missed.rung][1]
    blame = f"'doit blame:{'/'.join(name.split('/')[:3])}'"
    if rung == "padding":
        remedy += exact_lengths(facts.lengths if isinstance(facts, verify.Facts) else {})
    if rung == "compile" and isinstance(facts, emulate.Facts) and facts.samples < facts.of:
        remedy += (
            f"; {facts.samples} of {facts.of} samples were emulated, and few are judged with a margin: have more run"
            " with a larger verification.emulator_seconds"
        )
    subject = facts.subjects.get(missed.label, Subject(missed.label))
    state, whole = subject.state, subject.by == "equality" and subject.zero is None
    accepts = _acceptable(facts, thresholds)
    error = VerificationError(
        _told(missed, state=state),
        where=_where(name, missed, facts),
        why=_CAUSES[rung][0],
        remedy=remedy.format(blame=blame) + (f"; or accept it with {accepts}" if accepts else ""),
    )
    # What lies outside was not looked for on a rung of its own.
    compiled = missed.kind == "outside" and isinstance(facts, emulate.Facts)
    figures = missed.figures
    by_db = {"db": figures.sqnr_db, "worst": figures.worst_db}.get(missed.kind)
    return Miss(error, RUNGS[-1] if compiled else rung, state, missed.kind in READ, accepts, by_db, whole)


def _quiet(facts: Ladder) -> dict[str, Subject]:
    """The subjects judged on quieter samples: values alone, neither states nor decisions."""
    known = ((label, facts.subjects.get(label, Subject(label))) for label in facts.quiet)
    return {label: replace(subject, state=False, reads=None) for label, subject in known}


def _quiet_wish(ladder: Ladder, wished: Thresholds, so_far: str) -> Miss | None:
    """The figure of quieter samples that is below what a default aims at; of what is near 0 in silence none is."""
    values = {label: figures for label, figures in ladder.quiet.items() if not _quiet(ladder)[label].bounded}
    for missed in shortfalls(TOTAL, values, _quiet(ladder), wished):
        if missed.kind == "db":
            told = f"{so_far}, but {_shown(missed.figures.sqnr_db)} of output {missed.label!r} on quieter samples"
            return Miss(VerificationError(f"{told} is less than the {missed.asked:g} dB aimed at"), TOTAL)
    return None


def _quiet_miss(name: str, missed: Shortfall) -> Miss:
    error = VerificationError(
        _told(missed, state=False, what="the worst of quieter samples"),
        where=f"{name}, worst of them: {missed.figures.worst_sample} ({_shown(missed.figures.worst_db)})",
        why="the model takes a logarithm of what scales with an input, and the quiet part of that is rounded away;"
        " louder samples do not show it",
        remedy="leave 'quantization' out, and the build looks for a precision that keeps to this; or keep what lies"
        " between the input and the logarithm in float: quantization.overrides: [{nodes: [...], precision: fp16}];"
        " or, if inputs are never quieter than the samples, accept it with verification: {quiet: false}",
    )
    accepts = "verification: {quiet: false}, if inputs are never quieter than the samples"
    return Miss(error, TOTAL, accepts=accepts, sqnr_db=missed.figures.sqnr_db if missed.kind == "db" else None)


def _told(missed: Shortfall, *, state: bool, what: str = "") -> str:
    """The misses and their thresholds, in one line."""
    what = what or ("the whole ladder" if missed.rung == TOTAL else f"the {missed.rung} rung")
    against = _AGAINST.get(missed.rung, "the rung above")
    head = f"{what} misses its threshold: output {missed.label!r}"
    figures, outlier = missed.figures, missed.figures.outlier
    match missed.kind:
        case "outside":
            assert outlier is not None
            value = "not a number" if outlier.value is None else f"{outlier.value:g}"
            return (
                f"output {missed.label!r} of {outlier.sample} is {value} where the original's are"
                f" {outlier.low:g} to {outlier.high:g}"
            )
        case "error":
            off = "without a number" if figures.max_abs_error is None else f"off by up to {figures.max_abs_error:g}"
            return f"{head} is {off} against {against}, {missed.asked:g} is allowed"
        case "worst":
            return (
                f"{head} is {_shown(figures.worst_db)} against {against} in {figures.worst_sample},"
                f" {missed.asked:g} dB are asked for in every sample"
            )
        case "choices" | "overlap":
            return f"{told_apart(missed)} as in the original, {missed.asked:g} is asked for"
        case "cosine":
            return (
                f"output {missed.label!r} points elsewhere than the original's:"
                f" cosine {figures.cosine}, not {missed.asked:g}"
            )
    assert missed.kind == "db", "flips are an aim, and no gate"
    asked = f"{missed.asked:g} dB are asked for" + (" of a state, as every later run meets its error" * state)
    return f"{head} is {_shown(figures.sqnr_db)} against {against}, {asked}"


def _acceptable(facts: Ladder, thresholds: Thresholds) -> str:
    """How to accept this output: the thresholds that it keeps to. Nothing for one that is noise, or far outside."""
    lowered: dict[str, int] = {}
    states: dict[str, int] = {}
    read: dict[str, float] = {}
    for rung, measured in {**facts.rungs, TOTAL: facts.outputs}.items():
        for missed in shortfalls(rung, measured, facts.subjects, thresholds):
            figures = missed.figures
            if missed.kind in READ:
                read |= {key: min(share, read.get(key, share)) for key, share in accepted_shares(missed).items()}
                continue
            if missed.kind not in ("db", "worst"):
                return ""
            key = "worst_db" if missed.kind == "worst" else f"{rung}_db"
            found = figures.worst_db if missed.kind == "worst" else figures.sqnr_db
            if facts.subjects.get(missed.label, Subject(missed.label)).state:
                total = math.floor(found or 0) + (WORST_BELOW_DB if missed.kind == "worst" else 0)
                states[missed.label] = min(states.get(missed.label, int(total)), int(total))
                continue
            lowered[key] = min(lowered.get(key, math.floor(found or 0)), math.floor(found or 0))
    # The worst sample of an output that is accepted with less may be as much worse as ever.
    least = {key: value + (WORST_BELOW_DB if key == "worst_db" else 0) for key, value in lowered.items()}
    if min((*least.values(), *states.values()), default=NOISE_DB) < NOISE_DB or min(read.values(), default=1) < _UNLIKE:
        return ""
    accepted = []
    if lowered or read:
        kept: dict[str, float] = {**lowered, **read}
        accepted.append(f"thresholds: {{{', '.join(f'{key}: {value:g}' for key, value in kept.items())}}}")
    if states:
        # Labels are quoted: the colon of 'hn[:1]' would be one of YAML's.
        outputs = ", ".join(f"{json.dumps(label)}: {{total_db: {value}}}" for label, value in states.items())
        accepted.append(f"verification: {{outputs: {{{outputs}}}}}, if its states are not handed on")
    return " and ".join(accepted)


def _where(name: str, missed: Shortfall, facts: Ladder) -> str:
    figures = missed.figures
    return f"{name}, worst of {facts.samples} samples: {figures.worst_sample} ({_shown(figures.worst_db)})"


def _shown(sqnr_db: float | None) -> str:
    """Rounded down, so that what misses a threshold is never shown as what was asked for."""
    return "not a number" if sqnr_db is None else f"{math.floor(sqnr_db * 10) / 10:.1f} dB"


def _contradicted(name: str, opinion: emulate.SecondOpinion) -> VerificationError:
    return VerificationError(
        "the context binary gives something else without ONNX Runtime than with it",
        where=name,
        why="".join(f"\n    | {told}" for told in opinion.disagreements[:8]),
        remedy="programs that load the binary alone would compute something else; report this with the model",
    )


def _score_changed(name: str, facts: verify.Facts, thresholds: Thresholds) -> Iterator[VerificationError]:
    if thresholds.score_change is None or facts.score is None:
        return
    model, made = facts.score.made
    change = abs(made - facts.score.fp32)
    if change > thresholds.score_change:
        yield VerificationError(
            f"{facts.score.name}() is {made:g} for the {model} model and {facts.score.fp32:g} for the original,"
            f" a change of {change:g} where {thresholds.score_change:g} is allowed",
            where=f"{name}, {facts.samples} samples",
            remedy="raise the precision, or raise thresholds.score_change",
        )


def _fallbacks(facts: context.PartFacts, thresholds: Thresholds) -> Iterator[Miss]:
    # Parts that a model was split into on purpose are no partitions of its graph.
    inside, name, partitions = facts.fallbacks, facts.context_model, facts.partitions - len(facts.cuts or ())
    told = "".join(f"\n    | {node.op} {node.name!r}: {node.reason or 'no reason given'}" for node in inside[:8])
    if len(inside) > 8:
        told += f"\n    | and {len(inside) - 8} more, which the step's manifest lists"
    advice = "; ".join(dict.fromkeys(hints.of(node.op, node.reason) for node in inside[:8]))
    if len(inside) > thresholds.max_cpu_nodes:
        error = VerificationError(
            f"{_count(len(inside), 'node')} would run on the CPU, {thresholds.max_cpu_nodes} may",
            where=name,
            why=f"QNN did not take{told}",
            remedy=f"{advice}; or accept it with thresholds:"
            f" {{max_cpu_nodes: {len(inside)}, max_partitions: {partitions}}}",
        )
        lacking = sum(hints.NO_OPERATOR in (node.reason or "") for node in inside) > thresholds.max_cpu_nodes
        yield Miss(error, left=facts.refused, lacking=lacking)
    if partitions > thresholds.max_partitions:
        error = VerificationError(
            f"the model is split into {partitions} partitions, {thresholds.max_partitions} may be",
            where=name,
            why="between partitions, values travel from the NPU to the CPU and back"
            + (told and f"; on the CPU:{told}"),
            remedy=(advice and f"{advice}; or ") + f"accept it with thresholds: {{max_partitions: {partitions}}}",
        )
        yield Miss(error, left=facts.refused)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


_COMBINED = 12
"""Combinations of lengths that are listed one by one."""


def exact_lengths(lengths: Mapping[str, Sequence[int]]) -> str:
    """The buckets to write into a configuration for these lengths of samples, as the end of a remedy.

    `lengths` has a sequence for each axis; the entries at one place make a combination that samples have. Braces are
    doubled, as remedies are formatted later. Empty if there are no combinations, or too many.
    """
    combined = [*zip(*lengths.values(), strict=True)]
    if not 0 < len(combined) <= MOST:
        return ""
    if len(lengths) == 1 or len(combined) > _COMBINED:
        listed = (f"{axis}: [{', '.join(map(str, sizes))}]" for axis, sizes in lengths.items())
        named = f"{{{{{', '.join(listed)}}}}}"
    else:
        points = (", ".join(f"{axis}: {size}" for axis, size in zip(lengths, sizes, strict=True)) for sizes in combined)
        named = f"[{', '.join(f'{{{{{point}}}}}' for point in points)}]"
    return f", here buckets: {named}, two samples or more of each"


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


_NODES_OF_ONE = 5
"""How many nodes stay on the CPU for one such value, with the conversions around it."""


def too_many_dims(found: TooManyDims) -> ModelError:
    """The error for the first of these values."""
    why = "HTP has no tensors of more dims, in no precision"
    if not found.nodes:
        return ModelError(
            f"{found.at} has {found.dims} dims: QNN takes at most {found.most}",
            where=found.value,
            why=why,
            remedy=f"export the model with at most {found.most} dims there, dims of 1 left out and neighbours merged,"
            " and let the application reshape",
        )
    return ModelError(
        f"{found.at} has a tensor of {found.dims} dims: QNN takes at most {found.most}",
        where=found.value,
        why=f"{why}; dims of 1 were left out and neighbours merged wherever that leaves {found.most}, and here it does"
        " not",
        remedy=f"{cutting(found.ends)}export the model with fewer dims around it; or leave it to the CPU with"
        f" thresholds: {{max_cpu_nodes: {_NODES_OF_ONE * found.nodes}, max_partitions: 2}}",
    )
