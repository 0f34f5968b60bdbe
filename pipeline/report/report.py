"""Makes the rows of the tables at the end of a build: what was compiled, and how accurate it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.config.load import Bucket, Target
from pipeline.config.thresholds import Thresholds
from pipeline.contracts import context, emulate, quantize, reading, verify, words
from pipeline.contracts.forecast import Forecast
from pipeline.contracts.language import LanguageFigures
from pipeline.contracts.measures import Agreement, Measured, Subject
from pipeline.graph.accuracy.verdict import TOTAL, judged_by
from pipeline.ladder import EXACT_DB, READING, RUNGS
from pipeline.model import Manifest
from pipeline.plan.own_buckets import OwnBuckets
from pipeline.plan.steps import Step
from pipeline.report.tables import MENDED, Table
from pipeline.sizes import human_bytes

_CONTEXTS = ("component", "bucket", "target", "scheme", ">partitions", ">CPU nodes", ">size", ">time", "")
_ACCURACY = ("SQNR in dB", "bucket", "target", *(f">{rung}" for rung in (*RUNGS, TOTAL)), ">cosine", "samples")
_LANGUAGE = (
    "next tokens", "bucket", "target", "rung", ">tokens", ">KL in nats", ">same token", ">perplexity", ">original", "on"
)  # fmt: skip
_WORDS = ("words", ">windows", ">words", ">wrong", ">allowed", ">KL in nats", ">same token", "worst")
_JUDGED = ("judged by itself", "component", "bucket", "target", "by", ">is", ">asked", "worst sample")
_ASKED = _JUDGED.index(">asked")
_SCORES = ("score", "component", "bucket", "target", ">original", ">on the CPU", ">emulated: original", ">context")
_FORECASTS = ("forecast", "rule", ">values", ">channels", "worst", ">figure", ">limit", "on HTP")


def contexts(
    steps: Iterable[Step], manifests: Mapping[str, Manifest], outcomes: Mapping[str, tuple[str, float]]
) -> Table:
    """A row for each context step: `outcomes` says which ran in this build, and for how many seconds."""
    rows = []
    for step in steps:
        manifest = manifests.get(step.id)
        if step.stage != "context" or manifest is None:
            continue
        made = manifest.read(context.Facts.from_json).parts.values()
        parts = sorted((part.facts for part in made), key=lambda facts: [*facts.axes.values()])
        if not parts:  # another form of binary was chosen
            continue
        outcome, seconds = outcomes.get(step.id, ("cached", 0.0))
        rows.append(
            (
                f"{step.config.name}/{step.component}",
                ", ".join(facts.bucket for facts in parts),
                ", ".join(target.soc for target in step.targets),
                scheme(step, manifests),
                str(max(facts.partitions for facts in parts)),
                str(sum(len(facts.fallbacks) for facts in parts)),
                human_bytes(sum(entry.bytes for entry in manifest.files.values())),
                f"{seconds:.1f} s" if outcome == "built" else "-",
                outcome,
            )
        )
    return [_CONTEXTS, *rows]


_LEAST_SHARE = 1e-4
"""Smaller shares are shown as less than this."""


def accuracy(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Table:
    """A row for each component, bucket and target of which a rung was measured, by a step among those `seen`."""
    found = measured(steps, seen, manifests)
    rows = [
        (*place, *_figures(cpu, emulator, limits)) for _, _, place, cpu, emulator, limits in found if not cpu.language
    ]
    return [_ACCURACY, *rows]


def language(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Table:
    """A row for each rung of a language model: how far its next tokens are from the original's."""
    rows: list[tuple[str, ...]] = []
    for step, _, place, cpu, emulator, _ in measured(steps, seen, manifests):
        on = dict.fromkeys(cpu.language, "the CPU") | dict.fromkeys(emulator.language, f"the emulator, {emulator.twin}")
        on[READING] = f"llama.cpp: {cpu.reading.shown}" if cpu.reading else ""
        if step.config.language and cpu.reading is not None and cpu.reading.language is None:
            rows.append((*place, READING, "-", cpu.reading.shown, "-", "-", "-", "-"))
        for rung, found in spoken(cpu, emulator).items():
            figures = (found.kl, found.top1, found.perplexity, found.reference)
            shown = ("none" if each is None else f"{each:.4g}" for each in figures)
            rows.append((*place, rung, str(found.tokens), *shown, on[rung]))
    return [_LANGUAGE, *rows]


def heard(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Table:
    """A row for a speech model: how far the words of its QDQ models are from the original's."""
    rows = []
    for step in steps:
        if step.stage == "words" and step.id in seen and step.id in manifests:
            found = manifests[step.id].read(words.Facts.from_json).figures
            allowed = step.config.components[step.component or ""].thresholds.words
            if found is not None:
                next_ones = ("none" if each is None else f"{each:.4g}" for each in (found.steps.kl, found.steps.top1))
                share = f"{found.wrong} ({100 * found.error_rate:.2g} %)"
                allows = f"{100 * allowed:g} %"
                row = (step.config.name, str(found.windows), str(found.words), share, allows, *next_ones, found.worst)
                rows.append(row)
    return [_WORDS, *rows]


def spoken(cpu: verify.Facts, emulator: emulate.Facts) -> dict[str, LanguageFigures]:
    """The figures of each rung of a language model; of the first, how far llama.cpp is from what was read."""
    read = cpu.reading.language if cpu.reading else None
    return {**({READING: read.figures} if read else {}), **cpu.language, **emulator.language}


def judged(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Table:
    """A row for each output that is not judged by its SQNR as a whole, and for each slice that is judged by itself."""
    rows = []
    for step, _, place, cpu, emulator, thresholds in measured(steps, seen, manifests):
        for label, figures in (emulator.outputs if emulator.samples else cpu.outputs).items():
            subject = cpu.subjects.get(label, Subject(label))
            by = judged_by(label, TOTAL, figures, subject, thresholds)
            if (alike := figures.agreement) is not None:
                share = thresholds.overlap if subject.reads == "level" else thresholds.choices
                told = f"{100 * share:g} %" if subject.reads in ("likeliest", "level") else "-"
                what = "levels alike" if subject.reads == "level" else "choices alike"
                rows.append((label, *place, what, _counted(alike, subject), told, alike.worst_sample))
                if alike.flips is not None:
                    component = step.config.components[step.component or ""]
                    wished = component.wished.flips if component.wished else None
                    aim = "-" if wished is None else f"{100 * wished:.2g} %"
                    rows.append((label, *place, "choices to flip", percent(alike.flips), aim, "-"))
            if by == "dB" and subject.by == "values" and label == subject.output and not subject.state:
                continue
            most = thresholds.most_error(label, TOTAL, bounded=subject.bounded)
            least = f"{thresholds.least_db(label, TOTAL, state=subject.state):g} dB"
            asked = f"{most:.3g}" if by == "error" and most is not None else least
            found = figures.max_abs_error if by == "error" else figures.sqnr_db
            shown = "none" if found is None else f"{found:.3g}" if by == "error" else f"{found:.1f} dB"
            kind = (
                "largest error"
                if by == "error"
                else {"values": "SQNR of a state" if subject.state else "SQNR"}.get(subject.by, subject.by)
            )
            rows.append((label, *place, kind, shown, asked, figures.worst_sample))
    if all(row[_ASKED] == "-" for row in rows):
        rows = [(*row[:-2], "", row[-1]) for row in rows]  # a column without text is left out
    return [_JUDGED, *rows]


def _counted(alike: Agreement, subject: Subject) -> str:
    """How much is read alike, and of how many choices, or over how many values that say yes to some level."""
    share, one = f"{100 * alike.share:.4g} %", alike.of == 1
    if subject.reads == "level":
        return f"{share} over {alike.of} value{'' if one else 's'}"
    return f"{share} of {alike.of} clear one{'' if one else 's'}"


def scores(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Table:
    """A row for each component, bucket and target with a score: that of the original, and that of what was made.

    The first two figures are of all held-out samples, the last two of the fewer samples that were emulated.
    """
    rows = []
    for _, _, place, cpu, emulator, _ in measured(steps, seen, manifests):
        found = [facts.score for facts in (cpu, emulator) if facts.score]
        if cpu.score:
            cells = [f"{value:.4g}" for score in found for value in (score.fp32, score.made[1])]
            rows.append((cpu.score.name, *place, *cells, *["-"] * (4 - len(cells))))
    return [_SCORES, *rows]


def measured(
    steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]
) -> Iterator[tuple[Step, Target, tuple[str, str, str], verify.Facts, emulate.Facts, Thresholds]]:
    """Each verify step and target of which a rung was measured, and the component, bucket and target it is about.

    With it: what was measured on the CPU and on the emulator, and the thresholds.
    """
    steps = list(steps)
    wanted = {target for step in steps for target in step.targets}
    for step in steps:
        if step.stage != "verify" or step.bucket is None or step.id not in seen or step.id not in manifests:
            continue
        limits = step.config.components[step.component or ""].thresholds
        for target in step.config.targets:
            if target in wanted:
                cpu = on_the_cpu(step, step.bucket, seen, manifests)
                emulator = emulated(step, step.bucket, target, seen, manifests)
                yield step, target, _place(step, target, manifests), cpu, emulator, limits


def on_the_cpu(step: Step, bucket: Bucket, seen: Collection[str], manifests: Mapping[str, Manifest]) -> verify.Facts:
    """The facts of the verify step for a bucket of the same component, with the rung `reading` if that was `seen`."""
    name = of_bucket(step, "verify", bucket)
    found = manifests.get(name) if name in seen else None
    facts = found.read(verify.Facts.from_json) if found else verify.UNMEASURED
    read = f"reading:{step.config.name}/{step.component}"
    made = manifests.get(read) if read in seen else None
    return with_reading(facts, made.read(reading.Facts.from_json)) if made else facts


def with_reading(cpu: verify.Facts, read: reading.Facts) -> verify.Facts:
    """The facts of a bucket, with those of its component's file."""
    rungs = {READING: read.figures, **cpu.rungs} if read.figures and cpu.samples else cpu.rungs
    return replace(cpu, rungs=rungs, reading=read.reading)


def emulated(
    step: Step, bucket: Bucket, target: Target, seen: Collection[str], manifests: Mapping[str, Manifest]
) -> emulate.Facts:
    """The facts of the emulate step, if it was `seen`, for a bucket of the same component.

    Facts of a step that was not seen are those of an older model.
    """
    name = emulation(step, bucket, target)
    found = manifests.get(name) if name in seen else None
    return found.read(emulate.Facts.from_json) if found else emulate.UNMEASURED


def percent(share: float) -> str:
    """A share of choices."""
    return f"{100 * share:.2g} %" if share == 0 or share >= _LEAST_SHARE else "< 0.01 %"


def forecasts(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Table:
    """A row for each rule and component whose forecast says something, by a step among those `seen`.

    Of several values that a rule is about in any bucket, the one that is furthest beyond the limit is shown.
    """
    rows = []
    alike: dict[tuple[str, str, bool], dict[str, Forecast]] = {}
    for step in steps:
        for told in _told(step, manifests) if step.id in seen else ():
            component = f"{step.config.name}/{step.component}"
            alike.setdefault((component, told.rule, told.mended), {})[told.value] = told
    for (component, rule, mended), found in alike.items():
        worst = max(found.values(), key=lambda told: told.beyond)
        rows.append(
            (
                component, rule, str(len(found)), str(sum(told.channels for told in found.values()) or "-"),
                worst.value, f"{worst.figure:.3g}", f"{worst.limit:.3g}", MENDED if mended else worst.effect,
            )
        )  # fmt: skip
    return [_FORECASTS, *rows]


def _told(step: Step, manifests: Mapping[str, Manifest]) -> Iterator[Forecast]:
    """The forecasts of a step: of quantize for QDQ models, of verify for a model that stays in float."""
    manifest = manifests.get(step.id)
    if manifest is not None and step.stage == "quantize":
        for part in quantize.Facts.from_json(manifest.facts).parts.values():
            yield from part.facts.forecasts
    elif manifest is not None and step.stage == "verify":
        yield from verify.Facts.from_json(manifest.facts).forecasts


def forecasts_of(step: Step, bucket: Bucket, manifests: Mapping[str, Manifest]) -> tuple[Forecast, ...] | None:
    """The forecasts for a bucket's model; None if it stays in float and no sample was run, as they need one then."""
    found, own = manifests.get(quantization(step)), OwnBuckets.of_step(step, manifests)
    if found is not None and own is not None:
        part = found.read(quantize.Facts.from_json).parts.get(own.own(bucket).name)
        return part.facts.forecasts if part else ()
    if (measured := manifests.get(of_bucket(step, "verify", bucket))) is None:
        return None
    facts = measured.read(verify.Facts.from_json)
    return facts.forecasts if facts.samples else None


def scheme(step: Step, manifests: Mapping[str, Manifest]) -> str:
    """How the numbers of a context are stored, such as `w8a16`."""
    found = manifests.get(quantization(step))
    return found.read(quantize.Facts.from_json).scheme if found else "fp16"


def quantization(step: Step) -> str:
    """The id of the step that quantizes the same component."""
    return f"quantize:{step.config.name}/{step.component}"


def of_bucket(step: Step, stage: str, bucket: Bucket) -> str:
    """The id of the step of a stage that is about a bucket of the same component."""
    return f"{stage}:{step.config.name}/{step.component}/{bucket.name}"


def emulation(step: Step, bucket: Bucket, target: Target) -> str:
    """The id of the emulate step of a bucket of the same component, and a target."""
    return f"{of_bucket(step, 'emulate', bucket)}/{target.soc}"


def _place(step: Step, target: Target, manifests: Mapping[str, Manifest]) -> tuple[str, str, str]:
    """Component, bucket and target of a verify step."""
    return f"{step.config.name}/{step.component}", own_name(step, manifests), target.soc


def own_name(step: Step, manifests: Mapping[str, Manifest]) -> str:
    """The name of a step's bucket on the component's own axes."""
    assert step.bucket is not None
    own = OwnBuckets.of_step(step, manifests)
    return (own.own(step.bucket) if own else step.bucket).name


def _figures(cpu: verify.Facts, emulator: emulate.Facts, limits: Thresholds) -> tuple[str, ...]:
    rungs = {**cpu.rungs, **emulator.rungs}
    last = emulator.outputs if emulator.samples else cpu.outputs
    shown = {rung: _least_db(rungs.get(rung, {}), rung, cpu, limits) for rung in RUNGS}
    if cpu.reading is not None and cpu.reading.shown in ("own rounding", "not proven"):
        shown[READING] = cpu.reading.shown
    if cpu.truth == "padded" and cpu.samples:
        shown["padding"] = "in truth"
    return (
        *shown.values(),
        _least_db(last, TOTAL, cpu, limits),
        _spelled(last, least_cosine(last), ".5f"),
        _samples(cpu, emulator),
    )


def least_db(measured: Measured) -> float | None:
    """The worst SQNR of all outputs in dB, None where one has none or there are none."""
    return _least([figures.sqnr_db for figures in measured.values()])


def least_cosine(measured: Measured) -> float | None:
    """The worst cosine of all outputs, None where one has none or there are none."""
    return _least([figures.cosine for figures in measured.values()])


def _least(values: Sequence[float | None]) -> float | None:
    return None if None in values else min((value for value in values if value is not None), default=None)


def _least_db(measured: Measured, rung: str, cpu: verify.Facts, limits: Thresholds) -> str:
    """The least SQNR of the outputs that are judged in dB; `by error` if all are judged by their error."""
    by_db = {
        label: figures
        for label, figures in measured.items()
        if judged_by(label, rung, figures, cpu.subjects.get(label, Subject(label)), limits) == "dB"
    }
    if measured and not by_db:
        return "by error"
    least = least_db(by_db)
    return "exact" if least is not None and least >= EXACT_DB else _spelled(by_db, least, ".1f")


def _spelled(measured: Measured, least: float | None, form: str) -> str:
    if not measured:
        return "-"
    return "none" if least is None else format(least, form)


def on_cpu(cpu: verify.Facts) -> str:
    """How many samples ran on the CPU, and whether all of them are of smaller buckets."""
    return f"{cpu.samples} shorter" if cpu.shorter and cpu.shorter == cpu.samples else str(cpu.samples)


def _samples(cpu: verify.Facts, emulator: emulate.Facts) -> str:
    """How many samples ran on the CPU, and how many on the emulator."""
    if not cpu.samples:
        return "none held out"
    plainly = " (compiled plainly)" if emulator.emulated == "plain compile" else ""
    return f"{on_cpu(cpu)}, {f'{emulator.samples} emulated' if emulator.samples else 'not emulated'}{plainly}"
