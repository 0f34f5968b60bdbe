"""Runs a function in a process of its own: QNN compiles once in a process, and may end the one it is in.

As with the workers of a build, that process is a copy of one that has imported what it needs: importing takes longer
than compiling a tiny model.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing.context import BaseContext
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def fresh(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What the function returns or raises. Function, arguments and result must be picklable."""
    with ProcessPoolExecutor(max_workers=1, mp_context=_context()) as executor:
        return executor.submit(_run, dict(os.environ), partial(function, *args, **kwargs)).result()


def _run(environ: Mapping[str, str], call: Callable[[], R]) -> R:
    """Call in the environment of the caller: the copied process has that of the first test that asked for one."""
    for name in os.environ.keys() - environ:
        del os.environ[name]
    os.environ.update(environ)
    return call()


@cache
def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():  # Windows
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pipeline.stages.context", "pipeline.qnn.running.emulate"])
    return context
