"""The parts of a page about the artifacts as files, and the build that made them."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from pipeline.config.load import HubSource
from pipeline.contracts import context, export, ingest, packing, rewrite
from pipeline.inputs.pins import pinned_revision
from pipeline.report import report
from pipeline.report.comparison import COLUMNS
from pipeline.report.page import charts
from pipeline.report.page.markup import Content, code, element, figure, folded, note, section, table
from pipeline.report.page.source import PageSource
from pipeline.report.run_report import moment
from pipeline.sizes import human_bytes

_FILES = ("component", "buckets", "targets", "scheme", "packing", ">partitions", ">CPU nodes", ">size")
_CPU = ("component", "bucket", "node", "operator", "why")
_LONGEST = 40
_CHANGES = 60


def sizes(source: PageSource) -> Element | None:
    """What was compiled, what shares a binary, and how large it is; the nodes left to the CPU."""
    rows, bars, nodes = [], [], []
    for step in source.steps:
        manifest = source.manifests.get(step.id)
        if step.stage != "context" or step.id not in source.seen or manifest is None:
            continue
        facts = context.Facts.from_json(manifest.facts)
        parts = [part.facts for part in facts.parts.values()]
        if not parts:
            continue
        size = sum(entry.bytes for entry in manifest.files.values())
        buckets = ", ".join(sorted((part.bucket for part in parts), key=_by_number))
        targets = ", ".join(target.soc for target in step.targets)
        rows.append(
            (
                step.component or "", buckets, targets, report.scheme(step, source.manifests), facts.form,
                str(max(part.partitions for part in parts)), str(sum(len(part.fallbacks) for part in parts)),
                human_bytes(size),
            )
        )  # fmt: skip
        bars.append((f"{step.component} {buckets} {targets}", size / 1e6))
        nodes += [
            (step.component or "", part.bucket, node.name, node.op, node.reason)
            for part in parts
            for node in part.fallbacks
        ]
    if not rows:
        return None
    drawn = None
    if 1 < len(bars) <= _LONGEST:
        names, values = zip(*bars, strict=True)
        drawn = figure(charts.bars(names, values, "MB"), "Bytes of each context, with its context model")
    files = table([_FILES, *rows], "Contexts")
    cpu = table([_CPU, *dict.fromkeys(nodes)], "Nodes that run on the CPU", codes=(2,))
    return section(
        "Size and packing", "sizes", *_packings(source), drawn, files, _exports(source), cpu, _rewrites(source)
    )


def _exports(source: PageSource) -> Content:
    rows = []
    for step in source.steps:
        manifest = source.manifests.get(step.id) if step.stage == "export" and step.id in source.seen else None
        if manifest is not None:
            graphs = export.Facts.from_json(manifest.facts).graphs
            size = human_bytes(sum(entry.bytes for entry in manifest.files.values()))
            target = step.target.soc if step.target else ""
            rows.append((", ".join(manifest.files), target, ", ".join(sorted(graphs, key=_by_number)), size))
    return table([("file", "target", "buckets", ">size"), *rows], "Files for other engines", codes=(0,))


def _packings(source: PageSource) -> Iterator[Content]:
    for step in source.steps:
        manifest = source.manifests.get(step.id) if step.stage == "packing" and step.id in source.seen else None
        if manifest is not None:
            facts = packing.Facts.from_json(manifest.facts)
            rows = [
                (form, human_bytes(size) if size is not None else "can't be") for form, size in facts.estimates.items()
            ]
            yield note(f"{step.component}: packed as {facts.chosen}; {facts.why}")
            yield table([("form", ">estimate of all binaries"), *rows], f"{step.component}: what packing would give")


def _rewrites(source: PageSource) -> Content:
    counted: dict[tuple[str, str], int] = {}
    for step in source.steps:
        manifest = source.manifests.get(step.id) if step.stage == "rewrite" and step.id in source.seen else None
        for name, count in rewrite.Facts.from_json(manifest.facts).applied.items() if manifest else ():
            key = (step.component or "", name)
            counted[key] = max(count, counted.get(key, 0))
    rows = [(component, name, str(count)) for (component, name), count in counted.items() if count]
    found = table([("component", "rewrite", ">places"), *rows], "What was rewritten for the chip", codes=(1,))
    return folded("What was rewritten for the chip", found) if found is not None else None


def _by_number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() and len(name) < 20 else (1 << 70, name)


def changes(source: PageSource) -> Element | None:
    """What the artifacts were before, and are now."""
    if source.run is None:
        return None
    if source.since is None:
        return section(
            "Since the last run", "changes", note("No earlier run in this checkout left artifacts to compare with.")
        )
    began, found = source.since
    shown = [change.cells() for change in found.changes[:_CHANGES]]
    rest = len(found.changes) - _CHANGES
    return section(
        "Since the last run",
        "changes",
        note(f"Compared with the artifacts of {moment(began)}: {found.summary()}."),
        table([("verdict", *COLUMNS[1:]), *shown], "What changed", codes=(1,)),
        note(f"and {rest} more") if rest > 0 else None,
    )


def timeline(source: PageSource) -> Element | None:
    """When each step of the last build ran that made something of this model."""
    if source.run is None:
        return None
    own = f"{source.config.name}/"
    ran = {
        name: [(float(at), float(seconds)) for at, seconds in runs]
        for name, runs in source.run.get("runs", {}).items()
        if f"{name.partition(':')[2]}/".startswith(own)
    }
    if not ran:
        return section("The build", "build", note("Nothing had to be made: all of it was built before."))
    in_all = {name: sum(seconds for _, seconds in runs) for name, runs in ran.items()}
    longest = sorted(sorted(ran, key=lambda name: -in_all[name])[:_LONGEST], key=lambda name: ran[name])
    begins = {name: [at for at, _ in ran[name]] for name in longest}
    ends = {name: [at + seconds for at, seconds in ran[name]] for name in longest}
    caption = (
        f"The {len(longest)} longest of {len(ran)} steps"
        if len(ran) > len(longest)
        else f"All {len(ran)} steps that ran"
    )
    if any(len(runs) > 1 for runs in ran.values()):
        caption += "; one that ran more than once did so with each precision that was tried"
    each_run = sorted((at, seconds, name) for name, runs in ran.items() for at, seconds in runs)
    rows = [(name, f"{at:.1f}", f"{seconds:.1f}") for at, seconds, name in each_run]
    figures = table([("step", ">began at", ">seconds"), *rows], "Steps that ran", codes=(0,))
    about = note(f"Begun {moment(source.run['started'])}; steps that may run at once do.")
    assert figures is not None
    chart = figure(charts.spans(begins, ends, "seconds since the build began"), f"{caption}, by when they ran")
    return section("The build", "build", about, chart, folded("As numbers", figures))


def provenance(source: PageSource) -> Element:
    """Where the model is from, and what made the artifacts."""
    config = source.config
    rows = element("dl", class_="facts")

    def row(name: str, *contents: Content) -> None:
        rows.append(element("div", element("dt", name), element("dd", *contents)))

    if isinstance(config.source, HubSource):
        pinned = pinned_revision(config.source.hub, config.source.revision, source.workspace.pins)
        row("source", code(config.source.hub), " at ", code(pinned or config.source.revision))
    else:
        row("source", "a folder of the machine that built it: ", code(config.source.path.name))
    row("configuration", code(f"configs/{config.path.name}"))
    row("targets", ", ".join(source.targets))
    if source.run is not None:
        if source.run["commit"]:
            row("commit", code(source.run["commit"]))
        row("versions", ", ".join(f"{name} {version}" for name, version in source.run["versions"].items()))
        host = source.run["host"]
        row("host", f"{', '.join(host['names'])}; {host['system']}; Python {host['python']}")
    fetch = source.manifests.get(f"fetch:{config.name}")
    files = [(name, human_bytes(entry.bytes), entry.sha256) for name, entry in fetch.files.items()] if fetch else []
    made = [
        (name, human_bytes(entry["bytes"]), entry["sha256"])
        for artifact in source.artifacts.values()
        for name, entry in artifact["files"].items()
    ]
    heading = ("file", ">size", "sha256")
    parts = [
        folded(f"{title} ({len(rows_)})", found)
        for title, rows_ in (("Source files", files), ("Files of the artifacts", [*dict.fromkeys(made)]))
        if (found := table([heading, *rows_], title, codes=(0, 2))) is not None
    ]
    return section("Provenance", "provenance", rows, *_signatures(source), *parts)


def _signatures(source: PageSource) -> Iterator[Content]:
    rows = []
    for component in source.config.components:
        manifest = source.manifests.get(f"ingest:{source.config.name}/{component}")
        if manifest is not None:
            found = ingest.Facts.from_json(manifest.facts)
            rows += [(component, "input", f"{each}{_ids(found, each.name)}") for each in found.inputs]
            rows += [(component, "output", str(each)) for each in found.outputs]
    made = table([("component", "", "name and shape"), *rows], "Inputs and outputs of the model", codes=(2,))
    if made is not None:
        yield folded("Inputs and outputs of the model", made)


def _ids(found: ingest.Facts, name: str) -> str:
    """For an input that looks up rows in a table, how many rows that has, to show after its type."""
    table = (found.tables or {}).get(name)
    return f", ids of a table of {table.rows} rows" if table else ""
