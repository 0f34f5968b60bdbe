"""Tables of 4 bits in blocks: what they stand for, and that a QDQ model of them looks up just that."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.contracts.scheme import Rule, Scheme
from pipeline.contracts.target import HtpTarget
from pipeline.errors import QuantizationError
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.qdq.packed_tables import PackedTable, pack, packed_bytes
from tests.support.graphs import graph
from tests.support.on_htp import X_ELITE, on_chip, on_cpu, sqnr_db, with_rewrites
from tests.support.stage_runs import Component, part

ROWS, COLUMNS = 3000, 128
OLD = HtpTarget(30, 68, 4)
MODEL = """
net (int64[1, 6] ids, float[1, 6, 128] x) => (float[1, 6, 128] y)
{
  g = Gather (table, ids)
  y = Add (g, x)
}
"""


def table(rows: int = ROWS) -> NDArray[np.float32]:
    numbers = np.random.default_rng(3)
    sizes = numbers.uniform(0.2, 2, (rows, 1))
    return np.asarray(numbers.normal(size=(rows, COLUMNS)) * sizes, np.float32)


def packed(array: NDArray[np.float32], block: int = 32) -> PackedTable:
    return pack(Pieces.of_array(array), Range(float(array.min()), float(array.max())), block)


def feeds(count: int = 4) -> list[dict[str, NDArray[Any]]]:
    made = np.random.default_rng(8)
    return [
        {"ids": made.integers(0, ROWS, (1, 6)), "x": made.normal(size=(1, 6, COLUMNS)).astype(np.float32)}
        for _ in range(count)
    ]


def scheme(weights: str = "int4", block: int | None = 32, ops: tuple[str, ...] = ("Gather",)) -> Scheme:
    return Scheme("uint16", "uint8", per_channel=True, overrides=(Rule(ops=ops, weights=weights, block=block),))


def net(root: Path, source: str = MODEL, array: NDArray[np.float32] | None = None) -> Component:
    return with_rewrites(root, graph(source, {"table": table() if array is None else array}))


@pytest.mark.parametrize(("block", "least_db"), [(16, 21.9), (32, 20.7), (64, 19.9)])
def test_a_smaller_block_loses_less_and_takes_more(block: int, least_db: float) -> None:
    array = table()

    made = packed(array, block)

    assert float(10 * np.log10((array**2).sum() / ((made.real() - array) ** 2).sum())) > least_db
    assert made.pairs.nbytes + made.scales.nbytes == packed_bytes(array.shape, block) < array.size * 0.6


def digest() -> str:
    made = packed(table(), 32)
    return hashlib.sha256(made.pairs.tobytes() + made.scales.tobytes() + np.float64(made.step).tobytes()).hexdigest()


def test_equal_tables_are_equal_bytes_whatever_the_processor_has() -> None:
    """numpy chooses its loops by the processor: here once more with none but those that every x86-64 has."""
    features = "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
    env = {**os.environ, "NPY_DISABLE_CPU_FEATURES": features, "OPENBLAS_CORETYPE": "Nehalem"}
    command = "from tests.graph.quantization.test_packed_tables import digest; print(digest())"
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", command], env=env, capture_output=True, check=True, text=True
    )
    assert told.stdout.strip() == digest()


def test_all_pairs_of_integers_stand_for_themselves() -> None:
    pairs = np.arange(256, dtype=np.uint8)[:, None]
    made = PackedTable(pairs, np.full((256, 1, 1), 1, np.uint8), 1.0)
    assert made.real().tolist() == [[upper, lower] for upper in range(-8, 8) for lower in range(-8, 8)]


def test_a_table_of_zeros_stays_zero() -> None:
    assert not packed(np.zeros((4, 32), np.float32)).real().any()


def test_the_qdq_model_looks_up_what_the_table_stands_for(tmp_path: Path) -> None:
    component = net(tmp_path)
    made = part(component.quantize_all(component.calibrate(feeds()), scheme()), "all")

    found = on_cpu(made, feeds())

    truth = [{"y": packed(table()).real()[feed["ids"]] + feed["x"]} for feed in feeds()]
    assert sqnr_db(truth, found, "y") > 60
    model = load_graph(made.folder / "model.onnx")
    stored = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    assert stored["table_quantized"] == (ROWS, COLUMNS // 2)
    assert "table" not in stored


def test_without_blocks_a_table_has_8_bits_as_before(tmp_path: Path) -> None:
    component = net(tmp_path)
    made = part(component.quantize_all(component.calibrate(feeds()), scheme(block=None)), "all")
    stored = {tensor.name: tuple(tensor.dims) for tensor in load_graph(made.folder / "model.onnx").graph.initializer}
    assert stored["table_quantized"] == (ROWS, COLUMNS)


@pytest.mark.parametrize(("weights", "block"), [("int8", 32), ("int4", 48)])
def test_what_no_table_can_have_is_refused(weights: str, block: int, tmp_path: Path) -> None:
    component = net(tmp_path)
    with pytest.raises(QuantizationError, match=f"in blocks of {block} where none can have them"):
        component.quantize_all(component.calibrate(feeds()), scheme(weights, block))


@pytest.mark.slow
@pytest.mark.parametrize("target", [X_ELITE, OLD], ids=["v73", "v68"])
def test_the_chip_looks_up_the_same_from_half_the_bytes(target: HtpTarget, tmp_path: Path) -> None:
    component = net(tmp_path / "model")
    made = part(component.quantize_all(component.calibrate(feeds()), scheme()), "all")

    chip = on_chip(made, feeds(), tmp_path / "chip", target)

    assert chip.context.partitions == 1
    assert not chip.cpu_ops
    assert sqnr_db(on_cpu(made, feeds()), chip.outputs, "y") > 60
    assert sum(path.stat().st_size for path in (tmp_path / "chip").glob("*.bin")) < ROWS * COLUMNS * 0.75
