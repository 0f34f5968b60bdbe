"""The samples step with reader `text`, on the BERT stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from pipeline.model import Json
from tests.support.graphs import graph
from tests.support.models import bert
from tests.support.models.builder import save
from tests.support.sample_sets import BUCKETS, SampleStep, arrays, calls, ingest, refusal, two_components

TEXT: dict[str, Json] = {"reader": "text", "tokenizer": "tokenizer.json", "max_length": None}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> SampleStep:
    folder = tmp_path_factory.mktemp("encoder")
    bert.write(folder / "source")
    inputs = ingest(folder / "source", {"encoder": "onnx/model.onnx"}, folder / "ingest")
    return SampleStep(inputs, {"encoder": BUCKETS}, folder)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> SampleStep:
    return two_components(tmp_path_factory.mktemp("pair"))


def lines(folder: Path, text: str | bytes, name: str = "lines.txt") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def tokens(encoder: SampleStep, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(encoder.inputs["fetch"].folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    numbers: list[int] = tokenizer.encode(text).ids
    return numbers


def test_a_line_becomes_the_tokens_the_application_would_feed(encoder: SampleStep, tmp_path: Path) -> None:
    output = encoder.run(TEXT, lines(tmp_path, "the sea\nno!\n"))
    first, second = arrays(output, "encoder")
    assert list(first) == ["input_ids", "attention_mask"]
    assert first["input_ids"].tolist() == [tokens(encoder, "the sea")]
    assert first["attention_mask"].tolist() == [[1] * 8]
    assert second["input_ids"].shape == (1, 5)
    assert {array.dtype.name for array in first.values()} == {"int64"}
    assert output.facts == {
        "count": {"encoder": 2},
        "samples": 2,
        "cut": 0,
        "lengths": {"encoder": {"batch": [1, 1], "sequence": [5, 8]}},
        "unneeded": {"encoder": ["16"]},
    }


@pytest.mark.parametrize(("max_length", "length"), [(None, 16), (10, 10), (99, 16)])
def test_a_text_is_cut_to_the_largest_bucket(
    encoder: SampleStep, tmp_path: Path, max_length: int | None, length: int
) -> None:
    output = encoder.run({**TEXT, "max_length": max_length}, lines(tmp_path, "a\nabcdefghijklmnopqrstuvwxyz\n"))
    short, long = calls(output, "encoder")
    assert (short.sample.cut, long.sample.cut) == (False, True)
    assert "unneeded" not in output.facts, "the one needs the smaller bucket, the other the larger"
    assert long.load()["input_ids"].shape == (1, length)
    assert long.load()["input_ids"][0, -1] == bert.SPECIAL.index("[SEP]")
    assert output.facts["cut"] == 1


def test_lines_are_text_and_nothing_else(encoder: SampleStep, tmp_path: Path) -> None:
    text = b"\xef\xbb\xbfone\r\n\r\n  \n# two\na\xe2\x80\xa8b"
    found = calls(encoder.run(TEXT, lines(tmp_path, text)), "encoder")
    assert [call.sample.text for call in found] == ["one", "# two", "a\u2028b"]
    assert [call.name for call in found] == ["lines.txt:1", "lines.txt:4", "lines.txt:5"]


def test_labels_of_a_tsv_file_are_kept_for_scores(encoder: SampleStep, tmp_path: Path) -> None:
    output = encoder.run(TEXT, lines(tmp_path, "fr\tle pont\nen\tthe\tbridge\n", "labelled.tsv"))
    assert [(call.sample.label, call.sample.text) for call in calls(output, "encoder")] == [
        ("fr", "le pont"),
        ("en", "the\tbridge"),
    ]
    assert arrays(output, "encoder")[0]["input_ids"].tolist() == [tokens(encoder, "le pont")]
    entries = json.loads((output.folder / "samples.json").read_text("utf-8"))["samples"]
    assert entries[1] == {
        "index": 1,
        "name": "labelled.tsv:2",
        "text": "the\tbridge",
        "label": "en",
        "cut": False,
        "calls": ["encoder/00001.npz"],
    }


def test_no_more_than_max_samples_are_taken_from_the_first_on(encoder: SampleStep, tmp_path: Path) -> None:
    output = encoder.run({**TEXT, "max_samples": 2}, lines(tmp_path, "a\nb\nc\n"))
    assert [call.sample.text for call in calls(output, "encoder")] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.txt", b"", ["the calibration set is empty: empty.txt gives no samples", "next: give it some"]),
        ("blank.txt", b"\n \n", ["blank.txt gives no samples"]),
        ("latin.txt", b"ok\ncaf\xe9\n", ["latin.txt is not UTF-8 text", "latin.txt:2", "save the file as UTF-8"]),
        ("bare.tsv", b"en\tyes\nno\n", ["has no tab", "bare.tsv:2", "label<TAB>text"]),
        ("half.tsv", b"en\t \n", ["has no text", "half.tsv:1"]),
    ],
)
def test_a_bad_file_is_refused(encoder: SampleStep, tmp_path: Path, name: str, content: bytes, said: list[str]) -> None:
    text = refusal(encoder, TEXT, lines(tmp_path, content, name))
    assert all(part in text for part in said), text


def test_a_file_that_is_missing_or_not_given_is_named(encoder: SampleStep, tmp_path: Path) -> None:
    assert "calibration.file does not exist" in refusal(encoder, TEXT, tmp_path / "none.txt")
    assert "calibration.file is not set" in refusal(encoder, TEXT)
    assert "can't read" in refusal(encoder, TEXT, tmp_path)


def test_a_tokenizer_that_is_not_there_or_not_one_is_named(encoder: SampleStep, tmp_path: Path) -> None:
    file = lines(tmp_path, "a")
    text = refusal(encoder, {**TEXT, "tokenizer": "tokeniser.json"}, file)
    assert "no tokenizer 'tokeniser.json'; did you mean 'tokenizer.json'?" in text
    assert "onnx/model.onnx is not a tokenizer" in refusal(encoder, {**TEXT, "tokenizer": "onnx/model.onnx"}, file)


def test_special_tokens_that_fill_the_bucket_are_an_error(encoder: SampleStep, tmp_path: Path) -> None:
    text = refusal(encoder, {**TEXT, "max_length": 1}, lines(tmp_path, "word"))
    assert "can't be cut to 1 tokens" in text
    assert "lines.txt:1" in text


def test_an_input_that_text_does_not_give_is_named_with_the_way_out(pair: SampleStep, tmp_path: Path) -> None:
    (pair.inputs["fetch"].folder / "tokenizer.json").write_text(json.dumps(bert.tokenizer()), "utf-8")
    text = refusal(pair, TEXT, lines(tmp_path, "a"))
    assert "the text reader can't make input 'bias: float32 [batch, sequence, 2]'" in text
    assert "component 'two'" in text
    assert "reader: python" in text


def test_inputs_of_text_take_the_models_dtypes_and_lengths(tmp_path: Path) -> None:
    model = graph(
        """all (int32[1, 6] input_ids, float[1, 6] attention_mask, int64[1, 6] token_type_ids, int64[1, 6] position_ids)
        => (float[1, 6] a, int32[1, 6] b, int64[1, 6] c) {
            a = Neg (attention_mask)
            b = Neg (input_ids)
            c = Add (token_type_ids, position_ids)
        }"""
    )
    save(model, tmp_path / "source" / "model.onnx")
    (tmp_path / "source" / "tokenizer.json").write_text(json.dumps(bert.tokenizer()), "utf-8")
    inputs = ingest(tmp_path / "source", {"all": "model.onnx"}, tmp_path / "ingest")
    (sample,) = arrays(SampleStep(inputs, {"all": {"all": {}}}, tmp_path).run(TEXT, lines(tmp_path, "ab")), "all")
    assert sample["input_ids"].dtype == np.int32
    assert sample["input_ids"].shape == (1, 6)
    assert sample["attention_mask"].dtype == np.float32
    assert sample["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]]
    assert sample["position_ids"].tolist() == [[0, 1, 2, 3, 0, 0]]
    assert not sample["token_type_ids"].any()


def test_an_axis_that_the_config_fixes_counts_as_the_token_axis(encoder: SampleStep, tmp_path: Path) -> None:
    step = SampleStep(encoder.inputs, {"encoder": {"all": {}}}, tmp_path)
    file = lines(tmp_path, "abcdefgh")
    assert "can't tell which dim of input 'input_ids" in refusal(step, TEXT, file)
    output = step.run(TEXT, file, fixed={"encoder": {"batch": 1, "sequence": 6}})
    assert output.facts["lengths"] == {"encoder": {"batch": [1, 1], "sequence": [6, 6]}}
