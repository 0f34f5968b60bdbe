"""Runs a release in another process: one file for any Python from 3.8 on, with numpy or without.

On Windows on Snapdragon an application may be x86 Python, while QNN needs ARM64. Copy this file into the application:

    from client import Client

    with Client(["C:/python-arm64/python.exe", "-m", "qnn_release.serve", "minilm-1.0.qnn.zip"]) as client:
        outputs = client.run("encoder", {"input_ids": ids, "attention_mask": mask})

Arrays are numpy's. Without numpy, an input is any object with the buffer protocol whose format and shape are right, and
an output is a memoryview with its format and shape; without elements, or of float16, it is a memoryview of bytes.

Below are the errors; Client, all that an application uses; _Server, one process behind it; and the functions for frames
and their arrays, which the server (serve.py) uses, too.

The protocol, on the server's standard input and output; its standard error is a log. Both sides send frames:

    4 bytes   "QNR1"
    4 bytes   length of the header, little-endian, at most MAX_HEADER_BYTES
    8 bytes   length of the body, little-endian
    header    JSON in UTF-8: {"id": 7, "arrays": [{"name": "x", "dtype": "int64", "shape": [1, 12]}], ...}
    body      the arrays' elements, in C order and little-endian, one array after the other, without gaps

The server's first frame is {"hello": 1, "max_bytes", "components", ...} or an error. A request has an "id" of
the client's choice and "call": "run" (with "component"), "load" or "report". The answer has the same id and "arrays",
"report", or "error": {"kind", "what", "where", "why", "next"}. Requests are answered one after the other. Bytes that
are no frame can't be skipped: who reads them ends the connection. The server ends when its standard input does.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import math
import queue
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

try:
    import numpy

    np: Any = numpy
except ImportError:  # then arrays are memoryviews
    np = None

PROTOCOL = 1
MAX_HEADER_BYTES = 1 << 20
MAX_BODY_BYTES = 1 << 30

FORMATS = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I",
    "int64": "q", "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip
"""The types that arrays may have, with their formats as in :mod:`struct`."""

_MAGIC = b"QNR1"
_PREFIX = struct.Struct("<4sIQ")
_ITEM_BYTES = {dtype: struct.calcsize("=" + form) for dtype, form in FORMATS.items()}
_MAX_RANK = 32
_LOG_LINES = 200
_SHOWN_LINES = 30
_LOG_LINE_BYTES = 8192
_END_S = 5.0
"""Seconds that a server is given to end by itself, and its log to be read."""
_NO_WINDOW: int = getattr(subprocess, "CREATE_NO_WINDOW", 0)
"""For Windows, where the server of an application without a console would open a console window."""


class ClientError(Exception):
    """A call to the server failed. `log` is the end of the server's log, where that may tell why."""

    def __init__(self, what: str, log: Sequence[str] = ()) -> None:
        super().__init__("\n".join([what, *("  | " + line for line in log)]))
        self.log = list(log)


class ServerDiedError(ClientError):
    """The server ended, or could not be started."""


class CallTimeoutError(ClientError):
    """The server did not answer in time. It may be slow, or hang; :meth:`Client.restart` ends it."""


class FrameError(ClientError):
    """Bytes that were sent or received are no frame of the protocol; the connection can't be used any more."""


class ArraysError(ClientError):
    """Arrays can't be sent or read; the connection can still be used. `header` is the frame's, if it could be read."""

    def __init__(self, what: str, header: Mapping[str, Any] | None = None) -> None:
        super().__init__(what)
        self.header = header or {}


class RemoteError(ClientError):
    """The server refused a call: `kind` is the class of its error (InputError, ...), `next` what to do about it."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        labels = ("where", "why", "next")
        lines = [f"  {label}: {error[label]}" for label in labels if error.get(label)]
        super().__init__("\n".join([str(error.get("what", "")), *lines]))
        self.kind, self.what, self.where, self.why, self.next = (
            str(error.get(key, "")) for key in ("kind", "what", *labels)
        )


class Client:
    """A server that this process starts, and calls to it. Calls may come from several threads."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout_s: float | None = None,
        start_timeout_s: float = 120.0,
        recover: bool = False,
        env: Mapping[str, str] | None = None,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """Start the server by its command line, and wait until it has opened the release.

        `timeout_s` limits every call, `start_timeout_s` each start, and `max_bytes` the body of a frame. With
        `recover`, a server that died is started again and the call that failed by it is made once more, which is right
        because calls change nothing; a server that let a call time out is ended.

        Raises:
            RemoteError: the server can't open the release.
            ServerDiedError, CallTimeoutError, FrameError: it did not start.
        """
        self._start: Callable[[], _Server] = lambda: _Server(list(command), env, max_bytes, start_timeout_s)
        self._timeout_s = timeout_s
        self._recover = recover
        self._lock = threading.Lock()
        self._closed = False
        self._server = self._start()

    @property
    def hello(self) -> Mapping[str, Any]:
        """What the server said when it was ready: model, version, target, pid, and components with their inputs."""
        return self._server.hello

    @property
    def log(self) -> list[str]:
        """The last lines of the server's log."""
        return list(self._server.lines)

    def run(self, component: str, inputs: Mapping[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """Run a component; its outputs by name. The arrays must not change until it returns.

        Raises:
            RemoteError: the server refused it, or it failed there.
            ServerDiedError: the server ended meanwhile, or had ended before.
            CallTimeoutError: the server did not answer in time.
            FrameError: the server sent bytes that are no frame.
            ArraysError: an input can't be sent.
        """
        return self._call({"call": "run", "component": component}, inputs, timeout_s)[1]

    def load(self, component: str | None = None, *, timeout_s: float | None = None) -> None:
        """Make the sessions of a component, or of all, now; raises what :meth:`run` raises."""
        self._call({"call": "load", "component": component}, {}, timeout_s)

    def report(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """What the server's release did so far, and why: `Report.as_dict()` there. Raises what :meth:`run` raises."""
        report: dict[str, Any] = self._call({"call": "report"}, {}, timeout_s)[0]["report"]
        return report

    def restart(self) -> None:
        """End the server, if it runs, and start another; raises what the constructor raises."""
        with self._lock:
            self._closed = False
            self._server.end()
            self._server = self._start()

    def close(self) -> None:
        """End the server. Calls that still wait fail."""
        with self._lock:
            self._closed = True
            self._server.end(gently=True)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self, request: Mapping[str, Any], inputs: Mapping[str, Any], timeout_s: float | None
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        listed, buffers = encode(inputs)
        for once_more in (self._recover, False):
            server = self._live()
            try:
                header, arrays = server.call(dict(request, arrays=listed), buffers, wait_s)
                break
            except CallTimeoutError:
                if self._recover:
                    server.end()
                raise
            except (ServerDiedError, FrameError):
                if self._closed or not once_more:
                    raise
        if "error" in header:
            raise RemoteError(header["error"])
        return header, arrays

    def _live(self) -> _Server:
        """The server; with `recover`, a new one if the last died."""
        with self._lock:
            if self._closed:
                raise ClientError("the client is closed")
            if self._recover and self._server.failure is not None:
                self._server.end()
                self._server = self._start()
            return self._server


class _Server:
    """One server process, from its start to its end. A client that recovers makes another one.

    Its input, its output and its log each have a thread here, so that none blocks another. A call leaves a future under
    the number of its request, hands the frame to the writer, and waits; the reader fills the future in. When the output
    ends, the reader says why in `failure`, and everyone who waits gets that.
    """

    def __init__(self, command: list[str], env: Any, max_bytes: int, start_timeout_s: float) -> None:
        self.failure: ClientError | None = None
        self.lines: collections.deque[str] = collections.deque(maxlen=_LOG_LINES)
        self._max_bytes = max_bytes
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        hello: Future[Any] = Future()
        self._waiting: dict[Any, Future[Any]] = {None: hello}  # the first frame answers no request
        self._frames: queue.SimpleQueue[Any] = queue.SimpleQueue()
        pipe = subprocess.PIPE
        try:
            self.process: Any = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, creationflags=_NO_WINDOW
            )
        except OSError as error:
            raise ServerDiedError(f"the server can't be started: {error}") from error
        self._log_thread = self._thread(self._read_log)
        self._thread(self._read)
        self._thread(self._write)
        self.hello: dict[str, Any] = {}
        try:
            try:
                self.hello = self._answer(None, hello, start_timeout_s)[0]
            except CallTimeoutError:
                raise CallTimeoutError(
                    f"the server did not open the release within {start_timeout_s:g} s (start_timeout_s)",
                    list(self.lines)[-_SHOWN_LINES:],
                ) from None
            if "error" in self.hello:
                raise RemoteError(self.hello["error"])
            if self.hello.get("hello") != PROTOCOL:
                raise FrameError(f"the server speaks another protocol: {self.hello.get('hello')!r}")
        except BaseException:
            self.end()
            raise

    def call(self, request: dict[str, Any], buffers: Sequence[memoryview], wait_s: float | None) -> Any:
        """Send a request and wait for its answer: the header and the arrays."""
        number = next(self._ids)
        answer: Future[Any] = Future()
        frame = encode_frame(dict(request, id=number), buffers, self.hello.get("max_bytes", MAX_BODY_BYTES))
        with self._lock:
            if self.failure is not None:
                raise self.failure
            self._waiting[number] = answer
        self._frames.put(frame)
        return self._answer(number, answer, wait_s)

    def end(self, gently: bool = False) -> None:
        """End the process. With `gently`, its input ends first, and it has some seconds to end by itself."""
        self._frames.put(None)
        if gently:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_S)
        self.process.kill()
        self.process.wait()

    @staticmethod
    def _thread(work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def _answer(self, number: Any, answer: Future[Any], wait_s: float | None) -> Any:
        try:
            return answer.result(wait_s)
        except FutureTimeoutError:
            with self._lock:
                self._waiting.pop(number, None)
            raise CallTimeoutError(f"the server did not answer within {wait_s:g} s") from None

    def _write(self) -> None:
        """Write frames, each a list of pieces, until a None in their place says that there are no more."""
        stdin = self.process.stdin
        with contextlib.suppress(OSError, ValueError):  # it died: the reader notices too, and tells
            for frame in iter(self._frames.get, None):
                for part in frame:
                    stdin.write(part)
                stdin.flush()
        with contextlib.suppress(OSError, ValueError):
            stdin.close()

    def _read(self) -> None:
        """Hand answers to those who wait for them, until the output ends."""
        stdout = self.process.stdout
        wrong = ""
        try:
            for header, arrays in iter(lambda: read_frame(stdout, self._max_bytes), None):
                with self._lock:
                    answer = self._waiting.pop(header.get("id"), None)
                if answer is not None:  # else nobody waits for it any more
                    answer.set_result((header, arrays))
        except EOFError:  # it died while it wrote
            pass
        except (ClientError, OSError, ValueError, TypeError) as error:
            wrong = f"the server sent what is no frame: {error}"
        self._fail(wrong)
        stdout.close()

    def _fail(self, wrong: str) -> None:
        """End the server, from which nothing more comes, and give everyone who waits the error."""
        try:
            status = self.process.wait(0 if wrong else _END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._log_thread.join(_END_S)
        log = list(self.lines)[-_SHOWN_LINES:]
        ended = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        with self._lock:
            self.failure = FrameError(wrong, log) if wrong else ServerDiedError(f"the server ended, {ended}", log)
            waiting, self._waiting = self._waiting, {}
        self._frames.put(None)
        for answer in waiting.values():
            answer.set_exception(self.failure)

    def _read_log(self) -> None:
        """Keep the last lines of the log."""
        stderr = self.process.stderr
        with contextlib.suppress(OSError, ValueError):
            for line in iter(lambda: stderr.readline(_LOG_LINE_BYTES), b""):
                self.lines.append(line.decode("utf-8", "replace").rstrip("\r\n"))
        stderr.close()


def encode(arrays: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[memoryview]]:
    """The entry of each array under `arrays` of a header, and its bytes; raises ArraysError if one can't be sent."""
    listed, buffers = [], []
    for name, array in arrays.items():
        try:
            dtype, shape, data = _from_numpy(array) if np is not None else _from_buffer(array)
        except (TypeError, ValueError) as error:
            raise ArraysError(f"{name} can't be sent: {error}") from error
        listed.append({"name": name, "dtype": dtype, "shape": shape})
        buffers.append(data)
    return listed, buffers


def encode_frame(header: Mapping[str, Any], buffers: Sequence[memoryview], max_bytes: int) -> list[Any]:
    """A frame as pieces to be written one after the other; raises ArraysError if it would be too large."""
    text, body = json.dumps(header).encode(), sum(data.nbytes for data in buffers)
    if len(text) > MAX_HEADER_BYTES or body > max_bytes:
        raise ArraysError(
            f"a frame would have {len(text)} + {body} bytes; {MAX_HEADER_BYTES} + {max_bytes} are the most"
        )
    return [_PREFIX.pack(_MAGIC, len(text), body) + text, *buffers]


def read_frame(stream: Any, max_bytes: int = MAX_BODY_BYTES) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The next frame's header and arrays; None at the end of the stream.

    Raises:
        FrameError: the next bytes are no frame, or it is too large.
        EOFError: the stream ends in the middle of a frame.
        ArraysError: the frame is well-formed, and was read to its end, but its arrays can't be read.
    """
    prefix = stream.read(_PREFIX.size)
    if not prefix:
        return None
    if not _MAGIC.startswith(prefix[:4]):
        raise FrameError(f"it begins with {prefix!r}")
    if len(prefix) < _PREFIX.size:
        raise EOFError("the stream ends in the middle of a frame")
    _, header_bytes, body_bytes = _PREFIX.unpack(prefix)
    if header_bytes > MAX_HEADER_BYTES or body_bytes > max_bytes:
        raise FrameError(f"it has {header_bytes} + {body_bytes} bytes; {MAX_HEADER_BYTES} + {max_bytes} are the most")
    text = _read_exactly(stream, header_bytes)
    header: dict[str, Any] = {}
    try:
        parsed = json.loads(text.decode())
        if not isinstance(parsed, dict):
            raise ValueError("it is no object")
        header = parsed
        listed = {str(entry["name"]): (entry["dtype"], _shape(entry)) for entry in header.get("arrays", ())}
        sizes = {name: _ITEM_BYTES[dtype] * math.prod(shape) for name, (dtype, shape) in listed.items()}
        if sum(sizes.values()) != body_bytes or len(listed) != len(header.get("arrays", ())):
            raise ValueError(f"the arrays have {sum(sizes.values())} bytes, the body has {body_bytes}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        for start in range(0, body_bytes, 1 << 20):
            _read_exactly(stream, min(1 << 20, body_bytes - start))
        raise ArraysError(f"the header is not as it should be: {error!r}"[:500], header) from error
    return header, {name: _to_array(*listed[name], _read_exactly(stream, size)) for name, size in sizes.items()}


def _shape(entry: Mapping[str, Any]) -> list[int]:
    shape = entry["shape"]
    if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"shape {shape!r}"[:200])
    return shape


def _read_exactly(stream: Any, count: int) -> bytearray:
    buffer, done = bytearray(count), 0
    view = memoryview(buffer)
    while done < count:
        read = stream.readinto(view[done:])
        if not read:
            raise EOFError("the stream ends in the middle of a frame")
        done += read
    return buffer


def _to_array(dtype: str, shape: list[int], data: bytearray) -> Any:
    if np is not None:
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    if dtype == "float16" or math.prod(shape) == 0:
        return memoryview(data)
    form: Any = FORMATS[dtype]
    return memoryview(data).cast(form, shape)


def _from_numpy(array: Any) -> tuple[str, list[int], memoryview]:
    value = np.asarray(array)
    if value.dtype.name not in FORMATS:
        raise TypeError(f"its type is {value.dtype}")
    data = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return value.dtype.name, list(value.shape), memoryview(data.reshape(-1).view("u1").data)


def _from_buffer(array: Any) -> tuple[str, list[int], memoryview]:
    view = memoryview(array)
    dtypes = [dtype for dtype, form in FORMATS.items() if form == view.format.lstrip("@=<")]
    if not dtypes or not view.c_contiguous:
        raise TypeError(f"its format is {view.format!r}; formats are {', '.join(FORMATS.values())}")
    return dtypes[0], list(view.shape or ()), view.cast("B")
