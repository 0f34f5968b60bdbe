"""Steps that make something for several buckets at once, and what a later step sees of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.load import load
from pipeline.contracts import samples
from pipeline.contracts.ingest import Facts
from pipeline.model import FileEntry, Json, Manifest
from pipeline.plan.planner import plan
from pipeline.plan.resolve import Resolved, resolve
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.store.manifests import write_manifest
from tests.support.encoder_project import CONFIG as BERT

AXES = {"batch": ("ids",), "sequence": ("ids",)}
INGEST = Manifest(
    "ingest", "0" * 64, {}, Facts(inputs=(), outputs=(), constants={}, opset=17, nodes=1, axes=AXES).to_json()
)
CONTEXTS = {bucket: f"context:bert/encoder/{bucket}/sm8650" for bucket in (16, 32)}


def quantized(*buckets: int, weights: str = "a") -> Manifest:
    """What quantize makes for these buckets: a graph file for each, and one blob that all of them read."""
    files = {f"encoder_{bucket}.onnx": FileEntry(f"{bucket:064d}", bucket) for bucket in buckets}
    files["encoder_weights.bin"] = FileEntry(weights * 64, 1000)
    parts: dict[str, Json] = {
        str(bucket): {
            "files": {"model.onnx": f"encoder_{bucket}.onnx", "encoder_weights.bin": "encoder_weights.bin"},
            "facts": {"nodes": bucket},
        }
        for bucket in buckets
    }
    return Manifest("quantize", "1" * 64, files, {"scheme": "w8a16", "parts": parts})


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "bert.yaml").write_text(BERT)
    return Workspace.at(tmp_path)


def resolved(workspace: Workspace, step_id: str, quantize: Manifest) -> Resolved | None:
    """A step of the config as it is now, after a quantize step that left this manifest."""
    steps: dict[str, Step] = {step.id: step for step in plan(load(workspace.root / "configs" / "bert.yaml"))}
    for upstream, manifest in (("ingest:bert/encoder", INGEST), ("quantize:bert/encoder", quantize)):
        write_manifest(workspace.current(upstream), manifest)
    return resolve(steps[step_id], workspace)


def test_a_part_has_the_files_and_facts_of_its_bucket_alone() -> None:
    part = quantized(16, 32).part("16")
    assert part is not None
    assert part.files == {"model.onnx": FileEntry(f"{16:064d}", 16), "encoder_weights.bin": FileEntry("a" * 64, 1000)}
    assert part.facts == {"nodes": 16}
    assert quantized(16).part("32") is None
    assert INGEST.part("16") is None


def test_a_bucket_that_is_added_leaves_the_steps_of_the_others_as_they_are(workspace: Workspace) -> None:
    before = resolved(workspace, CONTEXTS[16], quantized(16, 32))
    path = workspace.root / "configs" / "bert.yaml"
    path.write_text(BERT.replace("[16, 32]", "[16, 32, 48]"))
    after = resolved(workspace, CONTEXTS[16], quantized(16, 32, 48))

    assert before is not None
    assert after is not None
    assert before.key == after.key
    assert after.inputs["model/16"].files["model.onnx"].bytes == 16


def test_a_bucket_is_made_again_when_the_weights_or_its_own_graph_change(workspace: Workspace) -> None:
    first = quantized(16, 32)
    changed = {**first.files, "encoder_16.onnx": FileEntry("f" * 64, 16)}
    keys = {
        bucket: [
            found.key if (found := resolved(workspace, CONTEXTS[bucket], manifest)) else None
            for manifest in (first, quantized(16, 32, weights="b"), replace(first, files=changed))
        ]
        for bucket in (16, 32)
    }
    assert len(set(keys[16])) == 3
    assert keys[32][0] == keys[32][2] != keys[32][1]


def test_a_step_waits_while_its_part_was_not_made(workspace: Workspace) -> None:
    assert resolved(workspace, CONTEXTS[32], quantized(16)) is None


def test_of_what_a_step_found_out_only_the_facts_that_are_named_are_an_input(workspace: Workspace) -> None:
    path = workspace.root / "configs" / "bert.yaml"
    path.write_text(f"{BERT}packing: auto\n")
    keys = {}
    for chosen, estimate in (("buckets", 10), ("buckets", 20), ("socs", 10)):
        files = {"report.txt": FileEntry(f"{estimate:064d}", estimate)}
        facts: dict[str, Json] = {"chosen": chosen, "why": "", "estimates": {"buckets": estimate}}
        write_manifest(workspace.current("packing:bert/encoder"), Manifest("packing", "2" * 64, files, facts))
        found = resolved(workspace, CONTEXTS[16], quantized(16, 32))
        assert found is not None
        assert found.inputs["packing"].facts == {"chosen": chosen}
        keys[chosen, estimate] = found.key
    assert keys["buckets", 10] == keys["buckets", 20] != keys["socs", 10]


def test_facts_of_samples_change_no_key(workspace: Workspace) -> None:
    """The files say all that later steps need."""
    files = {"samples.json": FileEntry("7" * 64, 7)}
    keys: dict[str, list[tuple[str, str]]] = {}
    for stage in ("rewrite", "calibrate", "correlate"):
        for bucket in ("/16", "/32") if stage == "rewrite" else ("",):
            write_manifest(workspace.current(f"{stage}:bert/encoder{bucket}"), Manifest(stage, "5" * 64, {}, {}))
    other_files = {"samples.json": FileEntry("8" * 64, 8)}
    for unneeded, made in ((None, files), (("16",), files), (("32",), files), (("16",), other_files)):
        facts = samples.Facts({"encoder": 6}, 6, 0, {}, unneeded and {"encoder": unneeded}).to_json()
        for purpose in ("calibration", "verification"):
            write_manifest(workspace.current(f"samples:bert/{purpose}"), Manifest("samples", "4" * 64, made, facts))
        for step_id in ("calibrate:bert/encoder", "quantize:bert/encoder"):
            found = resolved(workspace, step_id, quantized(16, 32))
            assert found is not None
            assert all(each.files == made for role, each in found.inputs.items() if role == "samples")
            keys.setdefault(step_id, []).append((found.key, found.climb_key))
    for step_id, (*alike, other) in keys.items():
        assert len({*alike}) == 1, step_id
        assert other not in alike, step_id


def test_what_came_out_in_float_has_the_keys_of_a_config_that_wants_float(workspace: Workspace) -> None:
    made = quantized(16, 32)
    in_float = replace(made, facts={**made.facts, "unchanged": True})
    rewritten = Manifest("rewrite", "3" * 64, {"model.onnx": FileEntry("9" * 64, 9)}, {})
    write_manifest(workspace.current("rewrite:bert/encoder/16"), rewritten)
    integers, floats = (resolved(workspace, CONTEXTS[16], manifest) for manifest in (made, in_float))
    (workspace.root / "configs" / "bert.yaml").write_text(f"{BERT}quantization: {{precision: fp16}}\n")
    explicit = resolved(workspace, CONTEXTS[16], made)

    assert integers is not None
    assert floats is not None
    assert explicit is not None
    assert floats.inputs["model/16"].files == rewritten.files
    assert floats.key == explicit.key != integers.key
