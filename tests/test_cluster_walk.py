"""A short walk over a cluster on hosts of its own; `python -m tests.cluster_walk` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster_walk import Walk
from tests.support import tiny_project
from tests.support.network import is_permitted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_permitted(), reason="makes network namespaces, which takes root"),
]


def test_the_bytes_are_those_of_one_host_whatever_happens_to_the_cluster(tmp_path: Path) -> None:
    undisturbed, other, cut, killed = Walk(tmp_path, tiny_project.NAME, seed=1).chapters(kills=2, schedulers=1)
    for chapter in (undisturbed, other, cut, killed):
        assert chapter.is_right, chapter.line()
        assert chapter.made, chapter.line()
    assert not undisturbed.again
    assert "worker other is not used" in other.told[0]
    assert cut.told == ["it was pulled before the build had ended"]
    assert (killed.kills, killed.schedulers) >= (2, 1)
