"""A model of more than 2 GB, where protobuf ends, goes the whole way to its QDQ model and is never held in memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from pipeline.graph.files.model_file import MODEL, load_graph, set_external
from pipeline.graph.ir.index import GraphIndex
from pipeline.store.manifests import read_manifest
from pipeline.store.store import Store
from tests.support.project import Project
from tests.support.sources import model, numbers

pytestmark = pytest.mark.slow

ROWS, WIDTH = 4_300_000, 128
TABLE_BYTES = 4 * ROWS * WIDTH
NEEDED_BYTES = 3 * TABLE_BYTES
MOST_BYTES = TABLE_BYTES // 2
"""Of memory, in any step; a table that is mapped counts as far as it was read."""
FILLED = (0, 1, 77, ROWS - 1)
"""The rows that are not zero: the file of the others is sparse."""

CONFIG = """\
source: {path: ../models/large}
components:
  net: {file: model.onnx}
buckets: {n: [8, 16]}
calibration: {reader: python, run: "calibration/ids.py:run"}
targets: [snapdragon-x-elite]
"""
SAMPLES = f"""\
import numpy as np


def run(path):
    for count in (3, 8, 12, 16):
        yield {{"ids": np.resize(np.array({FILLED}), count)}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    if shutil.disk_usage(tmp_path).free < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES >> 30} GB of disk at {tmp_path}")
    project = Project.create(tmp_path / "project", tmp_path / "store")
    project.write("configs/large.yaml", CONFIG)
    project.write("calibration/ids.py", SAMPLES)
    yield project
    shutil.rmtree(tmp_path)  # pytest would keep it


def write_model(folder: Path) -> NDArray[np.float32]:
    """An embedding and a product behind it; the rows of the embedding that are filled."""
    folder.mkdir(parents=True)
    source = model(
        f"g (int64[n] ids) => (float[n,{WIDTH}] y) {{ rows = Gather (table, ids)  y = MatMul (rows, w) }}",
        {"w": numbers(WIDTH, WIDTH)},
    )
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[ROWS, WIDTH])
    set_external(table, "model.onnx_data", 0, TABLE_BYTES)
    source.graph.initializer.append(table)
    filled = numbers(len(FILLED), WIDTH)
    with (folder / "model.onnx_data").open("wb") as file:
        file.truncate(TABLE_BYTES)
        for row, values in zip(FILLED, filled, strict=True):
            file.seek(4 * WIDTH * row)
            file.write(values.tobytes())
    (folder / MODEL).write_bytes(source.SerializeToString())
    return filled


def test_a_model_over_two_gigabytes_is_quantized(project: Project) -> None:
    filled = write_model(project.root / "models" / "large")

    run = project.doit("quantize:large/net")

    assert run.stages() == {
        "fetch": 1, "ingest": 1, "shape": 2, "rewrite": 2, "samples": 1, "calibrate": 1, "correlate": 1, "quantize": 1,
    }  # fmt: skip
    made = read_manifest(project.root / ".build" / "steps" / "quantize" / "large" / "net.json")
    assert made is not None
    part = made.part("16")
    assert part is not None
    out = project.root / "out"
    out.mkdir()
    for name, entry in part.files.items():
        os.link(Store(project.store).object_path(entry.sha256), out / name)
    index = GraphIndex(load_graph(out / MODEL), out)
    integers, scale, zero = (index.constant(f"table_{each}") for each in ("quantized", "scale", "zero_point"))
    assert integers is not None
    assert scale is not None
    assert zero is not None
    assert integers.shape == (ROWS, WIDTH)
    real = (integers[list(FILLED)].astype(np.float64) - zero) * scale
    assert np.abs(real - filled).max() <= 0.51 * scale
    assert (integers[10_000:10_100] == zero).all()
    sizes = sorted(path.stat().st_size for path in (project.store / "objects").rglob("*") if path.is_file())
    in_blocks = WIDTH * WIDTH + 4 * WIDTH * WIDTH // 32  # a byte each, and a scale for 32 of them
    assert sizes[-2:] == [TABLE_BYTES // 2 + in_blocks, TABLE_BYTES], "the table as it came, and in 16 bits"
    assert sum(sizes[:-2]) < 1 << 20
    costs = json.loads((project.store / "costs.json").read_text("utf-8"))["steps"]
    assert {step: cost["peak_bytes"] for step, cost in costs.items() if cost["peak_bytes"] > MOST_BYTES} == {}
