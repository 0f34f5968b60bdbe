"""Which samples of a bucket are emulated, and whether the gates then see a fault: judged of outputs that are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.build import gates
from pipeline.config.file import Verification
from pipeline.config.thresholds import Thresholds
from pipeline.contracts import emulate
from pipeline.graph.accuracy.emulation.emulation_budget import FIRST_SHARE, is_doubtful, most_in_doubt, shares
from pipeline.graph.accuracy.figures.measuring import measure
from pipeline.model import Manifest
from tests.injected.ladders import Ladder, Outputs

Order = Literal["verify", "error", "given"]
"""As `verify` found it; by the error on the CPU alone; as the samples come."""
_BEFORE_MOST = 16
_SECONDS = float(Verification.emulator_seconds)


@dataclass(frozen=True)
class Policy:
    """So many CPU seconds for a component and target; or, `apart`, for each context.

    A bucket in doubt has what it has by default, whatever the `seconds`; without `doubts` none is.
    """

    name: str
    seconds: float
    order: Order = "verify"
    apart: bool = False
    doubts: bool = True

    def count(self, ladder: Ladder, bucket: str) -> int:
        """The bucket's share of the samples that a fault was run on."""
        return min(self._count(ladder, bucket), len(ladder.order[bucket]))

    def sees(self, ladder: Ladder, bucket: str, ran: Mapping[int, Outputs]) -> bool:
        """Whether the gates find something in what the samples gave."""
        order = [place for place in self._order(ladder, bucket) if place in ran]
        places = order[: self.count(ladder, bucket)]
        if self.doubts and not self.apart:
            rung = _facts(ladder, bucket, ran, places).rungs["compile"]
            if is_doubtful(rung, ladder.facts[bucket].rungs["quantization"], len(places), ladder.facts[bucket].samples):
                places = order[: max(len(places), most_in_doubt(ladder.bases[bucket], _SECONDS))]
        return is_seen(ladder, bucket, ran, places)

    def _count(self, ladder: Ladder, bucket: str) -> int:
        if not self.apart:
            return shares(ladder.bases, self.seconds / FIRST_SHARE)[bucket]
        fit = int(self.seconds / ladder.bases[bucket].sample_s)
        return max(min(fit, _BEFORE_MOST), fit - 1)

    def _order(self, ladder: Ladder, bucket: str) -> Sequence[int]:
        order = ladder.facts[bucket].order
        return {"verify": order, "error": _by_error(ladder, bucket), "given": sorted(order)}[self.order]


DEFAULT = Policy("default", FIRST_SHARE * _SECONDS)
POLICIES = (
    Policy("30 s apart", 30.0, apart=True),
    Policy("30 s", 30.0),
    Policy("15 s", 15.0),
    Policy("8 s", 8.0),
    Policy("8 s, by error", 8.0, "error"),
    Policy("8 s, as they come", 8.0, "given"),
    Policy("30 s, no doubts", 30.0, doubts=False),
    Policy("15 s, no doubts", 15.0, doubts=False),
    Policy("8 s, no doubts", 8.0, doubts=False),
)
"""What is compared with what a build does."""


def is_seen(ladder: Ladder, bucket: str, ran: Mapping[int, Outputs], places: Collection[int]) -> bool:
    """Whether the gates find something in these samples."""
    manifest = Manifest("emulate", "", {}, _facts(ladder, bucket, ran, places).to_json())
    return gates.check("net/net", manifest, Thresholds()) is not None


def _facts(ladder: Ladder, bucket: str, ran: Mapping[int, Outputs], places: Collection[int]) -> emulate.Facts:
    facts, known = ladder.facts[bucket], ladder.references[bucket]
    chosen = sorted(places)
    names = [f"sample {place}" for place in chosen]
    truth, above = [known[place].truth for place in chosen], [known[place].above for place in chosen]
    made = [ran[place] for place in chosen]
    return emulate.Facts(
        samples=len(chosen),
        of=facts.samples,
        rungs={"compile": measure(facts.subjects, names, above, made)},
        outputs=measure(facts.subjects, names, truth, made, spans=facts.spans),
        score=None,
        subjects=facts.subjects,
    )


def _by_error(ladder: Ladder, bucket: str) -> list[int]:
    """The places, those first that are worst on the CPU."""
    facts, known = ladder.facts[bucket], ladder.references[bucket]

    def error_db(place: int) -> float:
        figures = measure(facts.subjects, [""], [known[place].truth], [known[place].above]).values()
        return min(-1000.0 if each.sqnr_db is None else each.sqnr_db for each in figures)

    return sorted(facts.order, key=error_db)
