"""Reads the docstrings of a dataclass and of its fields from its source: Python keeps no docstrings of attributes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any


def attribute_docs(cls: type[Any]) -> dict[str, str]:
    """The docstring under each field of `cls`, on one line.

    Raises:
        ValueError: a field has none: every field must be described.
    """
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    docs[statement.target.id] = " ".join(text.split())
                case _:
                    raise ValueError(f"{cls.__name__}.{statement.target.id} has no docstring")
    return docs


def summary(cls: type[Any]) -> str:
    """The docstring of `cls`, on one line."""
    return " ".join((cls.__doc__ or "").split())
