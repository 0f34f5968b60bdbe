"""Every package of uv.lock has a wheel for every host that the pipeline is for: nothing is ever compiled there."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from pipeline.stage_table import STAGES
from tests.support.project import ROOT

PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))


@dataclass(frozen=True)
class Host:
    """A system and a processor, by the names that markers and wheels have for them."""

    sys_platform: str
    platform_machine: str
    platforms: Sequence[str]

    def environment(self, python: tuple[int, int]) -> dict[str, str]:
        """What markers are evaluated with."""
        windows = self.sys_platform == "win32"
        version = f"{python[0]}.{python[1]}"
        return {
            "sys_platform": self.sys_platform,
            "platform_machine": self.platform_machine,
            "platform_system": "Windows" if windows else "Linux",
            "os_name": "nt" if windows else "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "python_version": version,
            "python_full_version": f"{version}.4",
        }

    def tags(self, python: tuple[int, int]) -> set[Tag]:
        """The tags of wheels that can be installed."""
        own = cpython_tags(python, [f"cp{python[0]}{python[1]}"], self.platforms)
        return {*own, *compatible_tags(python, f"cp{python[0]}{python[1]}", self.platforms)}


def _manylinux(machine: str, newest: int) -> Sequence[str]:
    """Of glibc 2.5 up to what the wheel of onnxruntime-qnn needs anyway."""
    return [f"manylinux_2_{minor}_{machine}" for minor in range(5, newest + 1)] + [f"manylinux2014_{machine}"]


HOSTS: Mapping[str, Host] = {
    "Linux x86_64": Host("linux", "x86_64", _manylinux("x86_64", 35)),
    "Linux ARM64": Host("linux", "aarch64", _manylinux("aarch64", 34)),
    "Windows x64": Host("win32", "AMD64", ["win_amd64"]),
    "Windows ARM64": Host("win32", "ARM64", ["win_arm64"]),
}
LACKING: Mapping[tuple[str, tuple[int, int]], set[str]] = {("Windows ARM64", (3, 11)): {"pyyaml"}}
"""What is known, and what docs/arm64.md and the doctor say."""


def _lock() -> list[dict[str, Any]]:
    return list(tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"])


def _needed(packages: Sequence[Mapping[str, Any]], environment: dict[str, str]) -> Iterator[Mapping[str, Any]]:
    """The packages that are installed on a host, with all extras and for development: what `uv sync` may install."""
    (project,) = (package for package in packages if "virtual" in package["source"])
    groups = (project.get("optional-dependencies", {}), project.get("dev-dependencies", {}))
    pending = [*project["dependencies"], *chain(*chain(*(group.values() for group in groups)))]
    seen = set()
    while pending:
        dependency = pending.pop()
        if "marker" in dependency and not Marker(dependency["marker"]).evaluate(environment):
            continue
        for package in packages:
            wanted = dependency.get("version", package.get("version"))
            if (package["name"], package.get("version")) == (dependency["name"], wanted):
                extras = [
                    package.get("optional-dependencies", {}).get(extra, []) for extra in dependency.get("extra", ())
                ]
                key = (package["name"], wanted, *dependency.get("extra", ()))
                if key not in seen:
                    seen.add(key)
                    pending += [*package.get("dependencies", []), *chain(*extras)]
                    yield package


def _has_wheel(package: Mapping[str, Any], tags: set[Tag]) -> bool:
    names = [wheel["url"].rsplit("/", 1)[1] for wheel in package.get("wheels", [])]
    return any(parse_wheel_filename(name.replace("%2B", "+"))[3] & tags for name in names)


@pytest.mark.parametrize("python", PYTHONS, ids=lambda version: f"{version[0]}.{version[1]}")
@pytest.mark.parametrize("name", HOSTS)
def test_every_package_of_the_lock_has_a_wheel(name: str, python: tuple[int, int]) -> None:
    host = HOSTS[name]
    tags = host.tags(python)
    needed = list(_needed(_lock(), host.environment(python)))
    assert {"onnxruntime-qnn", "cryptography", "aiohttp", "rpds-py", "pytest"} <= {each["name"] for each in needed}

    lacking = {package["name"] for package in needed if not _has_wheel(package, tags)}

    assert lacking == LACKING.get((name, python), set())


def test_no_package_that_is_in_keys_differs_between_hosts() -> None:

    packages = _lock()
    computing = {tool for stage in STAGES.values() for tool in stage.tools} - {"qairt"}
    found: dict[str, set[str]] = {}
    for host in HOSTS.values():
        for python in PYTHONS:
            for package in _needed(packages, host.environment(python)):
                if package["name"] in computing:
                    found.setdefault(package["name"], set()).add(package["version"])
    assert set(found) == computing
    assert {name: versions for name, versions in found.items() if len(versions) > 1} == {}
