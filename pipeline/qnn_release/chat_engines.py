"""The two engines that answer in a chat: onnxruntime-genai with a release's contexts, and a numpy loop over sessions.

Both read `genai_config.json` in the contexts' folder. The loop runs `inputs.onnx`, a small model that turns positions
and masks into the graphs' other inputs. So the loop knows nothing of rotary embeddings, encodings and embedding tables.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError, LoadError

CONFIG, INPUTS, TABLE = "genai_config.json", "inputs.onnx", "embedding.bin"
Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[dict[str, NDArray[Any]]], Arrays]


class ChatConfig:
    """What `genai_config.json` says of a language model. Raises FormatError if something is missing or wrong."""

    def __init__(self, path: Path) -> None:
        try:
            model = json.loads(path.read_text("utf-8"))["model"]
            decoder = model["decoder"]
            self.context = int(model["context_length"])
            self.stops = tuple(int(token) for token in model["eos_token_id"])
            self.pad = int(model["pad_token_id"])
            self.bos = int(model["bos_token_id"]) if "bos_token_id" in model else None
            self.layers = int(decoder["num_hidden_layers"])
            self.heads, self.head_size = int(decoder["num_key_value_heads"]), int(decoder["head_size"])
            self.filler = int(decoder["sliding_window"]["pad_value"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"{CONFIG} does not say how to run the language model",
                where=str(path),
                why=f"{type(error).__name__}: {error}",
                next="get the release again",
            ) from error


class ChatEngine(Protocol):
    """Makes an answer from the tokens of a conversation."""

    name: str

    def answer(self, tokens: Sequence[int], most: int) -> Iterator[int]:
        """At most `most` tokens of an answer to `tokens`, each as it is found, without the one that ends the answer."""


class GenaiEngine:
    """Answers with onnxruntime-genai, which reads the whole conversation anew for each answer."""

    name = "onnxruntime-genai"

    def __init__(self, folder: Path, config: ChatConfig) -> None:
        """Open `folder`, which has the contexts and the files that onnxruntime-genai needs beside them.

        Raises:
            LoadError: onnxruntime-genai refuses the folder.
        """
        self._genai = importlib.import_module("onnxruntime_genai")
        self._config = config
        qnn = importlib.import_module("onnxruntime_qnn")
        try:
            self._genai.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
            self._model = self._genai.Model(str(folder))
        except Exception as error:  # it raises classes of its extension module
            raise LoadError(
                "onnxruntime-genai does not open the contexts",
                where=str(folder),
                why=str(error),
                next="use version 0.16.0 of it, or chat(engine='numpy')",
            ) from error

    def answer(self, tokens: Sequence[int], most: int) -> Iterator[int]:
        """As :class:`ChatEngine` says."""
        generator = self._genai.Generator(self._model, self._genai.GeneratorParams(self._model))
        generator.append_tokens([*tokens])
        for _ in range(most):
            if generator.is_done():
                return
            generator.generate_next_token()
            token = int(generator.get_next_tokens()[0])
            if token in self._config.stops:
                return
            yield token


class LoopEngine:
    """Answers with two graphs, decode and prefill, around a cache of numpy arrays that keeps what was read."""

    name = "numpy"

    def __init__(self, config: ChatConfig, inputs: Run, decode: tuple[int, Run], prefill: tuple[int, Run]) -> None:
        """`inputs` runs `inputs.onnx`; `decode` and `prefill` are the number of tokens that a run takes, and the run.

        Each ignores arrays that it has no input for: tokens go into a graph or, if its embedding table is in a file of
        its own, into `inputs.onnx`.
        """
        self._config, self._inputs, self._decode, self._prefill = config, inputs, decode, prefill
        self._forget()

    def answer(self, tokens: Sequence[int], most: int) -> Iterator[int]:
        """As :class:`ChatEngine` says."""
        known = self._known
        if list(tokens[: len(known)]) != known or len(tokens) == len(known):
            self._forget()
        rest = [*tokens[len(self._known) :]]
        row = np.zeros(1, np.float32)
        while rest:
            window, _ = graph = self._prefill
            if len(self._known) > self._config.context - window:  # the cache of prefill is too short for what was read
                window, _ = graph = self._decode
            row = self._step(graph, rest[:window])
            rest = rest[window:]
        for left in range(min(most, self._config.context - len(self._known)), 0, -1):
            token = int(np.argmax(row))
            if token in self._config.stops:
                return
            yield token
            if left > 1:
                row = self._step(self._decode, [token])

    def _forget(self) -> None:
        config = self._config
        self._known: list[int] = []
        past = config.context - self._decode[0]
        shapes = {"key": (config.heads, 1, config.head_size, past), "value": (config.heads, 1, past, config.head_size)}
        self._cache = {
            f"past_{kind}_{layer}": np.full(shape, config.filler, np.uint8)
            for layer in range(config.layers)
            for kind, shape in shapes.items()
        }

    def _step(self, graph: tuple[int, Run], tokens: Sequence[int]) -> NDArray[np.float32]:
        """Run a graph on tokens at the front of its window. Returns the logits after the last: float32 [vocabulary]."""
        width, run = graph
        past, count = self._config.context - width, len(tokens)
        ids = np.full((1, width), self._config.pad, np.int32)
        ids[0, :count] = tokens
        seen = np.zeros((1, self._config.context), np.int32)
        seen[0, past - min(len(self._known), past) : past + count] = 1
        places = np.minimum(len(self._known) + np.arange(width), self._config.context - 1)
        counted = {"position_ids": places[None].astype(np.int32), "attention_seen": seen}
        made = self._inputs({"input_ids": ids, **counted})
        cache = {f"{name}_in": _last(array, past, _axis(name)) for name, array in self._cache.items()}
        outputs = run({"input_ids": ids, **made, **cache})
        for name, array in self._cache.items():
            axis = _axis(name)
            new = np.take(outputs[f"{name}_out"], range(count), axis)
            self._cache[name] = _last(np.concatenate([array, new], axis), array.shape[axis], axis)
        self._known += tokens
        return np.asarray(outputs["logits"][0, count - 1], np.float32)


def _axis(name: str) -> int:
    return 3 if "_key_" in name else 2


def _last(array: NDArray[Any], count: int, axis: int) -> NDArray[Any]:
    """The last `count` positions along an axis, as a contiguous array."""
    return np.ascontiguousarray(np.take(array, range(array.shape[axis] - count, array.shape[axis]), axis))
