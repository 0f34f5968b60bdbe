"""The contract of `samples`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import Buckets
from pipeline.frozen import dataclass

PICTURES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
"""The endings of names of pictures that can be read."""
SOUNDS = (".flac", ".wav")
"""The endings of names of sounds that can be read."""
Fit = Literal["resize", "crop", "letterbox"]
Resample = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Color = Literal["rgb", "bgr", "gray"]
Layout = Literal["nchw", "nhwc"]


@dataclass(frozen=True)
class ImageReading(Contract):
    """How the config wants pictures prepared; None for what it does not say. `processor` is a file of the source."""

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
    """How waveforms are prepared: `rate` in Hz, `window`, `hop` and `context` in numbers of audio samples.

    `length` and `mask` are names of inputs. `states` has names of inputs, each with the output that it is fed from.
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
class SpeechReading(Contract):
    """How speech is written down: the language, "" for that which the model hears, and `steps` of each window."""

    language: str
    task: str
    steps: int


@dataclass(frozen=True)
class TextFields(Contract):
    """The names of the fields of a JSON line, or the `columns` of a `.tsv` file, that hold text, pair and label."""

    text: str = "text"
    pair: str | None = None
    label: str | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class VocabularyReading(Contract):
    """How a text becomes numbers by a vocabulary, which is in `file` of the source: if that is JSON, at `key`."""

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
    """The names of the inputs for tokens, if they are not those of Hugging Face's exports."""

    ids: str | None = None
    mask: str | None = None
    length: str | None = None


@dataclass(frozen=True)
class Reading(Contract):
    """How a set of samples is read. It does not say where the set is, so that this is in no key.

    `run` is the name of the function in the file of code. `inside` is the path of the set if it is in a repository of
    data on a hub.
    """

    reader: Literal["text", "npz", "python", "record", "images", "audio", "chat", "speech"]
    max_samples: int | None = None
    tokenizer: str | None = left_out()
    vocabulary: VocabularyReading | None = left_out()
    tokens_to: TokenInputs | None = left_out()
    max_length: int | None = left_out()
    run: str | None = left_out()
    fields: TextFields | None = left_out()
    images: ImageReading | None = left_out()
    audio: AudioReading | None = left_out()
    speech: SpeechReading | None = left_out()
    inside: str | None = left_out()


@dataclass(frozen=True)
class Params(Contract):
    """`buckets` and the `fixed` axes are given for each component."""

    calibration: Reading
    buckets: Mapping[str, Buckets]
    fixed: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Facts(Contract):
    """How many `samples` there are, how many calls of each component they make (`count`), and how many were `cut`.

    `lengths` has the least and the largest size of each component's axes. `unneeded` has for each component the buckets
    that no call needs, as each call fits a smaller or another one.
    """

    count: Mapping[str, int]
    samples: int
    cut: int
    lengths: Mapping[str, Mapping[str, tuple[int, int]]]
    unneeded: Mapping[str, tuple[str, ...]] | None = left_out()


@dataclass(frozen=True)
class SampleBasis(Contract):
    """The facts of `samples` that count for later steps: none, as the files say all that they need."""
