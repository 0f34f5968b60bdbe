"""Opens a GGUF file as a language model: sizes, weights and tokenizer are all in it."""

from __future__ import annotations

from pathlib import Path

from pipeline.inputs.gguf.file import GgufFile, read_gguf
from pipeline.inputs.gguf.language import GgufWeights, hyper_of
from pipeline.inputs.gguf.tokenizer import special, stops, tokenizer_json
from pipeline.inputs.language_source import NAMED, LanguageSource


def gguf_source(path: Path) -> LanguageSource:
    """The language model in a file.

    Raises:
        ModelError: the file is damaged, or its model is not supported.
    """
    file = read_gguf(path)
    hyper = hyper_of(file)
    begins = file.flag("tokenizer.ggml.add_bos_token")
    if begins is None:
        begins = file.text("tokenizer.ggml.model") == "llama"
    return LanguageSource(
        hyper=hyper,
        weights=GgufWeights(file, hyper),
        tokenizer=tokenizer_json(file),
        template=file.text("tokenizer.chat_template"),
        stops=stops(file),
        bos=special(file, "bos") if begins else None,
        pad=special(file, "padding"),
        named=_named(file),
    )


def _named(file: GgufFile) -> dict[str, str]:
    tokens = file.strings("tokenizer.ggml.tokens")
    numbers = {name: special(file, name.removesuffix("_token")) for name in NAMED}
    return {name: tokens[at] for name, at in numbers.items() if at is not None and at < len(tokens)}
