"""Finds the files of a language model in safetensors from the one that the config names. Imports nothing heavy."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from pipeline import strict_json
from pipeline.errors import ModelError
from pipeline.model import Json

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
SIDES = (CONFIG, TOKENIZER, TOKENIZER_CONFIG)
"""The files beside the weights that are needed with them."""
SPEECH = ("whisper",)
"""The kinds of models with an encoder of sound that are supported, by `model_type` of config.json."""
_SHARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors")
_LARGEST_INDEX = 1 << 24
_MOST_SHARDS = 1000


def is_safetensors(name: str) -> bool:
    """Whether a file is a safetensors file or the index of several, by its name."""
    return name.lower().endswith((SUFFIX, INDEX_SUFFIX))


def files_of(name: str, path: Path) -> list[str]:
    """The names in the source of the files that `name`, which is at `path`, needs: those of an index, and the sides.

    Raises:
        ModelError: the index is damaged, or names a file that is not beside it.
    """
    folder = PurePosixPath(name).parent
    shards = sorted({*weight_map(path).values()}) if name.lower().endswith(INDEX_SUFFIX) else []
    sides = SIDES if model_type(path.parent / CONFIG) not in SPEECH else (CONFIG, TOKENIZER)
    return [(folder / side).as_posix() for side in (*shards, *sides)]


def model_type(config: Path) -> str:
    """The kind of model that a config.json names; "" if it is not there yet.

    Raises:
        ModelError: the file is damaged.
    """
    found = read_object(config, _LARGEST_INDEX).get("model_type") if config.is_file() else ""
    return found if isinstance(found, str) else ""


def weight_map(path: Path) -> dict[str, str]:
    """The file that each tensor is in, by the index at `path`.

    Raises:
        ModelError: the file is no index, or names a file that is not beside it.
    """
    found = read_object(path, _LARGEST_INDEX).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise refused(path.name, "it has no 'weight_map'")
    made = {}
    for tensor, file in found.items():
        if not isinstance(file, str) or not _SHARD.fullmatch(file):
            raise refused(path.name, f"tensor {tensor[:100]!r} is said to be in {str(file)[:100]!r}, no file beside it")
        made[tensor] = file
    if len({*made.values()}) > _MOST_SHARDS:
        raise refused(path.name, f"it names more than {_MOST_SHARDS} files")
    return made


def read_object(path: Path, most: int) -> dict[str, Json]:
    """The object in a JSON file of at most `most` bytes.

    Raises:
        ModelError: the file is longer, or holds no object.
    """
    size = path.stat().st_size
    if size > most:
        raise refused(path.name, f"it has {size} bytes; {most} are the most")
    return parsed(path.read_bytes(), path.name)


def parsed(data: bytes, name: str) -> dict[str, Json]:
    """The object in the bytes of a JSON file.

    Raises:
        ModelError: the bytes are no JSON object, or a key is there twice.
    """
    try:
        found = strict_json.parse(data, non_finite=True)
    except (ValueError, RecursionError) as error:
        raise refused(name, f"its JSON can't be read: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise refused(name, "its JSON is no object")
    return found


def refused(name: str, why: str) -> ModelError:
    """The error for a file that is not what its name says."""
    return ModelError(f"{name} is damaged, or not what its name says", why=why, remedy="fetch the file again")
