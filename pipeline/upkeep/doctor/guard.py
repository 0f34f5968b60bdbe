"""Makes those of the doctor's checks that guard a build.

The driver rule is checked before anything runs, the rest when the first worker is to start, so that a build with
nothing to do does not wait for it. Findings about the environment are remembered until a folder on Python's path
changes.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from pipeline.errors import BY_NAME, ConfigError, PipelineError, WorkerError
from pipeline.model import Json
from pipeline.plan.keys import qairt_version
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.upkeep.doctor.finding import Finding


class Guard:
    """Stops a build before it starts work that would fail. Safe to use from several threads."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._steps: Sequence[Step] = ()
        self._lock = threading.Lock()
        self._looked = False
        self._refusal: Finding | None = None

    def expect(self, steps: Iterable[Step]) -> None:
        """Note the steps that are to be built.

        Raises:
            ConfigError: a target's driver does not load what the QAIRT of this environment makes.
        """
        self._steps = tuple(steps)
        for step in self._steps:
            if step.stage == "context":
                _hold_driver_rule(step)

    def before_work(self) -> None:
        """Called before each worker starts. The first call makes the checks, later calls repeat its answer.

        Raises:
            PipelineError: the host, its packages or the free space are not fit for a build.
        """
        with self._lock:
            if not self._looked:
                from pipeline.upkeep.doctor import space  # a build with nothing to do need not pay for any of it

                self._refusal = _environment_refusal(self._workspace) or space.refusal(self._steps, self._workspace)
                self._looked = True
            refusal = self._refusal
        if refusal is not None:
            raise _as_error(refusal)


def _as_error(found: Finding) -> PipelineError:
    """The error that a build ends with because of a finding, of the class with the finding's exit code."""
    kind = next((each for each in BY_NAME.values() if each.exit_code == found.exit_code), WorkerError)
    remedy = f"{found.remedy}; 'doit doctor' says more" if found.remedy else "'doit doctor' says more"
    return kind(found.what, where=found.subject, why=found.why, remedy=remedy)


def _hold_driver_rule(step: Step) -> None:
    for index, target in enumerate(step.config.targets):
        if target.driver_sdk is None or target not in step.targets:
            continue
        from pipeline.qnn import drivers

        sdk = qairt_version()
        if drivers.refuses(sdk, target.driver_sdk):
            raise ConfigError(
                f"contexts for {target.soc} would be made with QAIRT {sdk}, and its driver is of {target.driver_sdk}",
                where=step.config.place(f"targets[{index}].driver_sdk"),
                why=drivers.RULE,
                remedy=f"{drivers.remedy(sdk, target.driver_sdk)}; 'doit doctor' says more",
            )


def _environment_refusal(workspace: Workspace) -> Finding | None:
    folder = Path(sysconfig.get_path("purelib"))
    pyproject = workspace.root / "pyproject.toml"
    try:
        known = workspace.memo.value(folder, _fingerprint(pyproject), lambda _: _refusal_as_json(pyproject))
    except OSError:  # this Python has no such folder: nothing can be remembered
        known = _refusal_as_json(pyproject)
    if known is None:
        return None
    check, what, subject, why, remedy, exit_code = cast("tuple[str, str, str, str, str, int]", known)
    return Finding(check, "error", what, subject, why, remedy, exit_code)


def _refusal_as_json(pyproject: Path) -> Json:
    from pipeline.upkeep.doctor import host, packages

    facts = packages.gather(pyproject)
    found = host.refusal(host.cheap_facts()) or next(iter(packages.refusals(facts)), None)
    return [found.check, found.what, found.subject, found.why, found.remedy, found.exit_code] if found else None


def _fingerprint(pyproject: Path) -> str:
    """A digest that differs between environments, and changes when this one changes."""
    stamps = [sys.executable, sys.version]
    for path in (str(pyproject), *sys.path):
        try:
            stamps.append(f"{path} {os.stat(path).st_mtime_ns}")
        except OSError:
            continue
    return "environment " + hashlib.sha256("\n".join(stamps).encode()).hexdigest()
