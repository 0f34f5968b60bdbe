"""The samples step with reader `text`: pairs, columns and JSON lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pipeline.model import Json
from tests.support.graphs import graph
from tests.support.models import bert
from tests.support.models.builder import save
from tests.support.sample_sets import BUCKETS, SampleStep, arrays, calls, ingest, refusal

MORE = """
net (int64[1, sequence] input_ids, float[1, 2] speed) => (float[1, sequence] y, float[1, 2] z) {
    y = Cast <to = 1> (input_ids)
    z = Neg (speed)
}
"""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> SampleStep:
    folder = tmp_path_factory.mktemp("encoder")
    bert.write(folder / "source")
    save(graph(MORE), folder / "source" / "more.onnx")
    inputs = ingest(folder / "source", {"encoder": "onnx/model.onnx", "more": "more.onnx"}, folder / "ingest")
    return SampleStep(inputs, {"encoder": BUCKETS, "more": BUCKETS}, folder)


@pytest.fixture(scope="module")
def alone(encoder: SampleStep) -> SampleStep:
    inputs = {role: value for role, value in encoder.inputs.items() if role != "ingest/more"}
    return SampleStep(inputs, {"encoder": BUCKETS}, encoder.scratch)


def reading(**fields: Json) -> dict[str, Json]:
    return {"reader": "text", "tokenizer": "tokenizer.json", **({"fields": fields} if fields else {})}


def written(folder: Path, text: str, name: str) -> Path:
    (folder / name).write_text(text, "utf-8")
    return folder / name


def pair_of(step: SampleStep, one: str, two: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(step.inputs["fetch"].folder / "tokenizer.json"))
    tokenizer.no_padding()
    ids: list[int] = tokenizer.encode(one, two).ids
    return ids


def test_a_pair_of_columns_is_encoded_as_one(alone: SampleStep, tmp_path: Path) -> None:
    file = written(tmp_path, "yes\tthe sea\tno\n", "pairs.tsv")
    output = alone.run(reading(columns=["label", "text", "pair"]), file)
    (call,) = calls(output, "encoder")
    assert call.load()["input_ids"].tolist() == [pair_of(alone, "the sea", "no")]
    assert (call.sample.text, call.sample.label) == ("the sea\tno", "yes")


def test_fields_of_json_lines_have_the_names_that_the_config_gives(alone: SampleStep, tmp_path: Path) -> None:
    text = '{"question": "the sea", "passage": "no", "right": true}\n\n{"passage": "a", "question": "b"}\n'
    output = alone.run(reading(text="question", pair="passage", label="right"), written(tmp_path, text, "a.jsonl"))
    first, second = calls(output, "encoder")
    assert first.load()["input_ids"].tolist() == [pair_of(alone, "the sea", "no")]
    assert (first.name, first.sample.label) == ("a.jsonl:1", "True")
    assert (second.name, second.sample.label) == ("a.jsonl:3", None)


def test_fields_named_like_inputs_are_their_values(encoder: SampleStep, tmp_path: Path) -> None:
    text = '{"text": "the sea", "speed": [[1, 0.5]]}\n'
    output = encoder.run(reading(), written(tmp_path, text, "a.jsonl"))
    (found,) = arrays(output, "more")
    assert found["speed"].tolist() == [[1, 0.5]]
    assert list(arrays(output, "encoder")[0]) == ["input_ids", "attention_mask"]
    missing = written(tmp_path, '{"text": "the sea", "sped": 1}\n', "b.jsonl")
    said = refusal(encoder, reading(), missing)
    assert "the line has no field 'speed'; did you mean 'sped'?" in said
    assert "can't make input 'speed" in refusal(encoder, reading(), written(tmp_path, "the sea\n", "c.txt"))


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("[1]\n", "a.jsonl", "a line of a.jsonl is no JSON object"),
        ('{"text": \n', "a.jsonl", "a.jsonl:1"),
        ('{"txt": "a"}\n', "a.jsonl", "field 'text' is not there; did you mean 'txt'?"),
        ('{"text": 1}\n', "a.jsonl", "field 'text' is no text"),
        ('{"text": " "}\n', "a.jsonl", "field 'text' is empty"),
        ("", "a.jsonl", "the calibration set is empty"),
        ("[" * 100_000 + "\n", "a.jsonl", "is no JSON object"),
    ],
)
def test_json_lines_that_are_none_are_refused(
    alone: SampleStep, tmp_path: Path, text: str, name: str, said: str
) -> None:
    assert said in refusal(alone, reading(), written(tmp_path, text, name))


def test_a_line_with_other_columns_is_refused(alone: SampleStep, tmp_path: Path) -> None:
    file = written(tmp_path, "one\ttwo\nthree\n", "pairs.tsv")
    text = refusal(alone, reading(columns=["text", "pair"]), file)
    assert "a line of pairs.tsv has 1 columns" in text
    assert "pairs.tsv:2" in text


def test_of_a_pair_that_is_too_long_both_are_kept(alone: SampleStep, tmp_path: Path) -> None:
    file = written(tmp_path, '{"text": "' + "abc " * 20 + '", "pair": "no"}\n', "a.jsonl")
    (call,) = calls(alone.run(reading(pair="pair"), file), "encoder")
    assert call.sample.cut
    found = call.load()["input_ids"][0].tolist()
    assert len(found) <= 16
    assert found[-3:] == pair_of(alone, "abc", "no")[-3:]
