"""A release of a tiny language model alone, in a new environment: three engines, one answer, over three windows."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.chat_walk import ENGINES, NEEDS, ChatWalk
from tests.support.language_project import CONFIG, language_project

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="QNN's emulator is for x86_64"),
]


def test_the_release_alone_answers_the_same_by_every_engine(tmp_path: Path) -> None:
    project = language_project(tmp_path)
    config = CONFIG.replace("targets:", "packing: separate\ntargets:")
    project.write("configs/tiny.yaml", config)
    project.doit("package:tiny")
    walk = ChatWalk.begin(project.root / "artifacts" / "releases" / "tiny-1.0.qnn.zip", tmp_path)

    said = {engine: walk.ask(engine, "in", 4) for engine in ENGINES}

    assert said["numpy"]["prompt"] > 2 * 8  # three windows
    assert len(said["numpy"]["tokens"]) == 4
    assert said["genai"]["tokens"] == said["genie"]["tokens"] == said["numpy"]["tokens"]
    assert said["genai"]["runs_on"] == "QNN's emulator of snapdragon-x-elite"
    assert said["numpy"]["foreign"] == []
    assert {*NEEDS} <= {*said["numpy"]["packages"]}
