"""Shows a sample and what became of it in a few kilobytes, whatever the size of its arrays."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.measures import Measured
from pipeline.contracts.preview import PREVIEW, Curve, Pair, Picture, Preview, Shown
from pipeline.graph.accuracy.figures.accuracy import sqnr_db

_MOST = 6
"""Inputs, and outputs, that are shown."""
_MOST_CHARS = 2000
_MOST_VALUES = 32
_PIECES = 240
_MOST_PIXELS = 128
"""Width and height of a picture."""
_LEAST_PIXELS = 8
_CHANNELS = (1, 3, 4)

_Array = NDArray[Any]
_Range = tuple[float, float] | None


def worst_sample(total: Measured, names: Sequence[str]) -> int:
    """The place of the sample that is worst over all outputs.

    What is no number comes before all that is one; of equals, the first.
    """
    worst = min(total.values(), key=lambda figures: -math.inf if figures.worst_db is None else figures.worst_db)
    return names.index(worst.worst_sample)


def write_preview(
    folder: Path,
    name: str,
    words: tuple[str | None, str | None],
    inputs: Mapping[str, _Array],
    expected: Mapping[str, _Array],
    got: Mapping[str, _Array],
) -> None:
    """Write `folder/worst.json`. `words` are the sample's text and label; `got` has every output of `expected`."""
    text, label = words
    preview = Preview(
        sample=name,
        text=text[:_MOST_CHARS] if text is not None else None,
        label=label[:_MOST_CHARS] if label is not None else None,
        inputs=tuple(_shown(name, array) for name, array in [*inputs.items()][:_MOST]),
        outputs=tuple(_pair(name, array, got[name]) for name, array in [*expected.items()][:_MOST]),
        more_inputs=max(0, len(inputs) - _MOST),
        more_outputs=max(0, len(expected) - _MOST),
    )
    data = json.dumps(preview.to_json(), allow_nan=False)
    (folder / PREVIEW).write_text(data + "\n", "utf-8", newline="\n")


def _pair(name: str, expected: _Array, got: _Array) -> Pair:
    """Both in the range of the first, so that they can be compared by eye."""
    wide, made = expected.astype(np.float64), got.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is counted
        noise = wide - made
        db = sqnr_db(float(np.square(wide).sum()), float(np.square(noise).sum()))
    both = _range(wide), _range(made)
    known = [each for each in both if each]
    span = (min(low for low, _ in known), max(high for _, high in known)) if known else None
    return Pair(
        _shown(name, expected, span),
        _shown(name, got, span),
        _shown(name, noise),
        None if db is None or not math.isfinite(db) else round(db, 2),
    )


def _shown(name: str, array: _Array, span: _Range = None) -> Shown:
    wide = array.astype(np.float64)
    found = _range(wide)
    finite = np.isfinite(wide)
    about: dict[str, Any] = {
        "name": name,
        "dtype": str(array.dtype),
        "shape": tuple(array.shape),
        "low": _rounded(found[0]) if found else None,
        "high": _rounded(found[1]) if found else None,
        "bad": int(wide.size - finite.sum()),
    }
    if wide.size <= _MOST_VALUES:
        return Shown(**about, values=tuple(_rounded(float(value)) for value in wide.ravel()))
    image, part = _as_image(wide)
    if image is not None:
        return Shown(**about, part=part, picture=_picture(image, span or found or (0.0, 0.0)))
    row, part = _as_row(wide)
    return Shown(**about, part=part, curve=_curve(row))


def _as_image(wide: _Array) -> tuple[_Array | None, str]:
    """`[height, width, channels]` of an array that can be looked at, and which part of it that is; None if none can."""
    dims = [size for size in wide.shape if size != 1]
    plain = wide.reshape(dims)
    first = ""
    while plain.ndim > 3:
        first, plain = f"the first of {len(plain)}", plain[0]
    if plain.ndim == 3:
        if plain.shape[0] in _CHANNELS and min(plain.shape[1:]) >= _LEAST_PIXELS:
            plain = np.moveaxis(plain, 0, -1)
        if plain.shape[-1] in _CHANNELS and min(plain.shape[:2]) >= _LEAST_PIXELS:
            return plain[..., :3], first
        first, plain = f"the first of {len(plain)}", plain[0]
    if plain.ndim == 2 and min(plain.shape) >= _LEAST_PIXELS:
        return plain[..., None], first
    return None, ""


def _as_row(wide: _Array) -> tuple[_Array, str]:
    """The longest row of numbers that lie beside each other."""
    rows = wide.reshape(-1, wide.shape[-1] if wide.shape[-1] > 1 else wide.size)
    longest = max(wide.shape)
    if wide.size == longest:
        return wide.reshape(-1), ""
    if rows.shape[1] == longest:
        return rows[0], f"the first of {len(rows)}"
    return wide.reshape(-1), "all rows, one after the other"


def _picture(image: _Array, span: tuple[float, float]) -> Picture:
    low, high = span
    rows, columns = (_places(size) for size in image.shape[:2])
    scale = high - low if high > low else 1.0
    part = np.nan_to_num(image[np.ix_(rows, columns)], nan=low, posinf=high, neginf=low)
    pixels = np.clip(np.round((part - low) / scale * 255), 0, 255).astype(np.uint8)
    text = base64.b64encode(np.ascontiguousarray(pixels).tobytes()).decode()
    return Picture(len(columns), len(rows), pixels.shape[-1], text)


def _places(size: int) -> list[int]:
    """Evenly spread places of a dimension, as many as a picture shows."""
    shown = min(size, _MOST_PIXELS)
    return [place * size // shown for place in range(shown)]


def _curve(row: _Array) -> Curve:
    pieces = np.array_split(np.nan_to_num(row, nan=0.0, posinf=0.0, neginf=0.0), min(_PIECES, len(row)))
    return Curve(
        tuple(_number(float(piece.min())) for piece in pieces), tuple(_number(float(piece.max())) for piece in pieces)
    )


def _range(wide: _Array) -> _Range:
    finite = wide[np.isfinite(wide)]
    return (float(finite.min()), float(finite.max())) if finite.size else None


def _number(value: float) -> float:
    return float(f"{value:.4g}")


def _rounded(value: float) -> float | None:
    return _number(value) if math.isfinite(value) else None
