"""Records of a release: what its contexts gave for a few held-out samples, and the original for the same; to replay.

A record is an archive of its own, `<release>.qnn-record.zip`: `record.json`, an array a file, and with a key a signed
statement. It names the release by the digest of its `release.json`, and says where it ran. A replay needs the release
and the record alone: neither config, samples nor store.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts import emulate, ingest
from pipeline.contracts.target import HtpTarget
from pipeline.errors import ConfigError, StoreError, VerificationError
from pipeline.graph.accuracy.accuracy import Accuracy
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_on_cpu
from pipeline.graph.files.model_file import MODEL
from pipeline.inputs.samples.held_out import held_out
from pipeline.model import Json
from pipeline.plan.keys import package_version, qairt_version
from pipeline.plan.resolve import resolve
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.qnn.child import run_apart
from pipeline.qnn.emulate import can_emulate
from pipeline.release import on_disk, signing
from pipeline.release.archive import Archive, Member, damaged, write_archive
from pipeline.release.index import INDEX, SIGNATURE, text_of
from pipeline.release.provenance import STATEMENT
from pipeline.release.verify import verify_release

RECORD, SAID = "record.json", "statement.json"
SUFFIX = ".qnn-record.zip"
PREDICATE = "urn:qnn-context-pipeline:record:v1"
_MOST = 1 << 30
Arrays = Mapping[str, NDArray[Any]]


@dataclass
class _Written:
    """A record while it is written."""

    runs: list[Json] = field(default_factory=list)
    left_out: list[Json] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)

    def arrays(self, kind: str, arrays: Arrays) -> dict[str, Json]:
        """The names of the files that these arrays go into, by their own."""
        found: dict[str, Json] = {}
        for name, array in arrays.items():
            data = io.BytesIO()
            np.save(data, array, allow_pickle=False)
            file = f"arrays/{len(self.runs):04d}/{kind}_{len(found):02d}.npy"
            self.members[file], found[name] = Member.of(data.getvalue()), file
        return found


def path_of(archive: Path) -> Path:
    """Where the record of an archive is written."""
    return archive.with_name(archive.name.removesuffix(on_disk.SUFFIX) + SUFFIX)


def record(
    archive: Path, steps: Sequence[Step], workspace: Workspace, samples: int, environ: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Run the contexts of an archive on some held-out samples of each bucket, write the record, and tell its figures.

    Raises:
        VerificationError: the archive is not as it was made, or a context does not run.
        ConfigError: it is of no model here, or an output of the build that has its samples is gone.
    """
    index, written = verify_release(archive).index, _Written()
    targets = {target["name"]: target for target in index["targets"]}
    wanted = [step for step in steps if step.stage == "emulate" and step.target and step.target.soc in targets]
    if not wanted:
        raise ConfigError(f"no model of this project is verified as {index['model']} is", where=archive.name)
    for step in wanted:
        assert step.target is not None
        yield from _recorded(step, archive, index, targets[step.target.soc], workspace, samples, written)
    with Archive(archive) as opened:
        digest = opened.sha256(INDEX)
    raw: dict[str, Json] = {
        "schema_version": 1,
        "release": {"model": index["model"], "version": index["version"], "sha256": digest},
        "where": here(),
        "runs": written.runs,
        "left_out": written.left_out,
        "files": {name: member.sha256 for name, member in sorted(written.members.items())},
    }
    members = {**written.members, RECORD: Member.of(text_of(raw))}
    members[SAID] = Member.of(text_of(_statement(members[RECORD].sha256, digest)))
    source = members[SAID].source
    assert isinstance(source, bytes)
    if envelope := signing.signed(source, environ):
        members[SIGNATURE] = Member.of(envelope)
    write_archive(path_of(archive), members)
    seal = "signed" if SIGNATURE in members else "not signed"
    yield f"{path_of(archive).name}: {len(written.runs)} runs on the {here()['device']}, {seal}"


def replay(path: Path, archive: Path, public_key: Path | None = None) -> Iterator[str]:
    """Run what a record has again, with the contexts of the release, and tell how near it comes.

    On the device that the record is of, outputs are to be equal, bit for bit; another one's are told in dB.

    Raises:
        VerificationError: the record was changed, is of another release or not signed by the key, or differs.
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
                context = _context(release, run["component"], run["axes"], run["target"])
                got = _run(archive, context, targets[run["target"]], [given], [*wanted])[0]
                name = f"{run['component']}, {run['target']}, {run['sample']}"
                yield f"{name}: {_compared(name, wanted, got, same)}"
    except FileNotFoundError as error:
        raise ConfigError(f"there is no record {path.name}", where=str(path), remedy="doit record FILE") from error
    yield f"{path.name}: {len(raw['runs'])} runs of the {raw['where']['device']}, replayed on the {here()['device']}"


def here() -> dict[str, Json]:
    """Where contexts run: QNN's emulator on x86_64, else an NPU, whose driver's version nothing here can tell."""
    emulated = platform.machine().lower() in ("x86_64", "amd64")
    tools: dict[str, Json] = {name: package_version(name) for name in ("onnxruntime", "onnxruntime-qnn")}
    return {
        "device": "emulator" if emulated else "npu",
        "system": f"{platform.system()} {platform.machine()}",
        "driver": qairt_version() if emulated else None,
        "tools": {**tools, "qairt": qairt_version()},
    }


def _recorded(
    step: Step,
    archive: Path,
    index: Mapping[str, Any],
    target: Mapping[str, Any],
    workspace: Workspace,
    samples: int,
    written: _Written,
) -> Iterator[str]:
    resolved = resolve(step, workspace)
    if resolved is None or not isinstance(resolved.params, emulate.Params):
        raise ConfigError(
            f"what {step.id} stands on is not there", where=archive.name, remedy=f"run 'doit build:{step.config.name}'"
        )
    params = resolved.params
    context = _context(index, params.component, params.axes, target["name"])
    with workspace.store.scratch() as work:
        for role in ("ingest", "samples"):
            workspace.store.place(resolved.inputs[role], work / role)
        inputs = ingest.Facts.from_json(resolved.inputs["ingest"].facts).inputs
        given = held_out(work / "samples", params, inputs)
        session = load_session(work / "ingest" / MODEL)
        names = [output.name for output in session.get_outputs()]
        padded = given.padded[:samples]
        got = _run(archive, context, target, padded, names)
        if not got:
            why = "the emulator takes no shared binary" if padded else "no held-out sample fits"
            written.left_out.append({"context": context["model"], "why": why})
            yield f"{step.name}: not recorded, {why}"
            return
        for sample, original, feed, outputs in zip(given.samples, given.given, padded, got, strict=False):
            truth = run_on_cpu(session, original)
            written.runs.append(
                {
                    "component": params.component,
                    "axes": {**params.axes},
                    "target": target["name"],
                    "sample": sample.name,
                    "inputs": written.arrays("input", feed),
                    "original": written.arrays("original", truth),
                    "outputs": written.arrays("output", outputs),
                }
            )
            yield f"{step.name}, {sample.name}: recorded"


def _context(index: Mapping[str, Any], component: str, axes: Mapping[str, int], target: str) -> Mapping[str, Any]:
    for bucket in index["components"].get(component, {"buckets": ()})["buckets"]:
        if bucket["axes"] == dict(axes) and target in bucket["contexts"]:
            found: Mapping[str, Any] = bucket["contexts"][target]
            return found
    raise StoreError(
        f"the release has no context of {component} in the bucket {dict(axes)} for {target}",
        why="the project was built otherwise since",
        remedy="run 'doit package', then record again",
    )


def _run(
    archive: Path, context: Mapping[str, Any], target: Mapping[str, Any], feeds: Sequence[Arrays], names: Sequence[str]
) -> list[dict[str, NDArray[Any]]]:
    """The outputs of a context of the archive; none where it can't be run here."""
    with TemporaryDirectory() as folder, TemporaryDirectory() as work, Archive(archive) as opened:
        for name in (context["model"], *context["binaries"]):
            with (Path(folder) / Path(name).name).open("wb") as stream:
                stream.writelines(opened.chunks(name))
        model = Path(context["model"]).name
        if not feeds or (here()["device"] == "emulator" and not can_emulate(Path(folder), model)):
            return []
        htp = HtpTarget(target["soc_model"], target["htp_arch"], target["vtcm_mb"])
        log = Path(work) / "log"
        results = run_apart(Path(folder), model, htp, feeds, Path(work), log=log)
        return [dict(zip(names, result, strict=True)) for result in results]


def _statement(record_digest: str, release_digest: str) -> dict[str, Json]:
    subjects = {RECORD: record_digest, INDEX: release_digest}
    listed: list[Json] = [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()]
    return {"_type": STATEMENT, "subject": listed, "predicateType": PREDICATE, "predicate": {}}


def _checked(path: Path, archive: Archive, release_digest: str, public_key: Path | None) -> Mapping[str, Any]:
    """The record, all of whose files are those that it names, about this release."""
    text, said = archive.read(RECORD, _MOST), archive.read(SAID, _MOST)
    if said != text_of(_statement(hashlib.sha256(text).hexdigest(), release_digest)):
        raise damaged(path, "it is of another release, or was changed", f"{SAID} is about other digests")
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
