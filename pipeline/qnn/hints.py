"""What helps against a node that QNN leaves to the CPU, by operator."""

from __future__ import annotations

from collections.abc import Mapping

_BY_OP: Mapping[str, str] = {}
_OTHERWISE = "export the model without this operator, or with others in its place"


def of(op: str, reason: str) -> str:
    """What to do about a node of type `op` that QNN did not take, for the `reason` it gave."""
    return f"{op}: {_BY_OP.get(op, _OTHERWISE)}"
