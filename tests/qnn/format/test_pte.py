"""ExecuTorch programs are read back as they were written, and no other way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.qnn.format.context_binary import GraphInfo
from pipeline.qnn.format.graph_io import BinaryEncoding, EdgeTensor
from pipeline.qnn.format.pte import ProgramBinary, write_program
from pipeline.qnn.format.pte_reading import check_program, read_program

TARGET = HtpTarget(57, 75, 8)
ENCODED = EdgeTensor("y", 2, 0x0416, (1, 8, 32), BinaryEncoding(0.5, 32768))


def graph(name: str, length: int = 8) -> GraphInfo:
    ids = EdgeTensor("ids", 1, 0x0032, (1, length), None)
    return GraphInfo(name, 8, 3, 0, (ids,), (ENCODED,))


def binary(path: Path, data: bytes, *graphs: GraphInfo) -> ProgramBinary:
    path.write_bytes(data)
    return ProgramBinary(path, graphs)


@pytest.fixture
def two(tmp_path: Path) -> list[ProgramBinary]:
    """A binary with one graph, and one with two."""
    return [
        binary(tmp_path / "a.bin", b"first" * 1000, graph("a")),
        binary(tmp_path / "b.bin", b"second" * 999, graph("b"), graph("c", 16)),
    ]


def test_what_is_read_is_what_was_written(two: list[ProgramBinary], tmp_path: Path) -> None:
    path = tmp_path / "x.pte"
    write_program(path, two, TARGET)
    check_program(path, two)
    methods = {method.name: method for method in read_program(path)}
    assert {name for name, method in methods.items() if method.binary} == {"a", "b", "c"}
    assert methods["c"].inputs == (("int32", (1, 16)),)
    assert methods["c"].outputs == (("uint16", (1, 8, 32)),)
    assert methods["b"].binary == methods["c"].binary, "the graphs of one binary share it"
    assert methods["a.y.scale"].outputs == (("", ()),), "a number is no tensor"
    assert "a.ids.scale" not in methods
    offset, size = methods["a"].binary or (0, 0)
    assert path.read_bytes()[offset : offset + size] == b"first" * 1000
    assert offset % 128 == 0


def test_equal_input_gives_equal_bytes(two: list[ProgramBinary], tmp_path: Path) -> None:
    for name in ("x.pte", "y.pte"):
        write_program(tmp_path / name, two, TARGET)
    assert (tmp_path / "x.pte").read_bytes() == (tmp_path / "y.pte").read_bytes()
    write_program(tmp_path / "y.pte", two, TARGET, "burst")
    assert (tmp_path / "x.pte").read_bytes() != (tmp_path / "y.pte").read_bytes()


def test_it_costs_little(tmp_path: Path) -> None:
    one = [binary(tmp_path / "a.bin", b"x" * 100_000, graph("a"))]
    write_program(tmp_path / "x.pte", one, TARGET)
    assert (tmp_path / "x.pte").stat().st_size < 100_000 + 2_600


def test_a_program_with_something_else_is_refused(two: list[ProgramBinary], tmp_path: Path) -> None:
    path = tmp_path / "x.pte"
    write_program(path, two, TARGET)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"!")
    with pytest.raises(CompileError, match=r"x.pte is no program with what was put into it") as caught:
        check_program(path, two)
    assert "is not b.bin" in caught.value.why
    path.write_bytes(data)
    with pytest.raises(CompileError) as caught:
        check_program(path, two[:1])
    assert "its methods are ['a', 'b', 'c'], the graphs ['a']" in caught.value.why
    other = [two[0], ProgramBinary(two[1].path, (graph("b"), graph("c", 32)))]
    with pytest.raises(CompileError) as caught:
        check_program(path, other)
    assert "c takes or gives" in caught.value.why


def test_what_is_no_program_is_refused_whatever_it_says(two: list[ProgramBinary], tmp_path: Path) -> None:
    path = tmp_path / "x.pte"
    write_program(path, two, TARGET)
    data, chance = path.read_bytes(), random.Random(7)
    for text in (b"", b"no program", data[:60], data[:500]):
        path.write_bytes(text)
        with pytest.raises(CompileError):
            read_program(path)
    for _ in range(300):
        broken = bytearray(data[:3000])
        for _ in range(3):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        path.write_bytes(broken + data[3000:])
        try:
            read_program(path)
        except CompileError:
            continue
