"""Model configurations: read once, at the edge, into frozen and resolved values.

    configs/<model>.yaml --parse--> tree --decode--> config_file types --check, merge, resolve--> ModelConfig

:mod:`pipeline.config_file` says what may be written, :mod:`pipeline.yamltypes` reads it. Every mistake in every file is
found before anything is raised, and none is found later: what has come through here is consistent in itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.config_file import (
    CONFIGS,
    NAME,
    PROJECT,
    ComponentFile,
    Fp16,
    HubSource,
    LocalSource,
    ModelFile,
    NpzReader,
    PythonFunction,
    PythonReader,
    Quantization,
    Reader,
    RecordReader,
    TargetOptions,
    TextReader,
    Verification,
)
from pipeline.errors import ConfigError
from pipeline.yamltypes.decode import decode_fields
from pipeline.yamltypes.problems import Place, Problems, dotted, nearest
from pipeline.yamltypes.tree import MAX_BYTES, Node, parse, place_of, walk

__all__ = [
    "PINS_FILE",
    "Bucket",
    "Component",
    "Fp16",
    "HubSource",
    "LocalSource",
    "ModelConfig",
    "NpzReader",
    "PythonFunction",
    "PythonReader",
    "Quantization",
    "Reader",
    "RecordReader",
    "Target",
    "TextReader",
    "Verification",
    "load",
    "load_all",
    "require_files",
]

PINS_FILE = "pins.yaml"
"""In `configs/`, but not a model: which commit each branch or tag was pinned to."""


@dataclass(frozen=True)
class Bucket:
    """One fixed value for each length axis, axes in the order of the config."""

    axes: Mapping[str, int]

    @property
    def name(self) -> str:
        """The name in steps and artifacts: `64`, `64x128`, or `all` where there is no length axis."""
        return "x".join(str(value) for value in self.axes.values()) or "all"

    def on(self, axes: Collection[str]) -> Bucket:
        """This bucket with only those of its axes that are in `axes`."""
        return Bucket({axis: value for axis, value in self.axes.items() if axis in axes})


@dataclass(frozen=True)
class Component:
    """One ONNX file of the model. `padding` has the inputs whose fill value was given; others are filled with 0."""

    name: str
    file: str
    padding: Mapping[str, float]
    quantization: Quantization | Fp16


@dataclass(frozen=True)
class Target:
    """A SoC by its canonical name in the catalogue, and compile options; `vtcm_mb` None leaves it to the catalogue."""

    soc: str
    vtcm_mb: int | None = None


@dataclass(frozen=True)
class ModelConfig:
    """One model, with everything merged and resolved. Paths are absolute; those in the source are POSIX and relative.

    `buckets` is sorted by value, has no duplicates and at least one entry. `calibration` is there unless all components
    are fp16. `places` maps `components.encoder.file` and the like to `file:line:column`, for messages of later steps.
    """

    name: str
    path: Path
    source: HubSource | LocalSource
    components: Mapping[str, Component]
    files: tuple[str, ...]
    fixed: Mapping[str, int]
    buckets: tuple[Bucket, ...]
    calibration: Reader | None
    verification: Verification | None
    targets: tuple[Target, ...]
    on_request: bool
    places: Mapping[str, str] = field(compare=False, repr=False)

    def buckets_on(self, axes: Collection[str]) -> tuple[Bucket, ...]:
        """The buckets of a component that has only `axes`: those equal on them are one."""
        found: list[Bucket] = []
        for bucket in self.buckets:
            if (own := bucket.on(axes)) not in found:
                found.append(own)
        return tuple(found)


def load(path: Path, *, known_targets: Mapping[str, str]) -> ModelConfig:
    """The model that `path` (`<project>/configs/<model>.yaml`) describes.

    `known_targets` maps each accepted name of a target to its canonical name.

    Raises:
        ConfigError: listing every mistake in the file, each with line, column, path in the document and remedy.
    """
    problems = Problems()
    config = _read(path, known_targets, problems)
    if config is None or len(problems):
        raise _refusal(problems)
    return config


def load_all(folder: Path, *, known_targets: Mapping[str, str]) -> dict[str, ModelConfig]:
    """The models of all `*.yaml` in `folder` (`<project>/configs`) by name, in the order of names.

    Raises:
        ConfigError: listing every mistake in every file.
    """
    problems = Problems()
    if not folder.is_dir():
        problems.add(Place(_shown(folder)), (), "is not there", expected="the folder with one YAML file a model")
    configs: dict[str, ModelConfig] = {}
    for path in sorted(folder.glob("[!.]*.y*ml")):
        if path.suffix == ".yml":
            problems.add(Place(_shown(path)), (), "would not be read", expected=f"the name {path.stem}.yaml")
        elif path.name != PINS_FILE and (config := _read(path, known_targets, problems)):
            configs[config.name] = config
    if len(problems):
        raise _refusal(problems)
    return configs


def require_files(config: ModelConfig) -> None:
    """Check that what the config names on this machine exists: samples, code, a local source.

    Not a part of :func:`load`, so that listing and cleaning work without the data.

    Raises:
        ConfigError: listing all that is missing, with the nearest name in the same folder.
    """
    problems = Problems()
    wanted: list[tuple[str, Path]] = []
    if isinstance(config.source, LocalSource):
        wanted.append(("source.path", config.source.path))
        wanted += [(f"components.{c.name}.file", config.source.path / c.file) for c in config.components.values()]
        wanted += [(f"files[{index}]", config.source.path / name) for index, name in enumerate(config.files)]
    wanted += _reader_files("calibration", config.calibration)
    if config.verification:
        wanted += _reader_files("verification.samples", config.verification.samples)
        if config.verification.score:
            wanted.append(("verification.score", config.verification.score.file))
    for path, file in wanted:
        if not file.exists():
            near = nearest(file.name, (entry.name for entry in file.parent.iterdir())) if file.parent.is_dir() else ""
            place = config.places.get(path, _shown(config.path))
            problems.add(_placed(place), (path,), f"{file} does not exist", suggestion=near)
    if len(problems):
        raise _refusal(problems)


def _reader_files(path: str, reader: Reader | None) -> list[tuple[str, Path]]:
    match reader:
        case None:
            return []
        case TextReader():
            return [(f"{path}.file", reader.file)]
        case NpzReader():
            return [(f"{path}.folder", reader.folder)]
        case PythonReader() | RecordReader():
            files = [(f"{path}.file", reader.file)] if reader.file else []
            return [*files, (f"{path}.run", reader.run.file)]


def _read(path: Path, known_targets: Mapping[str, str], problems: Problems) -> ModelConfig | None:
    """The config in one file; None, or a part of the truth, when something was added to `problems`."""
    file, before = _shown(path), len(problems)
    data = _bytes_of(path, problems)
    node = parse(data, file, problems) if data is not None else None
    if node is None:
        return None
    if not re.fullmatch(NAME.regex, path.stem):
        problems.add(Place(file), (), f"the file's name can't name a model: '{path.stem}'", expected=NAME.expected)
    bases = {PROJECT: path.resolve().parent.parent, CONFIGS: path.resolve().parent}
    fields = decode_fields(ModelFile, node, problems, bases)
    targets = _targets(fields.get("targets", ()), node, known_targets, problems)
    buckets = _buckets(fields.get("buckets", ()), fields.get("fixed", {}), node, problems)
    components = _components(fields)
    if components and any(isinstance(component.quantization, Quantization) for component in components.values()):
        _require_calibration(fields, node, problems)
    if len(problems) > before:
        return None
    return ModelConfig(
        name=path.stem,
        path=path,
        source=fields["source"],
        components=components,
        files=fields["files"],
        fixed=fields["fixed"],
        buckets=buckets,
        calibration=fields["calibration"],
        verification=fields["verification"],
        targets=targets,
        on_request=fields["on_request"],
        places={dotted(keys): str(found.place) for keys, found in walk(node)},
    )


def _bytes_of(path: Path, problems: Problems) -> bytes | None:
    file = Place(_shown(path))
    try:
        if path.stat().st_size > MAX_BYTES:
            problems.add(file, (), "is too large", expected=f"at most {MAX_BYTES} bytes")
            return None
        return path.read_bytes()
    except OSError as error:
        problems.add(file, (), f"can't be read: {error.strerror or error}")
        return None


def _targets(
    written: tuple[str | TargetOptions, ...], node: Node, known: Mapping[str, str], problems: Problems
) -> tuple[Target, ...]:
    folded = {name.casefold(): target for name, target in known.items()}
    found: dict[str, Target] = {}
    for index, entry in enumerate(written):
        options = TargetOptions(entry) if isinstance(entry, str) else entry
        keys = ("targets", index)
        soc = folded.get(options.soc.casefold())
        if soc is None:
            problems.add(
                place_of(node, keys),
                keys,
                f"unknown target '{options.soc}'",
                expected="a SoC of the catalogue, such as " + ", ".join(sorted(set(known.values()))[:6]),
                suggestion=nearest(options.soc, known),
            )
        elif soc in found:
            problems.add(place_of(node, keys), keys, f"'{options.soc}' is {soc}, which is there already")
        else:
            found[soc] = Target(soc, options.vtcm_mb)
    return tuple(found.values())


def _buckets(
    written: Mapping[str, tuple[int, ...]] | tuple[Mapping[str, int], ...],
    fixed: Mapping[str, int],
    node: Node,
    problems: Problems,
) -> tuple[Bucket, ...]:
    """The buckets, smallest first; of the list form all points must have the axes of the first, in its order."""
    keys: tuple[str | int, ...]
    if isinstance(written, Mapping):
        points: list[Mapping[str, int]] = [{axis: value} for axis, values in written.items() for value in values]
    else:
        points = list(written)
        for index, point in enumerate(points):
            if point.keys() != points[0].keys():
                keys = ("buckets", index)
                axes = " and ".join(points[0])
                problems.add(place_of(node, keys), keys, "has other axes than the first point", expected=axes)
                return ()
    for axis in {axis for point in points for axis in point} & fixed.keys():
        keys = ("fixed", axis)
        problems.add(place_of(node, keys), keys, "is fixed and has buckets too", expected="one of the two")
    axes_in_order = list(points[0]) if points else []
    ordered = sorted(tuple(point[axis] for axis in axes_in_order) for point in points)
    return tuple(Bucket(dict(zip(axes_in_order, values, strict=True))) for values in ordered) or (Bucket({}),)


def _components(fields: Mapping[str, Any]) -> dict[str, Component]:
    written: Mapping[str, ComponentFile] = fields.get("components", {})
    model: Quantization | Fp16 = fields.get("quantization", Quantization())
    found = {}
    for name, component in written.items():
        own = component.quantization
        merged = model
        if isinstance(own, Fp16):
            merged = own
        elif own:
            base = Quantization() if isinstance(model, Fp16) else model
            merged = replace(base, **{key: value for key, value in vars(own).items() if value is not None})
        found[name] = Component(name, component.file, component.padding, merged)
    return found


def _require_calibration(fields: Mapping[str, Any], node: Node, problems: Problems) -> None:
    if "calibration" in fields and fields["calibration"] is None:
        expected = "samples, as in calibration: {reader: text, file: ...}, or quantization: {precision: fp16}"
        problems.add(place_of(node, ()), ("calibration",), "is missing", expected=expected)


def _refusal(problems: Problems) -> ConfigError:
    found = list(problems)
    count = "one mistake" if len(found) == 1 else f"{len(found)} mistakes"
    return ConfigError(
        f"{count} in the configuration:\n" + "\n".join(f"  {problem}" for problem in found),
        remedy="docs/config.md says what may be written",
    )


def _placed(text: str) -> Place:
    file, *position = text.rsplit(":", 2)
    return Place(file, *(int(number) for number in position)) if len(position) == 2 else Place(text)


def _shown(path: Path) -> str:
    """The path as messages show it: from the project's root on, as in `configs/demo.yaml`."""
    return path.relative_to(path.parent.parent).as_posix() if path.parent.name else os.fspath(path)
