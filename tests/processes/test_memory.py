from __future__ import annotations

import subprocess
import sys

import pytest

from pipeline.errors import ConfigError
from pipeline.processes.memory import budget_bytes
from tests.support.project import ROOT


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12G", 12 * 10**9), ("800 MB", 800 * 10**6), ("64KiB", 64 << 10), ("1000", 1000)],
)
def test_the_budget_is_what_the_variable_says(text: str, expected: int) -> None:
    assert budget_bytes({"PIPELINE_MEMORY": text}) == expected


@pytest.mark.parametrize("text", ["a lot", "0", "-1G", "12X", "G", "1e9", "", "  "])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an amount of memory") as caught:
        budget_bytes({"PIPELINE_MEMORY": text})
    assert "write a number of bytes, or one with K, M or G" in caught.value.remedy


def test_without_it_a_part_of_what_is_free_is_used() -> None:
    assert 1 << 20 < budget_bytes({}) < 1 << 50


def test_the_peak_counts_a_child_that_ended() -> None:
    use = "import sys; from pipeline.processes.memory import peak_bytes; held = bytearray(int(sys.argv[1]))"
    nested = f"import subprocess, sys; {use}; subprocess.run([sys.executable, '-c', {use!r}, sys.argv[2]]); "
    code = nested + "print(peak_bytes())"

    def peak(own: int, childs: int) -> int:
        command = [sys.executable, "-c", code, str(own), str(childs)]
        return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)

    base = peak(0, 0)
    assert peak(50_000_000, 0) - base >= 45_000_000
    if sys.platform != "win32":
        assert peak(0, 70_000_000) - base == pytest.approx(70_000_000, rel=0.1)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports no children")
def test_children_that_ran_at_once_are_counted_together() -> None:
    use = "held = bytearray(70_000_000)"
    code = (
        "import subprocess, sys; from pipeline.processes.memory import peak_bytes, run_at_once;"
        f" subprocess.run([sys.executable, '-c', {use!r}]); one = peak_bytes(); run_at_once(2);"
        " print(peak_bytes() - one)"
    )
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert int(made) >= 70_000_000
