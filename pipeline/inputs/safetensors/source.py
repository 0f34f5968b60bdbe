"""Opens a folder that transformers saved as a language model."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import ModelError
from pipeline.graph.language.names import TEMPLATE, TOKEN_NAMES
from pipeline.inputs.language_source import LanguageSource
from pipeline.inputs.safetensors.hyper import LARGEST_CONFIG, ModelConfigJson, biased, hyper_of_config
from pipeline.inputs.safetensors.index import CONFIG, TOKENIZER, TOKENIZER_CONFIG, read_object
from pipeline.inputs.safetensors.tokenizer import TokenizerJson
from pipeline.inputs.safetensors.weights import OF_LAYER, OF_MODEL, SafetensorsWeights, read_tensors, same_bytes

GENERATION = "generation_config.json"
"""It may name more tokens that end an answer. It is read only if the config's `files` fetch it."""
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>")


def safetensors_source(path: Path) -> LanguageSource:
    """The language model whose weights, or their index, are at `path`. Its other files are beside them.

    Raises:
        ModelError: a file is damaged, or the model is not supported.
    """
    folder = path.parent
    config = _said(folder / CONFIG)
    hyper = hyper_of_config(config)
    tensors = read_tensors(path)
    tied = config.flag("tie_word_embeddings", hyper.architecture == "gemma3_text")
    if not tied and "lm_head.weight" not in tensors:
        raise ModelError(
            "the source has no tensor 'lm_head.weight'",
            where=path.name,
            why="by config.json its embeddings are not tied",
            remedy="fetch the files again; if they are whole, set tie_word_embeddings in config.json",
        )
    head, table = tensors.get("lm_head.weight"), tensors.get(f"{OF_MODEL['token_embd']}.weight")
    if tied and head is not None and table is not None and not same_bytes(head, table):
        raise ModelError(
            "the source has an output layer of its own, 'lm_head.weight', and says that its embeddings are tied",
            where=path.name,
            why="the two differ, so one of the two is not what the model was trained with",
            remedy="set tie_word_embeddings in config.json to false if the output layer is right",
        )
    biases = biased(config)
    missing = [
        f"blk.0.{part}.bias" for part in sorted(biases) if f"model.layers.0.{OF_LAYER[part]}.bias" not in tensors
    ]
    if missing:
        raise ModelError(
            f"the source lacks biases: {', '.join(missing)}",
            where=path.name,
            why="config.json says that these matrices have biases",
            remedy="fetch the files again; if they are whole, correct 'attention_bias' or 'mlp_bias' in config.json",
        )
    tokenizer = TokenizerJson(folder / TOKENIZER)
    told = _said(folder / TOKENIZER_CONFIG)
    generation = _said(folder / GENERATION) if (folder / GENERATION).is_file() else ModelConfigJson({}, GENERATION)
    known = [tokenizer.number(token) for token in _ENDS if tokenizer.is_special(token)]
    stops = {
        *config.ids("eos_token_id"),
        *generation.ids("eos_token_id"),
        *(each for each in known if each is not None),
    }
    pads = (*config.ids("pad_token_id"), *_named(tokenizer, told, "pad_token"))
    return LanguageSource(
        hyper=hyper,
        weights=SafetensorsWeights(tensors, hyper.architecture, tied=tied, biases=biases),
        tokenizer=tokenizer.text,
        template=_template(folder, told),
        stops=tuple(sorted(stops)),
        bos=_bos(tokenizer, told, config),
        pad=pads[0] if pads else None,
        named={name: text for name in TOKEN_NAMES if (text := _text(told, name))},
    )


def _said(path: Path) -> ModelConfigJson:
    return ModelConfigJson(read_object(path, LARGEST_CONFIG), path.name)


def _template(folder: Path, told: ModelConfigJson) -> str | None:
    """The chat template: a file of its own, or a text or a list of named texts in the tokenizer's config."""
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text("utf-8", "replace")
    written = told.values.get("chat_template")
    for each in written if isinstance(written, list) else []:
        if isinstance(each, dict) and each.get("name") == "default":
            written = each.get("template")
    return written if isinstance(written, str) else None


def _bos(tokenizer: TokenizerJson, told: ModelConfigJson, config: ModelConfigJson) -> int | None:
    """The number of the token before every text; None if neither tokenizer nor its config puts one there."""
    ids = (*_named(tokenizer, told, "bos_token"), *config.ids("bos_token_id"))
    first = tokenizer.number(tokenizer.first) if tokenizer.first is not None else None
    if not ids or not told.flag("add_bos_token", first == ids[0]):
        return None
    return ids[0]


def _named(tokenizer: TokenizerJson, told: ModelConfigJson, name: str) -> tuple[int, ...]:
    """The number of a token that the tokenizer's config names, as a text or as an object; empty if there is none."""
    text = _text(told, name)
    number = tokenizer.number(text) if text else None
    return () if number is None else (number,)


def _text(told: ModelConfigJson, name: str) -> str | None:
    found = told.values.get(name)
    content = found.get("content") if isinstance(found, dict) else found
    return content if isinstance(content, str) and content else None
