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
from pipeline.stage_table import StageName

EVERY_STAGE = "*"
ENGINE_ADDRESS = r"(tcp|tls|ucx|ws|wss)://[^\s/@]{1,250}"
"""The form of a scheduler's address; the schemes are those of the package `distributed`."""
StageOrAll = Literal["*", StageName]
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
    """A second store that machines share: a folder or a URL. Outputs that it has are restored instead of made, and new
    ones are written to it. `PIPELINE_SHARED_STORE` in the environment goes before this; if empty, it means none. Write
    no passwords here: they come from the environment."""


@dataclass(frozen=True)
class StageSettings:
    """Settings of one stage."""

    hosts: Annotated[
        tuple[HostName, ...],
        Size(1, 64, expected="at least one host name, such as [x86_64], and 64 at most"),
        Distinct(),
    ]
    """The hosts that may run its steps: those that have one of these names. Other hosts restore the steps, or leave
    them waiting."""


@dataclass(frozen=True)
class CompareSettings:
    """By how much an artifact may be worse than in the last run before `doit compare` fails."""

    size_percent: float = 5.0
    """How many percent its files may have grown at most."""
    cost_percent: float = 5.0
    """How many percent the cost of one run may have grown at most: multiply-accumulates, and bytes of weights, of
    activations, of what spills out of the chip's fast memory, and of what is read from and written to DRAM."""
    snr_db: float = 1.0
    """How many dB its SQNR on any rung may have dropped at most."""
    score: float = 0.01
    """How much its score may have changed at most."""


@dataclass(frozen=True)
class EngineSettings:
    """Where steps run, if not on this machine."""

    dask: Annotated[str, Pattern(ENGINE_ADDRESS, "the address of a Dask scheduler, such as tcp://host:8786")]
    """The scheduler of a cluster whose workers make the steps. It needs `store.shared`. `engine=URL` on the command
    line goes before this; `engine=` there means this machine."""


@dataclass(frozen=True)
class Settings:
    """Settings of the project, in `configs/project.yaml`; every key, and the file, may be left out."""

    store: StoreSettings = field(default_factory=StoreSettings)
    """Where outputs are kept."""
    stages: Mapping[StageOrAll, StageSettings] = field(default_factory=dict)
    """Which hosts may run a stage, by its name; `*` stands for every stage that is not named."""
    engine: EngineSettings | None = None
    """Where steps run; on this machine when left out."""
    compare: CompareSettings = field(default_factory=CompareSettings)
    """Limits of `doit compare`."""

    def hosts(self, stage: str) -> tuple[str, ...] | None:
        """The names of which a host must have one to run a stage; None if any host may run it."""
        chosen = self.stages.get(stage) or self.stages.get(EVERY_STAGE)  # type: ignore[call-overload]
        return chosen.hosts if chosen else None

    def ruled_by(self, stage: str) -> Keys:
        """The path in the file of the setting that :meth:`hosts` returns for a stage."""
        return ("stages", stage if stage in self.stages else EVERY_STAGE, "hosts")


@dataclass(frozen=True)
class ProjectFile:
    """Settings, and the places where they are written, such as `store.shared` -> `file:line:column`."""

    settings: Settings = field(default_factory=Settings)
    places: Mapping[str, str] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """The place of a key such as `store.shared`, for messages."""
        return self.places.get(key, f"{CONFIGS}/{PROJECT_FILE}")


def load(folder: Path) -> ProjectFile:
    """The settings in `folder` (`<project>/configs`); all defaults if there is no file.

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
    """Refuse names that look like names by nature and are none, as no host would ever have them."""
    for keys, found in walk(node):
        if keys[:1] == ("stages",) and len(keys) == 4 and isinstance(found, Value) and isinstance(found.data, str):
            name = host_names.canonical(found.data)
            if guess := host_names.meant(name):
                problems.add(found.place, keys, f"no host has the name '{name}'", suggestion=guess)
