"""The description that a device gives of itself, and the run times of a release's contexts on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class DeviceLook(Contract):
    """The description of a host, as :func:`qnn_release.measure.look` says.

    `device` is "" if nothing there can run a context, and `why` is the reason. `sizes` has the bytes of the files in
    our folder there.
    """

    device: Literal["npu", "emulator", ""]
    why: str
    system: str
    python: str
    tools: Mapping[str, str]
    power: str
    plan: str
    sizes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class DeviceAnswer(Contract):
    """The answer about one context, by its number in the request: times and outputs, or why there are none.

    `outputs` has for each sample the names in the result's file of the arrays of its outputs; `sha256` is the digest of
    that file. The times are as in :class:`MeasuredContext`. `not_run` is the reason if the host can't run it, `failed`
    the error if it could not be loaded or run.
    """

    context: int
    outputs: tuple[Mapping[str, str], ...] = ()
    sha256: str = ""
    load_s: float = 0.0
    first_ms: float = 0.0
    median_ms: float = 0.0
    p90_ms: float = 0.0
    runs: int = 0
    not_run: str | None = left_out()
    failed: str | None = left_out()


@dataclass(frozen=True, kw_only=True)
class MeasuredContext(Contract):
    """How long a context took, and the SHA-256 of its files by their names.

    `load_s` is how long the first session of a new process takes to open, `first_ms` its first run. `median_ms` and
    `p90_ms`, the 90th percentile, are of the `runs` after it, one after the other.
    """

    component: str
    axes: Mapping[str, int]
    target: str
    files: Mapping[str, str]
    load_s: float
    first_ms: float
    median_ms: float
    p90_ms: float
    runs: int


@dataclass(frozen=True, kw_only=True)
class MeasuredOn(Contract):
    """A device by the name that the user gave it, what it is, and what was measured there.

    `device` says whether an NPU or QNN's emulator ran. `performance_mode` is what was asked of the NPU, `default` if
    nothing was. `power` and `plan` are what the system says of its power supply and its power plan, "" if it says
    nothing.
    """

    name: str
    device: Literal["npu", "emulator"]
    system: str
    tools: Mapping[str, str]
    performance_mode: Mapping[str, str]
    power: str
    plan: str
    contexts: tuple[MeasuredContext, ...]
