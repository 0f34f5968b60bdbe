"""The rewrite stage; each rewrite has a test file of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.graph.files.model_file import load_graph
from tests.support.graphs import attention, graph, operators, outputs, sentence
from tests.support.stage_runs import Component


def test_facts_say_what_was_changed_and_the_result_stays(tmp_path: Path) -> None:
    component = Component(tmp_path, attention(), {"8": {"sequence": 8}})
    shape, rewritten = component.shape["8"], component.rewrite["8"]

    applied = rewritten.facts["applied"]
    assert isinstance(applied, dict)
    counts = {name: count for name, count in applied.items() if count}
    assert counts == {"make_masks_finite": 1, "fuse_gelu": 1, "compare_casts": 1}
    assert rewritten.facts["inputs"] == shape.facts["inputs"]
    assert rewritten.facts["outputs"] == shape.facts["outputs"]
    assert rewritten.facts["nodes"] == sum(operators(load_graph(rewritten.folder / "model.onnx")).values())
    feeds = sentence(8)
    feeds["attention_mask"][0, 5:] = 0
    before = outputs(shape.folder / "model.onnx", feeds)["hidden"]
    after = outputs(rewritten.folder / "model.onnx", feeds)["hidden"]
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


def test_blobs_that_did_not_change_are_reused(tmp_path: Path) -> None:
    component = Component(tmp_path, attention(), {"8": {"sequence": 8}})
    for blob in ("weights.bin", "constants.bin"):
        assert component.rewrite["8"].files[blob] == component.shape["8"].files[blob]


def test_a_large_mask_goes_to_a_blob_of_its_own(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,32,32] scores) => (float[1,32,32] y) {
            masked = Add (scores, causal)
            y = Softmax (masked)
        }""",
        {"causal": np.triu(np.full((32, 32), -np.inf, np.float32), 1)},
    )
    component = Component(tmp_path, model, {"all": {}})
    rewritten = component.rewrite["all"]

    (tensor,) = load_graph(rewritten.folder / "model.onnx").graph.initializer
    assert tensor.name == "causal_finite"
    assert tensor.external_data[0].value == "rewritten.bin"
    assert rewritten.files["rewritten.bin"].bytes == 32 * 32 * 4
    scores = np.random.default_rng(0).normal(size=(1, 32, 32)).astype(np.float32)
    before = outputs(component.shape["all"].folder / "model.onnx", {"scores": scores})["y"]
    after = outputs(rewritten.folder / "model.onnx", {"scores": scores})["y"]
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-30)
