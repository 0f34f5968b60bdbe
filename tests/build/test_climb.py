"""Builds that climb: a model that w8a16 is too coarse for gets what it needs, and says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from pipeline.store.manifests import read_manifest
from tests.support.climbing import COARSE, CONFIG, coarse, project_of
from tests.support.graphs import graph
from tests.support.precision_runs import outlier
from tests.support.project import Project, shipped

pytestmark = pytest.mark.slow


def test_the_default_climbs_to_what_keeps_to_the_gates(tmp_path: Path) -> None:
    project = coarse(tmp_path)
    run = project.doit("build")

    assert "net/net: w8a16 in blocks of 32: quantization" in run.text
    assert "net/net: trying w16a16" in run.text
    assert "this keeps to every threshold" in run.text
    bucket = shipped(project)
    assert bucket["quantization"]["scheme"] == "w16a16"
    assert [each["label"] for each in bucket["quantization"]["climb"]] == ["w8a16 in blocks of 32", "w16a16"]
    assert bucket["verification"]["emulator"]["sm8650"]["outputs"]["y"]["sqnr_db"] > 20

    again = project.doit("build")
    assert not again.built
    assert "all" in again.text.splitlines()[-1] or "current" in again.text

    found = yaml.safe_load((project.root / "artifacts/net/qdq/net_quantization.yaml").read_text("utf-8"))
    config = yaml.safe_load(CONFIG)
    config["components"]["net"] |= found["components"]["net"]
    before = project.artifacts()["net/sm8650/net_16_ctx_qnn.bin"]
    project.write("configs/net.yaml", yaml.safe_dump(config))
    explicit = project.doit("build")
    assert not explicit.built, "the same steps, with the same keys and figures"
    assert project.artifacts()["net/sm8650/net_16_ctx_qnn.bin"] == before
    assert shipped(project)["verification"] == bucket["verification"]


def test_ranges_that_calibration_saw_too_little_of_get_room(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((8, 8, 1)).astype(np.float32)
    loud = f"{CONFIG}verification: {{samples: {{reader: npz, folder: calibration/loud}}}}\n"
    project = project_of(tmp_path, graph(COARSE, {"w": weight}), loud)
    (project.root / "calibration/loud").mkdir()
    for path in sorted((project.root / "calibration/samples").iterdir())[:4]:
        np.savez(project.root / "calibration/loud" / path.name, x=-4 * np.load(path)["x"])
    run = project.doit("build")

    assert "net/net: trying w8a16 in blocks of 32, room 2" in run.text
    bucket = shipped(project)
    assert bucket["quantization"]["climb"][-1]["label"] == "w8a16 in blocks of 32, room 2"
    assert bucket["verification"]["emulator"]["sm8650"]["outputs"]["y"]["sqnr_db"] > 35

    found = yaml.safe_load((project.root / "artifacts/net/qdq/net_quantization.yaml").read_text("utf-8"))
    assert found["components"]["net"]["quantization"]["room"] == 2
    config = yaml.safe_load(loud)
    config["components"]["net"] |= found["components"]["net"]
    project.write("configs/net.yaml", yaml.safe_dump(config))
    assert not project.doit("build").built, "the same steps, with the same keys and figures"


def test_a_default_that_keeps_to_its_gates_by_little_climbs_once(tmp_path: Path) -> None:
    project = coarse(tmp_path, largest=25)
    run = project.doit("build")

    assert "w8a16 in blocks of 32: quantization 2" in run.text
    assert "keeps to every threshold on the CPU, but 2" in run.text
    assert "less than the 30 dB that a default aims at" in run.text
    bucket = shipped(project)
    assert bucket["quantization"]["scheme"] == "w16a16"
    assert bucket["verification"]["emulator"]["sm8650"]["outputs"]["y"]["sqnr_db"] > 45
    assert (made(project, "verify"), made(project, "emulate")) == (2, 1), "what is short on the CPU waited"
    assert not project.doit("build").built

    project.write("configs/net.yaml", CONFIG + "thresholds: {total_db: 20}\n")
    enough = project.doit("build")
    assert "trying" not in enough.text
    assert shipped(project)["quantization"]["scheme"] == "w8a16 in blocks of 32"


def made(project: Project, stage: str) -> int:
    """How many outputs of a stage are in the store."""
    found = map(read_manifest, (project.store / "manifests").rglob("*.json"))
    return sum(manifest is not None and manifest.stage == stage for manifest in found)


def test_what_waits_is_compiled_where_nothing_better_is_found(tmp_path: Path) -> None:
    project = coarse(tmp_path, CONFIG.replace("sm8650", "sm8450"), largest=25)  # neither float16 nor 16 bit weights
    run = project.doit("build")

    waiting, compiled = (line for line in run.text.splitlines() if line.startswith("net/net: w8a16 in blocks of 32: "))
    assert "keeps to every threshold on the CPU, but 2" in waiting
    assert "keeps to every threshold" in compiled
    assert "w8a16 in blocks of 32 it is: nothing that was tried is worth more than it costs" in run.text
    bucket = shipped(project, "sm8450")
    assert [each["label"] for each in bucket["quantization"]["climb"]] == ["w8a16 in blocks of 32"]
    assert 20 < bucket["verification"]["emulator"]["sm8450"]["outputs"]["y"]["sqnr_db"] < 30
    assert not project.doit("build").built


def test_what_no_precision_cures_is_climbed_for_once_whichever_steps_miss_something(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    weight = numbers.standard_normal((8, 8, 1)).astype(np.float32)
    weight[:, 0], weight[:, 1] = 25, -25
    text = COARSE.replace(") {", ", float[1,8,frames] e) {").replace(" }", " e = Hardmax (x) }")
    run = project_of(tmp_path, graph(text, {"w": weight}), CONFIG, twins=True).doit("build", check=False)
    assert run.status == 16
    assert "would run on the CPU, 0 may" in run.text
    told = [line for line in run.text.splitlines() if line.startswith("net/net: ")]
    assert any("trying" in line for line in told)
    assert len(told) == len(set(told)), told


def test_an_operator_that_qnn_lacks_ends_a_climb_for_something_else(tmp_path: Path) -> None:
    """Integers miss what is asked for on the CPU; the first precision that is compiled tells what none cures."""
    text = COARSE.replace(") {", ", float[1,8,frames] e) {").replace(" }", " e = Hardmax (x) }")
    model = graph(text, {"w": np.random.default_rng(0).standard_normal((8, 8, 1)).astype(np.float32)})
    run = project_of(tmp_path, model, CONFIG + "thresholds: {quantization_db: 90}\n").doit("build", check=False)
    assert run.status == 16
    assert "90 dB are asked for" in run.text
    assert "error: 1 node would run on the CPU, 0 may" in run.text
    *_, last = (line for line in run.text.splitlines() if line.startswith("net/net: "))
    assert "trying" in last, "nothing is tried behind the first that was compiled"


def test_a_choice_that_flips_is_climbed_for_whatever_the_decibels(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    weight = 2 * numbers.standard_normal((8, 8, 1)).astype(np.float32)
    weight[:, 0], weight[:, 1] = 24, -24
    chooses = "g (float[1,8,frames] x) => (float[1,8,frames] y) { s = Conv (x, w) y = Softmax <axis = 1> (s) }"
    project = project_of(tmp_path, graph(chooses, {"w": weight}), CONFIG, twins=True)
    run = project.doit("build")

    assert "w8a16 in blocks of 32: quantization 30" in run.text, "as much as a default aims at"
    assert "0.9677 of the 31 clear choices of output 'y' are the same as in the original, 0.99 is asked for" in run.text
    bucket = shipped(project)
    assert bucket["quantization"]["scheme"] == "w16a16"
    emulated = bucket["verification"]["emulator"]["sm8650"]["outputs"]["y"]["agreement"]
    assert (emulated["share"], emulated["of"], emulated["worst"]) == (1.0, 31, 1.0)
    assert emulated["flips"] < 0.001
    assert "choices alike" in run.text

    project.write("configs/net.yaml", CONFIG + "quantization: {activations: uint16}\n")
    written = project.doit("build", check=False)
    assert written.status == 16
    assert "0.9677 of the 31 clear choices" in written.text

    project.write("configs/net.yaml", CONFIG + "quantization: {activations: uint16}\nthresholds: {choices: 0.9}\n")
    assert project.doit("build").status == 0


def test_what_is_written_is_built_as_it_is_written(tmp_path: Path) -> None:
    project = coarse(tmp_path, CONFIG + "quantization: {activations: uint16}\n")
    run = project.doit("build", check=False)
    assert run.status == 16
    assert "the quantization rung misses its threshold" in run.text
    assert "trying" not in run.text


def test_what_integers_are_too_coarse_for_is_built_in_float(tmp_path: Path) -> None:
    project = project_of(tmp_path, outlier(20000.0), CONFIG + "fixed: {batch: 1}\n")
    run = project.doit("build")
    rules = shipped(project)["quantization"]["overrides"]
    assert any(rule["precision"] == "fp16" for rule in rules), run.text


def test_when_nothing_keeps_to_the_gates_it_says_what_was_tried(tmp_path: Path) -> None:
    project = coarse(tmp_path, CONFIG + "thresholds: {total_db: 99, quantization_db: 99, compile_db: 99}\n")
    run = project.doit("build", check=False)
    assert "no precision of net/net keeps to its thresholds" in run.text
    assert "| w8a16 in blocks of 32: quantization" in run.text
    assert "| fp16: " in run.text
    assert "ships with thresholds: {" in run.text
    assert "what was made is in .build/failed/net/net/" in run.text
    assert not project.artifacts()
    again = project.doit("build", check=False)
    assert again.status == run.status == 16
    assert not again.built, "what was tried is in the store"


def test_where_the_compiler_dies_of_a_precision_another_is_tried(tmp_path: Path) -> None:
    """It dies in the project's own copy of the stage: twice, as the first precision is where the climb begins."""
    project = coarse(tmp_path, largest=3)
    died = tmp_path / "died"
    dies = (
        f"    died = Path({str(died)!r})\n"
        "    if not died.exists() or died.stat().st_size < 2:\n"
        "        died.write_text('x' * (died.exists() + 1))\n        import os\n        os.abort()\n"
    )
    begin = "    params = Params.from_json(request.params)\n    form, component"
    project.edit("pipeline/stages/context.py", begin, dies + begin)
    run = project.doit("build")
    told = (
        "net/net: w8a16 in blocks of 32: nothing measured, weights 0.0 MB; the worker of context:net/net/16/sm8650 died"
    )
    assert f"{told}: killed by signal 6 (SIGABRT)" in run.text
    assert "net/net: trying w8a16" in run.text
    assert shipped(project)["verification"]["emulator"]["sm8650"]["outputs"]["y"]["sqnr_db"] > 20

    died.unlink()
    project.write(
        "configs/net.yaml", CONFIG + "quantization: {activations: uint16, weights: {dtype: int8, block: 32}}\n"
    )
    written = project.doit("build", check=False)
    assert written.status == 18, "what is written is built as it is written"
    assert "trying" not in written.text


def test_what_qnn_refuses_in_integers_is_kept_in_float(tmp_path: Path) -> None:
    """A Gemm by what is computed, of which the project's own copy makes no MatMul."""
    text = (
        "g (float[1,8,frames] x) => (float[8,8] y)"
        " { c = Conv (x, w) r = Reshape (c, rows) s = Sigmoid (r) y = Gemm <transB = 1> (r, s) }"
    )
    weight = np.random.default_rng(0).standard_normal((8, 8, 1)).astype(np.float32)
    project = project_of(tmp_path, graph(text, {"w": weight, "rows": np.array([8, -1])}), CONFIG)
    project.edit("pipeline/graph/rewrites/__init__.py", "        multiply_apart,\n", "")
    run = project.doit("build")
    assert "would run on the CPU, 0 may" in run.text
    tried = [each["label"] for each in shipped(project)["quantization"]["climb"]]
    assert tried[:3] == ["w8a16 in blocks of 32", "w8a16", "w8a16 in blocks of 32, 1 nodes fp16"]
    assert shipped(project)["verification"]["emulator"]["sm8650"]["outputs"]["y"]["sqnr_db"] > 30


def test_a_search_that_finds_nothing_climbs_too(tmp_path: Path) -> None:
    project = coarse(tmp_path, CONFIG + "quantization: {precision: auto, fp16: false}\n")
    run = project.doit("build")
    assert "trying w16a16" in run.text
    assert shipped(project)["quantization"]["scheme"] == "w16a16"


def test_in_float_the_climb_builds_what_an_explicit_build_does(tmp_path: Path) -> None:
    """A Split in front of all took the state in 16 bits, which end where calibration did, in float16 as well."""
    cell = (
        "g (float[1,4,frames] x, float[1,8,frames] h) => (float[1,2,frames] y, float[1,8,frames] hn) {"
        " a, b = Split <axis = 1> (h) s = Add (a, x) hn = Concat <axis = 1> (s, b) y = Conv (s, w) }"
    )
    weight = np.random.default_rng(0).standard_normal((2, 4, 1)).astype(np.float32)
    project = project_of(tmp_path, graph(cell, {"w": weight}), CONFIG)
    held_out = project.root / "calibration" / "held_out"
    held_out.mkdir()
    for path in (project.root / "calibration" / "samples").iterdir():
        np.savez(held_out / path.name, **{name: 30 * array for name, array in np.load(path).items()})
    config = f"{CONFIG}verification: {{samples: {{reader: npz, folder: calibration/held_out}}}}\n"
    project.write("configs/net.yaml", config)
    run = project.doit("build")

    climbed = shipped(project)
    assert climbed["quantization"]["scheme"] == "fp16", run.text
    assert "net/net: trying fp16" in run.text
    binary = project.artifacts()["net/sm8650/net_16_ctx_qnn.bin"]
    assert not project.doit("build").built

    project.write("configs/net.yaml", config + "quantization: {precision: fp16}\n")
    explicit = project.doit("build")
    assert not explicit.built, "the same steps, with the same keys and figures"
    assert shipped(project)["verification"] == climbed["verification"]
    assert project.artifacts()["net/sm8650/net_16_ctx_qnn.bin"] == binary


def cell_of_loud_inputs(root: Path, config: str, loud: float) -> Project:
    """A state that is what an input has beyond a large number: float16 and 16 bits have coarse steps there."""
    cell = (
        "g (float[1,8,frames] x, float[1,4,frames] h) => (float[1,4,1] y, float[1,4,frames] hn) {"
        " y = ReduceMax <axes = [2]> (h) d = Sub (x, loud) a, b = Split <axis = 1> (d) s = Add (a, b) hn = Add (s, h) }"
    )
    project = project_of(root, graph(cell, {"loud": np.float32(loud)}), config)
    for path in (project.root / "calibration" / "samples").iterdir():
        arrays = dict(np.load(path))
        np.savez(path, **{**arrays, "x": loud + arrays["x"]})
    return project


def test_what_an_input_alone_loses_is_told_after_one_try_in_float(tmp_path: Path) -> None:
    """10000 and a little has steps of 8 in float16, and of 0.15 in integers: no state of it has 40 dB."""
    run = cell_of_loud_inputs(tmp_path, CONFIG, 10000).doit("build", check=False)
    assert run.status == 16
    assert [line for line in run.text.splitlines() if "trying" in line] == ["net/net: trying fp16"]
    assert "no precision of net/net keeps to its thresholds" in run.text
    assert "rounding the inputs, with all else in float32, leaves" in run.text


def test_what_an_input_alone_loses_is_held_against_what_the_original_asks(tmp_path: Path) -> None:
    """The compile rung asks for more, but what it is measured against has rounded the input already."""
    asked = "thresholds: {quantization_db: 10, compile_db: 20, total_db: 10, worst_db: 0}\n"
    run = cell_of_loud_inputs(tmp_path, CONFIG + asked, 3000).doit("build")
    assert "this keeps to every threshold" in run.text
