"""The driver rule: the SDK that a context was compiled with must not be newer than the driver of the device.

Qualcomm's maintainers state it for context binaries (https://github.com/qualcomm/ai-hub-apps/issues/148: "your QAIRT
version for running is at least as high as the model assets"), and reports of devices agree. A context says which SDK
made it (`ep_sdk_version`); nothing tells of the driver without a session on the device
(https://github.com/microsoft/onnxruntime/issues/26687), so it has to be given: `driver_sdk` of a target. Qualcomm means
its NPU driver for Windows to take older and newer SDKs
(https://docs.qualcomm.com/bundle/publicresource/80-63442-10/topics/htp_hexagon_npu_runtime_driver.md); what was seen of
newer ones is below.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.qnn.versions import newer, numbers

RULE = "a driver does not load what a newer QAIRT made: the process on the device ends, mostly without a message"
"""The rule, for messages."""


@dataclass(frozen=True)
class Observation:
    """What was seen of an SDK on a driver; `works` False: with what it failed is in `what`."""

    driver: str
    sdk: str
    works: bool
    what: str
    source: str


# An account of ten attempts on a Snapdragon X (X1-26-100) under Windows 11, by what was installed, with QAIRT 2.40.0.
_ACCOUNT = "the public notes 'ONNX → QNN (Qualcomm NPU): Why It Doesn't Just Work'"

OBSERVATIONS: tuple[Observation, ...] = (
    Observation("2.40", "2.38", True, "onnxruntime-qnn 1.23.0 to 1.23.2 run", _ACCOUNT),
    Observation("2.40", "2.42", False, "onnxruntime-qnn 1.24.1 ends its process with exit status 127", _ACCOUNT),
    Observation("2.40", "2.34", False, "onnxruntime-qnn 1.22.0 loads and fails with error 1002", _ACCOUNT),
    Observation(
        "2.39",
        "2.41",
        False,
        "LiteRT refuses a context of build v2.41 under v2.39",
        "https://github.com/google-ai-edge/LiteRT/pull/3564",
    ),
    Observation(
        "unknown",
        "unknown",
        False,
        "a context of onnxruntime 1.23.3 gives error 5000 under onnxruntime-qnn 1.23.2",
        "https://github.com/microsoft/winml-cli/issues/217",
    ),
)
"""Public reports of pairs that work and pairs that don't."""


@dataclass(frozen=True)
class DriverRelease:
    """A release of onnxruntime-qnn with the QAIRT in it, and the onnxruntime that it was built and tested with."""

    ep: str
    sdk: str
    onnxruntime: str
    source: str


_REPO = "https://github.com/onnxruntime/onnxruntime-qnn/"

RELEASES: tuple[DriverRelease, ...] = (
    DriverRelease("2.7.0", "2.51.0", "1.31.1", "the installed wheel; every test of this project runs it"),
    DriverRelease("2.3.0", "2.47.0", "1.24.4", f"{_REPO}blob/main/docs/execution_providers/QNN-ExecutionProvider.md"),
    DriverRelease("2.2.0", "2.45.40", "1.24.4", f"{_REPO}pull/238"),
    DriverRelease("2.1.0", "2.45.40", "1.24.4", f"{_REPO}pull/226"),
)
"""Plugin releases of which the SDK is known, newest first. The 1.x packages replace onnxruntime and can't be used."""


def refuses(sdk: str, driver: str) -> bool:
    """Whether a driver does not take what an SDK made."""
    return newer(sdk, driver)


def is_stale(sdk: str, driver: str) -> Observation | None:
    """A report of an SDK that was too old for a driver, if it is about a driver and an SDK such as these."""
    for seen in OBSERVATIONS:
        old = not seen.works and newer(seen.driver, seen.sdk)  # not so where either is unknown
        if old and not newer(seen.driver, driver) and not newer(sdk, seen.sdk):
            return seen
    return None


def release_for(driver: str) -> DriverRelease | None:
    """The newest release that a driver takes, among those that are known."""
    return next((release for release in RELEASES if not newer(release.sdk, driver)), None)


def remedy(sdk: str, driver: str) -> str:
    """What to do about an SDK that is newer than a driver."""
    update = f"update the device's NPU driver to QAIRT {_short(sdk)} or newer and correct driver_sdk"
    older = release_for(driver)
    if older is None:
        return f"{update}; no release of onnxruntime-qnn 2.x is known to have a QAIRT as old as {driver}"
    pins = f"onnxruntime-qnn=={older.ep} (QAIRT {older.sdk}) and onnxruntime=={older.onnxruntime}"
    return f"{update}; or pin {pins} in pyproject.toml, a pair that is not tested here"


def _short(version: str) -> str:
    return ".".join(map(str, numbers(version)[:2]))
