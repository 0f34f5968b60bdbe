"""Opens a GGUF file as a language model: sizes, weights and tokenizer are all in it."""

from __future__ import annotations

from pathlib import Path

from pipeline.graph.language.names import TOKEN_NAMES
from pipeline.inputs.gguf.file import GgufFile, read_gguf
from pipeline.inputs.gguf.language import GgufWeights, hyper_of
from pipeline.inputs.gguf.tokenizer import begins, special, stops, tokenizer_json
from pipeline.inputs.language_source import LanguageSource

_CALLED = {"unk_token": "unknown", "pad_token": "padding"}
"""Names of GGUF that differ from those of transformers."""


def gguf_source(path: Path) -> LanguageSource:
    """The language model in a file.

    Raises:
        ModelError: the file is damaged, or its model is not supported.
    """
    file = read_gguf(path)
    hyper = hyper_of(file)
    return LanguageSource(
        hyper=hyper,
        weights=GgufWeights(file, hyper),
        tokenizer=tokenizer_json(file),
        template=file.text("tokenizer.chat_template"),
        stops=stops(file),
        bos=special(file, "bos") if begins(file) else None,
        pad=special(file, "padding"),
        named=_named(file),
    )


def _named(file: GgufFile) -> dict[str, str]:
    tokens = file.strings("tokenizer.ggml.tokens")
    numbers = {name: special(file, _CALLED.get(name, name.removesuffix("_token"))) for name in TOKEN_NAMES}
    return {name: tokens[at] for name, at in numbers.items() if at is not None and at < len(tokens)}
