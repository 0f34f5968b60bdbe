"""Writes down what a speech model hears: windows of sound, an encoder's run for each, and a decoder's for each token.

The loop is that of Whisper (https://arxiv.org/abs/2212.04356, section 4.5): a window whose text repeats itself or is
unlikely is decoded again at a higher temperature, one without speech gives no text, and in long audio the next window
begins where the last whole segment ended. Beam search is not there. Features are made of each window by itself.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import ArgumentError, FormatError
from .sound_features import HOP, RATE, log_mel, waveform

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Arrays = Mapping[str, NDArray[Any]]
Task = Literal["transcribe", "translate"]
Run = Callable[[dict[str, NDArray[Any]]], Arrays]

FILES = ("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json")
"""The files of the source that say how a speech model is used."""
_MASKED = -50.0
_TICK = 2 * HOP
"""Audio samples between two timestamps."""
_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_REPEATS = 2.4
"""A text that compresses better than this repeats itself."""
_UNLIKELY = -1.0
"""The least mean logarithm of the probability of a text's tokens."""
_NO_SPEECH = 0.6
_SILENCE = 1e-4
"""A window whose loudest sample is below this, -80 dB, is silent."""
_LARGEST = 1 << 28
_FRONT: Mapping[str, object] = {
    "feature_extractor_type": "WhisperFeatureExtractor", "hop_length": HOP, "n_fft": 400, "sampling_rate": RATE,
    "padding_value": 0.0, "padding_side": "right", "return_attention_mask": False, "dither": 0.0,
    "processor_class": "WhisperProcessor",
}  # fmt: skip
_FRONT_SIZES = frozenset({"feature_size", "chunk_length", "n_samples", "nb_max_frames", "mel_filters"})


@dataclass(frozen=True)
class Segment:
    """A piece of a transcript, from `start` to `end` in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """The text of a sound, its segments, and the language's token, such as `en`; "" for models of one language."""

    text: str
    segments: tuple[Segment, ...]
    language: str = ""


@dataclass(frozen=True)
class Decoded:
    """The tokens of a window, without prompt and end, and what Whisper judges them by."""

    tokens: tuple[int, ...]
    mean_log: float
    no_speech: float
    logits: NDArray[np.float32]
    """Of each step after the prompt, float32 [steps, vocabulary], before any token is suppressed."""


class SpeechSetting:
    """What the files beside a speech model say: sizes, special tokens, and the tokenizer."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        """`paths` has each of :data:`FILES`.

        Raises:
            FormatError: a file is damaged, or says what is not supported.
        """
        from tokenizers import Tokenizer

        config, generation, front = (_object(paths[name]) for name in FILES[:3])
        for key, value in front.items():
            if key not in _FRONT_SIZES and value != _FRONT.get(key, ...):
                raise _refused(FILES[2], f"{key!r} is {str(value)[:60]!r}, which changes the features")
        self.bands = _whole(config, "num_mel_bins", 80)
        self.frames = 2 * _whole(config, "max_source_positions", 1500)
        self.vocabulary = _whole(config, "vocab_size")
        if front.get("feature_size", self.bands) != self.bands:
            raise _refused(FILES[2], f"it makes {front['feature_size']} mel bands, and the model takes {self.bands}")
        try:
            self.tokenizer: Tokenizer = Tokenizer.from_file(str(paths[FILES[3]]))
        except Exception as error:  # tokenizers raises plain Exception
            raise _refused(FILES[3], str(error)[:200]) from None
        self.start = _whole(config, "decoder_start_token_id")
        self.end = _whole(config, "eos_token_id")
        for token, number in (("<|startoftranscript|>", self.start), ("<|endoftext|>", self.end)):
            if self._number(token) != number:
                why = f"{token} is {self._number(token)} there, and {number} in config.json"
                raise _refused(FILES[3], f"it is of another model: {why}")
        if self.tokenizer.get_vocab_size() > self.vocabulary:
            raise _refused(FILES[3], f"it has {self.tokenizer.get_vocab_size()} tokens, the model {self.vocabulary}")
        plain = self._number("<|notimestamps|>")
        if plain is None:
            raise _refused(FILES[3], "it has no token <|notimestamps|>")
        self.plain, self.first_time = plain, plain + 1
        self.no_speech = self._number("<|nospeech|>") or self._number("<|nocaptions|>") or plain - 1
        told = generation.get("lang_to_id")
        self.languages = {str(key).strip("<|>"): value for key, value in told.items()} if isinstance(told, dict) else {}
        if not self.languages and generation.get("is_multilingual", self.end == 50257):
            codes = ((number, self.tokenizer.id_to_token(number) or "") for number in range(self.start + 1, plain))
            self.languages = {
                text[2:-2]: number for number, text in codes if text[:2] == "<|" and 4 + 2 <= len(text) <= 4 + 3
            }
        self.suppressed = _numbers(generation.get("suppress_tokens"))
        self.suppressed_first = _numbers(generation.get("begin_suppress_tokens"))

    def prompt(self, language: str, task: str, *, times: bool) -> list[int]:
        """The tokens that come before a text."""
        found = [self.start]
        if self.languages:
            which = self._number(f"<|{task}|>")
            if which is None:
                raise ArgumentError(
                    f"the model has no task {task!r}", where="task", next="give transcribe or translate"
                )
            found += [self.languages[language], which]
        return found if times else [*found, self.plain]

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens; those of times and other special ones have none."""
        return str(self.tokenizer.decode([token for token in tokens if token < self.end]))

    def _number(self, token: str) -> int | None:
        found: int | None = self.tokenizer.token_to_id(token)
        return found


class Transcriber:
    """A speech model, ready to write down sounds. Not for several threads at once."""

    def __init__(self, setting: SpeechSetting, encode: Run, decode: Run, past: Mapping[str, Sequence[int]]) -> None:
        """`past` has the shape of each input of the decoder that is a cache, `past_key_0_in` and so on."""
        self.setting, self._encode, self._decode, self._past = setting, encode, decode, dict(past)
        self._room = next(iter(self._past.values()))[2] if self._past else 0

    def transcribe(self, samples: ArrayLike, rate: int, *, language: str = "", task: str = "transcribe") -> Transcript:
        """The text of a sound; see :meth:`segments`."""
        segments = tuple(self.segments(samples, rate, language=language, task=task))
        return Transcript("".join(each.text for each in segments).strip(), segments, self.language)

    language = ""
    """The language of the last sound."""

    def segments(
        self, samples: ArrayLike, rate: int, *, language: str = "", task: str = "transcribe"
    ) -> Iterator[Segment]:
        """The segments of a sound as they are found; of one window a single one, of a longer sound several in each.

        Without `language`, a model of several languages hears which it is in the first window.

        Raises:
            InputError: the samples are no sound.
            ArgumentError: the model does not know the language or the task.
        """
        setting = self.setting
        if language and language not in setting.languages:
            known = ", ".join(sorted(setting.languages)) or "one alone, which is not given"
            raise ArgumentError(
                f"the model does not know the language {language!r}", where="language", next=f"it knows {known}"
            )
        wave, size = waveform(samples, rate), setting.frames * HOP
        self.language, at = language, 0
        whole = wave.size <= size
        while at < wave.size:
            window = wave[at : at + size]
            if np.abs(window).max() < _SILENCE:
                at += size
                continue
            crossing = self.encode(window)
            if not self.language and setting.languages:
                self.language = self.heard(crossing)
            prompt = setting.prompt(self.language, task, times=not whole)
            heard = self._decoded(crossing, prompt)
            ends = at + window.size
            if heard is None:
                at = ends
                continue
            if whole:
                yield Segment(0.0, wave.size / RATE, setting.text(heard.tokens))
                return
            found, ahead = self._timed(heard.tokens, at, ends)
            yield from found
            at += ahead

    def encode(self, window: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """The cross attention's keys and values of a window at 16 kHz."""
        return self.encode_features(log_mel(window, self.setting.bands, self.setting.frames))

    def encode_features(self, features: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """The same for features, float32 [1, bands, frames]."""
        return dict(self._encode({"input_features": features}))

    def steps(self, crossing: Arrays) -> Callable[[int], tuple[dict[str, NDArray[Any]], NDArray[np.float32]]]:
        """A function that takes the next token of a text: the decoder's inputs, and its logits [vocabulary]."""
        cache = {name: np.zeros(shape, np.float32) for name, shape in self._past.items()}
        mask = np.full((1, 1, self._room + 1), _MASKED, np.float32)
        mask[..., -1] = 0
        position = 0

        def step(token: int) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
            nonlocal position
            feed = {
                "input_ids": np.array([[token]], np.int32),
                "position": np.array([position], np.int32),
                "attention_mask": mask.copy(),
                **{name: array.copy() for name, array in cache.items()},
                **crossing,
            }
            made = self._decode(feed)
            for name, array in cache.items():
                if position < self._room:
                    new = made[f"{name.removesuffix('_in')}_out"]
                    place = (slice(None), slice(None), position) if "_key_" in name else (slice(None), position)
                    array[place] = new[..., 0] if "_key_" in name else new[:, 0]
            mask[..., min(position, self._room - 1)] = 0
            position += 1
            return feed, np.asarray(made["logits"], np.float32)[0]

        return step

    def decode(
        self,
        crossing: Arrays,
        prompt: Sequence[int],
        temperature: float = 0.0,
        forced: Sequence[int] | None = None,
        seen: Callable[[dict[str, NDArray[Any]]], None] = lambda feed: None,
    ) -> Decoded:
        """The tokens after a prompt; with `forced`, those and the logits that the model has for each of them.

        `seen` is called with the decoder's inputs of each step.
        """
        setting, run = self.setting, self.steps(crossing)

        def step(token: int) -> NDArray[np.float32]:
            feed, logits = run(token)
            seen(feed)
            return logits

        chance = np.random.default_rng(len(prompt) + round(10 * temperature))
        times = setting.plain not in prompt
        logits, silent = np.zeros(0, np.float32), 0.0
        for token in prompt:
            logits = step(token)
            if token == setting.start:
                silent = float(np.exp(_logs(logits)[setting.no_speech]))
        tokens: list[int] = []
        kept = [logits]
        total = 0.0
        for number in range(self._room - len(prompt) + 1):
            if forced is not None and number >= len(forced):
                break
            logs = _logs(self._allowed(logits, tokens, times=times))
            if forced is not None:
                token = forced[number]
            elif temperature == 0:
                token = int(np.argmax(logs))
            else:
                shares = np.exp(_logs(logs / temperature))
                token = int(chance.choice(len(shares), p=shares / shares.sum()))
            total += float(logs[token])
            if token == setting.end and forced is None:
                break
            tokens.append(token)
            if len(prompt) + len(tokens) > self._room:
                break
            logits = step(token)
            kept.append(logits)
        return Decoded(tuple(tokens), total / (len(tokens) + 1), silent, np.stack(kept))

    def _decoded(self, crossing: Arrays, prompt: Sequence[int]) -> Decoded | None:
        """The text of a window at the lowest temperature at which it is good; None if nobody speaks."""
        found = None
        for temperature in _TEMPERATURES:
            found = self.decode(crossing, prompt, temperature)
            if found.no_speech > _NO_SPEECH and found.mean_log < _UNLIKELY:
                return None
            raw = self.setting.text(found.tokens).encode()
            repeats = len(raw) / len(zlib.compress(raw)) > _REPEATS
            if not repeats and found.mean_log >= _UNLIKELY:
                break
        return found

    def heard(self, crossing: Arrays) -> str:
        """The likeliest language of a window, for a model of several."""
        logits = self.steps(crossing)(self.setting.start)[1]
        return max(self.setting.languages, key=lambda name: float(logits[self.setting.languages[name]]))

    def _allowed(self, logits: NDArray[np.float32], tokens: Sequence[int], *, times: bool) -> NDArray[np.float64]:
        """Logits without what may not come next: times come in pairs and never go back (Whisper's `decoding.py`)."""
        setting = self.setting
        found = logits.astype(np.float64)
        found[[*setting.suppressed, *(() if tokens else setting.suppressed_first)]] = -np.inf
        found[setting.end + 1 : setting.first_time if times else None] = -np.inf
        if not times:
            return found
        first = setting.first_time
        last = bool(tokens) and tokens[-1] >= first
        if not tokens:
            found[:first] = -np.inf
            found[first + 51 :] = -np.inf  # the first words begin within a second
            return found
        if last and (len(tokens) == 1 or tokens[-2] >= first):
            found[first:] = -np.inf
        elif last:
            found[: setting.end] = -np.inf
        said = [token for token in tokens if token >= first]
        if said:
            found[first : said[-1] + (0 if last and not (len(tokens) == 1 or tokens[-2] >= first) else 1)] = -np.inf
        logs = _logs(found)
        if np.logaddexp.reduce(logs[first:]) > logs[:first].max():
            found[:first] = -np.inf
        return found

    def _timed(self, tokens: Sequence[int], at: int, ends: int) -> tuple[list[Segment], int]:
        """The segments between pairs of times, and how far ahead the next window begins, in audio samples."""
        first, found = self.setting.first_time, []
        began: int | None = None
        words: list[int] = []
        done = 0
        for token in tokens:
            if token < first:
                words.append(token)
                continue
            tick = (token - first) * _TICK
            if words:
                found.append(Segment((at + (began or 0)) / RATE, (at + tick) / RATE, self.setting.text(words)))
                words, done = [], tick
            began = tick
        if words:  # the text ended without a time: it holds to the end of the window
            found.append(Segment((at + (began or 0)) / RATE, ends / RATE, self.setting.text(words)))
            done = ends - at
        pair = len(tokens) > 1 and tokens[-1] >= first and tokens[-2] >= first
        return found, done if pair and done > 0 else ends - at


def speech_setting(folder: Path) -> SpeechSetting:
    """The setting of a model whose files lie in a folder."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise FormatError(
            f"the speech model has no {missing[0]}",
            where=str(folder),
            why="sizes, special tokens and features are said there",
            next="fetch the file with the model, and name it under 'files' of the config",
        )
    return SpeechSetting({name: folder / name for name in FILES})


def _logs(logits: NDArray[Any]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()))


def _object(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST:
        raise _refused(path.name, "it is too large")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _refused(path.name, str(error)[:200]) from None
    if not isinstance(found, dict):
        raise _refused(path.name, "it is no JSON object")
    return found


def _whole(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    found = values.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 1 << 24:
        raise _refused(FILES[0], f"{key!r} is {str(found)[:60]}")
    return found


def _numbers(found: object) -> tuple[int, ...]:
    several = found if isinstance(found, list) else []
    return tuple(each for each in several if isinstance(each, int) and 0 <= each < 1 << 24)


def _refused(name: str, why: str) -> FormatError:
    return FormatError(
        f"{name} does not fit the speech model", where=name, why=why, next="take the file that the model came with"
    )
