"""Language models in parts: what a chain of them computes, and where they are cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, checker, helper

from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.errors import ModelError
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import CONSTANTS, CONVERTED, save_graph
from pipeline.graph.language import parts as language_parts
from pipeline.graph.language.architectures import BUILDERS
from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.loop import Arrays, Walk
from pipeline.graph.language.parts import cuts, split
from pipeline.graph.shapes.static_shapes import make_static
from pipeline.inputs.gguf.source import gguf_source
from tests.support.gguf_files import TinySizes, tiny_gguf

LAYERS = 5
TOKENS = [5, 70, 33, 33, 250, 101, 7, 64, 12, 90, 3]
LENGTHS = Lengths(4, 12)


def whole(folder: Path, architecture: str = "llama") -> tuple[ModelProto, LanguageFacts]:
    """A static model of five layers in a folder."""
    tiny_gguf(folder / "a.gguf", architecture=architecture, sizes=TinySizes(layers=LAYERS))
    source = gguf_source(folder / "a.gguf")
    hyper = source.hyper
    with BlobWriter(folder / CONVERTED) as blob:
        builder = GraphBuilder(hyper, source.weights, blob)
        BUILDERS[architecture](builder)
        dynamic = ModelProto.FromString(builder.model("tiny"))
    with BlobWriter(folder / CONSTANTS) as blob:
        model = make_static(dynamic, {"sequence": LENGTHS.sequence, "past": LENGTHS.past}, folder, blob).model
    save_graph(model, folder / "whole.onnx")
    facts = LanguageFacts(
        hyper.architecture, hyper.layers, hyper.hidden, hyper.heads, hyper.kv_heads, hyper.head_dim, hyper.vocabulary,
        hyper.context, hyper.rotations,
    )  # fmt: skip
    return model, facts


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("count", [1, 2, 3, LAYERS + 1])
def test_a_chain_of_parts_computes_what_the_whole_does(architecture: str, count: int, tmp_path: Path) -> None:
    model, facts = whole(tmp_path, architecture)
    parts = split(model, cuts(model, count))
    sessions = []
    for number, part in enumerate(parts):
        save_graph(part, tmp_path / f"{number}.onnx")
        checker.check_model(str(tmp_path / f"{number}.onnx"))
        sessions.append(load_session(tmp_path / f"{number}.onnx"))

    def chained(feeds: Arrays) -> Arrays:
        known = {**feeds}
        for session in sessions:
            known |= run(session, known)
        return known

    assert len(parts) == count
    session = load_session(tmp_path / "whole.onnx")
    expected = np.concatenate([*Walk(facts, LENGTHS.past).run(lambda feed: run(session, feed), LENGTHS, TOKENS)])
    found = np.concatenate([*Walk(facts, LENGTHS.past).run(chained, LENGTHS, TOKENS)])
    np.testing.assert_array_equal(found, expected)


def test_each_part_has_its_own_layers_and_their_cache(tmp_path: Path) -> None:
    model, _ = whole(tmp_path)

    first, second = split(model, ("/layers.1/gated_residual",))

    assert [value.name for value in first.graph.output] == [
        *(f"past_{kind}_{layer}_out" for layer in (0, 1) for kind in ("key", "value")),
        "/layers.1/gated_residual",
    ]
    names = [value.name for value in second.graph.input]
    assert "input_ids" not in names
    assert "past_key_1_in" not in names
    assert {"past_key_2_in", "attention_mask", "/layers.1/gated_residual"} <= {*names}
    assert not {node.name for node in first.graph.node} & {node.name for node in second.graph.node}


def test_as_few_parts_are_made_as_hold_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = whole(tmp_path)
    assert cuts(model, None) == ()

    layer = 2 * sum(
        int(np.prod(tensor.dims)) for tensor in model.graph.initializer if tensor.name.startswith("/layers.1/")
    )
    table = 2 * 288 * 64
    monkeypatch.setattr(language_parts, "MOST_BYTES", 2 * layer + table + 1000)

    found = cuts(model, None)

    assert len(found) == 2
    sizes = [sum(2 * int(np.prod(t.dims)) for t in part.graph.initializer) for part in split(model, found)]
    assert max(sizes) <= 2 * layer + table + 2000
    monkeypatch.setattr(language_parts, "MOST_BYTES", table - 1)
    with pytest.raises(ModelError, match="layers are not split"):
        cuts(model, None)


def test_more_parts_than_layers_are_refused(tmp_path: Path) -> None:
    model, _ = whole(tmp_path)

    with pytest.raises(ModelError, match="the model has 5 layers and a head to split"):
        cuts(model, LAYERS + 2)


def test_a_stream_that_is_stored_as_integers_is_cut_there(tmp_path: Path) -> None:
    model, _ = whole(tmp_path)
    stream = "/layers.2/gated_residual"
    for node in model.graph.node:
        node.input[:] = ["read" if name == stream else name for name in node.input]
    place = next(number for number, node in enumerate(model.graph.node) if node.name == stream)
    kind = next(value.type for value in model.graph.value_info if value.name == stream)
    nodes = list(model.graph.node)
    scale, zero = helper.make_tensor("scale", 1, [], [0.1]), helper.make_tensor("zero", 4, [], [32768])
    nodes[place + 1 : place + 1] = [
        helper.make_node("QuantizeLinear", [stream, "scale", "zero"], ["stored"]),
        helper.make_node("DequantizeLinear", ["stored", "scale", "zero"], ["read"]),
    ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend([scale, zero])
    stored = model.graph.value_info.add(name="stored")
    stored.CopyFrom(helper.make_tensor_value_info("stored", 4, [1, 4, 64]))
    model.graph.value_info.add(name="read", type=kind)

    found = cuts(model, LAYERS + 1)

    assert found[2] == "stored"
    assert [value.name for value in split(model, found[2:3])[0].graph.output][-1] == "stored"
