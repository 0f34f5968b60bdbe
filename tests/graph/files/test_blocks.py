"""The forms of GGUF against what ggml's own loops say, number by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.files.blocks import BLOCK, FORMATS, SEPARATED, BlockFormat

Block = NDArray[np.uint8]


def half(block: Block, at: int) -> float:
    return float(np.frombuffer(block[at : at + 2].tobytes(), "<f2")[0])


def signed(number: int) -> int:
    return number - 256 if number > 127 else number


def by_32(block: Block, at: int, *, fifth: int | None = None) -> Iterator[int]:
    high = int.from_bytes(block[fifth : fifth + 4].tobytes(), "little") if fifth is not None else 0
    for number in range(32):
        byte = int(block[at + number % 16])
        nibble = byte & 15 if number < 16 else byte >> 4
        yield nibble | ((high >> number) & 1) << 4


def scale_and_minimum(block: Block, group: int) -> tuple[int, int]:
    """`get_scale_min_k4` of ggml-quants.c."""
    packed = [int(each) for each in block[4:16]]
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    scale = (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4)
    return scale, (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4)


def of_k(block: Block, *, five: bool) -> list[float]:
    found = []
    for number in range(256):
        group, at = number // 32, number % 32
        byte = int(block[(48 if five else 16) + 32 * (group // 2) + at])
        stored = byte & 15 if group % 2 == 0 else byte >> 4
        if five:
            stored |= ((int(block[16 + at]) >> group) & 1) << 4
        scale, minimum = scale_and_minimum(block, group)
        found.append(half(block, 0) * scale * stored - half(block, 2) * minimum)
    return found


def q6_k(block: Block) -> list[float]:
    found = []
    for number in range(256):
        part, at = divmod(number, 128)
        quarter, column = divmod(at, 32)
        low = int(block[64 * part + 32 * (quarter % 2) + column])
        low = low & 15 if quarter < 2 else low >> 4
        high = (int(block[128 + 32 * part + column]) >> (2 * quarter)) & 3
        scale = signed(int(block[192 + number // 16]))
        found.append(half(block, 208) * scale * ((low | high << 4) - 32))
    return found


REFERENCE: dict[str, Callable[[Block], list[float]]] = {
    "Q4_0": lambda block: [half(block, 0) * (each - 8) for each in by_32(block, 2)],
    "Q4_1": lambda block: [half(block, 0) * each + half(block, 2) for each in by_32(block, 4)],
    "Q5_0": lambda block: [half(block, 0) * (each - 16) for each in by_32(block, 6, fifth=2)],
    "Q5_1": lambda block: [half(block, 0) * each + half(block, 2) for each in by_32(block, 8, fifth=4)],
    "Q8_0": lambda block: [half(block, 0) * signed(int(each)) for each in block[2:34]],
    "Q4_K": lambda block: of_k(block, five=False),
    "Q5_K": lambda block: of_k(block, five=True),
    "Q6_K": q6_k,
    "F16": lambda block: [half(block, 0)],
    "F32": lambda block: [float(np.frombuffer(block.tobytes(), "<f4")[0])],
    "BF16": lambda block: [float(np.frombuffer(b"\0\0" + block.tobytes(), "<f4")[0])],
}
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "F16": [0]}  # fmt: skip


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_blocks_hold_the_numbers_that_ggml_reads(form: BlockFormat) -> None:
    rng = np.random.default_rng(form.nbytes)
    blocks = rng.integers(0, 256, (5, form.nbytes), dtype=np.uint8)
    for at in HALVES.get(form.name, []):
        blocks[:, at : at + 2] = rng.standard_normal((5, 1)).astype("<f2").view(np.uint8)
    if form.name in ("F32", "BF16"):
        blocks[:, -1] = 0x3F  # no NaN

    found = form.dequantize(blocks)

    assert found.dtype == np.float32
    assert found.shape == (5, form.elements)
    expected = [REFERENCE[form.name](block) for block in blocks]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "form", [form for form in FORMATS.values() if form.name in SEPARATED], ids=lambda form: form.name
)
def test_steps_around_middles_are_the_numbers(form: BlockFormat) -> None:
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (5, form.nbytes), dtype=np.uint8)
    for at in (0, 2):
        blocks[:, at : at + 2] = rng.uniform(0.5, 1, (5, 1)).astype("<f2").view(np.uint8)

    steps, middles = (part.dequantize(blocks).reshape(-1, part.elements) for part in SEPARATED[form.name])

    np.testing.assert_allclose(steps + np.repeat(middles, BLOCK, axis=1), form.dequantize(blocks), rtol=1e-5, atol=1e-4)
    for some in steps.reshape(-1, BLOCK):
        unit = np.unique(np.abs(some[some != 0])).min(initial=np.inf)
        sizes = some / unit if np.isfinite(unit) else some
        # A scale times -8 to 7: all are whole numbers of a unit, which is the scale times one of 1 to 8.
        assert min(float(np.abs(sizes * by - np.rint(sizes * by)).max()) for by in range(1, 9)) < 1e-3
