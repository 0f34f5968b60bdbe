"""Looking through findings of the doctor."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.upkeep.doctor.finding import Finding


def levels(findings: Iterable[Finding]) -> dict[str, str]:
    """The level of each check; of several with one name, the worst."""
    order = ("ok", "not checked", "warning", "error")
    found: dict[str, str] = {}
    for each in findings:
        found[each.check] = max(found.get(each.check, "ok"), each.level, key=order.index)
    return found


def the(findings: Iterable[Finding], check: str) -> Finding:
    """The one finding of a check that is not ok."""
    (found,) = [each for each in findings if each.check == check and each.level != "ok"]
    assert found.remedy
    assert (found.exit_code != 0) == (found.level == "error")
    return found
