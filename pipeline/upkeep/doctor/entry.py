"""The command: `doit doctor`, and `python -m pipeline.upkeep.doctor` where doit itself is missing.

`dodo.py` calls :func:`first` before it imports anything else of ours. Needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import gc
import io
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from pipeline import command_line
from pipeline.shortage import shortage
from pipeline.upkeep.doctor.finding import ENVIRONMENT, exit_code

_MISUSED = 3  # doit's own exit code for a command line that it does not understand
_INTERRUPTED = 130  # as of a build that Ctrl-C ended


@contextlib.contextmanager
def first(root: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Run the doctor now, if doit was called for it alone. Else, report packages that can't be imported, and Ctrl-C.

    So `doit doctor` works if a config is wrong or a package is missing: the imports in the `with` block would end the
    process. The garbage collector is off in the block: modules stay, and looking through them again takes 20 ms.
    """
    with _interruptible():
        asked = asked_for(arguments)
        if asked is not None:
            raise SystemExit(main(root, asked))
        with _importing():
            yield


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """End with one line at Ctrl-C. Later code handles it by itself (:mod:`pipeline.build.interrupt`)."""
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would only cut this off
        print("\nInterrupted: run the same command again.", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Report packages that can't be imported, with the garbage collector off."""
    gc.disable()
    try:
        yield
    except Exception as error:
        if short := shortage(error):
            print(f"error: {short}", file=sys.stderr)
            raise SystemExit(short.exit_code) from None
        where = _imported_file(error)
        if where is None:
            raise
        print(
            f"error: this environment can't run the project\n  where: {where}\n"
            f"  why: {type(error).__name__}: {error}\n"
            "  next: run 'uv sync', then 'uv run doit'; 'python -m pipeline.upkeep.doctor' says more",
            file=sys.stderr,
        )
        raise SystemExit(ENVIRONMENT) from None
    finally:
        gc.freeze()
        gc.enable()


def _imported_file(problem: Exception) -> str | None:
    """The file of a module that can't be imported, or that hides the right one; None for other problems."""
    if isinstance(problem, AttributeError) and isinstance(problem.obj, ModuleType):
        return getattr(problem.obj, "__file__", None) or problem.obj.__name__
    if isinstance(problem, SyntaxError):
        return f"{problem.filename}:{problem.lineno}"
    frames = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(problem.__traceback__)
        if not frame.f_code.co_filename.startswith("<frozen")
    ]
    modules = [code for code, _ in frames if code.co_name == "<module>"]
    # The first module is dodo.py, whose `with` this is; a second one was being imported.
    if not isinstance(problem, ImportError) and len(modules) < 2:
        return None
    code, line = frames[-1]
    return f"{code.co_filename}:{line}"


def asked_for(arguments: Sequence[str]) -> list[str] | None:
    """The arguments after `doctor` if it is the only task of the command line; None if it isn't."""
    line = command_line.parse(arguments)
    if line.command != "run" or line.variables or list(line.names) != ["doctor"]:
        return None
    return list(line.rest)


def main(root: Path, arguments: Sequence[str]) -> int:
    """Print the findings about the project in `root`. Returns the exit code of the first error, 0 if there is none."""
    import argparse  # `doit list` need not wait for it

    parser = argparse.ArgumentParser(
        prog="doit doctor", description="Say what is wrong with this host, its packages and this project."
    )
    parser.add_argument("--json", action="store_true", help="print JSON; docs/doctor.md describes it")
    try:
        options = parser.parse_args(arguments)
    except SystemExit as end:
        return _MISUSED if end.code else 0
    return run(root, json=options.json)


def run(root: Path, *, json: bool) -> int:
    """Print the findings as text, or as JSON. Returns the exit code."""
    from pipeline.report.output_stream import LastingStream
    from pipeline.upkeep.doctor.examine import examine
    from pipeline.upkeep.doctor.report import as_json, as_text

    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is no part of the report
        findings = [*examine(root)]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a console of Windows may know few letters
    output = LastingStream(sys.stdout)
    print(as_json(findings) if json else as_text(findings), file=output, flush=True)
    return exit_code(findings)
