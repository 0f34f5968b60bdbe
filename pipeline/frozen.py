"""Frozen dataclasses that cost little to declare: for modules that every command imports.

`dataclasses.dataclass(frozen=True)` compiles six functions for each class, 3.8 million instructions on Python 3.11. A
command imports 160 such classes and makes values of a third: that took longer than `import doit`. Here all classes
share the functions, and `__init__` alone is compiled, with the first value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

_T = TypeVar("_T")
_LEFT_OUT = object()

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: Literal[True], kw_only: bool = False) -> Callable[[type[_T]], type[_T]]:
        """As the standard library's; no class may derive from both kinds."""

        def declare(cls: type[_T]) -> type[_T]:
            dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
            cls.__init__ = _first_init(cls)
            for shared in (__repr__, __eq__, __hash__, __setattr__, __delattr__):
                if shared.__name__ not in vars(cls):
                    setattr(cls, shared.__name__, shared)
            return cls

        return declare


def _first_init(cls: Any) -> Callable[..., None]:
    def __init__(self: object, *args: object, **given: object) -> None:
        cls.__init__ = _init(cls)  # two threads that are first make the same
        cls.__init__(self, *args, **given)

    return __init__


def _init(cls: Any) -> Callable[..., None]:
    known: dict[str, Any] = {"set_": object.__setattr__, "LEFT_OUT": _LEFT_OUT}
    taken: dict[bool, list[str]] = {False: [], True: []}
    lines = []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        if field.default_factory is not dataclasses.MISSING:
            known[f"make_{name}"] = field.default_factory
            value = f"make_{name}() if {name} is LEFT_OUT else {name}" if field.init else f"make_{name}()"
        default = _LEFT_OUT if field.default_factory is not dataclasses.MISSING else field.default
        if default is not dataclasses.MISSING:
            known[f"default_{name}"] = default
        if field.init:
            taken[bool(field.kw_only)].append(name if default is dataclasses.MISSING else f"{name}=default_{name}")
        lines.append(f" set_(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    by_name = ["*", *taken[True]] if taken[True] else []
    exec(f"def __init__({', '.join(['self', *taken[False], *by_name])}):\n" + "\n".join(lines or [" pass"]), known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


@cache
def _compared(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.compare)


@cache
def _hashed(cls: Any) -> tuple[str, ...]:
    return tuple(
        field.name for field in dataclasses.fields(cls) if (field.compare if field.hash is None else field.hash)
    )


def _key(value: object) -> tuple[object, ...]:
    cls: Any = type(value)
    return tuple([getattr(value, name) for name in _compared(cls)])


# ruff: noqa: N807 - these become methods
def __repr__(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def __eq__(self: object, other: object) -> bool:
    return _key(self) == _key(other) if type(other) is type(self) else NotImplemented


def __hash__(self: object) -> int:
    cls: Any = type(self)
    return hash(tuple([getattr(self, name) for name in _hashed(cls)]))


def __setattr__(self: object, name: str, value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(self: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
