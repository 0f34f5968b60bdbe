"""The order of rewrites: each comes behind those that it says it must follow."""

from __future__ import annotations

from pathlib import Path

from pipeline.graph.rewrites import REWRITES, name_of


def test_every_rewrite_follows_what_it_says_it_must_follow() -> None:
    order = [name_of(rewrite) for rewrite in REWRITES]
    said = {name_of(rewrite): getattr(rewrite, "after", getattr(rewrite, "AFTER", {})) for rewrite in REWRITES}
    assert sum(map(len, said.values())) >= 6
    for name, before in said.items():
        for earlier, why in before.items():
            assert order.index(earlier) < order.index(name), f"{name} must follow {earlier}: {why}"


def test_every_rewrite_is_in_the_docs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "rewrites.md").read_text()
    assert not [name for name in map(name_of, REWRITES) if f"`{name}`" not in text]
