"""Changes to the metadata of tiny GGUF files: each is refused, or read as llama.cpp reads it.

`python -m tests.fuzz.gguf_metadata --mutations 2000 [--seed 1] [--first 0]`. A file is read in a fork, by us and by
llama.cpp, as either may end its process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.contracts.ingest import Facts
from pipeline.errors import PipelineError
from pipeline.inputs import second_reader
from pipeline.inputs.gguf import llama_cpp
from pipeline.inputs.gguf.source import gguf_source
from pipeline.inputs.language_source import ingest_language
from tests.support.gguf_files import TinySizes, Value, tiny_gguf, tiny_metadata

ARCHITECTURES = ("llama", "qwen2", "qwen3", "phi3", "gemma3")
LONGEST_S = 60
_SIZES = TinySizes(layers=2)
_NUMBERS: tuple[Value, ...] = (
    0, 1, 2, 3, 4, 7, 8, 16, 32, 64, 96, 255, 288, 2048, 65536, 2**31 - 1, 0.0, 0.5, 1.0, 2.0, 4.0, -1.0, 1e-6, 1e-5,
    1e-3, 0.1, 100.0, 10000.0, 1000000.0, 1e30, float("nan"), float("inf"),
)  # fmt: skip
_TEXTS: tuple[Value, ...] = (
    "", "x", "llama", "qwen2", "gpt2", "bert", "none", "linear", "yarn", "longrope", "llama3", "default", "smollm",
    "llama-bpe", "gpt-2", "deepseek-llm", "model", "adapter", "{{ messages[0].content }}", "{% if %}",
)  # fmt: skip
_OTHERS: tuple[Value, ...] = (True, False, [0, 1], [1.0, 2.0], ["a", "b"], [])
_KEYS = (
    "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor",
    "rope.scaling.original_context_length", "rope.scale_linear", "rope.dimension_count", "rope.dimension_sections",
    "attention.key_length", "attention.value_length", "attention.scale", "attention.sliding_window",
    "attention.sliding_window_pattern", "attention.causal", "attention.layer_norm_epsilon", "attention.clamp_kqv",
    "attention.max_alibi_bias", "attention.temperature_scale", "attention.temperature_length", "expert_count",
    "expert_used_count", "expert_weights_scale", "logit_scale", "embedding_scale", "residual_scale", "pooling_type",
    "final_logit_softcapping", "attn_logit_softcapping", "use_parallel_residual", "vocab_size", "tensor_data_layout",
    "nextn_predict_layers", "leading_dense_block_count", "swin_norm", "rescale_every_n_layers", "embedding_length_out",
)  # fmt: skip
_TOKENIZER = (
    "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces", "eot_token_id", "eom_token_id",
    "unknown_token_id", "seperator_token_id", "suppress_tokens", "fim_pre_token_id", "cls_token_id", "mask_token_id",
    "escape_whitespaces", "normalizer.lowercase", "ignore_merges",
)  # fmt: skip


def mutation(number: int, seed: int) -> tuple[str, dict[str, Value | None], str]:
    """The architecture, the metadata that are changed (None: left out), and a short text of both."""
    chosen = random.Random(f"{seed}/{number}")
    architecture = chosen.choice(ARCHITECTURES)
    known = tiny_metadata(_SIZES, architecture)
    changed: dict[str, Value | None] = {}
    for _ in range(chosen.choice((1, 1, 1, 2))):
        new = [*(f"{architecture}.{key}" for key in _KEYS), *(f"tokenizer.ggml.{key}" for key in _TOKENIZER)]
        key = chosen.choice([*known, *known, *new])
        changed[key] = _changed(known.get(key), chosen)
        if key in known and chosen.random() < 0.1:
            changed[chosen.choice(new)] = known[key]
    told = {key: str(value)[:60] for key, value in changed.items()}
    return architecture, changed, f"{architecture} {told}"


def _changed(value: Value | None, chosen: random.Random) -> Value | None:
    if isinstance(value, list) and value and chosen.random() < 0.8:
        items: list[Any] = [*value]
        at, other = chosen.randrange(len(items)), chosen.randrange(len(items))
        match chosen.randrange(5):
            case 0:
                items[at], items[other] = items[other], items[at]
            case 1:
                del items[at]
            case 2:
                items[at] = chosen.choice((1, 2, 3, 4, 5, 6)) if isinstance(items[at], int) else f"{items[at]}x"
            case 3:
                items[at] = items[other]
            case _:
                chosen.shuffle(items)
        return items
    match chosen.randrange(6):
        case 0:
            return None
        case 1 if isinstance(value, int | float):
            return type(value)(value * chosen.choice((0.5, 2, 1.1, -1)))
        case 2 if isinstance(value, str):
            return chosen.choice((value[: len(value) // 2], value.replace("message", "messages"), value + " "))
        case 3:
            return chosen.choice(_OTHERS)
        case 4 if not isinstance(value, str):
            return chosen.choice(_NUMBERS)
    return chosen.choice((*_NUMBERS, *_TEXTS, *_OTHERS))


def outcome(folder: Path, architecture: str, changed: Mapping[str, Value | None]) -> tuple[str, str]:
    """`refused`, `equal`, `differs` or `not opened` (by llama.cpp), and the reason."""
    file, out = folder / "a.gguf", folder / "out"
    tiny_gguf(file, architecture=architecture, sizes=_SIZES, changed=changed)
    out.mkdir()
    try:
        given: Any = SimpleNamespace(inputs={"fetch": SimpleNamespace(folder=folder, files={file.name: 0})}, out=out)
        made = ingest_language(given, file.name, gguf_source)
    except PipelineError as error:
        return "refused", error.why or error.what
    for name, (_, source) in made.reused.items():
        (out / name).hardlink_to(folder / source)
    facts = Facts.from_json(made.facts).language
    assert facts is not None
    found = second_reader.read_again(file, out, facts).reading
    if found.shown == "not proven":
        return "not opened", found.why or ""
    return ("differs" if found.shown == "differs" else "equal"), found.why or ""


def attempt(number: int, seed: int) -> tuple[str, str, str]:
    """The outcome of a mutation, its reason, and the mutation, as text; in a fork."""
    assert sys.platform != "win32"
    architecture, changed, told = mutation(number, seed)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        child = os.fork()
        if not child:
            try:
                signal.alarm(LONGEST_S)
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
                result = outcome(Path(folder), architecture, changed)
                Path(folder, "result").write_text(json.dumps(result))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        result_file = Path(folder, "result")
        if not result_file.exists():
            return "broken", f"exit {os.waitstatus_to_exitcode(status)}", told
        what, why = json.loads(result_file.read_text())
        return what, why, told


def main(arguments: list[str]) -> int:
    """Try some mutations; 1 if one is read otherwise than by llama.cpp."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.gguf_metadata")
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    for number in range(given.first, given.first + given.mutations):
        what, why, told = attempt(number, given.seed)
        counts[what] += 1
        if what not in ("refused", "equal"):
            print(f"{number} {what}: {told}\n    {why}", flush=True)
    print(", ".join(f"{counts[what]} {what}" for what in counts), flush=True)
    return int(counts["differs"] + counts["broken"] > 0)


if __name__ == "__main__":
    llama_cpp.version()
    sys.exit(main(sys.argv[1:]))
