"""The end task of one case, in a process of its own: `python -m tests.real_models.end_task NAME RELEASE OUT.json`.

QNN prints to standard output and may end the process, so the verdict goes to a file.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.real_models.cases import Case, named
from tests.real_models.model import Deployed, Original, Verdict
from tests.real_models.packages import read


def originals(case: Case) -> Original:
    """Every model that the application of the case runs, as it was published."""
    return Original({name: read(case.package, file) for name, file in {**case.files, **case.beside}.items()})


def judge(case: Case, release: Path, target: str, cache: Path) -> Verdict:
    """What the application says on unseen inputs, with the originals and with the contexts."""
    original = originals(case)
    return case.application.judge(original, Deployed(release, target, cache, original))


if __name__ == "__main__":
    name, release, target, out = sys.argv[1:]
    path = Path(out)
    verdict = judge(named(name), Path(release), target, path.parent / "opened")
    path.write_text(json.dumps(asdict(verdict)), "utf-8")
