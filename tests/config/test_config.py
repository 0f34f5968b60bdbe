from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config.load import (
    Auto,
    Bucket,
    Fp16,
    LocalSource,
    ModelConfig,
    PythonFunction,
    Quantization,
    Target,
    load,
)
from pipeline.config.quantization import BlockWeights, NodesRule, OpsRule, TensorsRule, Weights
from pipeline.config.thresholds import Thresholds
from pipeline.errors import ConfigError
from pipeline.plan.planner import plan
from pipeline.plan.resolve import resolve
from pipeline.plan.workspace import Workspace
from tests.support.config_mistakes import GOOD, MISTAKES, changed, write
from tests.support.configs import load_all

REMEDY = "docs/config.md says what may be written"


def loaded(root: Path, text: str) -> ModelConfig:
    return load(write(root, text))


def refused(root: Path, text: str | bytes) -> list[str]:
    """The lines of the refusal, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        load(write(root, text))
    error = caught.value
    assert error.exit_code == 10
    assert error.remedy == REMEDY
    head, *lines = error.what.splitlines()
    assert head == ("one mistake" if len(lines) == 1 else f"{len(lines)} mistakes") + " in the configuration:"
    assert all(line.startswith("  configs/mine.yaml:") for line in lines)
    return [line.removeprefix("  configs/mine.yaml:") for line in lines]


def test_a_config_is_merged_and_resolved(tmp_path: Path) -> None:
    config = loaded(tmp_path, GOOD)
    assert config.name == "mine"
    assert config.source == LocalSource(tmp_path / "models" / "mine")
    assert config.buckets == (Bucket({"sequence": 32}), Bucket({"sequence": 64}))
    assert [bucket.name for bucket in config.buckets] == ["32", "64"]
    by_default = Quantization(weights=BlockWeights("int8", 32), wide_products=True, rounding="gptq", clip="hessian")
    assert config.components["encoder"].quantization == by_default
    assert config.components["encoder"].budget_minutes == 30
    assert config.targets == (Target("sm8650", 8),)
    assert config.places["buckets.sequence"] == "configs/mine.yaml:5:21"
    assert not config.on_request


@pytest.mark.parametrize("more", ["outputs: [dlc]", "compiler: qairt"])
def test_what_takes_no_blocks_gets_none_by_default(more: str, tmp_path: Path) -> None:
    config = loaded(tmp_path, f"{GOOD}{more}\n")
    quantization = config.components["encoder"].quantization
    assert isinstance(quantization, Quantization)
    assert quantization.weights == "uint8"


@pytest.mark.parametrize(("soc", "weights"), [("sm8450", BlockWeights("int8", 32)), ("sm8350", "uint8")])
def test_what_an_old_target_can_not_compute_is_not_the_default(tmp_path: Path, soc: str, weights: Weights) -> None:
    found = loaded(tmp_path, changed("[sm8650]", f"[sm8650, {soc}]")).components["encoder"].quantization
    assert found == Quantization(weights=weights, rounding="gptq", clip="hessian")


def test_what_is_written_has_the_rounding_that_it_says(tmp_path: Path) -> None:
    found = loaded(tmp_path, GOOD + "quantization: {activations: uint16, weights: uint8}\n").components["encoder"]
    assert found.quantization == Quantization("uint16", "uint8", True, "minmax", rounding="nearest", clip="mse")


@pytest.mark.parametrize("name", ["Snapdragon 8 Gen 3", "SM8650", "'57'", "{soc: sm8650}"])
def test_a_target_has_many_names_and_one_that_is_used(tmp_path: Path, name: str) -> None:
    assert loaded(tmp_path, changed("[sm8650]", f"[{name}]")).targets == (Target("sm8650", 8),)


def test_vtcm_may_be_less_than_the_soc_has(tmp_path: Path) -> None:
    text = changed("[sm8650]", "[{soc: sm8650, vtcm_mb: 4}, snapdragon-x2-elite]")
    assert loaded(tmp_path, text).targets == (Target("sm8650", 4), Target("snapdragon-x2-elite", None))


def test_options_of_a_target_are_for_the_compiler_or_for_applications(tmp_path: Path) -> None:
    text = changed(
        "[sm8650]",
        "[{soc: sm8650, optimization: 1, priority: high, performance_mode: burst, rpc_latency_us: 100,"
        " provider_options: {htp_reused_io_limit_mb: '4'}}]",
    )
    (target,) = loaded(tmp_path, text).targets
    assert target.compiler_options == {
        "htp_graph_finalization_optimization_mode": "1",
        "qnn_context_priority": "high",
        "htp_reused_io_limit_mb": "4",
    }
    assert target.runtime_options == {
        "qnn_context_priority": "high",
        "htp_performance_mode": "burst",
        "rpc_control_latency": "100",
    }


def test_a_component_overrides_what_it_names(tmp_path: Path) -> None:
    text = changed(
        "  encoder: {file: onnx/model.onnx}\n",
        """\
  plain: {file: a.onnx}
  finer: {file: b.onnx, quantization: {weights: int8}}
  float: {file: c.onnx, quantization: {precision: fp16}, padding: {ids: 3}}
quantization: {activations: uint8, per_channel: false}
""",
    )
    components = loaded(tmp_path, text).components
    assert components["plain"].quantization == Quantization("uint8", "uint8", False)
    assert components["finer"].quantization == Quantization("uint8", "int8", False)
    assert components["float"].quantization == Fp16("fp16")
    assert components["float"].padding == {"ids": 3.0}


def test_a_component_of_a_float_model_overrides_the_defaults(tmp_path: Path) -> None:
    text = changed("encoder: {file: onnx/model.onnx}", "encoder: {file: m.onnx, quantization: {weights: int8}}")
    text += "quantization: {precision: fp16}\n"
    assert loaded(tmp_path, text).components["encoder"].quantization == Quantization("uint16", "int8", True)


def test_thresholds_of_a_component_go_over_those_of_the_model(tmp_path: Path) -> None:
    text = changed(
        "encoder: {file: onnx/model.onnx}", "encoder: {file: m.onnx, thresholds: {total_db: 25, cosine: 0.9}}"
    )
    found = loaded(tmp_path, text + "thresholds: {total_db: 30, padding_db: 50, compile_db: 40}\n")
    assert found.components["encoder"].thresholds == Thresholds(60, 50, None, 25, 40, 25, 15, cosine=0.9, few_db=0)
    assert loaded(tmp_path, GOOD).components["encoder"].thresholds == Thresholds()


OUTPUTS = """verification:
  truth: padded
  outputs:
    boxes: {output: y, slice: ":, :4", total_db: 30}
    scores: {output: y, slice: ":, 4:", max_abs_error: 0.02}
    labels: {choice: -1, tie: 0.5}
"""


def test_outputs_are_judged_as_is_written(tmp_path: Path) -> None:
    encoder = loaded(tmp_path, GOOD + OUTPUTS).components["encoder"]
    assert encoder.truth == "padded"
    assert list(encoder.outputs) == ["boxes", "scores", "labels"]
    limits = encoder.thresholds
    assert (limits.least_db("boxes", "total"), limits.least_db("boxes", "compile")) == (30, 30)
    assert limits.worst_sample_db("boxes") == 10, "the component's own is not raised by what one output must keep to"
    assert limits.most_error("scores", "total", bounded=False) == 0.02
    assert limits.most_error("scores", "padding", bounded=False) == pytest.approx(0.0002)
    assert limits.most_error("scores", "rewrite", bounded=False) == 0.02, "a rewrite is judged as the end is"


def test_outputs_of_several_components_are_written_with_each(tmp_path: Path) -> None:
    two = changed("encoder: {file: onnx/model.onnx}", "encoder: {file: a.onnx}\n  other: {file: b.onnx}")
    with pytest.raises(ConfigError, match=r"verification.outputs: does not say of which component"):
        loaded(tmp_path, two + OUTPUTS)
    own = "encoder: {file: a.onnx, truth: exact, outputs: {y: {max_abs_error: 0.1}}}\n  other: {file: b.onnx}"
    components = loaded(tmp_path, changed("encoder: {file: onnx/model.onnx}", own)).components
    assert (components["encoder"].truth, components["other"].truth) == ("exact", "unpadded")
    assert (list(components["encoder"].outputs), list(components["other"].outputs)) == (["y"], [])


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ('{y: {slice: "a:b"}}', r"outputs.y.slice: .*a slice as numpy writes it"),
        ('{y: {slice: "1:2:0"}}', r"outputs.y.slice: '1:2:0' is no index or range"),
        ("{y: {slice: 4}}", r"outputs.y.slice: .*in quotes"),
        ("{y: {max_abs_error: -1}}", r"outputs.y.max_abs_error: is -1; expected 0 or more"),
        ("{y: {tie: 0.1}}", r"outputs.y.tie: is of no effect without 'choice'"),
        ("{y: {choice: 99}}", r"outputs.y.choice: .*an integer from -16 to 15"),
    ],
)
def test_outputs_that_can_not_be_judged_so(tmp_path: Path, outputs: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, GOOD + f"verification: {{outputs: {outputs}}}\n")


def test_precision_is_overridden_by_operator_node_and_value(tmp_path: Path) -> None:
    rules = """\
quantization:
  overrides:
    - {ops: [Softmax, Gelu], activations: uint16}
    - {nodes: ["/layers.0/*"], precision: fp16}
    - {tensors: [embedding.weight], weights: int8, per_channel: false}
"""
    found = loaded(tmp_path, GOOD + rules).components["encoder"].quantization
    assert isinstance(found, Quantization)
    assert found.overrides == (
        OpsRule(("Softmax", "Gelu"), activations="uint16"),
        NodesRule(("/layers.0/*",), precision="fp16"),
        TensorsRule(("embedding.weight",), weights="int8", per_channel=False),
    )


def test_a_search_for_the_precision(tmp_path: Path) -> None:
    found = loaded(tmp_path, GOOD + "quantization: {precision: auto, fp16: false, max_trials: 5}\n")
    assert found.components["encoder"].quantization == Auto("auto", fp16=False, max_trials=5)


def test_buckets_equal_on_a_components_axes_are_one(tmp_path: Path) -> None:
    text = changed("{sequence: [64, 32]}", "[{text: 64, latent: 128}, {latent: 64, text: 64}, {text: 32, latent: 32}]")
    config = loaded(tmp_path, text)
    assert [bucket.name for bucket in config.buckets] == ["32x32", "64x64", "64x128"]
    assert [bucket.name for bucket in config.buckets_on(["text", "other"])] == ["32", "64"]
    assert config.buckets_on(["latent", "text"]) == config.buckets
    assert [bucket.name for bucket in config.buckets_on([])] == ["all"]


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("{height: [640, 320], width: [320, 640]}", ["320x640", "640x320"]),
        ("{height: [320, 320], width: [320, 640]}", ["320x320", "320x640"]),
        ("{height: [8, 16], width: [40, 10, 20]}\ncross: true", ["8x10", "8x20", "16x10", "8x40", "16x20", "16x40"]),
        ("{height: [8, 16]}\ncross: true", ["8", "16"]),
    ],
)
def test_values_of_several_axes_go_together_or_are_crossed_smallest_first(
    written: str, names: list[str], tmp_path: Path
) -> None:
    config = loaded(tmp_path, changed("{sequence: [64, 32]}", written))
    assert [bucket.name for bucket in config.buckets] == names


def test_the_buckets_of_a_component_are_smallest_first(tmp_path: Path) -> None:
    text = changed("{sequence: [64, 32]}", "[{text: 10, latent: 5}, {latent: 100, text: 5}]")
    assert [bucket.name for bucket in loaded(tmp_path, text).buckets_on(["text"])] == ["5", "10"]


def test_values_of_constants(tmp_path: Path) -> None:
    text = changed("{file: onnx/model.onnx}", "{file: onnx/model.onnx, constants: {'x.1': [[1, 2.5], [true, 3]]}}")
    encoder = loaded(tmp_path, text + "constants: {sr: 16000, x.1: 1}\n").components["encoder"]
    assert encoder.constants == {"sr": 16000, "x.1": ((1, 2.5), (True, 3))}


def test_without_buckets_there_is_one(tmp_path: Path) -> None:
    config = loaded(tmp_path, changed("buckets: {sequence: [64, 32]}\n", ""))
    assert [(bucket.name, bucket.axes) for bucket in config.buckets] == [("all", {})]


def test_code_and_samples_start_from_the_project(tmp_path: Path) -> None:
    text = changed("{reader: text, file: calibration/lines.txt}", "{reader: python, run: 'calibration/a/b.py:make'}")
    calibration = loaded(tmp_path, text).calibration
    assert getattr(calibration, "run", None) == PythonFunction(tmp_path / "calibration" / "a" / "b.py", "make")


def test_numbers_and_words_are_read_as_yaml_1_2(tmp_path: Path) -> None:
    config = loaded(tmp_path, changed("{batch: 1}", "{yes: 1, on: 2, 0x10: 3}"))
    assert config.fixed == {"yes": 1, "on": 2, "0x10": 3}


@pytest.mark.parametrize(("text", "expected"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_refused_with_its_place(tmp_path: Path, text: str | bytes, expected: list[str]) -> None:
    found = refused(tmp_path, text)
    assert len(found) == len(expected), found
    for line, beginning in zip(found, expected, strict=True):
        assert line.startswith(beginning)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("sm86500", "sm8650"), ("snapdragon-x-elit", "snapdragon-x-elite"), ("Snapdragon 8 Gen3", "Snapdragon 8 Gen 3")],
)
def test_a_misspelt_target_is_suggested(tmp_path: Path, written: str, meant: str) -> None:
    (line,) = refused(tmp_path, changed("[sm8650]", f"[{written}]"))
    assert line.endswith(f"; did you mean '{meant}'?")


def test_a_link_out_of_the_calibration_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "calibration").mkdir()
    (tmp_path / "code.py").touch()
    try:
        (tmp_path / "calibration" / "link.py").symlink_to(tmp_path / "code.py")
    except OSError:
        pytest.skip("links need a privilege here")
    text = changed("{reader: text, file: calibration/lines.txt}", "{reader: python, run: 'calibration/link.py:run'}")
    assert refused(tmp_path, text) == [
        "6:36: calibration.run: 'calibration/link.py' leads out of calibration/; expected code that is kept there"
    ]


def test_every_mistake_of_every_file_is_reported_at_once(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "good.yaml")
    write(tmp_path, GOOD, "other.yml")
    write(tmp_path, GOOD, "Capital.yaml")
    write(tmp_path, "x@y: 1\n", "pins.yaml")
    write(tmp_path, "a: [\n", "broken.yaml")
    (tmp_path / "configs" / "folder").mkdir()
    many = """\
source: {hub: nobody}
components:
  a: {file: a.onnx, paddding: {}}
  b: {file: b.onnx}
fixed: {seq: 1}
buckets: [{seq: 8}, 3]
targets: [7, {soc: sm8350, vtcm_mb: 64}, nope]
"""
    write(tmp_path, many, "many.yaml")
    with pytest.raises(ConfigError) as caught:
        load_all(tmp_path / "configs")
    head, *lines = caught.value.what.splitlines()
    assert head == "12 mistakes in the configuration:"
    assert [line.strip().split(": ", 2)[:2] for line in lines] == [
        ["configs/Capital.yaml:1:1", "the file's name can't name a model"],
        ["configs/broken.yaml:2:1", "is not YAML"],
        ["configs/many.yaml:1:1", "calibration"],
        ["configs/many.yaml:1:9", "source.revision"],
        ["configs/many.yaml:1:15", "source.hub"],
        ["configs/many.yaml:3:21", "components.a.paddding"],
        ["configs/many.yaml:5:14", "fixed.seq"],
        ["configs/many.yaml:6:21", "buckets[1]"],
        ["configs/many.yaml:7:11", "targets[0]"],
        ["configs/many.yaml:7:37", "targets[1].vtcm_mb"],
        ["configs/many.yaml:7:42", "targets[2]"],
        ["configs/other.yml:1:1", "would not be read; expected the name other.yaml"],
    ]


def test_models_come_by_name_and_hidden_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml"):
        write(tmp_path, GOOD, name)
    write(tmp_path, "[", ".draft.yaml")
    assert list(load_all(tmp_path / "configs")) == ["a", "b"]


def test_what_can_not_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"configs:1:1: is not there; expected the folder with one YAML file a model"):
        load_all(tmp_path / "configs")
    with pytest.raises(ConfigError, match=r"configs/gone\.yaml:1:1: can't be read: "):
        load(tmp_path / "configs" / "gone.yaml")


@pytest.mark.parametrize(
    ("calibration", "lacking", "where"),
    [
        (
            "{reader: text, file: calibration/line.txt}",
            "the file of samples calibration/line.txt does not exist; did you mean 'lines.txt'?",
            "6:35",
        ),
        (
            "{reader: npz, folder: calibration/array}",
            "the folder of samples calibration/array does not exist; did you mean 'arrays'?",
            "6:36",
        ),
        ("{reader: record, file: calibration/lines.txt, run: 'calibration/cod.py:f'}", "cod.py does not", "6:65"),
    ],
)
def test_a_missing_calibration_file_is_named_when_it_is_needed(
    tmp_path: Path, calibration: str, lacking: str, where: str
) -> None:
    text = changed("{reader: text, file: calibration/lines.txt}", calibration)
    config = loaded(tmp_path, text)
    for name in ("lines.txt", "code.py", "arrays"):
        path = tmp_path / "calibration" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x\n")
    (step,) = (step for step in plan(config) if step.stage == "samples")
    workspace = Workspace.at(tmp_path)
    with pytest.raises(ConfigError) as caught:
        resolve(replace(step, inputs=(), ingests={}), workspace)
    assert caught.value.what.startswith(lacking)
    assert caught.value.where == f"configs/mine.yaml:{where}, for samples:mine/calibration"
    taken = {
        "6:35": "put 32 or more lines of text there",
        "6:36": "put 32 or more .npz files with the model's inputs there",
    }
    assert caught.value.remedy == f"{taken.get(where, 'create it')}, or correct the path in the config"


def only_config_errors(root: Path, data: bytes) -> None:
    path = write(root, data)
    try:
        config = load(path)
    except ConfigError:
        return
    assert plan(config)


FUZZ = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WORDS = st.sampled_from(
    [*GOOD.split(), *":[]{},-?&*!|>%@`'\"#\n\t ", "\n  ", "- ", ": ", "!!int", "---\n", "null", ".nan"]
)


@FUZZ
@given(data=st.binary(max_size=200))
def test_random_bytes_raise_nothing_else(tmp_path: Path, data: bytes) -> None:
    only_config_errors(tmp_path, data)


@FUZZ
@given(text=st.one_of(st.text(max_size=200), st.lists(WORDS, max_size=60).map("".join)))
def test_random_text_raises_nothing_else(tmp_path: Path, text: str) -> None:
    only_config_errors(tmp_path, text.encode("utf-8", "replace"))


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["fp16", "text", "record", "sm8650", "sm8350", "uint8", "a/b", "a.onnx", "calibration/a.py:f", ""]),
)
TOP_KEYS = ["source", "components", "targets", "fixed", "buckets", "calibration", "quantization", "verification"]
INNER_KEYS = ["path", "hub", "revision", "reader", "run", "file", "soc", "vtcm_mb", "precision", "weights", "sequence"]
KEYS = st.sampled_from([*TOP_KEYS, *INNER_KEYS])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=10
)


@FUZZ
@given(changes=st.dictionaries(KEYS, VALUES, max_size=4))
def test_values_of_any_kind_in_any_place_raise_nothing_else(tmp_path: Path, changes: dict[str, Any]) -> None:
    document = yaml.safe_load(GOOD) | changes
    only_config_errors(tmp_path, yaml.safe_dump(document, sort_keys=False).encode())


@pytest.mark.parametrize(
    ("calibration", "samples"),
    [
        ("{reader: npz, folder: calibration/a}", "{reader: npz, folder: calibration/b}"),
        ("{reader: python, run: 'calibration/a.py:fit'}", "{reader: python, run: 'calibration/a.py:score'}"),
    ],
)
def test_other_samples_of_the_same_kind_may_verify(tmp_path: Path, calibration: str, samples: str) -> None:
    text = changed("{reader: text, file: calibration/lines.txt}", calibration)
    assert loaded(tmp_path, text + f"verification: {{samples: {samples}}}\n").verification
