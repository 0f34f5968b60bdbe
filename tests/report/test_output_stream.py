"""Builds and other commands whose output nobody takes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import tiny_project
from tests.support.project import Project

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="runs a shell")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("lasting")
    return tiny_project.create(folder / "project", folder / "store")


def run(project: Project, command: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in the project; `$DOIT` is doit. Its status is that of doit."""
    environ = os.environ | {"PIPELINE_STORE": str(project.store), "DOIT": f"{sys.executable} -m doit"}
    shell = ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"]
    return subprocess.run(shell, cwd=project.root, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("where", ["| head -c 1 >/dev/null", ">/dev/full", ">&-", "2>&1 | true"])
def test_a_build_goes_on(project: Project, where: str) -> None:
    ran = run(project, f"$DOIT ingest:* {where}")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Nothing to do" in project.doit("ingest:*").text


@pytest.mark.parametrize("command", ["list --all", "fsck", "gc --dry-run", "doctor", "clean build:tiny"])
def test_no_command_trips_over_a_reader_that_left(project: Project, command: str) -> None:
    ran = run(project, f"$DOIT {command} | true")
    assert ran.stderr == ""
    assert ran.returncode in (0, 141), "141: ended by SIGPIPE, as commands are"
