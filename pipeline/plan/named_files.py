"""The files that a config names: where it names each, and what is wrong with them, before a step of the model runs.

Which functions a Python file can have, as far as its text tells: nothing of it is run.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pipeline.config.load import LocalSource, ModelConfig
from pipeline.config.readers import ChatReader, Reader, RecordReader, TextReader
from pipeline.config.written_values import PythonFunction
from pipeline.config.yaml.problems import dotted
from pipeline.contracts import fetch
from pipeline.errors import CalibrationError, ConfigError, PipelineError, SourceError
from pipeline.inputs import source
from pipeline.plain_text import did_you_mean
from pipeline.plan import stage_params
from pipeline.plan.counted_code import PARSING
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace

_TAKEN = {
    "npz": ("folder", "32 or more .npz files with the model's inputs"),
    "images": ("folder", "32 or more pictures"),
    "audio": ("folder", "16 or more sounds"),
    "speech": ("folder", "16 or more sounds of speech, WAV or FLAC,"),
    "text": ("file", "32 or more lines of text"),
    "record": ("file", "32 or more lines, a sample each,"),
    "chat": ("file", "32 or more conversations, each a line of JSON,"),
}
"""Of each reader that says what it takes: whether that is a folder or a file, and what belongs there."""
_ARRAYS = (".npz", ".npy")
_BLOCK = 1 << 16
_BLOCKS = 256
"""So many blocks of blanks are read before a file is left to its reader."""


def named_in_source(config: ModelConfig) -> dict[str, str]:
    """The files of the source that a model needs, in the order of the config, and where it names each.

    Without the external data that its ONNX files point to.
    """
    named: list[tuple[str, tuple[str, ...]]] = []
    for name, component in config.components.items():
        named.append((component.file, (dotted(("components", name, "file")),)))
    for keys, reader in (("calibration", config.calibration), ("verification.samples", config.verification.samples)):
        asked = (f"{keys}.vocabulary.file", f"{keys}.tokenizer", f"{keys}.processor", keys)
        named += [(file, asked) for file in (stage_params.source_files(reader) if reader else ())]
    named += [(file, (f"files[{index}]",)) for index, file in enumerate(config.files)]
    if config.release:
        named += [(file, (f"release.files[{index}]",)) for index, file in enumerate(config.release.files)]
        named += [(file, (f"release.licenses[{index}]",)) for index, file in enumerate(config.release.licenses)]
    places: dict[str, str] = {}
    for file, written in named:
        places.setdefault(file, config.place(*written))
    return places


def at_its_place(error: SourceError, step: Step) -> SourceError:
    """What is wrong with the source, which says where the config names the file that it is about, or the source."""
    config = step.config
    if step.name != config.name:  # samples that are on the hub
        return error.but(where=_with_place(_place_of_samples(step), error))
    names = named_in_source(config)
    return error.but(where=_with_place(_told(error, names) or config.place("source.path", "source.hub"), error))


def sampled_at(error: CalibrationError, step: Step) -> CalibrationError:
    """What is wrong with samples, which says where the config names the file that it is about, or the samples."""
    reader, purpose = _reader(step), _purpose(step)
    asked = [f"{purpose}.{key}" for key in ("vocabulary.file", "tokenizer", "processor")]
    names = dict.fromkeys(stage_params.source_files(reader) if reader else (), step.config.place(*asked, purpose))
    return error.but(where=_with_place(_told(error, names) or _place_of_samples(step), error))


def _told(error: PipelineError, places: Mapping[str, str]) -> str:
    """The place of the first of these files that an error names; "" if it names none."""
    for name, place in places.items():
        if re.search(rf"(?<!\S){re.escape(name)}(?![^\s;,'])", error.what):
            return place
    return ""


def _with_place(place: str, error: PipelineError) -> str:
    return ", ".join(filter(None, (place, error.where)))


def _place_of_samples(step: Step) -> str:
    purpose = _purpose(step)
    return step.config.place(f"{purpose}.file", f"{purpose}.folder", f"{purpose}.run", purpose)


def check(config: ModelConfig, steps: Iterable[Step], workspace: Workspace) -> None:
    """Look at every file that these steps of a model are to read, whether or not their turn has come.

    Raises:
        ConfigError: one is missing or no file, or a Python file lacks its function. SourceError, ModelError: one of the
            source. CalibrationError: there are no samples. Of several mistakes, one error lists all.
    """
    found: dict[tuple[str, str], PipelineError] = {}
    for step in steps:
        for error in mistakes(step, workspace):
            found.setdefault((error.what, error.why), error)
    errors = [*found.values()]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        kinds = {type(error) for error in errors}
        kind = kinds.pop() if len(kinds) == 1 else ConfigError
        told = "\n".join(f"  {error.where}: {error.what}; {error.remedy}" for error in errors)
        file = config.place()
        raise kind(f"{len(errors)} mistakes in what {file} names:\n{told}", remedy="correct them, and build again")


def mistakes(step: Step, workspace: Workspace) -> Iterator[PipelineError]:
    """What is wrong with each file that a step is to read, as far as a look at it tells."""
    if isinstance(step.params, fetch.Params):
        yield from _of_source(step, workspace)
    for role, path in {**step.files, **step.scripts}.items():
        try:
            readable(path, role, step, workspace)
            if role == "samples":
                _check_samples(path, step)
            elif (function := _function(role, step)) is not None:
                _check_function(function, path, step.config.place(*_written(role, step)))
        except PipelineError as error:
            yield error
        except OSError as error:
            what = f"{path.name} can't be read"
            yield ConfigError(what, where=_place_named(role, step), why=str(error), remedy="make it readable")


def _of_source(step: Step, workspace: Workspace) -> Iterator[PipelineError]:
    config, params = step.config, step.params
    if not isinstance(config.source, LocalSource) or step.asked is not None:
        return
    assert isinstance(params, fetch.Params)
    places = {name: config.place("source.path") for name in params.files} or named_in_source(config)
    try:
        source.local_files(config.source.path, [*places], workspace.memo)
        return
    except OSError:  # fetch says which file, with all that it knows of the disk
        return
    except PipelineError as error:
        if not config.source.path.is_dir():
            yield error.but(where=config.place("source.path"), why=f"looked for {error.where}")
            return
        whole = error
    alone = False
    for name, place in places.items():
        try:
            source.local_files(config.source.path, [name], workspace.memo)
        except PipelineError as error:
            alone = True
            yield error.but(where=", in ".join(filter(None, (place, error.where))))
    if not alone:  # two names that can't be told apart
        yield whole.but(where=", in ".join(filter(None, (config.place("source.path"), whole.where))))


def readable(path: Path, role: str, step: Step, workspace: Workspace) -> Path:
    """`path`, which the config names for this role in a step; raises ConfigError if nothing can be read there."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(
            f"{path.name} is a device, a pipe or a socket",
            where=f"{_place_named(role, step)}, for {step.id}",
            why=f"{path} has no content of its own that a build could stand on",
            remedy="name a file or a folder",
        )
    if not path.exists():
        beside = (entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else ()
        what, remedy = _wanted(path, role, step, workspace)
        raise ConfigError(
            f"{what} does not exist{did_you_mean(path.name, beside)}",
            where=f"{_place_named(role, step)}, for {step.id}",
            why=f"looked for {path}",
            remedy=f"{remedy}, or correct the path in the config",
        )
    return path


def _check_samples(path: Path, step: Step) -> None:
    """Raise CalibrationError where a look at the names, or at the first bytes, tells that there is no sample."""
    reader = _reader(step)
    kind, _ = _TAKEN.get(reader.reader, ("", "")) if reader else ("", "")
    if reader is None or not kind:
        return
    is_folder = path.is_dir()
    if is_folder != (kind == "folder"):
        raise CalibrationError(
            f"{path.name} is a {'folder' if is_folder else 'file'}, and reader {reader.reader} takes a {kind}",
            where=_place_named("samples", step),
            why=f"looked at {path}",
            remedy=f"name the {kind} in the config, or another reader",
        )
    suffixes = stage_params.suffixes(reader) or _ARRAYS
    has_some = _has_file(path, suffixes) if is_folder else _has_text(path)
    if not has_some:
        raise _no_samples(path, reader, step, suffixes)


def _no_samples(path: Path, reader: Reader, step: Step, suffixes: Iterable[str]) -> CalibrationError:
    lines = isinstance(reader, TextReader | ChatReader | RecordReader)
    purpose = _purpose(step)
    of_calibration = purpose == "calibration"
    use = "the ranges of a quantized model come from real samples"
    if not of_calibration:
        use = "accuracy is measured on samples that calibration did not see"
    seen = "it has no line that is not blank" if lines else f"no file in it ends in {', '.join(suffixes)}"
    return CalibrationError(
        f"the {'calibration' if of_calibration else 'verification'} set is empty: {path.name} gives no samples",
        where=_place_named("samples", step),
        why=f"{seen}, and {use}",
        remedy="give it some: 16 to 64 that are typical of the model's use, short and long",
    )


def _has_file(folder: Path, suffixes: Iterable[str]) -> bool:
    """Whether there is such a file below a folder; what a link leads to is left to the reader: it may go in circles."""
    known = (*suffixes,)
    for at, folders, names in os.walk(folder):
        if any(name.lower().endswith(known) for name in names) or any(Path(at, each).is_symlink() for each in folders):
            return True
    return False


def _has_text(path: Path) -> bool:
    with path.open("rb") as stream:
        for number in range(_BLOCKS):
            block = stream.read(_BLOCK)
            if not block:
                return False
            if (block.removeprefix(b"\xef\xbb\xbf") if number == 0 else block).strip():
                return True
    return True


def _check_function(function: PythonFunction, path: Path, place: str) -> None:
    """Raise ConfigError where the text of a Python file tells that it has no such function."""
    shown = f"{path.parent.name}/{path.name}"
    try:
        names = functions_of(path.read_bytes())
    except NotPythonError as error:
        raise ConfigError(
            f"{shown} can't be loaded",
            where=f"{place}, {shown}:{error.line}",
            why=f"SyntaxError: {error}",
            remedy="correct the code",
        ) from None
    if names is not None and function.function not in names:
        defined = sorted(name for name, is_defined in names.items() if is_defined and not name.startswith("_"))
        raise ConfigError(
            f"{shown} has no function '{function.function}'{did_you_mean(function.function, defined)}",
            where=place,
            why=f"it has {', '.join(defined[:20]) or 'none'}",
            remedy=f"define it: def {function.function}(...), or correct its name in the config",
        )


def _wanted(path: Path, role: str, step: Step, workspace: Workspace) -> tuple[str, str]:
    """For a missing path: what should be there, and how to get it."""
    reader = _reader(step)
    taken = _TAKEN.get(reader.reader) if reader and role == "samples" else None
    if taken is None:
        return path.name, "create it"
    kind, entries = taken
    named = path.relative_to(workspace.root).as_posix() if path.is_relative_to(workspace.root) else path.name
    return f"the {kind} of samples {named}", f"put {entries} there"


def _purpose(step: Step) -> str:
    return "calibration" if step.name == f"{step.config.name}/calibration" else "verification.samples"


def _reader(step: Step) -> Reader | None:
    config = step.config
    return config.calibration if _purpose(step) == "calibration" else config.verification.samples


def _function(role: str, step: Step) -> PythonFunction | None:
    """The function that the config names for a Python file in this role."""
    if step.component is not None:  # a step that measures one
        return step.config.components[step.component].score
    run = getattr(_reader(step), "run", None) if role == "code" else None
    return run if isinstance(run, PythonFunction) else None


def _written(role: str, step: Step) -> list[str]:
    """The places in the config, the likelier first, that may name what has this role in a step."""
    if step.component is not None:
        return [dotted(("components", step.component, "score")), "verification.score"]
    purpose = _purpose(step)
    return [f"{purpose}.run"] if role == "code" else [f"{purpose}.file", f"{purpose}.folder"]


def _place_named(role: str, step: Step) -> str:
    """Where the config names the file that has this role in a step."""
    return step.config.place(*_written(role, step))


_MAKES_NAMES = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr", "__getattr__"})
"""Names by which code gives a module names that its text does not show."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class NotPythonError(Exception):
    """Python does not take the text; `line` is where it gave up."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.line = line


def functions_of(code: bytes) -> dict[str, bool] | None:
    """The names that a module has once it is loaded, and whether it defines a function of each; None where only
    running it could tell.

    Raises NotPythonError.
    """
    try:
        with PARSING:
            tree = ast.parse(code)
    except SyntaxError as error:
        raise NotPythonError(error.msg, error.lineno or 1) from None
    except ValueError as error:  # a NUL byte, before Python 3.12
        raise NotPythonError(str(error), 1) from None
    except (RecursionError, MemoryError):
        return None
    found: dict[str, bool] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _MAKES_NAMES:
            return None
        if isinstance(node, ast.FunctionDef) and node.name in _MAKES_NAMES:
            return None
        if isinstance(node, ast.Global):
            found.update(dict.fromkeys(node.names, False))
    for node in _at_the_top(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found[name] = True
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found[name] = False
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                given = [each.asname or each.name.partition(".")[0] for each in names]
                if "*" in given:
                    return None
                found.update(dict.fromkeys(given, False))
    return found


def _at_the_top(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that are in no function and no class, those themselves included."""
    pending: list[ast.AST] = [tree]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            yield node
            if not isinstance(node, _SCOPES):
                pending.append(node)
