"""A release on a host without an NPU: on QNN's emulator, with what a real build left, and what falls back to the CPU.

QNN is loaded in processes of their own: it stays in one that has loaded it.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from pipeline.qnn_release import FallbackWarning, LoadError, Release, TargetError
from tests.support import packs, runtime_releases, tiny_models
from tests.support.fresh import fresh
from tests.support.project import Project

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="QNN's emulator is for x86_64")

BERT = {
    **{name: [1, "sequence"] for name in ("input_ids", "attention_mask", "token_type_ids")},
    "last_hidden_state": [1, {"axis": "sequence"}, {"unknown": True}],
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A release of a float model in two buckets, without contexts."""
    return runtime_releases.tiny(tmp_path)


@pytest.mark.slow
def test_a_built_model_on_the_emulator_and_on_the_cpu(bert_built: Project, tmp_path: Path) -> None:
    made = runtime_releases.from_artifacts(bert_built.root / "artifacts" / "bert", tmp_path / "release", BERT)
    packed = runtime_releases.archive(made, tmp_path / "bert.qnn.zip")
    found = fresh(run_on_both, packed, tmp_path / "cache", made)
    assert found["target"] == "sm8650"
    assert found["providers"] == ["QNNExecutionProvider"] * 2
    assert len(found["sqnr_db"]) == 8
    # The emulator is within a dB or so of the QDQ model on the CPU for a good build; far off means the wrong tokens.
    assert min(found["sqnr_db"]) > 20, found["sqnr_db"]
    assert found["same_as_a_bare_session"]


def run_on_both(packed: Path, cache: Path, made: Path) -> dict[str, Any]:
    emulator = Release.open(packed, target="sm8650", cache=cache, fallback="refuse")
    cpu = Release.open(packed, device="cpu", cache=cache)
    found = []
    same = True
    for length in (1, 2, 9, 15, 16, 17, 31, 32):
        tokens = np.random.default_rng(length).integers(1, 60, (1, length))
        inputs = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
        inputs = {name: inputs[name] for name in (each.name for each in cpu.components["encoder"].inputs)}
        (chip,) = emulator.run("encoder", inputs).values()
        (qdq,) = cpu.run("encoder", inputs).values()
        assert chip.shape[1] == length
        noise = float(np.sum((chip - qdq) ** 2)) or 1e-30
        found.append(10 * float(np.log10(np.sum(qdq**2) / noise)))
        same &= bool(np.array_equal(qdq, bare(made, inputs, 16 if length <= 16 else 32)[:, :length]))
    report = emulator.report()
    return {
        "target": report.target,
        "providers": [session.provider for session in report.sessions],
        "sqnr_db": found,
        "same_as_a_bare_session": same,
    }


def bare(made: Path, inputs: Mapping[str, NDArray[Any]], size: int) -> NDArray[Any]:
    session = ort.InferenceSession(str(made / f"qdq/encoder_{size}.onnx"), providers=["CPUExecutionProvider"])
    padded = {name: np.pad(array, ((0, 0), (0, size - array.shape[1]))) for name, array in inputs.items()}
    return np.asarray(session.run(None, padded)[0])


def test_a_host_without_an_npu(tiny: Path) -> None:
    fresh(check_host, tiny)


def check_host(tiny: Path) -> None:
    with pytest.warns(FallbackWarning, match="finds no NPU on this host; name a target, or give device='emulator'"):
        release = Release.open(tiny)
    assert (release.report().device, release.target) == ("cpu", None)
    with pytest.raises(TargetError, match="can't run on an NPU here") as raised:
        Release.open(tiny, fallback="refuse")
    assert raised.value.where == str(tiny)
    assert raised.value.next.startswith("name a target, or give device='emulator'")
    assert raised.value.next.endswith("; or allow the CPU with fallback='cpu'")
    with pytest.raises(TargetError, match="finds no NPU"):
        Release.open(tiny, device="npu", fallback="refuse")
    with pytest.raises(TargetError, match=r"not for sm8651\n.*\n.*\n  next: did you mean sm8650\?"):
        Release.open(tiny, target="sm8651")
    with pytest.raises(TargetError, match="no device 'gpu'"):
        Release.open(tiny, device="gpu")
    with Release.open(tiny, device="emulator") as emulator:
        assert emulator.target == "sm8650"
        with pytest.warns(
            FallbackWarning, match="layers at sequence 8 runs on the CPU: the release has no context of it"
        ):
            emulator.run("layers", {"x": tiny_models.sample(3)})
        assert "the release has no context of it for sm8650" in str(emulator.report())
    with (
        Release.open(tiny, device="emulator", fallback="refuse") as strict,
        pytest.raises(LoadError, match="can't run on QNN's emulator as sm8650"),
    ):
        strict.run("layers", {"x": tiny_models.sample(3)})


@pytest.mark.slow
def test_contexts_that_the_emulator_can_not_load(tmp_path: Path) -> None:
    models = {f"layers_{length}": tiny_models.qdq_model(tmp_path / str(length), length) for length in (8, 16)}
    packs.shared(models, tmp_path / "pack", packs.SM8650)
    release = runtime_releases.tiny(tmp_path)
    shutil.copytree(tmp_path / "pack", release / "contexts")
    add_contexts(release, "buckets")
    fresh(check_packs, release)
    binary = release / "contexts" / packs.SHARED
    binary.write_bytes(binary.read_bytes()[: binary.stat().st_size // 2])  # whoever packaged it packaged a broken one
    add_contexts(release, "separate")
    fresh(check_broken, release)


def add_contexts(release: Path, packing: str) -> None:
    def change(index_raw: dict[str, Any]) -> None:
        for path in (release / "contexts").iterdir():
            index_raw["files"][f"contexts/{path.name}"] = file_entry(path)
        for each, length in zip(index_raw["components"]["layers"]["buckets"], (8, 16), strict=True):
            each["contexts"]["sm8650"] = {
                "model": f"contexts/layers_{length}_ctx.onnx",
                "binaries": [f"contexts/{packs.SHARED}"],
                "packing": packing,
                "compatibility": "v2:6:2.51.0:5.51.0:75:57:8:0",
            }

    runtime_releases.edit(release, change)


def file_entry(path: Path) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}


def check_packs(release: Path) -> None:
    why = "its binary is shared by buckets, which QNN's emulator can't load"
    with Release.open(release, target="sm8650") as opened:
        with pytest.warns(FallbackWarning, match=why):
            opened.run("layers", {"x": tiny_models.sample(3)})
        assert opened.report().sessions[0].fallback == why
    with Release.open(release, target="sm8650", fallback="refuse") as strict, pytest.raises(LoadError, match=why):
        strict.run("layers", {"x": tiny_models.sample(3)})


def check_broken(release: Path) -> None:
    with Release.open(release, target="sm8650") as opened:
        with pytest.warns(FallbackWarning, match=r"QNN can't load contexts/layers_16_ctx.onnx: \S"):
            opened.run("layers", {"x": tiny_models.sample(16)})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            opened.run("layers", {"x": tiny_models.sample(16)})
        assert opened.report().sessions[1].provider == "CPUExecutionProvider"
    with Release.open(release, target="sm8650", fallback="refuse") as strict:
        with pytest.raises(LoadError, match="QNN can't load") as raised:
            strict.run("layers", {"x": tiny_models.sample(16)})
        assert "next: allow the CPU with fallback='cpu'" in str(raised.value)
