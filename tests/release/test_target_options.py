"""Options of a target, from the config to what is compiled and to what an application asks of the NPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.qnn_release import Release, provider
from tests.support import tiny_project
from tests.support.tiny_models import sample

pytestmark = pytest.mark.slow

OPTIONS = "{soc: sm8650, optimization: 1, priority: high, performance_mode: burst, rpc_latency_us: 100}"


def test_they_reach_the_compiler_the_release_and_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=[8], targets=[OPTIONS])
    config = project.root / tiny_project.CONFIG
    config.write_text(config.read_text("utf-8") + 'release: {version: "1.0"}\n', "utf-8")
    project.doit("package:tiny")

    given: list[dict[str, str]] = []
    made = provider.qnn_session

    def seen(model: Path, device: Any, options: dict[str, str], *rest: Any) -> Any:
        given.append(options)
        return made(model, device, options, *rest)

    monkeypatch.setattr(provider, "qnn_session", seen)
    with Release.open(project.root / "artifacts/releases/tiny-1.0.qnn.zip", target="sm8650") as release:
        assert release.run("net", {"x": sample(5)})["y"].shape == (1, 5, 32)
    asked = {"qnn_context_priority": "high", "htp_performance_mode": "burst", "rpc_control_latency": "100"}
    assert given[0].items() >= asked.items()

    project.edit(tiny_project.CONFIG, "performance_mode: burst, ", "")
    assert not project.doit("build").built, "it changes no context"
    project.edit(tiny_project.CONFIG, "optimization: 1", "optimization: 2")
    assert project.doit("build").stages()["context"] == 1
