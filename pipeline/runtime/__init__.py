"""Runs a release: `from pipeline.runtime import Release`.

This folder needs numpy, onnxruntime, and onnxruntime-qnn for the NPU; nothing else of this project, and imports inside
it are relative. An application installs it with the project or copies the folder under a name of its own. Python 3.11+;
`client.py` is one file for any Python from 3.8 on. docs/runtime.md shows how to use both.
"""

from .chat import Chat
from .errors import (
    ArgumentError,
    ClosedError,
    DamagedError,
    FallbackWarning,
    FormatError,
    InputError,
    LoadError,
    RangeWarning,
    ReleaseError,
    RunError,
    TargetError,
    TooLongError,
)
from .release import Release
from .report import InputReport, Report, SessionReport
from .splitting import Splitter

__all__ = [
    "ArgumentError",
    "Chat",
    "ClosedError",
    "DamagedError",
    "FallbackWarning",
    "FormatError",
    "InputError",
    "InputReport",
    "LoadError",
    "RangeWarning",
    "Release",
    "ReleaseError",
    "Report",
    "RunError",
    "SessionReport",
    "Splitter",
    "TargetError",
    "TooLongError",
]
