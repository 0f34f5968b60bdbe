"""An input that the deployment never varies, through the whole line: config, samples, build, release, runtime."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from pipeline.contracts.values import TensorSpec
from pipeline.errors import CalibrationError, ConfigError
from pipeline.inputs.samples.conform import Interface, conform
from pipeline.qnn_release import InputError, Release
from tests.support import net_project
from tests.support.graphs import graph
from tests.support.project import Project

CONFIG = """\
source: {path: ../models/net}
components:
  net: {file: model.onnx}
fixed: {n: 8}
constants: {sr: 16000}
calibration: {reader: npz, folder: calibration/samples}
targets: [sm8650]
release: {version: "1", qdq: true}
"""
TEXT = """g (float[n,8] x, int64 sr) => (float[n,8] y) {
    fast = Equal (sr, rate)
    y = If (fast) <
        then_branch = a () => (float[n,8] t) { s = MatMul (x, w)  t = Relu (s) },
        else_branch = b () => (float[n,8] e) { e = Neg (x) }>
}"""
INTERFACE = Interface((TensorSpec("x", "float32", (2,)),), constants={"sr": np.array(16000)})
X = np.zeros(2, np.float32)


def project_of(root: Path) -> Project:
    numbers = np.random.default_rng(0)
    w = numbers.standard_normal((8, 8)).astype(np.float32)
    samples: list[dict[str, ArrayLike]] = [{"x": numbers.standard_normal((8, 8)).astype(np.float32)} for _ in range(8)]
    for arrays in samples[1::2]:
        arrays["sr"] = np.array(16000)
    return net_project.create(root, graph(TEXT, {"rate": np.array(16000), "w": w}), samples, CONFIG)


@pytest.mark.parametrize("given", [{}, {"sr": 16000}, {"sr": np.array([16000], np.int32)}])
def test_a_sample_may_hold_the_constant(given: dict[str, ArrayLike]) -> None:
    assert list(conform({"x": X, **given}, INTERFACE, where="a sample")) == ["x"]


def test_a_sample_may_hold_what_a_cut_leaves_out() -> None:
    cut = Interface(INTERFACE.inputs, gone=("text",))
    assert list(conform({"x": X, "text": np.array(["a word"])}, cut, where="a sample")) == ["x"]
    with pytest.raises(CalibrationError, match="no input 'text'"):
        conform({"x": X, "text": X}, Interface(INTERFACE.inputs), where="a sample")


def test_a_sample_that_holds_another_value_is_refused() -> None:
    with pytest.raises(CalibrationError, match="input 'sr' is 8000 here, and the config fixes it to 16000") as caught:
        conform({"x": X, "sr": 8000}, INTERFACE, where="a sample")
    assert caught.value.where == "a sample"


@pytest.mark.slow
def test_a_constant_is_built_in_and_known_to_the_release(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    project.doit("build:net")
    manifest = json.loads((project.root / "artifacts/net/sm8650/manifest.json").read_text("utf-8"))
    net = manifest["components"]["net"]
    assert net["constants"] == {"sr": {"dtype": "int64", "shape": [], "value": 16000}}
    assert [given["name"] for given in net["buckets"][0]["inputs"]] == ["x"]

    project.doit("package:net")
    (archive,) = (project.root / "artifacts").rglob("*.zip")
    x = np.random.default_rng(5).standard_normal((8, 8)).astype(np.float32)
    with Release.open(archive, device="cpu") as release:
        plain = release.run("net", {"x": x})
        same = release.run("net", {"x": x, "sr": np.array(16000)})
        np.testing.assert_array_equal(plain["y"], same["y"])
        with pytest.raises(InputError, match="input sr of net is fixed to 16000 in this release"):
            release.run("net", {"x": x, "sr": np.array(8000)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{rs: 16000}", "'rs' is no input of net"),
        ("{sr: fast}", "net.yaml:5:17: constants.sr: text 'fast'; expected a number"),
        ("{sr: [1, 2]}", "net.yaml:5:17"),
        ("{x: 0.5}", "net.yaml:5:16"),
    ],
)
def test_a_mistake_is_told_with_its_place(written: str, said: str, tmp_path: Path) -> None:
    project = project_of(tmp_path)
    project.edit("configs/net.yaml", "{sr: 16000}", written)
    done = project.doit("build:net", check=False)
    assert done.status == ConfigError.exit_code
    assert said in done.text


@pytest.mark.slow
def test_a_mask_that_is_fixed_where_lengths_differ_is_refused(tmp_path: Path) -> None:
    """Padding would count as tokens: of one token 1 dB was left, untold, as all samples filled the bucket."""
    text = "g (float[n,s] x, float[n,s] mask) => (float[n,s] y) { m = Mul (x, mask)  y = Relu (m) }"
    numbers = np.random.default_rng(0)
    samples: list[dict[str, ArrayLike]] = [{"x": numbers.standard_normal((1, 4)).astype(np.float32)} for _ in range(4)]
    config = CONFIG.replace("{sr: 16000}", "{mask: [[1, 1, 1, 1]]}")
    lengths = config.replace("fixed: {n: 8}", "fixed: {n: 1}\nbuckets: {s: [4]}")
    project = net_project.create(tmp_path, graph(text, {}), samples, lengths)
    done = project.doit("build:net", check=False)
    assert done.status == ConfigError.exit_code
    assert "error: 'mask' is fixed to a value along 's', which has buckets\n  where: configs/net.yaml:6:" in done.text
    assert "fixed: {s: …}" in done.text

    project.write("configs/net.yaml", config.replace("fixed: {n: 8}", "fixed: {n: 1, s: 4}"))
    project.doit("package:net")
    (archive,) = (project.root / "artifacts").rglob("*.zip")
    with Release.open(archive, device="cpu") as release, pytest.raises(InputError, match="not 4"):
        release.run("net", {"x": np.zeros((1, 2), np.float32)})
