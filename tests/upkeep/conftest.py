"""A project whose store is damaged and cleaned."""

from __future__ import annotations

import pytest

from tests.support import tiny_project
from tests.support.project import Project


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A small project with a store of its own, built. For tests to copy."""
    folder = tmp_path_factory.mktemp("upkeep")
    project = tiny_project.create(folder / "project", folder / "store", targets=["sm8650"])
    project.doit("build")
    return project
