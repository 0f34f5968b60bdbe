"""Frozen dataclasses that are cheap to declare behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError, asdict, field, fields, replace

import pytest

from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Base:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    more: tuple[int, ...] = field(default_factory=tuple)
    place: str = field(default="", compare=False, repr=False)
    options: dict[str, int] = field(default_factory=dict, hash=False)
    seen: list[int] = field(default_factory=list, init=False, compare=False)


@dataclass(frozen=True)
class Checked:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("negative")


@dataclass(frozen=True)
class Spelled:
    name: str

    def __repr__(self) -> str:
        return "as it says itself"


def test_values_are_made_as_by_the_standard_library() -> None:
    made = Derived("x", (1, 2), more=(1,))
    assert asdict(made) == {"name": "x", "sizes": (1, 2), "more": (1,), "place": "", "options": {}, "seen": []}
    assert [each.name for each in fields(Derived)] == ["name", "sizes", "more", "place", "options", "seen"]
    assert Derived("x").options is not Derived("x").options, "each has its own"
    assert replace(made, name="y") == Derived("y", (1, 2), more=(1,))
    assert copy.copy(made) == made
    match Base("x", (1,)):
        case Base(name, sizes):
            assert (name, sizes) == ("x", (1,))


def test_equality_and_hash_are_by_the_fields_that_count_and_the_class() -> None:
    assert Base("x", (1,)) == Base("x", (1,)) != Base("x", (2,))
    assert hash(Base("x", (1,))) == hash(Base("x", (1,)))
    assert Derived("x", place="a") == Derived("x", place="b")
    assert Derived("x", options={"a": 1}) != Derived("x", options={"a": 2})
    assert hash(Derived("x", options={"a": 1})) == hash(Derived("x", options={"a": 2})), "hash=False"
    assert Base("x") != Derived("x")


def test_nothing_can_be_changed() -> None:
    made = Base("x")
    with pytest.raises(FrozenInstanceError, match="name"):
        made.name = "y"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="name"):
        del made.name


def test_text_shows_the_fields_unless_the_class_has_a_text_of_its_own() -> None:
    assert repr(Derived("x", place="hidden")) == "Derived(name='x', sizes=(), more=(), options={}, seen=[])"
    assert repr(Spelled("x")) == "as it says itself"


def test_what_a_class_checks_is_checked() -> None:
    assert Checked(1).size == 1
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)


def test_wrong_arguments_are_told_by_the_name_of_the_class() -> None:
    with pytest.raises(TypeError, match=r"Base\.__init__\(\) missing 1 required positional argument: 'name'"):
        Base()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Derived\.__init__\(\) got an unexpected keyword argument 'other'"):
        Derived("x", other=1)  # type: ignore[call-arg]


def test_the_first_values_may_be_made_by_several_threads() -> None:
    for _ in range(50):

        @dataclass(frozen=True)
        class Fresh:
            number: int

        start = threading.Barrier(4)
        made: list[Fresh] = []

        def make(
            number: int, start: threading.Barrier = start, kind: type[Fresh] = Fresh, into: list[Fresh] = made
        ) -> None:
            start.wait()
            into.append(kind(number))

        threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(each.number for each in made) == [0, 1, 2, 3]


def test_what_a_command_imports_compiles_few_dataclasses() -> None:
    count = (
        "import dataclasses\n"
        "made, create = [], dataclasses._create_fn\n"
        "dataclasses._create_fn = lambda name, *a, **k: made.append(name) or create(name, *a, **k)\n"
        "import pipeline.tasks\n"
        "print(len(made))"
    )
    if not hasattr(dataclasses, "_create_fn"):
        pytest.skip("this Python compiles the functions of a dataclass in another way")
    answer = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True)
    assert int(answer.stdout) <= 150, "use pipeline.frozen in what every command imports"
