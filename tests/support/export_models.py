"""Exports tiny models of transformers to ONNX; runs in an environment of its own, see :mod:`tests.support.exported`.

    python export_models.py OUT NAME...

A name is ``family-exporter-attention``: ``bert-dynamo-sdpa`` makes ``OUT/bert-dynamo-sdpa.onnx``. Exporters are
``torchscript`` (torch.onnx.export(dynamo=False)) and ``dynamo``, attention ``eager`` and ``sdpa``. Weights are random
with a spread as trained ones have it: no scale is 1 throughout and no offset 0, as nothing would show then.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf  # type: ignore[import-not-found]

VOCABULARY = 200
_WIDTH, _LAYERS, _HEADS, _INNER = 64, 2, 4, 128
_SIZES = {
    "hidden_size": _WIDTH, "num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS, "intermediate_size": _INNER,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A kind of model: how one is made, and what it is exported with."""

    build: Callable[[], Any]
    inputs: Mapping[str, Any]
    """Example tensors by input name, of batch 2."""
    axes: Mapping[int, str]
    """Dynamic dims of every input, by position."""
    output_axes: Mapping[int, str]
    read: Callable[[Any], Any] = lambda result: result[0]
    """What is the output, of what the model returns."""


class Model(torch.nn.Module):  # type: ignore[misc]
    """A model of transformers with positional inputs and one output."""

    def __init__(self, family: Family, names: Sequence[str]) -> None:
        super().__init__()
        self.model = family.build()
        self.names = names
        self.read = family.read

    def forward(self, *arrays: Any) -> Any:
        """The family's output."""
        return self.read(self.model(**dict(zip(self.names, arrays, strict=True))))


class MeanPooled(torch.nn.Module):  # type: ignore[misc]
    """A sentence embedding: the mean over what the mask shows, of length 1."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def set_attn_implementation(self, name: str) -> None:
        """As the models have it."""
        self.model.set_attn_implementation(name)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        """One embedding a sentence, in a tuple."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask)[0]
        shown = attention_mask.unsqueeze(-1).expand(hidden.size()).float()
        mean = (hidden * shown).sum(1) / torch.clamp(shown.sum(1), min=1e-9)
        return (torch.nn.functional.normalize(mean, p=2, dim=1),)


class Stateless(torch.nn.Module):  # type: ignore[misc]
    """A decoder as an encoder: nothing is kept for the next token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def set_attn_implementation(self, name: str) -> None:
        """As the models have it."""
        self.model.set_attn_implementation(name)

    def forward(self, **inputs: Any) -> Any:
        """The model's own outputs."""
        return self.model(use_cache=False, **inputs)


def _text(build: Callable[[], Any], *, pooled: bool = False) -> Family:
    ids = torch.randint(3, VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 12:] = 0
    axes = {0: "batch", 1: "sequence"}
    return Family(build, {"input_ids": ids, "attention_mask": mask}, axes, {0: "batch"} if pooled else axes)


def _bert() -> Any:
    return hf.BertModel(hf.BertConfig(vocab_size=VOCABULARY, **_SIZES))


def _deberta() -> Any:
    return hf.DebertaV2Model(
        hf.DebertaV2Config(
            vocab_size=VOCABULARY,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=16,
            max_relative_positions=64,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            position_biased_input=False,
            type_vocab_size=0,
            **_SIZES,
        )
    )


def _t5() -> Any:
    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=_WIDTH, d_kv=16, d_ff=_INNER, num_layers=_LAYERS, num_heads=_HEADS
    )
    return hf.T5EncoderModel(config)


def _modernbert() -> Any:
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
    config = hf.ModernBertConfig(
        vocab_size=VOCABULARY, local_attention=8, global_attn_every_n_layers=2, pad_token_id=0, **special, **_SIZES
    )
    return hf.ModernBertModel(config)


def _xlnet() -> Any:
    sizes = {"d_model": _WIDTH, "n_layer": _LAYERS, "n_head": _HEADS, "d_inner": _INNER}
    return hf.XLNetModel(hf.XLNetConfig(vocab_size=VOCABULARY, **sizes))


def _gptj() -> Any:
    config = hf.GPTJConfig(
        vocab_size=VOCABULARY, n_embd=_WIDTH, n_layer=_LAYERS, n_head=_HEADS, n_positions=64, rotary_dim=8
    )
    return Stateless(hf.GPTJModel(config))


def _mpnet() -> Any:
    return hf.MPNetModel(hf.MPNetConfig(vocab_size=VOCABULARY, max_position_embeddings=130, **_SIZES))


def _qwen() -> Any:
    config = hf.Qwen3Config(vocab_size=VOCABULARY, num_key_value_heads=2, head_dim=16, **_SIZES)
    return Stateless(hf.Qwen3Model(config))


FAMILIES: dict[str, Family] = {
    "bert": _text(_bert),
    "deberta": _text(_deberta),
    "gptj": _text(_gptj),
    "modernbert": _text(_modernbert),
    "mpnet": _text(lambda: MeanPooled(_mpnet()), pooled=True),
    "qwen": _text(_qwen),
    "t5": _text(_t5),
    "xlnet": _text(_xlnet),
}


def spread_weights(model: Any) -> None:
    """Give every parameter values of a size that keeps activations near 1, and channels of different size."""
    numbers = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=numbers)

    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if isinstance(module, torch.nn.Embedding):
                    parameter.copy_(normal(*parameter.shape) * 0.5)
                    if module.padding_idx is not None:
                        parameter[module.padding_idx] = 0
                elif parameter.ndim >= 2:
                    channels = torch.exp(0.4 * normal(parameter.shape[0], *(1,) * (parameter.ndim - 1)))
                    parameter.copy_(normal(*parameter.shape) * channels * 0.85 / math.sqrt(parameter[0].numel()))
                elif name.endswith("weight"):
                    parameter.copy_(1 + 0.3 * normal(*parameter.shape))
                else:
                    parameter.copy_(0.1 * normal(*parameter.shape))


def export(name: str, out: Path) -> None:
    """Write one model."""
    family, exporter, attention = name.split("-")
    chosen = FAMILIES[family]
    names = list(chosen.inputs)
    model = Model(chosen, names).eval()
    spread_weights(model)
    if family == "t5":  # its attention has no scale of its own: training makes up for that
        for module in model.modules():
            if hasattr(module, "relative_attention_bias"):
                module.q.weight.data.mul_(0.25)
    model.model.set_attn_implementation(attention)
    common: dict[str, Any] = {"input_names": names, "output_names": ["out"], "dynamo": exporter == "dynamo"}
    if exporter == "dynamo":
        dims = {axis: torch.export.Dim(dim, min=2, max=64) for axis, dim in chosen.axes.items()}
        common |= {"dynamic_shapes": (tuple(dims for _ in names),), "external_data": False, "verbose": False}
    else:
        axes = {name: dict(chosen.axes) for name in names} | {"out": dict(chosen.output_axes)}
        common |= {"dynamic_axes": axes, "opset_version": 17}
    torch.onnx.export(model, tuple(chosen.inputs.values()), str(out / f"{name}.onnx"), **common)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for wanted in sys.argv[2:]:
        export(wanted, Path(sys.argv[1]))
