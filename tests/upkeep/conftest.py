"""A project whose store is damaged and cleaned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny_project
from tests.support.made_once import made_once
from tests.support.project import Project


@pytest.fixture(scope="session")
def built() -> Project:
    """A small project with a store of its own, built. For tests to copy."""

    def make(folder: Path) -> None:
        tiny_project.create(folder / "project", folder / "store", targets=["sm8650"]).doit("build")

    folder = made_once("upkeep", make)
    return Project(folder / "project", folder / "store")
