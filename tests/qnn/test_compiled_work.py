"""Targets whose contexts compute the same: known by a digest, emulated once, and equal bit for bit where both are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.target import HtpTarget
from pipeline.graph.files.model_file import MODEL
from pipeline.qnn import catalog
from pipeline.qnn.compiling.compile import compile_context
from pipeline.qnn.format.compiled_work import work_digest
from pipeline.qnn.format.context_binary import read_binary
from pipeline.qnn.running.emulate import run_context
from tests.support.fresh import fresh
from tests.support.graphs import attention, sentence
from tests.support.stage_runs import Component

pytestmark = pytest.mark.slow

SOCS = ("snapdragon-x-elite", "sm8550", "sm8650", "ssg2115p", "sxr1230p")


@dataclass(frozen=True)
class Compiled:
    """A context for one SoC, and what it makes of some samples on the emulator."""

    folder: Path
    facts: CompiledModel
    outputs: list[NDArray[Any]]

    @property
    def binary(self) -> Path:
        """Its one binary."""
        (name,) = self.facts.binaries
        return self.folder / name


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    root = tmp_path_factory.mktemp("work")
    component = Component(root / "component", attention(), {"16": {"sequence": 16}})
    calls = [sentence(16, seed) for seed in range(4)]
    model = component.quantize("16", component.calibrate(calls)).folder / MODEL
    found = {}
    for name in SOCS:
        soc = catalog.resolve(name)
        target = HtpTarget(soc.soc_model, soc.htp_arch, soc.vtcm_mb)
        folder = root / name
        folder.mkdir()
        facts = fresh(compile_context, model, "net", target, folder)
        (outputs,) = zip(*fresh(run_context, folder, facts.context_model, target, calls), strict=True)
        found[name] = Compiled(folder, facts, list(outputs))
    return found


def test_socs_that_compute_the_same_have_one_digest(compiled: dict[str, Compiled]) -> None:
    work = {name: each.facts.work for name, each in compiled.items()}
    assert None not in work.values()
    assert work["snapdragon-x-elite"] == work["sm8550"]
    assert work["ssg2115p"] == work["sxr1230p"]
    assert len({*work.values()}) == 3, "another architecture and another VTCM are other work"


def test_equal_work_gives_equal_bits(compiled: dict[str, Compiled]) -> None:
    for one in compiled.values():
        for other in compiled.values():
            if one.facts.work == other.facts.work:
                assert all(np.array_equal(a, b) for a, b in zip(one.outputs, other.outputs, strict=True))


def test_other_weights_are_other_work(compiled: dict[str, Compiled], tmp_path: Path) -> None:
    binary = compiled["sm8550"].binary
    data = bytearray(binary.read_bytes())
    place = len(data) * 3 // 4
    data[place] ^= 1
    (tmp_path / "changed.bin").write_bytes(data)
    info = read_binary(binary)
    assert work_digest(binary, info) == compiled["sm8550"].facts.work
    assert work_digest(tmp_path / "changed.bin", info) != compiled["sm8550"].facts.work


def test_of_a_layout_that_is_not_known_there_is_no_digest(compiled: dict[str, Compiled], tmp_path: Path) -> None:
    binary = compiled["sm8550"].binary
    (tmp_path / "other.bin").write_bytes(binary.read_bytes().replace(b"\x33\x00Id", b"\x33\x00Ix"))
    assert work_digest(tmp_path / "other.bin", read_binary(binary)) is None
