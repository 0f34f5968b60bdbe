"""What answers in a chat: onnxruntime-genai over a release's contexts, or a loop of numpy over its sessions.

Both read `genai_config.json` of the contexts' folder. The loop takes from `inputs.onnx` what positions and masks are
for the graphs, so that it knows nothing of rotations and encodings, nor of tables of embeddings beside the graphs.
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
    """What `genai_config.json` says of a language model. Raises FormatError for one that does not say it."""

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
    """What makes an answer of a conversation's tokens."""

    name: str

    def answer(self, tokens: Sequence[int], most: int) -> Iterator[int]:
        """The tokens of an answer to `tokens`, each as it is found, before one that ends answers."""


class GenaiEngine:
    """onnxruntime-genai: it reads a conversation anew for each answer."""

    name = "onnxruntime-genai"

    def __init__(self, folder: Path, config: ChatConfig) -> None:
        """`folder` has the contexts and all that is to be beside them.

        Raises:
            LoadError: it refuses the folder.
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
    """The loop: a cache of numpy arrays around two graphs, decode and prefill. What was read stays in the cache."""

    name = "numpy"

    def __init__(self, config: ChatConfig, inputs: Run, decode: tuple[int, Run], prefill: tuple[int, Run]) -> None:
        """`inputs` runs `inputs.onnx`; the graphs come with how many tokens a run takes. Both leave out what they don't
        take: tokens go into a graph, or where its table of embeddings is beside it, into `inputs.onnx`.
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
        """Run a graph over tokens, which stand at the front of its window; the logits of the last of them."""
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
    """The last positions along an axis."""
    return np.ascontiguousarray(np.take(array, range(array.shape[axis] - count, array.shape[axis]), axis))
