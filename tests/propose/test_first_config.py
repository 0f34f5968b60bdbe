"""`doit init`: what it writes, that it loads, and that it never takes a file's place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.config.load import ModelConfig, load
from pipeline.config.readers import AudioReader, ImagesReader, NpzReader, RecordReader, TextReader
from pipeline.errors import ConfigError, ModelError, PipelineError, SourceError
from pipeline.plan.workspace import Workspace
from pipeline.propose import first_config
from pipeline.propose.absent import filler
from pipeline.propose.found_model import chosen
from tests.support.graphs import graph
from tests.support.hub_server import HubServer, hub_fixture  # noqa: F401
from tests.support.interfaces import LETTERS, MEL, PICTURE, STATE, TEXT, WAVE, selecting
from tests.support.models.builder import save
from tests.support.project import Project
from tests.support.safetensors_files import tiny_folder


def written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str = "models", targets: str = ""
) -> tuple[ModelConfig, str, list[str]]:
    """The config that is written for a source, its text, and what was said; no step is run."""
    monkeypatch.setattr(first_config, "tried", lambda *_: {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir(exist_ok=True)
    said: list[str] = []
    first_config.write_first_config(["mine", source], targets, Workspace.at(tmp_path), said.append)
    path = tmp_path / "configs" / "mine.yaml"
    return load(path), path.read_text("utf-8"), said


def test_a_model_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(graph(TEXT), tmp_path / "models" / "encoder.onnx")
    (tmp_path / "models" / "tokenizer.json").write_text("{}")
    (tmp_path / "models" / "config.json").write_text('{"max_position_embeddings": 64}')
    config, text, said = written(tmp_path, monkeypatch, targets="sm8650,snapdragon-x-elite")
    assert isinstance(config.calibration, TextReader)
    assert config.fixed == {"batch": 1}
    assert [bucket.axes for bucket in config.buckets] == [{"sequence": 32}, {"sequence": 64}]
    assert [target.soc for target in config.targets] == ["sm8650", "snapdragon-x-elite"]
    assert "the model takes 64 at most" in text
    assert "path: ../models" in text
    assert any("calibration/mine/sentences.txt" in line for line in said)
    assert "package:mine" in text
    path = tmp_path / "configs" / "mine.yaml"
    path.write_text(text.replace("# release:", "release:"))
    release = load(path).release
    assert release is not None
    assert release.version == "1.0", "what the comment shows is a release"


def test_a_model_of_pictures_without_a_processor_says_what_it_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(graph(PICTURE), tmp_path / "models" / "net.onnx")
    config, text, said = written(tmp_path, monkeypatch)
    assert isinstance(config.calibration, ImagesReader)
    assert config.fixed == {"N": 1, "H": 224, "W": 224}
    assert "mean: [0.0]    # GUESS: ImageNet's are" in text
    assert any(line.startswith("guessed, look at these lines: ") and "mean" in line for line in said)
    assert "  'N': 1    # a batch" in text, "a truth value of YAML 1.1 unless it is quoted"


def test_how_a_graph_normalizes_pictures_itself_is_no_guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "net (float[1, 3, 8, 8] data) => (float[1, 3, 8, 8] y) { a = Sub (data, half)  y = Mul (a, least) }"
    constants = {"half": np.float32(127.5), "least": np.float32(1 / 127.5)}
    save(graph(text, constants), tmp_path / "models" / "net.onnx")
    config, text, said = written(tmp_path, monkeypatch)
    assert isinstance(config.calibration, ImagesReader)
    assert config.calibration.scale == 1
    assert "scale: 1.0    # the graph normalizes pixels of 0 to 255 itself" in text
    assert "guessed, look at these lines: fit, color" in said


def test_a_processor_beside_the_model_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(graph(PICTURE), tmp_path / "models" / "onnx" / "net.onnx")
    processor = {"size": {"height": 64, "width": 48}}
    (tmp_path / "models" / "preprocessor_config.json").write_text(json.dumps(processor))
    config, _, _ = written(tmp_path, monkeypatch)
    assert isinstance(config.calibration, ImagesReader)
    assert config.calibration.processor == "preprocessor_config.json"
    assert config.fixed == {"N": 1, "H": 64, "W": 48}


def test_a_model_of_sound_with_a_state_and_a_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(graph(STATE), tmp_path / "models" / "net.onnx")
    config, _, _ = written(tmp_path, monkeypatch, "models/net.onnx")
    reader = config.calibration
    assert isinstance(reader, AudioReader)
    assert (reader.length, reader.states, reader.rate) == ("wave_length", {"state": "stateN"}, 16000)
    assert [bucket.axes for bucket in config.buckets] == [{}]


def test_what_a_sample_has_some_of_is_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short name counts anything but in front; what is counted by its name is none in front either."""
    net = """g (float[num_nodes,16] nodes, int64[2,num_edges] edges, float[1,n,8] points) => (float[2,num_edges,16] y) {
        y = Gather (nodes, edges)  unused = Relu (points) }"""
    save(graph(net), tmp_path / "models" / "net.onnx")
    config, _, _ = written(tmp_path, monkeypatch)
    assert config.fixed == {}
    assert {axis for bucket in config.buckets for axis in bucket.axes} == {"num_nodes", "num_edges", "n"}


STREAM = """g (float[1,frames,40] {given}, float[1,1,40] cache{more})
    => (float[1,frames,40] y, float[1,1,40] cache_out) {{
    held = ReduceMean <axes = [1]> ({given})  cache_out = Add (held, cache)  y = Add ({given}, cache_out) }}"""


def test_nothing_is_padded_in_front_of_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(graph(STREAM.format(given="mel", more="")), tmp_path / "models" / "net.onnx")
    config, text, said = written(tmp_path, monkeypatch)
    assert config.fixed == {"frames": 1}
    assert "GUESS: as many as one run is given" in " ".join(text.split())
    assert any("frames" in line for line in said)


def test_padding_is_what_the_graph_takes_for_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = """g (float[K,D] scores, float[K,D] sizes) => (float[K,D] y) {
        limit = Constant <value = float {-1000.0}> ()  small = Constant <value = float {-1.0}> ()
        row = Unsqueeze (scores, axes)  there = Greater (row, limit)  kept = Cast <to = 1> (there)
        large = Less (small, sizes)  counted = Cast <to = 1> (large)
        shares = Softmax (scores)  y = Mul (shares, counted) }"""
    save(graph(net, {"axes": np.array([0])}), tmp_path / "models" / "net.onnx")
    config, text, said = written(tmp_path, monkeypatch)
    assert config.components["net"].padding == {"scores": -10000}
    assert "what is not above -1000 of 'scores'" in " ".join(text.replace("#", "").split())
    assert any("padding" in line for line in said)


@pytest.mark.parametrize(("limit", "found"), [(-1000.0, -10000.0), (-9000.0, -60000.0), (-1e9, -1e10)])
def test_padding_is_well_below_a_limit(limit: float, found: float) -> None:
    assert filler(limit) == found


def test_windows_of_a_waveform_are_no_samples_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = """g (float[seq_len,576] waves, float[1,1,576] h) => (float[seq_len,576] y, float[1,1,576] hn) {
        hn = Relu (h)  y = Relu (waves) }"""
    save(graph(net), tmp_path / "models" / "net.onnx")
    config, text, _ = written(tmp_path, monkeypatch)
    assert isinstance(config.calibration, AudioReader)
    assert config.fixed == {"seq_len": 1}
    assert "a state goes on behind them" in " ".join(text.replace("#", "").split())


def test_a_state_behind_a_length_may_be_padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(graph(STREAM.format(given="mel", more=", int64[1] mel_lengths")), tmp_path / "models" / "net.onnx")
    config, _, _ = written(tmp_path, monkeypatch)
    assert [bucket.axes for bucket in config.buckets] == [{"frames": 64}, {"frames": 128}]


def test_lengths_of_sound_are_seconds_at_the_rate_that_a_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(graph(WAVE), tmp_path / "models" / "net.onnx")
    (tmp_path / "models" / "preprocessor_config.json").write_text('{"sampling_rate": 8000}')
    config, _, _ = written(tmp_path, monkeypatch)
    assert isinstance(config.calibration, AudioReader)
    assert config.calibration.rate == 8000
    assert [bucket.axes for bucket in config.buckets] == [{"samples": 8000}, {"samples": 24000}]


def test_a_selector_is_a_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(selecting(), tmp_path / "models" / "net.onnx")
    config, text, _ = written(tmp_path, monkeypatch)
    assert config.components["net"].constants == {"sr": 8000}
    assert "the graph compares it with 8000" in text


def test_features_want_arrays_and_several_components_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(graph(MEL), tmp_path / "models" / "Mel Encoder.onnx")
    config, _, _ = written(tmp_path, monkeypatch)
    assert isinstance(config.calibration, NpzReader)
    assert [*config.components] == ["mel-encoder"]
    (tmp_path / "configs" / "mine.yaml").unlink()
    save(graph(WAVE), tmp_path / "models" / "second.onnx")
    config, text, said = written(tmp_path, monkeypatch)
    assert isinstance(config.calibration, RecordReader)
    assert "def run(sessions, sample):" in text
    assert any("calibration/mine.py" in line for line in said)


def test_names_of_axes_are_quoted_where_yaml_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "net (float[?, 3, 8, ?] x) => (float[?, 3, 8, ?] y) { y = Neg (x) }"
    save(graph(text), tmp_path / "models" / "net.onnx")
    config, written_text, _ = written(tmp_path, monkeypatch)
    assert config.fixed == {"x[0]": 1}
    assert "  'x[0]': 1" in written_text
    assert isinstance(config.calibration, ImagesReader)
    assert config.calibration.size == (8, 0)


def test_the_float_file_is_chosen_among_its_other_forms() -> None:
    names = ["onnx/model_q4f16.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx", "onnx/decoder_fp16.onnx"]
    names += ["onnx/decoder_int8.onnx"]
    assert chosen(names) == (
        ["onnx/decoder_fp16.onnx", "onnx/model.onnx"],
        ["onnx/decoder_int8.onnx", "onnx/model_q4f16.onnx", "onnx/model_quantized.onnx"],
    )


def refused(tmp_path: Path, *given: str, targets: str = "") -> PipelineError:
    (tmp_path / "configs").mkdir(exist_ok=True)
    with pytest.raises((ConfigError, ModelError, SourceError)) as caught:
        first_config.write_first_config(given, targets, Workspace.at(tmp_path))
    return caught.value


def test_a_rank_that_is_not_declared_is_computed_or_said_to_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "g (float[t, 1, 5] x, int64[2] n) => (float[] h, float[] z) { h, l = GRU <hidden_size = 6> (x, w, r) "
    weights = {"w": np.zeros((1, 18, 5), np.float32), "r": np.zeros((1, 18, 6), np.float32)}
    model = graph(text + "z = If <then_branch = a () => (float[] p) { p = Reshape (h, n) }, else_branch = b () =>"
                  " (float[] q) { q = Identity (l) }> (yes) }", {**weights, "yes": np.array(True)})  # fmt: skip
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    save(model, tmp_path / "models" / "net.onnx")
    config, text, _ = written(tmp_path, monkeypatch)
    assert "# out  h: float32 [t, 1, 1, 6]" in text
    assert "out z: float32 of unknown rank: the build finds it, nothing is to be written" in " ".join(
        text.replace("#", "").split()
    )
    assert [bucket.axes for bucket in config.buckets] == [{"t": 64}, {"t": 128}]
    assert "# GUESS: a length, of net.x[0]: steps of 'GRU_0' (GRU)" in text


def test_an_input_without_a_rank_is_said_to_need_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = graph("g (float[1, 4] x) => (float[1, 4] y) { y = Neg (x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    save(model, tmp_path / "models" / "net.onnx")
    _, text, _ = written(tmp_path, monkeypatch)
    assert "# in   x: float32 of unknown rank: export the model with the shape of each input" in text


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    for name in ("mine.yaml", "mine.yml"):
        path = tmp_path / "configs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("source: mine")
        assert f"configs/{name} is there already" in str(refused(tmp_path, "mine", "models"))
        assert path.read_text() == "source: mine"
        path.unlink()


@pytest.mark.parametrize(("file", "kind"), [("odd\tnet/net.onnx", "folder"), ("models/odd\tnet.onnx", "file")])
def test_names_that_no_config_may_have_are_refused_before_anything_is_written(
    tmp_path: Path, file: str, kind: str
) -> None:
    save(graph(PICTURE), tmp_path / file)
    error = refused(tmp_path, "mine", str(tmp_path / file.split("/")[0]))
    assert f"the {kind} " in error.what
    assert r"odd\t" in error.what
    assert error.remedy == f"rename the {kind}, and run doit init again"
    assert not (tmp_path / "configs" / "mine.yaml").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "takes a name and a source, and was given nothing"),
        (["a", "b", "c"], "takes a name and a source"),
        (["Mine", "x"], "'Mine' can't name a model"),
        (["project", "x"], "'project' can't name a model"),
        (["releases", "x"], "'releases' can't name a model"),
        (["mine", "./nowhere.onnx"], "./nowhere.onnx is no source of a model"),
        (["mine", "nowhere"], "there is no such file or folder"),
    ],
)
def test_wrong_names_and_sources_are_refused_before_anything_is_written(
    tmp_path: Path, given: list[str], said: str
) -> None:
    assert said in str(refused(tmp_path, *given))
    assert not [*(tmp_path / "configs").iterdir()]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("model.onx", "there is no such file or folder; did you mean '{folder}/model.onnx'?"),
        ("model.txt.onnx", "there is no such file or folder; did you mean '{folder}/model.onnx'?"),
        ("below", "there is no such file or folder; did you mean '{folder}/belowe'?"),
        ("zzz.gguf", "there is no such file or folder"),
        ("gone.onnx", "it is a link to nowhere/gone.onnx, which is not there"),
    ],
)
def test_what_is_suggested_is_there_could_be_a_source_and_is_another(tmp_path: Path, asked: str, why: str) -> None:
    folder = tmp_path / "elsewhere"
    (folder / "belowe").mkdir(parents=True)
    for name in ("model.onnx", "model.txt", "notes.txt"):
        (folder / name).write_text("")
    (folder / "gone.onnx").symlink_to("nowhere/gone.onnx")
    assert refused(tmp_path, "mine", str(folder / asked)).why == why.format(folder=folder)


def test_folders_and_files_without_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "weights.safetensors").write_bytes(b"")
    assert "weights.safetensors is no whole" in str(refused(tmp_path, "mine", str(tmp_path / "empty")))
    assert "there is no config.json" in str(refused(tmp_path, "mine", str(tmp_path / "empty" / "weights.safetensors")))
    (tmp_path / "empty" / "weights.safetensors").rename(tmp_path / "empty" / "weights.pt")
    assert "holds no ONNX file" in str(refused(tmp_path, "mine", str(tmp_path / "empty")))
    found = refused(tmp_path, "mine", str(tmp_path / "empty" / "weights.pt"))
    assert "neither ONNX nor GGUF nor safetensors" in str(found)
    found = refused(tmp_path, "mine", str(tmp_path), targets="sm8650,sm9999")
    assert (found.what, found.where) == ("unknown target 'sm9999'", "command line: --targets sm8650,sm9999")


@pytest.mark.slow
def test_what_it_writes_builds_once_the_samples_are_there(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project", tmp_path / "store")
    save(graph(PICTURE.replace("H, W", "8, 8").replace("y = Neg", "y = Relu")), project.root / "models" / "net.onnx")
    run = project.doit("init", "--targets", "sm8650", "mine", "models/net.onnx")
    assert "wrote configs/mine.yaml" in run.text
    assert "calibration/mine/: 32 or more pictures" in run.text
    again = project.doit("init", "mine", "models/net.onnx", check=False)
    assert again.status == 10
    assert "is there already" in again.text
    (project.root / "calibration" / "mine").mkdir()
    for number in range(8):
        noise = np.random.default_rng(number).integers(0, 256, (9, 12, 3), np.uint8)
        Image.fromarray(noise).save(project.root / "calibration" / "mine" / f"{number}.png")
    project.doit("build:mine")
    assert (project.root / "artifacts/mine/sm8650/manifest.json").is_file()


@pytest.mark.parametrize("data", [b"", b"\x08\x09<html>no model</html>"])
def test_of_a_damaged_file_no_config_is_written(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/net.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=r"net\.onnx is not an ONNX model, or is damaged") as caught:
        written(tmp_path, monkeypatch)
    assert caught.value.where == "net.onnx"
    assert caught.value.remedy.startswith("replace the file (fetch the file again")
    assert caught.value.remedy.endswith("and run init again; no config was written")
    assert [*(tmp_path / "configs").iterdir()] == []


def test_what_takes_no_arrays_is_told_without_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "net (seq(float[1, 4]) x) => (float[1, 4] y) { at = Constant <value_int = 0> () y = SequenceAt (x, at) }"
    save(graph(text), tmp_path / "models" / "net.onnx")
    _, _, said = written(tmp_path, monkeypatch)
    assert "  calibration/mine/: 32 or more .npz files with the model's inputs" in said


@pytest.mark.slow
def test_what_will_be_refused_is_said_and_written_down(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project", tmp_path / "store")
    text = "net (float[1, 4] x) => (uint8[1, 4] y) { y, scale, zero = DynamicQuantizeLinear (x) }"
    save(graph(text), project.root / "models" / "net.onnx")
    run = project.doit("init", "mine", "models", check=False)
    assert run.status == 12
    assert "will be refused: output 'y' is quantized by a scale" in run.text
    assert "# REFUSED: output 'y' is quantized by a scale" in (project.root / "configs/mine.yaml").read_text()


def _of_one_size(folder: Path, height: int, width: int) -> None:
    """A model whose axes are free by name, and whose weights allow pictures of one size; 1: any."""
    text = "net (float[N, 3, H, W] pixels) => (float[N, 3, H, W] y) { y = Add (pixels, places) }"
    save(graph(text, {"places": np.ones((1, 3, height, width), np.float32)}), folder / "net.onnx")


@pytest.mark.parametrize(("height", "width", "fixed"), [(64, 64, (64, 64)), (256, 192, (256, 192)), (48, 1, (48, 320))])
def test_a_size_of_pictures_that_the_graph_has_shapes_for_is_looked_for(
    height: int, width: int, fixed: tuple[int, int], tmp_path: Path
) -> None:
    project = Project.create(tmp_path / "project", tmp_path / "store")
    _of_one_size(project.root / "models", height, width)
    run = project.doit("init", "mine", "models")
    config = load(project.root / "configs/mine.yaml")
    assert config.fixed == {"N": 1, "H": fixed[0], "W": fixed[1]}
    assert "the graph has no shapes for 224" in " ".join((project.root / "configs/mine.yaml").read_text().split())
    assert "will be refused" not in run.text
    assert "guessed, look at these lines: H, W" in run.text


def test_where_no_size_fits_the_first_is_told_of(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project", tmp_path / "store")
    _of_one_size(project.root / "models", 50, 50)
    run = project.doit("init", "mine", "models", check=False)
    assert run.status == 12
    assert "H = 224, W = 224" in run.text
    assert load(project.root / "configs/mine.yaml").fixed == {"N": 1, "H": 224, "W": 224}


def test_no_other_size_is_tried_where_a_file_says_one(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project", tmp_path / "store")
    _of_one_size(project.root / "models", 64, 64)
    (project.root / "models" / "preprocessor_config.json").write_text('{"size": {"height": 96, "width": 96}}')
    run = project.doit("init", "mine", "models", check=False)
    assert run.status == 12
    assert "trying pictures" not in run.text
    assert load(project.root / "configs/mine.yaml").fixed == {"N": 1, "H": 96, "W": 96}


@pytest.mark.slow
def test_a_repository_of_the_hub_is_written_down_at_its_commit(hub: HubServer, tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project", tmp_path / "store")
    save(graph(PICTURE), tmp_path / "model.onnx")
    files = {
        "onnx/model.onnx": (tmp_path / "model.onnx").read_bytes(),
        "onnx/model_int8.onnx": b"not looked at",
        "preprocessor_config.json": b'{"size": {"height": 8, "width": 8}}',
    }
    commit = hub.add("our/net", files).branches["main"]
    project.environ |= hub.environ(tmp_path / "home")
    run = project.doit("init", "mine", "our/net")
    text = (project.root / "configs/mine.yaml").read_text()
    assert f"revision: {commit}" in text
    assert "other forms of these files are left alone: onnx/model_int8.onnx" in text
    assert "processor: preprocessor_config.json" in text
    assert not hub.asked("onnx/model_int8.onnx")
    assert "trying shape:mine/model/all" in run.text


@pytest.mark.parametrize("named", ["tiny.gguf", "model.safetensors", "model.safetensors.index.json", ""])
def test_a_language_model_is_known_by_its_files(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models" / "tiny"
    tiny_folder(folder, shards=2 if "index" in named else 1)
    (folder / "chat_template.jinja").write_text("{{ messages }}", "utf-8")
    if not named:
        (folder / "tiny.gguf").unlink()

    config, _, said = written(tmp_path, monkeypatch, str(folder / named))

    assert said[-1] == "next: uv run doit build:mine"
    assert config.components["model"].file == (named or "model.safetensors")
    assert config.files == (() if named == "tiny.gguf" else ("chat_template.jinja",))
    assert config.language is not None
    assert (config.language.context, config.language.prefill) == (512, 128)


def test_a_language_model_that_can_not_be_built_is_refused_by_name(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "tiny")
    (tmp_path / "tiny" / "tiny.gguf").unlink()
    config = (tmp_path / "tiny" / "config.json").read_text("utf-8")
    (tmp_path / "tiny" / "config.json").write_text(config.replace('"llama"', '"mamba"'), "utf-8")

    assert "'mamba' can't be built" in str(refused(tmp_path, "mine", str(tmp_path / "tiny")))
    assert not (tmp_path / "configs" / "mine.yaml").exists()

    (tmp_path / "tiny" / "tokenizer.json").unlink()
    assert "there is no tokenizer.json" in str(refused(tmp_path, "mine", str(tmp_path / "tiny")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "lengths"), [(128, [32, 64, 128]), (100, [32, 64, 100]), (40, [32, 40]), (24, [12, 24])]
)
def test_buckets_end_where_a_table_of_positions_does(places: int, lengths: list[int], tmp_path: Path) -> None:
    """By a lookup of positions, and by a slice of a table, whose sums alone say that it is too short."""
    project = Project.create(tmp_path / "project", tmp_path / "store")
    looked_up = """net (int64[batch, sequence] input_ids) => (float[batch, sequence, 4] y) {
        s = Shape <start = 1, end = 2> (input_ids) n = Squeeze (s) p = Range (zero, n, one) r = Gather (table, p)
        w = Gather (words, input_ids) y = Add (w, r) }"""
    cut = """net (int64[batch, sequence] input_ids) => (float[batch, sequence, 4] y) {
        s = Shape <start = 1, end = 2> (input_ids) r = Slice (table, none, s)
        w = Gather (words, input_ids) y = Add (w, r) }"""
    words = np.random.default_rng(1).standard_normal((20, 4)).astype(np.float32)
    table = np.random.default_rng(2).standard_normal((places, 4)).astype(np.float32)
    numbers = {"zero": np.array(0), "one": np.array(1), "none": np.array([0])}
    for name, text in (("looked-up", looked_up), ("cut", cut)):
        save(graph(text, {**numbers, "table": table, "words": words}), project.root / name / "net.onnx")
        run = project.doit("init", name, name)
        assert "will be refused" not in run.text
        path = project.root / "configs" / f"{name}.yaml"
        assert [bucket.axes["sequence"] for bucket in load(path).buckets] == lengths
        assert ("the model takes" in path.read_text()) == (places < 128)


def test_no_length_is_tried_where_shapes_depend_on_data(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project", tmp_path / "store")
    text = "net (int64[batch, sequence] input_ids) => (int64[2, n] y) { y = NonZero (input_ids) }"
    save(graph(text), project.root / "models" / "net.onnx")
    run = project.doit("init", "mine", "models", check=False)
    assert run.status == 12
    assert "trying a length" not in run.text


def test_of_a_model_that_no_length_helps_the_first_is_told_of(tmp_path: Path) -> None:
    """One step fits by broadcasting, and is not what the model is for."""
    project = Project.create(tmp_path / "project", tmp_path / "store")
    text = """net (int64[batch, sequence] input_ids) => (float[batch, sequence, 4] y) {
        w = Gather (words, input_ids) y = Add (w, five) }"""
    table = np.ones((20, 4), np.float32)
    save(graph(text, {"words": table, "five": np.ones((5, 4), np.float32)}), project.root / "models" / "net.onnx")
    run = project.doit("init", "mine", "models", check=False)
    assert run.status == 12
    assert "sequence = 32" in run.text
    assert [bucket.axes["sequence"] for bucket in load(project.root / "configs/mine.yaml").buckets] == [32, 64, 128]


def test_a_vocabulary_beside_a_model_of_letters_is_read_in_place_of_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(graph(LETTERS), tmp_path / "models" / "net.onnx")
    tables = {"label2id": {"O": 0, "B": 1}, "mapping": {"letters": {"<PAD>": 0, "<UNK>": 1, "а": 2, "б": 3, "в": 4}}}
    (tmp_path / "models" / "config.json").write_text(json.dumps(tables))
    (tmp_path / "models" / "vocab.txt").write_text("a\nb\nc\nd\ne\nf\n")
    config, text, said = written(tmp_path, monkeypatch)
    reader = config.calibration
    assert isinstance(reader, TextReader)
    table = reader.vocabulary
    assert table is not None
    assert (table.file, table.key, table.tokens) == ("config.json", "mapping.letters", "characters")
    assert (table.unknown, table.lowercase, reader.ids) == ("<UNK>", True, "given")
    assert "GUESS: 5 tokens for 5 rows of the model" in text
    assert any(line.startswith("guessed, look at these lines: ") and "vocabulary" in line for line in said)
    assert any("calibration/mine/sentences.txt" in line for line in said)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.txt", "a\nb\nc\nd\ne\nf\n"),  # more than the model has rows
        ("vocab.txt", "a\nb\n"),  # far less
        ("vocab.json", "{"),
        ("notes.txt", "a\nb\nc\nd\ne\n"),
    ],
)
def test_what_is_no_vocabulary_of_the_model_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    save(graph(LETTERS), tmp_path / "models" / "net.onnx")
    (tmp_path / "models" / name).write_text(content)
    config, text, _ = written(tmp_path, monkeypatch)
    assert isinstance(config.calibration, NpzReader)
    assert "a vocabulary (vocab.txt, vocab.json)" in text


@pytest.mark.parametrize(
    ("content", "kind", "begin"),
    [("[PAD]\n[UNK]\n[CLS]\nsea\n##side\n", "pieces", "[CLS]"), ("<s>\n</s>\nthe\nsea\nside\n", "words", "<s>")],
)
def test_what_a_token_is_follows_from_the_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, kind: str, begin: str
) -> None:
    save(graph(LETTERS), tmp_path / "models" / "net.onnx")
    (tmp_path / "models" / "vocab.txt").write_text(content)
    config, _, _ = written(tmp_path, monkeypatch, "models/net.onnx")
    assert isinstance(config.calibration, TextReader)
    assert config.calibration.vocabulary is not None
    assert (config.calibration.vocabulary.tokens, config.calibration.vocabulary.begin) == (kind, begin)
