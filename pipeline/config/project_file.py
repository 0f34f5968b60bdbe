"""What may be written in `configs/project.yaml`, as types: settings of the project, whatever its models.

As in :mod:`pipeline.config.file`, these dataclasses are the only definition: decoding, `configs/project.schema.json`
and a section of `docs/config.md` are made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pipeline.config import host_names
from pipeline.config.file_names import PROJECT_FILE
from pipeline.config.written_values import CONFIGS, PROJECT
from pipeline.config.yaml.decode import decode_fields
from pipeline.config.yaml.field_types import Convert, Distinct, Pattern, Record, Size, record_of
from pipeline.config.yaml.problems import Keys, Problems, dotted
from pipeline.config.yaml.tree import MapNode, Node, Value, place_of, read, walk
from pipeline.frozen import dataclass

EVERY_STAGE = "*"
ENGINE_ADDRESS = r"(tcp|tls|ucx|ws|wss)://[^\s/@]{1,250}"
"""Of a scheduler; the schemes are those of distributed."""
StageName = Literal[
    "*",
    "fetch",
    "ingest",
    "shape",
    "rewrite",
    "samples",
    "calibrate",
    "correlate",
    "precision",
    "quantize",
    "verify",
    "packing",
    "context",
    "alone",
    "bundle",
    "emulate",
    "export",
    "converse",
    "blame",
    "probe",
]
HostName = Annotated[
    str,
    Pattern(
        r"[A-Za-z0-9][A-Za-z0-9 +._-]{0,62}",
        "a host name, such as x86_64, windows-aarch64, snapdragon-x-elite, or one of your own for PIPELINE_HOST",
    ),
    Convert(lambda text, _: host_names.canonical(text)),
]


@dataclass(frozen=True)
class StoreSettings:
    """Where outputs are kept, beside the store on this machine."""

    shared: Annotated[str, Pattern(r"[^\x00-\x1f]{1,2000}", "a folder or a URL, such as s3://bucket/folder")] | None = (
        None
    )
    """A second tier that machines share: a folder or a URL. What it holds is restored instead of made, and what is made
    is written to it. `PIPELINE_SHARED_STORE` in the environment goes before; empty, it means none. No passwords here:
    they come from the environment."""


@dataclass(frozen=True)
class StageSettings:
    """What goes for one stage."""

    hosts: Annotated[
        tuple[HostName, ...],
        Size(1, 64, expected="at least one host name, such as [x86_64], and 64 at most"),
        Distinct(),
    ]
    """Hosts that may run its steps: any host that has one of these names. Another host restores them or leaves them
    waiting."""


@dataclass(frozen=True)
class CompareSettings:
    """By how much an artifact may be worse than in the last run before `doit compare` fails."""

    size_percent: float = 5.0
    """The most that its files may have grown, in percent."""
    cost_percent: float = 5.0
    """The most that what one run takes may have grown, in percent: multiply-accumulates, bytes of weights, of
    activations, of what spills out of the chip's fast memory, and of what is read from DRAM and written to it."""
    snr_db: float = 1.0
    """The most that its SQNR on any rung may have dropped, in dB."""
    score: float = 0.01
    """The most that its score may have moved."""


@dataclass(frozen=True)
class EngineSettings:
    """Where steps run, if not on this machine."""

    dask: Annotated[str, Pattern(ENGINE_ADDRESS, "the address of a Dask scheduler, such as tcp://host:8786")]
    """The scheduler of a cluster whose workers make the steps. Needs `store.shared`. `engine=URL` on the command line
    goes before; `engine=` there means this machine."""


@dataclass(frozen=True)
class Settings:
    """Settings of the project, in `configs/project.yaml`; every key, and the file, may be left out."""

    store: StoreSettings = field(default_factory=StoreSettings)
    """Where outputs are kept."""
    stages: Mapping[StageName, StageSettings] = field(default_factory=dict)
    """Which hosts may run a stage, by its name; `*` stands for every stage that is not named."""
    engine: EngineSettings | None = None
    """Where steps run; on this machine when left out."""
    compare: CompareSettings = field(default_factory=CompareSettings)
    """Limits of `doit compare`."""

    def hosts(self, stage: str) -> tuple[str, ...] | None:
        """The host names of which one must be that of a host which runs a stage; None: any host may."""
        chosen = self.stages.get(stage) or self.stages.get(EVERY_STAGE)  # type: ignore[call-overload]
        return chosen.hosts if chosen else None

    def ruled_by(self, stage: str) -> Keys:
        """Where that is written."""
        return ("stages", stage if stage in self.stages else EVERY_STAGE, "hosts")


@dataclass(frozen=True)
class ProjectFile:
    """Settings, and the places where they are written: `store.shared` and the like to `file:line:column`."""

    settings: Settings = field(default_factory=Settings)
    places: Mapping[str, str] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """Where a key, as `store.shared`, is written, for messages."""
        return self.places.get(key, f"{CONFIGS}/{PROJECT_FILE}")


def load(folder: Path) -> ProjectFile:
    """The settings in `folder` (`<project>/configs`); all defaults where there is no file.

    Raises:
        ConfigError: listing every mistake in the file.
    """
    problems = Problems()
    project = decode(folder, problems)
    if project is None:
        raise problems.refusal()
    return project


def decode(folder: Path, problems: Problems) -> ProjectFile | None:
    """As :func:`load`; None when something was added to `problems`."""
    path, before = folder / PROJECT_FILE, len(problems)
    file = f"{folder.name}/{PROJECT_FILE}"
    if not path.exists() and not path.is_symlink():
        return ProjectFile()
    data = read(path, file, problems)
    if data is not None and not any(line.strip() and not line.startswith(b"#") for line in data.splitlines()):
        return ProjectFile()
    from pipeline.config.yaml.parse import parse  # PyYAML: only for who has a file to parse

    node = parse(data, file, problems) if data is not None else None
    if node is None:
        return None
    if isinstance(node, MapNode) and {"source", "components"} <= node.keys.keys():
        expected = "another name for it: in this file are settings of the project"
        problems.add(node.place, (), "describes a model", expected=expected)
        return None
    fields = decode_fields(_form(), node, problems, {PROJECT: folder.parent, CONFIGS: folder})
    _check_limits(fields.get("compare"), node, problems)
    _check_hosts(node, problems)
    if len(problems) > before:
        return None
    return ProjectFile(Settings(**fields), {dotted(keys): str(found.place) for keys, found in walk(node)})


@cache
def _form() -> Record:
    return record_of(Settings)


def _check_limits(compare: CompareSettings | None, node: Node, problems: Problems) -> None:
    for name, value in vars(compare).items() if compare else ():
        if value < 0:
            keys = ("compare", name)
            problems.add(place_of(node, keys), keys, f"number {value:g}", expected="0 or more")


def _check_hosts(node: Node, problems: Problems) -> None:
    """Refuse names that look like those that hosts have by nature and are none: no host would ever have them."""
    for keys, found in walk(node):
        if keys[:1] == ("stages",) and len(keys) == 4 and isinstance(found, Value) and isinstance(found.data, str):
            name = host_names.canonical(found.data)
            if guess := host_names.meant(name):
                problems.add(found.place, keys, f"no host has the name '{name}'", suggestion=guess)
