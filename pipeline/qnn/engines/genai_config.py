"""Writes `genai_config.json`, by which onnxruntime-genai 0.16 opens a folder as a `decoder-pipeline`.

Fields are those of its `src/config.h`. Its `WindowedKeyValueCache` is made for the cache of these graphs, of 8 bits.
`pad_token_id` may never be in a prompt: it is how genai knows where a prompt begins. Positions of padding count toward
`max_length`, and the cache must hold two windows or more.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.contracts.language import LanguageFacts
from pipeline.graph.language.inputs_model import POSITIONS, SEEN
from pipeline.graph.language.names import EMBEDDED, IDS
from pipeline.model import Json
from pipeline.qnn.engines.graphs import LOGITS, MASK, SpokenGraph, cache_names, longest_pair

CONFIG, INPUTS = "genai_config.json", "inputs.onnx"
WINDOW = "sliding_window"


def genai_config(facts: LanguageFacts, graphs: Sequence[SpokenGraph], pad: int) -> dict[str, Json]:
    """The configuration of decode and prefill of the longest context; `pad` is the token for none."""
    decode, prefill = longest_pair(graphs)
    rotated = [f"position_ids_{part}{suffix}" for suffix in facts.rotations for part in ("cos", "sin")]
    cache = cache_names(facts)
    rows = [EMBEDDED] if EMBEDDED in prefill.edges else []
    given: list[Json] = [*(rows or [IDS]), MASK, *rotated, *(name for name, _ in cache)]
    made: list[Json] = [LOGITS, *(name for _, name in cache)]
    before: dict[str, Json] = {
        "filename": INPUTS,
        "inputs": [POSITIONS, SEEN, *([IDS] if rows else [])],
        "outputs": [MASK, *rotated, *rows],
    }
    stages: list[Json] = [{"inputs": before}]
    for name, graph, off in (("prefill", prefill, "run_on_token_gen"), ("decode", decode, "run_on_prompt")):
        options: dict[str, Json] = {"provider_options": [{"QNN": {"backend_type": "htp"}}]}
        stage: dict[str, Json] = {"filename": graph.context_model, "session_options": options, off: False}
        stages.append({name: {**stage, "inputs": given, "outputs": made}})
    key = prefill.edges.get(cache[0][0])
    decoder: dict[str, Json] = {
        "head_size": facts.head_dim,
        "hidden_size": facts.hidden,
        "num_attention_heads": facts.heads,
        "num_hidden_layers": facts.layers,
        "num_key_value_heads": facts.kv_heads,
        WINDOW: {
            "window_size": prefill.sequence,
            "pad_value": key.zero_point if key else 0,
            "alignment": "right",
            "slide_key_value_cache": True,
        },
        "inputs": {
            "input_ids": IDS,
            "attention_mask": SEEN,
            "position_ids": POSITIONS,
            "past_key_names": "past_key_%d_in",
            "past_value_names": "past_value_%d_in",
        },
        "outputs": {
            "logits": LOGITS,
            "present_key_names": "past_key_%d_out",
            "present_value_names": "past_value_%d_out",
        },
        "pipeline": stages,
    }
    model: dict[str, Json] = {
        "type": "decoder-pipeline",
        "vocab_size": facts.vocabulary,
        "context_length": prefill.total,
        "pad_token_id": pad,
        "eos_token_id": [*facts.stops],
        **({"bos_token_id": facts.bos} if facts.bos is not None else {}),
        "decoder": decoder,
    }
    return {"model": model, "search": {"max_length": prefill.total, "do_sample": False, "num_beams": 1}}
