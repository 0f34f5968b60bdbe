"""The contract of `samples`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import Buckets
from pipeline.frozen import dataclass

PICTURES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
"""How the names of pictures end that are read."""
SOUNDS = (".flac", ".wav")
"""How the names of sounds end that are read."""
Fit = Literal["resize", "crop", "letterbox"]
Resample = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Color = Literal["rgb", "bgr", "gray"]
Layout = Literal["nchw", "nhwc"]


@dataclass(frozen=True)
class ImageReading(Contract):
    """What is said of how pictures are prepared; None for what is not. `processor` is a file of the source."""

    input: str | None = None
    processor: str | None = None
    size: tuple[int, int] | None = None
    fit: Fit | None = None
    edge: int | None = None
    fill: int | None = None
    resample: Resample | None = None
    color: Color | None = None
    layout: Layout | None = None
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclass(frozen=True)
class AudioReading(Contract):
    """How waveforms are prepared: `rate` in Hz, `window`, `hop` and `context` in samples.

    `length` and `mask` are inputs, `states` inputs and the outputs that they are fed from.
    """

    rate: int
    input: str | None = None
    channels: Literal["mix", "first"] = "mix"
    resample: bool = False
    scale: float = 1.0
    window: int | None = None
    hop: int | None = None
    context: int = 0
    max_windows: int = 64
    length: str | None = None
    mask: str | None = None
    states: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TextFields(Contract):
    """Which field of a JSON line, or which column of a `.tsv` file, is what."""

    text: str = "text"
    pair: str | None = None
    label: str | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class VocabularyReading(Contract):
    """How a text becomes the numbers of a vocabulary, which lies in `file` of the source, in JSON at `key`."""

    file: str
    key: str | None = None
    tokens: Literal["characters", "words", "pieces"] = "characters"
    normalize: Literal["nfc", "nfd", "nfkc", "nfkd"] | None = None
    lowercase: bool = False
    drop_marks: bool = False
    unknown: str | None = None
    begin: str | None = None
    end: str | None = None


@dataclass(frozen=True)
class TokenInputs(Contract):
    """Inputs that tokens go into where they are not called as Hugging Face exports call them."""

    ids: str | None = None
    mask: str | None = None
    length: str | None = None


@dataclass(frozen=True)
class Reading(Contract):
    """How a set of samples is read, without where it is; `run` is the function's name in the code file.

    `inside` is the path of the set in the repository of data that it is in, if it is in one.
    """

    reader: Literal["text", "npz", "python", "record", "images", "audio", "chat"]
    max_samples: int | None = None
    tokenizer: str | None = left_out()
    vocabulary: VocabularyReading | None = left_out()
    tokens_to: TokenInputs | None = left_out()
    max_length: int | None = left_out()
    run: str | None = left_out()
    fields: TextFields | None = left_out()
    images: ImageReading | None = left_out()
    audio: AudioReading | None = left_out()
    inside: str | None = left_out()


@dataclass(frozen=True)
class Params(Contract):
    """`buckets` and `fixed` axes are of each component."""

    calibration: Reading
    buckets: Mapping[str, Buckets]
    fixed: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Facts(Contract):
    """How many `samples`, how many calls they make of each component, how many were `cut`.

    `lengths` has the shortest and longest of each component's axes. `rounding_db` are those of components whose file
    was quantized and is less than so many dB from its own floats on some of these samples. `unneeded` are buckets of a
    component that no call of it needs: each is in a smaller one, or in another.
    """

    count: Mapping[str, int]
    samples: int
    cut: int
    lengths: Mapping[str, Mapping[str, tuple[int, int]]]
    rounding_db: Mapping[str, int] | None = left_out()
    unneeded: Mapping[str, tuple[str, ...]] | None = left_out()


@dataclass(frozen=True)
class SampleBasis(Contract):
    """What of the facts steps read that read the samples: nothing, as the files say all of it.

    `rounding_db` differs between processors, on which whatever follows has equal keys (docs/adr/0020).
    """
