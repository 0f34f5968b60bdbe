from __future__ import annotations

import pytest

from pipeline.sizes import human_bytes, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("12G", 12 * 10**9),
        (" 800 MB ", 800 * 10**6),
        ("1.5g", 15 * 10**8),
        ("64KiB", 64 << 10),
        ("2 Gi", 2 << 30),
        ("1T", 10**12),
        ("1000", 1000),
        ("7B", 7),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1e9", "12X", "1,5G", "1iB", "12 G B"])
def test_what_is_no_size_is_none(text: str) -> None:
    assert parse_size(text) is None


@pytest.mark.parametrize("size", [0, 999, 1500, 36_200_000, 2 * 10**9])
def test_what_is_written_is_read_back(size: int) -> None:
    assert parse_size(human_bytes(size)) == size
