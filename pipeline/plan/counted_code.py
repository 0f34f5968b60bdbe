"""Takes from a Python file what can change a step's output: its code, without comments, docstrings and texts of errors.

The digest is taken of the syntax tree, written out here node by node, so that the same source has the same digest on
every Python from 3.11 on; `ast.dump` and `tokenize` differ between versions. Not counted are:

* comments, layout, docstrings and other strings that are statements;
* in this package's own modules, also what only an error says: what is raised but for its name, messages of `assert`,
  functions annotated to return an error or never to return, and the imports, private functions and private literals
  that only those use. A step that fails produces nothing, so they can't change what it produces, as long as nobody
  puts the text of a caught error into an output; a test looks at every handler.
"""

from __future__ import annotations

import ast
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache

from pipeline.frozen import dataclass
from pipeline.model import Json

RULES = 1
"""The version of the rules. Raise it when they change: digests are remembered under this number."""

_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
"""Where statements have statements."""
_READERS = (b"__doc__", b"getdoc", b"getsource", b"getcomments")
"""Names by which code reads the text of code."""
_IRRELEVANT = frozenset({"ctx", "kind", "lineno", "type_comment", "type_ignores"})
_NEVER = ("Error", "NoReturn", "Never")
PARSING = threading.Lock()
"""One thread at a time: before 3.11.8, Python loses count of its recursion when two do (python/cpython#106905)."""


@dataclass(frozen=True)
class CountedCode:
    """What counts of one file: the digest of its code, and the names of the modules that it imports.

    `from a import b` imports `a` and `a.b`, `from .a import b` imports `.a` and `.a.b`, `from a import *` imports `a`
    and `a.*`. `reads_text`: it may read docstrings, so that comments and docstrings count wherever it is used.
    """

    digest: str
    imports: Sequence[str]
    reads_text: bool

    def to_json(self) -> dict[str, Json]:
        """As JSON, to be remembered."""
        return {"digest": self.digest, "imports": [*self.imports], "reads_text": self.reads_text}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> CountedCode:
        """What :meth:`to_json` returned."""
        imports = value["imports"]
        assert isinstance(imports, list)
        return cls(str(value["digest"]), [str(name) for name in imports], bool(value["reads_text"]))


def counted_code(source: bytes, *, own: bool) -> CountedCode:
    """What counts of a file; `own` says that it is a module of this package, where texts of errors don't count.

    A file that can't be parsed counts with all its bytes and imports nothing; whoever runs it reports it.
    """
    try:
        with PARSING:
            tree = ast.parse(source)
        if own:
            _without_errors(tree)
        written = "".join(_written(tree)).encode()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return CountedCode(hashlib.sha256(source).hexdigest(), (), False)
    digest = hashlib.sha256(written).hexdigest()
    return CountedCode(digest, sorted({*_imports(tree)}), any(name in source for name in _READERS))


def _written(tree: ast.Module) -> Iterator[str]:
    """The tree as text, without recursion: expressions may be nested as deep as the parser goes."""
    pending: list[object] = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            yield "["
            pending.append("]")
            pending += [each for each in reversed(item) if not _is_comment(each)]
        elif isinstance(item, ast.Name):
            yield f"<{item.id}>"
        elif isinstance(item, ast.Constant | ast.MatchSingleton):
            value = item.value
            yield f"<{type(value).__name__} {hex(value) if type(value) is int else ascii(value)}>"
        elif isinstance(item, ast.AST):
            yield f"({type(item).__name__}"
            pending.append(")")
            for name in reversed(_relevant(item._fields)):
                value = getattr(item, name, None)
                if isinstance(value, str):
                    pending.append(f" {name}:{value}")
                elif value or value == 0:
                    pending += (_joined(value) if isinstance(item, ast.JoinedStr) else value, f" {name}=")
        else:
            yield f"<{item!r}>"


@cache
def _relevant(fields: tuple[str, ...]) -> Sequence[str]:
    return tuple(name for name in fields if name not in _IRRELEVANT)


def _is_comment(item: object) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _joined(values: Sequence[ast.expr]) -> list[ast.expr]:
    """Parts of an f-string with its literals joined: Python's versions cut them differently."""
    joined: list[ast.expr] = []
    for value in values:
        if isinstance(value, ast.Constant):
            if value.value == "":
                continue
            if joined and isinstance(last := joined[-1], ast.Constant):
                joined[-1] = ast.Constant(str(last.value) + str(value.value))
                continue
        joined.append(value)
    return joined


def _names(*pending_nodes: object) -> set[str]:
    """All names and attributes in some nodes."""
    found = set()
    pending = [*pending_nodes]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.AST):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            pending += [getattr(node, name, None) for name in _relevant(node._fields)]
    return found


def _imports(tree: ast.Module) -> Iterator[str]:
    for statement in _import_statements(tree):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        else:
            module = "." * statement.level + (statement.module or "")
            yield module
            yield from (f"{module}{'.' if statement.module else ''}{alias.name}" for alias in statement.names)


def _import_statements(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports are statements: there is no need to look into expressions, where most nodes are."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        for block in _BLOCKS:
            pending += getattr(node, block, ())


def _without_errors(tree: ast.Module) -> None:
    """Take out of the tree what only errors say."""
    dropped = _drop_texts(tree.body)
    read = _drop_unreached(tree, dropped)
    _drop_imports(tree, dropped - read)


def _drop_texts(block: Sequence[ast.AST]) -> set[str]:
    """Take out texts of errors, at any depth; the names that were in them."""
    dropped: set[str] = set()
    for node in block:
        if isinstance(node, ast.Raise):
            dropped |= _names(node.exc, node.cause)
            node.exc, node.cause = node.exc and ast.Constant(_raised(node.exc)), None
        elif isinstance(node, ast.Assert):
            dropped |= _names(node.msg)
            node.msg = None
        elif isinstance(node, ast.FunctionDef) and not node.decorator_list and _makes_error(node):
            names = _names(node)
            dropped |= names
            node.args = ast.arguments([], [], None, [], [], None, [])
            node.body = [ast.Raise(ast.Constant(name)) for name in sorted(names) if name.endswith(_NEVER)]
            node.returns = None
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            dropped |= _names(node.type)
            node.type = _caught(node.type)
        for name in _BLOCKS:
            if inner := getattr(node, name, None):
                dropped |= _drop_texts(inner)
    return dropped


def _raised(error: ast.expr) -> str:
    called = error.func if isinstance(error, ast.Call) else error
    return called.id if isinstance(called, ast.Name) else type(called).__name__


def _caught(types: ast.expr) -> ast.expr:
    """The classes of a handler; those of errors by name, so that none needs its module."""
    if isinstance(types, ast.Tuple):
        return ast.Tuple([_caught(each) for each in types.elts])
    return ast.Constant(types.id) if isinstance(types, ast.Name) and types.id.endswith(_NEVER) else types


def _makes_error(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Name) and function.returns.id.endswith(_NEVER)


def _drop_unreached(tree: ast.Module, dropped: set[str]) -> set[str]:
    """Take out private functions and literals at the top that no code left reads; the names that are left.

    `dropped` gains the names in what is taken out.
    """
    private: dict[str, ast.stmt] = {}
    read: set[str] = set()
    for node in tree.body:
        if name := _private(node):
            private[name] = node
        else:
            read |= _names(node)
    while reached := [name for name in private if name in read]:
        for name in reached:
            read |= _names(private.pop(name))
    dropped |= _names(*private.values())
    tree.body = [node for node in tree.body if node not in private.values()]
    return read


def _private(node: ast.stmt) -> str:
    """The name that a statement gives to a private function or literal, or nothing."""
    name = ""
    if isinstance(node, ast.FunctionDef) and not node.decorator_list:
        name = node.name
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.JoinedStr):
        target = node.targets[0]
        name = target.id if isinstance(target, ast.Name) and len(node.targets) == 1 else ""
    return name if name.startswith("_") and not name.startswith("__") else ""


def _drop_imports(node: ast.AST, unused: Set[str]) -> None:
    """Take out imports of names that nothing reads any more."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        node.names = [each for each in node.names if (each.asname or each.name.split(".")[0]) not in unused]
    for name in _BLOCKS:
        block = getattr(node, name, [])
        for each in block:
            _drop_imports(each, unused)
        block[:] = [each for each in block if not isinstance(each, ast.Import | ast.ImportFrom) or each.names]
