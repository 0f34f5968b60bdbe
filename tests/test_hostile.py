"""Hostile and broken models, as a user meets them: one clear message, the documented exit code, bounded, contained."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

import pytest

from tests.support import hostile_project
from tests.support.hostile_models import MODELS
from tests.support.hostile_project import Said
from tests.support.hostile_sources import SOURCES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="makes pipes, devices and links"),
]


@pytest.fixture(scope="module")
def of_models(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """All models that are refused, built at once."""
    project = hostile_project.create(tmp_path_factory.mktemp("models"))
    for name, bad in MODELS.items():
        made = bad.make()
        folder = hostile_project.add_model(project, name)
        (folder / "model.onnx").write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return hostile_project.run(project, "--continue", *(_step(bad.stage, name) for name, bad in MODELS.items()))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_refused(of_models: Said, name: str) -> None:
    bad = MODELS[name]
    assert of_models.status == 12, of_models.text
    said = _said(of_models, _step(bad.stage, name), name)
    assert bad.said in said, said
    assert "next: " in said or "why: " in said


@pytest.fixture(scope="module")
def of_sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Said]:
    """All folders that are refused, built at once; by exit code."""
    found = {}
    for status in {bad.status for bad in SOURCES.values()}:
        project = hostile_project.create(tmp_path_factory.mktemp(f"sources{status}"))
        wanted = {name: bad for name, bad in SOURCES.items() if bad.status == status}
        for name, bad in wanted.items():
            bad.make(hostile_project.add_model(project, name, file=bad.file))
        found[status] = hostile_project.run(project, "--continue", *(_step(bad.stage, n) for n, bad in wanted.items()))
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_a_model_folder_is_refused(of_sources: Mapping[int, Said], name: str) -> None:
    bad = SOURCES[name]
    run = of_sources[bad.status]
    assert run.status == bad.status, run.text
    said = _said(run, _step(bad.stage, name), name)
    assert bad.said in said, said


def _said(run: Said, step: str, name: str) -> str:
    """What was said of a model, whose step did not end well; of all, if another had the same message first."""
    assert not re.search(rf"^\[ *\d+/\d+\] (?!FAILED).*{re.escape(step)}$", run.text, re.MULTILINE)
    own = [text for failed, text in run.of_step.items() if failed.split(":")[1].split("/")[0] == name]
    return "\n".join(own or run.of_step.values())


def _step(stage: str, name: str) -> str:
    return {"fetch": f"fetch:{name}", "ingest": f"ingest:{name}/net", "shape": f"shape:{name}/net/8"}[stage]
