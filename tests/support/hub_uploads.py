"""The part of the local hub that takes commits: what its client does to upload files, by git LFS and without Xet.

`preupload` says how each file is to come; large ones go to the storage by the LFS batch API
(https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md); `commit` takes lines of JSON and moves a branch, all
at once, if it is still where the client believes it to be. A `Fault` with a method PUT or POST acts on the file's name,
or on "preupload", "batch" or "commit".
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from tests.support.hub_repos import Blob, Repo


class CommitError(Exception):
    """A commit that the hub refuses, with the HTTP status to answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Uploads:
    """What clients have sent that is in no commit yet, by sha256."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    received: list[str] = field(default_factory=list)
    """The digest of each upload to the storage."""

    def take(self, oid: str, content: bytes) -> bool:
        """Keep a blob if it has the digest it claims."""
        self.received.append(oid)
        if hashlib.sha256(content).hexdigest() != oid:
            return False
        self.blobs[oid] = content
        return True

    def answer(self, repo: Repo, kind: str, branch: str, body: bytes, hub: str, storage: str) -> dict[str, Any]:
        """What the hub says to a request of this kind; raises CommitError."""
        match kind:
            case "preupload":
                return modes(repo, branch, json.loads(body))
            case "batch":
                return self.batch(json.loads(body), storage, f"{hub}/{repo.name}.git/info/lfs/verify")
            case "verify":
                return {}
            case _:
                commit = self.commit(repo, branch, body)
                url = f"{hub}/{repo.name}/commit/{commit}"
                return {"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""}

    def batch(self, asked: Mapping[str, Any], upload: str, verify: str) -> dict[str, Any]:
        """The answer to an LFS batch request: where to put each object, nothing for those that are here."""
        objects: list[dict[str, Any]] = []
        for each in asked["objects"]:
            entry = {"oid": each["oid"], "size": each["size"]}
            if each["oid"] not in self.blobs:
                actions = {"upload": {"href": upload.format(oid=each["oid"])}, "verify": {"href": verify}}
                entry["actions"] = actions
            objects.append(entry)
        return {"transfer": "basic", "objects": objects}

    def commit(self, repo: Repo, branch: str, body: bytes) -> str:
        """Make a commit of the lines of a request; its id."""
        lines = [json.loads(line) for line in body.splitlines() if line]
        head = repo.branches.get(branch)
        if head is None:
            raise CommitError(404, f"Invalid rev id: {branch}")
        header = next(line["value"] for line in lines if line["key"] == "header")
        if header.get("parentCommit", head) != head:
            raise CommitError(412, "A commit has happened since. Please refresh and try again.")
        files: dict[str, bytes | Path] = {name: blob.content for name, blob in repo.commits[head].items()}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.blobs:
                    raise CommitError(400, f"LFS object {value['oid']} was not uploaded")
                files[value["path"]] = self.blobs[value["oid"]]
        return repo.commit(files, branch=branch)


def read_body(headers: Message, stream: BufferedIOBase) -> bytes:
    """The body of a request, sent at once or in chunks."""
    if headers.get("Transfer-Encoding") != "chunked":
        return stream.read(int(headers.get("Content-Length") or 0))
    body = b""
    while size := int(stream.readline(), 16):
        body += stream.read(size)
        stream.readline()
    stream.readline()
    return body


def modes(repo: Repo, branch: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a preupload request."""
    have = repo.commits.get(repo.branches.get(branch, ""), {})
    files = []
    for each in asked["files"]:
        known = have.get(each["path"])
        mode = "lfs" if Blob(each["path"], b"").lfs else "regular"
        files.append(
            {"path": each["path"], "uploadMode": mode, "shouldIgnore": False, "oid": known.oid if known else None}
        )
    return {"files": files}
