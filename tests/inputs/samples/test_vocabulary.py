"""The samples step with reader `text` and a vocabulary: tables of tokens in all their forms, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.model import Json
from tests.support.graphs import graph
from tests.support.models.builder import save
from tests.support.sample_sets import BUCKETS, SampleStep, arrays, ingest, refusal

IDS = """
net (int32[batch, sequence] letters) => (float[batch, sequence] y) { y = Cast <to = 1> (letters) }
"""
ALL = """
net (int64[1, sequence] chars, int64[1] char_count, float[1, sequence] seen) => (float[1, sequence] y, float[1] n) {
    cast = Cast <to = 1> (chars)
    y = Add (cast, seen)
    n = Cast <to = 1> (char_count)
}
"""
FIXED = "net (int64[1, 6] words) => (float[1, 6] y) { y = Cast <to = 1> (words) }"
LETTERS: dict[str, Json] = {"<unk>": 1, " ": 2, "a": 3, "b": 4, "é": 5, "e": 6, "^": 7, "$": 8}


def step(tmp_path: Path, text: str = IDS, name: str = "vocab.json", content: object = LETTERS) -> SampleStep:
    source = tmp_path / "source"
    source.mkdir()
    save(graph(text), source / "net.onnx")
    if isinstance(content, bytes):
        (source / name).write_bytes(content)
    else:
        (source / name).write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return SampleStep(ingest(source, {"net": "net.onnx"}, tmp_path / "ingest"), {"net": BUCKETS}, tmp_path)


def reading(file: str = "vocab.json", **said: Json) -> dict[str, Json]:
    return {"reader": "text", "vocabulary": {"file": file, **said}}


def into(**inputs: Json) -> dict[str, Json]:
    return {**reading(), "tokens_to": inputs}


def lines(tmp_path: Path, text: str) -> Path:
    (tmp_path / "lines.txt").write_text(text, "utf-8")
    return tmp_path / "lines.txt"


def ids(made: SampleStep, tmp_path: Path, text: str, file: str = "vocab.json", **said: Json) -> list[int]:
    (found,) = arrays(made.run(reading(file, **said), lines(tmp_path, text)), "net")
    (values,) = found.values()
    row: list[int] = values[0].tolist()
    return row


def test_characters_go_to_the_only_input_of_whole_numbers(tmp_path: Path) -> None:
    made = step(tmp_path)
    assert ids(made, tmp_path, "ab a") == [3, 4, 2, 3]
    assert arrays(made.run(reading(), lines(tmp_path, "ab")), "net")[0]["letters"].dtype.name == "int32"


def test_a_text_is_brought_to_the_letters_of_the_vocabulary(tmp_path: Path) -> None:
    made = step(tmp_path)
    assert ids(made, tmp_path, "A\u0301É", lowercase=True, drop_marks=True) == [3, 6]
    assert ids(made, tmp_path, "e\u0301", normalize="nfc") == [5]
    assert ids(made, tmp_path, "aXb", unknown="<unk>") == [3, 1, 4]
    assert ids(made, tmp_path, "ab", begin="^", end="$") == [7, 3, 4, 8]


def test_a_pair_is_two_texts(tmp_path: Path) -> None:
    made = step(tmp_path, content={"good": 1, "day": 2})
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"text": "good", "other": "day"}), "utf-8")
    given = into(ids="letters") | reading(tokens="words") | {"fields": {"pair": "other"}}
    (found,) = arrays(made.run(given, pairs), "net")
    assert found["letters"].ravel().tolist() == [1, 2]


def test_a_text_is_cut_and_its_end_stays(tmp_path: Path) -> None:
    made = step(tmp_path)
    assert ids(made, tmp_path, "ab" * 30, begin="^", end="$") == [7, *[3, 4] * 7, 8]


def test_other_inputs_take_the_mask_and_the_number_of_tokens(tmp_path: Path) -> None:
    made = step(tmp_path, ALL)
    (found,) = arrays(made.run(into(ids="chars", mask="seen", length="char_count"), lines(tmp_path, "aba")), "net")
    assert found["chars"].tolist() == [[3, 4, 3]]
    assert found["char_count"].tolist() == [3]
    assert (found["seen"].tolist(), found["seen"].dtype.name) == ([[1, 1, 1]], "float32")


def test_a_model_of_one_length_gets_all_of_it(tmp_path: Path) -> None:
    made = step(tmp_path, FIXED, "words.txt", "[PAD]\n[UNK]\nthe\nsea\n")
    assert ids(made, tmp_path, "the sea of", "words.txt", tokens="words", unknown="[UNK]") == [2, 3, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("vocab.json", {"a": 3, "b": 4}, {}),
        ("vocab.json", {"a": [3], "b": [4]}, {}),
        ("vocab.json", {"3": "a", "4": "b"}, {}),
        ("vocab.json", ["_", "^", "$", "a", "b"], {}),
        ("vocab.json", {"model": {"chars": {"a": 3, "b": 4}, "name": "x"}}, {}),
        ("vocab.json", {"in": {"a": 3, "b": 4}, "out": {"a": 0, "b": 1}}, {"key": "in"}),
        ("tokens.txt", "_\n^\n$\na\nb\n", {}),
        ("tokens.txt", "_ 0\na 3\nb 4\n  5\n", {}),
        ("tokens.txt", "a\t3\r\nb\t4\r\n", {}),
        ("tokens.txt", "2\t \n3\ta\n4\tb\n5\t7\n", {}),
        ("tokens.txt", "\ufeff_\n\n\na\nb\n", {}),
    ],
)
def test_a_vocabulary_may_be_written_in_these_ways(
    tmp_path: Path, name: str, content: object, said: dict[str, Json]
) -> None:
    assert ids(step(tmp_path, name=name, content=content), tmp_path, "ab", name, **said) == [3, 4]


def test_pieces_of_words_are_bert_s(tmp_path: Path) -> None:
    made = step(tmp_path, name="vocab.txt", content="[PAD]\n[UNK]\n[CLS]\n[SEP]\nsea\n##side\n,\n")
    said: dict[str, Json] = {"tokens": "pieces", "unknown": "[UNK]", "begin": "[CLS]", "end": "[SEP]"}
    assert ids(made, tmp_path, "seaside, Sea", "vocab.txt", **said) == [2, 4, 5, 6, 1, 3]
    assert ids(made, tmp_path, "Sea", "vocab.txt", **said, lowercase=True) == [2, 4, 3]
    pairs: dict[str, Json] = {**reading("vocab.txt", **said), "fields": {"columns": ["text", "pair"]}}
    (tmp_path / "pairs.tsv").write_text("sea\tsea\n", "utf-8")
    (found,) = arrays(made.run(pairs, tmp_path / "pairs.tsv"), "net")
    assert found["letters"].tolist() == [[2, 4, 3, 4, 3]]


@pytest.mark.parametrize(
    ("name", "content", "said", "expected"),
    [
        ("vocab.json", LETTERS, {"file": "vocabs.json"}, "no vocabulary 'vocabs.json'; did you mean 'vocab.json'?"),
        ("vocab.json", b"\xff\xfe\x00", {}, "vocab.json is no vocabulary"),
        ("vocab.json", "{", {}, "vocab.json is no vocabulary"),
        ("vocab.json", "[" * 200_000, {}, "vocab.json is no vocabulary"),
        ("vocab.json", {"a": 1.5, "b": 2}, {}, "nothing in it is one"),
        ("vocab.json", {"a": True, "b": 2}, {}, "nothing in it is one"),
        ("vocab.json", {"a": -1, "b": 2}, {}, "nothing in it is one"),
        ("vocab.json", {"a": 1 << 40, "b": 2}, {}, "nothing in it is one"),
        ("vocab.json", {"a": 1, "b": 1}, {}, "nothing in it is one"),
        ("vocab.json", ["a", "a", "b"], {}, "nothing in it is one"),
        ("vocab.json", {"in": {"a": 3, "b": 4}, "out": {"a": 0, "b": 1}}, {}, "holds 2 vocabularies"),
        ("vocab.json", {"in": {"a": 3, "b": 4}}, {"key": "inn"}, "at 'inn'; did you mean 'in'?"),
        ("vocab.json", LETTERS, {"unknown": "<unc>"}, "unknown is no token of vocab.json: '<unc>'; did you mean"),
        ("vocab.json", LETTERS, {"begin": "<s>"}, "calibration.vocabulary.begin is no token"),
        ("vocab.json", LETTERS, {}, "'Z' is not in vocab.json"),
        ("tokens.txt", "a\nb\na\n", {"file": "tokens.txt"}, "the token 'a' occurs twice, as 0 and as 2"),
        ("tokens.txt", "a 1\nb 1\n", {"file": "tokens.txt"}, "a number occurs twice"),
        ("tokens.txt", "", {"file": "tokens.txt"}, "it has 0 lines"),
        ("tokens.txt", "a\0\nb\n", {"file": "tokens.txt"}, "it holds bytes of 0"),
        ("vocab.txt", "[CLS]\nsea\n", {"file": "vocab.txt", "tokens": "pieces"}, "'abZ' is not in vocab.txt"),
    ],
)
def test_what_is_no_vocabulary_is_refused(
    tmp_path: Path, name: str, content: object, said: dict[str, str], expected: str
) -> None:
    made = step(tmp_path, name=name, content=content)
    assert expected in refusal(made, reading(**{"file": name, **said}), lines(tmp_path, "abZ"))


def test_halves_of_characters_are_no_tokens(tmp_path: Path) -> None:
    made = step(tmp_path, content='{"a": 3, "b": 4, "\\ud800": 5}')
    assert ids(made, tmp_path, "ab") == [3, 4]


def test_a_text_without_tokens_is_named(tmp_path: Path) -> None:
    text = refusal(step(tmp_path), reading(drop_marks=True), lines(tmp_path, "a\n\u0301\n"))
    assert "a text has no tokens" in text
    assert "lines.txt:2" in text


def test_an_input_that_is_none_is_named(tmp_path: Path) -> None:
    text = refusal(step(tmp_path), into(ids="leters"), lines(tmp_path, "a"))
    assert "calibration.ids names no input: 'leters'; did you mean 'letters'?" in text
    (tmp_path / "two").mkdir()
    both = step(tmp_path / "two", ALL)
    assert "the text reader can't make input" in refusal(both, reading(), lines(tmp_path, "a"))
