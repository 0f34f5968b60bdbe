"""Runs a release on samples of a build: `python -m tests.support.arm64_outputs RELEASE MODEL OUT [cpu]`.

Prints what the release warns of, and which device it took; writes every output to OUT. For :mod:`tests.arm64`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.inputs.samples.sample_set import write_npz
from pipeline.qnn_release import Release
from pipeline.store.manifests import read_manifest

SAMPLES = 8
"""Calls of each component; emulated ones take their time."""


def main(release: Path, model: str, out: Path, device: str | None = None) -> None:
    """Run every component on the first samples of its calibration set."""
    manifest = read_manifest(Path(".build", "steps", "samples", model, "calibration.json"))
    assert manifest is not None
    outputs: dict[str, NDArray[Any]] = {}
    with warnings.catch_warnings(record=True) as warned, Release.open(release, device=device) as opened:
        warnings.simplefilter("always")
        for name, entry in sorted(manifest.files.items()):
            component, _, number = name.partition("/")
            if not number or int(number.removesuffix(".npz")) >= SAMPLES:
                continue
            with np.load(Path(".build", "store", "objects", entry.sha256[:2], entry.sha256)) as arrays:
                made = opened.run(component, {each: arrays[each] for each in arrays.files})
            outputs |= {f"{component}/{number}/{each}": array for each, array in made.items()}
        report = opened.report()
    for each in warned:
        print(f"{each.category.__name__}: {each.message}")
    print(report)
    write_npz(out, outputs)


def closeness(one: Path, other: Path) -> str:
    """How close the outputs of two runs are, by output: in words."""
    lines = []
    with np.load(one) as first, np.load(other) as second:
        assert first.files == second.files
        names = sorted({tuple(key.split("/")[::2]) for key in first.files})
        for component, output in names:
            mine = [key for key in first.files if key.startswith(f"{component}/") and key.endswith(f"/{output}")]
            here = np.concatenate([first[key].ravel() for key in mine]).astype(np.float64)
            there = np.concatenate([second[key].ravel() for key in mine]).astype(np.float64)
            error = np.abs(here - there)
            noise = float((error**2).mean())
            sqnr = f"{10 * np.log10((here**2).mean() / noise):.1f} dB" if noise else "no noise at all"
            lines.append(
                f"{component} {output}: {len(mine)} calls, {here.size} values, {(error == 0).mean():.1%} equal,"
                f" at most {error.max():.3g} apart where the largest is {np.abs(here).max():.3g}; {sqnr}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
