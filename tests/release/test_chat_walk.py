"""A release of a tiny language model alone, in a new environment: three engines, one answer, over three windows."""

from __future__ import annotations

import io
import json
import platform
from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.accuracy.figures.next_tokens import Divergence
from pipeline.release.archives.archive import Archive
from pipeline.release.records.record import RECORD, path_of
from tests.chat_walk import ENGINES, NEEDS, ChatWalk
from tests.support.language_project import CONFIG, language_project
from tests.support.project import Project

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="QNN's emulator is for x86_64"),
]


ARCHIVE = "artifacts/releases/tiny-1.0.qnn.zip"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = language_project(tmp_path_factory.mktemp("released"))
    made.write("configs/tiny.yaml", CONFIG.replace("targets:", "packing: separate\ntargets:"))
    made.doit("package:tiny")
    return made


def test_the_release_alone_answers_the_same_by_every_engine(project: Project, tmp_path: Path) -> None:
    walk = ChatWalk.begin(project.root / ARCHIVE, tmp_path)

    said = {engine: walk.ask(engine, "in", 4) for engine in ENGINES}

    assert said["numpy"]["prompt"] > 2 * 8  # three windows
    assert len(said["numpy"]["tokens"]) == 4
    assert said["genai"]["tokens"] == said["genie"]["tokens"] == said["numpy"]["tokens"]
    assert said["genai"]["runs_on"] == "QNN's emulator of snapdragon-x-elite"
    assert said["numpy"]["foreign"] == []
    assert {*NEEDS} <= {*said["numpy"]["packages"]}


def test_a_record_has_runs_in_the_midst_of_conversations(project: Project) -> None:
    project.doit("record", ARCHIVE)

    with Archive(path_of(project.root / ARCHIVE)) as opened:
        raw = json.loads(opened.read(RECORD, 1 << 20))
        runs = [
            {
                kind: {name: np.load(io.BytesIO(opened.read(file, 1 << 20))) for name, file in run[kind].items()}
                for kind in ("inputs", "original", "outputs")
            }
            for run in raw["runs"]
        ]
    assert [run["axes"]["sequence"] for run in raw["runs"]] == [1, 1, 8, 8]
    assert raw["left_out"] == []
    for run in runs:
        assert {array.dtype for name, array in run["inputs"].items() if name.startswith("past_")} == {np.dtype("uint8")}
        divergence = Divergence()
        rows = run["original"]["logits"][0]
        divergence.add(rows, run["outputs"]["logits"][0, : len(rows)], [0] * len(rows))
        kl = divergence.figures().kl
        assert kl is not None
        assert kl < 0.1
    seen = [int((run["inputs"]["attention_mask"][0, 0, 0] == 65535).sum()) for run in runs]
    assert seen == [29, 29, 1, 1]  # an answer begins behind 28 tokens, a window of prefill behind none
    told = project.doit("verify-release", "--replay", str(path_of(project.root / ARCHIVE)), ARCHIVE).text
    assert told.count(": equal") == 4
