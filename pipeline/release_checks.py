"""Whether what a config says of its release fits the rest of it."""

from __future__ import annotations

from collections.abc import Collection

from pipeline.config_file import Release
from pipeline.yamltypes.problems import Keys, Problems, nearest
from pipeline.yamltypes.tree import Node, place_of


def check(release: Release | None, components: Collection[str], node: Node, problems: Problems) -> None:
    """Add a problem for each artifact that is named under a component that there is not.

    What buckets the components have is only known when the model was read; that is checked when it is packaged.
    """
    for index, name in enumerate(release.unverified if release and components else ()):
        if (component := name.partition("/")[0]) not in components:
            keys: Keys = ("release", "unverified", index)
            what = f"no component is named '{component}'"
            problems.add(place_of(node, keys), keys, what, suggestion=nearest(component, components))
