"""The order of rewrites: each comes behind those that it says it must follow."""

from __future__ import annotations

from pipeline.graph.rewrites import REWRITES


def test_every_rewrite_follows_what_it_says_it_must_follow() -> None:
    order = [rewrite.NAME for rewrite in REWRITES]
    said = {rewrite.NAME: getattr(rewrite, "AFTER", {}) for rewrite in REWRITES}
    assert sum(map(len, said.values())) >= 6
    for name, before in said.items():
        for earlier, why in before.items():
            assert order.index(earlier) < order.index(name), f"{name} must follow {earlier}: {why}"


def test_every_rewrite_has_the_name_of_its_module() -> None:
    assert [f"pipeline.graph.rewrites.{rewrite.NAME}" for rewrite in REWRITES] == [
        getattr(rewrite, "__name__", "") for rewrite in REWRITES
    ]
