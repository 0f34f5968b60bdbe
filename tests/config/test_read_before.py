"""A configuration that was read before means what it meant; damage to the file of them costs time alone."""

from __future__ import annotations

import base64
import json
import os
import pickle
from pathlib import Path

import pytest

from pipeline.config import load, read_before
from pipeline.config.load import ModelConfig, load_healthy
from pipeline.config.read_before import MEMBER, ReadBefore
from pipeline.store import cache_file

MODEL = """
source: {path: model}
components: {encoder: {file: encoder.onnx, padding: {mask: 0.5}, constants: {scale: [[1, 2.5], [3, 4]]}}}
fixed: {batch: 1}
buckets: {length: [32, 64]}
calibration: {reader: text, file: calibration/texts.txt, tokenizer: tokenizer.json}
verification: {samples: {reader: npz, folder: calibration/arrays}, score: "calibration/score.py:f1"}
quantization: {activations: uint16, weights: uint8, overrides: [{ops: [Conv], precision: fp16}]}
targets: [sm8650, {soc: sm8750, vtcm_mb: 4}]
"""


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "one.yaml").write_text(MODEL)
    return folder


def read(configs: Path) -> dict[str, ModelConfig]:
    found, refusal = load_healthy(configs, ReadBefore(configs.parent / "configs.json"))
    assert refusal is None
    return found


def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that are decoded from here on."""
    seen: list[str] = []
    decode = load._decoded

    def note(path: Path, *rest: object) -> object:
        seen.append(path.name)
        return decode(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(load, "_decoded", note)
    return seen


def test_what_was_read_before_is_the_same_and_not_decoded_again(configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, seen = read(configs), decoded(monkeypatch)
    again = read(configs)
    assert seen == []
    assert again == fresh
    assert again["one"].places == fresh["one"].places


def test_a_file_that_changed_is_read_anew_and_the_others_are_not(
    configs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (configs / "two.yaml").write_text(MODEL)
    read(configs)
    (configs / "two.yaml").write_text(MODEL.replace("[32, 64]", "[32, 96]"))
    seen = decoded(monkeypatch)
    assert [bucket.axes["length"] for bucket in read(configs)["two"].buckets] == [32, 96]
    assert seen == ["two.yaml"]
    (configs / "two.yaml").unlink()
    read(configs)
    assert len(cache_file.read(configs.parent / "configs.json", MEMBER)) == 1, "what is gone is not kept"


def test_the_same_bytes_under_another_name_are_another_model(configs: Path) -> None:
    read(configs)
    os.replace(configs / "one.yaml", configs / "other.yaml")
    assert read(configs)["other"].name == "other"


def test_what_other_code_read_is_not_believed(configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(configs)
    monkeypatch.setattr(read_before, "_code", lambda: b"edited")
    seen = decoded(monkeypatch)
    read(configs)
    assert seen == ["one.yaml"]


def test_mistakes_are_told_every_time(configs: Path) -> None:
    (configs / "one.yaml").write_text(MODEL.replace("sm8650", "sm9999"))
    for _ in range(2):
        found, refusal = load_healthy(configs, ReadBefore(configs.parent / "configs.json"))
        assert found == {}
        assert "unknown target 'sm9999'" in str(refusal)


@pytest.mark.parametrize("damage", ["cut", "empty", "folder", "other content"])
def test_a_damaged_file_costs_time_alone(configs: Path, damage: str) -> None:
    fresh, path = read(configs), configs.parent / "configs.json"
    data = path.read_bytes()
    path.unlink()
    match damage:
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "empty":
            path.touch()
        case "folder":
            path.mkdir()
        case _:
            path.write_text(json.dumps({MEMBER: [1]}))
    assert read(configs) == fresh


class Evil:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.witness,)


def test_a_file_that_somebody_else_wrote_runs_no_code(configs: Path, tmp_path: Path) -> None:
    fresh, path, witness = read(configs), configs.parent / "configs.json", tmp_path / "witness"
    (name,) = cache_file.read(path, MEMBER)
    evil = base64.b64encode(pickle.dumps(Evil(witness))).decode()
    cache_file.write(path, MEMBER, {name: evil})
    assert read(configs) == fresh
    assert not witness.exists()
    cache_file.write(path, MEMBER, {name: base64.b64encode(pickle.dumps(os.getcwd)).decode()})
    assert read(configs) == fresh
