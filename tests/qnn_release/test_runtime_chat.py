"""A conversation with the language model of a release: what is read, what is answered, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tokenizers import Tokenizer

from pipeline.graph.language.inputs_model import inputs_model
from pipeline.qnn_release import ArgumentError, InputError, LoadError
from pipeline.qnn_release.chat import Chat
from pipeline.qnn_release.chat_engines import ChatConfig, LoopEngine
from pipeline.qnn_release.errors import FormatError
from tests.support.spoken_graphs import KV, LAYERS, SIZE, TOTAL, VOCABULARY, WINDOW, bundle_folder, tiny_facts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return bundle_folder(tmp_path)[0]


class Scripted:
    """An engine that says what it is told to."""

    name = "scripted"

    def __init__(self, says: Sequence[int]) -> None:
        self.says, self.read = says, [0]

    def answer(self, tokens: Sequence[int], most: int) -> Iterator[int]:
        self.read = [*tokens]
        yield from self.says[:most]


def opened(folder: Path, says: Sequence[int] = ()) -> tuple[Chat, Scripted]:
    engine = Scripted(says)
    return Chat(engine, ChatConfig(folder / "genai_config.json"), folder, "a script"), engine


def test_a_question_is_asked_in_the_models_own_template(folder: Path) -> None:
    chat, engine = opened(folder, [257, 32, 261])

    assert "".join(chat.ask("in")) == "the in"
    assert engine.read == chat.encode(chat.messages[:1])
    assert engine.read[:1] == [264]  # <|im_start|>
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]


def test_the_second_question_comes_with_all_that_was_said(folder: Path) -> None:
    chat, engine = opened(folder, [257])
    [*chat.ask("a")]
    first = len(engine.read)
    chat.messages[:] = chat.messages[-2:]

    assert len(chat.encode(chat.messages)) > first


def test_characters_of_several_tokens_come_whole(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = tokenizer.encode("aéz", add_special_tokens=False).ids
    chat, _ = opened(folder, tokens)

    assert [*chat.ask("a")] == ["a", "é", "z"]


def test_a_conversation_that_does_not_fit_is_refused_and_not_kept(folder: Path) -> None:
    chat, _ = opened(folder)

    with pytest.raises(InputError, match=r"a conversation of .* tokens can't be answered"):
        chat.ask("a" * 40).__next__()
    assert chat.messages == []


@pytest.mark.parametrize("most", [0, -1, True, 1.5])
def test_a_number_of_tokens_that_is_none_is_refused(folder: Path, most: Any) -> None:
    chat, _ = opened(folder)

    with pytest.raises(ArgumentError, match="max_tokens is no number of tokens"):
        chat.generate([1], max_tokens=most)


def test_without_tokenizers_tokens_can_still_be_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat, _ = opened(folder, [5, 6])
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as if it were not installed

    assert [*chat.generate([1, 2])] == [5, 6]
    with pytest.raises(LoadError, match="the package tokenizers is not installed"):
        chat.ask("a").__next__()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": {"context_length": "x"}}'])
def test_a_config_that_says_too_little_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "genai_config.json"
    path.write_text(text, "utf-8")

    with pytest.raises(FormatError, match="does not say how to run the language model"):
        ChatConfig(path)


class Recorder:
    """A graph that says the next number after the last token it was given, and whose cache holds the tokens."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.feeds: list[dict[str, Any]] = []

    def __call__(self, feed: dict[str, Any]) -> dict[str, Any]:
        self.feeds.append(feed)
        ids = feed["input_ids"][0]
        logits = np.zeros((1, self.sequence, VOCABULARY), np.float32)
        logits[0, np.arange(self.sequence), (ids + 1) % VOCABULARY] = 1
        made: dict[str, Any] = {"logits": logits}
        for layer in range(LAYERS):
            rows = np.broadcast_to(ids.astype(np.uint8), (KV, 1, SIZE, self.sequence))
            made[f"past_key_{layer}_out"], made[f"past_value_{layer}_out"] = rows, rows.swapaxes(2, 3)
        return made


def loop(folder: Path) -> tuple[LoopEngine, Recorder, Recorder]:
    config = ChatConfig(folder / "genai_config.json")
    session = ort.InferenceSession(inputs_model(tiny_facts(), TOTAL, {}), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    taken = [given.name for given in session.get_inputs()]
    decode, prefill = Recorder(1), Recorder(WINDOW)

    def inputs(feed: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(names, session.run(names, {name: feed[name] for name in taken}), strict=True))

    return LoopEngine(config, inputs, (1, decode), (WINDOW, prefill)), decode, prefill


def test_the_loop_reads_windows_and_answers_token_by_token(folder: Path) -> None:
    engine, decode, prefill = loop(folder)

    made = [*engine.answer([*range(10, 20)], 4)]

    assert made == [20, 21, 22, 23]
    assert [feed["input_ids"][0].tolist()[:2] for feed in prefill.feeds] == [[10, 11], [18, 19]]
    assert [feed["input_ids"].item() for feed in decode.feeds] == [20, 21, 22]
    last = decode.feeds[-1]
    assert last["past_key_0_in"].shape == (KV, 1, SIZE, TOTAL - 1)
    assert last["past_key_1_in"][0, 0, 0, -12:].tolist() == [*range(10, 22)]
    assert last["past_value_1_in"][0, 0, -13, 0] == 128  # what was never read
    assert (last["attention_mask"][0, 0, 0] == 0).sum() == 13


def test_the_loop_stops_at_a_token_that_ends_answers(folder: Path) -> None:
    engine, _, _ = loop(folder)

    assert [*engine.answer([261], 9)] == [262]  # 263 ends


def test_the_loop_reads_only_what_is_new_of_a_conversation(folder: Path) -> None:
    engine, _, prefill = loop(folder)
    [*engine.answer([1, 2, 3], 1)]
    prefill.feeds.clear()

    [*engine.answer([1, 2, 3, 4, 9], 1)]
    (feed,) = prefill.feeds
    assert feed["input_ids"][0, :2].tolist() == [4, 9]

    prefill.feeds.clear()
    [*engine.answer([1, 7], 1)]
    (feed,) = prefill.feeds
    assert feed["input_ids"][0, :2].tolist() == [1, 7]


def test_the_loop_ends_where_the_context_does(folder: Path) -> None:
    engine, decode, _ = loop(folder)

    made = [*engine.answer([*range(1, 29)], 100)]

    assert len(made) == TOTAL - 28
    assert max(feed["position_ids_cos"].shape[2] for feed in decode.feeds) == 1


def test_what_prefill_can_no_longer_see_is_read_by_decode(folder: Path) -> None:
    engine, decode, prefill = loop(folder)
    [*engine.answer([*range(1, 27)], 1)]
    prefill.feeds.clear()
    decode.feeds.clear()

    [*engine.answer([*range(1, 29)], 1)]

    assert prefill.feeds == []
    assert [feed["input_ids"].item() for feed in decode.feeds] == [27, 28]
