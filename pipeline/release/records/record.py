"""Records what the contexts of a release give for a few held-out samples, and what the original gives for the same.

A record is an archive of its own, `<release>.qnn-record.zip`: `record.json`, a file for each array, and if there is a
key a signed statement. It names the release by the digest of its `release.json`, and says where it ran. :mod:`.replay`
runs it again, for which it needs only the release and the record: neither config, samples nor store.
"""

from __future__ import annotations

import io
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts import emulate, ingest, quantize
from pipeline.contracts.device import MeasuredContext
from pipeline.contracts.language import Lengths
from pipeline.contracts.target import HtpTarget
from pipeline.errors import ConfigError, StoreError
from pipeline.frozen import dataclass
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_on_cpu
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.language.host_table import rows_of
from pipeline.graph.language.names import EMBEDDED
from pipeline.inputs.samples.held_out import held_out
from pipeline.inputs.samples.spoken import runs_of, texts_of
from pipeline.model import Json
from pipeline.plan.keys import package_version, qairt_version
from pipeline.plan.resolve import resolve
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.qnn.child import run_apart
from pipeline.qnn.running.emulate import can_emulate
from pipeline.release import signing
from pipeline.release.archives import on_disk
from pipeline.release.archives.archive import Archive, Member, write_archive
from pipeline.release.archives.index import INDEX, SIGNATURE, text_of
from pipeline.release.archives.provenance import STATEMENT
from pipeline.release.verify import verify_release

RECORD, STATEMENT_FILE = "record.json", "statement.json"
SUFFIX = ".qnn-record.zip"
PREDICATE = "urn:qnn-context-pipeline:record:v1"
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ToRecord:
    """A context of a release, and the samples to run it on.

    `context` and `target` are the objects of release.json. `samples` are names, `padded` the context's inputs for
    each, and `truth` the original's outputs for each, for a language model only the logits. `outputs` has the names of
    the context's outputs.
    """

    component: str
    axes: Mapping[str, int]
    target: Mapping[str, Any]
    context: Mapping[str, Any]
    samples: tuple[str, ...]
    padded: tuple[Arrays, ...]
    truth: tuple[Arrays, ...]
    outputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """The context's name in messages: `encoder, sequence 32, sm8650`."""
        lengths = "".join(f", {axis} {length}" for axis, length in self.axes.items())
        return f"{self.component}{lengths}, {self.target['name']}"


@dataclass(frozen=True)
class RecordWriter:
    """Collects the content of a record, and writes it."""

    runs: list[Json] = field(default_factory=list)
    left_out: list[Json] = field(default_factory=list)
    contexts: list[Json] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)

    def add(self, recorded: ToRecord, outputs: Sequence[Arrays]) -> None:
        """Add the outputs that a context gave for each sample."""
        for sample, feed, truth, made in zip(recorded.samples, recorded.padded, recorded.truth, outputs, strict=True):
            self.runs.append(
                {
                    "component": recorded.component,
                    "axes": {**recorded.axes},
                    "target": recorded.target["name"],
                    "sample": sample,
                    "inputs": self._arrays("input", feed),
                    "original": self._arrays("original", truth),
                    "outputs": self._arrays("output", made),
                }
            )

    def leave_out(self, recorded: ToRecord, why: str) -> None:
        """Note a context that was not run."""
        self.left_out.append({"context": recorded.context["model"], "why": why})

    def time(self, measured: MeasuredContext) -> None:
        """Note how long a context took on a device."""
        self.contexts.append(measured.to_json())

    def write(self, path: Path, archive: Path, about: Mapping[str, Any], where: Mapping[str, Json]) -> bool:
        """Write the record of `archive`, whose index is `about`. Returns whether it is signed."""
        with Archive(archive) as opened:
            digest = opened.sha256(INDEX)
        raw: dict[str, Json] = {
            "schema_version": 1,
            "release": {"model": about["model"], "version": about["version"], "sha256": digest},
            "where": {**where},
            "runs": self.runs,
            **({"measured": self.contexts} if self.contexts else {}),
            "left_out": self.left_out,
            "files": {name: member.sha256 for name, member in sorted(self.members.items())},
        }
        members = {**self.members, RECORD: Member.of(text_of(raw))}
        said = text_of(statement(members[RECORD].sha256, digest))
        members[STATEMENT_FILE] = Member.of(said)
        if envelope := signing.signed(said, os.environ):
            members[SIGNATURE] = Member.of(envelope)
        write_archive(path, members)
        return SIGNATURE in members

    def _arrays(self, kind: str, arrays: Arrays) -> dict[str, Json]:
        """Add arrays as files. Returns the file's name for each array's own name."""
        found: dict[str, Json] = {}
        for name, array in arrays.items():
            data = io.BytesIO()
            np.save(data, array, allow_pickle=False)
            file = f"arrays/{len(self.runs):04d}/{kind}_{len(found):02d}.npy"
            self.members[file], found[name] = Member.of(data.getvalue()), file
        return found


def path_of(archive: Path, device: str = "") -> Path:
    """The path of the record of an archive, made here or on `device`."""
    stem = archive.name.removesuffix(on_disk.SUFFIX)
    return archive.with_name(f"{stem}{f'.{device}' if device else ''}{SUFFIX}")


def record(archive: Path, steps: Sequence[Step], workspace: Workspace, samples: int) -> Iterator[str]:
    """Run the contexts of an archive on `samples` held-out samples of each bucket, and write the record.

    Yields lines for the user with its figures.

    Raises:
        VerificationError: the archive is not as it was made, or a context does not run.
        ConfigError: the archive is of no model here, or an output of the build with its samples is gone.
    """
    index, written = verify_release(archive).index, RecordWriter()
    for each in to_record(archive, index, steps, workspace, samples):
        got = run_recorded(archive, each.context, each.target, each.padded, each.outputs)
        if got:
            written.add(each, got)
            yield from (f"{each.name}, {sample}: recorded" for sample in each.samples)
        else:
            why = "the emulator takes no shared binary" if each.padded else "no held-out sample fits"
            written.leave_out(each, why)
            yield f"{each.name}: not recorded, {why}"
    path = path_of(archive)
    seal = "signed" if written.write(path, archive, index, here()) else "not signed"
    yield f"{path.name}: {len(written.runs)} runs on the {here()['device']}, {seal}"


def to_record(
    archive: Path, index: Mapping[str, Any], steps: Sequence[Step], workspace: Workspace, samples: int
) -> Iterator[ToRecord]:
    """The contexts of an archive, each with the first held-out samples of its bucket and what the original gives.

    Raises:
        ConfigError: the archive is of no model here, or an output of the build with its samples is gone.
        StoreError: the project was built with other results since.
    """
    targets = {target["name"]: target for target in index["targets"]}
    wanted = [step for step in steps if step.stage == "emulate" and step.target and step.target.soc in targets]
    if not wanted:
        raise ConfigError(f"no model of this project is verified as {index['model']} is", where=archive.name)
    for step in wanted:
        assert step.target is not None
        yield _to_record(step, archive, index, targets[step.target.soc], workspace, samples)


def here() -> dict[str, Json]:
    """Where contexts run on this host: QNN's emulator on x86_64, else an NPU, whose driver's version is unknown."""
    emulated = platform.machine().lower() in ("x86_64", "amd64")
    tools: dict[str, Json] = {name: package_version(name) for name in ("onnxruntime", "onnxruntime-qnn")}
    return {
        "device": "emulator" if emulated else "npu",
        "system": f"{platform.system()} {platform.machine()}",
        "driver": qairt_version() if emulated else None,
        "tools": {**tools, "qairt": qairt_version()},
    }


def _to_record(
    step: Step,
    archive: Path,
    index: Mapping[str, Any],
    target: Mapping[str, Any],
    workspace: Workspace,
    samples: int,
) -> ToRecord:
    resolved = resolve(step, workspace)
    if resolved is None or not isinstance(resolved.params, emulate.Params):
        raise ConfigError(
            f"what {step.id} stands on is not there", where=archive.name, remedy=f"run 'doit build:{step.config.name}'"
        )
    params = resolved.params
    ingested = ingest.Facts.from_json(resolved.inputs["ingest"].facts)
    with workspace.store.scratch() as work:
        for role in ("ingest", "samples"):
            workspace.store.place(resolved.inputs[role], work / role)
        if ingested.language is not None:
            quantized = params.last == "quantization"
            edges = quantize.PartFacts.from_json(resolved.inputs["model"].facts).edges if quantized else {}
            lengths = Lengths(params.axes["sequence"], params.axes["past"])
            texts = texts_of(work / "samples", params)[:samples]
            if EMBEDDED in edges:
                workspace.store.place(resolved.inputs["model"], work / "model")
            rows = rows_of(work / "model", ingested.language)
            runs = runs_of(texts, work / "ingest", ingested.language, lengths, edges, rows)
            names = tuple(run.name for run in runs)
            padded, truth = tuple(run.given for run in runs), tuple({"logits": run.logits} for run in runs)
        else:
            given = held_out(work / "samples", params, ingested.inputs)
            session = load_session(work / "ingest" / MODEL)
            names = tuple(sample.name for sample in given.samples[:samples])
            padded = given.padded[:samples]
            truth = tuple(run_on_cpu(session, original) for original in given.given[:samples])
    return ToRecord(
        params.component,
        params.axes,
        target,
        context_in(index, params.component, params.axes, target["name"]),
        names,
        padded,
        truth,
        tuple(output.name for output in ingested.outputs),
    )


def context_in(index: Mapping[str, Any], component: str, axes: Mapping[str, int], target: str) -> Mapping[str, Any]:
    """The context that release.json has for these; raises StoreError if there is none."""
    for bucket in index["components"].get(component, {"buckets": ()})["buckets"]:
        if bucket["axes"] == dict(axes) and target in bucket["contexts"]:
            found: Mapping[str, Any] = bucket["contexts"][target]
            return found
    raise StoreError(
        f"the release has no context of {component} in the bucket {dict(axes)} for {target}",
        why="the project was built otherwise since",
        remedy="run 'doit package', then record again",
    )


def run_recorded(
    archive: Path, context: Mapping[str, Any], target: Mapping[str, Any], feeds: Sequence[Arrays], names: Sequence[str]
) -> list[dict[str, NDArray[Any]]]:
    """The outputs of a context of the archive for each of `feeds`; none if the context can't be run here."""
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


def statement(record_digest: str, release_digest: str) -> dict[str, Json]:
    """The statement of a record that is signed: its digest, and that of the release."""
    subjects = {RECORD: record_digest, INDEX: release_digest}
    listed: list[Json] = [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()]
    return {"_type": STATEMENT, "subject": listed, "predicateType": PREDICATE, "predicate": {}}
