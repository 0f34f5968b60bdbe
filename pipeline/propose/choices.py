"""What a first configuration says: axes, buckets, constants and a reader, chosen from what was seen of a model.

The vocabulary that goes with a model's ids: which of the files beside it has one, and how it reads a text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import CalibrationError
from pipeline.inputs.samples.vocabulary import read_vocabularies
from pipeline.propose.absent import filler
from pipeline.propose.found_model import FoundModel
from pipeline.propose.guessed_axes import GuessedAxis, guess_axes
from pipeline.propose.interface import NEVER_VARIED, GuessedComponent, GuessedInput
from pipeline.propose.picture_sizes import USUAL, Picture, guessed_side, said_side
from pipeline.propose.proposal import Choices, Said

_TOKEN_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids"})
_TOKENS = (32, 64, 128)
_LENGTHS = (64, 128)
_SECONDS = (1, 3)
_RATE = 16000
_STEP_OF_WIDTH = (160, 320)


def choose(
    name: str,
    found: FoundModel,
    components: Mapping[str, GuessedComponent],
    picture: Picture = USUAL,
) -> Choices:
    """All that can be said of a model called `name` without running it; `picture` is a size to guess."""
    made = Choices()
    readable = {key: each for key, each in components.items() if each.refused is None}
    inputs = [given for each in readable.values() for given in each.inputs]
    rate = _rate(found, inputs)
    for given in inputs:
        if given.kind == "selector":
            made.constants[given.spec.name] = _constant(given, rate)
    for axis in guess_axes(readable):
        if axis.kind == "length" and _goes_on(axis, readable):
            of = ", ".join(axis.carriers)
            made.fixed[axis.name] = Said(
                1, f"GUESS: as many as one run is given, of {of}: a state goes on behind them, so none may be padded"
            )
        else:
            _place(axis, made, found, inputs, rate.value, picture)
    _even(made)
    for key, each in readable.items():
        if (padding := _padding(each, made)) is not None:
            made.padding[key] = padding
    _choose_reader(name, found, readable, made, rate)
    return made


def _goes_on(axis: GuessedAxis, components: Mapping[str, GuessedComponent]) -> bool:
    """Whether all that has an axis hands a state to its next run, and is not told how much of the axis is padded."""
    having = {carrier.rpartition("[")[0] for carrier in axis.carriers}
    of = [each for name, each in components.items() if any(f"{name}.{i.spec.name}" in having for i in each.inputs)]
    return all(each.of_kind("state") and not each.of_kind("length", "mask") for each in of)


def _rate(found: FoundModel, inputs: Sequence[GuessedInput]) -> Said:
    """The rate of a model of sounds, in Hz."""
    for file in ("preprocessor_config.json", "config.json"):
        said = found.said(file)
        for key in ("sampling_rate", "sample_rate"):
            if isinstance(said.get(key), int) and 1000 <= said[key] <= 200_000:
                return Said(said[key], f"as {file} says")
    for given in inputs:
        rates = [int(value) for value in given.values if 4000 <= value <= 200_000]
        if given.kind == "selector" and rates:
            return Said(_RATE if _RATE in rates else rates[0], f"one that {given.spec.name!r} is compared with")
    return Said(_RATE, "GUESS: the rate in Hz that the model was trained for")


def _constant(given: GuessedInput, rate: Said) -> Said:
    values = given.values
    chosen: Any = rate.value if rate.value in values else values[0] if values else 0
    if given.spec.dtype == "bool":
        chosen = bool(chosen)
    seen = f"the graph compares it with {', '.join(map(str, values))}" if values else "no number is known"
    return Said(chosen, f"it selects a branch (If): {'' if values else 'GUESS, '}{seen}")


def _place(
    axis: GuessedAxis,
    made: Choices,
    found: FoundModel,
    inputs: Sequence[GuessedInput],
    rate: int,
    picture: Picture,
) -> None:
    """Put an axis under `fixed` or `buckets`."""
    of = ", ".join(axis.carriers[:4]) + (", …" if len(axis.carriers) > 4 else "")
    of += f": {axis.why}" if axis.why else ""
    match axis.kind:
        case "batch":
            made.fixed[axis.name] = Said(1, f"a batch, of {of}")
        case "channels":
            made.fixed[axis.name] = Said(3, f"channels of a picture, of {of}")
        case "height" | "width":
            said = said_side(axis, found, inputs)
            made.guessed_picture |= said is None
            size, why = said or guessed_side(axis, picture)
            if size:
                made.fixed[axis.name] = Said(size, f"{axis.kind} of a picture, of {of}: {why}")
            else:
                made.buckets[axis.name] = Said(list(_STEP_OF_WIDTH), f"{axis.kind} of a picture, of {of}: {why}")
        case "samples":
            made.buckets[axis.name] = Said([rate * each for each in _SECONDS], f"samples: 1 and 3 seconds, of {of}")
        case "tokens":
            most = _most_tokens(found)
            sizes = [each for each in _TOKENS if each <= most] or [int(most)]
            limit = f"; the model takes {int(most)} at most" if most < math.inf else ""
            made.buckets[axis.name] = Said(sizes, f"tokens, of {of}{limit}")
            made.lengths.append(axis.name)
        case "length":
            made.buckets[axis.name] = Said(list(_LENGTHS), f"GUESS: a length, of {of}")
            made.lengths.append(axis.name)


def _padding(each: GuessedComponent, made: Choices) -> Said | None:
    """What inputs are padded with that say themselves what is not there; None where 0 will do for all."""
    padded = [given.spec for given in each.inputs if not made.buckets.keys().isdisjoint(map(str, given.spec.shape))]
    limits = {spec.name: each.limits[spec.name] for spec in padded if spec.name in each.limits}
    told = ", ".join(f"what is not above {limit:g} of {name!r}" for name, limit in limits.items())
    said = f"GUESS: the graph takes {told} for absent, so padding is below that"
    return Said({name: filler(limit) for name, limit in limits.items()}, said) if limits else None


def _most_tokens(found: FoundModel) -> float:
    most = found.said("config.json").get("max_position_embeddings", math.inf)
    return most if isinstance(most, int) and most > 0 else math.inf


def _even(made: Choices) -> None:
    """Give all axes as many values: those in one place make a bucket together."""
    longest = max((len(said.value) for said in made.buckets.values()), default=0)
    for axis, said in made.buckets.items():
        values = list(said.value)
        values = [values[0]] * (longest - len(values)) + values
        made.buckets[axis] = Said(values, said.comment)
    if len(made.buckets) > 1:
        made.notes.append("buckets: the first values of all axes make a bucket, and so on; 'cross: true' crosses them")


def _choose_reader(
    name: str, found: FoundModel, components: Mapping[str, GuessedComponent], made: Choices, rate: Said
) -> None:
    kinds = {given.kind for each in components.values() for given in each.inputs} - {*NEVER_VARIED}
    folder = f"calibration/{name}"
    if _is_text(components):
        _text(folder, found, components, made)
    elif len(components) > 1:
        _record(folder, name, components, made)
    elif kinds == {"image"} and sum(len(each.of_kind("image")) for each in components.values()) == 1:
        _images(folder, found, components, made)
    elif "audio" in kinds and kinds <= {"audio", "state", "length", "mask"}:
        _audio(folder, components, made, rate)
    else:
        _arrays(folder, components, made)


def _is_text(components: Mapping[str, GuessedComponent]) -> bool:
    """Whether tokens are all that goes in: under the names that exports give them, or ids and what goes with them."""
    names = {given.spec.name for each in components.values() for given in each.inputs if given.kind not in NEVER_VARIED}
    if names and names <= _TOKEN_INPUTS:
        return True
    kinds = [given.kind for each in components.values() for given in each.inputs if given.kind not in NEVER_VARIED]
    return (
        len(components) == 1
        and kinds.count("ids") == 1
        and set(kinds) <= {"ids", "mask", "length"}
        and len(kinds) == len({*kinds})
    )


def _text(folder: str, found: FoundModel, components: Mapping[str, GuessedComponent], made: Choices) -> None:
    tokenizer = found.beside("tokenizer.json")
    inputs = [given for each in components.values() for given in each.inputs]
    rows = next((given.rows for given in inputs if given.kind == "ids" and given.rows), None)
    table = find_table(found, rows) if tokenizer is None else None
    if tokenizer is None and table is None:
        _arrays(folder, components, made)
        made.notes.append(
            "with a tokenizer.json or a vocabulary (vocab.txt, vocab.json) beside the model 'reader: text' takes lines"
            " of text instead"
        )
        return
    made.reader = {
        "reader": Said("text"),
        "file": Said(f"{folder}/sentences.txt", "one sample a line, as users write them; .tsv and .jsonl for pairs"),
    }
    if tokenizer is not None:
        made.reader["tokenizer"] = Said(tokenizer)
    if table is not None:
        made.reader["vocabulary"] = _vocabulary(table, rows)
        made.notes.append("no tokenizer.json says how a text becomes tokens: compare 'vocabulary' with the application")
    for given in inputs:
        if given.kind in ("ids", "mask", "length") and given.spec.name not in _TOKEN_INPUTS:
            made.reader[given.kind] = Said(given.spec.name, given.why)
    made.missing.append(f"{folder}/sentences.txt: 32 or more lines of text, short and long")


def _vocabulary(table: FoundTable, rows: int | None) -> Said:
    """What a config says of a table of tokens, what is left out being as it is by default."""
    said: dict[str, Any] = {"file": table.file}
    if table.key:
        said["key"] = table.key
    said["tokens"] = table.tokens
    if table.lowercase:
        said["lowercase"] = True
    named = (("unknown", table.unknown), ("begin", table.begin), ("end", table.end))
    said |= {key: token for key, token in named if token is not None}
    fits = f" for {rows} rows of the model" if rows else ""
    return Said(said, f"GUESS: {table.size} tokens{fits}; there are normalize, drop_marks, begin and end as well")


def _images(folder: str, found: FoundModel, components: Mapping[str, GuessedComponent], made: Choices) -> None:
    ((one, given),) = ((one, each) for one in components.values() for each in one.of_kind("image"))
    processor = found.beside("preprocessor_config.json")
    made.reader = {
        "reader": Said("images"),
        "folder": Said(folder, "pictures as users take them: JPEG, PNG, BMP, WebP"),
    }
    if processor:
        made.reader["processor"] = Said(processor, "says size, scale, mean and std; keys here go before it")
    elif given.spec.dtype != "uint8":
        shape = given.spec.shape
        first = shape[1] in (1, 3) or shape[3] not in (1, 3)
        height, width = (shape[2], shape[3]) if first else (shape[1], shape[2])
        if any(str(side) in made.buckets for side in (height, width)):
            sides = [side if isinstance(side, int) else 0 for side in (height, width)]
            made.reader["size"] = Said(sides, "0: the side that keeps the picture's ratio")
        made.reader |= {
            "fit": Said("resize", "GUESS: or letterbox, as many detectors want it, or crop"),
            "color": Said(
                "gray" if shape[1 if first else 3] == 1 else "rgb", "GUESS: or bgr, as OpenCV reads pictures"
            ),
            **_normalized(one.pixels.get(given.spec.name)),
        }
        made.notes.append("no preprocessor_config.json says how pictures are prepared: compare with the application")
    made.missing.append(f"{folder}/: 32 or more pictures; of other things than in the application they are no help")


def _normalized(largest: int | None) -> dict[str, Said]:
    """How pixels become numbers, of which the `largest` is known where the graph does the rest itself."""
    fraction = 0.00392156862745098
    if largest is not None:
        why = f"the graph normalizes pixels of 0 to {largest} itself"
        return {"scale": Said(fraction if largest == 1 else 1.0, why), "mean": Said([0.0]), "std": Said([1.0])}
    return {
        "scale": Said(fraction, "GUESS: 1/255, then (pixel - mean) / std"),
        "mean": Said([0.0], "GUESS: ImageNet's are [0.485, 0.456, 0.406]"),
        "std": Said([1.0], "GUESS: ImageNet's are [0.229, 0.224, 0.225]"),
    }


def _audio(folder: str, components: Mapping[str, GuessedComponent], made: Choices, rate: Said) -> None:
    inputs = [given for each in components.values() for given in each.inputs]
    made.reader = {
        "reader": Said("audio"),
        "folder": Said(folder, "WAV or FLAC; with 'resample: true' of any rate"),
        "rate": rate,
    }
    waves = [given for given in inputs if given.kind == "audio"]
    if len(waves) > 1:
        made.reader["input"] = Said(waves[0].spec.name, "GUESS: more than one input could take the waveform")
    for given in inputs:
        if given.kind in ("length", "mask"):
            made.reader[given.kind] = Said(given.spec.name, given.why)
    if states := {given.spec.name: given.feeds for given in inputs if given.kind == "state"}:
        made.reader["states"] = Said(states, "inputs that outputs are handed on to, from window to window")
        made.notes.append(
            "'context: N' under calibration, if a window begins with the last N samples of the one before"
        )
    made.missing.append(f"{folder}/: 16 or more sounds, with and without what the model listens for")


def _record(folder: str, name: str, components: Mapping[str, GuessedComponent], made: Choices) -> None:
    code = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    made.reader = {
        "reader": Said("record"),
        "run": Said(f"calibration/{code}.py:run", "runs the components as the application does; see below"),
        "file": Said(f"{folder}/samples.txt", "one sample a line: a text, or the name of a file"),
    }
    first = next(iter(components))
    made.notes += [
        "several components: what goes into a later one is known when the earlier ones have run. The function is",
        "    def run(sessions, sample):                    # once for every line of the file",
        f'        outputs = sessions["{first}"](…=…)        # inputs by name; {", ".join(components)}',
        "docs/calibration.md shows one. With 'reader: npz' arrays made elsewhere go to each component's folder.",
    ]
    made.missing += [f"calibration/{code}.py with run(sessions, sample)", f"{folder}/samples.txt: a sample a line"]


def _arrays(folder: str, components: Mapping[str, GuessedComponent], made: Choices) -> None:
    made.reader = {
        "reader": Said("npz"),
        "folder": Said(folder, "a .npz a sample: numpy.savez('0.npz', <input>=array, …), the batch of 1 included"),
    }
    names = [given.spec.name for each in components.values() for given in each.inputs if given.kind not in NEVER_VARIED]
    if any(given.kind == "features" for each in components.values() for given in each.inputs):
        made.notes.append("an input looks like features (a spectrogram): make them as the application does")
    if any(given.kind == "state" for each in components.values() for given in each.inputs):
        made.notes.append("inputs that are states want values of real runs, not zeros alone: see reader: record")
    arrays = f"arrays {', '.join(names[:6])}" if names else "model's inputs"
    made.missing.append(f"{folder}/: 32 or more .npz files with the {arrays}")


_UNKNOWN = ("<unk>", "[UNK]", "<UNK>", "UNK", "unk", "<oov>", "[OOV]", "<OOV>")
_BEGIN = ("[CLS]", "<s>", "<bos>", "<BOS>", "<sos>", "<SOS>")
_END = ("[SEP]", "</s>", "<eos>", "<EOS>")
_MOSTLY = 0.8


@dataclass(frozen=True)
class FoundTable:
    """A vocabulary of `file`, in JSON at `key`, of `size` tokens; the rest as a config's :class:`TokenTable` has it."""

    file: str
    key: str
    size: int
    tokens: str
    lowercase: bool
    unknown: str | None
    begin: str | None
    end: str | None


def find_table(found: FoundModel, rows: int | None) -> FoundTable | None:
    """The vocabulary beside a model whose ids look up a table of `rows`: the one with as many tokens, or nearly."""
    fitting: list[tuple[int, str, str, dict[str, int]]] = []
    for file, path in found.tables.items():
        try:
            tables = read_vocabularies(path, file)
        except (CalibrationError, OSError):
            continue
        for key, tokens in tables.items():
            missing = 0 if rows is None else rows - 1 - max(tokens.values(), default=0)
            if len(tokens) > 1 and 0 <= missing <= (rows or 0) // 2:
                fitting.append((missing, file, key, tokens))
    if not fitting:
        return None
    _, file, key, tokens = min(fitting, key=lambda each: each[0])  # of equals, the nearest to the root
    plain = [token for token in tokens if not (token.startswith(("<", "[")) and token.endswith((">", "]")))]
    single = sum(len(token) == 1 for token in plain) / max(1, len(plain))
    kind = "characters" if single >= _MOSTLY else "pieces" if any(t.startswith("##") for t in plain) else "words"
    cased = any(token != token.lower() for token in plain)
    small = any(token != token.upper() for token in plain)
    unknown, begin, end = (next((t for t in among if t in tokens), None) for among in (_UNKNOWN, _BEGIN, _END))
    return FoundTable(file, key, len(tokens), kind, small and not cased, unknown, begin, end)
