"""Releases made in a moment, whose contexts are no more than bytes: for tests of what only reads or moves archives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from pipeline.release import signing, signing_key
from pipeline.release.archives import index, provenance
from pipeline.release.archives.archive import Member, write_archive

COMPATIBILITY = "v2:6:2.51.0:5.51.0:75:57:8:0"
MODEL, BINARY = "contexts/sm8650/encoder_16_ctx.onnx", "contexts/sm8650/encoder_16_ctx_qnn.bin"

Change = Callable[[dict[str, Any]], object]


def payload(binary: bytes = b"weights and graphs") -> dict[str, bytes]:
    """The files of a release for one target with one bucket."""
    return {
        MODEL: f"a context model that says {COMPATIBILITY}".encode(),
        BINARY: binary,
        "files/tokenizer.json": b"{}",
        "licenses/model/LICENSE": b"Apache-2.0",
        index.SBOM: b"{}",
    }


def release(
    path: Path,
    files: Mapping[str, bytes] | None = None,
    *,
    change: Change = lambda _: None,
    version: str = "1.0",
    key: str = "",
    signed: Callable[[bytes], bytes] = lambda statement: statement,
) -> Path:
    """Write a release of these files; `change` edits its index, `signed` what is signed in place of the statement."""
    members = {name: Member.of(data) for name, data in (payload() if files is None else files).items()}
    raw = index_of(members, version)
    change(raw)
    members[index.INDEX] = Member.of(json.dumps(raw).encode())
    said = json.dumps(provenance.statement(raw, members)).encode()
    members[index.PROVENANCE] = Member.of(said)
    if envelope := signing.signed(signed(said), {signing_key.VARIABLE: key}):
        members[index.SIGNATURE] = Member.of(envelope)
    write_archive(path, members)
    return path


def index_of(members: Mapping[str, Member], version: str) -> dict[str, Any]:
    """release.json of such a release."""
    config = "source: {path: bert}\n"
    dims: list[Any] = [{"size": 1}, {"axis": "sequence"}, {"size": 64}]
    return {
        "schema_version": 1,
        "model": "bert",
        "version": version,
        "source": {"hub": None, "revision": None, "files": {"model.onnx": "0" * 64}},
        "tools": {"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0", "qairt": "2.51.0"},
        "targets": [
            {
                "name": "sm8650",
                "soc": "SM8650",
                "soc_model": 57,
                "htp_arch": 75,
                "vtcm_mb": 8,
                "minimum_driver_sdk": "2.51",
            }
        ],
        "components": {
            "encoder": {
                "inputs": [{"name": "input_ids", "dtype": "int64", "dims": [1, "sequence"], "padding": 0}],
                "outputs": [{"name": "last_hidden_state", "dtype": "float32", "dims": dims}],
                "buckets": [
                    {
                        "axes": {"sequence": 16},
                        "contexts": {
                            "sm8650": {
                                "model": MODEL,
                                "binaries": [BINARY],
                                "packing": "separate",
                                "compatibility": COMPATIBILITY,
                                "partitions": 1,
                                "cpu_nodes": 1,
                                "quantization": "w8a16",
                                "verification": {"samples": 3},
                            }
                        },
                        "qdq": None,
                        "verification": {"cpu": {"samples": 3}},
                    }
                ],
            }
        },
        "config": {"sha256": hashlib.sha256(config.encode()).hexdigest(), "text": config},
        "keys": {"ingest:bert/encoder": "1" * 64},
        "gates": {"skipped": [], "failed": []},
        "files": index.listed(members),
    }


def keys(folder: Path, name: str = "key") -> tuple[str, Path]:
    """A new private key as PEM text, and the file of its public key."""
    private = ed25519.Ed25519PrivateKey.generate()
    public = folder / f"{name}.pub.pem"
    public.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(), public
