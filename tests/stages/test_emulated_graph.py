"""Which of a language model's graphs the emulator runs: the one that ships, or a small twin of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.model import StageInput, StageRequest
from pipeline.stages import emulate


@pytest.mark.parametrize(
    ("ships", "roles", "emulated"),
    [
        (2.9, ("model", "twin", "alone"), "model"),
        (2.9, ("model", "twin", "context"), "model"),
        (3.1, ("model", "twin", "alone"), "twin"),
        (2.9, ("model", "twin"), "twin"),  # in parts, which are not compiled a second time
        (9.0, ("model", "alone"), "model"),  # as small as a twin, or asked for
    ],
)
def test_a_twin_runs_where_what_ships_takes_more_than_its_compile_and_run(
    ships: float, roles: tuple[str, ...], emulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {Path("model"): ships, Path("twin"): 1.0}
    monkeypatch.setattr(emulate, "load_graph", lambda path: path.parent)
    monkeypatch.setattr(emulate, "run_s", lambda folder: seconds[folder])
    inputs = {role: StageInput(Path(role), {}, {}) for role in roles}

    assert emulate._emulated(StageRequest("emulate:a", {}, inputs, {}, Path())) == emulated
