"""Whole builds that must not ship: a model broken on each rung of the ladder is stopped there, by name."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.support import net_project
from tests.support.climbing import CONFIG
from tests.support.graphs import graph
from tests.support.project import Project, Run

pytestmark = pytest.mark.slow

RELU = """g (float[1,8,frames] x) => (float[1,8,frames] y) {
    wide = Conv (x, w)
    bent = Relu (wide)
    y = Conv (bent, w)
}"""
MEAN = """g (float[1,8,frames] x) => (float[1,8,frames] y) {
    mean = ReduceMean <axes = [2], keepdims = 1> (x)
    y = Sub (x, mean)
}"""
OUTLIER = """g (float[1,8,frames] x) => (float[1,8,frames] y) {
    wide = Conv (x, w)
    bent = Relu (wide)
    y = Conv (bent, v)
}"""


def weights() -> dict[str, np.ndarray]:
    """A convolution `w`, and `v` that looks away from the one channel that `w` makes enormous."""
    numbers = np.random.default_rng(0)
    w = numbers.standard_normal((8, 8, 1)).astype(np.float32)
    loud, deaf = w.copy(), w.copy()
    loud[0] *= 1e4
    deaf[:, 0] = 0
    return {"w": w, "loud": loud, "v": deaf}


def project_of(root: Path, text: str, constants: dict[str, np.ndarray]) -> Project:
    numbers = np.random.default_rng(1)
    samples = [{"x": numbers.standard_normal((1, 8, length)).astype(np.float32)} for length in (16, 12, 9, 16, 14, 10)]
    return net_project.create(root, graph(text, constants), samples, CONFIG)


def stopped(project: Project, step: str, *texts: str) -> Run:
    """The build fails at this step with the code for artifacts that are wrong, and ships nothing."""
    run = project.doit("build", check=False)
    assert run.status == 16, run.text
    assert f"FAILED             {step}" in run.text
    for text in texts:
        assert text in run.text
    assert not project.artifacts()
    again = project.doit("build", check=False)
    assert again.status == 16
    assert texts[0] in again.text
    assert not again.built, "what was measured is not measured again"
    return run


@pytest.fixture
def good(tmp_path: Path) -> Project:
    return project_of(tmp_path, RELU, {"w": weights()["w"]})


def test_a_good_model_passes_and_says_how_good(good: Project) -> None:
    run = good.doit("build")
    manifest = json.loads((good.root / "artifacts" / "net" / "sm8650" / "manifest.json").read_text())
    verification = manifest["components"]["net"]["buckets"][0]["verification"]
    assert set(verification["cpu"]["rungs"]) == {"reading", "padding", "rewrite", "quantization"}
    emulated = verification["emulator"]["sm8650"]
    assert (verification["cpu"]["samples"], emulated["samples"]) == (2, 2), "every fourth of six"
    assert emulated["outputs"]["y"]["sqnr_db"] > 30
    heading = next(line for line in run.text.splitlines() if line.startswith("SQNR in dB"))
    assert "reading  padding  rewrite  quantization  compile  total   cosine  samples" in heading


def test_an_output_that_is_one_number_everywhere_is_told(tmp_path: Path) -> None:
    """As of a model that was exported before its head was loaded."""
    project = project_of(tmp_path, RELU, {"w": 0 * weights()["w"]})
    project.write("configs/net.yaml", f"{CONFIG}quantization: {{precision: fp16}}\n")
    told = "Not shown, as the original gives one number everywhere on all held-out samples: net/net/16 'y' (0)."
    assert told in project.doit("build").text
    assert told in project.doit("build").text, "it is told of what is current as well"


def test_a_bucket_that_no_sample_needs_is_told_early_and_on_the_page(tmp_path: Path) -> None:
    project = project_of(tmp_path, RELU, {"w": weights()["w"]})
    project.write("configs/net.yaml", CONFIG.replace("[16]", "[16, 64]"))
    run = project.doit("build")
    early = (
        "samples:net/calibration: no sample needs net/net/64 (samples have frames 9 to 16): what inputs of that length"
    )
    assert 0 < run.text.index(early) < run.text.index("context:net/net/64"), "before anything is compiled"
    line = (
        "Not shown, as no sample needs the bucket and shorter ones stand in for it: what longer ones give in"
        " net/net/64 (all samples of 'calibration' have frames 9 to 16). Add samples of that length to 'verification',"
    )
    assert line in run.text
    assert re.search(r"net/net +64 +sm8650 .* 2 shorter, 2 emulated", run.text)
    page = (project.root / "artifacts/net/report.html").read_text("utf-8")
    assert line in html.unescape(page)
    assert "2 shorter, 2 emulated" in page
    told = json.loads((project.root / ".build/run.json").read_text("utf-8"))["remarks"]["net"]
    assert sum(each.startswith(line) for each in told) == 1
    assert "net/net/64 (all samples of 'calibration' have frames 9 to 16)" in (
        project.root / ".build/report.md"
    ).read_text("utf-8")
    again = project.doit("build").text
    assert early not in again
    assert line in again


def test_a_bucket_that_calibration_alone_has_samples_of_is_not_to_be_dropped(tmp_path: Path) -> None:
    project = project_of(tmp_path, RELU, {"w": weights()["w"]})
    project.write("configs/net.yaml", CONFIG.replace("[16]", "[14, 16]"))
    said = project.doit("verify").text
    assert (
        "Not shown, as all samples of that length went to calibration and shorter ones stand in for them: what longer"
        " ones give in net/net/16 (all samples of 'calibration' have frames 9 to 16). Add more of that length, or give"
        " 'verification.samples'."
    ) in said
    assert "drop the bucket" not in said


def test_a_model_that_can_not_be_padded(tmp_path: Path) -> None:
    project = project_of(tmp_path, MEAN, {})
    stopped(
        project,
        "verify:net/net/16",
        "the padding rung misses its threshold: output 'y'",
        "net/net/16, worst of 2 samples: 05.npz",
        "accept it with thresholds: {padding_db: 16, total_db: ",
    )


def test_padding_that_does_harm_is_told_before_anything_is_compiled(tmp_path: Path) -> None:
    project = project_of(tmp_path, MEAN, {})
    project.write("configs/net.yaml", CONFIG.replace("[16]", "[12, 16]"))
    run = project.doit("build", check=False)
    assert run.status == 16
    assert "context" not in run.stages()
    assert re.search(r"Not tried, as verify:net/net/1[26] failed: .*context:net/net/12/sm8650", run.text)
    assert project.doit("context").stages()["context"] == 2, "who asks for contexts gets them"


def test_with_verification_turned_off_nothing_is_measured_and_that_is_said(tmp_path: Path) -> None:
    project = project_of(tmp_path, MEAN, {})
    project.write("configs/net.yaml", CONFIG + "verification: {enabled: false}\n")
    run = project.doit("build")
    assert not {"verify", "emulate"} & set(run.stages())
    assert "Not proven, as nothing is measured: net." in run.text
    manifest = json.loads((project.root / "artifacts/net/sm8650/manifest.json").read_text("utf-8"))
    assert manifest["components"]["net"]["buckets"][0]["verification"] == {"cpu": None, "emulator": None}
    step = json.loads((project.root / ".build/steps/calibrate/net/net.json").read_text("utf-8"))
    assert step["facts"]["samples"] == {"16": 6}, "none is held out"


def test_exact_lengths_of_a_model_that_can_not_be_padded_still_work(tmp_path: Path) -> None:
    project = project_of(tmp_path, MEAN, {})
    for path in (project.root / "calibration" / "samples").iterdir():
        np.savez(path, x=np.random.default_rng(int(path.stem)).standard_normal((1, 8, 16)).astype(np.float32))
    project.doit("build")


def test_the_advice_to_build_exact_lengths_leads_to_an_artifact(tmp_path: Path) -> None:
    project = project_of(tmp_path, MEAN, {})
    samples = project.root / "calibration" / "samples"
    for number, length in enumerate((16, 9, 12, 9, 16, 12)):
        array = np.random.default_rng(number).standard_normal((1, 8, length)).astype(np.float32)
        np.savez(samples / f"{number:02}.npz", x=array)
    advice = stopped(project, "verify:net/net/16", "the padding rung misses", "verification: {truth: exact}")
    listed = re.search(r"here buckets: \{frames: \[([0-9, ]+)\]\}", advice.text)
    assert listed
    assert listed[1] == "9, 12, 16", "those of calibration as well, or the next build has a length without a bucket"

    text = CONFIG.replace("[16]", "[9, 10, 12, 16]") + "verification: {truth: exact}\n"
    project.write("configs/net.yaml", text)
    run = project.doit("build", check=False)
    assert "net/net/10 (of exactly frames 10)" in run.text, "of ten frames there is no sample"
    manifest = json.loads((project.root / "artifacts" / "net" / "sm8650" / "manifest.json").read_text())
    buckets = manifest["components"]["net"]["buckets"]
    samples_of = {bucket["axes"]["frames"]: bucket["verification"]["cpu"]["samples"] for bucket in buckets}
    assert samples_of == {9: 1, 10: 0, 12: 1, 16: 1}, "of two of a length the second is held out"
    assert {bucket["verification"]["cpu"]["truth"] for bucket in buckets} == {"exact"}


def test_an_application_that_always_pads_says_so(tmp_path: Path) -> None:
    project = project_of(tmp_path, MEAN, {})
    project.write("configs/net.yaml", CONFIG + "verification: {truth: padded}\n")
    assert "in truth" in project.doit("build").text


def test_a_rewrite_that_changes_the_model(good: Project) -> None:
    good.write(
        "pipeline/graph/rewrites/broken.py",
        'NAME = "broken"\n\n\ndef apply(model, folder):\n    for node in model.graph.node:\n'
        '        if node.op_type == "Relu":\n            node.op_type = "Sigmoid"\n'
        "            return 1\n    return 0\n",
    )
    rewrites = "pipeline/graph/rewrites/__init__.py"
    good.edit(rewrites, "REWRITES = in_order(PHASES)", "REWRITES = (broken, *in_order(PHASES))")
    good.edit(rewrites, "from pathlib", "from pipeline.graph.rewrites import broken\nfrom pathlib")
    stopped(good, "verify:net/net/16", "the rewrite rung misses its threshold: output 'y'", "the manifest lists")


def test_encodings_that_are_too_coarse(tmp_path: Path) -> None:
    made = weights()
    project = project_of(tmp_path, OUTLIER, {"w": made["loud"], "v": made["v"]})
    project.write("configs/net.yaml", CONFIG + "quantization: {activations: uint8}\n")
    stopped(
        project, "verify:net/net/16", "the quantization rung misses its threshold: output 'y'", "doit blame:net/net/16"
    )


def test_a_compiler_that_computes_something_else(good: Project) -> None:
    good.write("configs/net.yaml", CONFIG + "quantization: {activations: uint16}\n")
    good.edit(
        "pipeline/qnn/compiling/compiler.py",
        '    shutil.copyfile(source.path, work / f"{source.name}.onnx")\n',
        "    from onnx import ModelProto, numpy_helper\n"
        "    proto = ModelProto.FromString(source.path.read_bytes())\n"
        "    for tensor in proto.graph.initializer:\n"
        "        if tensor.name == 'w_scale':\n"
        "            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 2, tensor.name))\n"
        '    (work / f"{source.name}.onnx").write_bytes(proto.SerializeToString())\n',
    )
    stopped(good, "emulate:net/net/16/sm8650", "the compile rung misses its threshold: output 'y'", "in float")


@pytest.mark.parametrize("written", ["overrides: [{nodes: ['*'], precision: fp16}]", "precision: fp16"])
def test_a_miss_on_the_chip_names_what_foretold_it(written: str, tmp_path: Path) -> None:
    text = "g (float[1,8,frames] x) => (float[1,8,frames] y) { s = Mul (x, x) \n y = Mul (s, k) }"
    project = project_of(tmp_path, text, {"k": np.array(1e-3, np.float32)})
    for path in (project.root / "calibration" / "samples").iterdir():
        with np.load(path) as sample:
            np.savez(path, x=sample["x"] * np.float32(1000))
    project.write("configs/net.yaml", CONFIG + f"quantization: {{{written}}}\n")
    advice = "this is float16 already" if written == "precision: fp16" else "activations: uint16 does not"
    foretold = ("forecast before it was compiled:", "| fp16_overflow: 's' of", "16 bit integers", advice)
    stopped(project, "emulate:net/net/16/sm8650", "the compile rung misses its threshold: output 'y'", *foretold)


def test_a_threshold_can_be_lowered_without_measuring_again(tmp_path: Path) -> None:
    project = project_of(tmp_path, MEAN, {})
    assert project.doit("build", check=False).status == 16
    project.write("configs/net.yaml", CONFIG + "thresholds: {padding_db: 16, total_db: 10}\n")
    run = project.doit("build")
    # Nothing was compiled before it was known whether padding harms, and `reading` waited; `verify` is not run again.
    assert run.stages() == {"reading": 1, "context": 1, "emulate": 1}


def test_nodes_on_the_cpu_are_named_with_what_to_do(tmp_path: Path) -> None:
    text = RELU.replace("bent = Relu (wide)", "bent = Hardmax <axis = 1> (wide)")
    project = project_of(tmp_path, text, {"w": weights()["w"]})
    run = stopped(project, "context:net/net/16/sm8650", "1 node would run on the CPU, 0 may", "Hardmax")
    assert "thresholds: {max_cpu_nodes: 1, max_partitions: 2}" in run.text
    project.write("configs/net.yaml", CONFIG + "thresholds: {max_cpu_nodes: 1}\n")
    stopped(project, "context:net/net/16/sm8650", "the model is split into 2 partitions, 1 may be")
    project.write("configs/net.yaml", CONFIG + "thresholds: {max_cpu_nodes: 1, max_partitions: 2}\n")
    project.doit("build")


def test_a_search_ships_what_it_found_as_a_config(good: Project) -> None:
    good.write("configs/net.yaml", CONFIG + "quantization: {precision: auto}\n")
    run = good.doit("build")
    assert "<- chosen" in run.text
    found = yaml.safe_load((good.root / "artifacts" / "net" / "qdq" / "net_quantization.yaml").read_text("utf-8"))
    searched = good.artifacts()["net/sm8650/net_16_ctx_qnn.bin"]

    config = yaml.safe_load(CONFIG)
    config["components"]["net"] |= found["components"]["net"]
    good.write("configs/net.yaml", yaml.safe_dump(config))
    assert not good.doit("build").built, "the same steps, with the same keys and figures"
    assert good.artifacts()["net/sm8650/net_16_ctx_qnn.bin"] == searched
