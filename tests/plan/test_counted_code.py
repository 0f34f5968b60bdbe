"""What of a file's text counts in a key, and what doesn't."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pipeline.errors import BY_NAME, PipelineError
from pipeline.plan import keys
from pipeline.plan.counted_code import RULES, CountedCode, counted_code
from pipeline.plan.keys import CodeDigests
from pipeline.stage_table import STAGES
from pipeline.store.digests import StatMemo

ROOT = Path(keys.__file__).parents[2]


def digest(text: str, *, own: bool = True) -> str:
    return counted_code(text.encode(), own=own).digest


BEFORE = '''"""A module."""
import os  # why


class C:
    """A class."""

    x: int = 1
    """An attribute."""


def f(a, *, b=2):
    """A function."""
    # a comment
    return f"{a!r:>{b}} and {b:02d}" "more"
'''


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('"""A module."""\n', "", True),
        ('    """A class."""\n', '    """Another text,\n    over two lines."""\n', True),
        ('"""An attribute."""', '"""x"""', True),
        ("# a comment", "# another", True),
        ("import os  # why", "import os", True),
        ("f(a, *, b=2)", "f(\n    a,\n    *,\n    b=2,\n)", True),
        ('" "more"', 'more"', True),
        ("b=2", "b=3", False),
        ("b=2", "b=2.0", False),
        ("b=2", "b=True", False),
        ("b=2", "b='2'", False),
        ("x: int = 1", "x: int = -1", False),
        ("import os", "import sys", False),
        ("!r:>{b}", "!s:>{b}", False),
        ("!r:>{b}", "!r:<{b}", False),
        ("a, *, b=2", "a, b=2", False),
        ("class C:", "class D:", False),
    ],
)
def test_code_counts_and_what_explains_it_does_not(old: str, new: str, same: bool, own: bool) -> None:
    assert old in BEFORE
    assert (digest(BEFORE, own=own) == digest(BEFORE.replace(old, new), own=own)) is same


def test_expressions_that_differ_differ() -> None:
    texts = [
        "a.b", "a[b]", "a(b)", "[a]", "(a,)", "{a}", "{a: b}", "a + b", "a - b", "a and b", "a if b else c", "-a",
        "not a", "a < b", "a <= b", "lambda a: b", "[a for a in b]", "(a for a in b)", "{a for a in b}",
        "a[b:c]", "a[b::c]",
        "f(*a)", "f(**a)", "f(a=b)", "(a := b)", "a = 'a'", "b'a'", "f'{a}'", "1", "1.0", "1j", "...", "None", "True",
        "a = ''",
        "a = '\\ud800'", "{**a}", "[None]", "[]", "x = 1", "x: y = 1", "x += 1", "del x", "pass", "global x", "return",
        "match x:\n case None: pass", "match x:\n case True: pass", "match x:\n case [*_]: pass", "try: a\nfinally: b",
        "try: a\nexcept b: c", "try: a\nexcept* b: c", "with a: b", "with a as c: b", "for a in b: c", "while a: c",
        "async def f(): await a", "def f(): yield a", "def f(): yield from a", "class A(b): c", "class A(x=b): c",
    ]  # fmt: skip
    assert len({digest(text, own=False) for text in texts}) == len(texts)


def test_the_digest_is_the_same_on_every_python() -> None:
    # f-strings and empty fields are where the versions' own dumps differ.
    text = BEFORE + "\n".join(
        [
            "from . import x as y",
            'z = f"{x=}{y!a:{f}.{g}}{{}}" f"" rf"\\d{x:%H%M}" "é"',
            "def g(a, /, b: int = 1, *c, d, **e) -> None: ...",
            "@d",
            "async def h():\n    async for i in j: yield i",
            "match x:\n    case {'a': 1, **r} | P(q=2): pass",
            "try:\n    pass\nexcept* E as e:\n    raise",
        ]
    )
    found = digest(text)
    assert (RULES, found[:16]) == (1, "ba8427d4e6f2d20e"), (
        "what counts has changed: raise RULES, then correct this line"
    )


def test_a_file_that_can_not_be_parsed_counts_with_all_its_bytes() -> None:
    for source in (b"def", b"\0", b"\xff\xfe", b"(" * 10_000):
        assert counted_code(source, own=True) != counted_code(source + b" ", own=True)
        assert not counted_code(source, own=True).imports


def test_an_expression_may_be_as_long_as_the_parser_takes() -> None:
    text = "x = " + " + ".join("a" * 900) + "\n"
    assert digest(text) == digest(text + "# comment\n")


RAISING = """from a.texts import explain, shown
from a.work import work

_HINT = "try again"


def run(x):
    if not x:
        raise ValueError(f"{_why(x)}; {explain(x)}") from None
    assert x > 1, f"x is {x}"
    try:
        return work(x), shown(x)
    except (KeyError, OtherError) as error:
        raise _failed(x, str(error)) from error


def _why(x):
    return "x is nothing" + _more(x)


def _more(x):
    return "at all"


def _failed(x, text) -> ValueError:
    return ValueError(f"{x} failed", text, _HINT)
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("{_why(x)};", "wrong:", True),
        ("explain, shown\n", "shown\n", True),
        ("x is nothing", "nothing there", True),
        ("at all", "at any rate", True),
        ("try again", "do not", True),
        ('f"x is {x}"', "'too small'", True),
        ("_failed(x, str(error))", "_failed(x, repr(error))", True),
        ("{x} failed", "{x} is wrong", True),
        ("not x", "x", False),
        ("x > 1", "x > 2", False),
        ("raise ValueError(", "raise KeyError(", False),
        ("return work(x), shown(x)", "return work(x), _why(x)", False),
        ("(KeyError, OtherError)", "(KeyError, AnotherError)", False),
    ],
)
def test_what_only_an_error_says_does_not_count_in_our_own_modules(old: str, new: str, same: bool) -> None:
    assert old in RAISING
    assert (digest(RAISING) == digest(RAISING.replace(old, new, 1))) is same
    assert digest(RAISING, own=False) != digest(RAISING.replace(old, new, 1), own=False)


def test_what_only_an_error_needs_is_not_imported() -> None:
    used = counted_code(RAISING.encode(), own=True).imports
    assert set(used) == {"a.texts", "a.texts.shown", "a.work", "a.work.work"}
    without = RAISING.replace(", shown(x)", "").replace("{explain(x)}", "{explain(x)} {shown(x)}")
    assert "a.texts" not in counted_code(without.encode(), own=True).imports
    assert "a.texts" in counted_code(without.encode(), own=False).imports


def test_an_import_that_nothing_reads_counts_as_it_may_register_something() -> None:
    assert "a.b" in counted_code(b"import a.b\nfrom a import c\n", own=True).imports


def test_what_is_remembered_is_what_was_found() -> None:
    found = counted_code(b"from .a import b\nx.__doc__\n", own=True)
    assert found.reads_text
    assert CountedCode.from_json(found.to_json()) == found


@pytest.fixture(scope="module")
def counted_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All files that count in the key of some stage."""
    code = CodeDigests(StatMemo(tmp_path_factory.mktemp("memo") / "memo"))
    stages = [ROOT / "pipeline" / "stages" / f"{stage}.py" for stage in STAGES]
    return sorted(set().union(*(code.closure(stage, ROOT) for stage in stages)))


def test_no_module_of_a_stage_reads_its_docstrings(counted_files: list[Path]) -> None:
    assert [path.name for path in counted_files if counted_code(path.read_bytes(), own=True).reads_text] == []


def test_no_module_reads_a_private_name_of_another(counted_files: list[Path]) -> None:
    private = [
        f"{path.name}: {alias.name}"
        for path in counted_files
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert private == []


# Why these handlers may read the error that they caught.
HANDLERS = {
    "answers.py": "hands the error on to the thread that waits, which raises it",
    "arrays.py": "hands the refusal on to the steps that read the samples, which raise it",
    "child.py": "hands the error on to the process that waits, which raises it; looks for the number of a full disk",
    "compile.py": "adds the model to where it was, and raises it again",
    "dlc.py": "has it in the error that it raises",
    "durable.py": "looks for the number of an error of the system",
    "files.py": "decides whether to try again; what comes has the hash that it must have",
    "forked.py": "looks for the exit status, or says why work failed, in words for a reader",
    "genai.py": "hands the refusal on to the process that waits; what was refused does not ship",
    "genie.py": "hands the refusal on to the process that waits; what was refused does not ship",
    "interface.py": "hands the refusal on to the process that waits; what was refused does not ship",
    "judge.py": "its text is in messages; the fact is its class",
    "llama_cpp.py": "says why llama.cpp did not run a file, in words that no later step reads",
    "quiet_thread.py": "hands the error on to the thread that waits, which raises it",
    "reading.py": "says why a file did not run, in words that no later step reads",
    "request.py": "hands the refusal on to the steps that read the samples, which raise it",
    "static_shapes.py": "names the value that decides in the error that it raises",
    "text.py": "looks whether it is a panic",
    "user_code.py": "adds the line to where it was, and raises it again",
}


def test_no_handler_puts_the_text_of_an_error_into_an_output(counted_files: list[Path]) -> None:
    found = {}
    for path in counted_files:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ExceptHandler) and node.name:
                used = [each for line in node.body for each in _outside_raise(line) if each.id == node.name]
                if used:
                    found[path.name] = f"{path}:{used[0].lineno}"
    assert sorted(found) == sorted(HANDLERS), f"say in HANDLERS why it reads the error, or don't: {found}"


def _outside_raise(node: ast.AST) -> list[ast.Name]:
    """The names under a node that are in no `raise`, and in no `print` to the step's log."""
    if isinstance(node, ast.Raise):
        return []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
        return []
    if isinstance(node, ast.Name):
        return [node]
    return [name for child in ast.iter_child_nodes(node) for name in _outside_raise(child)]


def test_which_errors_a_handler_catches_is_clear_from_their_names() -> None:
    assert all(cls.__bases__ == (PipelineError,) for cls in BY_NAME.values() if cls is not PipelineError)
