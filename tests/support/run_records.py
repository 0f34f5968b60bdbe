"""Records of runs, as `doit compare` reads them."""

from __future__ import annotations

from typing import Any

NAME = "demo/net/32/sm8650"
SHA = "0" * 64


def artifact(bucket: str = "32", *, pack: str = "", **changed: Any) -> dict[str, Any]:
    """What a record has of one artifact."""
    name = f"demo/net/{bucket}/sm8650"
    return {
        "steps": {
            "context": f"context:demo/net/{pack}/sm8650" if pack else f"context:{name}",
            "verify": f"verify:demo/net/{bucket}",
            "emulate": f"emulate:{name}",
        },
        "packing": pack or "separate",
        "scheme": "w8a16",
        "bytes": 1000,
        "files": {f"net_{pack or bucket}.bin": {"bytes": 1000, "sha256": SHA}},
        "partitions": 1,
        "cpu_nodes": 0,
        "sqnr_db": {"padding": 100.0, "rewrite": 100.0, "quantization": 40.0, "compile": 42.0, "total": 38.0},
        "cosine": 0.999,
        "samples": {"cpu": 16, "emulator": 4},
        "score": {"name": "accuracy", "original": 0.9, "made": 0.9},
        "emulated_score": {"name": "accuracy", "original": 1.0, "made": 1.0},
    } | changed


def record(*buckets: str, whole: bool = True, pack: str = "") -> dict[str, Any]:
    """A run that built one artifact for each bucket."""
    made = {f"demo/net/{bucket}/sm8650": artifact(bucket, pack=pack) for bucket in buckets or ("32",)}
    steps = {step: {"outcome": "built", "seconds": 1.0} for each in made.values() for step in each["steps"].values()}
    return {
        "schema_version": 1,
        "command": ["build"],
        "whole": whole,
        "result": "ok",
        "exit_code": 0,
        "started": "2026-01-31T02:17:00Z",
        "seconds": 12.5,
        "commit": None,
        "host": {"names": ["x86_64"], "system": "Linux", "python": "3.13.1"},
        "versions": {},
        "counts": {"built": 3, "restored": 0, "current": 0, "failed": 0, "waiting": 0, "not_tried": 0},
        "failures": [],
        "steps": steps,
        "published": {"demo": "artifacts/demo"},
        "artifacts": made,
    }
