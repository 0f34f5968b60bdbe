"""Checks that a release is unchanged: `doit verify-release FILE`, or `python -m pipeline.release.verify FILE`.

This needs neither QNN nor onnxruntime, so it runs where releases are received. It checks, in this order: the form of
the archive, the index against its schema, every file against its digest, the statement against all files, its
signature, and the compatibility string of each context against the targets.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline import strict_json
from pipeline.errors import ConfigError, PipelineError, StoreError, VerificationError
from pipeline.frozen import dataclass
from pipeline.qnn.compatibility import Compatibility
from pipeline.release import signing
from pipeline.release.archives.archive import Archive, damaged, printable
from pipeline.release.archives.index import INDEX, PROVENANCE, SIGNATURE, UNLISTED, buckets_of
from pipeline.release.archives.provenance import PREDICATE, STATEMENT

_MAX_TEXT = 1 << 26
"""The most bytes that a JSON file may have."""
_MAX_CONTEXT_MODEL = 1 << 28


@dataclass(frozen=True)
class Verified:
    """A release that is unchanged. `signed_by` is the id of the given key, None if no key was given."""

    index: Mapping[str, Any]
    files: int
    bytes: int
    signatures: tuple[str, ...]
    signed_by: str | None

    def lines(self) -> Iterator[str]:
        """Lines for the user, safe to print."""
        return map(printable, self._lines())

    def _lines(self) -> Iterator[str]:
        index = self.index
        targets = ", ".join(target["name"] for target in index["targets"])
        what = f"{self.files} files, {self.bytes} bytes, all as they were made"
        yield f"{index['model']} {index['version']} for {targets}: {what}"
        if self.signed_by:
            yield f"signed by the given key, {self.signed_by[:16]}"
        elif self.signatures:
            yield f"signed by {', '.join(key[:16] for key in self.signatures)}, not checked: give --key"
        else:
            yield "not signed"
        for kind in ("failed", "skipped"):
            for lapse in index["gates"][kind]:
                yield f"gate {kind}: {lapse['artifact']}, {lapse['gate']}: {lapse['why']}"


def verify_release(path: Path, public_key: Path | None = None) -> Verified:
    """Check all of a release, and its signature if a key is given.

    Raises:
        VerificationError: the release was changed, or is not signed with that key; the message names what is wrong.
        ConfigError: there is no such file, or `public_key` holds no public key.
        StoreError: the disk can't be read.
    """
    try:
        with Archive(path) as archive:
            index = _json(path, archive, INDEX)
            _check_schema(path, index)
            _check_files(path, archive, index)
            statement = archive.read(PROVENANCE, _MAX_TEXT)
            _check_statement(path, archive, index, _json(path, archive, PROVENANCE))
            signatures, signed_by = _check_signature(path, archive, statement, public_key)
            _check_paths(path, index)
            _check_config(path, index)
            _check_compatibility(path, archive, index)
            return Verified(index, len(archive.entries), path.stat().st_size, signatures, signed_by)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise ConfigError(
            f"there is no archive {path.name} that can be read",
            where=str(path),
            why=error.strerror or str(error),
            remedy="name the archive of a release, such as artifacts/releases/demo-1.0.qnn.zip",
        ) from error
    except OSError as error:
        raise StoreError(
            f"{path.name} can't be read", where=str(path), why=error.strerror or str(error), remedy="look at the disk"
        ) from error


def read_index(path: Path) -> Mapping[str, Any]:
    """The index of a release: from an archive, which is checked first, or from a release.json taken out of one.

    Raises:
        VerificationError, ConfigError, StoreError: as for :func:`verify_release`.
    """
    if path.suffix != ".json":
        return verify_release(path).index
    try:
        index = strict_json.parse(path.read_bytes())
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"there is no {path.name} that can be read", where=str(path), why=why) from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{path.name} is no JSON", str(error)) from None
    _check_schema(path, index)
    _check_config(path, index)
    checked: Mapping[str, Any] = index
    return checked


def _json(path: Path, archive: Archive, name: str) -> Any:
    try:
        return strict_json.parse(archive.read(name, _MAX_TEXT))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{name} is no JSON", str(error)) from None


def _check_schema(path: Path, index: Any) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    version = index.get("schema_version") if isinstance(index, dict) else None
    if isinstance(version, int) and version > 1:
        raise damaged(path, f"it is of a later form, {version}", "this program knows form 1")
    schema = json.loads(Path(__file__).with_name("release.schema.json").read_bytes())
    error = best_match(Draft202012Validator(schema).iter_errors(index))
    if error is not None:
        raise damaged(path, f"{INDEX} is not as its schema asks, at {error.json_path}", error.message[:300])


def _check_files(path: Path, archive: Archive, index: Mapping[str, Any]) -> None:
    listed = index["files"]
    for name in sorted({*listed} - {*archive.entries}):
        raise damaged(path, f"{name} is missing", f"{INDEX} lists it")
    for name in sorted({*archive.entries} - {*listed} - UNLISTED):
        raise damaged(path, f"{name} does not belong there", f"{INDEX} does not list it")
    for name in sorted(UNLISTED & {*listed}):
        raise damaged(path, f"{INDEX} lists {name}, whose digest it can't know")
    for name, entry in listed.items():
        if archive.entries[name].size != entry["bytes"] or archive.sha256(name) != entry["sha256"]:
            raise damaged(path, f"{name} is not the file that {INDEX} names", "its SHA-256 or size differs")


def _check_statement(path: Path, archive: Archive, index: Mapping[str, Any], said: Any) -> None:
    """Refuse a statement whose subjects are not all files but itself and its signature, with the right digests.

    Files that the index lists were hashed before, so their digests are taken from there.
    """
    try:
        subjects = {subject["name"]: subject["digest"]["sha256"] for subject in said["subject"]}
        forms = (said["_type"], said["predicateType"])
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(path, f"{PROVENANCE} is no in-toto statement", f"{type(error).__name__}: {error}") from None
    if forms != (STATEMENT, PREDICATE) or len(subjects) != len(said["subject"]):
        raise damaged(path, f"{PROVENANCE} is no in-toto statement of the form that releases have")
    wanted = {*archive.entries} - {PROVENANCE, SIGNATURE}
    if subjects.keys() != wanted:
        raise damaged(path, f"{PROVENANCE} is about other files", ", ".join(sorted(subjects.keys() ^ wanted)[:5]))
    for name in sorted(wanted):
        if subjects[name] != (archive.sha256(name) if name == INDEX else index["files"][name]["sha256"]):
            raise damaged(path, f"{name} is not the file that {PROVENANCE} is about", "its SHA-256 differs")


def _check_signature(
    path: Path, archive: Archive, statement: bytes, public_key: Path | None
) -> tuple[tuple[str, ...], str | None]:
    """The ids of the keys that the statement claims to be signed with, and the id of the given key."""
    if SIGNATURE not in archive.entries:
        if public_key is not None:
            raise VerificationError(
                f"{path.name} is not signed",
                where=str(path),
                why=f"it has no {SIGNATURE}",
                remedy="get the release from who has the key, or leave --key out",
            )
        return (), None
    envelope = archive.read(SIGNATURE, _MAX_TEXT)
    try:
        signatures = signing.signers(envelope, statement)
        return signatures, signing.verify(envelope, public_key) if public_key is not None else None
    except ValueError as error:
        raise damaged(path, f"{SIGNATURE} is no signature of this release", str(error)) from None


def _check_paths(path: Path, index: Mapping[str, Any]) -> None:
    """Refuse an index that does not list every file of a context or QDQ model, each beside its model."""
    for where, model, needed in _models(index):
        for name in (model, *needed):
            if name not in index["files"]:
                raise damaged(path, f"{where} needs {name}, which is not in the release")
            if name.rpartition("/")[0] != model.rpartition("/")[0]:
                raise damaged(path, f"{name} does not lie beside {model}, which refers to it")


def _models(index: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Each model of the release: the name of what needs it, its path, and the paths of the files it refers to."""
    for name, bucket in buckets_of(index["components"]):
        for target, context in bucket["contexts"].items():
            programs = [made["file"] for made in context.get("exports", {}).values()]
            yield f"{name}/{target}", context["model"], [*context["binaries"], *programs]
        if bucket["qdq"]:
            yield f"{name} on the CPU", bucket["qdq"]["model"], bucket["qdq"]["files"]


def _check_config(path: Path, index: Mapping[str, Any]) -> None:
    if hashlib.sha256(index["config"]["text"].encode()).hexdigest() != index["config"]["sha256"]:
        raise damaged(path, f"the config in {INDEX} is not the one whose digest it gives")


def _check_compatibility(path: Path, archive: Archive, index: Mapping[str, Any]) -> None:
    """Refuse a context model that does not hold the compatibility string of the index, or one of another target."""
    targets = {target["name"]: target for target in index["targets"]}
    for _, bucket in buckets_of(index["components"]):
        for name, context in bucket["contexts"].items():
            text = context["compatibility"]
            if name not in targets:
                raise damaged(path, f"{context['model']} is for {name}, which is no target of the release")
            if why := _misfit(text, targets[name]):
                raise damaged(path, f"{context['model']} is not for {name}: {why}", f"it says {text!r}")
            if text.encode() not in archive.read(context["model"], _MAX_CONTEXT_MODEL):
                raise damaged(path, f"{context['model']} does not say that it is for {text!r}, as {INDEX} does")


def _misfit(text: str, target: Mapping[str, Any]) -> str:
    """Why a compatibility string does not fit a target; "" if it fits."""
    fields = Compatibility.parse(text)
    if fields is None:
        return "its compatibility string has another form"
    soc = str(target["soc_model"])
    if soc not in fields.socs:
        return f"it is for the SoCs {', '.join(fields.socs)}, not {soc}"
    at = fields.socs.index(soc)
    if fields.archs[at] != str(target["htp_arch"]):
        return f"it is for HTP v{fields.archs[at]}, not v{target['htp_arch']}"
    if fields.vtcm_mb[at] != str(target["vtcm_mb"] or 0):
        return f"it is for {fields.vtcm_mb[at]} MB of VTCM, not {target['vtcm_mb']}"
    sdk = ".".join(fields.sdk.split(".")[:2])
    if sdk != target["minimum_driver_sdk"]:
        return f"it needs a driver of {sdk}, not {target['minimum_driver_sdk']}"
    return ""


def main(arguments: list[str]) -> int:
    """The command line; returns the exit status, which docs/troubleshooting.md lists."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.release.verify", description="Check releases.")
    parser.add_argument("file", nargs="+", type=Path, help="an archive, such as artifacts/releases/demo-1.0.qnn.zip")
    parser.add_argument("--key", type=Path, help="the public key, PEM, that it must be signed with")
    given = parser.parse_args(arguments)
    try:
        for path in given.file:
            print("\n".join(verify_release(path, given.key).lines()))
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
