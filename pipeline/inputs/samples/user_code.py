"""Loads and runs a function of the project's own code, and tells its errors with the line in its file.

The key of a step counts the code of the function's file, of the project's modules that it imports and of the packages
that they are in, the calibration file, and the fetched source. A build does not notice a change of anything else that
the function reads, such as a module that it imports by a computed name.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pipeline.errors import CalibrationError, PipelineError
from pipeline.plain_text import did_you_mean

FOLDER = "calibration"
"""The folder of the project's own code. Code from elsewhere is never run."""


class UserFunction:
    """A function in a file of the project's `calibration/` folder."""

    def __init__(self, file: Path, name: str) -> None:
        """Run the file and find the function in it.

        Raises:
            CalibrationError: the file isn't in `calibration/`, can't be run, or has no such function.
        """
        self.shown = _shown(file)
        self.name = name
        self._file = str(file)
        with self.explained(f"{self.shown} can't be loaded"):
            module = _load(file)
        function = getattr(module, name, None)
        if not callable(function):
            functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise CalibrationError(
                f"{self.shown} has no function {name!r}{did_you_mean(name, functions)}",
                where=self.shown,
                remedy=f"define it: def {name}(...), or correct its name in the config",
            )
        self.call: Callable[..., Any] = function

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Turn what the user's code raises into a CalibrationError with the line of that code; imports leave no trace.

        An error of ours that passes through the user's code keeps its text and gains the line.
        """
        writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            yield
        except PipelineError as error:
            line = self._line(error)
            if not line:
                raise
            where = ", ".join(part for part in (line, error.where) if part)
            raise error.but(where=where) from error
        except (Exception, SystemExit) as error:
            raise CalibrationError(
                what,
                where=self._line(error) or self.shown,
                why=f"{type(error).__name__}: {error}",
                remedy=_remedy(error),
            ) from error
        finally:
            sys.dont_write_bytecode = writes_bytecode

    def _line(self, error: BaseException) -> str:
        """``file:line, in function`` of the innermost place in the user's file; "" if the error isn't from there."""
        if isinstance(error, SyntaxError) and error.filename == self._file:
            return f"{self.shown}:{error.lineno}"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self._file]
        return f"{self.shown}:{frames[-1].lineno}, in {frames[-1].name}" if frames else ""


def _remedy(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return (
            f"run 'uv add {package}' if the package that brings it is called so, then the same command again;"
            " docs/calibration.md, 'Packages of your own', says more"
        )
    return "correct the code; the step's log has the full traceback"


def seed(number: int) -> None:
    """Seed the global generators of `random` and numpy, which code written for an application may draw from."""
    random.seed(number)
    np.random.seed(number)


def _shown(file: Path) -> str:
    """The path from the project's folder on. Refuses a file that is, after following links, outside `calibration/`."""
    parents = list(file.parents)
    folder = next((parent for parent in parents if parent.name == FOLDER), None)
    # Of the folder itself no link is followed: it must be the project's own.
    if folder is None or ".." in file.parts or not file.resolve().is_relative_to(folder.parent.resolve() / FOLDER):
        raise CalibrationError(
            f"{file.name} is not in the project's {FOLDER}/ folder",
            why="a build runs code of the project only, and from that folder only",
            remedy=f"move the file to {FOLDER}/ and name it '{FOLDER}/{file.name}:<function>' in the config",
        )
    return file.relative_to(folder.parent).as_posix()


def _load(file: Path) -> ModuleType:
    # Compiled by hand: the import system would trust a cached .pyc whose source changed within its clock's tick.
    module = ModuleType(f"{FOLDER}_{file.stem}")
    module.__file__ = str(file)
    module.__package__ = ".".join(Path(_shown(file)).parent.parts)  # for `from .other import name`
    sys.modules[module.__name__] = module  # dataclasses and pickle look their module up
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    return module
