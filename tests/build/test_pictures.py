"""Pictures in batches, over a grid of heights and widths, through the whole line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from pipeline.errors import CalibrationError
from pipeline.qnn_release import InputError, Release
from tests.support.graphs import graph, outputs
from tests.support.project import Project

pytestmark = pytest.mark.slow

CONFIG = """\
source: {path: ../models/net}
components:
  net: {file: model.onnx}
fixed: {batch: 2}
buckets: {height: [8, 16], width: [8, 24]}
cross: true
calibration: {reader: npz, folder: calibration/samples}
targets: [sm8650]
release: {version: "1", qdq: true}
"""
NET = """g (float[batch,3,height,width] x) => (float[batch,5,height,width] y, float[batch,5] worst) {
    c = Conv (x, w)
    r = Relu (c)
    y = Conv (r, v)
    worst = ReduceMax <axes = [2, 3], keepdims = 0> (r)
}"""
NUMBERS = np.random.default_rng(0)
WEIGHTS = {
    "w": NUMBERS.standard_normal((5, 3, 1, 1)).astype(np.float32),
    "v": NUMBERS.standard_normal((5, 5, 1, 1)).astype(np.float32),
}
SIZES = [(8, 8), (6, 5), (7, 20), (8, 24), (3, 23), (16, 8), (12, 7), (16, 24), (11, 17), (9, 9), (8, 9), (14, 22)] * 2


def pictures(height: int, width: int, batch: int = 2) -> NDArray[np.float32]:
    return NUMBERS.standard_normal((batch, 3, height, width)).astype(np.float32)


def project_of(root: Path, batch: int = 2) -> Project:
    project = Project.create(root / "project", root / "store")
    (project.root / "models" / "net").mkdir(parents=True)
    onnx.save(graph(NET, WEIGHTS), project.root / "models" / "net" / "model.onnx")
    samples = project.root / "calibration" / "samples"
    samples.mkdir()
    for number, size in enumerate(SIZES):
        np.save(samples / f"{number:02}.npy", pictures(*size, batch))
    project.write("configs/net.yaml", CONFIG)
    return project


def test_a_grid_of_pictures_in_batches(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    project.doit("build:net")
    manifest = json.loads((project.root / "artifacts/net/sm8650/manifest.json").read_text("utf-8"))
    buckets = manifest["components"]["net"]["buckets"]
    assert [list(bucket["axes"].values()) for bucket in buckets] == [[8, 8], [16, 8], [8, 24], [16, 24]]
    assert [bucket["inputs"][0]["shape"] for bucket in buckets] == [
        [2, 3, 8, 8], [2, 3, 16, 8], [2, 3, 8, 24], [2, 3, 16, 24]
    ]  # fmt: skip
    for bucket in buckets:
        assert bucket["partitions"] == 1
        assert bucket["verification"]["emulator"]["sm8650"]["samples"] > 0
        assert bucket["verification"]["cpu"]["rungs"]["padding"]["y"]["sqnr_db"] > 90

    project.doit("package:net")
    (archive,) = (project.root / "artifacts").rglob("*.zip")
    model = graph(NET, WEIGHTS)
    with Release.open(archive, device="cpu") as release:
        for size, taken in (((7, 20), (8, 24)), ((16, 8), (16, 8)), ((9, 9), (16, 24))):
            x = pictures(*size)
            made = release.run("net", {"x": x})
            for name, expected in outputs(model, {"x": x}).items():
                assert made[name].shape == expected.shape
                assert np.abs(made[name] - expected).max() < 0.05 * np.abs(expected).max()
            assert "height {}, width {}: CPUExecutionProvider".format(*taken) in str(release.report())
        with pytest.raises(InputError, match="input x is not as net takes it") as caught:
            release.run("net", {"x": pictures(8, 8, batch=1)})
        assert caught.value.why == "dim 0 is 1, not 2"


def test_a_sample_of_another_batch_is_refused_and_the_remedy_works(tmp_path: Path) -> None:
    project = project_of(tmp_path, batch=1)
    done = project.doit("samples:net/calibration", check=False)
    assert done.status == CalibrationError.exit_code
    assert "axis 'batch' is 1, and the config fixes it to 2" in done.text
    assert "buckets: {batch: [2]}" in done.text

    project.edit("configs/net.yaml", "fixed: {batch: 2}\n", "")
    project.edit("configs/net.yaml", "{height: [8, 16]", "{batch: [2], height: [8, 16]")
    project.doit("calibrate:net/net")
