"""Reader `npz`: reads samples from a folder of arrays that were made elsewhere."""

from __future__ import annotations

import itertools
import math
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import CalibrationError
from pipeline.inputs.samples.request import Call, ReadRequest, Sample

MAX_BYTES = 1 << 30
"""The most bytes of the arrays of one sample. A minute of 48 kHz audio in float32 has 12 million."""

MAX_ARRAYS = 1000
"""The most arrays of one sample."""

_ZIP = b"PK\3\4"


def read(request: ReadRequest) -> Iterator[Call]:
    """The samples of a folder in the order of their names.

    A sample is ``<name>.npz`` with arrays named like the inputs, a sub-folder with an ``<input>.npy`` for each, or a
    lone ``<name>.npy`` for a component of one input. If the folder has a sub-folder named like a component, the samples
    of that component are there. All other components share the folder's own, each taking samples with its inputs.

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
        alone, paths = request.only([component]), list[Path]()
        try:
            paths = [*itertools.islice(_samples(folder / component), limit)]
        except CalibrationError as error:
            yield Call(component, {}, Sample(next(index), component), refused=error)
        for path in paths:
            sample = Sample(next(index), f"{component}/{path.name}")
            try:
                arrays, sample = alone.describe(_load(path, alone), sample)
            except CalibrationError as error:
                yield Call(component, {}, sample, refused=error)
            else:
                yield alone.given(component, arrays, sample)
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
    if not path.is_file():
        raise _unreadable(path, "it is a device, a pipe or a socket")
    try:
        with path.open("rb") as stream:
            begins = stream.read(len(_ZIP))
            stream.seek(0)
            if begins != _ZIP:
                return _checked_array(stream, path.stat().st_size)
            with zipfile.ZipFile(stream) as archive:
                return _members(archive)
    except (_ArrayError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, str(error) or "it is cut short") from error
    except Exception as error:  # damaged headers and streams make numpy, ast and zlib raise almost anything
        raise _unreadable(path, f"it is damaged ({type(error).__name__}: {error})") from error


class _ArrayError(ValueError):
    """An array or archive can't be read; the text says why."""


def _members(archive: zipfile.ZipFile) -> dict[str, NDArray[Any]]:
    """The arrays of an archive, by name. Before any is read, the size of all together is checked."""
    entries = archive.infolist()
    if len(entries) > MAX_ARRAYS:
        raise _ArrayError(f"it holds {len(entries)} arrays; {MAX_ARRAYS} are the most that are read")
    if len({entry.filename for entry in entries}) < len(entries):
        raise _ArrayError("two of its arrays have one name")
    for entry in entries:
        if not entry.filename.endswith(".npy"):
            raise _ArrayError(f"it holds {entry.filename!r}, which is no array as numpy.savez writes it")
        if entry.flag_bits & 1:
            raise _ArrayError("it is encrypted")
    if (total := sum(entry.file_size for entry in entries)) > MAX_BYTES:
        raise _ArrayError(f"its arrays have {total} bytes; {MAX_BYTES} are the most that are read for a sample")
    arrays = {}
    for entry in entries:
        with archive.open(entry) as stream:
            arrays[entry.filename.removesuffix(".npy")] = _checked_array(stream, entry.file_size)
    return arrays


def _checked_array(stream: IO[bytes], size: int) -> NDArray[Any]:
    """The array in a stream of `size` bytes. Its header is checked against the size before memory is allocated."""
    version = np.lib.format.read_magic(stream)
    headers: dict[tuple[int, int], Callable[..., tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in headers:
        raise _ArrayError(f"its format has version {version}; 1.0 and 2.0 are read")
    shape, fortran, dtype = headers[version](stream)
    if dtype.hasobject:
        raise _ArrayError("it holds Python objects")
    nbytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or nbytes != size - stream.tell():
        raise _ArrayError(f"its header says {dtype} {list(shape)}, which is not what follows it")
    if nbytes > MAX_BYTES:
        raise _ArrayError(f"it has {nbytes} bytes; {MAX_BYTES} are the most that are read for a sample")
    data = stream.read(nbytes)
    if len(data) != nbytes:
        raise _ArrayError("it is cut short")
    return np.frombuffer(bytearray(data), dtype).reshape(shape, order="F" if fortran else "C")


def _unreadable(path: Path, why: str) -> CalibrationError:
    return CalibrationError(
        f"can't read the arrays in {path.name}",
        where=path.name,
        why=why,
        remedy="save it again with numpy.savez or numpy.save; arrays of Python objects are not read",
    )
