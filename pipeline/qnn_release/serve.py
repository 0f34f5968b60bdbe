"""Serves a release on standard input and output: `python -m qnn_release.serve RELEASE`.

`client.py` is the other side, and describes the protocol. Requests are answered one after the other; whatever the
process prints, QNN included, goes to standard error. It ends when its standard input does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from . import client
from .errors import ReleaseError
from .fitting import dim_text
from .index import Component, Tensor
from .release import Release

_ENDED, _NO_RELEASE, _NO_FRAME = 0, 1, 3


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns 0 at the end of input, 1 if the release can't be opened, 3 after a broken frame."""
    parser = argparse.ArgumentParser(prog="qnn-release serve", description=__doc__)
    add_options(parser)
    parser.add_argument("--max-bytes", type=int, default=client.MAX_BODY_BYTES, help="of the arrays of one request")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the application's; we end when our input does
    requests, answers = _streams()
    try:
        release = Release.open(given.release, **options_of(given))
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        _send(answers, {"id": None, "error": _described(error)}, {})
        return _NO_RELEASE
    with release, contextlib.suppress(BrokenPipeError):  # the client is gone
        _send(answers, {"id": None, **_hello(release, given.max_bytes)}, {})
        return _answer_all(release, requests, answers, given.max_bytes)
    os._exit(_ENDED)  # what was not written can't be, at the end either


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments with which a command line opens a release."""
    parser.add_argument("release", help="the archive or the folder")
    parser.add_argument("--target", help="the target whose contexts to run; else what fits the NPU")
    parser.add_argument("--device", choices=["npu", "emulator", "cpu"])
    parser.add_argument("--fallback", choices=["cpu", "refuse"], default="cpu", help="when the device can't be used")
    parser.add_argument("--cache", help="the folder that archives are unpacked into")
    parser.add_argument(
        "--option", action="append", default=[], type=_option, metavar="NAME=VALUE", help="an option of the QNN EP"
    )


def options_of(given: argparse.Namespace) -> dict[str, Any]:
    """What these arguments give :meth:`Release.open`, beside the release."""
    names = ("target", "device", "fallback", "cache")
    return {**{name: getattr(given, name) for name in names}, "options": dict(given.option)}


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _answer_all(release: Release, requests: BinaryIO, answers: BinaryIO, max_bytes: int) -> int:
    while True:
        try:
            frame = client.read_frame(requests, max_bytes)
        except client.ArraysError as error:
            _send(answers, {"id": _id(error.header), "error": _refusal(error)}, {})
            continue
        except (client.FrameError, EOFError) as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            _send(answers, {"id": None, "error": _refusal(error)}, {})
            return _NO_FRAME
        if frame is None:
            return _ENDED
        header, arrays = frame
        answer, outputs = _answer(release, header, arrays)
        try:
            _send(answers, {"id": _id(header), **answer}, outputs)
        except client.ClientError as error:  # an output of a type that the protocol lacks, too long a report
            _send(answers, {"id": _id(header), "error": _refusal(error)}, {})


def _answer(
    release: Release, header: Mapping[str, Any], arrays: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    call, component = header.get("call"), header.get("component")
    try:
        if call == "run":
            return {}, dict(release.run(str(component), arrays))
        if call == "load":
            release.load(None if component is None else str(component))
            return {}, {}
        if call == "report":
            return {"report": release.report().as_dict()}, {}
    except ReleaseError as error:
        return {"error": _described(error)}, {}
    except Exception as error:  # a bug of ours must not end the server: the client is told
        return {"error": _refusal(error)}, {}
    return {"error": {"kind": "CallError", "what": f"there is no call {call!r}"}}, {}


def _send(answers: BinaryIO, header: dict[str, Any], arrays: Mapping[str, Any]) -> None:
    listed, buffers = client.encode({name: np.asarray(array) for name, array in arrays.items()})
    frame = client.encode_frame({**header, "arrays": listed}, buffers, client.MAX_BODY_BYTES)
    try:
        for part in frame:
            answers.write(part)
        answers.flush()
    except OSError as error:  # of a pipe whose reader is gone, Windows says EINVAL
        raise BrokenPipeError from error


def _hello(release: Release, max_bytes: int) -> dict[str, Any]:
    return {
        "hello": client.PROTOCOL,
        "max_bytes": max_bytes,
        "model": release.model,
        "version": release.version,
        "target": release.target,
        "pid": os.getpid(),
        "components": {name: _component(component) for name, component in release.components.items()},
    }


def _component(component: Component) -> dict[str, Any]:
    return {
        "inputs": [_tensor(tensor) for tensor in component.inputs],
        "outputs": [_tensor(tensor) for tensor in component.outputs],
        "buckets": [dict(bucket.axes) for bucket in component.buckets],
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    dims = [dim.size if dim.size is not None else dim_text(dim) for dim in tensor.dims]
    return {"name": tensor.name, "dtype": str(tensor.dtype), "dims": dims}


def _described(error: ReleaseError) -> dict[str, str]:
    return {
        "kind": type(error).__name__,
        "what": error.what,
        "where": error.where,
        "why": error.why,
        "next": error.next,
    }


def _refusal(error: Exception) -> dict[str, str]:
    return {"kind": type(error).__name__, "what": str(error) or type(error).__name__}


def _id(header: Mapping[str, Any]) -> object:
    number = header.get("id")
    return number if isinstance(number, (int, str)) else None


def _streams() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output, for frames only: other output, also that of native code, goes to standard error."""
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if sys.platform == "win32":
        import msvcrt

        for number in (requests, answers):
            msvcrt.setmode(number, os.O_BINARY)
    return os.fdopen(requests, "rb"), os.fdopen(answers, "wb")


if __name__ == "__main__":
    sys.exit(main())
