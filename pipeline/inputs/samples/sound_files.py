"""Reads sound files as arrays: WAV by code here, FLAC by soundfile. Both formats are exact, whatever reads them."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import CalibrationError
from pipeline.inputs.samples.found_files import needs_extra

MAX_VALUES = 1 << 27
"""The most values in one file, all channels together: 46 minutes of 48 kHz in mono."""

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_STREAM_INFO = struct.Struct(">8x10s8s16s")
"""FLAC's first block, after `fLaC`: sizes, then rate, channels, bits and length, then the MD5 of the samples
(RFC 9639, 8.2)."""


@dataclass(frozen=True)
class Sound:
    """A sound: `values` are float64 ``[frames, channels]`` from -1 to 1, `rate` is in Hz."""

    rate: int
    values: NDArray[np.float64]


class _SoundError(ValueError):
    """A file can't be read; the text says why."""


def read_sound(path: Path, name: str) -> Sound:
    """The sound in a file; `name` is the file's name in messages.

    Raises:
        CalibrationError: the file is damaged, empty or too long, or its coding is not supported.
    """
    try:
        sound = _flac(path) if path.suffix.lower() == ".flac" else _wav(path.read_bytes())
        if not sound.values.size:
            raise _SoundError("it holds no samples")
        if not np.isfinite(sound.values).all():
            raise _SoundError("it holds NaN or infinity")
        return sound
    except (_SoundError, OSError, struct.error) as error:
        raise CalibrationError(
            f"the sound {name} can't be read",
            where=name,
            why=str(error).replace(str(path), name),
            remedy="take it out of the folder, or save it again as WAV of 16 bits",
        ) from error


def _wav(data: bytes) -> Sound:
    """RIFF WAVE: the chunks `fmt ` and `data` (https://www.mmsp.ece.mcgill.ca/Documents/AudioFormats/WAVE/WAVE.html)."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise _SoundError("it is no WAV file")
    form: tuple[int, int, int, int] | None = None
    position = 12
    while position + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, position)
        body = data[position + 8 : position + 8 + size]
        position += 8 + size + size % 2
        if kind == b"fmt ":
            coding, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body)
            if coding == _EXTENSIBLE and len(body) >= 26:
                (coding,) = struct.unpack_from("<H", body, 24)
            form = coding, channels, rate, bits
        elif kind == b"data":
            if form is None:
                raise _SoundError("its samples come before it says what they are")
            if len(body) < size and size != 0xFFFFFFFF:
                raise _SoundError("it is cut short")
            return _frames(body, *form)
    raise _SoundError("it holds no samples")


def _frames(body: bytes, coding: int, channels: int, rate: int, bits: int) -> Sound:
    if not (0 < channels <= 64 and 0 < rate < 1 << 22):
        raise _SoundError(f"it says that it has {channels} channels of {rate} Hz")
    if len(body) * 8 // max(bits, 1) > MAX_VALUES:
        raise _SoundError(f"it has more than {MAX_VALUES} samples")
    whole = len(body) - len(body) % (channels * max(1, bits // 8))
    body = body[:whole]
    values: NDArray[Any]
    match coding, bits:
        case 1, 8:
            values = (np.frombuffer(body, np.uint8).astype(np.float64) - 128) / 128
        case 1, 16:
            values = np.frombuffer(body, "<i2") / 32768.0
        case 1, 24:
            wide = np.zeros((len(body) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
            values = wide.view("<i4")[:, 0] / 2147483648.0
        case 1, 32:
            values = np.frombuffer(body, "<i4") / 2147483648.0
        case 3, 32 | 64:
            values = np.frombuffer(body, f"<f{bits // 8}").astype(np.float64)
        case _:
            raise _SoundError(f"its samples are of coding {coding} with {bits} bits; PCM and floats are read")
    return Sound(rate, values.reshape(-1, channels))


def _flac(path: Path) -> Sound:
    try:
        import soundfile
    except (ImportError, OSError):  # the library that it loads may be missing, too
        raise needs_extra("audio", "soundfile") from None
    with path.open("rb") as stream:
        head = stream.read(42)
    if head[:4] != b"fLaC":
        raise _SoundError("it is no FLAC file")
    _, packed, digest = _STREAM_INFO.unpack_from(head)
    bits = ((int.from_bytes(packed) >> 36) & 31) + 1
    try:
        with soundfile.SoundFile(path) as opened:
            if opened.frames * opened.channels > MAX_VALUES:
                raise _SoundError(f"it has more than {MAX_VALUES} samples")
            rate = int(opened.samplerate)
            values: NDArray[np.int32] = opened.read(dtype="int32", always_2d=True)
    except soundfile.SoundFileError as error:
        raise _SoundError(str(error)) from error
    if any(digest) and not _has_digest(values >> (32 - bits), bits, digest):
        raise _SoundError("its samples are not those that were written: it is damaged, or cut short")
    return Sound(rate, values / 2147483648.0)


def _has_digest(values: NDArray[np.int32], bits: int, digest: bytes) -> bool:
    """Whether values have FLAC's own checksum: the MD5 of all channels in turn, little-endian, in the fewest bytes."""
    width = (bits + 7) // 8
    raw = values.astype("<i4").reshape(-1, 1).view(np.uint8)[:, :width]
    return hashlib.md5(raw.tobytes(), usedforsecurity=False).digest() == digest
