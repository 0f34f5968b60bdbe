"""Checks the packages of this Python: which are missing, clash, or are not as pinned, and whether the trio fits.

Two distributions that own one module overwrite each other's files, and Python imports a mix of both. So the checks find
the owners of a module in the lists of files that distributions installed. They go by a distribution's name only if it
has no such list.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from pipeline.frozen import dataclass
from pipeline.qnn.drivers import RELEASES
from pipeline.qnn.versions import numbers
from pipeline.upkeep.doctor.finding import COMPILER, ENVIRONMENT, Check, Finding

TESTED: Mapping[str, str] = {"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0", "qairt": "2.51.0"}
"""The trio of packages that every test of this project runs with, compiler and emulator included."""

_FIRST_PLUGIN = (2, 0)  # onnxruntime-qnn before it brings an onnxruntime of its own
_SAY_NOTHING = re.compile(r"(onnxruntime|ort)-(?!qnn$|extensions$|genai)[a-z0-9-]+")  # ort-nightly, onnxruntime-gpu, …
# A field of METADATA with its continuation lines, which begin with a space.
_FIELD = re.compile(r"\n(Name|Version|Requires-Dist):(.*(?:\n[ \t].*)*)", re.IGNORECASE)
_BUILD_INFO = "build_and_package_info.py"
_API_HANDSHAKE = "https://github.com/onnxruntime/onnxruntime-qnn/issues/564"
_UV_SYNC = "run 'uv sync', then 'uv run doit'"
_CLASH, _INSTALLED = Check("packages.clash"), Check("packages.installed")
_TRIO, _API = Check("packages.trio", COMPILER), Check("packages.api", COMPILER)


@dataclass(frozen=True)
class Distribution:
    """An installed distribution: its normalized name, the modules that it installed, and their folder, `place`."""

    name: str
    version: str
    modules: frozenset[str] = frozenset()
    place: str = ""
    requires: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Pin:
    """A line of `dependencies`: a normalized name, `==` or `>=`, and a version."""

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
    """What is installed, what should be, and the versions that the files of modules state, by module."""

    installed: tuple[Distribution, ...]
    pins: tuple[Pin, ...]
    qairt: str = ""
    in_files: Mapping[str, str] = field(default_factory=dict)
    api: tuple[int, int] | None = None
    """The API version that the EP asks for, and the newest that this onnxruntime has; None: not asked."""
    imported: Mapping[str, str] = field(default_factory=dict)
    """The folders that the modules of pinned distributions, and of their requirements, are imported from, by module."""


def gather(pyproject: Path) -> PackageFacts:
    """The facts of this environment except `api`, for which the EP's library has to be loaded."""
    installed, pins = tuple(_installed()), read_pins(pyproject)
    return PackageFacts(installed, pins, _qairt(), _in_files(), imported=_imported(installed, pins))


def check(facts: PackageFacts) -> Iterator[Finding]:
    """All findings about packages."""
    found = [*_clashes(facts), *_shadows(facts), *_against_pins(facts)]
    yield from found
    if all(each.level == "warning" for each in found):
        yield _INSTALLED.ok(f"all {len(facts.pins)} packages of pyproject.toml are there, as pinned")
    yield _trio(facts)
    yield _api(facts)


def refusals(facts: PackageFacts) -> Iterator[Finding]:
    """Those errors among the findings because of which a build would fail, or be wrong."""
    found = (*_clashes(facts), *_shadows(facts), *_against_pins(facts), _trio(facts))
    return (each for each in found if each.level == "error")


def normal(name: str) -> str:
    """A distribution's name as indexes compare it (https://peps.python.org/pep-0503/#normalized-names)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(pyproject: Path) -> tuple[Pin, ...]:
    """The pins under `dependencies` of pyproject.toml; none if it can't be read."""
    try:
        import tomllib  # since Python 3.11; an older one must get as far as the check that says it is too old

        lines = tomllib.loads(pyproject.read_text("utf-8"))["project"]["dependencies"]
    except (ImportError, OSError, ValueError, KeyError, TypeError):
        return ()
    found = (re.match(r"\s*([A-Za-z0-9._-]+)\s*(==|>=)\s*([0-9][\w.]*)", str(line)) for line in lines)
    return tuple(Pin(normal(match[1]), match[2], match[3]) for match in found if match)


def _clashes(facts: PackageFacts) -> Iterator[Finding]:
    ours = {pin.name for pin in facts.pins} | {"onnxruntime", "onnxruntime-qnn"}
    by_name = _by_name(facts.installed)
    for package in sorted(ours & by_name.keys()):
        copies = by_name[package]
        if len({each.place for each in copies}) == len({each.version for each in copies}) == 1:
            continue
        where = ", ".join(f"{each.version} in {each.place}" for each in copies)
        why = f"it is installed {len(copies)} times: {where}; the first on the path is imported"
        asked = [pin for pin in facts.pins if pin.name == package]
        is_right = asked and all(pin.holds(copies[0].version) for pin in asked)
        check = _CLASH.about(package, _exit_code(package))
        say = check.warning if is_right else check.error
        yield say(f"two copies of {package}", why, "remove the others from PYTHONPATH or uninstall them")
    owners: dict[str, dict[str, Distribution]] = {}
    for each in facts.installed:
        for module in _modules(each):
            owners.setdefault(module, {})[each.name] = each
    for module, others in sorted(owners.items()):
        if len(others) < 2 or not (others.keys() & ours):
            continue
        extra = [each for each in others.values() if each.name != module and not _is_plugin(each)]
        listed = " and ".join(f"{each.name} {each.version}" for each in others.values())
        why = "pip lets them overwrite each other's files: what is imported is a mix, mostly without the QNN provider"
        if any(each.name == "onnxruntime-qnn" for each in extra):
            why = "onnxruntime-qnn before 2.0 has an onnxruntime of its own"
            why += ", and pip lets them overwrite each other's files"
        names = " ".join(sorted(each.name for each in extra)) or module
        remedy = f"uninstall {names}, then reinstall what it broke: uv sync --reinstall-package {module}"
        code = COMPILER if module.startswith("onnxruntime") else ENVIRONMENT
        yield _CLASH.about(module, code).error(f"{listed} both install the module {module}", why, remedy)


def _exit_code(package: str) -> int:
    return COMPILER if package in TESTED else ENVIRONMENT


def _by_name(installed: Iterable[Distribution]) -> dict[str, list[Distribution]]:
    found: dict[str, list[Distribution]] = {}
    for each in installed:
        found.setdefault(each.name, []).append(each)
    return found


def _shadows(facts: PackageFacts) -> Iterator[Finding]:
    """Errors about modules that are imported from another folder than a distribution put them into."""
    for module, folder in sorted(facts.imported.items()):
        owners = [each for each in facts.installed if module in each.modules]
        if not owners or any(_same_folder(folder, each.place) for each in owners):
            continue
        owner = owners[0]
        yield _CLASH.about(module, _exit_code(owner.name)).error(
            f"{module} in {folder} hides the module of {owner.name} {owner.version}",
            f"{folder} is before {owner.place} on Python's path, so its {module} is imported",
            f"remove or rename {module} in {folder}, or take that folder off PYTHONPATH",
        )


def _same_folder(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return one == other


def _against_pins(facts: PackageFacts) -> Iterator[Finding]:
    versions = {each.name: each.version for each in reversed(facts.installed)}
    if not facts.pins:
        yield _INSTALLED.unchecked("versions against pyproject.toml", "it could not be read")
    for pin in facts.pins:
        check, have = _INSTALLED.about(pin.name, _exit_code(pin.name)), versions.get(pin.name)
        if have is None:
            yield check.error(f"{pin.name} is not installed", remedy=_UV_SYNC)
        elif not pin.holds(have):
            yield check.error(f"{pin.name} {have}", f"pyproject.toml asks for {pin}", _UV_SYNC)
    for module, stated in facts.in_files.items():
        have = versions.get(normal(module))
        if have and stated and stated != have:
            yield _INSTALLED.about(module, COMPILER).error(
                f"the files of {module} are of version {stated}, and {have} is installed",
                "another package wrote over them, or the installation was cut short",
                f"uv sync --reinstall-package {normal(module)}",
            )


def _trio(facts: PackageFacts) -> Finding:
    """Whether onnxruntime, onnxruntime-qnn and the QAIRT in it are known to work together."""
    versions = {each.name: each.version for each in reversed(facts.installed)}
    have = {package: versions.get(package, "") for package in TESTED} | {"qairt": facts.qairt}
    written = ", ".join(f"{package} {have[package] or 'missing'}" for package in TESTED)
    if have == TESTED:
        return _TRIO.ok(f"{written}: known to work", "every test of this project compiles and emulates with it")
    qnn, released = numbers(have["onnxruntime-qnn"]), {each.ep: each for each in RELEASES}
    if qnn and qnn < _FIRST_PLUGIN:
        why = "onnxruntime-qnn before 2.0 is no plugin: it replaces onnxruntime"
    elif (2, 0) <= qnn[:2] < (2, 4) and numbers(have["onnxruntime"])[:2] >= (1, 27):
        why = f"onnxruntime-qnn before 2.4 fails the version handshake of onnxruntime 1.27 and later ({_API_HANDSHAKE})"
    elif found := released.get(have["onnxruntime-qnn"]):
        why = f"onnxruntime-qnn {found.ep} has QAIRT {found.sdk} and was built with onnxruntime {found.onnxruntime}"
        why += f" ({found.source}); a pair that does not fit compiles nothing, silently"
    else:
        why = "nothing is known of this pair; one that does not fit compiles nothing, silently"
    tested = ", ".join(f"{package} {version}" for package, version in TESTED.items())
    return _TRIO.error(f"{written}: not the tested trio ({tested})", why, _UV_SYNC)


def _api(facts: PackageFacts) -> Finding:
    if facts.api is None:
        return _API.unchecked("the API version that the EP asks onnxruntime for", "its library was not loaded")
    asked, offered = facts.api
    if asked > offered:
        what = f"the EP asks onnxruntime for API version {asked}, and this one has {offered} at most"
        return _API.error(what, "onnxruntime is older than this onnxruntime-qnn was built for", _UV_SYNC)
    if asked < offered:
        return _API.ok(f"the EP asks for API version {asked}; this onnxruntime has up to {offered}")
    return _API.ok(f"the EP asks for API version {asked}, which is this onnxruntime's own")


def _modules(distribution: Distribution) -> frozenset[str]:
    """The modules of a distribution; if it does not list its files, those that its name stands for."""
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
            fields, requirements = _metadata(found)
            name, version = normal(fields["name"]), fields.get("version", "")
            modules = _installed_modules(found)
            required = (re.match(r"[A-Za-z0-9._-]+", line) for line in requirements if "extra ==" not in line)
            requires = frozenset(normal(match[0]) for match in required if match)
        except (KeyError, TypeError, OSError, ValueError):
            continue  # a folder that pip left half removed
        if name:
            yield Distribution(name, version, modules, str(found.locate_file("")).rstrip("/\\"), requires)


def _metadata(found: importlib.metadata.Distribution) -> tuple[Mapping[str, str], Sequence[str]]:
    """The fields `name` and `version` of a distribution, and what it requires.

    `importlib.metadata` parses all fields, and the description: a tenth of a second for 120 distributions.
    """
    text = found.read_text("METADATA")
    if not text:  # an older form, whose requirements are in another file
        return {"name": found.metadata["Name"] or "", "version": found.metadata["Version"] or ""}, found.requires or ()
    fields = [(name.lower(), value.strip()) for name, value in _FIELD.findall("\n" + text.partition("\n\n")[0])]
    return dict(reversed(fields)), [value for name, value in fields if name == "requires-dist"]


def _installed_modules(found: importlib.metadata.Distribution) -> frozenset[str]:
    """The top packages and modules that a distribution installed, without namespace packages."""
    record = found.read_text("RECORD") or ""
    # A pattern that begins with a fixed character (`\n`) is found three times as fast as one with ^.
    modules = re.findall(r"\n([A-Za-z0-9_]+)(?:/__init__)?\.py,", f"\n{record}")
    return frozenset(modules or (found.read_text("top_level.txt") or "").split())


def _imported(installed: Iterable[Distribution], pins: Iterable[Pin]) -> dict[str, str]:
    """The folders that the modules of the pinned distributions, and of what they require, are imported from."""
    by_name, names = _by_name(installed), {pin.name for pin in pins}
    more = names
    while more:
        more = {name for each in more for copy in by_name.get(each, ()) for name in copy.requires} - names
        names |= more
    modules = {module for name in names for each in by_name.get(name, ()) for module in each.modules}
    return {module: folder for module in modules if (folder := _folder_of(module))}


def _folder_of(module: str) -> str:
    """The folder on Python's path that a module would be imported from; "" if there is none."""
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
    for module, file in (("onnxruntime", "__init__.py"), ("onnxruntime_qnn", _BUILD_INFO)):
        found = re.search(r"""^__version__\s*=\s*['"]([^'"]+)""", _source(module, file), re.MULTILINE)
        if found:
            stated[module] = found[1]
    return stated


def _qairt() -> str:
    found = re.search(r"qnn_version\s*=\s*'([^']+)'", _source("onnxruntime_qnn", _BUILD_INFO))
    return found[1] if found else ""


def _source(module: str, file: str) -> str:
    """The text of a file of a package, without importing the package; "" if it can't be read."""
    try:
        spec = importlib.util.find_spec(module)
        folders = spec.submodule_search_locations if spec else None
        return Path(folders[0], file).read_text("utf-8") if folders else ""
    except (ImportError, OSError, ValueError):
        return ""
