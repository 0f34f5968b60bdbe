"""Answers a build in which nothing is to do before configs are read and steps are planned.

`dodo.py` calls :func:`leave_if_done` first. :mod:`pipeline.report.unchanged` says whether nothing is to do. The output
is then the same as that of a complete build, which would only import much that it does not use. In all other cases
nothing is printed or written, and the complete build runs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline import command_line
from pipeline.config.file_names import model_names
from pipeline.errors import PipelineError
from pipeline.plan.workspace import Workspace
from pipeline.report import run_record, summary
from pipeline.report.account import Account
from pipeline.report.console import Console
from pipeline.report.output_stream import LastingStream, end_with_reader
from pipeline.report.page import PAGE
from pipeline.report.unchanged import Unchanged, may_skip
from pipeline.store.shared.address import VARIABLE
from pipeline.upkeep.commands import is_sound, tidy

_AT_ONCE = re.compile(r"-n[1-9][0-9]{0,3}")
_BUILD = "build"


def leave_if_done(root: Path, arguments: Sequence[str]) -> None:
    """End the process if doit was asked for a build of the project at `root` in which all is done.

    `arguments` are those of the process, its own name the first. Raises SystemExit.
    """
    program, *given = arguments
    if _is_doit(program) and _is_plain(given) and VARIABLE not in os.environ:
        clock = run_record.Clock()
        workspace = Workspace.at(root)
        try:
            ran = _done(given, workspace)
            if ran is None:
                return
            tidy(workspace)
        except (PipelineError, OSError):  # the build says what is wrong
            return
        _tell(ran, workspace, clock)
        raise SystemExit(0)


def _done(arguments: Sequence[str], workspace: Workspace) -> summary.Ran | None:
    """The account of a build with nothing to do; None if something may be to do."""
    line = command_line.parse(arguments)
    if line.variables or not may_skip(line, line.variables):
        return None
    unchanged, configs = Unchanged(workspace.root), workspace.root / "configs"
    on_request = unchanged.on_request(workspace)
    if on_request is None or any(path.suffix == ".yml" for path in configs.iterdir()):
        return None
    names, selected = model_names(configs), [*line.names] or [_BUILD]
    asked = {*selected} - {_BUILD}
    if _BUILD in selected:
        if not {*names} <= on_request.keys():
            return None
        asked |= {f"{_BUILD}:{name}" for name in names if not on_request[name]}
    # A build of all models looks at those on request, too, but its account has only those that were asked for.
    models = [name for name in names if f"{_BUILD}:{name}" in asked]
    if len({*selected}) < len(selected) or len(models) < len(asked) or not _is_tidy(names, workspace):
        return None
    accounts: Mapping[str, Account] = unchanged.accounts(models, workspace)
    if len(accounts) < len(models):
        return None
    skipped = [name for name in names if on_request.get(name)]
    return summary.Ran(selected, on_request=skipped, checked=asked, unchanged=accounts)


def _is_tidy(models: Sequence[str], workspace: Workspace) -> bool:
    """Whether a build would find nothing on the disk to tell or repair: caches, artifacts of no config, pages."""
    if not (workspace.artifacts / PAGE).is_file() or not is_sound(workspace):
        return False
    known = {*models}
    with os.scandir(workspace.artifacts) as entries:
        return not any(entry.is_dir() and entry.name not in known for entry in entries)


def _tell(ran: summary.Ran, workspace: Workspace, clock: run_record.Clock) -> None:
    """Print and record what a build prints and records at its end."""
    end_with_reader(False)
    run_record.begin(workspace.build)
    console = Console(LastingStream(sys.stdout))  # type: ignore[arg-type]  # a stream that never fails
    for text in summary.told(ran):
        console.line(text)
    whole = _BUILD in ran.selected
    run_record.write(workspace.build, run_record.record(ran, 0, workspace.root, whole=whole, clock=clock), console.line)


def _is_doit(program: str) -> bool:
    """Whether a process was started as doit: others may import `dodo.py`."""
    path = Path(program)
    return path.stem == "doit" or path.parts[-2:] == ("doit", "__main__.py")


def _is_plain(arguments: Sequence[str]) -> bool:
    """Whether the only option is `-n` with a number, before all names. Any other command line is left to doit."""
    given = iter(arguments)
    for argument in given:
        option = argument + next(given, "") if argument == "-n" else argument
        if not option.startswith("-"):
            return not any(name.startswith("-") for name in given)
        if not _AT_ONCE.fullmatch(option):
            return False
    return True
