"""Reader `npz`: a folder of arrays that were made elsewhere."""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import CalibrationError
from pipeline.readers.request import Call, ReadRequest, Sample


def read(request: ReadRequest) -> Iterator[Call]:
    """The samples of a folder in the order of their names.

    A sample is ``<name>.npz`` with arrays named like the inputs, a sub-folder with an ``<input>.npy`` for each, or a
    lone ``<name>.npy`` for a component of one input. Where the folder has a sub-folder named like a component, that
    component's samples are there; all others share the folder's own, each taking those that hold its inputs.

    Raises:
        CalibrationError: no samples, a damaged file, or arrays that don't fit.
    """
    folder = request.existing(request.samples, "folder")
    if not folder.is_dir():
        raise CalibrationError(f"{folder.name} is not a folder", remedy="name the folder that holds the .npz files")
    limit = request.calibration.max_samples
    own = [component for component in request.interfaces if (folder / component).is_dir()]
    index = itertools.count()
    for component in own:
        alone = request.only([component])
        for path in itertools.islice(_samples(folder / component), limit):
            arrays, sample = alone.describe(_load(path, alone), Sample(next(index), f"{component}/{path.name}"))
            yield alone.call(component, arrays, sample)
    sharing = request.only(request.interfaces.keys() - own)
    if sharing.interfaces:
        for path in itertools.islice(_samples(folder, own), limit):
            yield from sharing.calls(*sharing.describe(_load(path, sharing), Sample(next(index), path.name)))


def _samples(folder: Path, skipped: Collection[str] = ()) -> Iterator[Path]:
    found = [
        path
        for path in sorted(folder.iterdir(), key=lambda path: path.name)
        if path.suffix in (".npz", ".npy") or (path.is_dir() and path.name not in skipped and any(path.glob("*.npy")))
    ]
    if not found:
        raise CalibrationError(
            f"the calibration set is empty: {folder.name} holds no .npz file, no .npy file and no folder of .npy files",
            remedy="put a .npz a sample there, arrays named like the inputs: numpy.savez('0.npz', input_ids=ids, ...)",
        )
    return iter(found)


def _load(path: Path, request: ReadRequest) -> dict[str, NDArray[Any]]:
    if path.is_dir():
        return {file.stem: _array(file) for file in sorted(path.glob("*.npy"))}
    if path.suffix == ".npy":
        single = [interface.inputs[0].name for interface in request.interfaces.values() if len(interface.inputs) == 1]
        if len(single) != 1:
            raise CalibrationError(
                f"can't tell which input {path.name} is for",
                where=path.name,
                why="a lone .npy file is a sample of a component that has one input",
                remedy="save a .npz with arrays named like the inputs, or a folder a sample with one .npy an input",
            )
        return {single[0]: _array(path)}
    loaded = _read(path)
    if isinstance(loaded, dict):
        return loaded
    raise _unreadable(path, "it is a single array without a name, as numpy.save writes it")


def _array(path: Path) -> NDArray[Any]:
    loaded = _read(path)
    if isinstance(loaded, dict):
        raise _unreadable(path, "it is an archive of several arrays, as numpy.savez writes it")
    return loaded


def _read(path: Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as stream:  # numpy leaves a file open that it could not read
            loaded = np.load(stream, allow_pickle=False)
            return {name: loaded[name] for name in loaded.files} if hasattr(loaded, "files") else loaded
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, why: str) -> CalibrationError:
    return CalibrationError(
        f"can't read the arrays in {path.name}",
        where=path.name,
        why=why,
        remedy="save it again with numpy.savez or numpy.save; arrays of Python objects are not read",
    )
