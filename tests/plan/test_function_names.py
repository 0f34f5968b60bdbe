"""Which functions a Python file has, told from its text: what can't be told is never held against it."""

from __future__ import annotations

import pytest

from pipeline.plan.named_files import NotPythonError, functions_of


@pytest.mark.parametrize(
    "code",
    [
        "def run(path): ...",
        "async def run(path): ...",
        "class run: ...",
        "run = lambda path: []",
        "a, (run, b) = make()",
        "run: object = make()",
        "from .other import run",
        "from .other import make as run",
        "import run",
        "import run.below",
        "try:\n    from fast import run\nexcept ImportError:\n    def run(path): ...",
        "if True:\n    for run in makers: ...",
        "with open('x') as run: ...",
        "def make():\n    global run\n    run = 1\nmake()",
        "print(run := 1)",
    ],
)
def test_a_name_that_a_module_gets(code: str) -> None:
    names = functions_of(code.encode())
    assert names is not None
    assert "run" in names


@pytest.mark.parametrize(
    "code",
    [
        "from .other import *",
        "globals()['run'] = len",
        "exec('def run(): ...')",
        "import sys\nsetattr(sys.modules[__name__], 'run', len)",
        "def __getattr__(name): ...",
    ],
)
def test_only_running_it_could_tell(code: str) -> None:
    assert functions_of(code.encode()) is None


def test_what_is_inside_is_not_of_the_module() -> None:
    names = functions_of(b"def make():\n    def run(): ...\n    other = 1\nclass Maker:\n    def run(self): ...\n")
    assert names == {"make": True, "Maker": False}


@pytest.mark.parametrize(("code", "line"), [("a = 1\ndef run(:\n", 2), ("a = 1\0\n", 1)])
def test_what_python_does_not_take(code: str, line: int) -> None:
    with pytest.raises(NotPythonError) as caught:
        functions_of(code.encode())
    assert caught.value.line == line
