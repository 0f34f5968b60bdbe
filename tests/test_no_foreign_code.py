"""Nothing that is read is ever run: what the code of the product may not call, found in its syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.project import ROOT

SOURCES = sorted([ROOT / "dodo.py", *(ROOT / "pipeline").rglob("*.py")])

MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve", "joblib", "code", "codeop", "pty", "imp"}
"""Modules that turn bytes into code or objects."""

RUNS_CODE = {"eval", "exec", "compile", "__import__"}

RUN_HERE = {
    ("pipeline/inputs/samples/user_code.py", "exec"),
    ("pipeline/inputs/samples/user_code.py", "compile"),
    ("pipeline/frozen.py", "exec"),
}
"""The project's own calibration code; and what the standard library does for a dataclass: of its fields' names, an
`__init__`. Nothing else."""

YAML = {"load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all", "UnsafeLoader", "Loader"}

IN_SHELL = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}


def _found(path: Path) -> Iterator[str]:
    """What a file has that it may not have, each with its line."""
    name = path.relative_to(ROOT).as_posix()
    return violations(path.read_text("utf-8"), name)


def violations(source: str, name: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        where = f"{name}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Import(names=names) if {each.name.split(".")[0] for each in names} & MODULES:
                yield f"{where} imports {', '.join(each.name for each in names)}"
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES:
                yield f"{where} imports from {module}"
            case ast.Attribute(value=ast.Name(id="yaml"), attr=attribute) if attribute in YAML:
                yield f"{where} uses yaml.{attribute}"
            case ast.Call():
                yield from (f"{where} {what}" for what in _called(node, name))


def _called(call: ast.Call, name: str) -> Iterator[str]:
    function = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if function.removeprefix("builtins.") in RUNS_CODE and (name, function) not in RUN_HERE:
        yield f"calls {function}"
    if function in IN_SHELL:
        yield f"calls {function}"
    if given.get("shell", "False") != "False":
        yield "runs a shell"
    if given.get("allow_pickle", "False") != "False":
        yield "allows pickle"
    if function in ("np.load", "numpy.load") and "allow_pickle" not in given:
        yield "loads arrays without allow_pickle=False"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_runs_nothing_that_it_reads(path: Path) -> None:
    assert [*_found(path)] == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import os, marshal",
        "eval('1')",
        "exec(text)",
        "builtins.exec(text)",
        "__import__('os')",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "yaml.unsafe_load(text)",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
        "os.system('ls')",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.lib.format.read_array(stream, allow_pickle=flag)",
    ],
)
def test_what_is_looked_for_is_found(source: str) -> None:
    assert [*violations(source, "pipeline/some.py")]


def test_calibration_code_is_the_one_exception() -> None:
    assert [*violations("exec(compile(data, name, 'exec'), space)", "pipeline/inputs/samples/user_code.py")] == []
    assert len([*violations("exec(compile(data, name, 'exec'), space)", "pipeline/inputs/samples/other.py")]) == 2
