"""Runs a release: `from qnn_release import Release`.

Needs numpy; onnxruntime once something runs, and onnxruntime-qnn for the NPU; nothing else of the pipeline.
`doit wheel` makes a package of it; an application may also copy this folder, under this name or one of its own, as
imports inside are relative. Python 3.9+; `client.py` is one file for any Python from 3.8 on. docs/runtime.md shows how
to use both.
"""

import importlib

__version__ = "1.0.0"

_HOMES = {
    "Chat": "chat",
    **dict.fromkeys(
        (
            "ArgumentError",
            "ClosedError",
            "DamagedError",
            "FallbackWarning",
            "FormatError",
            "InputError",
            "LoadError",
            "RangeWarning",
            "ReleaseError",
            "RunError",
            "TargetError",
            "TooLongError",
        ),
        "errors",
    ),
    "Release": "release",
    **dict.fromkeys(("InputReport", "Report", "SessionReport"), "report"),
    "Splitter": "splitting",
    **dict.fromkeys(("Segment", "Transcript"), "transcription"),
}
"""The module of each public name. It is imported when the name is first used: importing this package loads nothing.
`__init__.pyi` has the same names for editors and type checkers."""
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = found
    return found
