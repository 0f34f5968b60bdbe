"""Asks Qualcomm's Genie about a bundle: whether it opens, and what it answers.

As a program, `python -m pipeline.qnn.engines.genie REQUEST`, in a process of its own: Genie can end the one it is in.
It is in onnxruntime-qnn's wheel for x86_64, where it runs on the emulator; the loader finds its libraries by
LD_LIBRARY_PATH, which :mod:`pipeline.qnn.engines.asking` sets. The functions are those of `GenieDialog.h`, API 1.x.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.qnn import libraries
from pipeline.qnn.engines.genie_config import CONFIG
from pipeline.qnn.interface import ANSWER

API = 1
"""Genie's major version."""
_WARNINGS = 2
_COMPLETE = 0
_ON_TOKENS = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p)


class GenieError(Exception):
    """Genie refused a call."""


def library() -> Path:
    """Where Genie's library is, if this host has one."""
    return libraries.sdk_library("Genie")


def ask(folder: Path, prompt: Sequence[int], most: int) -> tuple[str, list[int]]:
    """Genie's version, and up to `most` tokens that follow a prompt; without a prompt the bundle is only opened.

    Raises:
        GenieError: it refuses the bundle or the question; what is wrong it prints.
    """
    with contextlib.chdir(folder):
        genie = ctypes.CDLL(str(library()))
        version = tuple(int(getattr(genie, f"Genie_getApi{part}Version")()) for part in ("Major", "Minor", "Patch"))
        if version[0] != API:
            raise GenieError(f"Genie has API {'.'.join(map(str, version))}; known here is {API}")
        log, config, dialog = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        _check("GenieLog_create", genie.GenieLog_create(None, None, _WARNINGS, ctypes.byref(log)))
        text = Path(CONFIG).read_bytes()
        _check(CONFIG, genie.GenieDialogConfig_createFromJson(text, ctypes.byref(config)))
        _check("GenieDialogConfig_bindLogger", genie.GenieDialogConfig_bindLogger(config, log))
        _check("GenieDialog_create", genie.GenieDialog_create(config, ctypes.byref(dialog)))
        made: list[int] = []
        if prompt:
            _check("GenieDialog_setMaxNumTokens", genie.GenieDialog_setMaxNumTokens(dialog, most))
            answer = _ON_TOKENS(lambda tokens, count, _code, _user: made.extend(tokens[at] for at in range(count)))
            given = (ctypes.c_uint32 * len(prompt))(*prompt)
            status = genie.GenieDialog_tokenQuery(dialog, given, len(prompt), _COMPLETE, answer, None)
            _check("GenieDialog_tokenQuery", status)
    return ".".join(map(str, version)), made


def _check(what: str, status: int) -> None:
    if status:
        raise GenieError(f"{what}: error {status}")


def main(request_path: str) -> None:
    """Do what the request says, leave the answer beside it, and end the process."""
    request: dict[str, Any] = json.loads(Path(request_path).read_text("utf-8"))
    work = Path(request_path).resolve().parent
    try:
        version, tokens = ask(Path(request["folder"]), request["prompt"], request["most"])
        answer: dict[str, Any] = {"version": version, "tokens": tokens}
    except (GenieError, OSError) as error:
        answer = {"refused": str(error)}
    (work / ANSWER).write_text(json.dumps(answer), "utf-8")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
