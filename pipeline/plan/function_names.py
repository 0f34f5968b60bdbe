"""Which functions a Python file can have, as far as its text tells: nothing of it is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pipeline.plan.counted_code import PARSING

_MAKES_NAMES = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr", "__getattr__"})
"""Names by which code gives a module names that its text does not show."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class NotPythonError(Exception):
    """Python does not take the text; `line` is where it gave up."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.line = line


def functions_of(code: bytes) -> dict[str, bool] | None:
    """The names that a module has once it is loaded, and whether it defines a function of each; None where only
    running it could tell.

    Raises NotPythonError.
    """
    try:
        with PARSING:
            tree = ast.parse(code)
    except SyntaxError as error:
        raise NotPythonError(error.msg, error.lineno or 1) from None
    except ValueError as error:  # a NUL byte, before Python 3.12
        raise NotPythonError(str(error), 1) from None
    except (RecursionError, MemoryError):
        return None
    found: dict[str, bool] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _MAKES_NAMES:
            return None
        if isinstance(node, ast.FunctionDef) and node.name in _MAKES_NAMES:
            return None
        if isinstance(node, ast.Global):
            found.update(dict.fromkeys(node.names, False))
    for node in _at_the_top(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found[name] = True
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found[name] = False
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                given = [each.asname or each.name.partition(".")[0] for each in names]
                if "*" in given:
                    return None
                found.update(dict.fromkeys(given, False))
    return found


def _at_the_top(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that are in no function and no class, those themselves included."""
    pending: list[ast.AST] = [tree]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            yield node
            if not isinstance(node, _SCOPES):
                pending.append(node)
