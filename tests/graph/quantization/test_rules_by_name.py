"""Rules that are looked up by name are those that a look at each of them finds, in the same order."""

from __future__ import annotations

import random

from onnx import helper

from pipeline.contracts.scheme import Rule
from pipeline.graph.quantization.qdq.assignment import RulesByName

PLACES = ("a", "b", "a*", "?", "*", "a[0]", "b/c", "b/*", "Add", "Mul")
NAMES = ("a", "b", "ab", "a[0]", "b/c", "b/d", "", "Add")


def test_rules_are_found_as_by_looking_at_each_of_them() -> None:
    luck = random.Random(7)
    for _ in range(300):
        rules = []
        for number in range(luck.randint(0, 12)):
            places, kind = tuple(luck.sample(PLACES, luck.randint(1, 3))), luck.randrange(3)
            ops, nodes, tensors = (places if kind == each else () for each in range(3))
            activations = luck.choice((None, f"uint{number}"))
            rules.append(Rule(ops, nodes, tensors, activations))
        found = RulesByName(rules)
        node = helper.make_node(luck.choice(("Add", "Mul", "a")), [], [], luck.choice(NAMES))
        constant = luck.choice(NAMES)

        by_node = [rule for rule in reversed(rules) if rule.matches_node(node.op_type, node.name)]
        about = [rule for rule in reversed(rules) if rule in by_node or rule.matches_tensor(constant)]

        assert [*found.of_tensor(constant)] == [rule for rule in reversed(rules) if rule.matches_tensor(constant)]
        assert [*found.of_node(node)] == by_node
        assert [*found.of_node(node, constant)] == about
