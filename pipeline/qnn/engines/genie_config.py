"""Writes `genie_config.json` and `htp_backend_ext_config.json`, by which Qualcomm's Genie opens two graphs.

Fields are those that Genie 1.21 takes (it names the one that it does not know). It makes the mask and the rotation
itself: the mask from `attention_mask`'s encoding, in which 65535 has to be 0, the rotation from `rope-theta` and
`rope-dim`, which is half of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.contracts.language import LanguageFacts
from pipeline.graph.language.hyper import frequencies
from pipeline.graph.language.names import EMBEDDED, TABLE, TOKENIZER
from pipeline.model import Json
from pipeline.qnn.engines.graphs import SpokenGraph, shares_binaries

CONFIG, EXTENSIONS = "genie_config.json", "htp_backend_ext_config.json"
_NEAR = 1e-5
"""The share by which an angle may differ from a power of theta and still count as it."""


def why_not(facts: LanguageFacts, graphs: Sequence[SpokenGraph]) -> str:
    """Why Genie can't run a model; empty if it can, as far as can be told without asking it."""
    if not facts.stops:
        return "no token is known that ends an answer"
    if [*facts.rotations] != [""]:
        return "it has a second rotation for some of its layers, which Genie can't be told"
    rotation = facts.rotations[""]
    plain = frequencies(rotation.theta, facts.head_dim)
    if any(abs(angle - wanted) > _NEAR * wanted for angle, wanted in zip(rotation.frequencies, plain, strict=True)):
        return f"its rotation is not that of theta {rotation.theta:g} alone"
    if any(graph.edges.get("past_key_0_in") is None for graph in graphs):
        return "its cache is not of 8 bits"
    return ""


def genie_config(facts: LanguageFacts, graphs: Sequence[SpokenGraph], pad: int, *, begins: bool) -> dict[str, Json]:
    """The dialog of these graphs; `begins`: the template does not write the first token itself."""
    context: dict[str, Json] = {
        "version": 1,
        "size": max(graph.total for graph in graphs),
        "n-vocab": facts.vocabulary,
        "bos-token": facts.bos if begins and facts.bos is not None else -1,
        "eos-token": [*facts.stops],
        "pad-token": pad,
    }
    htp: dict[str, Json] = {
        "version": 1,
        "use-mmap": False,
        "spill-fill-bufsize": 0,
        "mmap-budget": 0,
        "poll": False,
        "cpu-mask": "0xe0",  # Genie asks for one; this is of the bundles that Qualcomm publishes
        "kv-dim": facts.head_dim,
        "allow-async-init": False,
    }
    binaries: list[Json] = [*dict.fromkeys(binary for graph in graphs for binary in graph.binaries)]
    rotation: dict[str, Json] = {
        "type": "rope",
        "rope-dim": facts.head_dim // 2,
        "rope-theta": _whole(facts.rotations[""].theta),
    }
    engine: dict[str, Json] = {
        "version": 1,
        "n-threads": 3,
        "backend": {"version": 1, "type": "QnnHtp", "QnnHtp": htp, "extensions": EXTENSIONS},
        "model": {
            "version": 1,
            "type": "binary",
            "binary": {"version": 1, "ctx-bins": binaries},
            "positional-encoding": rotation,
        },
    }
    dialog: dict[str, Json] = {
        "version": 1,
        "type": "basic",
        "context": context,
        "sampler": {"version": 1, "seed": 42, "temp": 1.0, "top-k": 1, "top-p": 1.0, "greedy": True},
        "tokenizer": {"version": 1, "path": TOKENIZER},
        "engine": engine,
    }
    if rows := graphs[0].edges.get(EMBEDDED):
        dialog["embedding"] = {
            "version": 1,
            "type": "lut",
            "size": facts.hidden,
            "datatype": "ufixed16",
            "lut-path": TABLE,
            "quant-param": {"scale": rows.scale, "offset": -rows.zero_point},
        }
    return {"dialog": dialog}


def extension_config(graphs: Sequence[SpokenGraph]) -> dict[str, Json]:
    """The HTP backend's own file: the SoC of the binaries, and whether graphs share one."""
    core: dict[str, Json] = {"core_id": 0, "perf_profile": "burst", "rpc_control_latency": 100}
    device: dict[str, Json] = {
        "soc_model": graphs[0].soc_model,
        "dsp_arch": f"v{graphs[0].htp_arch}",
        "cores": [core],
    }
    return {
        "devices": [device],
        "memory": {"mem_type": "shared_buffer"},
        **({"context": {"weight_sharing_enabled": True}} if shares_binaries(graphs) else {}),
    }


def _whole(number: float) -> int | float:
    """A number as JSON has it best: 10000, not 10000.0."""
    return int(number) if number == int(number) else number
