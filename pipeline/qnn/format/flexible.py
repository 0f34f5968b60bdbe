"""Context binaries for several SoCs ("flexible context binaries"): what is in one, and fewer SoCs made of it.

Such a binary is an archive (:mod:`pipeline.qnn.format.dlc`) of these records:

- `htp.cache.<chip>.<n>`: a context binary for one SoC, without its weights;
- `htp.shared.weights.<hash>`: weights that caches share, and `htp.metadata.shared_weights.<hash>_metadata` about them;
- `dlc.metadata<version>`: JSON with the contents of every cache, which records need which, and the time of each.

QNN is not needed to read or prune one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError, ConfigError
from pipeline.graph.files.model_file import load_graph, save_graph
from pipeline.qnn import catalog
from pipeline.qnn.format.context_model import (
    binary_names,
    is_flexible,
    is_plain,
    parsed_compatibility,
    set_compatibility,
)
from pipeline.qnn.format.dlc import DlcRecord, NewRecord, read_records, write_records

_METADATA, _CACHE, _ABOUT = "dlc.metadata", "htp.cache.", "htp.metadata.shared_weights."
_MAX_METADATA = 1 << 24
_TIMESTAMP = re.compile(rb'("timestamp": ")\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC(")')
_NO_TIME = rb"\g<1>1980-01-01 00:00:00 UTC\g<2>"


@dataclass(frozen=True)
class BuiltCache:
    """The part of a binary that is for one SoC, as the archive's metadata describes it."""

    record: DlcRecord
    target: HtpTarget
    graphs: tuple[str, ...]
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Flexible:
    """An archive whose records and metadata agree."""

    records: tuple[DlcRecord, ...]
    caches: tuple[BuiltCache, ...]
    metadata: Mapping[str, Any]

    @property
    def metadata_record(self) -> DlcRecord:
        """The one that `metadata` was read from."""
        return next(record for record in self.records if record.name.startswith(_METADATA))


@dataclass(frozen=True)
class Pruned:
    """A context model and its binary after pruning; `records` maps names to (bytes, sha256)."""

    context_model: str
    binaries: tuple[str, ...]
    targets: tuple[HtpTarget, ...]
    compatibility: str
    records: Mapping[str, tuple[int, str]]


def in_record_order(targets: Iterable[HtpTarget]) -> tuple[HtpTarget, ...]:
    """Targets as a binary is compiled for them: by the names that their records get.

    Then the metadata of the context model has them in the order of the records, too, and tools that rely on that, as
    the one that comes with onnxruntime-qnn does, are right.
    """
    chips = {soc.soc_model: soc.chip.lower() for soc in catalog.SOCS}
    return tuple(sorted(targets, key=lambda target: (chips.get(target.soc_model, ""), target.soc_model)))


def read_flexible(path: Path) -> Flexible:
    """Open an archive, and check its records against its metadata.

    Raises:
        CompileError: it is damaged, or has a record that is not known here or that nothing refers to.
    """
    records = read_records(path)
    by_name = {record.name: record for record in records}
    about = [record for record in records if record.name.startswith(_METADATA)]
    if len(about) != 1 or about[0].size > _MAX_METADATA:
        raise _refused(path, "it has no metadata, or too much")
    try:
        metadata = json.loads(b"".join(about[0].chunks()))
        needs = {
            _text(entry["parentRecordName"]): tuple(map(_text, entry["childRecordNames"]))
            for entry in metadata["relations"]
        }
        caches = tuple(_cache(by_name, entry, needs) for entry in metadata["cacheList"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _refused(path, f"its metadata is not as expected ({type(error).__name__}: {error})") from error
    caches = tuple(sorted(caches, key=lambda cache: cache.record.name))
    socs = [cache.target.soc_model for cache in caches]
    if len({*socs}) != len(socs):
        raise _refused(path, f"it has two caches for one SoC: {_listed(socs)}")
    expected = {about[0].name, *(cache.record.name for cache in caches)}
    expected |= {name for cache in caches for name in cache.needs}
    expected |= {name for name, children in needs.items() if name.startswith(_ABOUT) and expected >= set(children)}
    if expected != set(by_name):
        odd = ", ".join(sorted(expected ^ set(by_name)))
        raise _refused(path, f"its records are not those that its metadata lists: {odd}")
    return Flexible(records, caches, metadata)


def digests(flexible: Flexible) -> dict[str, tuple[int, str]]:
    """Bytes and sha256 of every record, by its name."""
    found = {}
    for record in flexible.records:
        sha256 = hashlib.sha256()
        for chunk in record.chunks():
            sha256.update(chunk)
        found[record.name] = (record.size, sha256.hexdigest())
    return found


def without_timestamps(path: Path) -> None:
    """Set the times in an archive's metadata to a fixed one, in place: nothing else in it differs from run to run.

    They are not covered by any checksum (the archive has none) and mean nothing to a device. No record moves.
    """
    record = read_flexible(path).metadata_record
    text = b"".join(record.chunks())
    with path.open("r+b") as file:
        file.seek(record.offset)
        file.write(_TIMESTAMP.sub(_NO_TIME, text))


def with_fixed_times(dlc: Path, path: Path) -> None:
    """Write an archive of any records again, with a fixed time in place of those in its metadata.

    Raises:
        CompileError: it is not an archive as QNN writes it.
    """
    records: list[DlcRecord | NewRecord] = []
    for record in read_records(dlc):
        if record.name.startswith(_METADATA) and record.size <= _MAX_METADATA:
            data = _TIMESTAMP.sub(_NO_TIME, b"".join(record.chunks()))
            records.append(NewRecord(record.name, record.alignment, data))
        else:
            records.append(record)
    write_records(path, records)


def prune(context_model: Path, socs: Sequence[int], out: Path) -> Pruned:
    """Write a context model and its binary again into the folder `out`, for the SoCs with these ids only.

    Kept records are unchanged, and are as if compiled for these SoCs alone.

    Raises:
        CompileError: the context model or a binary is not as expected.
        ConfigError: it has no such SoC, none was named, or `out` is the folder it is in.
    """
    model = load_graph(context_model)
    names = binary_names(model)
    if not is_flexible(model) or len(names) != 1 or not is_plain(names[0]):
        raise _refused(context_model, "it does not refer to one binary for several SoCs")
    if out.resolve() == context_model.parent.resolve():
        raise ConfigError("a context can't be pruned in place", where=str(out), remedy="name another folder")
    flexible = read_flexible(context_model.with_name(names[0]))
    had = {cache.target.soc_model: cache.target for cache in flexible.caches}
    says = parsed_compatibility(model, context_model.name)
    if {*says.socs} != {str(soc) for soc in had}:
        raise _refused(context_model, f"it is for SoCs {', '.join(says.socs)}, its binary for {_listed(had)}")
    missing = [soc for soc in socs if soc not in had]
    if missing or not socs:
        raise ConfigError(
            f"{context_model.name} is not for SoC {_listed(missing)}" if missing else "no SoC to keep was named",
            why=f"it is for {_listed(had)}",
            remedy="name SoCs by these ids, or build the context for more",
        )
    kept = says.of(socs)
    set_compatibility(model, kept)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prune-", dir=out) as work:
        write_records(Path(work, names[0]), _kept_records(flexible, socs))
        save_graph(model, Path(work, context_model.name))
        written = read_flexible(Path(work, names[0]))
        records = digests(written)
        for name in (names[0], context_model.name):
            os.replace(Path(work, name), out / name)
    targets = tuple(had[int(soc)] for soc in kept.socs)
    return Pruned(context_model.name, names, targets, str(kept), records)


def _kept_records(flexible: Flexible, socs: Sequence[int]) -> list[DlcRecord | NewRecord]:
    """The records of some SoCs in their order, with metadata about these only."""
    caches = [cache for cache in flexible.caches if cache.target.soc_model in socs]
    names = {cache.record.name for cache in caches} | {name for cache in caches for name in cache.needs}
    relations = flexible.metadata["relations"]
    names |= {
        entry["parentRecordName"]
        for entry in relations
        if entry["parentRecordName"].startswith(_ABOUT) and names >= {*entry["childRecordNames"]}
    }
    metadata = {
        **flexible.metadata,
        "cacheList": [entry for entry in flexible.metadata["cacheList"] if entry["cacheName"] in names],
        "relations": [entry for entry in relations if entry["parentRecordName"] in names],
    }
    # as QNN lays its JSON out
    text = json.dumps(metadata, indent=4, ensure_ascii=False).encode()
    about = flexible.metadata_record
    replaced = NewRecord(about.name, about.alignment, _TIMESTAMP.sub(_NO_TIME, text))
    return [
        replaced if record is about else record
        for record in flexible.records
        if record is about or record.name in names
    ]


def _cache(
    records: Mapping[str, DlcRecord], entry: Mapping[str, Any], needs: Mapping[str, tuple[str, ...]]
) -> BuiltCache:
    name = _text(entry["cacheName"])
    graphs = entry["graphs"]
    target = HtpTarget(
        int(entry["socModel"]),
        int(entry["contextMetadata"]["dspArch"]),
        max(int(graph["graphBlobInfo"]["vtcmSize"]) for graph in graphs),
    )
    if not name.startswith(_CACHE):
        raise ValueError(f"{name!r} is not the name of a cache")
    return BuiltCache(records[name], target, tuple(_text(graph["graphName"]) for graph in graphs), needs.get(name, ()))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a name")
    return value


def _listed(socs: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(socs)))


def _refused(path: Path, why: str) -> CompileError:
    return CompileError(
        "the context for several SoCs can't be used",
        where=path.name,
        why=why,
        remedy="build it again; if that gives the same, onnxruntime-qnn has changed its format",
    )
