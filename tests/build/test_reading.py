"""Whole builds of files that were read wrongly, that round as they run, or that no engine runs."""

from __future__ import annotations

import html
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnxruntime.quantization import quantize_dynamic

from tests.support import net_project
from tests.support.project import Project
from tests.support.read_files import net, of_mixed_signs

pytestmark = pytest.mark.slow

CONFIG = net_project.CONFIG + "quantization: {precision: fp16}\n"
BUCKETS = "buckets: {rows: [6, 8]}\n"
BROKEN = """

_sound = normalize


def normalize(model, folder):
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-5
    return _sound(model, folder)
"""


def project_of(root: Path, model: ModelProto, config: str, x: list[np.ndarray]) -> Project:
    return net_project.create(root, model, [{"x": each} for each in x], config)


def rows() -> list[np.ndarray]:
    numbers = np.random.default_rng(3)
    return [numbers.standard_normal((1, size, 32)).astype(np.float32) for size in (8, 6, 5, 7, 8, 8, 6, 5)]


def verification(project: Project) -> dict[str, Any]:
    manifest = json.loads((project.root / "artifacts" / "net" / "sm8650" / "manifest.json").read_text("utf-8"))
    found: dict[str, Any] = manifest["components"]["net"]["buckets"][-1]["verification"]["cpu"]
    return found


def record(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.root / ".build" / "run.json").read_text("utf-8"))
    return found


def test_a_file_that_is_read_wrongly_does_not_ship(tmp_path: Path) -> None:
    project = project_of(tmp_path, net(), CONFIG + BUCKETS, rows())
    path = project.root / "pipeline" / "stages" / "ingest.py"
    path.write_text(path.read_text("utf-8") + BROKEN, "utf-8")
    run = project.doit("build", check=False)
    assert run.status == 16
    assert "FAILED             reading:net/net" in run.text
    assert "the reading rung misses its threshold: output 'y' is" in run.text
    assert "(LayerNormalization) gives something else than was read of it" in run.text
    assert "as it is read wrongly" in run.text
    assert not project.artifacts()


def test_a_file_that_rounds_as_it_runs_ships_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(net(), path)
    quantize_dynamic(path, path)
    project = project_of(tmp_path, onnx.load(path), CONFIG + BUCKETS, rows())
    run = project.doit("build")
    assert run.stages()["reading"] == 1, "one for both buckets"
    cpu = verification(project)
    assert cpu["reading"]["shown"] == "own rounding"
    assert 20 < cpu["rungs"]["reading"]["y"]["sqnr_db"] < 60
    assert "net/net     8       sm8650  own rounding" in run.text
    assert (
        "Own rounding: a file that rounds as it runs is built from the floats that it stands for: net/net (" in run.text
    )
    page = html.unescape((project.root / "artifacts/net/report.html").read_text("utf-8"))
    assert "own rounding" in page
    assert "✗ misses" not in page
    (artifact, *_) = record(project)["artifacts"].values()
    assert artifact["reading"]["shown"] == "own rounding"
    assert artifact["sqnr_db"]["reading"] < 60


def test_a_file_that_no_engine_runs_ships_only_where_reading_is_not_required(tmp_path: Path) -> None:
    model = of_mixed_signs("com.microsoft.QLinearSigmoid (r, scale, zero, scale, zero)")
    numbers = np.random.default_rng(3)
    samples = [numbers.standard_normal((1, 4, 6)).astype(np.float32) for _ in range(8)]
    project = project_of(tmp_path, model, CONFIG + "release: {version: '1.0'}\n", samples)
    run = project.doit("package")
    told = "Reading not proven, as the file itself did not run: net/net (neither engine runs the file; onnxruntime: "
    assert told in run.text
    assert "sm8650  not proven" in run.text
    cpu = verification(project)
    assert cpu["reading"]["shown"] == "not proven"
    assert "reading" not in cpu["rungs"]
    assert told in html.unescape((project.root / "artifacts/net/report.html").read_text("utf-8"))
    (archive,) = (project.root / "artifacts" / "releases").glob("*.zip")
    with zipfile.ZipFile(archive) as opened:
        released = json.loads(opened.read(next(name for name in opened.namelist() if name.endswith("release.json"))))
    bucket = released["components"]["net"]["buckets"][0]
    assert bucket["verification"]["cpu"]["reading"]["shown"] == "not proven"
    project.write("configs/net.yaml", CONFIG + "verification: {reading: required}\n")
    run = project.doit("build", check=False)
    assert run.status == 16
    assert "nothing shows whether the file was read as it is meant" in run.text
    assert not run.built, "nothing is measured again"
