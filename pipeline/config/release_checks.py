"""Checks that what a config says of its release fits the rest of the config."""

from __future__ import annotations

from collections.abc import Collection

from pipeline.config.file import ReleaseSettings
from pipeline.config.yaml.problems import Keys, Place, Problems, nearest
from pipeline.config.yaml.tree import Node, place_of

FOLDER = "releases"
"""The folder of archives in `artifacts/`, beside the folders of models."""


def check_model(name: str, file: str, problems: Problems) -> None:
    """Add a problem for a model whose folder of artifacts would be that of archives, on some systems in any case."""
    if name.casefold() == FOLDER:
        what = f"the file's name can't name a model: '{name}'"
        problems.add(Place(file), (), what, expected=f"another name, as artifacts/{FOLDER}/ is for archives")


def check(release: ReleaseSettings | None, components: Collection[str], node: Node, problems: Problems) -> None:
    """Add a problem for each artifact under `unverified` whose component does not exist.

    The buckets of components are known only after the model was read; packaging checks those.
    """
    for index, name in enumerate(release.unverified if release and components else ()):
        if (component := name.partition("/")[0]) not in components:
            keys: Keys = ("release", "unverified", index)
            what = f"no component is named '{component}'"
            problems.add(place_of(node, keys), keys, what, suggestion=nearest(component, components))
