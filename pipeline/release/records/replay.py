"""Runs a record again with the contexts of its release, and compares the outputs with those in the record."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, VerificationError
from pipeline.graph.accuracy.figures.accuracy import Accuracy
from pipeline.release import signing
from pipeline.release.archives.archive import Archive, damaged
from pipeline.release.archives.index import INDEX, SIGNATURE, text_of
from pipeline.release.records.record import RECORD, STATEMENT_FILE, Arrays, context_in, here, run_recorded, statement
from pipeline.release.verify import verify_release

_MOST = 1 << 30


def replay(path: Path, archive: Path, public_key: Path | None = None) -> Iterator[str]:
    """Run the samples of a record again with the contexts of the release, and yield lines that compare the outputs.

    On the device where the record was made, outputs must be equal bit for bit; on another one, the SQNR is told in dB.

    Raises:
        VerificationError: the record was changed, is of another release or not signed by the key, or outputs differ.
        ConfigError: there is no such record.
    """
    release = verify_release(archive, public_key).index
    targets = {target["name"]: target for target in release["targets"]}
    try:
        with Archive(path) as record_archive, Archive(archive) as opened:
            raw = _checked(path, record_archive, opened.sha256(INDEX), public_key)
            same = raw["where"]["device"] == here()["device"]
            for run in raw["runs"]:
                given, wanted = (_loaded(record_archive, run[kind]) for kind in ("inputs", "outputs"))
                context = context_in(release, run["component"], run["axes"], run["target"])
                got = run_recorded(archive, context, targets[run["target"]], [given], [*wanted])
                name = f"{run['component']}, {run['target']}, {run['sample']}"
                told = _compared(name, wanted, got[0], same) if got else "not run: its binary is shared"
                yield f"{name}: {told}"
    except FileNotFoundError as error:
        raise ConfigError(f"there is no record {path.name}", where=str(path), remedy="doit record FILE") from error
    yield f"{path.name}: {len(raw['runs'])} runs of the {raw['where']['device']}, replayed on the {here()['device']}"


def _checked(path: Path, archive: Archive, release_digest: str, public_key: Path | None) -> Mapping[str, Any]:
    """The content of record.json, after checks that the record is unchanged and is about this release."""
    text, said = archive.read(RECORD, _MOST), archive.read(STATEMENT_FILE, _MOST)
    if said != text_of(statement(hashlib.sha256(text).hexdigest(), release_digest)):
        raise damaged(path, "it is of another release, or was changed", f"{STATEMENT_FILE} is about other digests")
    if public_key is not None:
        if SIGNATURE not in archive.entries:
            raise damaged(path, "it is not signed", "leave --key out, or get it from who has the key")
        try:
            signing.signers(archive.read(SIGNATURE, _MOST), said)
            signing.verify(archive.read(SIGNATURE, _MOST), public_key)
        except ValueError as error:
            raise damaged(path, f"{SIGNATURE} is no signature of this record", str(error)) from None
    raw: Mapping[str, Any] = json.loads(text)
    for name, digest in raw["files"].items():
        if name not in archive.entries or archive.sha256(name) != digest:
            raise damaged(path, f"{name} is not the file that {RECORD} names", "its SHA-256 differs")
    return raw


def _loaded(archive: Archive, files: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    return {name: np.load(io.BytesIO(archive.read(file, _MOST)), allow_pickle=False) for name, file in files.items()}


def _compared(name: str, wanted: Arrays, got: Arrays, same: bool) -> str:
    differing = [output for output in wanted if wanted[output].tobytes() != got[output].tobytes()]
    if not differing:
        return "equal"
    figures = []
    for output in differing:
        accuracy = Accuracy()
        accuracy.add(wanted[output], got[output])
        shown = "no number" if accuracy.sqnr_db is None else f"{accuracy.sqnr_db:.1f} dB"
        figures.append(f"{output!r} {shown}")
    told = ", ".join(figures)
    if same:
        raise VerificationError(
            "a context gives something else than it was recorded to give", where=name, why=told, remedy="look at both"
        )
    return told
