"""Writes and reads a calibration set on disk: the output of the samples step, which calibrate and verify read.

``samples.json`` lists the samples, each with the calls it made; ``<component>/<00000>.npz`` holds a call's arrays,
unpadded. The bytes depend on the content alone.
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.measures import Buckets
from pipeline.contracts.values import TensorSpec
from pipeline.errors import CalibrationError
from pipeline.graph.shapes.buckets import axis_lengths, fits_no_bucket, smallest_bucket
from pipeline.inputs.samples.request import Call, Sample

INDEX = "samples.json"
_REFUSED = "refused"


class SampleSetWriter:
    """Writes calls as they come, so that a set need not fit into memory. Call :meth:`finish` at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: dict[str, int] = {}
        self._samples: dict[int, tuple[Sample, list[str]]] = {}
        self._refused: dict[str, CalibrationError] = {}

    @property
    def refused(self) -> Mapping[str, CalibrationError]:
        """The first reason why the samples of a component can't be used, by component."""
        return self._refused

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of calls by component."""
        return self._counts

    @property
    def samples(self) -> list[Sample]:
        """The samples so far."""
        return [sample for sample, _ in self._samples.values()]

    def add(self, call: Call) -> None:
        """Write one call, or note why its component can't use the sample."""
        if call.refused is not None:
            self._refused.setdefault(call.component, call.refused)
            return
        number = self._counts.get(call.component, 0)
        self._counts[call.component] = number + 1
        file = f"{call.component}/{number:05d}.npz"
        (self._folder / call.component).mkdir(parents=True, exist_ok=True)
        write_npz(self._folder / file, call.arrays)
        sample, files = self._samples.get(call.sample.index, (call.sample, []))
        if call.sample.cut:  # cut for one component, perhaps not for another
            sample = call.sample
        self._samples[call.sample.index] = (sample, [*files, file])

    def finish(self) -> None:
        """Write the index."""
        listed = [{**asdict(sample), "calls": files} for sample, files in self._samples.values()]
        index: dict[str, Any] = {"samples": listed}
        if self._refused:
            index[_REFUSED] = {
                component: {"what": error.what, "where": error.where, "why": error.why, "remedy": error.remedy}
                for component, error in sorted(self._refused.items())
            }
        text = json.dumps(index, ensure_ascii=False, indent=1)
        (self._folder / INDEX).write_text(text + "\n", "utf-8", newline="\n")


@dataclass(frozen=True)
class StoredCall:
    """A call on disk. `name` is its name in messages: ``texts.txt:3, call 2 of 5``. `place` is that in `_PARTS`."""

    name: str
    sample: Sample
    file: Path
    place: int

    @property
    def is_searched(self) -> bool:
        """Whether a search for the precision is judged on it, so that rounding in the search may not use it."""
        return self.place == _SEARCHED

    def load(self) -> dict[str, NDArray[Any]]:
        """The call's arrays by input, unpadded."""
        return load_npz(self.file)


_EVERY = 4
_SEARCHED = 3
_BY_LENGTH = " by length"
_PARTS = {
    "all": {0, 1, 2, 3}, "kept": {0, 2, 3}, "held out": {1},
    "calibrated": {0, 2}, "searched": {_SEARCHED}, "not searched": {0, 1, 2},
}  # fmt: skip
"""The parts of a set that serves several purposes. Samples are taken in fours; a part has those at these places.

Verification uses `held out`, calibration `kept`. A search for the precision is judged on `searched`, which neither
verification nor the search's own rounding uses: rounding uses `calibrated` or, if verification has samples from
elsewhere, `not searched`. With ` by length` after a name, each four have one shape, so that each length has samples in
every part; of two samples the second is held out.
"""


def stored_calls(folder: Path, component: str, part: str = "all") -> list[StoredCall]:
    """The calls of a component in the output of a samples step, in the order in which they were made.

    `part` is a key of `_PARTS`, maybe with ` by length` after it. `held out` may be empty; `searched` is the same as
    `calibrated` if the set is too small for it. Raises CalibrationError if a sample of the component can't be used.
    """
    kind, by_length = part.removesuffix(_BY_LENGTH), part.endswith(_BY_LENGTH)
    found = [call for call in _stored_calls(folder, component, by_length=by_length) if call.place in _PARTS[kind]]
    if found or kind != "searched":
        return found
    return stored_calls(folder, component, part.replace("searched", "calibrated"))


def calibration_calls(folder: Path, component: str, part: str = "all") -> list[StoredCall]:
    """The calls of a component as :func:`stored_calls` gives them.

    Raises:
        CalibrationError: there are none.
    """
    found = stored_calls(folder, component, part)
    if not found:
        raise CalibrationError(
            f"the calibration set has no sample for component {component!r}",
            why="no sample held its inputs, or the function that was recorded never ran it",
            remedy="give arrays named like its inputs, or run it through 'sessions'; or quantize it with"
            " {precision: fp16}, which needs no samples",
        )
    return found


def place(calls: Iterable[StoredCall], inputs: Sequence[TensorSpec], buckets: Buckets) -> dict[str, list[StoredCall]]:
    """The calls of a component by bucket, each in the smallest that holds it; `inputs` are the component's.

    Raises:
        CalibrationError: one fits no bucket.
    """
    placed: dict[str, list[StoredCall]] = {bucket: [] for bucket in buckets}
    for call in calls:
        lengths = axis_lengths(call.load(), inputs)
        bucket = smallest_bucket(lengths, buckets)
        if bucket is None:
            raise fits_no_bucket(call.name, lengths, buckets)
        placed[bucket].append(call)
    return placed


def _stored_calls(folder: Path, component: str, *, by_length: bool) -> Iterator[StoredCall]:
    position = -1
    alike: Counter[str] = Counter()
    index = json.loads((folder / INDEX).read_text("utf-8"))
    if refused := index.get(_REFUSED, {}).get(component):
        raise CalibrationError(**refused)
    for entry in index["samples"]:
        calls = [file for file in entry.pop("calls") if file.startswith(f"{component}/")]
        position += bool(calls)  # by component, or one of several could lose all of its samples to one part
        sample = Sample(**entry)
        if by_length and calls:
            shapes = "; ".join(_shapes(folder / file) for file in calls)
            position = alike[shapes]
            alike[shapes] += 1
        for number, file in enumerate(calls, 1):
            name = sample.name if len(calls) == 1 else f"{sample.name}, call {number} of {len(calls)}"
            yield StoredCall(name, sample, folder / file, position % _EVERY)


def _shapes(path: Path) -> str:
    return str(sorted((name, array.shape) for name, array in load_npz(path).items()))


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays that :func:`write_npz` wrote."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as ``numpy.savez`` does, but with the same bytes on every Python: dates and headers are fixed.

    numpy forces the ZIP64 form, whose header differs between Python 3.11.3 and 3.11.4. Here zipfile is told the size of
    each entry and takes that form only from 2 GiB on, which no sample has.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.file_size = array.nbytes
            with archive.open(entry, "w") as stream:
                np.lib.format.write_array(stream, array, version=(1, 0), allow_pickle=False)
