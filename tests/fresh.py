"""Runs a function in a process of its own: QNN compiles once in a process, and may end the one it is in."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def fresh(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What the function returns or raises. Function, arguments and result must be picklable."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as executor:
        return executor.submit(function, *args, **kwargs).result()
