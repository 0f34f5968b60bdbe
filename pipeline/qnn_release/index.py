"""release.json as typed values: which files there are, which targets they are for, and how inputs are padded.

docs/releases.md describes the file.

Reads parsed JSON field by field. A value that is not as it should be is an error that names its field.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError

NAME = "release.json"
UNLISTED = (NAME, "provenance.json", "release.dsse.json")  # `files` can't list them: they hold release.json's digest
SCHEMA_VERSION = 1
PACKINGS = ("separate", "buckets", "socs")
MAX_INDEX_BYTES = 64 << 20


@dataclass(frozen=True)
class File:
    """The digest and size that a file of the release had when it was packaged."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Target:
    """A SoC that contexts are for. `vtcm_mb` is None if the compiler chose it.

    `minimum_driver_sdk` is the oldest QAIRT version, such as `2.51`, whose driver loads the contexts, "" if that is
    unknown. `options` are provider options to run the contexts with.
    """

    name: str
    soc_model: int
    htp_arch: int
    vtcm_mb: int | None
    minimum_driver_sdk: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dim:
    """A dim: a fixed `size`, or `(times * length + offset) // per` for a length of `axis`; unknown if both are None."""

    size: int | None = None
    axis: str | None = None
    times: int = 1
    per: int = 1
    offset: int = 0

    def at(self, lengths: Mapping[str, int]) -> int | None:
        """The dim's size for these lengths of the axes; None if it is unknown."""
        if self.axis is None:
            return self.size
        return max(0, (self.times * lengths[self.axis] + self.offset) // self.per)

    def length(self, size: int) -> int | None:
        """The length of the axis that gives this size; None if none does."""
        length, rest = divmod(size - self.offset, self.times)
        return None if rest or self.per != 1 else length


@dataclass(frozen=True)
class Tensor:
    """An input or an output. An input is padded with `padding`; if it holds ids, `range` is the least and the most.

    Of an input of floats, `seen` is the least and the most that the build saw, and `takes_nan` says whether the model
    replaces a NaN itself; both are None in a release of before they were written.
    """

    name: str
    dtype: np.dtype[np.generic]
    dims: tuple[Dim, ...]
    padding: float = 0
    range: tuple[int, int] | None = None
    seen: tuple[float, float] | None = None
    takes_nan: bool | None = None


@dataclass(frozen=True, eq=False)
class Constant:
    """An input of the original that always has one value in the release: `value`, with the input's type and shape."""

    name: str
    value: NDArray[Any]


@dataclass(frozen=True)
class Context:
    """A context model and its binaries, as paths in the release.

    `packing` says what shares a binary. `compatibility` is the string by which the EP tells whether it can load it.
    """

    model: str
    binaries: tuple[str, ...]
    packing: str
    compatibility: str


@dataclass(frozen=True)
class Qdq:
    """A QDQ model and the files that it reads, as paths in the release."""

    model: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Bucket:
    """The models for one length of each axis. `contexts` has one for each target, by the target's name."""

    axes: Mapping[str, int]
    contexts: Mapping[str, Context]
    qdq: Qdq | None


@dataclass(frozen=True)
class Component:
    """One model of the release, in buckets from the smallest on."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    buckets: tuple[Bucket, ...]
    constants: tuple[Constant, ...] = ()

    @property
    def limits(self) -> Mapping[str, int]:
        """The axes of the largest bucket."""
        return self.buckets[-1].axes


@dataclass(frozen=True)
class Index:
    """The parts of release.json that a runtime needs. `digest` is the SHA-256 of the file itself."""

    digest: str
    model: str
    version: str
    files: Mapping[str, File] = field(repr=False)
    targets: tuple[Target, ...]
    components: Mapping[str, Component]

    @classmethod
    def parse(cls, text: bytes) -> Index:
        """The index in the bytes of a release.json; raises FormatError for anything that a release would not say."""
        root = Field(_json(text))
        version = root.get("schema_version")
        if version.integer(1) > SCHEMA_VERSION:
            raise FormatError(
                f"the release is of a later form than this runtime knows: {version.value}",
                where=version.at,
                why=f"the runtime knows form {SCHEMA_VERSION}",
                next="use a newer runtime, of the version that packaged the release",
            )
        files = {
            Field(path, f"files.{path}").path(): File(entry.get("sha256").sha256(), entry.get("bytes").integer(0))
            for path, entry in root.get("files").members()
        }
        targets = tuple(map(_target, root.get("targets").items()))
        names = {target.name for target in targets}
        components = {name: _component(name, entry, files, names) for name, entry in root.get("components").members()}
        digest = hashlib.sha256(text).hexdigest()
        return cls(digest, root.get("model").text(), root.get("version").text(), files, targets, components)


def _json(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            "release.json can't be read",
            where=NAME,
            why=f"{type(error).__name__}: {error}",
            next="get the release again",
        ) from error


def _target(entry: Field) -> Target:
    vtcm, sdk, options = entry.get("vtcm_mb"), entry.get("minimum_driver_sdk"), entry.get("runtime_options")
    return Target(
        entry.get("name").text(),
        entry.get("soc_model").integer(0),
        entry.get("htp_arch").integer(0),
        None if vtcm.value is None else vtcm.integer(0),
        "" if sdk.value is None else sdk.text(),
        {} if options.value is None else {name: value.text() for name, value in options.members()},
    )


def _component(name: str, entry: Field, files: Mapping[str, File], targets: set[str]) -> Component:
    buckets = tuple(_bucket(bucket, files, targets) for bucket in entry.get("buckets").items())
    if not buckets:
        raise entry.get("buckets").wrong("one bucket or more")
    axes = set(buckets[0].axes)
    if any(set(bucket.axes) != axes for bucket in buckets):
        raise entry.get("buckets").wrong("the same axes in every bucket")
    inputs = tuple(_tensor(given, axes) for given in entry.get("inputs").items())
    outputs = tuple(_tensor(made, axes) for made in entry.get("outputs").items())
    for given, tensor in zip(entry.get("inputs").items(), inputs):
        if any(dim.size is None and dim.axis is None for dim in tensor.dims):
            raise given.get("dims").wrong("a size or an axis for every dim of an input")
    told = {dim.axis for tensor in inputs for dim in tensor.dims if dim.per == 1}
    if silent := sorted(axes - told):
        raise entry.get("inputs").wrong(f"an input that tells the length of axis {silent[0]}")
    ordered = sorted(buckets, key=lambda bucket: math.prod(bucket.axes.values()))  # stable: of equals, the first
    fixed = entry.get("constants")
    constants = () if fixed.value is None else tuple(_constant(*each) for each in fixed.members())
    return Component(name, inputs, outputs, tuple(ordered), constants)


def _bucket(entry: Field, files: Mapping[str, File], targets: set[str]) -> Bucket:
    contexts = {}
    for target, context in entry.get("contexts").members():
        if target not in targets:
            raise context.wrong("a context for a target that 'targets' lists")
        contexts[target] = _context(context, files)
    qdq = entry.get("qdq")
    return Bucket(
        {axis: length.integer(1) for axis, length in entry.get("axes").members()},
        contexts,
        None if qdq.value is None else _qdq(qdq, files),
    )


def _context(entry: Field, files: Mapping[str, File]) -> Context:
    packing = entry.get("packing")
    if packing.value not in PACKINGS:
        raise packing.wrong(f"one of {', '.join(PACKINGS)}")
    compatibility = entry.get("compatibility").value
    return Context(
        _listed(entry.get("model"), files),
        tuple(_listed(binary, files) for binary in entry.get("binaries").items()),
        packing.text(),
        compatibility if isinstance(compatibility, str) else "",
    )


def _qdq(entry: Field, files: Mapping[str, File]) -> Qdq:
    return Qdq(_listed(entry.get("model"), files), tuple(_listed(file, files) for file in entry.get("files").items()))


def _listed(entry: Field, files: Mapping[str, File]) -> str:
    if entry.path() not in files:
        raise entry.wrong("a path that 'files' lists")
    return entry.path()


def _constant(name: str, entry: Field) -> Constant:
    kind = _dtype(entry.get("dtype"))
    shape = tuple(size.integer(0) for size in entry.get("shape").items())
    value = entry.get("value")
    try:
        return Constant(name, np.broadcast_to(np.array(value.value, kind), shape))
    except (ValueError, TypeError, OverflowError) as error:
        raise value.wrong(f"values of type {kind} that fill {list(shape)}") from error


def _dtype(entry: Field) -> np.dtype[np.generic]:
    try:
        kind = np.dtype(entry.text())
    except TypeError as error:
        raise entry.wrong("a type of numpy") from error
    if kind.kind not in "biuf":
        raise entry.wrong("a type of numbers")
    return kind


def _tensor(entry: Field, axes: set[str]) -> Tensor:
    kind = _dtype(entry.get("dtype"))
    padding = entry.get("padding")
    value = 0 if padding.value is None else padding.value
    if not isinstance(value, (int, float)) or not _exact(value, kind):
        raise padding.wrong(f"a number of type {kind}")
    dims = tuple(_dim(dim, axes) for dim in entry.get("dims").items())
    ids, seen, nan = _range(entry.get("range"), kind), _seen(entry.get("seen"), kind), entry.get("nan")
    if nan.value is not None and not isinstance(nan.value, bool):
        raise nan.wrong("true or false")
    return Tensor(entry.get("name").text(), kind, dims, value, ids, seen, nan.value)


def _seen(entry: Field, kind: np.dtype[np.generic]) -> tuple[float, float] | None:
    """The least and the largest value that the build saw of an input of floats; None if none is given."""
    if entry.value is None:
        return None
    ends = [end.value for end in entry.items()]
    numbers = [float(end) for end in ends if isinstance(end, (int, float)) and math.isfinite(end)]
    if kind.kind != "f" or len(numbers) != 2 or len(ends) != 2 or numbers[0] > numbers[1]:
        raise entry.wrong("the least and the most of an input of floats")
    return numbers[0], numbers[1]


def _range(entry: Field, kind: np.dtype[np.generic]) -> tuple[int, int] | None:
    """The least and the largest value that an input of integers may have; None if no range is given."""
    if entry.value is None:
        return None
    ends = [end.integer(-(1 << 63)) for end in entry.items()]
    if kind.kind not in "iu" or len(ends) != 2 or ends[0] > ends[1]:
        raise entry.wrong("the least and the most of an input of integers")
    return ends[0], ends[1]


def _exact(value: float, dtype: np.dtype[np.generic]) -> bool:
    if not math.isfinite(value):
        return False
    bits = 8 * dtype.itemsize
    least, most = {"b": (0, 1), "u": (0, 2**bits - 1), "i": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)}.get(
        dtype.kind, (-math.inf, math.inf)
    )
    return least <= value <= most and (dtype.kind == "f" or value == int(value))


def _dim(entry: Field, axes: set[str]) -> Dim:
    if isinstance(entry.value, int):
        return Dim(size=entry.integer(0))
    if isinstance(entry.value, str):
        return Dim(axis=_axis(entry, axes))
    if entry.get("unknown").value is True:
        return Dim()
    if entry.get("size").value is not None:
        return Dim(size=entry.get("size").integer(0))
    return Dim(
        axis=_axis(entry.get("axis"), axes),
        times=entry.get("times").integer(1, 1),
        per=entry.get("per").integer(1, 1),
        offset=entry.get("offset").integer(-(1 << 31), 0),
    )


def _axis(entry: Field, axes: set[str]) -> str:
    if entry.text() not in axes:
        raise entry.wrong("an axis of the component's buckets")
    return entry.text()


_SHA256 = re.compile(r"[0-9a-f]{64}")
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\\:]")  # a backslash or a colon leads elsewhere on Windows
_DEVICE = re.compile(
    r"(?:con|prn|aux|nul|com[0-9\u00b9\u00b2\u00b3]|lpt[0-9\u00b9\u00b2\u00b3])(?:[ .].*)?", re.IGNORECASE
)
"""Names of devices on Windows, in whatever folder: https://learn.microsoft.com/windows/win32/fileio/naming-a-file."""


@dataclass(frozen=True)
class Field:
    """A value of release.json, and its path there, such as `components.encoder.buckets[0]`.

    Methods that read the value as a type raise FormatError if it is of another one.
    """

    value: object
    at: str = ""

    def get(self, name: str) -> Field:
        """A member of an object; a Field with the value None if there is no such member."""
        value = self._mapping().get(name)
        return Field(value, f"{self.at}.{name}" if self.at else name)

    def members(self) -> Iterator[tuple[str, Field]]:
        """The members of an object."""
        for name in self._mapping():
            yield name, self.get(name)

    def items(self) -> Iterator[Field]:
        """The items of a list."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        for number, value in enumerate(self.value):
            yield Field(value, f"{self.at}[{number}]")

    def text(self) -> str:
        """A text that is not empty."""
        if not isinstance(self.value, str) or not self.value:
            raise self.wrong("a text")
        return self.value

    def integer(self, least: int, default: int | None = None) -> int:
        """A whole number, `least` or more; `default` if the value is None and a default is given."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < least:
            raise self.wrong(f"a whole number from {least} on")
        return self.value

    def sha256(self) -> str:
        """A SHA-256 in hexadecimal."""
        if not isinstance(self.value, str) or not _SHA256.fullmatch(self.value):
            raise self.wrong("a SHA-256")
        return self.value

    def path(self) -> str:
        """A path inside the release."""
        if not is_inside(self.text()):
            raise self.wrong("a path inside the release")
        return self.text()

    def wrong(self, wanted: str) -> FormatError:
        """The error for a value that is not what is `wanted`."""
        given = repr(self.value)
        shown = given if len(given) <= 60 else f"{given[:57]}..."
        return FormatError(
            "release.json is not as a release's should be",
            where=self.at or "release.json",
            why=f"{wanted} is needed here, not {'nothing' if self.value is None else shown}",
            next="get the release again, or a runtime of its version",
        )

    def _mapping(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return self.value


def is_inside(path: str) -> bool:
    """Whether a relative POSIX path stays in the folder that it is joined to, on every platform."""
    parts = path.split("/")
    odd = any(part.rstrip(" .") == "" or _DEVICE.fullmatch(part) for part in parts)
    return not odd and not _NOT_IN_PATHS.search(path)
