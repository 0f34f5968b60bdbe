from __future__ import annotations

import random

from pipeline.graph.ir.recursion import DEEPEST, Recursive

LENGTH = 20 * DEEPEST


class Counting:
    """How far each value is from the start of a chain where each is made from the one before, twice."""

    def __init__(self) -> None:
        self.calls = 0
        self.known: Recursive[int] = Recursive(self.find)

    def find(self, name: str) -> int:
        self.calls += 1
        number = int(name)
        before = [self.known(str(number - 1)) for _ in range(2)] if number else [-1]
        return before[-1] + 1


def test_a_shallow_question_is_asked_once_for_each_value() -> None:
    counting = Counting()
    assert counting.known(str(DEEPEST - 1)) == DEEPEST - 1
    assert counting.calls == DEEPEST
    assert counting.known(str(DEEPEST - 1)) == DEEPEST - 1
    assert counting.calls == DEEPEST


def test_a_deep_question_has_its_answer_in_time_that_grows_with_the_depth() -> None:
    counting = Counting()
    assert counting.known(str(LENGTH)) == LENGTH
    assert counting.calls <= 3 * LENGTH


def test_answers_do_not_depend_on_the_order_of_the_questions() -> None:
    names = [*range(LENGTH + 1)]
    for order in (names, names[::-1], random.Random(1).sample(names, len(names))):
        counting = Counting()
        assert all(counting.known(str(number)) == number for number in order)


def test_two_questions_may_ask_each_other() -> None:
    def find_even(name: str) -> bool:
        return name == "0" or odd(str(int(name) - 1))

    def find_odd(name: str) -> bool:
        return name != "0" and even(str(int(name) - 1))

    even, odd = Recursive(find_even), Recursive(find_odd)
    assert even(str(LENGTH))
    assert not odd(str(LENGTH))
    assert odd(str(LENGTH - 1))
