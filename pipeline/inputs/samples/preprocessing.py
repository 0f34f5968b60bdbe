"""Works out how pictures are prepared: by the config, the model's `preprocessor_config.json`, then by defaults.

The file is the one that image processors of the `transformers` library write, whose keys are described at
https://huggingface.co/docs/transformers/main_classes/image_processor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.contracts.samples import Color, Fit, ImageReading, Layout, Resample
from pipeline.errors import CalibrationError
from pipeline.inputs.samples.request import ReadRequest
from pipeline.plain_text import did_you_mean

_LARGEST_FILE = 1 << 20
_PIL_RESAMPLING: Mapping[int, Resample] = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}
"""Pillow's filters by their numbers, which the file has."""


@dataclass(frozen=True)
class Preprocessing:
    """How a picture is prepared: it is fitted into `size`, and its pixels become ``(pixel * scale - mean) / std``.

    `size` is height and width; 0 for a side that follows from the other by the picture's own ratio. `edge` is the size
    of the shorter side before a crop. `mean` and `std` have one value, or one for each channel. `is_scaled` says that
    the config or the model's file decides how pixels are scaled, and not a default.
    """

    size: tuple[int, int] | None = None
    fit: Fit = "resize"
    edge: int | None = None
    fill: int = 114
    resample: Resample = "bilinear"
    color: Color | None = None
    layout: Layout | None = None
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    is_scaled: bool = False


def given_preprocessing(request: ReadRequest) -> Preprocessing:
    """The preparation by the config and the file that it names. Raises CalibrationError for a file that is wrong."""
    reading = request.calibration.images or ImageReading()
    found = Preprocessing()
    if reading.processor is not None:
        path = request.source / reading.processor
        if not path.is_file():
            files = sorted(each.relative_to(request.source).as_posix() for each in request.source.rglob("*.json"))
            raise CalibrationError(
                f"the source has no file {reading.processor!r}{did_you_mean(reading.processor, files)}",
                remedy="correct calibration.processor, or leave it out and write size, scale, mean and std yourself",
            )
        found = of_processor(path, reading.processor)
    written = {
        "size": reading.size,
        "fit": reading.fit,
        "edge": reading.edge,
        "fill": reading.fill,
        "resample": reading.resample,
        "color": reading.color,
        "layout": reading.layout,
        "scale": reading.scale,
        "mean": reading.mean,
        "std": reading.std,
    }
    values: dict[str, Any] = {name: value for name, value in written.items() if value is not None}
    found = replace(found, **values)
    if any(value == 0 for value in found.std):
        raise CalibrationError("calibration.std holds a 0", why="pixels are divided by it", remedy="correct it")
    return replace(found, is_scaled=found.is_scaled or not values.keys().isdisjoint({"scale", "mean", "std"}))


def of_processor(path: Path, name: str) -> Preprocessing:
    """The preparation by the `preprocessor_config.json` at `path`.

    Raises:
        CalibrationError: the file is damaged, or asks for a step that is not supported.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ValueError(f"it has more than {_LARGEST_FILE} bytes")
        said = json.loads(path.read_text("utf-8"))
        if not isinstance(said, dict):
            raise ValueError("it is no JSON object")
        return _understood(said)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CalibrationError(
            f"{name} does not say how pictures are prepared",
            where=name,
            why=f"{error}" or type(error).__name__,
            remedy="leave calibration.processor out, and write size, fit, scale, mean and std yourself",
        ) from error


def _understood(said: Mapping[str, Any]) -> Preprocessing:
    crops = bool(said.get("do_center_crop", False))
    size, edge = _sides(said.get("size")) if said.get("do_resize", True) else (None, None)
    if crops:
        cropped, square = _sides(said.get("crop_size"))
        target = cropped or (square and (square, square)) or size
        edge = edge or (min(size) if size else None)
        size, fit = target, "crop"
    elif edge and not size and isinstance(said.get("crop_pct"), int | float) and edge < 384:
        # ConvNeXt: resized to more, cropped to `size`
        size, edge, fit = (edge, edge), int(edge / float(said["crop_pct"])), "crop"
    elif edge and not size:
        size, edge, fit = (edge, edge), None, "resize"
    else:
        edge, fit = None, "resize"
    found = Preprocessing(size=size, edge=edge, is_scaled=True)
    found = replace(found, fit="crop" if fit == "crop" else "resize")
    if said.get("do_pad") and said.get("pad_size") is None and size is None:
        raise ValueError("it pads pictures to the largest of a batch (do_pad)")
    resample = said.get("resample")
    if isinstance(resample, int) and resample in _PIL_RESAMPLING:
        found = replace(found, resample=_PIL_RESAMPLING[resample])
    scale = float(said.get("rescale_factor", 1 / 255)) if said.get("do_rescale", True) else 1.0
    found = replace(found, scale=scale)
    if said.get("do_normalize", False):
        found = replace(found, mean=_numbers(said["image_mean"]), std=_numbers(said["image_std"]))
    if said.get("do_flip_channel_order"):
        found = replace(found, color="bgr")
    return found


def _sides(size: Any) -> tuple[tuple[int, int] | None, int | None]:
    """Height and width, or the shorter edge if only that is given; both None if neither is."""
    match size:
        case None:
            return None, None
        case int() if 0 < size < 1 << 15:
            return None, size
        case {"height": int(height), "width": int(width)} if 0 < height < 1 << 15 and 0 < width < 1 << 15:
            return (height, width), None
        case {"shortest_edge": int(edge), "longest_edge": int()} if 0 < edge < 1 << 15:
            raise ValueError("it keeps the ratio of each picture (shortest_edge with longest_edge)")
        case {"shortest_edge": int(edge)} if 0 < edge < 1 << 15:
            return None, edge
        case [int(height), int(width)] if 0 < height < 1 << 15 and 0 < width < 1 << 15:
            return (height, width), None
    raise ValueError(f"its size is {json.dumps(size)[:100]}")


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(float(number) for number in (value if isinstance(value, list) else [value]))
