"""How the tests themselves are laid out."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.project import ROOT


def imported(source: str) -> Iterator[str]:
    """The modules that a source text imports, each name of a `from` as a module, too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def of_tests(source: str) -> list[str]:
    """What a source text imports out of modules that hold tests or fixtures."""
    return [
        name
        for name in imported(source)
        if any(part.startswith("test_") or part == "conftest" for part in name.lstrip(".").split(".")[:-1])
        or name.rpartition(".")[2].startswith("test_")
    ]


def test_no_module_imports_one_that_holds_tests() -> None:
    """What tests share lies in tests/support: a file of tests can then be read, run, moved and deleted alone."""
    paths = [path for folder in ("tests", "pipeline") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {path.relative_to(ROOT).as_posix(): of_tests(path.read_text("utf-8")) for path in paths}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from tests.report.test_compare import record",
        "from tests.report import test_compare",
        "from .test_compare import record",
        "from . import test_compare",
        "import tests.report.test_compare",
        "from tests.conftest import store",
        "def f():\n    from tests.conftest import store",
    ],
)
def test_such_an_import_is_seen(source: str) -> None:
    assert of_tests(source) != []


def test_every_folder_of_tests_is_a_package() -> None:
    """Two files of one name in two rooms would otherwise hide one another."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if not Path(folder, "__init__.py").is_file()] == []


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    """Pytest looks into no folder of some names, `build` among them unless told otherwise, and does not say so."""
    passed_over: list[str] = pytestconfig.getini("norecursedirs")
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    found = {part for folder in folders for part in folder.parts for name in passed_over if fnmatch.fnmatch(part, name)}
    assert found == set()


def test_each_file_that_ci_takes_slow_tests_from_is_there_and_has_some() -> None:
    """They are chosen by their place: one that was moved would be left out, and nobody told."""
    lines = (ROOT / ".ci" / "slow").read_text("utf-8").splitlines()
    for path in (ROOT / line for line in lines if not line.startswith("#")):
        files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        assert any("pytest.mark.slow" in file.read_text("utf-8") for file in files), path


BY_STAGE = {"Params", "Facts", "Part", "PartFacts"}
"""Classes that every contract may have: they are named with their module."""


def test_a_class_has_a_name_of_its_own() -> None:
    """Who reads a name in a message, or looks for it, finds one class. The runtime is a program of its own."""
    where: dict[str, list[str]] = {}
    for path in sorted((ROOT / "pipeline").rglob("*.py")):
        program = "qnn_release" if path.is_relative_to(ROOT / "pipeline" / "qnn_release") else "pipeline"
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in BY_STAGE:
                where.setdefault(f"{program} {node.name}", []).append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}
