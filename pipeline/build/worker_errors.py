"""Makes the errors for workers that left no answer: how they ended, the end of their log, and what to do."""

from __future__ import annotations

from pathlib import Path

from pipeline.build.work import Work
from pipeline.errors import PipelineError, StoreError, WorkerError
from pipeline.processes.exit_status import exit_reason
from pipeline.processes.log_tail import log_tail
from pipeline.processes.watch import Excess
from pipeline.qnn import failures
from pipeline.store.durable import no_room

_LOG_LINES = 12
_KEPT = "everything already built is kept"


def died(step: Work, status: int, log: Path, *, oom_killed: bool) -> PipelineError:
    """The error for a worker that ended with this exit status; `oom_killed` if Linux ended a process meanwhile."""
    if status == StoreError.exit_code:
        return no_room(f"what {step.id} writes")
    reason, lines = exit_reason(status), log_tail(log, _LOG_LINES)
    known = failures.find("\n".join([failures.OUT_OF_MEMORY if oom_killed else "", *lines, reason]))
    cause = known.cause if known else "nothing is known of this way to end"
    source = f" ({known.source})" if known and known.source else ""
    remedy = known.remedy if known else "run the same command again; if it ends so again, report it with the log"
    error = WorkerError(
        f"the worker of {step.id} died: {reason}",
        where=str(log),
        why=f"{cause}; {_end_of(lines)}",
        remedy=f"{remedy}{source}; {_KEPT}",
    )
    error.of_process = True
    return error


def exceeded(step: Work, excess: Excess, log: Path) -> WorkerError:
    """The error for a worker that was ended because it took more than it may."""
    limits, file = step.limits, f"configs/{step.config}"
    minutes = f"{excess.seconds / 60:.0f} minutes" if excess.seconds >= 120 else f"{excess.seconds:.0f} s"
    used_mb = f"{excess.bytes >> 20} MB"
    if excess.for_memory:
        allowed_mb = excess.allowed.bytes >> 20
        what = f"{step.id} was ended as it used more than {allowed_mb} MB of memory"
        why = f"its processes had {used_mb} after {minutes}"
        if limits.memory_mb is None:
            why += ", and nine tenths of this machine's memory are the limit where the config gives none"
        remedy = (
            "use a smaller bucket or fewer calibration samples, or a machine with more memory; "
            f"the limit is memory_mb under limits: in {file}, as limits: {{memory_mb: {2 * allowed_mb}}}"
        )
    else:
        what = f"{step.id} was ended as it took longer than {limits.minutes} minutes"
        why = f"it used {used_mb} of memory then: it hangs, or needs more time"
        remedy = (
            "see in the log what it did last; if it needs more time, raise minutes under limits: in "
            f"{file}, as limits: {{minutes: {2 * limits.minutes}}}"
        )
    why = f"{why}; {_end_of(log_tail(log, _LOG_LINES))}"
    error = WorkerError(what, where=str(log), why=why, remedy=f"{remedy}; {_KEPT}")
    error.of_process = True
    return error


def _end_of(lines: list[str]) -> str:
    return "the end of its log:" + "".join(f"\n    | {line}" for line in lines) if lines else "its log is empty"
