"""Reader `images`: reads a folder of pictures and brings them into the form that the application feeds the model.

The result is the same on every host for one version of Pillow, which is in the key of the step: Pillow decodes, and
resizes pixels of 8 bits in whole numbers; scale, mean and deviation are applied in float32, one operation after
another.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.samples import PICTURES
from pipeline.contracts.values import TensorSpec
from pipeline.errors import CalibrationError
from pipeline.inputs.samples.conform import Interface
from pipeline.inputs.samples.found_files import found_files, needs_extra
from pipeline.inputs.samples.preprocessing import Preprocessing, given_preprocessing
from pipeline.inputs.samples.request import Call, ReadRequest, Sample

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("BMP", "JPEG", "PNG", "PPM", "WEBP")
"""Pillow's names of the formats that are tried on a file, whatever its name says."""

MAX_PIXELS = 1 << 26
"""The most pixels of a picture: 8192 by 8192. A larger one is refused before memory is allocated for it."""

_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
"""Pillow's modes with at most 8 bits a channel (https://pillow.readthedocs.io/en/stable/handbook/concepts.html)."""


def read(request: ReadRequest) -> Iterator[Call]:
    """One call for each picture, in the order of their paths. The name of a picture's folder is its label.

    Raises:
        CalibrationError: there are no pictures, one is broken or too large, or no input takes pictures of this form.
    """
    folder = request.existing(request.samples, "folder")
    paths = found_files(folder, PICTURES, "picture")
    spec, interface = _input(request)
    given = _shaped(given_preprocessing(request), spec, interface)
    for index, path in enumerate(itertools.islice(paths, request.calibration.max_samples)):
        name = path.relative_to(folder).as_posix()
        label = path.parent.name if path.parent != folder else None
        array = prepared(path, name, given)
        yield from request.calls({spec.name: array}, Sample(index, name, label=label))


@dataclass(frozen=True)
class _Form:
    """How a picture becomes an array. `height` or `width` is 0 if the picture's own ratio decides it.

    `highest` and `widest` bound such a side. `rank` is 4 with a batch of one, or 3.
    """

    how: Preprocessing
    height: int
    width: int
    highest: int
    widest: int
    channels: int
    channels_first: bool
    rank: int
    dtype: np.dtype[Any]


def prepared(path: Path, name: str, form: _Form) -> NDArray[Any]:
    """The array of one picture, ``[1, channels, height, width]`` or as the layout says. Raises CalibrationError."""
    image = _fitted(_decoded(path, name, form.channels), form)
    pixels = np.asarray(image)
    pixels = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
    if form.how.color == "bgr":
        pixels = pixels[:, :, ::-1]
    if form.dtype != np.uint8:
        scaled = pixels.astype(np.float32) * np.float32(form.how.scale)
        mean, std = np.array(form.how.mean, np.float32), np.array(form.how.std, np.float32)
        pixels = ((scaled - mean) / std).astype(form.dtype)
    if form.channels_first:
        pixels = pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(pixels[np.newaxis] if form.rank == 4 else pixels)


def _decoded(path: Path, name: str, channels: int) -> Image.Image:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise needs_extra("images", "pillow") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata that is odd, or of a size that is checked below
            with Image.open(path, formats=FORMATS) as opened:
                width, height = opened.size
                if width * height > MAX_PIXELS:
                    raise _broken(name, f"it says that it has {width} by {height} pixels; {MAX_PIXELS} are read")
                if opened.mode not in _MODES:
                    raise _broken(name, f"its pixels are of mode {opened.mode!r}; 8 bits a channel are read")
                opened.load()
                upright = ImageOps.exif_transpose(opened)
                return upright.convert("L" if channels == 1 else "RGB")
    except CalibrationError:
        raise
    except Image.DecompressionBombError as error:
        raise _broken(name, str(error)) from error
    except Exception as error:  # a damaged file makes decoders raise almost anything
        raise _broken(name, f"{type(error).__name__}: {error}".replace(str(path), name)) from error


def _broken(name: str, why: str) -> CalibrationError:
    return CalibrationError(
        f"the picture {name} can't be read",
        where=name,
        why=why,
        remedy="take it out of the folder, or save it again as PNG or JPEG of 8 bits a channel",
    )


def _fitted(image: Image.Image, form: _Form) -> Image.Image:
    from PIL import Image

    resampling = Image.Resampling[form.how.resample.upper()]
    wide, high = image.size
    height = form.height or min(form.highest, max(1, round(high * form.width / wide)))
    width = form.width or min(form.widest, max(1, round(wide * form.height / high)))
    if form.how.fit == "resize":
        return image.resize((width, height), resampling)
    if form.how.fit == "letterbox":
        ratio = min(height / high, width / wide)
        inner = (min(width, max(1, round(wide * ratio))), min(height, max(1, round(high * ratio))))
        fill = form.how.fill
        canvas = Image.new(image.mode, (width, height), fill if form.channels == 1 else (fill, fill, fill))
        canvas.paste(image.resize(inner, resampling), ((width - inner[0]) // 2, (height - inner[1]) // 2))
        return canvas
    edge = form.how.edge or max(height, width)
    ratio = max(edge / min(high, wide), height / high, width / wide)
    larger = image.resize((max(width, round(wide * ratio)), max(height, round(high * ratio))), resampling)
    left, top = (larger.width - width) // 2, (larger.height - height) // 2
    return larger.crop((left, top, left + width, top + height))


def _input(request: ReadRequest) -> tuple[TensorSpec, Interface]:
    """The input that takes pictures: the one that the config names, or the only one that can."""
    wanted = request.calibration.images.input if request.calibration.images else None
    found = [
        (spec, interface)
        for interface in request.interfaces.values()
        for spec in interface.inputs
        if (spec.name == wanted if wanted else is_picture(spec))
    ]
    if len({spec.name for spec, _ in found}) == 1:
        return found[0]
    inputs = ", ".join(str(spec) for interface in request.interfaces.values() for spec in interface.inputs)
    what = "more than one input could take pictures" if found else "no input takes pictures"
    raise CalibrationError(
        f"the model has no input {wanted!r}" if wanted else what,
        why=f"its inputs are {inputs or 'none'}",
        remedy="name the right one as calibration.input, or make the samples yourself with reader: python",
    )


def is_picture(spec: TensorSpec) -> bool:
    """Whether an input has the dtype and the rank of pictures, and 1 or 3 channels if its shape tells their number."""
    if spec.dtype not in ("float32", "float16", "uint8") or len(spec.shape) != 4:
        return False
    first, last = spec.shape[1], spec.shape[3]
    return first in (1, 3) or last in (1, 3) or not (isinstance(first, int) or isinstance(last, int))


def channels_first(spec: TensorSpec) -> bool:
    """Whether the shape of an input has channels before height and width; True if the shape does not tell."""
    first, last = spec.shape[-3], spec.shape[-1]
    return first in (1, 3) or last not in (1, 3)


def _shaped(how: Preprocessing, spec: TensorSpec, interface: Interface) -> _Form:
    """How pictures are made into arrays that one input takes."""
    rank = len(spec.shape)
    if rank not in (3, 4):
        raise CalibrationError(
            f"input {str(spec)!r} takes no pictures",
            why="a picture has three dims, or four with a batch",
            remedy="name another as calibration.input, or make the samples yourself with reader: python",
        )
    first = how.layout == "nchw" if how.layout else channels_first(spec)
    dims = spec.shape[-3:] if first else (spec.shape[-1], *spec.shape[-3:-1])
    channel, high, wide = (_size(dim, interface) for dim in dims)
    channels = channel if channel in (1, 3) else 1 if how.color == "gray" else 3
    if (how.color == "gray") != (channels == 1) and how.color:
        raise CalibrationError(
            f"calibration.color is {how.color}, and input {str(spec)!r} has {channels} channels",
            remedy="write color: gray for one channel, rgb or bgr for three",
        )
    dtype = np.dtype(spec.dtype)
    if dtype == np.uint8 and how.is_scaled:
        raise CalibrationError(
            f"input {str(spec)!r} takes bytes, and 'scale', 'mean' or 'std' are given",
            remedy="leave them out: the model is fed the pixels as they are, from 0 to 255",
        )
    for name, values in (("mean", how.mean), ("std", how.std)):
        if len(values) not in (1, channels):
            raise CalibrationError(
                f"calibration.{name} has {len(values)} values, and input {str(spec)!r} has {channels} channels",
                remedy="give one value for all, or one for each channel, in the order that the model takes them",
            )
    height, width = how.size or (_known(high), _known(wide))
    if not (height or width):
        raise CalibrationError(
            "it is not said how large the pictures are",
            why=f"input {str(spec)!r} takes any size, and the config has neither calibration.size nor a bucket for it",
            remedy="write size: [height, width] under 'calibration', and put the axes under 'fixed' or 'buckets'",
        )
    if not (height and width) and how.fit != "resize":
        raise CalibrationError(
            f"calibration.size leaves a side free, and fit is {how.fit}",
            remedy="give both sides, or write fit: resize, which keeps the ratio where a side is 0",
        )
    bounds = [int(size) if size < math.inf else MAX_PIXELS for size in (high, wide)]
    return _Form(how, height, width, bounds[0], bounds[1], int(channels), first, rank, dtype)


def _known(size: float) -> int:
    return int(size) if size < math.inf else 0


def _size(dim: int | str | None, interface: Interface) -> float:
    """The largest size of a dim in any bucket; infinite for an axis that the config does not mention."""
    if isinstance(dim, int):
        return dim
    named = dim is not None and (dim in interface.fixed or any(dim in axes for axes in interface.buckets.values()))
    return interface.longest(str(dim)) if named else math.inf
