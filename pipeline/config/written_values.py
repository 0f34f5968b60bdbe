"""What single values in `configs/<model>.yaml` may be, as types with the patterns that they must match."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pipeline.config.yaml.field_types import Bases, Between, Convert, Numbers, Pattern
from pipeline.contracts.codec import NumberTree
from pipeline.frozen import dataclass

PROJECT = "project"
"""The base of all paths in a config but `source.path`: the folder that contains `configs/`."""
CONFIGS = "configs"
"""The base of `source.path`: the folder of the config file."""

NAME = Pattern(
    r"(?!(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$))[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?",
    "a name of at most 64 of a-z, 0-9, '.', '_', '-', a letter or digit at both ends, and none that Windows reserves",
)
"""What models and components may be called: the name becomes a part of file names on every system."""


@dataclass(frozen=True)
class PythonFunction:
    """A function of the project's own code, written `calibration/file.py:function`."""

    file: Path
    function: str


def path_under(base: str) -> Convert:
    """The conversion of a text to a path, which is relative to one of the bases or absolute."""
    # normpath, not resolve: a link stays the name its owner gave it.
    return Convert(lambda text, bases: Path(os.path.normpath(bases[base] / text)))


def _python_function(text: str, bases: Bases) -> PythonFunction:
    file, _, function = text.rpartition(":")
    path = Path(os.path.normpath(bases[PROJECT] / file))
    try:
        # Of the folder itself no link is followed: it must be the project's own.
        inside = path.resolve().is_relative_to(bases[PROJECT].resolve() / "calibration")
    except (OSError, RuntimeError) as error:  # a loop of links, or a name too long for the file system
        raise ValueError(f"'{file}' can't be resolved ({error}); expected a file in calibration/") from error
    if not inside:
        raise ValueError(f"'{file}' leads out of calibration/; expected code that is kept there")
    return PythonFunction(path, function)


_SEGMENT = r"(?!\.{1,2}(?:/|$))[^/\\:*?\x22<>|\x00-\x1f]+"

SOURCE_FOLDER = Pattern(r"[^\\\x00-\x1f]+", "a folder, relative to the config file or absolute")
"""How `source.path` may be written."""
SOURCE_FILE = Pattern(rf"{_SEGMENT}(?:/{_SEGMENT})*", "a path in the source, with '/' and without '..'")
"""How files of a source may be written."""

Name = Annotated[str, NAME]
Axis = Annotated[str, Pattern(r"[^\x00-\x1f]{1,100}", "the name of a length axis")]
AxisValue = Annotated[int, Between(1, 2**31 - 1)]
TensorName = Annotated[str, Pattern(r"[^\x00-\x1f]{1,500}", "the name of a model input")]
ConstantValue = Annotated[NumberTree, Numbers()]
SourceFile = Annotated[str, SOURCE_FILE]
OnnxFile = Annotated[
    str,
    Pattern(
        rf"(?=.*\.(?:onnx|gguf|safetensors|safetensors\.index\.json)$){_SEGMENT}(?:/{_SEGMENT})*",
        "an .onnx file in the source, or a .gguf or .safetensors file of a language model, or the index of several of "
        "these, with '/' and without '..'",
    ),
]
ProjectPath = Annotated[
    Path, Pattern(r"[^\\\x00-\x1f]+", "a path, relative to the project or absolute, with '/'"), path_under(PROJECT)
]
SampleLimit = Annotated[int, Between(1, 1_000_000)]
FunctionRef = Annotated[
    PythonFunction,
    Pattern(
        r"calibration/(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-]+\.py:[A-Za-z_][A-Za-z0-9_]*",
        "calibration/<file>.py:<function>",
    ),
    Convert(_python_function),
]


RepoName = Annotated[
    str,
    Pattern(
        r"(?!.*(?:--|\.\.))[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}",
        "a repository as owner/name",
    ),
]
Revision = Annotated[
    str,
    Pattern(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._/+-]{0,254}", "a commit of 40 hex digits, a branch or a tag"),
]
