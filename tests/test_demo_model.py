from __future__ import annotations

import re
import runpy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

PROJECT = Path(__file__).resolve().parent.parent
MODEL = PROJECT / "configs" / "demo" / "model.onnx"
TEXTS = PROJECT / "calibration" / "demo"
SCORE = runpy.run_path(str(PROJECT / "calibration" / "demo.py"))  # by file, as verification runs it
LANGUAGES: tuple[str, ...] = SCORE["LANGUAGES"]
accuracy: Callable[[Sequence[Text], Sequence[Mapping[str, NDArray[Any]]]], float] = SCORE["accuracy"]

HELD_OUT_ACCURACY = 0.954
LEAST_ACCURACY = 0.80
"""As configs/demo/README.md states it."""


@dataclass(frozen=True)
class Text:
    text: str
    label: str | None = None
    inputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@cache
def texts(name: str) -> tuple[Text, ...]:
    lines = (TEXTS / name).read_text("utf-8").splitlines()
    if name.endswith(".txt"):
        return tuple(Text(line) for line in lines)
    return tuple(Text(text, label) for label, _, text in (line.partition("\t") for line in lines))


def all_texts() -> list[Text]:
    return [text for name in ("train.tsv", "calibration.txt", "heldout.tsv") for text in texts(name)]


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])


def logits(session: onnxruntime.InferenceSession, rows: Sequence[bytes], length: int) -> NDArray[np.float32]:
    ids = np.zeros((len(rows), length), np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = list(row)
        mask[number, : len(row)] = 1
    (result,) = session.run(["logits"], {"input_ids": ids, "attention_mask": mask})
    return np.asarray(result, np.float32)


def test_the_model_is_small_whole_and_valid() -> None:
    assert MODEL.stat().st_size <= 2_000_000
    model = onnx.load(MODEL, load_external_data=False)
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    onnx.checker.check_model(model, full_check=True)


def test_batch_and_sequence_are_dynamic() -> None:
    graph = onnx.load(MODEL).graph
    dims = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert dims == {
        "input_ids": ["batch", "sequence"],
        "attention_mask": ["batch", "sequence"],
        "logits": ["batch", len(LANGUAGES)],
    }


def test_nothing_in_the_file_tells_where_it_was_made() -> None:
    model = onnx.load(MODEL)
    assert not model.metadata_props
    assert not any(node.doc_string or node.metadata_props for node in model.graph.node)
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")  # numbers spell anything
    assert not re.search(rb"site-packages|\.py\b|/(?:home|tmp|root)/|[A-Za-z]:\\", model.SerializeToString())


def test_the_logits_are_in_the_order_of_the_score_s_languages() -> None:
    assert onnx.load(MODEL).doc_string.split(": ")[1].split() == list(LANGUAGES)
    assert {text.label for text in texts("train.tsv")} == set(LANGUAGES)


def test_a_token_is_a_byte_in_every_script() -> None:
    tokenizer: Tokenizer = Tokenizer.from_file(str(MODEL.with_name("tokenizer.json")))
    strange = [Text("\t \r\n…  «ß»\u00ad 日本 🙂 \u200b\x7f"), Text(bytes(range(1, 128)).decode())]
    for text in [*all_texts(), *strange]:
        encoding = tokenizer.encode(text.text)
        assert encoding.ids == list(text.text.encode())
        assert tokenizer.decode(encoding.ids) == text.text
    assert tokenizer.get_vocab_size() == 256


def test_held_out_texts_are_identified_as_the_model_card_says(session: onnxruntime.InferenceSession) -> None:
    samples = texts("heldout.tsv")
    outputs = [{"logits": logits(session, [text], len(text))} for text in (sample.text.encode() for sample in samples)]
    assert accuracy(samples, outputs) >= HELD_OUT_ACCURACY
    for language in LANGUAGES:
        own = [n for n, sample in enumerate(samples) if sample.label == language]
        assert accuracy([samples[n] for n in own], [outputs[n] for n in own]) >= LEAST_ACCURACY, language


@pytest.mark.parametrize("length", [32, 64, 128])
def test_padding_changes_nothing(session: onnxruntime.InferenceSession, length: int) -> None:
    rows = [row for row in (text.text.encode() for text in texts("calibration.txt")) if len(row) <= length][:40]
    together = logits(session, rows, length)
    for number, row in enumerate(rows):
        np.testing.assert_allclose(together[number], logits(session, [row], len(row))[0], rtol=0, atol=1e-5)


def test_training_calibration_and_held_out_texts_are_disjoint() -> None:
    train, calibration, held_out = (
        [(text.text, frozenset(re.findall(r"\w+", text.text.lower()))) for text in texts(name)]
        for name in ("train.tsv", "calibration.txt", "heldout.tsv")
    )
    for ours, others in ((held_out, train), (held_out, calibration), (calibration, train)):
        for text, words in ours:
            for other, other_words in others:
                alike = len(words & other_words) / len(words | other_words)
                assert alike <= 0.5, f"{text!r} is too much like {other!r}"


def test_every_bucket_has_calibration_and_held_out_texts() -> None:
    for name in ("calibration.txt", "heldout.tsv"):
        lengths = [len(text.text.encode()) for text in texts(name)]
        buckets = Counter(next(size for size in (32, 64, 128) if length <= size) for length in lengths)
        assert min(buckets[size] for size in (32, 64, 128)) >= 30, buckets


def test_every_language_has_enough_texts() -> None:
    assert min(Counter(text.label for text in texts("train.tsv")).values()) >= 120
    assert min(Counter(text.label for text in texts("heldout.tsv")).values()) >= 25
    assert len(texts("calibration.txt")) >= 12 * len(LANGUAGES)
    assert len({text.text for text in all_texts()}) == len(all_texts())


def test_the_score_is_the_share_of_right_answers() -> None:
    samples = [Text("Guten Tag", "de"), Text("Hola", "es"), Text("Dzień dobry", "pl")]
    outputs = [
        {"logits": np.eye(len(LANGUAGES), dtype=np.float32)[[LANGUAGES.index(said)]]} for said in ("de", "pt", "pl")
    ]
    assert accuracy(samples, outputs) == pytest.approx(2 / 3)


def test_the_score_refuses_what_it_cannot_judge() -> None:
    output = {"logits": np.zeros((1, len(LANGUAGES)), np.float32)}
    with pytest.raises(ValueError, match=r"'Hej' is labelled 'sv', which is none of de, en, "):
        accuracy([Text("Hej", "sv")], [output])
    with pytest.raises(ValueError, match="'Hallo' is labelled None"):
        accuracy([Text("Hallo")], [output])
    with pytest.raises(ValueError, match="no samples"):
        accuracy([], [])
