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
    """Commit to take it from, 40 hex digits. A branch or tag is pinned like that of a model."""
    path: SourceFile
    """The file or folder in the repository. From a folder of pictures or sounds, `max_samples` files are fetched."""


@dataclass(frozen=True)
class TokenTable:
    """A table of tokens and their numbers, for models without a `tokenizer.json`."""

    file: SourceFile
    """A file in the model's source, fetched with it. A `.json` has an object of tokens and numbers (or numbers and
    tokens), or a list of tokens. Other files have a token on each line; its number is that of the line, from 0 on, or
    is written behind the token."""
    key: FieldName | None = None
    """Where the vocabulary is in a JSON file, such as `mapping.char_to_idx`. It may be left out if the file has only
    one."""
    tokens: Literal["characters", "words", "pieces"] = "characters"
    """What a token is: a character (code point), a word between blanks, or a piece of a word as in BERT's `vocab.txt`,
    with `##` before pieces that continue a word."""
    normalize: Literal["nfc", "nfd", "nfkc", "nfkd"] | None = None
    """The Unicode form that a text is brought to first. When left out, the text stays as it is."""
    lowercase: bool = False
    """Whether letters are made lower case."""
    drop_marks: bool = False
    """Whether accents and other marks are removed from letters: combining marks, after `nfd`."""
    unknown: FieldName | None = None
    """The token for whatever is not in the vocabulary. When left out, a text that needs it is refused."""
    begin: FieldName | None = None
    """The token before a text."""
    end: FieldName | None = None
    """The token after a text, and after each text of a pair."""


@dataclass(frozen=True)
class TextReader:
    """Lines of text, one sample each, which the model's own tokenizer turns into inputs."""

    reader: Literal["text"]
    """`text`."""
    file: ProjectPath | HubData
    """UTF-8 text, relative to the project, with one sample on each line that is not empty. A line of a `.tsv` file is
    `label<TAB>text`; one of a `.jsonl` file is a JSON object, whose fields may also give inputs by their names."""
    tokenizer: SourceFile = "tokenizer.json"
    """A `tokenizer.json` in the model's source; fetched with the model."""
    vocabulary: TokenTable | None = None
    """In place of a tokenizer, a table of tokens."""
    ids: TensorName | None = None
    """The input that takes token ids, if it is not called `input_ids`. It may be left out if it is the only input of
    whole numbers."""
    mask: TensorName | None = None
    """An input that takes a 1 for every token, if it is not called `attention_mask`."""
    length: TensorName | None = None
    """An input that takes the number of tokens."""
    max_length: Annotated[int, Between(1, 1_000_000)] | None = None
    """The most tokens of a sample; a longer one is cut. The largest bucket when left out."""
    text: FieldName = "text"
    """The field of a JSON line with the text."""
    pair: FieldName | None = None
    """The field of a JSON line with the second text of a pair, for models that compare two."""
    label: FieldName | None = None
    """The field of a JSON line with the label, for scores; `label` when left out."""
    columns: Annotated[tuple[Literal["label", "text", "pair"], ...], Distinct()] = ()
    """The columns of a `.tsv` file, such as `[text, pair]`; `[label, text]` when left out."""
    max_samples: SampleLimit = 128
    """Use no more samples than this, from the first on."""


@dataclass(frozen=True)
class NpzReader:
    """A folder of `.npz` files, one for each sample; arrays are named like the inputs and fit the largest bucket."""

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
    """A function that runs the float components as the application does; the inputs of each run are the samples."""

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
    """The folder, relative to the project, with JPEG, PNG, BMP, WebP or PPM files in it or in folders below. The name
    of a picture's folder is its label."""
    input: TensorName | None = None
    """The input that takes pictures. It may be left out if only one can."""
    processor: SourceFile | None = None
    """A `preprocessor_config.json` in the model's source, fetched with it. It decides all that the keys below don't."""
    size: Annotated[tuple[Side, ...], Size(2, 2, expected="[height, width]")] | None = None
    """Height and width in pixels; 0 for a side that follows from the picture's ratio, up to the largest bucket. When
    left out, the size of the input or of the largest bucket."""
    fit: Fit | None = None
    """How a picture gets this size: `resize` stretches it; `crop` resizes it by its shorter side and cuts out the
    middle; `letterbox` resizes it as a whole and puts bars of `fill` around it. `resize` when left out."""
    edge: Annotated[int, Between(1, 32767)] | None = None
    """With `fit: crop`, the size of the shorter side before the crop, such as 256 for 224; `size` when left out."""
    fill: Annotated[int, Between(0, 255)] | None = None
    """With `fit: letterbox`, the value of the bars; 114 when left out."""
    resample: Resample | None = None
    """How pixels are resampled; `bilinear` when left out."""
    color: Color | None = None
    """Order of the channels; `rgb`, or `gray` for an input of one channel, when left out."""
    layout: Layout | None = None
    """Whether channels come before height and width; by the input's shape when left out."""
    scale: float | None = None
    """The factor for pixels, which are 0 to 255; 1/255 when left out. `mean` is then subtracted, and `std` divides."""
    mean: Annotated[tuple[float, ...], Size(1, 3)] | None = None
    """One value for all channels, or one for each, on the scale after `scale`; 0 when left out."""
    std: Annotated[tuple[float, ...], Size(1, 3)] | None = None
    """One value for all channels, or one for each; 1 when left out."""
    max_samples: SampleLimit = 128
    """Use no more samples than this, from the first on."""


@dataclass(frozen=True)
class AudioReader:
    """A folder of sounds as waveforms. FLAC needs the extra `audio`: `uv sync --extra audio`."""

    reader: Literal["audio"]
    """`audio`."""
    folder: ProjectPath | HubData
    """The folder, relative to the project, with WAV or FLAC files in it or in folders below. The name of a file's
    folder is its label."""
    rate: Annotated[int, Between(1, 1_000_000)]
    """The model's rate in Hz. A file with another rate is refused, unless `resample` is set."""
    resample: bool = False
    """Whether files with other rates are resampled to `rate`."""
    input: TensorName | None = None
    """The input that takes the waveform. It may be left out if only one can."""
    channels: Literal["mix", "first"] = "mix"
    """What is used of several channels: their mean, or the first."""
    scale: float = 1.0
    """The factor for audio samples, which are -1 to 1; 32768 for a model that takes numbers of 16 bits."""
    window: Annotated[int, Between(1, 100_000_000)] | None = None
    """How many audio samples one call takes, including `context`. When left out, the fixed size of the input or, if it
    has none, the whole file up to the largest bucket."""
    context: Annotated[int, Between(0, 100_000_000)] = 0
    """How many audio samples at the front of a window are the last ones of the window before; zeros for the first."""
    hop: Annotated[int, Between(1, 100_000_000)] | None = None
    """How many audio samples one window begins after the one before. When left out, `window` less `context`."""
    max_windows: SampleLimit = 64
    """The most windows of a file that are used, evenly spread over it."""
    length: TensorName | None = None
    """An input that takes the number of audio samples."""
    mask: TensorName | None = None
    """An input that takes a 1 for every audio sample."""
    states: Mapping[TensorName, TensorName] = field(default_factory=dict)
    """Inputs that carry a state from window to window, each with the output that it is fed from, such as
    `{state: stateN}`. They are zeros at the beginning of a file."""
    max_samples: SampleLimit = 128
    """Use no more files than this, from the first on."""


@dataclass(frozen=True)
class ChatReader:
    """Conversations in a language model's own template. Each is run as in use: token by token in the answers."""

    reader: Literal["chat"]
    """`chat`."""
    file: ProjectPath
    """JSON lines, relative to the project: each line is a list of messages, `{"role": "user", "content": "..."}`."""
    max_samples: SampleLimit = 128
    """Use no more conversations than this, from the first on."""


@dataclass(frozen=True)
class SpeechReader:
    """A folder of speech for a speech model, run as in use: the original encoder and decoder, each on its own words.

    FLAC needs the extra `audio`: `uv sync --extra audio`.
    """

    reader: Literal["speech"]
    """`speech`."""
    folder: ProjectPath | HubData
    """The folder, relative to the project, with WAV or FLAC files of any rate in it or in folders below."""
    language: Annotated[str, Pattern(r"[a-z]{0,3}", "a language, such as 'en'")] = ""
    """The language of all sounds, for models of several. When left out, the model hears which it is."""
    task: Literal["transcribe", "translate"] = "transcribe"
    """The task of models of several languages."""
    steps: Annotated[int, Between(1, 448)] = 4
    """How many of a window's tokens give a sample of the decoder, evenly spread. Each has the keys and values of the
    window's sound with it: 18 MB with Whisper tiny, 37 with base."""
    max_samples: SampleLimit = 40
    """Use no more windows than this, from the first on."""


Reader = TextReader | NpzReader | PythonReader | RecordReader | ImagesReader | AudioReader | ChatReader | SpeechReader
