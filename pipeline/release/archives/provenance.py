"""Says where a release came from, in the form of in-toto (Statement v1) and SLSA (provenance v1).

https://in-toto.io/Statement/v1, https://slsa.dev/spec/v1.1/provenance. The statement names no time, place or person, so
that anybody can make the same archive again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.model import Json
from pipeline.release.archives.archive import Member
from pipeline.release.archives.index import PROVENANCE, SIGNATURE

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
BUILD_TYPE = "urn:qnn-context-pipeline:build:v1"
BUILDER = "urn:qnn-context-pipeline:builder"


def statement(index: Mapping[str, Any], members: Mapping[str, Member]) -> dict[str, Json]:
    """The statement about all files of an archive except itself and its signature; `index` is release.json."""
    subjects: list[Json] = [
        {"name": name, "digest": {"sha256": member.sha256}}
        for name, member in sorted(members.items())
        if name not in (PROVENANCE, SIGNATURE)
    ]
    return {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "model": index["model"],
                    "version": index["version"],
                    "targets": [target["name"] for target in index["targets"]],
                    "config": {"sha256": index["config"]["sha256"]},
                },
                "internalParameters": {"keys": index["keys"]},
                "resolvedDependencies": _dependencies(index),
            },
            "runDetails": {"builder": {"id": BUILDER, "version": dict(index["tools"])}},
        },
    }


def _dependencies(index: Mapping[str, Any]) -> list[Json]:
    """The commit of the model, its files, the config, and the packages that compiled it."""
    source = index["source"]
    found: list[Json] = []
    if source["hub"]:
        found.append({"uri": hub_purl(source), "digest": {"gitCommit": source["revision"]}})
    found += [
        {"name": f"source/{name}", "digest": {"sha256": sha256}} for name, sha256 in sorted(source["files"].items())
    ]
    found.append({"name": "config", "digest": {"sha256": index["config"]["sha256"]}})
    tools = sorted(index["tools"].items())
    found += [{"uri": f"pkg:pypi/{name}@{version}"} for name, version in tools if name != "qairt"]
    return found


def hub_purl(source: Mapping[str, Any]) -> str:
    """The package URL of a hub repo at a commit (https://github.com/package-url/purl-spec, type huggingface)."""
    return f"pkg:huggingface/{source['hub']}@{source['revision']}"
