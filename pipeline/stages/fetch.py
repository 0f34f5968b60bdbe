"""fetch: a model's files, from the hub at a pinned commit or from a local folder, under their names in the source."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from pipeline.contracts.fetch import Facts, Params
from pipeline.errors import SourceError
from pipeline.inputs.hub.repo_names import is_data
from pipeline.inputs.safetensors.index import is_safetensors
from pipeline.inputs.source import is_onnx, sides_of, with_external_data
from pipeline.model import StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Copy what the model needs, external data included, to `request.out`.

    The step has no facts: the source of the files does not count, so the same files at another commit rebuild nothing.

    Raises:
        SourceError: a file can't be had.
        ModelError: an ONNX file is damaged, or names external data outside its folder.
    """
    params = Params.from_json(request.params)
    commit = params.commit
    if commit is None:
        _copy(request.files, request.out)
        _check_complete(request.files)
        return StageResult(Facts().to_json())

    from pipeline.inputs.hub.data import data_files  # the hub's client takes longer to import than a copy takes
    from pipeline.inputs.hub.files import fetch_file

    wanted = params.files
    if is_data(commit.hub):
        files = data_files(commit.hub, commit.revision, wanted[0], params.suffixes, params.most)
        _copy({name: fetch_file(commit.hub, commit.revision, name) for name in files}, request.out)
        return StageResult(Facts().to_json())

    def obtain(name: str, named_by: str) -> Path:
        return fetch_file(commit.hub, commit.revision, name, named_by)

    # The small files first: a name that the repository lacks is told before gigabytes of weights are on their way.
    _copy(with_external_data(sorted(wanted, key=_is_model), obtain), request.out)
    return StageResult(Facts().to_json())


def _is_model(name: str) -> bool:
    return is_onnx(name) or is_safetensors(name) or name.lower().endswith(".gguf")


def _copy(files: Mapping[str, Path], out: Path) -> None:
    for name, path in sorted(files.items()):
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(path, target)
        except OSError as error:
            raise SourceError(
                f"{name} can't be copied into the build folder",
                where=str(path),
                why=error.strerror or str(error),
                remedy="make the file readable and see that the disk of the build folder has room",
            ) from error


def _check_complete(files: Mapping[str, Path]) -> None:
    """Check that the files still name no others than were listed before the step ran."""
    for name in files:
        for side in sides_of(name, files[name]):
            if side not in files:
                raise SourceError(
                    f"{name} changed while the build ran: it names {side} now",
                    where=str(files[name]),
                    remedy="run the same command again",
                )
