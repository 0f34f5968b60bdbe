"""Whether this host compiles and emulates: not by what is installed, but by doing it, in child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.doctor.finding import COMPILER, ENVIRONMENT, Finding, error, ok, unchecked, warning
from pipeline.system.exit_status import exit_reason

LIMIT_S = 90.0
"""Of one child; each takes a second or two."""

_CHECKS = ("compile", "readback", "emulate")
_VERIFICATION = 16
# As in pipeline.engine.worker, which needs more than Python.
_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "PIPELINE_SIGNING_KEY")
_NO_COMPILER = "fetch to verify, but not context, emulate, probe and {precision: auto}"


@dataclass(frozen=True)
class Trial:
    """What came of one child: the parts that it finished, the error that it told, or how it ended without."""

    parts: Mapping[str, str]
    seconds: float
    what: str = ""
    why: str = ""
    remedy: str = ""
    status: int | None = 0
    """Exit status, negative for a signal; None: it was ended for its time."""
    log: str = ""


@dataclass(frozen=True)
class CompilerFacts:
    """The host's kind, and what came of the trials; None: not tried, for the reason in `skipped`."""

    system: str
    machine: str
    target: str
    compiled: Trial | None = None
    emulated: Trial | None = None
    skipped: str = ""


def check(facts: CompilerFacts) -> Iterator[Finding]:
    """What this host can do, and a finding for each part of the trial."""
    yield _stages(facts)
    emulates = facts.machine == "x86_64"
    for part in _CHECKS:
        name = f"compiler.{part}"
        trial = facts.emulated if part == "emulate" else facts.compiled
        if part == "emulate" and not emulates:
            why = "the HTP emulator comes with the x86_64 package only"
            yield unchecked(name, "the emulator", why=why, remedy="verify on an x86_64 host")
        elif trial is None:
            why = facts.skipped or "what comes before it failed"
            yield unchecked(name, f"{part} of a tiny model for {facts.target}", why=why)
        elif part in trial.parts:
            told = f"{part} of a tiny model for {facts.target}: {trial.parts[part]}, in {trial.seconds:.1f} s"
            yield ok(name, told)
        elif part == "readback" and "compile" not in trial.parts:
            yield unchecked(name, "reading back what was compiled", why="what comes before it failed")
        else:
            yield _failed(name, part, trial, facts)


def tried(root: Path, soc: str, soc_model: int, htp_arch: int, system: str, machine: str) -> CompilerFacts:
    """Compile and emulate for a target; `root` is the folder that holds `pipeline/`."""
    with tempfile.TemporaryDirectory(prefix="doctor-", ignore_cleanup_errors=True) as folder:
        compiled = _run(root, "compile", Path(folder), soc_model, htp_arch)
        emulated = None
        if "readback" in compiled.parts and machine == "x86_64":
            emulated = _run(root, "emulate", Path(folder), soc_model, htp_arch)
    return CompilerFacts(system, machine, soc, compiled, emulated)


def asked_api(root: Path) -> tuple[int, int] | None:
    """The API version that the EP asks for and the one that onnxruntime has; None if its library can't be loaded."""
    with tempfile.TemporaryDirectory(prefix="doctor-", ignore_cleanup_errors=True) as folder:
        trial = _run(root, "api", Path(folder), 0, 0)
    found: Any = trial.parts.get("api")
    return (int(found[0]), int(found[1])) if found else None


def _stages(facts: CompilerFacts) -> Finding:
    name = "compiler.stages"
    if facts.machine == "x86_64":
        return ok(name, "an x86_64 host: the compiler is here for every target, and the emulator")
    if facts.compiled and "compile" in facts.compiled.parts:
        why = "on an ARM64 host with an NPU, QNN compiles for the host's own SoC whatever it is asked for"
        remedy = "build contexts for other SoCs, and verify all of them, on an x86_64 host"
        what = "an ARM64 host with an NPU: all but precision, emulate and probe, and contexts for its own SoC only"
        return warning(name, what, why=why, remedy=remedy)
    why = "QNN's compiler for ARM64 needs an NPU and its driver, and the emulator is for x86_64"
    return warning(name, f"an ARM64 host without an NPU that QNN can use: {_NO_COMPILER}", why=why, remedy=_ELSEWHERE)


_ELSEWHERE = "build contexts on an x86_64 host; what was made here has the same key there"


def _failed(name: str, part: str, trial: Trial, facts: CompilerFacts) -> Finding:
    exit_code = _VERIFICATION if part == "emulate" else COMPILER
    what = f"{part} of a tiny model for {facts.target} failed"
    if trial.status is None:
        remedy = "end what else uses the machine, or look for a hanging driver or virus scanner"
        return error(name, f"{what}: it took more than {LIMIT_S:g} s", ENVIRONMENT, remedy=remedy)
    if trial.what:
        found = error(name, f"{what}: {trial.what}", exit_code, why=trial.why, remedy=trial.remedy)
    else:
        log = "".join(f"\n| {line}" for line in trial.log.splitlines()[-6:])
        why = f"how the process ended: {exit_reason(trial.status)}" + (f"; the end of its output:{log}" if log else "")
        found = error(name, what, exit_code, why=why, remedy="see the findings on the host and its packages first")
    if facts.machine != "x86_64":  # what was to be expected there
        return warning(name, found.what, why=found.why, remedy=_ELSEWHERE)
    return found


def _run(root: Path, what: str, folder: Path, soc_model: int, htp_arch: int) -> Trial:
    """Run one part of the trial in a process group of its own, which is gone afterwards, or when we are."""
    from pipeline.system import process  # not for a Python that is too old for it

    command = [sys.executable, "-m", "pipeline.doctor.trial", what, str(folder), str(soc_model), str(htp_arch)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))}
    for secret in _SECRETS:
        environ.pop(secret, None)
    log = folder / f"{what}.log"
    answer = folder / "answer.json"
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
    failure = told.pop("error", {})
    text = str(failure.get("what") or failure.get("text") or "")
    output = log.read_text("utf-8", "replace")
    return Trial(told, seconds, text, failure.get("why", ""), failure.get("remedy", ""), status, output)
