"""A calibration set on disk: the output of the samples step, written there and read by calibrate and verify.

``samples.json`` lists the samples, each with the calls it made; ``<component>/<00000>.npz`` holds a call's arrays,
unpadded. The bytes depend on the content alone.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import CalibrationError
from pipeline.readers.request import Call, Sample

INDEX = "samples.json"


class SampleSetWriter:
    """Writes calls as they come, so that a set need not fit into memory. Call :meth:`finish` at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: dict[str, int] = {}
        self._samples: dict[int, tuple[Sample, list[str]]] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of calls by component."""
        return self._counts

    @property
    def samples(self) -> list[Sample]:
        """The samples so far."""
        return [sample for sample, _ in self._samples.values()]

    def add(self, call: Call) -> None:
        """Write one call."""
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
        text = json.dumps({"samples": listed}, ensure_ascii=False, indent=1)
        (self._folder / INDEX).write_text(text + "\n", "utf-8", newline="\n")


@dataclass(frozen=True)
class StoredCall:
    """A call on disk. `name` says which: ``texts.txt:3, call 2 of 5``."""

    name: str
    sample: Sample
    file: Path
    place: int

    def load(self) -> dict[str, NDArray[Any]]:
        """The call's arrays by input, unpadded."""
        with np.load(self.file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


_EVERY = 4
_PARTS = {"all": {0, 1, 2, 3}, "kept": {0, 2, 3}, "held out": {1}, "calibrated": {0, 2}, "searched": {3}}
"""Parts of a set that has to serve several purposes, as places of each sample among every four.

Verification is held out from calibration (`kept`). A search for the precision is judged on samples (`searched`) that
neither of the two sees; `calibrated` is what is then left.
"""


def stored_calls(folder: Path, component: str, part: str = "all") -> list[StoredCall]:
    """The calls of a component in the output of a samples step, in the order they were made.

    `part` is `all`, or of a set that is split `kept`, `held out` (which may be empty), `calibrated` or `searched`
    (which is `calibrated` where the set is too small for it).
    """
    found = [call for call in _stored_calls(folder, component) if call.place in _PARTS[part]]
    return found or (stored_calls(folder, component, "calibrated") if part == "searched" else [])


def calibration_calls(folder: Path, component: str, part: str = "all") -> list[StoredCall]:
    """The same.

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


def _stored_calls(folder: Path, component: str) -> Iterator[StoredCall]:
    position = -1
    for entry in json.loads((folder / INDEX).read_text("utf-8"))["samples"]:
        calls = [file for file in entry.pop("calls") if file.startswith(f"{component}/")]
        position += bool(calls)  # by component, or one of several could lose all of its samples to one part
        sample = Sample(**entry)
        for number, file in enumerate(calls, 1):
            name = sample.name if len(calls) == 1 else f"{sample.name}, call {number} of {len(calls)}"
            yield StoredCall(name, sample, folder / file, position % _EVERY)


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Like ``numpy.savez``, but the same bytes from every Python: an entry's date, origin and form are fixed.

    Forced into the ZIP64 form, as numpy does it, an entry has another header before Python 3.11.4 than from it on. Told
    a size, zipfile takes that form from 2 GiB on only, and no sample has as much.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.file_size = array.nbytes
            with archive.open(entry, "w") as stream:
                np.lib.format.write_array(stream, array, version=(1, 0), allow_pickle=False)
