"""What lies at a source: its ONNX files, and the small files beside them that say how the model is used."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.errors import ConfigError, SourceError
from pipeline.inputs.safetensors.index import SIDES
from pipeline.inputs.source import is_onnx
from pipeline.plain_text import nearest
from pipeline.propose.language_files import LanguageFiles, is_language_file, language_files, whole

_HUB = re.compile(
    r"(?:hf://|https?://huggingface\.co/)?(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./+-]+))?"
)
_VARIANT = re.compile(
    r"(?:[_.-](?:quantized|quant|u?int8|u?int4|q4|q4f16|q8|bnb4|fp8|fp16|float16|bf16|qdq|q?u?int8\w*|O[1-4]"
    r"|optimized))+$",
    re.IGNORECASE,
)
"""How converters name other forms of a file, after https://huggingface.co/docs/transformers.js/guides/dtypes."""
_QUANTIZED = re.compile(r"quant|int8|int4|q4|q8|bnb4|fp8|qdq", re.IGNORECASE)
SIDE_FILES = ("preprocessor_config.json", "tokenizer.json", "config.json", "tokenizer_config.json")
"""Files that are looked for beside the models, or above them."""
_TABLE = re.compile(
    r"(?!preprocessor|tokenizer|generation|special_tokens|added_tokens)"
    r"(?:.*(?:vocab|chars?|alphabet|letters|tokens|symbols|phonemes?|maps?|dict)[^/]*|config|[^/]*\.onnx)\.(?:json|txt)",
    re.IGNORECASE,
)
"""How files are called that may hold a vocabulary: by what it is, or as the model, with `.json` behind."""
_MOST_TABLES = 16
_LARGEST_SIDE = 16 << 20
_MOST_FILES = 20_000
_NEAR = 3


@dataclass(frozen=True)
class FoundModel:
    """A source: how the config names it, its ONNX files by their names in it, and what else was found.

    `passed_over` are other forms of the files that were taken; `side` has JSON of files beside them, by name in the
    source; `names` are all files. A `language` model is built alone; `files` are where its own are. `tables` are small
    files that may hold a vocabulary.
    """

    place: Mapping[str, str]
    onnx: Mapping[str, Path]
    names: Sequence[str]
    passed_over: Sequence[str] = ()
    side: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    language: LanguageFiles | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    tables: Mapping[str, Path] = field(default_factory=dict)

    def beside(self, name: str) -> str | None:
        """The name in the source of a side file, as `tokenizer.json`; the nearest to the root."""
        found = [each for each in self.names if PurePosixPath(each).name == name]
        return min(found, key=lambda each: (each.count("/"), each), default=None)

    def said(self, name: str) -> Mapping[str, Any]:
        """What a side file says; nothing where there is none."""
        return self.side.get(self.beside(name) or "", {})


def find(source: str, root: Path, fetch: Callable[[str, str], FoundModel]) -> FoundModel:
    """The model at `source`: a file of ONNX, GGUF or safetensors, a folder, or a repository, which `fetch` looks at.

    Paths are relative to where the command runs, `root` is the project's.

    Raises:
        ConfigError: it is nothing of the kind.
        SourceError: there are no models in it.
    """
    path = Path(source).expanduser()
    if path.is_file():
        folder, names = path.parent, [path.name]
        names += [name for name in SIDE_FILES if (folder / name).is_file()]
        if is_language_file(path.name):
            beside = [each.name for each in folder.iterdir() if each.is_file()]
            named = whole(path.name, {*beside})
            if named is None:
                raise _no_sides(path.name, beside)
            return _spoken(named, folder, {"path": _relative(folder, root)}, beside)
        if path.suffix.lower() != ".onnx":
            raise _unknown(source, f"{path.name} is neither ONNX nor GGUF nor safetensors by its name")
        others = [each.name for each in folder.iterdir() if each.is_file()]
        tables = {name: folder / name for name in table_names(others)}
        place = {"path": _relative(folder, root)}
        return FoundModel(place, {path.name: path}, names, side=sides(folder, names), tables=tables)
    if path.is_dir():
        return _folder(path, root, source)
    hub = _HUB.fullmatch(source)
    if (
        hub is None
        or source.startswith((".", "/", "~"))
        or Path(source).suffix.lower() in (".onnx", ".gguf", ".safetensors")
    ):
        raise _unknown(source, _why_nothing_is_at(path))
    return fetch(hub["repo"], hub["revision"] or "main")


def _why_nothing_is_at(path: Path) -> str:
    """Why a path is none of a source, with the nearest beside it that could be one."""
    if path.is_symlink():
        return f"it is a link to {path.readlink()}, which is not there"
    beside = {}
    for each in path.parent.iterdir() if path.parent.is_dir() else ():
        if each.is_dir() or (each.is_file() and (is_onnx(each.name) or is_language_file(each.name))):
            beside[each.name] = each
    near = nearest(path.name, beside)
    return "there is no such file or folder" + (f"; did you mean '{beside[near]}'?" if near else "")


def chosen(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Of ONNX files, those to build, and other forms of the same: the float32 file goes before all others."""
    forms: dict[str, list[str]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        forms.setdefault(f"{path.parent}/{_VARIANT.sub('', path.stem)}", []).append(name)
    taken, passed = [], []
    for found in forms.values():
        best = min(found, key=lambda name: (_is_variant(name), bool(_QUANTIZED.search(_form(name))), len(name), name))
        taken.append(best)
        passed += [name for name in found if name != best]
    return taken, passed


def table_names(names: Iterable[str]) -> list[str]:
    """Of a source's files, those that may hold a vocabulary, the nearest to the root first."""
    found = (name for name in names if _TABLE.fullmatch(PurePosixPath(name).name))
    return sorted(found, key=lambda name: (name.count("/"), name))[:_MOST_TABLES]


def sides(folder: Path, names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """What the side files of a folder say; those that are damaged say nothing."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in names:
        path = folder / name
        if path.name in SIDE_FILES and path.name != "tokenizer.json" and path.stat().st_size < _LARGEST_SIDE:
            try:
                said = json.loads(path.read_text("utf-8"))
            except (OSError, ValueError, RecursionError):
                continue
            if isinstance(said, dict):
                found[name] = said
    return found


def _folder(path: Path, root: Path, source: str) -> FoundModel:
    names = []
    for number, file in enumerate(path.rglob("*")):
        if number > _MOST_FILES:
            raise _unknown(source, f"the folder holds more than {_MOST_FILES} files")
        if file.is_file():
            names.append(file.relative_to(path).as_posix())
    names.sort()
    place = {"path": _relative(path, root)}
    taken, passed = chosen(name for name in names if name.lower().endswith(".onnx"))
    language = None if taken else language_files(names)
    if language:
        return _spoken(language, path, place, names)
    if not taken:
        raise no_models(source, names)
    onnx = {name: path / name for name in taken}
    tables = {name: path / name for name in table_names(names)}
    return FoundModel(place, onnx, names, passed, sides(path, names), tables=tables)


def _spoken(language: LanguageFiles, folder: Path, place: Mapping[str, str], names: Sequence[str]) -> FoundModel:
    files = {name: folder / name for name in names}
    return FoundModel(place, {}, names, language.passed_over, language=language, files=files)


def no_models(source: str, names: Sequence[str]) -> SourceError:
    """The error for a source without models."""
    weights = next(filter(is_language_file, names), None)
    if weights:
        return _no_sides(weights, names)
    return SourceError(
        f"{source} holds no ONNX file",
        why=f"it has {', '.join(sorted(names)[:8]) or 'no files'}{', …' if len(names) > 8 else ''}",
        remedy="export the model to ONNX first, as with 'optimum-cli export onnx', or name a repository that has it",
    )


def _no_sides(weights: str, names: Iterable[str]) -> SourceError:
    beside = {PurePosixPath(name).name for name in names}
    return SourceError(
        f"{weights} is no whole language model",
        why=f"beside it there is no {' and no '.join(side for side in SIDES if side not in beside) or 'config.json'}",
        remedy="put these files beside it, as transformers saves them; another model is exported to ONNX first",
    )


def _unknown(source: str, why: str) -> ConfigError:
    return ConfigError(
        f"{source} is no source of a model",
        where="command line",
        why=why,
        remedy="name an .onnx, .gguf or .safetensors file, a folder with one, or a repository as owner/name[@revision]",
    )


def _relative(folder: Path, root: Path) -> str:
    """A folder as the config names it: relative to `configs/` where it is near, else absolute."""
    absolute = folder.resolve()
    try:
        near = Path(os.path.relpath(absolute, root.resolve() / "configs")).as_posix()
    except ValueError:  # on another drive
        return absolute.as_posix()
    return near if near.count("..") <= _NEAR else absolute.as_posix()


def _is_variant(name: str) -> bool:
    return bool(_VARIANT.search(PurePosixPath(name).stem))


def _form(name: str) -> str:
    found = _VARIANT.search(PurePosixPath(name).stem)
    return found[0] if found else ""
