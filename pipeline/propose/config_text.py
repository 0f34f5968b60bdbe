"""A first configuration as YAML with comments."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from pipeline.contracts.values import TensorSpec
from pipeline.plain_text import printable
from pipeline.propose.found_model import FoundModel
from pipeline.propose.interface import GuessedComponent, GuessedInput
from pipeline.propose.language_files import LanguageFiles
from pipeline.propose.proposal import Choices, Said

_WIDTH = 116
_CONTEXT, _PREFILL = 512, 128
"""Of a language model: tokens that are remembered, and tokens read at a time."""
_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./@+-]*")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n", "~"})


def config_text(
    name: str,
    found: FoundModel,
    components: Mapping[str, GuessedComponent],
    made: Choices,
    targets: Sequence[str],
    refused: Sequence[str] = (),
) -> str:
    """The text of `configs/<name>.yaml`. `refused` are errors that building met, each in one line or more."""
    return "\n".join(_lines(name, found, components, made, targets, refused)) + "\n"


def language_model_text(
    name: str, found: FoundModel, language: LanguageFiles, targets: Sequence[str], longest: int | None
) -> str:
    """The same for a language model that was made for `longest` tokens, where that is known."""
    place = ", ".join(f"{key}: {quoted(value)}" for key, value in found.place.items())
    context = min(_CONTEXT, longest or _CONTEXT)
    sizes = f"{{context: {context}, prefill: {min(_PREFILL, max(2, context // 2))}}}"
    lines = [
        "# yaml-language-server: $schema=config.schema.json",
        "#",
        f"# Written by 'doit init {name}'. A language model: prefill and decode are made of one file.",
        "",
        f"source: {{{place}}}",
        f"components: {{model: {{file: {quoted(language.file)}}}}}",
        *([f"files: {quoted(language.more)}"] if language.more else []),
        *_comment(
            f"other forms of this file are left alone: {', '.join(found.passed_over)}" if found.passed_over else ""
        ),
        f"language_model: {sizes}    # tokens that are remembered, and tokens read at a time",
        f"targets: [{', '.join(map(quoted, targets))}]",
        *_release(name),
    ]
    return "\n".join(lines) + "\n"


def speech_model_text(name: str, found: FoundModel, language: LanguageFiles, targets: Sequence[str]) -> str:
    """The same for a speech model."""
    place = ", ".join(f"{key}: {quoted(value)}" for key, value in found.place.items())
    folder = PurePosixPath(language.file).parent
    beside = [(folder / each).as_posix() for each in ("generation_config.json", "preprocessor_config.json")]
    both = [*beside, *((folder / each).as_posix() for each in ("config.json", "tokenizer.json"))]
    file = f"{{file: {quoted(language.file)}}}"
    lines = [
        "# yaml-language-server: $schema=config.schema.json",
        "#",
        f"# Written by 'doit init {name}'. A speech model: its encoder and decoder are made of one file.",
        "",
        f"source: {{{place}}}",
        f"components: {{encoder: {file}, decoder: {file}}}",
        f"files: {quoted(beside)}",
        "speech_model: {tokens: 224}    # tokens that are remembered of a window's prompt and text",
        "calibration: {reader: speech, folder: calibration/speech}    # speech as the model will hear it: WAV or FLAC",
        f"targets: [{', '.join(map(quoted, targets))}]",
        "",
        f"# What 'doit package:{name}' makes one file of, for an application: docs/releases.md.",
        f'release: {{version: "1.0", files: {quoted(both)}}}',
    ]
    return "\n".join(lines) + "\n"


def quoted(value: object) -> str:
    """A value as YAML within a line."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{quoted(key)}: {quoted(each)}' for key, each in value.items())}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(quoted, value))}]"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return json.dumps(text)


def _lines(
    name: str,
    found: FoundModel,
    components: Mapping[str, GuessedComponent],
    made: Choices,
    targets: Sequence[str],
    refused: Sequence[str],
) -> Iterator[str]:
    yield "# yaml-language-server: $schema=config.schema.json"
    yield "#"
    yield f"# Written by 'doit init {name}'. GUESS marks what the model does not say: compare with the application, and"
    yield "# take the word out of lines that are right. A build names those that have it."
    yield "# Every key is described in docs/config.md, readers in docs/calibration.md."
    for text in refused:
        yield "#"
        first, *rest = text.splitlines()
        yield from _comment(f"REFUSED: {first}")
        for line in rest:
            yield from _comment(f"  {line.strip()}")
    yield ""
    yield "source:"
    for key, value in found.place.items():
        yield f"  {key}: {quoted(value)}"
    if made.files:
        yield f"files: {quoted(made.files)}"
    yield ""
    if found.passed_over:
        yield from _comment(f"other forms of these files are left alone: {', '.join(found.passed_over)}")
    if len(components) > 1:
        yield "# Take out what the application does not use."
    yield "components:"
    for key, each in components.items():
        yield from _component(key, each, made.padding.get(key))
        yield from _interface(each)
    yield from _section("constants", made.constants)
    yield from _section("fixed", made.fixed)
    yield from _section("buckets", made.buckets)
    yield ""
    for note in made.notes:
        yield from _comment(note)
    yield from _section("calibration", made.reader, spaced=False)
    yield ""
    yield "# Without 'quantization:' w8a16 in blocks is built, and what misses a threshold gets another precision."
    yield "# {precision: fp16} needs no samples."
    yield f"targets: [{', '.join(map(quoted, targets))}]    # chips to build for: docs/config.md lists their names"
    yield from _release(name)


def _release(name: str) -> Iterator[str]:
    yield ""
    yield f"# What 'doit package:{name}' makes one file of, for an application: docs/releases.md."
    yield '# release: {version: "1.0"}'


def _component(key: str, each: GuessedComponent, padding: Said | None) -> Iterator[str]:
    if padding is None:
        yield f"  {quoted(key)}: {{file: {quoted(each.file)}}}"
        return
    yield f"  {quoted(key)}:"
    yield f"    file: {quoted(each.file)}"
    yield from _comment(padding.comment, indent="    ")
    yield f"    padding: {quoted(padding.value)}"


def _interface(each: GuessedComponent) -> Iterator[str]:
    if each.refused is not None:
        return
    for given in each.inputs:
        yield from _comment(f"in   {_form(given.spec, each)}{_taken(given)}", indent="    ")
    for spec in each.outputs[:12]:
        yield from _comment(f"out  {_form(spec, each)}", indent="    ")
    if len(each.outputs) > 12:
        yield f"    # and {len(each.outputs) - 12} more outputs"


def _form(spec: TensorSpec, each: GuessedComponent) -> str:
    """A value as the config shows it: no rank is not the rank of a single number."""
    if spec.name not in each.unranked:
        return str(spec)
    given = any(spec.name == found.spec.name for found in each.inputs)
    why = "export the model with the shape of each input" if given else "the build finds it, nothing is to be written"
    return f"{spec.name}: {spec.dtype} of unknown rank: {why}"


def _taken(given: GuessedInput) -> str:
    what = {
        "ids": "token ids",
        "mask": "a mask",
        "image": "pictures",
        "audio": "a waveform",
        "features": "features of sound",
        "length": "a length",
        "state": "a state",
        "selector": "a selector",
        "empty": "empty",
    }.get(given.kind)
    return f": {what}, {given.why}" if what else ""


def _section(name: str, entries: Mapping[str, Said], *, spaced: bool = True) -> Iterator[str]:
    if not entries:
        return
    if spaced:
        yield ""
    yield f"{name}:"
    for key, said in entries.items():
        line = f"  {quoted(key)}: {_value(said.value)}"
        comment = printable(said.comment, keep="")
        if comment and len(line) + len(comment) + 4 > _WIDTH:
            yield from _comment(comment, indent="  ")
            yield line
        else:
            yield f"{line}    # {comment}" if comment else line


def _value(value: Any) -> str:
    return quoted(value)


def _comment(text: str, indent: str = "") -> Iterator[str]:
    for line in textwrap.wrap(
        printable(text, keep=""),
        _WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}#   ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    ) or [f"{indent}#"]:
        yield line.rstrip()
