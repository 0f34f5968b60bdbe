"""Whether what a config says of its release fits the rest of it."""

from __future__ import annotations

from collections.abc import Collection

from pipeline.config.file import ReleaseSettings
from pipeline.config.yaml.problems import Keys, Place, Problems, nearest
from pipeline.config.yaml.tree import Node, place_of

FOLDER = "releases"
"""In `artifacts/`, the folder of archives, among those of models."""


def check_model(name: str, file: str, problems: Problems) -> None:
    """Add a problem for a model whose artifacts would lie where archives do; not all systems tell case apart."""
    if name.casefold() == FOLDER:
        what = f"the file's name can't name a model: '{name}'"
        problems.add(Place(file), (), what, expected=f"another name, as artifacts/{FOLDER}/ is for archives")


def check(release: ReleaseSettings | None, components: Collection[str], node: Node, problems: Problems) -> None:
    """Add a problem for each artifact that is named under a component that there is not.

    What buckets the components have is only known when the model was read; that is checked when it is packaged.
    """
    for index, name in enumerate(release.unverified if release and components else ()):
        if (component := name.partition("/")[0]) not in components:
            keys: Keys = ("release", "unverified", index)
            what = f"no component is named '{component}'"
            problems.add(place_of(node, keys), keys, what, suggestion=nearest(component, components))
