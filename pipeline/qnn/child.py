"""Compiles and emulates in child processes, for stages that do either more than once.

A process compiles once (see :mod:`pipeline.qnn.compiling.compile`), and the emulator may end the process that it is in.
The child is `python -m pipeline.qnn.child REQUEST` or, in a worker that emulates, a fork that does the same. Arrays are
exchanged as files in a folder of the caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.target import HtpTarget
from pipeline.errors import BY_NAME, CompileError, PipelineError, StoreError, VerificationError, WorkerError
from pipeline.model import Json
from pipeline.processes import addresses, forked, lifeline
from pipeline.processes.exit_status import exit_reason
from pipeline.processes.log_tail import log_tail
from pipeline.qnn import failures
from pipeline.qnn.compiling import compose
from pipeline.qnn.compiling.compile import compile_context, compile_shared
from pipeline.qnn.compiling.compiler import COMPILE_OPTIONS
from pipeline.qnn.compiling.dlc import write_dlc
from pipeline.qnn.interface import ANSWER
from pipeline.qnn.native_log import STEP_LOG
from pipeline.qnn.provider_options import OPTIMIZATION
from pipeline.qnn.running import raw
from pipeline.qnn.running.emulate import TimeLimit, run_each
from pipeline.store.durable import is_full, no_room

Arrays = Mapping[str, NDArray[Any]]

REQUEST = "request.json"
"""A child's request, in its folder."""
_LOG_LINES = 8
_SIGKILL = 9


def compile_apart(model: Path, name: str, target: HtpTarget, out: Path) -> CompiledModel:
    """:func:`pipeline.qnn.compiling.compile.compile_context` in a child.

    Raises:
        PipelineError: what the child raised.
        CompileError: the child died.
    """
    request: dict[str, Json] = {"do": "compile", "model": str(model), "name": name, "out": str(out)}
    child = ask(request | {"target": target.to_json()}, out)
    return CompiledModel.from_json(child.expect(f"the compiler ended its process on {name}", CompileError))


def compile_pack_apart(
    models: Mapping[str, Path], target: HtpTarget, out: Path, *, binary: str
) -> dict[str, CompiledModel]:
    """:func:`pipeline.qnn.compiling.compile.compile_shared` in a child; by the names of the models.

    Raises:
        PipelineError: what the child raised.
        CompileError: the child died.
    """
    paths: dict[str, Json] = {name: str(path) for name, path in models.items()}
    request: dict[str, Json] = {"do": "compile pack", "models": paths, "binary": binary, "out": str(out)}
    child = ask(request | {"target": target.to_json()}, out)
    answer = child.expect(f"the compiler ended its process on {binary}", CompileError)
    made = {name: answer[name] for name in models}
    return {name: CompiledModel.from_json(each) for name, each in made.items() if isinstance(each, dict)}


def run_apart(
    folder: Path,
    context_model: str,
    target: HtpTarget,
    feeds: Sequence[Arrays],
    work: Path,
    limit: TimeLimit | None = None,
    log: Path | None = None,
) -> list[list[NDArray[Any]]]:
    """:func:`pipeline.qnn.running.emulate.run_each` in a child, with its arrays in the empty folder `work`.

    What it prints goes to the caller's output, or to the end of `log`.

    Raises:
        PipelineError: what the child raised.
        VerificationError: the emulator ended the process.
    """
    names = list(feeds[0]) if feeds else []
    for number, feed in enumerate(feeds):
        np.savez(work / _feed(number), *(feed[name] for name in names), allow_pickle=False)
    request: dict[str, Json] = {
        "do": "run",
        "folder": str(folder),
        "context_model": context_model,
        "count": len(feeds),
        "names": [*names],
        "target": target.to_json(),
        "cpu_s": limit.cpu_s if limit else None,
    }
    child = ask(request, work, log=log, forks=main)
    child.expect(f"the emulator ended its process on {context_model}", VerificationError, log)
    outputs = []
    for number in range(len(feeds)):
        if limit and not (work / _result(number)).exists():
            break
        with np.load(work / _result(number), allow_pickle=False) as archive:
            outputs.append([archive[name] for name in archive.files])
    return outputs


def run_raw_apart(binary: Path, graph: str, target: HtpTarget, inputs: Arrays, work: Path) -> list[NDArray[Any]] | str:
    """:func:`pipeline.qnn.running.raw.run_graph` in a child: the outputs in the binary's order, or why there are
    none.
    """
    np.savez(work / raw.INPUTS, *inputs.values(), allow_pickle=False)
    request: dict[str, Json] = {
        "binary": str(binary),
        "graph": graph,
        "soc_model": target.soc_model,
        "names": [*inputs],
    }
    answer = ask(request, work, "pipeline.qnn.running.raw", forks=raw.main).answer()
    if isinstance(answer, int):
        return f"QNN ended the process: {exit_reason(answer)}"
    if "refused" in answer:
        return str(answer["refused"])
    with np.load(work / raw.OUTPUTS, allow_pickle=False) as archive:
        return [archive[name] for name in archive.files]


def write_dlc_apart(model: Path, name: str, target: HtpTarget, path: Path, work: Path) -> str:
    """:func:`pipeline.qnn.compiling.dlc.write_dlc` in a child.

    Raises:
        PipelineError: what the child raised.
        CompileError: the child died.
    """
    request: dict[str, Json] = {"do": "dlc", "model": str(model), "name": name, "out": str(path)}
    child = ask(request | {"target": target.to_json()}, work)
    return str(child.expect(f"QNN's serializer ended its process on {name}", CompileError)["graph"])


def compose_apart(dlc: Path, graph: str, target: HtpTarget, work: Path) -> Path:
    """:func:`pipeline.qnn.compiling.compose.compose` in a child: the context binary, in the folder `work`.

    Raises:
        CompileError: HTP does not take the graph; the message has the operator that QNN names.
    """
    binary, log = work / f"{graph}.bin", work / "compose.log"
    optimization = dict(target.options or ()).get(OPTIMIZATION, COMPILE_OPTIONS[OPTIMIZATION])
    request: dict[str, Json] = {
        "dlc": str(dlc),
        "graph": graph,
        "soc_model": target.soc_model,
        "vtcm_mb": target.vtcm_mb,
        "optimization": int(optimization),
        "binary": str(binary),
    }
    log.unlink(missing_ok=True)
    answer = ask(request, work, "pipeline.qnn.compiling.compose", log).answer()
    if not isinstance(answer, int) and "refused" not in answer:
        return binary
    ended = exit_reason(answer) if isinstance(answer, int) else str(answer["refused"])
    raise _not_composed(dlc.name, target, ended, log.read_text("utf-8", "replace"))


def _not_composed(dlc: str, target: HtpTarget, ended: str, log: str) -> CompileError:
    errors = compose.errors(log)
    why, remedy = failures.explain([*errors[-_LOG_LINES:], ended], "")
    what = ", ".join(compose.refused_operators(errors)) or "the graph"
    return CompileError(f"{target} does not take {what} of {dlc}", where=dlc, why=why, remedy=remedy)


class AskedChild:
    """A child that was given a request in the folder `work`."""

    def __init__(self, work: Path, wait: Callable[[], int]) -> None:
        """`wait` waits for the child to end and returns its exit status. It may be called more than once."""
        self._work = work
        self.wait = wait

    def answer(self) -> Mapping[str, Json] | int:
        """Wait for the child to end. Returns its answer, or its exit status if it left none.

        Raises:
            PipelineError: what the child raised.
        """
        status = self.wait()
        try:
            told: dict[str, Any] = json.loads((self._work / ANSWER).read_text("utf-8"))
        except (OSError, ValueError):
            return status
        finally:
            (self._work / REQUEST).unlink()
            (self._work / ANSWER).unlink(missing_ok=True)
        if "error" in told:
            said = told["error"]
            error = BY_NAME[said["type"]](said["what"], where=said["where"], why=said["why"], remedy=said["remedy"])
            error.of_machine = said["of_machine"]
            raise error
        return told

    def expect(self, what: str, kind: type[PipelineError], log: Path | None = None) -> Mapping[str, Json]:
        """What it answered.

        Raises:
            PipelineError: what the child raised, or, with the message `what` and of this `kind`, that it died.
        """
        answer = self.answer()
        if isinstance(answer, int):
            raise died(what, answer, kind, log)
        return answer


def ask(
    request: Mapping[str, Json],
    work: Path,
    program: str = "pipeline.qnn.child",
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
    forks: Callable[[str], object] | None = None,
) -> AskedChild:
    """Start a child that runs `program` on a request; somebody has to wait for it. What it prints goes to `log`.

    `environment` is added to that of the child. `forks` is a function that does what the program does with the path of
    a request: with it the child is a fork of this process, where forks are allowed. On Windows the child is in the job
    of its caller, and no lifeline has to be passed on.
    """
    path = work / REQUEST
    (work / ANSWER).unlink(missing_ok=True)
    path.write_text(json.dumps(request), "utf-8")
    if forks is not None and forked.is_allowed():
        return AskedChild(work, forked.start(partial(forks, str(path)), log).wait)
    command = [sys.executable, "-m", addresses.__name__, program, str(path)]
    return AskedChild(work, _started(command, log, environment or {}).wait)


def _started(command: Sequence[str], log: Path | None, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # In the caller's process group, with which it ends; without a log its output goes to the caller's.
    with log.open("ab") if log else contextlib.nullcontext() as stream:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **addresses.ENVIRONMENT, **environment},
            stdout=stream,
            stderr=stream,
            pass_fds=lifeline.inherited(),
        )


def died(what: str, status: int, kind: type[PipelineError], log: Path | None = None) -> PipelineError:
    """The error of a child that ended with this exit status and left no answer, as far as its `log` says why."""
    if status == StoreError.exit_code:
        return no_room("what the compiler or the emulator writes")
    tail = log_tail(log or Path(os.environ.get(STEP_LOG, "")), _LOG_LINES)
    why, remedy = failures.explain([exit_reason(status), *tail], "")
    error = (WorkerError if status == -_SIGKILL else kind)(what, why=why, remedy=remedy)
    error.of_process = True
    return error


def _feed(number: int) -> str:
    return f"feed_{number:04d}.npz"


def _result(number: int) -> str:
    return f"result_{number:04d}.npz"


def main(request_path: str) -> None:
    """Do what the request file says, and leave the answer beside it."""
    answer_request(request_path, _answer)


def answer_request(request_path: str, does: Callable[[Mapping[str, Any], Path], Mapping[str, Json]]) -> None:
    """Write the answer to a request, or an error, beside it. If there is no room, end with a StoreError's exit status.

    `does` gets the request and its folder.
    """
    request: dict[str, Any] = json.loads(Path(request_path).read_text("utf-8"))
    work = Path(request_path).resolve().parent  # the emulator runs in another folder
    try:
        told = does(request, work)
    except PipelineError as error:
        fields = {"type": type(error).__name__, "what": error.what, "where": error.where}
        told = {"error": {**fields, "why": error.why, "remedy": error.remedy, "of_machine": error.of_machine}}
    try:
        (work / ANSWER).write_text(json.dumps(told), "utf-8")
    except OSError as error:
        if not is_full(error):
            raise
        raise SystemExit(StoreError.exit_code) from None


def _answer(request: Mapping[str, Any], work: Path) -> Mapping[str, Json]:
    target = HtpTarget.from_json(request["target"])
    if request["do"] == "compile":
        return compile_context(Path(request["model"]), request["name"], target, Path(request["out"])).to_json()
    if request["do"] == "compile pack":
        models = {name: Path(path) for name, path in request["models"].items()}
        made = compile_shared(models, target, Path(request["out"]), binary=request["binary"])
        return {name: each.to_json() for name, each in made.items()}
    if request["do"] == "dlc":
        return {"graph": write_dlc(Path(request["model"]), request["name"], target, Path(request["out"]))}
    _emulate(request, work, target)
    return {}


def _emulate(request: Mapping[str, Any], work: Path, target: HtpTarget) -> None:
    limit = TimeLimit(request["cpu_s"]) if request["cpu_s"] is not None else None
    feeds = _Feeds([work / _feed(number) for number in range(request["count"])], request["names"])
    results = run_each(Path(request["folder"]), request["context_model"], target, feeds, limit)
    for number, arrays in enumerate(results):
        np.savez(work / _result(number), *arrays, allow_pickle=False)


class _Feeds:
    """Samples that are loaded one after the other, with their number known before."""

    def __init__(self, paths: Sequence[Path], names: Sequence[str]) -> None:
        self._paths, self._names = paths, names

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[Arrays]:
        for path in self._paths:
            with np.load(path, allow_pickle=False) as archive:
                feed = dict(zip(self._names, archive.values(), strict=True))
            yield feed


if __name__ == "__main__":
    main(sys.argv[1])
