"""Lists what is in a release and what it was made with, as CycloneDX (https://cyclonedx.org), by CycloneDX's library.

The serial number follows from the contents, and there is no time in it: equal releases have equal lists.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from pipeline.release.archives.archive import Member
from pipeline.release.archives.provenance import hub_purl

_NAMESPACE = uuid.UUID("8a3b5c0e-4d0f-5b8e-9d53-1f7c1e2f6a10")


def sbom(about: Mapping[str, Any], members: Mapping[str, Member]) -> bytes:
    """The SBOM for these files; `about` has `model`, `version`, `source` and `tools` as release.json has them."""
    contents = "".join(f"{name} {member.sha256}\n" for name, member in sorted(members.items()))
    name, version = str(about["model"]), str(about["version"])
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, f"{name}\n{version}\n{contents}"))
    release = Component(
        name=name, version=version, type=ComponentType.MACHINE_LEARNING_MODEL, bom_ref=f"release:{name}"
    )
    files = [_file(file, member.sha256, f"file:{file}") for file, member in sorted(members.items())]
    source = _source(name, about["source"])
    bom.metadata.component = release
    bom.metadata.tools = ToolRepository(components=[_tool(tool, at) for tool, at in sorted(about["tools"].items())])
    bom.components.update([source, *files])
    bom.register_dependency(release, files)
    for file in files:
        bom.register_dependency(file, [source] if file.name.startswith(("contexts/", "qdq/", "files/")) else [])
    bom.metadata.timestamp = None  # type: ignore[assignment]  # the format has it as optional, the library fills it in
    return JsonV1Dot6(bom).output_as_string(indent=2).encode() + b"\n"


def _source(model: str, source: Mapping[str, Any]) -> Component:
    """The model before our pipeline: its repo or folder, and its files."""
    files = [_file(name, sha256, f"source:{name}") for name, sha256 in sorted(source["files"].items())]
    return Component(
        name=source["hub"] or model,
        version=source["revision"],
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="source",
        purl=PackageURL.from_string(hub_purl(source)) if source["hub"] else None,
        components=files,
    )


def _file(name: str, sha256: str, ref: str) -> Component:
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256)]
    return Component(name=name, type=ComponentType.FILE, bom_ref=ref, hashes=hashes)


def _tool(name: str, version: str) -> Component:
    """A package from PyPI, or the SDK inside onnxruntime-qnn."""
    purl = None if name == "qairt" else PackageURL("pypi", name=name, version=version)
    return Component(name=name, version=version, type=ComponentType.LIBRARY, bom_ref=f"tool:{name}", purl=purl)
