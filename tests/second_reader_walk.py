"""The tables of docs/language-models.md about llama.cpp as a second reader.

`python -m tests.second_reader_walk [FILE.gguf ...]`: without files, a row for each form of weights, of tiny models with
random weights; with files, a row for each file, with the tokens of 1,000 texts.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from pipeline.contracts.ingest import Facts as IngestFacts
from pipeline.contracts.ingest import Params as IngestParams
from pipeline.contracts.reading import Facts
from pipeline.graph.files.blocks import FORMATS
from pipeline.graph.language.names import TOKENIZER
from pipeline.inputs.gguf import llama_cpp
from pipeline.inputs.second_reader import TEXTS, read_again
from tests.support.gguf_files import TinySizes, tiny_gguf
from tests.support.stage_runs import given, run_stage

_LETTERS = (
    (0x20, 0x7F), (0xA0, 0x250), (0x370, 0x400), (0x400, 0x500), (0x590, 0x5F0), (0x600, 0x6D0), (0x900, 0xA00),
    (0xE00, 0xE80), (0x10A0, 0x1100), (0x1200, 0x1300), (0x2000, 0x2070), (0x2190, 0x2200), (0x3040, 0x3100),
    (0x4E00, 0x5200), (0xAC00, 0xB000), (0x1F300, 0x1F650),
)  # fmt: skip
"""Ranges of Unicode."""


def many_texts(count: int = 1000) -> Iterator[str]:
    """Texts of words of :data:`TEXTS` and letters of one script, of a sentence each; the same ones every time."""
    chosen = random.Random(1)
    words = [word for text in TEXTS for word in text.split(" ")]
    for _ in range(count):
        first, last = chosen.choice(_LETTERS)
        letters = ["".join(chr(chosen.randrange(first, last)) for _ in range(chosen.randrange(1, 7))) for _ in range(4)]
        yield chosen.choice(("", " ", "\n")).join(
            chosen.choice((" ", " ", "\n", "")).join((chosen.choice(words), each)) for each in letters
        ) + chosen.choice(("", " ", "\n", "  "))


def by_form() -> Iterator[tuple[str, Facts]]:
    """The rung of a tiny model in each form of weights."""
    sizes = TinySizes(layers=2, hidden=256, heads=4, kv_heads=2, inner=256)
    for number, form in FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            tiny_gguf(Path(folder, "a.gguf"), sizes=sizes, form=number)
            yield form.name, _read(Path(folder, "a.gguf"), Path(folder, "out"))[0]


def _read(file: Path, out: Path) -> tuple[Facts, Path]:
    made = run_stage("ingest", out, IngestParams(file.name), {"fetch": given(file.parent, {})})
    language = IngestFacts.from_json(made.facts).language
    assert language is not None
    return read_again(file, out, language), out


def main(arguments: list[str]) -> int:
    """Print the rows."""
    for name, facts in by_form() if not arguments else ():
        print(f"| {name} | {_figures(facts)} |", flush=True)
    for path in map(Path, arguments):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "source")
            source.mkdir()
            (source / path.name).symlink_to(path.resolve())
            facts, out = _read(source / path.name, Path(folder, "out"))
            texts = [*many_texts()]
            tokenizer: Tokenizer = Tokenizer.from_file(str(out / TOKENIZER))
            told = llama_cpp.ask(path, llama_cpp.Questions(texts, (), (), ()))
            assert not isinstance(told, str), told
            ours = [encoded.ids for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]
            alike = sum(one == list(other) for one, other in zip(ours, told.ids, strict=True))
            language = facts.reading.language
            assert language is not None
            chats = f"{language.chats} of 3" if language.template is None else "differ"
            kl = language.figures.kl or 0
            print(f"| {path.name} | {_figures(facts)} | {kl:.2g} | {alike} of {len(texts)} | {chats} |", flush=True)
            for one, other, text in zip(ours, told.ids, texts, strict=True):
                if one != list(other):
                    print(f"    {text!r}: {one} here, {other} in llama.cpp", file=sys.stderr)
    return 0


def _figures(facts: Facts) -> str:
    """The logits against llama.cpp's, those that are rounded as ggml does, and what the rounding takes from them."""
    language = facts.reading.language
    assert language is not None, facts.reading.why
    figures = (facts.figures["logits"].sqnr_db, language.own_db, language.rounded_db)
    return " | ".join("–" if each is None else f"{each:.1f}" for each in figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
