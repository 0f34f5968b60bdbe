"""Checks whether this host compiles and emulates, by doing both with a tiny model in child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.frozen import dataclass
from pipeline.processes.exit_status import exit_reason
from pipeline.upkeep.doctor.finding import COMPILER, ENVIRONMENT, VERIFICATION, Check, Finding

LIMIT_S = 90.0
"""The time limit of one child; each takes a second or two."""

_STAGES = Check("compiler.stages", COMPILER)
_COMPILE, _READBACK = Check("compiler.compile", COMPILER), Check("compiler.readback", COMPILER)
_EMULATE = Check("compiler.emulate", VERIFICATION)
# As in pipeline.build.worker, which needs more than Python.
_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "PIPELINE_SIGNING_KEY")
_NO_COMPILER = "fetch to verify, but not context, emulate, probe and {precision: auto}"
_ELSEWHERE = "build contexts on an x86_64 host; what was made here has the same key there"


@dataclass(frozen=True)
class ChildRun:
    """How one child ended: the `parts` of the trial that it finished, and the error that it wrote, if it wrote one."""

    parts: Mapping[str, str]
    seconds: float
    what: str = ""
    why: str = ""
    remedy: str = ""
    of_machine: bool = False
    """Whether a limit of this machine is at fault, and not what is installed."""
    status: int | None = 0
    """Exit status, negative for a signal; None: it reached the time limit and was killed."""
    log: str = ""


@dataclass(frozen=True)
class CompilerFacts:
    """The machine that Python is made for, and how the children ended.

    A child is None if it was not started; `skipped` is the reason.
    """

    machine: str
    target: str
    compiled: ChildRun | None = None
    emulated: ChildRun | None = None
    skipped: str = ""


def check(facts: CompilerFacts) -> Iterator[Finding]:
    """A finding on what this host can do, and one for each part of the trial."""
    yield _stages(facts)
    yield _part(_COMPILE, "compile", facts.compiled, facts)
    if facts.compiled and "compile" not in facts.compiled.parts:
        yield _READBACK.unchecked("reading back what was compiled", "what comes before it failed")
    else:
        yield _part(_READBACK, "readback", facts.compiled, facts)
    if facts.machine == "x86_64":
        yield _part(_EMULATE, "emulate", facts.emulated, facts)
    else:
        why = "the HTP emulator comes with the x86_64 package only"
        yield _EMULATE.unchecked("the emulator", why, "verify on an x86_64 host")


def tried(root: Path, soc: str, soc_model: int, htp_arch: int, machine: str) -> CompilerFacts:
    """Compile and emulate for a target; `root` is the folder that holds `pipeline/`."""
    with tempfile.TemporaryDirectory(prefix="doctor-", ignore_cleanup_errors=True) as folder:
        compiled = _run(root, "compile", Path(folder), soc_model, htp_arch)
        emulated = None
        if "readback" in compiled.parts and machine == "x86_64":
            emulated = _run(root, "emulate", Path(folder), soc_model, htp_arch)
    return CompilerFacts(machine, soc, compiled, emulated)


def asked_api(root: Path) -> tuple[int, int] | None:
    """The API versions that the EP asks for and that onnxruntime has; None if the EP's library can't be loaded."""
    with tempfile.TemporaryDirectory(prefix="doctor-", ignore_cleanup_errors=True) as folder:
        found: Any = _run(root, "api", Path(folder), 0, 0).parts.get("api")
    return (int(found[0]), int(found[1])) if found else None


def _stages(facts: CompilerFacts) -> Finding:
    if facts.machine == "x86_64":
        return _STAGES.ok("an x86_64 host: the compiler is here for every target, and the emulator")
    if facts.compiled and "compile" in facts.compiled.parts:
        return _STAGES.warning(
            "an ARM64 host with an NPU: all but precision, emulate and probe, and contexts for its own SoC only",
            "on an ARM64 host with an NPU, QNN compiles for the host's own SoC whatever it is asked for",
            "build contexts for other SoCs, and verify all of them, on an x86_64 host",
        )
    why = "QNN's compiler for ARM64 needs an NPU and its driver, and the emulator is for x86_64"
    return _STAGES.warning(f"an ARM64 host without an NPU that QNN can use: {_NO_COMPILER}", why, _ELSEWHERE)


def _part(check: Check, part: str, run: ChildRun | None, facts: CompilerFacts) -> Finding:
    what = f"{part} of a tiny model for {facts.target}"
    if run is None:
        return check.unchecked(what, facts.skipped or "what comes before it failed")
    if part in run.parts:
        return check.ok(f"{what}: {run.parts[part]}, in {run.seconds:.1f} s")
    if run.status is None:
        remedy = "end what else uses the machine, or look for a hanging driver or virus scanner"
        return check.about("", ENVIRONMENT).error(f"{what} failed: it took more than {LIMIT_S:g} s", remedy=remedy)
    told, why, remedy = f": {run.what}", run.why, run.remedy
    if not run.what:
        log = "".join(f"\n| {line}" for line in run.log.splitlines()[-6:])
        why = f"how the process ended: {exit_reason(run.status)}" + (f"; the end of its output:{log}" if log else "")
        told, remedy = "", "see the findings on the host and its packages first"
    if run.of_machine:
        return check.about("", ENVIRONMENT).error(f"{what} failed{told}", why, remedy)
    if facts.machine != "x86_64":  # it was to be expected there
        return check.warning(f"{what} failed{told}", why, _ELSEWHERE)
    return check.error(f"{what} failed{told}", why, remedy)


def _run(root: Path, what: str, folder: Path, soc_model: int, htp_arch: int) -> ChildRun:
    """Run one part of the trial in a process group of its own, which is gone afterwards, or when we are."""
    from pipeline.processes import process  # a Python that is too old can't import it

    command = [sys.executable, "-m", "pipeline.upkeep.doctor.trial", what, str(folder), str(soc_model), str(htp_arch)]
    environ = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), environ.get("PYTHONPATH"))))
    log, answer = folder / f"{what}.log", folder / "answer.json"
    answer.unlink(missing_ok=True)
    since = time.monotonic()
    with log.open("wb") as stream:
        child = process.start(command, stdin=subprocess.DEVNULL, log=stream, cwd=folder, env=environ)
        status: int | None
        try:
            status = child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            process.end(child.pid)
            child.wait()
    seconds = time.monotonic() - since
    try:
        told: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    except (OSError, ValueError):
        told = {}
    failure = {"what": "", "why": "", "remedy": ""} | told.pop("error", {})
    return ChildRun(told, seconds, **failure, status=status, log=log.read_text("utf-8", "replace"))
