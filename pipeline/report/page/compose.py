"""Whole pages: that of a model, and the one over all models of a project."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from xml.etree.ElementTree import Element

from pipeline.config.guesses import guesses, still_guessed
from pipeline.contracts.codec import Contract
from pipeline.frozen import dataclass
from pipeline.graph.accuracy.verdict import TOTAL
from pipeline.plan.steps import ON_DEMAND
from pipeline.report.page import accuracy, build, cost, devices, markup, precision, samples, values
from pipeline.report.page.markup import element, note
from pipeline.report.page.source import Measurement, PageSource, measurements
from pipeline.report.run_report import RunRecord, decibels, moment
from pipeline.report.tables import Table
from pipeline.sizes import human_bytes

_SECTIONS: Sequence[Callable[[PageSource], Element | None]] = (
    accuracy.accuracy,
    samples.samples,
    values.values,
    precision.precisions,
    values.forecasts,
    build.sizes,
    cost.costs,
    devices.devices,
    build.changes,
    build.timeline,
    build.provenance,
)
MOST_BYTES = 2 << 20
"""The most bytes that a page may have."""
_HEADING = ("model", "", ">artifacts", ">size", ">least dB", ">asked", "targets", "built")
_FAILURES = 10


@dataclass(frozen=True)
class PageFacts(Contract):
    """The summary of a model's page: `verdict` is `ok`, `missed`, `failed` or `waiting`.

    `least_db` is that of the worst output of all artifacts against the original, None if none is judged in dB;
    `asked_db` what is asked for there.
    """

    model: str
    verdict: str
    artifacts: int
    bytes: int
    least_db: float | None
    asked_db: float | None
    targets: tuple[str, ...]
    started: str


_VERDICTS: Mapping[str, tuple[str, str]] = {
    "ok": ("✓", "keeps to its thresholds"),
    "missed": ("✗", "misses a threshold"),
    "failed": ("✗", "was not built whole"),
    "waiting": ("…", "waits for another host"),
    "stale": ("?", "is not built as its config and inputs are now: the next build makes what is missing here"),
    "unproven": ("?", "is not proven: nothing was measured"),
}


def facts(source: PageSource) -> PageFacts:
    """The summary of a model's page."""
    found = [*measurements(source)]
    worst = _worst_output(source)
    binaries = {
        (name, entry["sha256"]): entry["bytes"]
        for each in source.artifacts.values()
        for name, entry in each["files"].items()
    }
    return PageFacts(
        source.config.name,
        _verdict(source, measured=bool(found), missed=any(accuracy.misses(found))),
        len(source.artifacts),
        sum(binaries.values()),
        worst.rungs[TOTAL] if worst else None,
        worst.asked(TOTAL) if worst else None,
        source.targets,
        source.run["started"] if source.run else "",
    )


def _worst_output(source: PageSource) -> Measurement | None:
    """The measurement with the least dB in total; None if nothing is judged in dB."""
    found = [(db, each) for each in measurements(source) if (db := each.rungs[TOTAL]) is not None]
    return min(found, key=lambda each: (each[0], each[1].asked(TOTAL)))[1] if found else None


def _verdict(source: PageSource, *, measured: bool, missed: bool) -> str:
    own = {step.id for step in source.steps}
    outcomes = {each["outcome"] for name, each in (source.run["steps"] if source.run else {}).items() if name in own}
    if missed:
        return "missed"
    if "failed" in outcomes:
        return "failed"
    if "waiting" in outcomes:
        return "waiting"
    if any(step.stage not in ON_DEMAND and step.id not in source.seen for step in source.steps):
        return "stale"
    return "ok" if measured else "unproven"


def model_page(source: PageSource) -> bytes:
    """The page of a model."""
    sections = [made for make in _SECTIONS if (made := make(source)) is not None]
    name = source.config.name
    links = element("ul")
    for each in sections:
        heading = each.find("h2/a")
        links.append(
            element(
                "li", element("a", (heading.text or "") if heading is not None else "", href=f"#{each.get('id', '')}")
            )
        )
    contents = [
        element("a", "Skip to the figures", href="#main", class_="skip"),
        element("header", *_head(source)),
        element("nav", links, aria_label="Parts of this page"),
        element("main", *_failures(source), *sections, id="main"),
        element(
            "footer",
            note("Made by the QNN context pipeline. The emulator tells what the chip computes, not how fast."),
        ),
    ]
    return markup.page(f"{name}: report", contents)


def _head(source: PageSource) -> list[Element]:
    found, worst = facts(source), _worst_output(source)
    mark, says = _VERDICTS[found.verdict]
    badge = element(
        "p", element("span", mark, aria_hidden="true"), f" {found.model} {says}", class_=f"badge {found.verdict}"
    )
    figures = element("dl", class_="figures")
    least = "–" if found.least_db is None else f"{decibels(found.least_db)}"
    for name, value, more in (
        ("artifacts", str(found.artifacts), f"for {len(found.targets)} target{'s' if len(found.targets) != 1 else ''}"),
        ("bytes in all", human_bytes(found.bytes), "contexts and their models"),
        (
            "worst output",
            least,
            f"dB over {worst.last_samples}; {worst.asked(TOTAL):g} are asked for" if worst else "not measured in dB",
        ),
        *_worst_sample(source),
    ):
        figures.append(
            element(
                "div",
                element("dt", name),
                element("dd", element("b", value), " ", element("span", more, class_="soft")),
            )
        )
    title = element("h1", found.model)
    when = note(f"Built {moment(found.started)}") if found.started else None
    found_guesses = guesses(source.config.path)
    guessed = note(still_guessed(source.config.path.name, found_guesses)) if found_guesses else None
    return [each for each in (title, badge, when, guessed, figures) if each is not None]


def _worst_sample(source: PageSource) -> list[tuple[str, str, str]]:
    """The sample on which an output that is judged in dB is furthest off, to show beside the figure of all samples."""
    found = [
        (figures.worst_db, f"dB in {figures.worst_sample} ({each.component}, bucket {each.bucket}, {each.target})")
        for each in measurements(source)
        for figures in each.last_by_db.values()
        if figures.worst_db is not None
    ]
    return [("worst sample", decibels(db), where) for db, where in [min(found)]] if found else []


def _failures(source: PageSource) -> list[Element]:
    """What failed in the last build of this model."""
    own = {step.id for step in source.steps}
    failures = [each for each in (source.run["failures"] if source.run else ()) if own & {*each["tasks"]}]
    made = []
    for each in failures[:_FAILURES]:
        rows = element("dl", class_="facts")
        for name in ("where", "why", "next"):
            if each[name]:
                rows.append(element("div", element("dt", name), element("dd", each[name])))
        made.append(element("div", element("h3", each["what"]), rows, class_="failure", role="note"))
    return [markup.section("What failed", "failed", *made)] if made else []


def index_page(models: Sequence[PageFacts], run: RunRecord | None) -> bytes:
    """The page over all models; each has its own page in the folder of its name."""
    rows: Table = [_HEADING, *(_row(each) for each in models)]
    made = markup.table(rows, "Models of this project")
    if made is not None:
        for row, each in zip(made.iter("tr"), [None, *models], strict=True):
            if each is not None:
                row[0].text = None
                row[0].append(element("a", each.model, href=f"{each.model}/report.html"))
    title = "Models of this project"
    when = note(f"Last build: {moment(run['started'])}, {run['result']}") if run else None
    main = element("main", made or note("No model was built yet."), id="main")
    contents = [element("header", element("h1", title), when), main]
    return markup.page(title, contents)


def _row(each: PageFacts) -> tuple[str, ...]:
    mark, says = _VERDICTS[each.verdict]
    return (
        each.model, f"{mark} {says}", str(each.artifacts), human_bytes(each.bytes),
        "–" if each.least_db is None else decibels(each.least_db),
        "–" if each.asked_db is None else f"{each.asked_db:g}",
        ", ".join(each.targets), moment(each.started) if each.started else "",
    )  # fmt: skip
