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
from .transcription import Segment, Transcript

__version__: str
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
    "Segment",
    "SessionReport",
    "Splitter",
    "TargetError",
    "TooLongError",
    "Transcript",
]
