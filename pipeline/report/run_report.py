"""What a build did, as a page of Markdown. All of it comes from run.json."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.ladder import EXACT_DB, RUNGS
from pipeline.plain_text import printable
from pipeline.report.tables import as_markdown, code, text
from pipeline.sizes import human_bytes

_HEADS = {
    "ok": "Build: all is built",
    "waiting": "Build: waiting for other hosts",
    "failed": "Build: FAILED",
    "interrupted": "Build: interrupted",
}
_SLOWEST = 12
_LISTED = 40
_EXPLAINED = 20

RunRecord = Mapping[str, Any]
"""The content of a run.json, by run.schema.json."""


def markdown(record: RunRecord) -> str:
    """The page: how the build ended, what failed and why, what waits, the artifacts, and what took longest."""
    return "\n\n".join(filter(None, _sections(record))) + "\n"


def decibels(value: float | None) -> str:
    """An SQNR as all reports show it: `exact` where outputs differ by no more than another order of sums."""
    if value is None:
        return "none"
    return "exact" if value >= EXACT_DB else f"{value:.1f}"


def moment(started: str) -> str:
    """`2026-01-31 16:42 UTC` of `2026-01-31T16:42:15Z`."""
    return f"{text(started[:10])} {text(started[11:16])} UTC"


def _sections(record: RunRecord) -> Iterator[str]:
    head = _HEADS.get(record["result"], record["result"])
    exit_code = f" (exit code {record['exit_code']})" if record["exit_code"] else ""
    yield f"## {head}{exit_code}"
    yield _about(record)
    yield from _failures(record["failures"])
    yield from _waiting(record["steps"])
    yield from _artifacts(record)
    yield from _remarks(record.get("remarks", {}))
    yield from _slowest(record["steps"])
    yield _where(record)


def _about(record: RunRecord) -> str:
    counts = record["counts"]
    shared = sum(step.get("from") == "shared" for step in record["steps"].values())
    notes = {"restored": f" ({shared} from the shared store)" if shared else ""}
    told = [f"{count} {name.replace('_', ' ')}{notes.get(name, '')}" for name, count in counts.items() if count]
    done = ", ".join(told) or "none"
    command = code(" ".join(["doit", *record["command"]]))
    return f"{command} began at {moment(record['started'])} and took {_duration(record['seconds'])}. Steps: {done}."


def _failures(failures: Sequence[RunRecord]) -> Iterator[str]:
    if not failures:
        return
    yield f"### Failed ({len(failures)})"
    for failure in failures[:_EXPLAINED]:
        tasks = ", ".join(code(name) for name in failure["tasks"][:_LISTED]) or "Refused before anything ran"
        parts = [(label, failure[label]) for label in ("where", "why", "next") if failure[label]]
        message = "\n".join([failure["what"], *(f"  {label}: {part}" for label, part in parts)])
        yield f"{tasks}, exit code {failure['exit_code']}:\n\n{_fenced(message)}"
    if len(failures) > _EXPLAINED:
        yield f"and {len(failures) - _EXPLAINED} more"


def _waiting(steps: Mapping[str, RunRecord]) -> Iterator[str]:
    waiting = {name: step for name, step in steps.items() if step["outcome"] == "waiting"}
    after = sum(step.get("because") in waiting for step in steps.values())
    if waiting:
        yield f"### Waiting for other hosts ({len(waiting)})"
        rows = [(code(name), text(" or ".join(step["hosts"])), text(step["why"])) for name, step in _first(waiting)]
        yield as_markdown([("step", "for hosts", "why"), *rows]) + _more(waiting)
        if after:
            yield f"Not tried until then: {after} step(s)."
    because: dict[str, int] = {}
    for step in steps.values():
        if step["outcome"] == "not tried" and step.get("because") not in waiting:
            cause = step.get("because", "")
            because[cause] = because.get(cause, 0) + 1
    if because:
        total = sum(because.values())
        causes = ", ".join(f"{count} because of {code(cause)}" for cause, count in because.items() if cause)
        yield f"Not tried: {total} step(s), " + (causes or "as the build stopped at the first failure") + "."


def _artifacts(record: RunRecord) -> Iterator[str]:
    artifacts, steps = record["artifacts"], record["steps"]
    if not artifacts:
        return
    yield f"### Artifacts ({len(artifacts)})"
    rungs = [rung for rung in (*RUNGS, "total") if any(rung in each["sqnr_db"] for each in artifacts.values())]
    heading = ("artifact", "", "scheme", ">size", ">CPU nodes", *(f">{rung} dB" for rung in rungs), "score", "samples")
    rows = [
        (
            code(name),
            "FAILED" if any(steps.get(made, {}).get("outcome") == "failed" for made in each["steps"].values()) else "",
            text(each["scheme"]),
            human_bytes(each["bytes"]).replace(" ", "&nbsp;"),
            str(each["cpu_nodes"]),
            *(decibels(each["sqnr_db"][rung]) if rung in each["sqnr_db"] else "–" for rung in rungs),
            _score(each["score"]),
            _samples(each["samples"]),
        )
        for name, each in _first(artifacts)
    ]
    yield as_markdown([heading, *rows]) + _more(artifacts)


def _remarks(remarks: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if remarks:
        yield "### Remarks"
        lines = [f"- {code(name)}: {text(line)}" for name, each in remarks.items() for line in each]
        yield "\n".join(lines[:_LISTED]) + _more(lines)


def _score(score: RunRecord | None) -> str:
    if not score:
        return ""
    made, original = (f"{value:.4g}" if value is not None else "none" for value in (score["made"], score["original"]))
    return f"{text(str(score['name']))} {made}" + (f" (original {original})" if made != original else "")


def _samples(samples: RunRecord) -> str:
    if not samples["cpu"]:
        return "not measured"
    return f"{samples['cpu']}, " + (f"{samples['emulator']} emulated" if samples["emulator"] else "not emulated")


def _slowest(steps: Mapping[str, RunRecord]) -> Iterator[str]:
    ran = sorted(((step["seconds"], name) for name, step in steps.items() if "seconds" in step), reverse=True)
    if not ran:
        return
    yield f"### What ran ({len(ran)})"
    rows = [(code(name), f"{seconds:.1f}") for seconds, name in ran[:_SLOWEST]]
    yield as_markdown([("step", ">seconds"), *rows]) + _more(ran, _SLOWEST)


def _where(record: RunRecord) -> str:
    names, versions = record["host"]["names"], record["versions"]
    told = ", ".join(f"{text(name)} {text(str(version))}" for name, version in versions.items())
    commit = f"Commit {code(record['commit'][:12])}. " if record.get("commit") else ""
    return f"{commit}Host: {', '.join(map(text, names))}; Python {text(record['host']['python'])}. With {told}."


def _first(found: Mapping[str, RunRecord]) -> list[tuple[str, RunRecord]]:
    return [*found.items()][:_LISTED]


def _more(found: Iterable[object], most: int = _LISTED) -> str:
    rest = len([*found]) - most
    return f"\n\nand {rest} more" if rest > 0 else ""


def _fenced(message: str) -> str:
    """Text in a block with a fence that is longer than any backticks in the text."""
    plain = printable(message)
    longest = max((len(run) for run in re.findall(r"`+", plain)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{plain}\n{fence}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
