"""`outputs`: contexts in files of other engines, from the config to a release, run by those engines."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from pipeline.contracts.target import HtpTarget
from pipeline.qnn.child import run_apart
from pipeline.qnn.format.dlc import read_records
from pipeline.qnn.format.pte_reading import read_program
from pipeline.release.verify import verify_release
from tests.support import programs, tiny_project
from tests.support.project import Project

pytestmark = pytest.mark.slow

TARGET = HtpTarget(57, 75, 8)
PROGRAM = "artifacts/tiny/sm8650/net.pte"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("here")
    project = tiny_project.create(root / "project", root / "store", targets=["sm8650"])
    config = project.root / tiny_project.CONFIG
    config.write_text(
        config.read_text("utf-8") + 'quantization: {weights: uint8}\noutputs: [pte, dlc]\nrelease: {version: "1.0"}\n',
        "utf-8",
    )
    run = project.doit("package:tiny")
    assert run.built >= {"export:tiny/net/pte/sm8650", "export:tiny/net/dlc/sm8650"}
    return project


def buckets_of(project: Project) -> list[dict[str, Any]]:
    manifest = json.loads((project.root / "artifacts/tiny/sm8650/manifest.json").read_text("utf-8"))
    found: list[dict[str, Any]] = manifest["components"]["net"]["buckets"]
    return found


def test_the_manifest_and_the_release_say_which_method_a_bucket_is(built: Project) -> None:
    methods = {method.name for method in read_program(built.root / PROGRAM) if method.binary}
    told = [bucket["exports"]["pte"] for bucket in buckets_of(built)]
    assert {each["method"] for each in told} == methods
    assert [each["inputs"][0]["shape"] for each in told] == [[1, 8, 32], [1, 16, 32]]
    assert all("net.pte" in bucket["files"] for bucket in buckets_of(built))
    index = verify_release(built.root / "artifacts/releases/tiny-1.0.qnn.zip").index
    context = index["components"]["net"]["buckets"][0]["contexts"]["sm8650"]
    assert context["exports"]["pte"]["file"] == "contexts/sm8650/net.pte"
    assert context["exports"]["pte"]["file"] in index["files"]
    assert "Files for other engines" in (built.root / "artifacts/tiny/report.html").read_text("utf-8")


def test_each_bucket_has_a_dlc_of_its_own(built: Project) -> None:
    told = [bucket["exports"]["dlc"] for bucket in buckets_of(built)]
    assert [each["file"] for each in told] == ["net_8.dlc", "net_16.dlc"]
    for each, bucket in zip(told, buckets_of(built), strict=True):
        assert each["emulated"] is True
        ((mine,), (context,)) = (bucket["exports"][kind]["inputs"] for kind in ("dlc", "pte"))
        assert mine == context
        assert set(bucket["files"]) & {"net_8.dlc", "net_16.dlc"} == {each["file"]}
        path = built.root / "artifacts/tiny/sm8650" / each["file"]
        assert {record.name for record in read_records(path)} >= {"model", "model.params", "model.params.bin"}
    index = verify_release(built.root / "artifacts/releases/tiny-1.0.qnn.zip").index
    context = index["components"]["net"]["buckets"][1]["contexts"]["sm8650"]
    assert context["exports"]["dlc"]["file"] == "contexts/sm8650/net_16.dlc"
    assert context["exports"]["dlc"]["emulated"] is True
    assert index["files"]["contexts/sm8650/net_16.dlc"]


def test_a_dlc_beside_a_shared_binary_is_composed_and_not_run(built: Project, tmp_path: Path) -> None:
    project = built.copy(tmp_path / "project")
    project.edit(tiny_project.CONFIG, "[sm8650]", "[sm8650]\npacking: buckets")
    assert "export:tiny/net/dlc/sm8650" in project.doit("build:tiny").built
    assert [bucket["exports"]["dlc"]["emulated"] for bucket in buckets_of(project)] == [False, False]


def test_weights_in_blocks_are_in_no_dlc(built: Project, tmp_path: Path) -> None:
    project = built.copy(tmp_path / "project")
    project.edit(tiny_project.CONFIG, "quantization: {weights: uint8}\n", "")
    run = project.doit("build:tiny", check=False)
    assert run.status == 15
    assert "can't be in a DLC, as its weight has scales in blocks" in run.text


def test_nothing_to_do_is_nothing_done(built: Project) -> None:
    before = built.artifacts()
    assert built.doit("build:tiny").built == frozenset()
    assert built.artifacts() == before


def test_a_program_holds_no_binary_that_targets_share(built: Project, tmp_path: Path) -> None:
    project = built.copy(tmp_path / "project")
    project.edit(tiny_project.CONFIG, "[sm8650]", "[sm8650, snapdragon-x-elite]\npacking: socs")
    run = project.doit("build", check=False)
    assert run.status == 10
    assert "an ExecuTorch program holds no binary that targets share" in run.text


@pytest.mark.export
def test_executorch_gives_what_onnx_runtime_gives(built: Project, tmp_path: Path) -> None:
    feeds: dict[str, list[Any]] = {}
    expected = {}
    for bucket in buckets_of(built):
        (x,), (y,), method = (bucket["exports"]["pte"][name] for name in ("inputs", "outputs", "method"))
        values = np.random.default_rng(5).standard_normal(x["shape"]).astype(np.float32)
        quantized = np.clip(np.rint(values / np.float32(x["scale"])) + x["zero_point"], 0, 65535)
        feeds |= {method: [quantized.astype(x["dtype"])], f"{method}.y.scale": [], f"{method}.y.zero_point": []}
        with TemporaryDirectory(dir=tmp_path) as work:
            folder = built.root / "artifacts/tiny/sm8650"
            ((made,),) = run_apart(folder, bucket["context_model"], TARGET, [{"x": values}], Path(work))
        expected[method] = (made, y)
    got = programs.execute(built.root / PROGRAM, feeds, tmp_path)
    for method, (made, y) in expected.items():
        scale, zero_point = (float(got[f"{method}.y.{name}"][0]) for name in ("scale", "zero_point"))
        assert (np.float32(scale), zero_point) == (np.float32(y["scale"]), y["zero_point"])
        values = (got[method][0].astype(np.float64) - zero_point) * scale
        assert values.std() > 0.1
        np.testing.assert_allclose(values, made, rtol=0, atol=1e-6)
