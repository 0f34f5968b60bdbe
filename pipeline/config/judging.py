"""What a config may say of how outputs are judged: thresholds, and which parts of outputs are judged by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pipeline.config.thresholds import WISHED_CHOICES, WISHED_DB, WISHED_FLIPS, WISHED_OVERLAP, Thresholds
from pipeline.config.yaml.field_types import Between, Convert, Pattern
from pipeline.config.yaml.problems import Keys, Problems
from pipeline.config.yaml.tree import Node, place_of
from pipeline.contracts.limits import WORST_BELOW_DB, OutputLimits
from pipeline.frozen import dataclass
from pipeline.graph.accuracy.figures.slices import PATTERN, parse_slice


def _checked_slice(text: str) -> str:
    parse_slice(text)
    return text


SliceText = Annotated[
    str,
    Pattern(PATTERN, "a slice as numpy writes it, in quotes, such as ':, 4:'"),
    Convert(lambda text, bases: _checked_slice(text)),
]
OutputName = Annotated[str, Pattern(r"[^\x00-\x1f]{1,500}", "the name of an output, or a label")]
AxisNumber = Annotated[int, Between(-16, 15)]
Truth = Literal["unpadded", "padded", "exact"]


@dataclass(frozen=True)
class ThresholdsFile:
    """The limits that an artifact must keep to; a build that misses one fails. Those with `_db` are SQNR in dB."""

    reading_db: float | None = None
    """Least SQNR of the model that was read, against the source's own file in onnxruntime, or in llama.cpp with room
    for its own rounding; 60 when left out."""
    padding_db: float | None = None
    """Least SQNR of the model of fixed shape, on padded inputs, against the original; 60 when left out."""
    rewrite_db: float | None = None
    """Least SQNR of the model rewritten for HTP, against the rung above; as `total_db` when left out, as a rewrite is
    judged by the end, and remarked on below 60."""
    quantization_db: float | None = None
    """Least SQNR of the QDQ model, against the rung above; as `total_db` when left out."""
    compile_db: float | None = None
    """Least SQNR of the context on the emulator, against the rung above; when left out, as `total_db`, and more where
    few of the samples were emulated."""
    total_db: float | None = None
    """Least SQNR of the last rung that was measured, against the original; 20 when left out."""
    worst_db: float | None = None
    """Least SQNR of the worst sample of the last rung, against the original; 10 below `total_db` when left out."""
    outside: float | None = None
    """How far a single value may lie outside of the original's range, in widths of that range; 1 when left out."""
    cosine: float | None = None
    """Least cosine between the outputs of the last rung and the original's; not checked when left out."""
    choices: float | None = None
    """For outputs that are probabilities: the least share of choices of the likeliest that must be the same, among
    those in which the original is clear. 0.99 when left out; not checked if `total_db` is below 20. For logits, see
    `verification.outputs` ([choices of logits](#choices-of-logits))."""
    overlap: float | None = None
    """For outputs between 0 and 1: the least intersection over union of what the original and the artifact cover. 0.9
    when left out; not checked if `total_db` is below 20."""
    score_change: float | None = None
    """The most that the score may differ from the original's; not checked when left out."""
    kl: float | None = None
    """For a language model: the largest mean Kullback-Leibler divergence of its next-token distributions from the
    original's, in nats; 0.03 when left out."""
    top1: float | None = None
    """For a language model: the least share of positions at which it finds the same token likeliest as the original;
    0.9 when left out."""
    perplexity: float | None = None
    """For a language model: the most that its perplexity may differ from the original's, as a share; 0.03 when left
    out."""
    max_cpu_nodes: Annotated[int, Between(0, 1_000_000)] | None = None
    """How many nodes may run on the CPU, not counting conversions at the graph's edge; 0 when left out."""
    max_partitions: Annotated[int, Between(1, 1_000_000)] | None = None
    """How many parts the NPU may run the model in; 1 when left out."""


@dataclass(frozen=True)
class OutputFile:
    """How an output, or a slice of one, is judged by itself, where it differs from the component's `thresholds`."""

    output: OutputName | None = None
    """The output's name if the key is a label, as several slices of one output need. A component with one output does
    not need it."""
    slice: SliceText | None = None
    """The part of the output that is judged, in numpy's notation: `":, 4:"`. All of it when left out. The part of an
    output that is in no slice is judged as `<output> (rest)`."""
    max_abs_error: float | None = None
    """The largest error that any element may have. The output is then judged by this and not by dB, except for limits
    in dB that are given here as well."""
    choice: AxisNumber | None = None
    """The axis along which an application takes the largest value. The output is then judged by how often the choice
    is the same, in dB: with 20 dB, one of a hundred choices differs ([choices of logits](#choices-of-logits))."""
    tie: float | None = None
    """With `choice`: how near the original's runner-up must be for either of the two to count as right, in units of the
    output. A tenth of the output's RMS when left out."""
    reading_db: float | None = None
    """As in `thresholds`."""
    padding_db: float | None = None
    """As in `thresholds`."""
    rewrite_db: float | None = None
    """As in `thresholds`."""
    quantization_db: float | None = None
    """As in `thresholds`; when left out, as a `total_db` given here."""
    compile_db: float | None = None
    """As in `thresholds`; when left out, as a `total_db` given here."""
    total_db: float | None = None
    """As in `thresholds`."""
    worst_db: float | None = None
    """As in `thresholds`."""
    outside: float | None = None
    """As in `thresholds`."""
    cosine: float | None = None
    """As in `thresholds`."""


Outputs = Mapping[OutputName, OutputFile]


def thresholds_of(written: tuple[ThresholdsFile | None, ...], outputs: Mapping[str, OutputFile]) -> Thresholds:
    """The thresholds of a component: the defaults, with each of `written` over those before it, and `outputs`."""
    total = Thresholds.total_db
    for each in written:
        total = each.total_db if each and each.total_db is not None else total
    found = Thresholds(quantization_db=total, compile_db=total, worst_db=total - WORST_BELOW_DB)
    if total < Thresholds.total_db:  # who accepts a tenth of the signal as error accepts other decisions
        found = replace(found, choices=0.0, overlap=0.0)
    for each in written:
        found = replace(found, **given_fields(each)) if each else found
    if any(each.compile_db is not None for each in written if each):
        found = replace(found, few_db=0.0)  # who writes it accepts it of whatever was emulated
    return replace(found, outputs={label: _of_output(output) for label, output in outputs.items()})


def wished_of(written: tuple[ThresholdsFile | None, ...], thresholds: Thresholds) -> Thresholds | None:
    """What a default precision aims at above these thresholds; None if the config itself says how much is enough."""
    said = ("quantization_db", "compile_db", "total_db", "worst_db")
    if any(getattr(each, name) is not None for each in written if each for name in said):
        return None
    # An error that is small where nothing happens says nothing about where something does.
    return replace(
        thresholds,
        quantization_db=WISHED_DB,
        compile_db=WISHED_DB,
        total_db=WISHED_DB,
        worst_db=WISHED_DB - WORST_BELOW_DB,
        probability_error=0.0,
        choices=WISHED_CHOICES,
        flips=WISHED_FLIPS,
        overlap=WISHED_OVERLAP,
        scores=True,
    )


def check_outputs(of_model: Outputs, of_components: Mapping[str, Outputs], node: Node, problems: Problems) -> None:
    """Add a problem for each entry under `outputs` that does not say which output it is about, or has no effect.

    `of_model` is for the one component of a model.
    """
    places: list[tuple[Keys, Outputs]] = [(("verification", "outputs"), of_model)]
    places += [(("components", name, "outputs"), outputs) for name, outputs in of_components.items()]
    if of_model and len(of_components) > 1:
        keys, _ = places[0]
        expected = "components.<name>.outputs, as the model has several components"
        problems.add(place_of(node, keys), keys, "does not say of which component", expected=expected)
    for keys, outputs in places:
        for label, output in outputs.items():
            for key, value in (("max_abs_error", output.max_abs_error), ("tie", output.tie)):
                if value is not None and value < 0:
                    at: Keys = (*keys, label, key)
                    problems.add(place_of(node, at), at, f"is {value:g}", expected="0 or more")
            if output.tie is not None and output.choice is None:
                at = (*keys, label, "tie")
                problems.add(place_of(node, at), at, "is of no effect without 'choice'", expected="choice: -1, say")


def _of_output(written: OutputFile) -> OutputLimits:
    known = {each.name for each in fields(OutputLimits)}
    given = {name: value for name, value in given_fields(written).items() if name in known}
    total = written.total_db
    return OutputLimits(**{"quantization_db": total, "compile_db": total, **given})


def given_fields(written: object) -> dict[str, Any]:
    """The fields of a dataclass that are not None, by name."""
    return {key: value for key, value in vars(written).items() if value is not None}
