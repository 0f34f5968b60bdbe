from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts_walk import walk
from tests.support.s3_server import S3Server, s3_fixture  # noqa: F401


@pytest.mark.slow
@pytest.mark.parametrize("place", ["folder", "s3"])
def test_two_hosts_build_what_one_would(place: str, tmp_path: Path, s3: S3Server) -> None:
    shared = {**s3.environ(), "PIPELINE_SHARED_STORE": s3.bucket()} if place == "s3" else None
    found = walk(tmp_path, shared)
    contexts = {f"context:tiny/net/{bucket}/snapdragon-x-elite" for bucket in (8, 16)}
    emulations = {name.replace("context", "emulate") for name in contexts}

    assert found.there.status == 19
    assert found.there.stages().keys() >= {"fetch", "quantize", "verify"}
    assert not {name for name in found.there.built if name.startswith(("context", "emulate"))}
    assert "next: run 'doit build:tiny' on compiler, then come back" in found.there.text

    assert found.over_there.status == 19
    assert found.over_there.built == contexts
    assert "next: run 'doit build:tiny' on quantizer, then come back" in found.over_there.text

    assert found.back.status == 0
    assert found.back.built == emulations
    assert all(f"shared             {name}" in found.back.text for name in contexts)
    assert "tiny-1.0" in found.back.text

    assert found.published
    assert found.published == found.published_at_once
    assert found.artifacts == found.artifacts_at_once
