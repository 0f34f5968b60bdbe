"""Asks engines in child processes: each may end the process that it is in."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.model import Json
from pipeline.processes.exit_status import exit_reason
from pipeline.processes.log_tail import log_tail
from pipeline.qnn.child import ask
from pipeline.qnn.engines import genai, genie

Engine = Literal["genie", "genai"]
_LINES, _MOST = 40, 6
_IDLE = ("[WARNING]", "[ INFO", "LIBNATIVE", "[INFO]", "warn: ", "W:onnxruntime")
"""Parts of log lines that say nothing about a failure."""


@dataclass(frozen=True)
class EngineAnswer:
    """What an engine said: its `version`, and what followed the prompt; or why it `refused`.

    `encoded` has the tokens of each text by the engine's own tokenizer.
    """

    version: str = ""
    tokens: tuple[int, ...] = ()
    encoded: tuple[tuple[int, ...], ...] = ()
    refused: str = ""


def installed() -> tuple[Engine, ...]:
    """The engines that can be asked on this host."""
    found: list[Engine] = ["genie"] if genie.library().is_file() else []
    return (*found, "genai") if genai_version() else (*found,)


def genai_version() -> str:
    """The version of onnxruntime-genai; empty where it is not installed."""
    try:
        return importlib.metadata.version(genai.PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return ""


def ask_genie(folder: Path, work: Path, prompt: Sequence[int] = (), most: int = 0) -> EngineAnswer:
    """What Genie says of the bundle in `folder`, and of a prompt if there is one; `work` is an empty folder."""
    library = str(genie.library().parent)
    request: dict[str, Json] = {"folder": str(folder), "prompt": [*prompt], "most": most}
    return _asked("pipeline.qnn.engines.genie", request, work, {"LD_LIBRARY_PATH": library})


def ask_genai(folder: Path, work: Path, prompt: Sequence[int], most: int, texts: Sequence[str] = ()) -> EngineAnswer:
    """What onnxruntime-genai says of a prompt, by the folder, and how it splits texts; `work` is an empty folder."""
    request: dict[str, Json] = {"folder": str(folder), "prompt": [*prompt], "most": most, "texts": [*texts]}
    return _asked("pipeline.qnn.engines.genai", request, work, {})


def _asked(program: str, request: dict[str, Json], work: Path, environment: dict[str, str]) -> EngineAnswer:
    log = work / "log"
    told = ask(request, work, program, log, environment).answer()
    if isinstance(told, int):
        return EngineAnswer(refused=f"it ended its process: {exit_reason(told)}{_said(log)}")
    if "refused" in told:
        return EngineAnswer(refused=f"{told['refused']}{_said(log)}")
    version, tokens, encoded = told.get("version"), told["tokens"], told.get("encoded", [])
    assert isinstance(tokens, list)
    assert isinstance(encoded, list)
    rows = [row for row in encoded if isinstance(row, list)]
    return EngineAnswer(
        str(version or genai_version()),
        tuple(map(_number, tokens)),
        tuple(tuple(map(_number, row)) for row in rows),
    )


def _number(value: Json) -> int:
    assert isinstance(value, int)
    return value


def _said(log: Path) -> str:
    """What an engine printed that may tell why, without what it prints of every model."""
    lines = [line.strip() for line in log_tail(log, _LINES)]
    told = [line for line in lines if not any(word in line for word in _IDLE)]
    return "".join(f"\n    | {line}" for line in told[-_MOST:])
