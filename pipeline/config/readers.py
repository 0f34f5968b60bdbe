"""The ways to read a calibration set, as types: what may be written under `calibration` and `verification.samples`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from pipeline.config.written_values import (
    FunctionRef,
    ProjectPath,
    RepoName,
    Revision,
    SampleLimit,
    SourceFile,
    TensorName,
)
from pipeline.config.yaml.field_types import Between, Distinct, Pattern, Size
from pipeline.contracts.samples import Color, Fit, Layout, Resample
from pipeline.frozen import dataclass

FieldName = Annotated[str, Pattern(r"[^\x00-\x1f]{1,200}", "the name of a field")]
Side = Annotated[int, Between(0, 32767)]


@dataclass(frozen=True)
class HubData:
    """A file or folder in a data set repository on the Hugging Face hub, in place of one of the project."""

    hub: RepoName
    """Repository of data, as `owner/name`."""
    revision: Revision
    """Commit to take it from, 40 hex digits. A branch or tag is pinned as that of a model is."""
    path: SourceFile
    """The file or folder in the repository. Of a folder of pictures or sounds, `max_samples` files are fetched."""


@dataclass(frozen=True)
class TokenTable:
    """A table of tokens and their numbers, for models without a `tokenizer.json`."""

    file: SourceFile
    """A file in the model's source, fetched with it: a `.json` with an object of tokens and numbers (or numbers and
    tokens) or a list of tokens, else a token a line, whose number is that of its line from 0 on or stands behind it."""
    key: FieldName | None = None
    """Where in a JSON file, as `mapping.char_to_idx`; may be left out where the file holds one vocabulary alone."""
    tokens: Literal["characters", "words", "pieces"] = "characters"
    """What a token is: a character (code point), what stands between blanks, or pieces of words as BERT's `vocab.txt`
    has them, with `##` before those that go on."""
    normalize: Literal["nfc", "nfd", "nfkc", "nfkd"] | None = None
    """The Unicode form that a text is brought to first; as it is when left out."""
    lowercase: bool = False
    """Whether letters are made small."""
    drop_marks: bool = False
    """Whether accents and other marks are taken off their letters: combining marks, after `nfd`."""
    unknown: FieldName | None = None
    """The token that stands for what the vocabulary does not have. When left out, such a text is refused."""
    begin: FieldName | None = None
    """The token before a text."""
    end: FieldName | None = None
    """The token behind a text, and behind each of a pair."""


@dataclass(frozen=True)
class TextReader:
    """Lines of text through the model's own tokenizer, one sample a line."""

    reader: Literal["text"]
    """`text`."""
    file: ProjectPath | HubData
    """UTF-8 text, relative to the project; one sample a line, empty lines skipped. A line of a `.tsv` file is
    `label<TAB>text`; one of a `.jsonl` file is a JSON object, whose fields may also give inputs by their names."""
    tokenizer: SourceFile = "tokenizer.json"
    """A `tokenizer.json` in the model's source; fetched with the model."""
    vocabulary: TokenTable | None = None
    """In place of a tokenizer, a table of tokens."""
    ids: TensorName | None = None
    """The input that takes token ids, where it is not called `input_ids`; may be left out where it is the only input of
    whole numbers."""
    mask: TensorName | None = None
    """An input that takes a 1 for every token, where it is not called `attention_mask`."""
    length: TensorName | None = None
    """An input that takes the number of tokens."""
    max_length: Annotated[int, Between(1, 1_000_000)] | None = None
    """Longest sample in tokens; what is longer is cut. The largest bucket when left out."""
    text: FieldName = "text"
    """The field of a JSON line that is the text."""
    pair: FieldName | None = None
    """The field of a JSON line that is the second text of a pair, as for models that compare two."""
    label: FieldName | None = None
    """The field of a JSON line that is the label, for scores; `label` when left out."""
    columns: Annotated[tuple[Literal["label", "text", "pair"], ...], Distinct()] = ()
    """What the columns of a `.tsv` file are, as `[text, pair]`, when not `[label, text]`."""
    max_samples: SampleLimit = 128
    """Use no more samples than this, from the first on."""


@dataclass(frozen=True)
class NpzReader:
    """A folder of `.npz` files, one sample a file; arrays are named like the inputs and fit the largest bucket."""

    reader: Literal["npz"]
    """`npz`."""
    folder: ProjectPath | HubData
    """The folder, relative to the project. Files are read in the order of their names."""
    max_samples: SampleLimit = 128
    """Use no more samples than this, from the first on."""


@dataclass(frozen=True)
class PythonReader:
    """A Python function that makes the samples."""

    reader: Literal["python"]
    """`python`."""
    run: FunctionRef
    """The function, as `calibration/<file>.py:<function>`; the file is in the project's `calibration/` folder."""
    file: ProjectPath | HubData | None = None
    """A file that the function reads, relative to the project. A change to it makes calibration run again."""
    max_samples: SampleLimit = 128
    """Use no more samples than this, from the first on."""


@dataclass(frozen=True)
class RecordReader:
    """A function that runs the float components as the application does; what goes into each of them is recorded."""

    reader: Literal["record"]
    """`record`."""
    run: FunctionRef
    """The function `run(sessions, sample)`, as `calibration/<file>.py:<function>`; the file is in the project's
    `calibration/` folder."""
    file: ProjectPath | HubData
    """UTF-8 text, relative to the project; each line that is not empty is one `sample`."""
    max_samples: SampleLimit = 128
    """Use no more lines than this, from the first on."""


@dataclass(frozen=True)
class ImagesReader:
    """A folder of pictures, prepared as the application does it. Needs the extra `images`: `uv sync --extra images`."""

    reader: Literal["images"]
    """`images`."""
    folder: ProjectPath | HubData
    """The folder, relative to the project: JPEG, PNG, BMP, WebP or PPM, in folders of its own or not. A picture's
    folder is its label."""
    input: TensorName | None = None
    """The input that takes pictures; may be left out where one alone can."""
    processor: SourceFile | None = None
    """A `preprocessor_config.json` in the model's source, fetched with it, that says all that the keys below do not."""
    size: Annotated[tuple[Side, ...], Size(2, 2, expected="[height, width]")] | None = None
    """Height and width in pixels; 0 for a side that keeps the picture's ratio, up to the largest bucket. What the input
    or the largest bucket has when left out."""
    fit: Fit | None = None
    """How a picture gets that size: `resize`, stretched; `crop`, resized by its shorter side, then cut from the middle;
    `letterbox`, resized as a whole, with bars of `fill` around it. `resize` when left out."""
    edge: Annotated[int, Between(1, 32767)] | None = None
    """With `fit: crop`, what the shorter side is resized to before, as 256 for 224; the size itself when left out."""
    fill: Annotated[int, Between(0, 255)] | None = None
    """With `fit: letterbox`, the value of the bars; 114 when left out."""
    resample: Resample | None = None
    """How pixels are resampled; `bilinear` when left out."""
    color: Color | None = None
    """Order of the channels; `rgb`, or `gray` for an input of one channel, when left out."""
    layout: Layout | None = None
    """Whether channels come before height and width; seen from the input's shape when left out."""
    scale: float | None = None
    """What pixels, 0 to 255, are multiplied by; 1/255 when left out. Then `mean` is taken off, and `std` divides."""
    mean: Annotated[tuple[float, ...], Size(1, 3)] | None = None
    """One value for all channels, or one each, on the scale that `scale` makes; 0 when left out."""
    std: Annotated[tuple[float, ...], Size(1, 3)] | None = None
    """One value for all channels, or one each; 1 when left out."""
    max_samples: SampleLimit = 128
    """Use no more samples than this, from the first on."""


@dataclass(frozen=True)
class AudioReader:
    """A folder of sounds as waveforms. FLAC needs the extra `audio`: `uv sync --extra audio`."""

    reader: Literal["audio"]
    """`audio`."""
    folder: ProjectPath | HubData
    """The folder, relative to the project: WAV or FLAC, in folders of its own or not. A file's folder is its label."""
    rate: Annotated[int, Between(1, 1_000_000)]
    """The model's rate in Hz. A file of another is refused."""
    resample: bool = False
    """Whether files of other rates are brought to `rate` instead."""
    input: TensorName | None = None
    """The input that takes the waveform; may be left out where one alone can."""
    channels: Literal["mix", "first"] = "mix"
    """What becomes of several channels: their mean, or the first."""
    scale: float = 1.0
    """What samples, -1 to 1, are multiplied by; 32768 for a model that takes the numbers of 16 bits."""
    window: Annotated[int, Between(1, 100_000_000)] | None = None
    """Samples of one call, those of `context` among them. When left out, what the input has where that is fixed, else
    the whole file up to the largest bucket."""
    context: Annotated[int, Between(0, 100_000_000)] = 0
    """How many of a window's samples are the last ones of the window before; zeros before the first."""
    hop: Annotated[int, Between(1, 100_000_000)] | None = None
    """Samples from one window to the next; as many as are new in each when left out."""
    max_windows: SampleLimit = 64
    """Most windows of a file to keep, evenly over it."""
    length: TensorName | None = None
    """An input that takes the number of samples."""
    mask: TensorName | None = None
    """An input that takes a 1 for every sample."""
    states: Mapping[TensorName, TensorName] = field(default_factory=dict)
    """Inputs that the model hands to itself from window to window, each with the output that it is fed from, as
    `{state: stateN}`. They are zeros at the beginning of a file."""
    max_samples: SampleLimit = 128
    """Use no more files than this, from the first on."""


@dataclass(frozen=True)
class ChatReader:
    """Conversations through a language model's own template; each is run as in use, token by token where it answers."""

    reader: Literal["chat"]
    """`chat`."""
    file: ProjectPath
    """JSON lines, relative to the project: each line is a list of messages, `{"role": "user", "content": "..."}`."""
    max_samples: SampleLimit = 128
    """Use no more conversations than this, from the first on."""


Reader = TextReader | NpzReader | PythonReader | RecordReader | ImagesReader | AudioReader | ChatReader
