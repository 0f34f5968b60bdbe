"""What the component of the tests' fixtures is fed: buckets of `tests.support.graphs.attention`, and sentences."""

from __future__ import annotations

from tests.support.graphs import sentence

BUCKETS = {"8": {"sequence": 8}, "16": {"sequence": 16}}
CALLS = [sentence(length, seed=length) for length in (3, 5, 8, 11, 14)]
