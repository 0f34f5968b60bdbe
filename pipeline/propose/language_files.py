"""Language models among the files of a source: which file to name, what else to fetch, and whether it can be built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pipeline.inputs.safetensors.index import CONFIG, SIDES, SPEECH, TOKENIZER, is_safetensors, model_type

_WEIGHTS = ("model.safetensors.index.json", "model.safetensors")
"""What transformers calls them; an index goes before a file, which may be one of several."""
SPEECH_FRONT = "preprocessor_config.json"
"""The file that says which features a speech model takes."""
_MORE = ("chat_template.jinja", "generation_config.json")
"""Files that some models have beside their weights."""


@dataclass(frozen=True)
class LanguageFiles:
    """The file that holds a language model, further ones to fetch, and forms of it that are left alone."""

    file: str
    more: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()


def is_language_file(name: str) -> bool:
    """Whether a file may hold a language model, by its name."""
    return name.lower().endswith(".gguf") or is_safetensors(name)


def language_files(names: Sequence[str]) -> LanguageFiles | None:
    """The language model among files: of GGUF the first by name, else weights with their sides; None without any."""
    gguf = sorted(name for name in names if name.lower().endswith(".gguf"))
    if gguf:
        return LanguageFiles(gguf[0], passed_over=tuple(gguf[1:]))
    there = {*names}
    for name in sorted(filter(is_safetensors, names), key=_by_place):
        found = whole(name, there)
        if found:
            return found
    return None


def whole(name: str, there: set[str]) -> LanguageFiles | None:
    """What belongs to weights of this name; None if a file that they need is not among those that are there."""
    if name.lower().endswith(".gguf"):
        return LanguageFiles(name)
    folder = PurePosixPath(name).parent
    is_speech = (folder / SPEECH_FRONT).as_posix() in there
    needed = (CONFIG, TOKENIZER) if is_speech else SIDES  # what kind of model it is, config.json says
    if any((folder / side).as_posix() not in there for side in needed):
        return None
    return LanguageFiles(name, tuple(more for more in ((folder / each).as_posix() for each in _MORE) if more in there))


def is_speech_model(found: LanguageFiles, files: Mapping[str, Path]) -> bool:
    """Whether weights are of a speech model, by the config.json among `files`."""
    config = config_of(found)
    return config is not None and config in files and model_type(files[config]) in SPEECH


def config_of(found: LanguageFiles) -> str | None:
    """The config.json that says what is in the weights; a GGUF file says it itself."""
    return None if found.file.lower().endswith(".gguf") else (PurePosixPath(found.file).parent / CONFIG).as_posix()


def longest_context(found: LanguageFiles, files: Mapping[str, Path]) -> int | None:
    """The most tokens that the model was made for; None if the file that says so is not among `files`.

    Raises:
        ModelError: it is damaged, or its model is none that can be built.
    """
    path = files.get(config_of(found) or found.file)
    if path is None:
        return None
    if found.file.lower().endswith(".gguf"):
        from pipeline.inputs.gguf.file import read_gguf  # imports numpy: only for who has such a file
        from pipeline.inputs.gguf.language import hyper_of

        hyper = hyper_of(read_gguf(path))
    else:
        from pipeline.inputs.safetensors.hyper import hyper_of_folder

        hyper = hyper_of_folder(path)
    return min(hyper.context, hyper.window or hyper.context)


def _by_place(name: str) -> tuple[int, int, str]:
    """Near the root first, and by the names that transformers gives."""
    own = PurePosixPath(name).name
    return name.count("/"), _WEIGHTS.index(own) if own in _WEIGHTS else len(_WEIGHTS), name
