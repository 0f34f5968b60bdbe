"""A function of the project's own code: loaded from its file, run, and its errors told in terms of that file.

What such a function does is known to a build by the content of its file, of the modules it imports from the project by
absolute name, of the calibration file, and of the fetched source. Anything else it reads may change unnoticed.
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
from pipeline.suggest import did_you_mean

FOLDER = "calibration"
"""Where the project's own code is, and the only place that code is run from."""


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
            raise type(error)(error.what, where=where, why=error.why, remedy=error.remedy) from error
        except (Exception, SystemExit) as error:
            raise CalibrationError(
                what,
                where=self._line(error) or self.shown,
                why=f"{type(error).__name__}: {error}",
                remedy="correct the code; the step's log has the full traceback",
            ) from error
        finally:
            sys.dont_write_bytecode = writes_bytecode

    def _line(self, error: BaseException) -> str:
        """``file:line, in function`` of the innermost place in the user's file, empty if the error isn't from there."""
        if isinstance(error, SyntaxError) and error.filename == self._file:
            return f"{self.shown}:{error.lineno}"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self._file]
        return f"{self.shown}:{frames[-1].lineno}, in {frames[-1].name}" if frames else ""


def seed(number: int) -> None:
    """Seed the global generators of `random` and numpy, which code written for an application may draw from."""
    random.seed(number)
    np.random.seed(number)


def _shown(file: Path) -> str:
    """The path from the project's folder on; refuses files outside `calibration/`, links followed."""
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
    sys.modules[module.__name__] = module  # dataclasses and pickle look their module up
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    return module
