"""A headless Chromium, driven over a pipe in its own protocol (https://chromedevtools.github.io/devtools-protocol/)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_TIMEOUT_S = 60


def found() -> str | None:
    """The Chromium that is installed, None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a Chromium of its own, which ends with the block that it is used in.

    `told` has what its console said and what went wrong in it, `asked` every address that the page asked for.
    """

    def __init__(self, profile: Path, *, width: int = 1280, dark: bool = False) -> None:
        program = found()
        assert program is not None
        to_us, from_us = os.pipe(), os.pipe()
        self._read, self._write = to_us[0], from_us[1]
        theirs = (from_us[0], to_us[1])  # it reads from 3 and writes to 4
        script = f'exec 3<&{theirs[0]} 4>&{theirs[1]}; exec "$0" "$@"'
        options = [
            "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run",
            "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage",
        ]  # fmt: skip
        if os.name == "posix" and os.geteuid() == 0:
            options.append("--no-sandbox")  # as root there is none
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *options, "about:blank"],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in theirs:
            os.close(end)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.told: list[str] = []
        self.asked: list[str] = []
        self._loaded = False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = str(self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "Accessibility"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._write)  # it ends with its pipe
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self._loaded = False
        self._call("Page.navigate", url=path.as_uri())
        until = time.monotonic() + _TIMEOUT_S
        while not self._loaded and time.monotonic() < until:
            self._take()

    def value(self, expression: str) -> Any:
        """What JavaScript of ours computes in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, selector: str, number: int = 0) -> None:
        """Click with the mouse in the middle of an element."""
        box = self.value(
            f"(() => {{ const each = document.querySelectorAll({json.dumps(selector)})[{number}];"
            " each.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const box = each.getBoundingClientRect();"
            " return [box.x + Math.min(box.width, 60) / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call(
                "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", buttons=1, clickCount=1
            )

    def press(self, key: str) -> None:
        """Press and release a key by its name, such as `Tab` or `Enter`."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            given = text if kind == "keyDown" else {}
            self._call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **given
            )

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < until:
            answer = self._take()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
        raise AssertionError(f"{method} was not answered")

    def _take(self) -> dict[str, Any]:
        """The next message; events are noted."""
        while b"\0" not in self._buffer:
            data = os.read(self._read, 1 << 16)
            assert data, "the browser is gone"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, given: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.asked.append(given["request"]["url"])
        elif event == "Log.entryAdded":
            self.told.append(given["entry"]["text"])
        elif event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.told.append(json.dumps(given))
