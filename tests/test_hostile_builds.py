"""Odd names build rightly, large graphs in bounded time, and a store that was tampered with writes nothing outside."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.shapes import folding
from pipeline.plain_text import printable
from pipeline.store import sealed_json
from pipeline.store.manifests import read_manifest
from tests.support import hostile_project
from tests.support.hostile_models import Bad, built, chain, endless, node, value
from tests.support.project import Project
from tests.support.sources import ingested, outputs, shaped
from tests.support.stage_runs import run_stage
from tests.support.tiny_models import WIDTH, float_model

ODD = {
    "x": 'in put "x"', "y": "out\nput", "w0": "../../w0", "w1": "w'1\\", "matmul0_out": "\x1b[31mred",
    "relu0_out": "이름" * 150, "matmul1_out": "\u202eabc", "between_out": "con",
}  # fmt: skip
NODES = ["a b", "/x/../y", "q\"uo'te\n\\", "한국어\x07", "aux "]


def odd_project(root: Path) -> Project:
    """A model all of whose names are such that nobody would choose them."""
    project = hostile_project.create(root)
    path = float_model(project.root / "models" / "odd", sequence="seq len", between="Hardmax")
    model = onnx.load(path, load_external_data=False)
    for named in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        named.name = ODD[named.name]
    for name, each in zip(NODES, model.graph.node, strict=True):
        each.name = name
        for field in (each.input, each.output):
            field[:] = [ODD[given] for given in field]
    onnx.save(model, path)
    project.write(
        "calibration/samples.py",
        "import numpy as np\n\n\ndef run(path):\n    for seed in range(8):\n"
        f"        yield {{{ODD['x']!r}: np.random.default_rng(seed).normal(size=(1, 8, {WIDTH})).astype('f4')}}\n",
    )
    project.write(
        "configs/odd.yaml",
        "source: {path: ../models/odd}\n"
        "components: {net: {file: model.onnx}}\n"
        'buckets: {"seq len": [8]}\n'
        "calibration: {reader: python, run: 'calibration/samples.py:run'}\n"
        "thresholds: {max_cpu_nodes: 1, max_partitions: 2}\n"
        "targets: [sm8650]\n",
    )
    return project


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits memory")
def test_odd_names_are_built_and_reported(tmp_path: Path) -> None:
    project = odd_project(tmp_path)
    said = hostile_project.run(project, "build", "blame:odd/net/8", "probe:odd/net/8/sm8650")
    assert said.status == 0, said.text
    folder = project.root / "artifacts" / "odd" / "sm8650"
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "net_8_ctx.onnx", "net_8_ctx_qnn.bin"]
    (bucket,) = json.loads((folder / "manifest.json").read_text("utf-8"))["components"]["net"]["buckets"]
    assert [bucket["inputs"][0]["name"], bucket["outputs"][0]["name"]] == [ODD["x"], ODD["y"]]
    assert NODES[2] in [each["name"] for each in bucket["cpu_nodes"]]
    rows = [line for line in said.text.splitlines() if line.startswith(("in put", r"out\nput"))]
    assert len(rows) == 2, said.text  # a name with a line break is one row of the table


def test_what_is_printed_can_not_steer_a_terminal() -> None:
    assert printable("plain\n\ttext 한국어") == "plain\n\ttext 한국어"
    assert printable("\x1b[2J\x07\r\x9b\u202e\ud800\x00") == r"\x1b[2J\x07\r\x9b\u202e\ud800\x00"
    assert printable("a\nb", keep="") == r"a\nb"


def test_a_long_chain_is_rewritten(tmp_path: Path) -> None:
    """Longer than Python's stack is deep."""
    count = sys.getrecursionlimit() + 500
    shape = shaped(tmp_path, chain(count), n=8)
    rewrite = run_stage("rewrite", tmp_path / "rewrite", {}, {"shape": shape})
    assert rewrite.facts["nodes"] == count


def test_views_and_large_results_on_top_of_each_other_are_computed_in_time(tmp_path: Path) -> None:
    """Computed on demand for each reader, 60 levels would take 2^60 evaluations."""
    size = 300_000
    nodes = []
    for level in range(60):
        nodes += [
            node("Neg", [f"a{level}"], [f"b{level}"]),
            node("Abs", [f"a{level}"], [f"c{level}"]),
            node("Add", [f"b{level}", f"c{level}"], [f"a{level + 1}"]),
        ]
    nodes += [node("Identity", [f"i{level}" if level else "a60"], [f"i{level + 1}"]) for level in range(2000)]
    nodes.append(node("Add", ["x", "i2000"]))
    vectors = [value("x", ["n", size])], [value("y", ["n", size])]
    source = built(*nodes, inputs=vectors[0], outputs=vectors[1], a0=np.full(size, -1, np.float32))
    taken = ingested(tmp_path, source)
    feeds = {"x": np.ones((1, size), np.float32)}
    assert len(load_graph(taken.folder / MODEL).graph.node) == 1
    assert np.array_equal(outputs(taken.folder / MODEL, feeds)[0], outputs(source, feeds)[0])


def test_lengths_that_double_are_followed_in_time(tmp_path: Path) -> None:
    """Asked for each of its readers, whether a length is whole would take 2^80 answers."""
    nodes = [node("Cast", ["x"], ["v0"], to=1)]
    nodes += [node("Add", [f"v{level}"] * 2, [f"v{level + 1}"]) for level in range(80)]
    nodes.append(node("Cast", ["v80"], to=7))
    integers = [value("x", ["n", 4], 7)], [value("y", ["n", 4], 7)]
    shape = shaped(tmp_path, built(*nodes, inputs=integers[0], outputs=integers[1]), n=8)
    assert run_stage("rewrite", tmp_path / "rewrite", {}, {"shape": shape}).facts["nodes"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits memory")
def test_large_graphs_are_refused_or_built_in_bounded_time_and_memory(tmp_path: Path) -> None:
    """A loop without end, an attribute of half a gigabyte, 100,000 nodes to take in and 10,000 to rewrite."""
    project = hostile_project.create(tmp_path)
    cases = {"endless": Bad(endless, f"it takes longer than {folding._LONGEST_S:.0f} s")}
    for name, bad in cases.items():
        made = bad.make()
        assert not isinstance(made, bytes)
        (hostile_project.add_model(project, name) / "model.onnx").write_bytes(made.SerializeToString())
    with (hostile_project.add_model(project, "attribute") / "model.onnx").open("wb") as file:
        size = (1 << 29) + (1 << 20)
        file.write(b"\x08\x08" + _headers(size, (7, 1, 5, 4)))
        file.truncate(file.tell() + size)
    for name, count in (("many", 100_000), ("some", 10_000)):
        (hostile_project.add_model(project, name) / "model.onnx").write_bytes(chain(count).SerializeToString())
    steps = ["ingest:endless/net", "ingest:attribute/net", "shape:many/net/8", "rewrite:some/net/8"]
    said = hostile_project.run(project, "--continue", *steps)
    assert said.status == 12, said.text
    assert sorted(said.of_step) == ["ingest:attribute/net", "ingest:endless/net"]
    assert cases["endless"].said in said.of_step["ingest:endless/net"]
    assert "without large tensors, exceeds" in said.of_step["ingest:attribute/net"]


def _headers(size: int, fields: tuple[int, ...]) -> bytes:
    """The beginnings of protobuf messages, one in the other, the innermost of this size."""
    head = b""
    for number in reversed(fields):
        length, left = bytearray(), size + len(head)
        while left >= 0x80:
            length.append(left & 0x7F | 0x80)
            left >>= 7
        head = bytes([number << 3 | 2, *length, left]) + head
    return head


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits memory")
def test_a_store_that_was_tampered_with_writes_nothing_outside(tmp_path: Path) -> None:
    """Manifests whose seal is right and whose names lead out: in the store, and in the build folder of the project."""
    project = hostile_project.create(tmp_path / "one")
    hostile_project.add_model(project, "net").rmdir()
    float_model(project.root / "models" / "net", sequence="n")
    assert hostile_project.run(project, "build").status == 0
    good = project.artifacts()
    for name in ("../../../evil", str(tmp_path / "evil"), "..\\evil", "a/../../evil"):
        paths = [*project.store.glob("manifests/*/*.json"), *(project.root / ".build" / "steps").rglob("*.json")]
        for path in paths:
            raw = sealed_json.load(path.read_bytes())
            raw["files"] = dict.fromkeys((name,), next(iter(raw["files"].values())))
            for part in raw["facts"].get("parts", {}).values():
                part["files"] = dict.fromkeys((name,), name)
            path.chmod(0o644)
            path.write_bytes(sealed_json.dump({key: each for key, each in raw.items() if key != "sha256"}))
            assert read_manifest(path) is None
        said = hostile_project.run(project, "build")
        assert said.status == 0, said.text
        assert project.artifacts() == good
    assert not [*tmp_path.rglob("*evil*")]
