"""Points from an error about sizes to those that `doit init` guessed: one of them may be what is wrong."""

from __future__ import annotations

from typing import TypeVar

from pipeline.config.guesses import guesses
from pipeline.config.yaml.problems import dotted
from pipeline.errors import PipelineError
from pipeline.plan.steps import Step

_SIZED = ("shape", "rewrite")
"""Stages that fail for sizes as a whole; elsewhere an error names the axis."""
_Error = TypeVar("_Error", bound=PipelineError)


def with_guesses(error: _Error, step: Step) -> _Error:
    """The error, whose remedy begins with the sizes that are guessed, if it may be about one."""
    config = step.config
    guessed = {*guesses(config.path)}
    sizes: dict[str, list[int]] = {axis: [size] for axis, size in config.fixed.items()}
    for bucket in config.buckets:
        for axis, size in bucket.axes.items():
            sizes.setdefault(axis, []).append(size)
    own = {axis: dict.fromkeys(each) for axis, each in sizes.items() if axis in guessed}
    if step.stage not in _SIZED:
        own = {axis: each for axis, each in own.items() if f"{axis!r} is" in error.what}
    if not own:
        return error
    named = [
        f"{axis!r}: {', '.join(map(str, each))} ({config.place(dotted(('fixed', axis)), dotted(('buckets', axis)))})"
        for axis, each in own.items()
    ]
    told = f"look first at what 'doit init' guessed: {'; '.join(named)}. Write what the application gives the model"
    return error.but(remedy=f"{told}; or {error.remedy}" if error.remedy else told)
