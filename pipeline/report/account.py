"""The account of one model in a report: rows of its tables, remarks, its artifacts, the names of its steps.

For a model in which nothing changed, a report repeats the last account and looks at none of its steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

from pipeline.config.guesses import guesses, still_guessed
from pipeline.frozen import dataclass
from pipeline.model import Json, Manifest
from pipeline.plan.steps import Step
from pipeline.report.remark_lines import Remarks

if TYPE_CHECKING:
    from pipeline.report.tables import Table

_MEMBERS: Mapping[str, type] = {
    "steps": list, "tables": list, "remarks": dict, "is_verified": bool, "guessed": str, "artifacts": dict,
}  # fmt: skip


@dataclass(frozen=True)
class Account:
    """The account of a model.

    `steps` are those that are up to date; `tables` are :func:`tables_of`; `remarks` are those of
    :mod:`pipeline.report.remarks`; `guessed` is a line on unchecked guesses in its config, "" if there are none;
    `artifacts` are as in run.json.
    """

    steps: Sequence[str] = ()
    tables: Sequence[Table] = ()
    remarks: Remarks = field(default_factory=dict)
    is_verified: bool = True
    guessed: str = ""
    artifacts: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """As :meth:`from_json` reads it."""
        return cast("dict[str, Json]", {name: getattr(self, name) for name in _MEMBERS})

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Account:
        """Raises ValueError for what is no account."""
        if {*content} != {*_MEMBERS} or not all(isinstance(content[name], kind) for name, kind in _MEMBERS.items()):
            raise ValueError("this is no account of a model")
        return cls(**content)


def account_of(
    steps: Sequence[Step],
    current: Collection[str],
    seen: Collection[str],
    manifests: Mapping[str, Manifest],
    results: Mapping[str, tuple[str, float]],
) -> Account:
    """The account of a model with these steps.

    `current` are the steps that are up to date. `seen` are those whose figures are shown, even if they miss a gate.
    `results` has the outcomes of steps that were not current before.
    """
    from pipeline.report.remarks import remarks  # an account that is told again needs none of it
    from pipeline.report.run_artifacts import artifacts

    path = steps[0].config.path
    return Account(
        [step.id for step in steps if step.id in current],
        tables_of(steps, current, seen, manifests, results),
        remarks(steps, current, manifests),
        any(step.stage == "verify" for step in steps),
        still_guessed(path.name, found) if (found := guesses(path)) else "",
        dict(artifacts(steps, seen, manifests)),
    )


def tables_of(
    steps: Sequence[Step],
    current: Collection[str],
    seen: Collection[str],
    manifests: Mapping[str, Manifest],
    results: Mapping[str, tuple[str, float]],
) -> list[Table]:
    """The tables of a model, each with its heading: contexts, forecasts, accuracy, next tokens, outputs, scores."""
    from pipeline.report import report

    return [
        report.contexts([step for step in steps if step.id in current], manifests, results),
        report.forecasts(steps, seen, manifests),
        report.accuracy(steps, seen, manifests),
        report.language(steps, seen, manifests),
        report.heard(steps, seen, manifests),
        report.judged(steps, seen, manifests),
        report.scores(steps, seen, manifests),
    ]
