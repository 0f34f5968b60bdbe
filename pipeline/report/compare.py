"""`doit compare LAST.json [NOW.json]`: whether artifacts became larger or less accurate than in another run.

It reads two run.json of :mod:`pipeline.report.run_record`, and nothing else of either build.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline import strict_json
from pipeline.config.project_file import CompareSettings
from pipeline.errors import ConfigError, VerificationError
from pipeline.model import Json
from pipeline.report.comparison import COLUMNS, Comparison, compare
from pipeline.report.run_record import RECORD, SCHEMA_VERSION
from pipeline.report.run_report import RunRecord, moment
from pipeline.report.tables import as_markdown, as_text, code, text

_MOST_BYTES = 64 << 20
_SHOWN = 40


def run(
    files: Sequence[str], build: Path, limits: CompareSettings, *, as_json: bool = False, as_markdown: bool = False
) -> int:
    """Compare and print; the exit code. Raises ConfigError."""
    options = {"--json", "--markdown"} & {*files}  # doit takes those after a name for further names
    names = [name for name in files if name not in options]
    if not 1 <= len(names) <= 2:
        what = "no file is named" if not names else f"{len(names)} files are named"
        raise ConfigError(what, where="command line", remedy="doit compare [--json | --markdown] LAST.json [NOW.json]")
    last = read(Path(names[0]))
    now = read(Path(names[1]) if len(names) > 1 else build / RECORD)
    found = compare(last, now, limits)
    if as_json or "--json" in options:
        print(json.dumps(_as_json(found, limits), indent=1))
    elif as_markdown or "--markdown" in options:
        print("\n\n".join(_markdown(found, last)))
    else:
        print("\n".join(_text(found)))
    return VerificationError.exit_code if found.missed else 0


def read(path: Path) -> RunRecord:
    """The content of a run.json.

    Raises:
        ConfigError: there is none, or it is no run.json of a form that this program knows.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        remedy = "name the run.json of another run"
        if path.name == RECORD and path.parent.name == ".build":
            remedy = "run 'doit build'; a build that was killed leaves none"
        raise ConfigError(
            f"{path.name} can't be read", where=str(path), why=error.strerror or "", remedy=remedy
        ) from error
    if len(data) > _MOST_BYTES:
        raise _no_record(path, f"it has more than {_MOST_BYTES >> 20} MiB")
    try:
        content = strict_json.parse(data)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _no_record(path, why) from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise ConfigError(
            f"{path.name} has another form than this program writes",
            where=str(path),
            why=f"its schema_version is {version}, and here it is {SCHEMA_VERSION}",
            remedy="compare with a run of this version of the pipeline; docs/nightly.md says how to begin anew",
        )
    _check_schema(path, content)
    assert isinstance(content, dict)
    return content


def _check_schema(path: Path, content: Any) -> None:
    from jsonschema import Draft202012Validator

    schema = json.loads(Path(__file__).with_name("run.schema.json").read_bytes())
    error = next(Draft202012Validator(schema).iter_errors(content), None)
    if error is not None:
        raise _no_record(path, f"at {error.json_path[:200]}: {error.message[:300]}")


def _no_record(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path.name} is no record of a build", where=str(path), why=why, remedy="name the run.json of another run"
    )


def _as_json(found: Comparison, limits: CompareSettings) -> dict[str, Json]:
    return {
        "schema_version": SCHEMA_VERSION,
        "ok": not found.missed,
        "artifacts": found.artifacts,
        "same": found.same,
        "left_out": found.left_out,
        "limits": asdict(limits),
        "rows": [change.as_json() for change in found.changes],
    }


def _text(found: Comparison) -> Iterator[str]:
    if found.changes:
        yield as_text([COLUMNS, *(change.cells() for change in found.changes)], ruled=False)
        yield ""
    yield found.summary()
    if found.missed:
        yield "Limits are in configs/project.yaml under 'compare'; docs/nightly.md says how to accept a change."


def _markdown(found: Comparison, last: RunRecord) -> Iterator[str]:
    began = moment(last["started"])
    since = f"commit {code(last['commit'][:12])}, {began}" if last["commit"] else began
    yield f"## Compared with the last run: {'FAILED' if found.missed else 'ok'}"
    yield f"Last: {since}. {text(found.summary())}."
    shown = [change.cells() for change in found.changes[:_SHOWN]]
    if shown:
        rows = [(verdict, code(artifact), *map(text, rest)) for verdict, artifact, *rest in shown]
        yield as_markdown([("verdict", *COLUMNS[1:]), *rows])
    if len(found.changes) > _SHOWN:
        yield f"and {len(found.changes) - _SHOWN} more"
