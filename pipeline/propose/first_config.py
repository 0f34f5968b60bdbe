"""`doit init NAME SOURCE`: writes a first configuration of a model, and tries how far it comes without samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from pipeline.config.file_names import RESERVED
from pipeline.config.release_checks import FOLDER
from pipeline.config.speech import SOUNDS
from pipeline.config.written_values import NAME, SOURCE_FILE, SOURCE_FOLDER
from pipeline.errors import ConfigError, PipelineError
from pipeline.graph.shapes.shape_errors import DEPENDS_ON_DATA
from pipeline.plan.workspace import Workspace
from pipeline.propose.choices import choose
from pipeline.propose.config_text import config_text, language_model_text, speech_model_text
from pipeline.propose.draft import Draft, tried, write_new
from pipeline.propose.found_model import FoundModel, chosen, find, no_models, sides, table_names
from pipeline.propose.interface import GuessedComponent, look_at
from pipeline.propose.language_files import config_of, is_speech_model, language_files, longest_context
from pipeline.propose.picture_sizes import OTHERS, USUAL, Picture
from pipeline.propose.proposal import Choices
from pipeline.qnn import catalog

DEFAULT_TARGET = "snapdragon-x-elite"
_TRIED = ("fetch", "ingest", "shape", "rewrite")
_MOST_COMPONENTS = 64
_SIDES = ("preprocessor_config.json", "tokenizer.json", "config.json")


def check_names(given: Sequence[str]) -> None:
    """Raise ConfigError unless there are a name and a source."""
    if len(given) != 2:
        raise ConfigError(
            f"doit init takes a name and a source, and was given {' '.join(given) or 'nothing'}",
            where="command line",
            remedy="write doit init NAME SOURCE, such as: doit init mymodel ../models/model.onnx",
        )


def write_first_config(
    given: Sequence[str], targets: str, workspace: Workspace, say: Callable[[str], None] = print
) -> int:
    """Write `configs/NAME.yaml`, which must not be there, and say what is missing; the exit code.

    Raises:
        ConfigError: the name or the targets are none, there is such a config, or the source is none.
        SourceError: the source can't be had, or has no models.
    """
    check_names(given)
    name, source = given
    path = _free_path(name, workspace.root)
    wanted = _targets(targets)
    found = find(source, workspace.root, _on_the_hub)
    _check_writable(found)
    if found.language and is_speech_model(found.language, found.files):
        write_new(path, speech_model_text(name, found, found.language, wanted))
        say(f"wrote configs/{path.name}: a speech model of {found.language.file}")
        sounds = workspace.root / SOUNDS
        if not (sounds.is_dir() and any(sounds.iterdir())):
            say(f"missing:\n  {SOUNDS.as_posix()}/: 16 or more WAV or FLAC files of speech as the model will hear it")
        say(f"next: uv run doit build:{name}, then uv run doit transcribe:{name} FILE.wav")
        return 0
    if found.language:
        longest = longest_context(found.language, found.files)
        write_new(path, language_model_text(name, found, found.language, wanted, longest))
        say(f"wrote configs/{path.name}: a language model of {found.language.file}")
        say(f"next: uv run doit build:{name}")
        return 0
    components = {key: look_at(file, found.onnx[file]) for key, file in _named(found).items()}

    def choices(picture: Picture = USUAL) -> Choices:
        return choose(name, found, components, picture)

    def spelled(made: Choices, refused: Sequence[str]) -> str:
        return config_text(name, found, components, made, wanted, refused)

    draft = Draft(path, choices(), spelled, workspace, say)
    refused = tried(path, workspace, say)
    by_sizes = [
        step for step, error in refused.items() if step.startswith("shape:") and DEPENDS_ON_DATA not in error.what
    ]
    if by_sizes and _other_sizes_fit(draft, choices, say):
        refused = {}
    errors = [_without_lines(error, path) for error in refused.values()]
    if errors:
        draft.put(draft.made, [str(error) for error in errors])
    else:
        draft.leave_out_larger()
    _tell(name, components, draft.made, errors, workspace, say)
    return errors[0].exit_code if errors else 0


def _other_sizes_fit(draft: Draft, choices: Callable[[Picture], Choices], say: Callable[[str], None]) -> bool:
    """Whether the model has shapes for pictures or texts of another size, which the draft has then."""
    for picture in OTHERS if draft.made.guessed_picture else ():
        say("trying pictures of {} x {}".format(*picture))
        if draft.fits(choices(picture)):
            return True
    return draft.shorten()


def _without_lines(error: PipelineError, path: Path) -> PipelineError:
    """An error about the config that was tried; its lines move when it is written again with the error in it."""
    line = re.compile(rf"(configs/{re.escape(path.name)}):[0-9]+:[0-9]+")
    return error.but(where=line.sub(r"\1", error.where), remedy=line.sub(r"\1", error.remedy))


def _free_path(name: str, root: Path) -> Path:
    if not re.fullmatch(NAME.regex, name) or f"{name}.yaml" in RESERVED or name == FOLDER:
        raise ConfigError(
            f"'{name}' can't name a model", where="command line", why=f"expected {NAME.expected}", remedy="take another"
        )
    path = root / "configs" / f"{name}.yaml"
    for there in (path, path.with_suffix(".yml")):
        if there.exists() or there.is_symlink():
            raise ConfigError(
                f"configs/{there.name} is there already",
                where="command line",
                why="init never overwrites a config",
                remedy="take another name, or move the file away first",
            )
    return path


def _check_writable(found: FoundModel) -> None:
    """Raise ConfigError where a folder or a file has a name that no config may have."""
    files = [*found.onnx, *([found.language.file, *found.language.more] if found.language else [])]
    folders = [found.place["path"]] if "path" in found.place else []
    for pattern, kind, names, signs in (
        (SOURCE_FOLDER, "folder", folders, "\\"),
        (SOURCE_FILE, "file", files, '\\ : * ? " < > |'),
    ):
        for name in names:
            if not re.fullmatch(pattern.regex, name):
                raise ConfigError(
                    f"the {kind} {name!r} cannot be written in a config",
                    where="command line",
                    why=f"expected {pattern.expected}, without control characters and {signs}",
                    remedy=f"rename the {kind}, and run doit init again",
                )


def _targets(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        try:
            catalog.resolve(name)
        except ConfigError as error:
            raise error.at(f"command line: --targets {text}") from None
    return names or [DEFAULT_TARGET]


def _named(found: FoundModel) -> dict[str, str]:
    """Names for the components: those of their files, with their folders where two would have one."""
    files = list(found.onnx)[:_MOST_COMPONENTS]
    stems = [PurePosixPath(file).stem for file in files]
    names: dict[str, str] = {}
    for file, stem in zip(files, stems, strict=True):
        text = stem if stems.count(stem) == 1 else file.removesuffix(".onnx").replace("/", "-")
        plain = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")[:60].strip("._-") or "model"
        plain = plain if re.fullmatch(NAME.regex, plain) else f"model-{plain}"
        unique = next(each for each in (plain, *(f"{plain}-{n}" for n in range(2, 100))) if each not in names)
        names[unique] = file
    return names


def _on_the_hub(repo: str, revision: str) -> FoundModel:
    """The files of a repository at the commit that a branch is at now; its ONNX files are downloaded."""
    from huggingface_hub import list_repo_files  # the network client: only for who needs the network

    from pipeline.inputs.hub.answers import within
    from pipeline.inputs.hub.failures import Asked, explained, retrying
    from pipeline.inputs.hub.files import fetch_file
    from pipeline.inputs.hub.revisions import resolve_commit

    commit = resolve_commit(repo, revision)
    with explained(Asked(repo, commit)):
        names = retrying(lambda: within(lambda: sorted(list_repo_files(repo, revision=commit))), repo)
    place = {"hub": repo, "revision": commit}
    taken, passed = chosen(name for name in names if name.lower().endswith(".onnx"))
    language = None if taken else language_files(names)
    if language:
        said = config_of(language)
        files = {said: fetch_file(repo, commit, said)} if said else {}  # weights are left for the build
        return FoundModel(place, {}, names, language.passed_over, language=language, files=files)
    if not taken:
        raise no_models(repo, names)
    onnx = {name: fetch_file(repo, commit, name) for name in taken}
    with_tokenizer = any(PurePosixPath(name).name == "tokenizer.json" for name in names)
    tables = {name: fetch_file(repo, commit, name) for name in ([] if with_tokenizer else table_names(names))}
    found = FoundModel(place, onnx, names, passed, tables=tables)
    beside = [each for each in map(found.beside, _SIDES) if each is not None]
    if not beside:
        return found
    paths = {name: fetch_file(repo, commit, name) for name in beside}
    snapshot = next(iter(paths.values()))
    for _ in PurePosixPath(beside[0]).parts:
        snapshot = snapshot.parent
    return FoundModel(place, onnx, names, passed, sides(snapshot, beside), tables=tables)


def _tell(
    name: str,
    components: Mapping[str, GuessedComponent],
    made: Choices,
    errors: Sequence[PipelineError],
    workspace: Workspace,
    say: Callable[[str], None],
) -> None:
    say("")
    say(f"wrote configs/{name}.yaml")
    for key, each in components.items():
        taken = ", ".join(f"{given.spec.name} ({given.kind})" for given in each.inputs) or "can't be read"
        say(f"  {key}: {each.file}, {each.nodes} nodes; {taken}")
    for error in errors:
        say("")
        say(f"will be refused: {error}")
    padding = {f"padding of {key}": each for key, each in made.padding.items()}
    said = {**padding, **made.fixed, **made.buckets, **made.constants, **made.reader}
    guesses = [key for key, each in said.items() if each.comment.startswith("GUESS") or ": GUESS" in each.comment]
    missing = [text for text in made.missing if not _is_there(text, workspace.root)]
    if guesses:
        say(f"guessed, look at these lines: {', '.join(guesses)}")
    if missing:
        say("missing:")
        for text in missing:
            say(f"  {text}")
    say(f"next: {'bring what is missing, then ' if missing else ''}uv run doit build:{name}")


def _is_there(text: str, root: Path) -> bool:
    """Whether the file or folder that a text begins with is there and has something in it."""
    path = root / re.split(r": |, or | with ", text)[0].removesuffix("/")
    return path.is_file() or (path.is_dir() and any(path.iterdir()))
