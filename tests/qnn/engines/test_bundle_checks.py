"""What Genie and onnxruntime-genai pass without a word is found, each fault by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.graph.language.names import TOKENIZER
from pipeline.qnn.engines import bundle_checks, genai_config, genie_config
from pipeline.qnn.engines.graphs import SpokenGraph
from pipeline.qnn.format.graph_io import BinaryEncoding, EdgeTensor
from tests.support.spoken_graphs import TARGET, bundle_folder, spoken_graph, spoken_graphs, tiny_facts

Config = dict[str, Any]


def all_faults(folder: Path, graphs: Sequence[SpokenGraph]) -> list[str]:
    facts = tiny_facts()
    return [
        *bundle_checks.graph_faults(graphs, facts),
        *bundle_checks.tokenizer_faults(folder, facts),
        *bundle_checks.table_faults(folder, graphs, facts),
        *bundle_checks.genai_faults(folder, graphs, facts),
        *bundle_checks.genie_faults(folder, graphs, facts, TARGET),
    ]


def edit(path: Path, change: Callable[[Config], None]) -> None:
    config: Config = json.loads(path.read_text("utf-8"))
    change(config)
    path.write_text(json.dumps(config), "utf-8")


def engine(config: Config) -> Config:
    found: Config = config["dialog"]["engine"]
    return found


def test_a_bundle_as_it_is_written_has_no_fault(tmp_path: Path) -> None:
    folder, facts = bundle_folder(tmp_path)

    assert facts.faults == ()
    assert all_faults(folder, spoken_graphs()) == []
    assert sorted(facts.configs) == ["genai", "genie"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda made: engine(made)["model"]["positional-encoding"].update({"rope-theta": 500000}),
            "rope-theta of genie_config.json is 500000; the source has 10000",
        ),
        (
            lambda made: engine(made)["model"]["positional-encoding"].update({"rope-dim": 16}),
            "rope-dim of genie_config.json is 16; the graphs take half of a head, 8",
        ),
        (
            lambda made: engine(made)["backend"]["QnnHtp"].update({"kv-dim": 32}),
            "kv-dim of genie_config.json is 32; the cache has heads of 16",
        ),
        (
            lambda made: made["dialog"]["context"].update({"size": 16}),
            "size of genie_config.json is 16; the graphs see 32",
        ),
        (
            lambda made: made["dialog"]["context"].update({"n-vocab": 300}),
            "n-vocab of genie_config.json is 300; the logits' width is 288",
        ),
        (
            lambda made: made["dialog"]["context"].update({"pad-token": -1}),
            "pad-token of genie_config.json is -1, which is no token",
        ),
        (
            lambda made: made["dialog"]["context"].update({"eos-token": [1]}),
            "eos-token of genie_config.json is [1]; the model ends with [263, 265]",
        ),
        (
            lambda made: engine(made)["model"]["binary"].update({"ctx-bins": ["model_ctx_qnn.bin"] * 2}),
            "genie_config.json lists model_ctx_qnn.bin 2 times",
        ),
        (
            lambda made: engine(made)["model"]["binary"].update({"ctx-bins": []}),
            "genie_config.json does not list model_ctx_qnn.bin",
        ),
    ],
)
def test_a_wrong_genie_config_is_named(tmp_path: Path, change: Callable[[Config], None], said: str) -> None:
    folder, _ = bundle_folder(tmp_path)
    edit(folder / genie_config.CONFIG, change)

    (found,) = all_faults(folder, spoken_graphs())

    assert found.startswith(said)


def embedding(config: Config) -> Config:
    found: Config = config["dialog"]["embedding"]
    return found


def test_a_bundle_with_a_table_on_the_host_has_no_fault(tmp_path: Path) -> None:
    folder, facts = bundle_folder(tmp_path, on_host=True)

    assert facts.faults == ()
    assert all_faults(folder, spoken_graphs(on_host=True)) == []
    assert embedding(json.loads((folder / genie_config.CONFIG).read_text("utf-8"))) == {
        "version": 1,
        "type": "lut",
        "size": 64,
        "datatype": "ufixed16",
        "lut-path": "embedding.bin",
        "quant-param": {"scale": pytest.approx(3e-6), "offset": -30000},
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: embedding(made).update({"size": 32}), "size of genie_config.json is 32; a row has 64"),
        (
            lambda made: embedding(made).update({"datatype": "sfixed16"}),
            "datatype of genie_config.json is sfixed16; the graphs take ufixed16",
        ),
        (
            lambda made: embedding(made)["quant-param"].update({"offset": 0}),
            "offset of genie_config.json is 0; the graphs take -30000",
        ),
        (lambda made: embedding(made)["quant-param"].update({"scale": 1e-6}), "scale of genie_config.json is 1e-06"),
        (
            lambda made: embedding(made).update({"lut-path": "other.bin"}),
            "lut-path of genie_config.json is other.bin; the table is embedding.bin",
        ),
        (lambda made: made["dialog"].pop("embedding"), "lut-path of genie_config.json is missing"),
    ],
)
def test_a_wrong_table_in_a_genie_config_is_named(tmp_path: Path, change: Callable[[Config], None], said: str) -> None:
    folder, _ = bundle_folder(tmp_path, on_host=True)
    edit(folder / genie_config.CONFIG, change)

    assert all_faults(folder, spoken_graphs(on_host=True))[0].startswith(said)


def test_a_table_that_graphs_do_not_take_is_named(tmp_path: Path) -> None:
    folder, _ = bundle_folder(tmp_path, on_host=True)

    assert all_faults(folder, spoken_graphs()) == [
        "genie_config.json has a table of embeddings, which the graphs have themselves"
    ]


@pytest.mark.parametrize("size", [0, 2 * 288 * 64 - 2])
def test_a_table_of_another_size_is_named(tmp_path: Path, size: int) -> None:
    folder, _ = bundle_folder(tmp_path, on_host=True)
    table = folder / "embedding.bin"
    table.write_bytes(table.read_bytes()[:size])

    assert all_faults(folder, spoken_graphs(on_host=True)) == [
        f"embedding.bin has {size} bytes; 288 rows of 64 numbers of 16 bits have 36864"
    ]


def test_graphs_that_read_rows_in_two_ways_are_named(tmp_path: Path) -> None:
    folder, _ = bundle_folder(tmp_path, on_host=True)
    decode, prefill = spoken_graphs(on_host=True)
    wrong = with_input(prefill, "inputs_embeds", BinaryEncoding(3e-6, 30001))

    assert all_faults(folder, [decode, wrong]) == [
        "inputs_embeds is encoded in 2 ways, and rows of one table are to be that"
    ]


def test_extensions_for_another_chip_are_named(tmp_path: Path) -> None:
    folder, _ = bundle_folder(tmp_path)
    edit(folder / genie_config.EXTENSIONS, lambda made: made["devices"][0].update({"soc_model": 57}))

    assert all_faults(folder, spoken_graphs()) == [
        "soc_model of htp_backend_ext_config.json is 57; the binaries are for 60"
    ]


def test_binaries_for_another_chip_are_named(tmp_path: Path) -> None:
    folder, _ = bundle_folder(tmp_path)
    graphs = [replace(graph, soc_model=57) for graph in spoken_graphs()]

    assert all_faults(folder, graphs) == ["a binary is for SoC 57, not for 60"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: made["model"].update({"context_length": 64}), "context_length of genai_config.json is 64"),
        (
            lambda made: made["model"]["decoder"]["sliding_window"].update({"window_size": 4}),
            "window_size of genai_config.json is 4; prefill takes 8",
        ),
        (
            lambda made: made["model"]["decoder"]["sliding_window"].update({"pad_value": 0}),
            "pad_value of genai_config.json is 0; zero of the cache is 128",
        ),
    ],
)
def test_a_wrong_genai_config_is_named(tmp_path: Path, change: Callable[[Config], None], said: str) -> None:
    folder, _ = bundle_folder(tmp_path)
    edit(folder / genai_config.CONFIG, change)

    (found,) = all_faults(folder, spoken_graphs())

    assert found.startswith(said)


@pytest.mark.parametrize("text", ["{}", '{"added_tokens": [], "model": {"vocab": {}}}', "", "null"])
def test_an_empty_tokenizer_is_named(tmp_path: Path, text: str) -> None:
    folder, _ = bundle_folder(tmp_path)
    (folder / TOKENIZER).write_text(text, "utf-8")

    assert all_faults(folder, spoken_graphs()) == ["tokenizer.json has no tokens"]


def with_input(graph: SpokenGraph, name: str, encoding: BinaryEncoding) -> SpokenGraph:
    def changed(tensors: tuple[EdgeTensor, ...]) -> tuple[EdgeTensor, ...]:
        return tuple(replace(each, encoding=encoding) if each.name == name else each for each in tensors)

    info = replace(graph.info, inputs=changed(graph.info.inputs), outputs=changed(graph.info.outputs))
    return replace(graph, info=info)


def test_a_mask_in_which_65535_is_not_0_is_named(tmp_path: Path) -> None:
    folder, _ = bundle_folder(tmp_path)
    decode, prefill = spoken_graphs()
    wrong = with_input(prefill, "attention_mask", BinaryEncoding(50 / 65535, 65000))

    (found,) = all_faults(folder, [decode, wrong])

    assert found.startswith("65535 of the attention mask of model_8x24_ctx.onnx means 0.408179")


def test_a_mask_of_another_scale_is_named(tmp_path: Path) -> None:
    folder, _ = bundle_folder(tmp_path)
    decode, prefill = spoken_graphs()
    wrong = with_input(prefill, "attention_mask", BinaryEncoding(5 / 65535, 65535))

    (found,) = all_faults(folder, [decode, wrong])

    assert found == "0 of the attention mask of model_8x24_ctx.onnx means -5; the graph was made for -50"


def test_logits_of_the_last_row_alone_are_named(tmp_path: Path) -> None:
    folder, _ = bundle_folder(tmp_path)

    (found,) = all_faults(folder, [spoken_graph(1), spoken_graph(8, rows=1)])

    assert found == (
        "the logits of model_8x24_ctx.onnx are [1, 1, 288]; engines read those of every token, [1, 8, 288]"
    )


def test_a_tie_that_is_broken_is_named(tmp_path: Path) -> None:
    folder, _ = bundle_folder(tmp_path)
    decode, prefill = spoken_graphs()
    wrong = with_input(prefill, "past_value_1_out", BinaryEncoding(0.03, 128))

    (found,) = all_faults(folder, [decode, wrong])

    assert found.startswith("past_value_1_in and past_value_1_out are encoded in 2 ways")


def test_a_context_shorter_than_two_windows_is_named(tmp_path: Path) -> None:
    folder, _ = bundle_folder(tmp_path)
    graphs = [spoken_graph(1), spoken_graph(20)]

    found = all_faults(folder, graphs)

    assert "onnxruntime-genai takes a context of two windows or more, and 32 is less than twice 20" in found
