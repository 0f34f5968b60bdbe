"""What is read of GGUF files against llama.cpp: every architecture, form of weights, rotation and way to split texts,
and misreadings that are injected on purpose."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.build.gates import check
from pipeline.config.thresholds import Thresholds
from pipeline.contracts.ingest import Params as IngestParams
from pipeline.contracts.reading import Facts, Params
from pipeline.graph.files import blocks, stored_form
from pipeline.graph.language.builder import GraphBuilder
from pipeline.inputs.gguf import language, llama_cpp, tokenizer
from pipeline.inputs.gguf.file import GgufFile
from pipeline.inputs.second_reader import TEXTS
from pipeline.model import Manifest
from tests.fuzz import gguf_metadata
from tests.support.gguf_files import TinySizes, Value, byte_tokens, tiny_gguf
from tests.support.stage_runs import given, run_stage

WIDE = TinySizes(layers=1, hidden=256, heads=4, kv_heads=2, inner=256)


def read(folder: Path, file: str = "a.gguf", *, ingested: Path | None = None) -> Facts:
    """The rung of a file in a folder."""
    fetched = given(folder / "source", {})
    made = run_stage("ingest", folder / "ingest", IngestParams(file), {"fetch": fetched})
    params = Params(component="net", buckets={}, padding={}, part="all", truth="unpadded", file=file)
    inputs = {"fetch": fetched, "ingest": made}
    return Facts.from_json(run_stage("reading", folder / "reading", params, inputs).facts)


def written(folder: Path, **more: Any) -> Path:
    (folder / "source").mkdir(exist_ok=True)
    tiny_gguf(folder / "source" / "a.gguf", **more)
    return folder


def judged(facts: Facts, **limits: Any) -> str:
    """The message of the gate; empty if the file may ship."""
    miss = check("tiny/net", Manifest("reading", "", {}, facts.to_json()), replace(Thresholds(), **limits))
    return str(miss.error) if miss else ""


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "phi3", "gemma3"])
def test_every_architecture_computes_what_llama_cpp_computes(architecture: str, tmp_path: Path) -> None:
    found = read(written(tmp_path, architecture=architecture, sizes=TinySizes(layers=7)))

    assert found.reading.shown == "exact"
    assert found.reading.language is not None
    assert found.reading.language.chats == 3
    assert found.reading.language.figures.top1 == 1
    assert not judged(found)


@pytest.mark.parametrize("number", blocks.FORMATS, ids=[form.name for form in blocks.FORMATS.values()])
def test_every_form_of_weights_is_read_to_the_last_bit_that_llama_cpp_leaves(number: int, tmp_path: Path) -> None:
    found = read(written(tmp_path, sizes=WIDE, form=number))

    told = found.reading.language
    assert told is not None
    # Where a number lies on the edge between two steps, the two round it apart: at some places 50 dB are left of 130.
    assert max(found.figures["logits"].sqnr_db or 0, told.rounded_db or 0) > 50
    assert not judged(found)


FACTORS = np.array([1, 1, 2, 4, 8, 8, 8, 8], np.float32)
ROTATIONS: Mapping[str, tuple[str, Mapping[str, Value], Mapping[str, Any]]] = {
    "another base": ("llama", {"llama.rope.freq_base": 500000.0}, {}),
    "no base": ("qwen2", {"qwen2.rope.freq_base": None}, {}),  # type: ignore[dict-item]
    "linear": ("llama", {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, {}),
    "a factor each": ("llama", {}, {"rope_freqs.weight": FACTORS}),
    "two bases": ("gemma3", {"gemma3.rope.freq_base": 1000000.0}, {}),
}


@pytest.mark.parametrize("case", ROTATIONS.values(), ids=ROTATIONS)
def test_every_rotation_turns_as_in_llama_cpp(
    case: tuple[str, Mapping[str, Value], Mapping[str, Any]], tmp_path: Path
) -> None:
    architecture, changed, added = case

    found = read(written(tmp_path, architecture=architecture, sizes=TinySizes(layers=7), changed=changed, added=added))

    assert found.reading.shown == "exact"


def merged() -> tuple[list[str], list[str]]:
    """Tokens and merges of the pairs that are most frequent in the texts, over every border between words."""
    letters, tokens, merges = byte_tokens(), byte_tokens(), []
    texts = [[letters[byte] for byte in text.encode()] for text in TEXTS]
    for _ in range(700):
        ((left, right), _count) = Counter(pair for text in texts for pair in pairwise(text)).most_common(1)[0]
        merges.append(f"{left} {right}")
        tokens.append(left + right)
        texts = [_joined(text, left, right) for text in texts]
    return [*dict.fromkeys(tokens)], merges


def _joined(text: Sequence[str], left: str, right: str) -> list[str]:
    found: list[str] = []
    for token in text:
        if found and found[-1] == left and token == right:
            found[-1] = left + right
        else:
            found.append(token)
    return found


@pytest.mark.parametrize("name", tokenizer._PATTERNS)
def test_every_way_to_split_texts_gives_the_tokens_of_llama_cpp(name: str, tmp_path: Path) -> None:
    tokens, merges = merged()
    words: dict[str, Value] = {
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
    }
    found = read(written(tmp_path, changed=words))

    assert found.reading.language is not None
    assert found.reading.language.ids is None


@dataclass(frozen=True)
class Misreading:
    """A mistake in reader code, the file that it is made of, and a part of the gate's message."""

    patch: Callable[[pytest.MonkeyPatch], None]
    message: str
    more: Mapping[str, Any] = field(default_factory=dict)


def _number(key: str, changed: Callable[[float | None], float | None]) -> Callable[[pytest.MonkeyPatch], None]:
    """A number of the metadata is read as another one."""
    read = language._Numbers.optional

    def wrong(self: Any, name: str) -> float | None:
        value = read(self, name)
        return changed(value) if name == key else value

    return lambda patch: patch.setattr(language._Numbers, "optional", wrong)


def _form(number: int, changed: Callable[[Any, Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Blocks of a form are read as other numbers: `changed` gets the right ones and the blocks."""
    form = blocks.FORMATS[number]
    wrong = replace(form, dequantize=lambda raw: changed(form.dequantize(raw), raw).astype(np.float32))

    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setitem(blocks.FORMATS, number, wrong)
        patch.setitem(stored_form._BY_NAME, form.name, wrong)

    return apply


def _no_bias(patch: pytest.MonkeyPatch) -> None:
    shape = language.GgufWeights.shape
    patch.setattr(language.GgufWeights, "shape", lambda self, name: None if "q.bias" in name else shape(self, name))
    patch.setattr(language.GgufWeights, "unread", lambda _: ())


def _turned(patch: pytest.MonkeyPatch) -> None:
    matrix = GraphBuilder._matrix

    def wrong(self: GraphBuilder, name: str, weight: str, shape: tuple[int, int], scale: float) -> Any:
        if "attn_output" not in weight:
            return matrix(self, name, weight, shape, scale)
        stored = self.weights.stored(weight)
        return self._kept(name, stored, stored.form, shape)

    patch.setattr(GraphBuilder, "_matrix", wrong)


def _swapped(patch: pytest.MonkeyPatch) -> None:
    tokens = tokenizer._tokens

    def wrong(file: GgufFile) -> list[str]:
        found = tokens(file)
        found[65], found[66] = found[66], found[65]
        return found

    patch.setattr(tokenizer, "_tokens", wrong)


def _no_role(patch: pytest.MonkeyPatch) -> None:
    read = GgufFile.text

    def wrong(self: GgufFile, key: str, default: str | None = None) -> str | None:
        found = read(self, key, default)
        return found.replace("message['role']", "''") if found and key.endswith("chat_template") else found

    patch.setattr(GgufFile, "text", wrong)


SEVEN = TinySizes(layers=7)
ROUGH = {"changed": {"llama.attention.layer_norm_rms_epsilon": 1e-3}}
BASE = {"changed": {"llama.rope.freq_base": 500000.0}}
MISREADINGS: Mapping[str, Misreading] = {
    "a default is dropped": Misreading(
        lambda patch: patch.setattr(language, "_LOCAL_THETA", 1e6),
        "the logits are",
        {"architecture": "gemma3", "sizes": SEVEN, "changed": {"gemma3.rope.freq_base": 1e6}},
    ),
    "a zero point is a step away": Misreading(
        _form(2, lambda right, raw: right + blocks._half(raw, 0)), "the logits are", {"sizes": WIDE, "form": 2}
    ),
    "a scale is a tenth too large": Misreading(
        _form(14, lambda right, raw: right * 1.1), "the logits are", {"sizes": WIDE, "form": 14}
    ),
    "a tensor is skipped": Misreading(_no_bias, "the logits are", {"architecture": "qwen2"}),
    "a weight is transposed": Misreading(_turned, "the logits are"),
    "an epsilon is another one": Misreading(
        _number("attention.layer_norm_rms_epsilon", lambda value: (value or 0) / 10), "the logits are", ROUGH
    ),
    "the base of a rotation is not read": Misreading(_number("rope.freq_base", lambda _: None), "the logits are", BASE),
    "two ids are swapped": Misreading(_swapped, "splits a text otherwise"),
    "a template is changed": Misreading(_no_role, "the chat template is rendered otherwise"),
}


@pytest.mark.parametrize("case", MISREADINGS.values(), ids=MISREADINGS)
def test_a_misreading_that_is_injected_is_caught(
    case: Misreading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not judged(read(written(tmp_path, **case.more)))

    case.patch(monkeypatch)
    (tmp_path / "wrong").mkdir()
    found = read(written(tmp_path / "wrong", **case.more))

    assert found.reading.shown == "differs"
    assert case.message in judged(found)


def test_a_file_that_llama_cpp_does_not_open_is_not_proven(tmp_path: Path) -> None:
    found = read(written(tmp_path, changed={"general.alignment": 8, "llama.vocab_size": 5}))

    assert found.reading.shown == "not proven"
    assert "llama.cpp does not run the file: " in (found.reading.why or "")
    assert not judged(found)
    assert "nothing shows whether the file was read as it is meant" in judged(found, reading_required=True)


def test_a_reader_that_hangs_or_dies_takes_nothing_else_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    file, asked = tmp_path / "source" / "a.gguf", llama_cpp.Questions(TEXTS, (), (), ())

    assert "more than 0.01 seconds" in str(llama_cpp.ask(file, asked, seconds=0.01))
    monkeypatch.setattr(llama_cpp, "__name__", "tests.inputs.ends_by_a_signal")
    assert "SIGSEGV" in str(llama_cpp.ask(file, asked))


def test_without_the_package_a_build_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "version", lambda: None)

    found = read(written(tmp_path))

    assert found.reading.shown == "not proven"
    assert "which the extra llamacpp brings" in (found.reading.why or "")


@pytest.mark.skipif(sys.platform == "win32", reason="the fuzzer forks")
def test_changed_metadata_are_refused_or_read_as_llama_cpp_reads_them() -> None:
    outcomes = [gguf_metadata.attempt(number, seed=7) for number in range(16)]

    assert not [each for each in outcomes if each[0] in ("differs", "broken")]
    assert {"refused", "equal"} <= {what for what, _, _ in outcomes}
