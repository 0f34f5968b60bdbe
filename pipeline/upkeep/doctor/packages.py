"""The packages of this Python: what is missing, what clashes, what is not as pinned, and the trio that must fit.

Two distributions that own one module overwrite each other's files, and what is left of both is imported. So owners are
looked up by module, in what each distribution says that it installed; names help only where one says nothing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.doctor.finding import COMPILER, ENVIRONMENT, Finding, error, ok, unchecked, warning
from pipeline.qnn.drivers import RELEASES
from pipeline.qnn.versions import numbers

TESTED: Mapping[str, str] = {"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0", "qairt": "2.51.0"}
"""The trio that every test of this project runs with, compiler and emulator included."""

_FIRST_PLUGIN = (2, 0)  # onnxruntime-qnn before it brings an onnxruntime of its own
_SAY_NOTHING = re.compile(r"(onnxruntime|ort)-(?!qnn$|extensions$|genai)[a-z0-9-]+")  # ort-nightly, onnxruntime-gpu, …
_API_HANDSHAKE = "https://github.com/onnxruntime/onnxruntime-qnn/issues/564"
_UV_SYNC = "run 'uv sync', then 'uv run doit'"


@dataclass(frozen=True)
class Distribution:
    """An installed distribution, by its normal name; `modules` is what it says that it installed, `place` where."""

    name: str
    version: str
    modules: frozenset[str] = frozenset()
    place: str = ""
    requires: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Pin:
    """A line of `dependencies`: a normal name, `==` or `>=`, a version."""

    name: str
    operator: str
    version: str

    def holds(self, version: str) -> bool:
        """Whether a version is one that the pin allows."""
        if self.operator == "==":
            return version == self.version
        return numbers(version) >= numbers(self.version)

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.version}"


@dataclass(frozen=True)
class PackageFacts:
    """What is installed, what should be, and what the files themselves say: module -> version."""

    installed: tuple[Distribution, ...]
    pins: tuple[Pin, ...]
    qairt: str = ""
    in_files: Mapping[str, str] = field(default_factory=dict)
    api: tuple[int, int] | None = None
    """The API versions that the EP asked for, and that this onnxruntime has at most; None: not asked."""
    imported: Mapping[str, str] = field(default_factory=dict)
    """The folders that the modules of what is asked for are imported from, by module."""


def gather(pyproject: Path) -> PackageFacts:
    """The facts of this environment; `api` is not among them, as asking loads the library."""
    installed, pins = tuple(_installed()), read_pins(pyproject)
    return PackageFacts(installed, pins, _qairt(), _in_files(), imported=_imported(installed, pins))


def check(facts: PackageFacts) -> Iterator[Finding]:
    """All findings about packages."""
    found = [*_clashes(facts), *_shadows(facts), *_against_pins(facts)]
    yield from found
    if all(each.level == "warning" for each in found):
        yield ok("packages.installed", f"all {len(facts.pins)} packages of pyproject.toml are there, as pinned")
    yield _trio(facts)
    yield _api(facts)


def refusals(facts: PackageFacts) -> Iterator[Finding]:
    """The errors among the findings that keep a build from being right."""
    found = (*_clashes(facts), *_shadows(facts), *_against_pins(facts), _trio(facts))
    return (each for each in found if each.level == "error")


def normal(name: str) -> str:
    """A distribution's name as indexes compare it (https://peps.python.org/pep-0503/#normalized-names)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(pyproject: Path) -> tuple[Pin, ...]:
    """The pins under `dependencies` of pyproject.toml; none where it can't be read."""
    try:
        import tomllib  # since Python 3.11, and this has to be able to say so to an older one

        lines = tomllib.loads(pyproject.read_text("utf-8"))["project"]["dependencies"]
    except (ImportError, OSError, ValueError, KeyError, TypeError):
        return ()
    found = (re.match(r"\s*([A-Za-z0-9._-]+)\s*(==|>=)\s*([0-9][\w.]*)", str(line)) for line in lines)
    return tuple(Pin(normal(match[1]), match[2], match[3]) for match in found if match)


def _clashes(facts: PackageFacts) -> Iterator[Finding]:
    name = "packages.clash"
    ours = {pin.name for pin in facts.pins} | {"onnxruntime", "onnxruntime-qnn"}
    by_name: dict[str, list[Distribution]] = {}
    owners: dict[str, list[Distribution]] = {}
    for each in facts.installed:
        by_name.setdefault(each.name, []).append(each)
        for module in _modules(each):
            owners.setdefault(module, []).append(each)
    for package in sorted(ours & by_name.keys()):
        copies = by_name[package]
        if len({each.place for each in copies}) > 1 or len({each.version for each in copies}) > 1:
            where = ", ".join(f"{each.version} in {each.place}" for each in copies)
            why = f"it is installed {len(copies)} times: {where}; the first on the path is imported"
            remedy = "remove the others from PYTHONPATH or uninstall them"
            asked = [pin for pin in facts.pins if pin.name == package]
            if asked and all(pin.holds(copies[0].version) for pin in asked):  # the one that is imported is right
                yield warning(name, f"two copies of {package}", package, why=why, remedy=remedy)
                continue
            code = COMPILER if package in TESTED else ENVIRONMENT
            yield error(name, f"two copies of {package}", code, package, why=why, remedy=remedy)
    for module in sorted(owners):
        others = {each.name: each for each in owners[module]}
        if len(others) < 2 or not (others.keys() & ours):
            continue
        extra = [each for each in others.values() if each.name != module and not _is_plugin(each)]
        listed = " and ".join(f"{each.name} {each.version}" for each in others.values())
        yield error(
            name,
            f"{listed} both install the module {module}",
            COMPILER if module.startswith("onnxruntime") else ENVIRONMENT,
            module,
            why=_why_clash(extra),
            remedy=_remedy_clash(extra, module),
        )


def _shadows(facts: PackageFacts) -> Iterator[Finding]:
    """Modules that are imported from elsewhere than where a distribution put them."""
    for module, folder in sorted(facts.imported.items()):
        owners = [each for each in facts.installed if module in each.modules]
        if not owners or any(_same_folder(folder, each.place) for each in owners):
            continue
        owner = owners[0]
        yield error(
            "packages.clash",
            f"{module} in {folder} hides the module of {owner.name} {owner.version}",
            COMPILER if owner.name in TESTED else ENVIRONMENT,
            module,
            why=f"{folder} is before {owner.place} on Python's path, so its {module} is imported",
            remedy=f"remove or rename {module} in {folder}, or take that folder off PYTHONPATH",
        )


def _same_folder(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return one == other


def _why_clash(extra: Iterable[Distribution]) -> str:
    if any(each.name == "onnxruntime-qnn" for each in extra):
        return (
            "onnxruntime-qnn before 2.0 has an onnxruntime of its own, and pip lets them overwrite each other's files"
        )
    return "pip lets them overwrite each other's files: what is imported is a mix, mostly without the QNN provider"


def _remedy_clash(extra: Iterable[Distribution], module: str) -> str:
    names = " ".join(sorted(each.name for each in extra)) or module
    return f"uninstall {names}, then reinstall what it broke: uv sync --reinstall-package {module}"


def _against_pins(facts: PackageFacts) -> Iterator[Finding]:
    versions = {each.name: each.version for each in reversed(facts.installed)}
    if not facts.pins:
        yield unchecked("packages.installed", "versions against pyproject.toml", why="it could not be read")
    for pin in facts.pins:
        exit_code = COMPILER if pin.name in TESTED else ENVIRONMENT
        have = versions.get(pin.name)
        if have is None:
            yield error("packages.installed", f"{pin.name} is not installed", exit_code, pin.name, remedy=_UV_SYNC)
        elif not pin.holds(have):
            why = f"pyproject.toml asks for {pin}"
            yield error("packages.installed", f"{pin.name} {have}", exit_code, pin.name, why=why, remedy=_UV_SYNC)
    for module, stated in facts.in_files.items():
        have = versions.get(normal(module))
        if have and stated and stated != have:
            yield error(
                "packages.installed",
                f"the files of {module} are of version {stated}, and {have} is installed",
                COMPILER,
                module,
                why="another package wrote over them, or the installation was cut short",
                remedy=f"uv sync --reinstall-package {normal(module)}",
            )


def _trio(facts: PackageFacts) -> Finding:
    """Whether onnxruntime, onnxruntime-qnn and the QAIRT in it are known to work together."""
    name = "packages.trio"
    versions = {each.name: each.version for each in reversed(facts.installed)}
    have = {package: versions.get(package, "") for package in TESTED} | {"qairt": facts.qairt}
    written = ", ".join(f"{package} {have[package] or 'missing'}" for package in TESTED)
    if have == TESTED:
        return ok(name, f"{written}: known to work", why="every test of this project compiles and emulates with it")
    if numbers(have["onnxruntime-qnn"]) and numbers(have["onnxruntime-qnn"]) < _FIRST_PLUGIN:
        why = "onnxruntime-qnn before 2.0 is no plugin: it replaces onnxruntime"
    elif (2, 0) <= numbers(have["onnxruntime-qnn"])[:2] < (2, 4) and numbers(have["onnxruntime"])[:2] >= (1, 27):
        why = f"onnxruntime-qnn before 2.4 fails the version handshake of onnxruntime 1.27 and later ({_API_HANDSHAKE})"
    else:
        released = next((each for each in RELEASES if each.ep == have["onnxruntime-qnn"]), None)
        why = (
            f"onnxruntime-qnn {released.ep} has QAIRT {released.sdk} and was built with onnxruntime "
            f"{released.onnxruntime} ({released.source}); a pair that does not fit compiles nothing, silently"
            if released
            else "nothing is known of this pair; one that does not fit compiles nothing, silently"
        )
    tested = ", ".join(f"{package} {version}" for package, version in TESTED.items())
    return error(name, f"{written}: not the tested trio ({tested})", COMPILER, why=why, remedy=_UV_SYNC)


def _api(facts: PackageFacts) -> Finding:
    name = "packages.api"
    if facts.api is None:
        return unchecked(name, "the API version that the EP asks onnxruntime for", why="its library was not loaded")
    asked, offered = facts.api
    if asked > offered:
        return error(
            name,
            f"the EP asks onnxruntime for API version {asked}, and this one has {offered} at most",
            COMPILER,
            why="onnxruntime is older than this onnxruntime-qnn was built for",
            remedy=_UV_SYNC,
        )
    if asked < offered:
        return ok(name, f"the EP asks for API version {asked}; this onnxruntime has up to {offered}")
    return ok(name, f"the EP asks for API version {asked}, which is this onnxruntime's own")


def _modules(distribution: Distribution) -> frozenset[str]:
    """The modules of a distribution; of one that does not say, what its name gives away."""
    if distribution.modules:
        return distribution.modules
    if distribution.name == "onnxruntime-qnn":
        return frozenset({"onnxruntime_qnn" if _is_plugin(distribution) else "onnxruntime"})
    return frozenset({"onnxruntime"}) if _SAY_NOTHING.fullmatch(distribution.name) else frozenset()


def _is_plugin(distribution: Distribution) -> bool:
    return distribution.name == "onnxruntime-qnn" and numbers(distribution.version) >= _FIRST_PLUGIN


def _installed() -> Iterator[Distribution]:
    for found in importlib.metadata.distributions():
        try:
            name, version = normal(found.metadata["Name"] or ""), found.version or ""
            modules = _installed_modules(found)
            required = (re.match(r"[A-Za-z0-9._-]+", line) for line in found.requires or () if "extra ==" not in line)
            requires = frozenset(normal(match[0]) for match in required if match)
        except (KeyError, TypeError, OSError, ValueError):
            continue  # a folder that pip left half removed
        if name:
            yield Distribution(name, version, modules, str(found.locate_file("")).rstrip("/\\"), requires)


def _installed_modules(found: importlib.metadata.Distribution) -> frozenset[str]:
    """The packages and modules at the top of what a distribution installed, namespaces without a file left out."""
    record = found.read_text("RECORD") or ""
    modules = re.findall(r"^([A-Za-z0-9_]+)/__init__\.py,", record, re.MULTILINE)
    modules += re.findall(r"^([A-Za-z0-9_]+)\.py,", record, re.MULTILINE)
    return frozenset(modules or (found.read_text("top_level.txt") or "").split())


def _imported(installed: Iterable[Distribution], pins: Iterable[Pin]) -> dict[str, str]:
    """The folders that the modules of the pinned distributions, and of what they require, are imported from."""
    by_name: dict[str, list[Distribution]] = {}
    for each in installed:
        by_name.setdefault(each.name, []).append(each)
    names = {pin.name for pin in pins}
    more = names
    while more:
        more = {name for each in more for copy in by_name.get(each, ()) for name in copy.requires} - names
        names |= more
    modules = {module for name in names for each in by_name.get(name, ()) for module in each.modules}
    return {module: folder for module in modules if (folder := _folder_of(module))}


def _folder_of(module: str) -> str:
    """The folder on Python's path that a module would be imported from; empty if there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return ""
    if spec is None or not spec.has_location or not spec.origin:
        return ""
    origin = Path(spec.origin)
    return str(origin.parent.parent if spec.submodule_search_locations is not None else origin.parent)


def _in_files() -> dict[str, str]:
    """The versions that the files of the two packages state."""
    stated = {}
    for module, file in (("onnxruntime", "__init__.py"), ("onnxruntime_qnn", "build_and_package_info.py")):
        found = re.search(r"""^__version__\s*=\s*['"]([^'"]+)""", _source(module, file), re.MULTILINE)
        if found:
            stated[module] = found[1]
    return stated


def _qairt() -> str:
    found = re.search(r"qnn_version\s*=\s*'([^']+)'", _source("onnxruntime_qnn", "build_and_package_info.py"))
    return found[1] if found else ""


def _source(module: str, file: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return ""
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        try:
            return Path(folder, file).read_text("utf-8")
        except (OSError, ValueError):
            continue
    return ""
