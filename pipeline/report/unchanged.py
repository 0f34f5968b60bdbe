"""Remembers models in which a build found nothing to do, until a file changes that the build looked at.

Without this, a build with nothing to do would plan, resolve and judge each step of each model. Instead it compares the
files that the last full look at a model read: its config, the code, the sources and samples, the manifest of each step,
payloads, artifacts. `.build/unchanged/<model>.json` has their stamps and the account of the model. If a stamp differs,
or the file is lost, the build looks at the model step by step.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.command_line import CommandLine
from pipeline.config.file_names import PROJECT_FILE
from pipeline.errors import PipelineError
from pipeline.model import Json
from pipeline.plan.keys import READER_TOOLS, ExtraError, canonical_json, reader_versions, tool_versions
from pipeline.plan.workspace import Workspace
from pipeline.report.account import Account
from pipeline.stage_table import STAGES
from pipeline.store import sealed_json
from pipeline.store.durable import write_atomically
from pipeline.store.files_read import MISSING, FilesRead, recording, stamp_of

if TYPE_CHECKING:
    from pipeline.config.load import ModelConfig

FOLDER = "unchanged"
_VERSION = 1
_SHARED_S = 86400  # what a shared store has is believed for a day
_HARMLESS = re.compile(r"-(n\d*|c|v\d?)|--(process|continue|verbosity)(=.*)?")
_CODE = Path(__file__).resolve().parents[1]


def may_skip(line: CommandLine, variables: Collection[str]) -> bool:
    """Whether a command only builds whole models, so that it can skip those that are done."""
    whole = all(name == "build" or re.fullmatch(r"build:[^*?\[]+", name) for name in line.names)
    harmless = all(_HARMLESS.fullmatch(option) for option in line.options)
    return line.command == "run" and whole and harmless and not {*variables} - {"models"}


class Unchanged:
    """What is remembered of the models of a checkout.

    Make it before the configs are read: it takes their stamps, so that a later change is noticed.
    """

    def __init__(self, root: Path, code: Path = _CODE) -> None:
        self._root = root
        self._good: dict[str, bool] = {}
        self._configs = {path: stamp_of(path) for path in _yaml_files(root / "configs")}
        self._code = _code_stamp(root, code)

    def accounts(self, models: Collection[str], workspace: Workspace) -> dict[str, Account]:
        """The accounts of those of the models in which nothing changed since they were done."""
        basis = self._basis(workspace)
        owes = workspace.shared is not None and workspace.shared.owes()
        if not basis or owes or not (workspace.build / FOLDER).is_dir():
            return {}
        found = ((model, self._account(model, basis, workspace)) for model in models)
        return {model: account for model, account in found if account is not None}

    def keep(self, model: str, read: FilesRead, account: Account, workspace: Workspace) -> None:
        """Remember a model that is done, with the files that were `read` to find that out.

        Does nothing if the shared store lacks some of its outputs, or the disk can't be written.
        """
        basis = self._basis(workspace)
        config = self._config(model)
        missing = workspace.shared is not None and not workspace.shared.has_all(read.used)
        if not basis or missing or config not in self._configs:
            return
        read.files[config] = self._configs[config]
        content: dict[str, Any] = {
            "basis": basis,
            "files": {self._short(path): stamp for path, stamp in read.files.items()},
            "payloads": read.payloads,
            "used": [*read.used],
            "account": account.to_json(),
        }
        self._write(_path(model, workspace), content, workspace)

    def _write(self, path: Path, content: Mapping[str, Json], workspace: Workspace) -> None:
        with contextlib.suppress(OSError, ValueError), workspace.scratch.folder() as folder:
            data = sealed_json.dump(content, indent=None, sort_keys=False)
            write_atomically(path, data, durable=False, folder=folder)

    def on_request(self, workspace: Workspace) -> dict[str, bool] | None:
        """Whether each model is built on request only, for models whose config is unchanged since it was read.

        None if the project's settings, the code or other things changed that decide about every model.
        """
        try:
            content = sealed_json.load(self._settings_record(workspace).read_bytes())
            if not (basis := self._basis(workspace)) or content["basis"] != basis:
                return None
            read = {str(model): (str(stamp), bool(only)) for model, (stamp, only) in content["read"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return {model: only for model, (stamp, only) in read.items() if self._stamp(model) == stamp}

    def keep_on_request(self, configs: Mapping[str, ModelConfig], workspace: Workspace) -> None:
        """Remember that these configs were read without a mistake.

        Does nothing in a project with rules for hosts, a cluster or a shared store: builds there have more to look at.
        """
        settings = workspace.project.settings
        if settings.stages or settings.engine or settings.store.shared or workspace.shared is not None:
            return  # who said in the environment that there is no shared store need not say so the next time
        on_request = {name: config.on_request for name, config in configs.items()}
        known = self.on_request(workspace)
        if known is not None and on_request.items() <= known.items():
            return
        all_known = {**(known or {}), **on_request}
        files = FilesRead({self._config(model): self._stamp(model) for model in all_known})
        if (basis := self._basis(workspace)) and files.are_unchanged_for_a_while():
            read: Json = {model: [self._stamp(model), only] for model, only in all_known.items()}
            self._write(self._settings_record(workspace), {"basis": basis, "read": read}, workspace)

    def _config(self, model: str) -> str:
        return str(self._root / "configs" / f"{model}.yaml")

    def _stamp(self, model: str) -> str:
        return self._configs.get(self._config(model), MISSING)

    def _settings_record(self, workspace: Workspace) -> Path:
        return workspace.build / FOLDER / ".configs.json"

    def _account(self, model: str, basis: str, workspace: Workspace) -> Account | None:
        path = _path(model, workspace)
        try:
            is_old = time.time() - path.stat().st_mtime > _SHARED_S
            if workspace.shared is not None and (is_old or not workspace.shared_record.is_file()):
                return None
            content = sealed_json.load(path.read_bytes())
            if content["basis"] != basis:
                return None
            read = FilesRead({self._long(name): stamp for name, stamp in content["files"].items()}, content["payloads"])
            if not read.are_unchanged(workspace.store.payloads.fault, self._good):
                return None
            if not all(self._is_used(key, workspace) for key in content["used"]):
                return None
            return Account.from_json(content["account"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _is_used(self, key: str, workspace: Workspace) -> bool:
        try:
            return workspace.store.still_used(key)
        except OSError:  # a read-only store needs no note, as nothing is removed from it
            return True

    def _basis(self, workspace: Workspace) -> str:
        """A digest of what decides about every model; empty if it can't be taken."""
        try:
            tools: dict[str, Any] = {stage: dict(tool_versions(stage)) for stage in STAGES}
        except PipelineError:
            return ""
        for reader in READER_TOOLS:
            with contextlib.suppress(ExtraError):
                tools[f"reader {reader}"] = dict(reader_versions(reader))
        shared = workspace.shared.name if workspace.shared is not None else ""
        settings = self._configs.get(str(self._root / "configs" / PROJECT_FILE))
        about: list[Any] = [_VERSION, self._code, tools, shared, os.fspath(workspace.store.root), settings]
        return hashlib.sha256(canonical_json(about)).hexdigest()

    def _short(self, path: str) -> str:
        return path.removeprefix(f"{self._root}/")

    def _long(self, name: str) -> str:
        return name if name.startswith("/") or Path(name).is_absolute() else f"{self._root}/{name}"


class Keeper:
    """Notes the files that a build looks at, model by model, and remembers the models that are done. For one thread."""

    def __init__(self, unchanged: Unchanged, workspace: Workspace) -> None:
        self._unchanged, self._workspace = unchanged, workspace
        self._read: dict[str, FilesRead] = {}
        self._done: dict[str, set[str]] = {}
        self._not_done: set[str] = set()

    def saw(self, model: str, part: str, is_done: Callable[[], bool]) -> bool:
        """Whether a part of a model is done, as `is_done` says. Notes the files that it reads.

        If `is_done` tells the user something, the model is not remembered: the next build has to tell it again.
        """
        store = self._workspace.store
        tell = store.tell

        def told(text: str) -> None:
            self._not_done.add(model)
            tell(text)

        store.tell = told
        try:
            with recording(self._read.setdefault(model, FilesRead())):
                found = is_done()
        finally:
            store.tell = tell
        if found:
            self._done.setdefault(model, set()).add(part)
        else:
            self._not_done.add(model)
        return found

    def keep(self, model: str, checks: Mapping[str, Callable[[], bool]], account: Account) -> None:
        """Remember a model that was built or found done; `checks` tell for each part whether it is done.

        Looks at what was built once more, as another process may have changed it meanwhile.
        """
        from pipeline.report.page.write import pages_of  # a build with nothing to do needs none of it

        besides = [page for page in pages_of(model, self._workspace) if page.exists()]
        if not all(page.is_file() for page in besides):  # the next build is to tell of it, too
            self._forget(model)
            return
        if not self._saw_all(model, checks):
            self._forget(model)
            store = self._workspace.store
            tell, store.tell = store.tell, lambda _: None  # who looked first has told
            try:
                if not all(self.saw(model, part, check) for part, check in checks.items()):
                    return
            finally:
                store.tell = tell
            if not self._saw_all(model, checks):
                return
        read = self._read.pop(model)
        read.files |= {str(page): stamp_of(str(page)) for page in besides}
        self._unchanged.keep(model, read, account, self._workspace)

    def _saw_all(self, model: str, parts: Collection[str]) -> bool:
        """Whether all parts of a model were found done and their files are unchanged since."""
        whole = model not in self._not_done and self._done.get(model, set()) >= {*parts}
        return whole and self._read[model].are_unchanged_for_a_while()

    def _forget(self, model: str) -> None:
        self._read.pop(model, None)
        self._done.pop(model, None)
        self._not_done.discard(model)


def _path(model: str, workspace: Workspace) -> Path:
    return workspace.build / FOLDER / f"{model}.json"


def _yaml_files(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.name.endswith(".yaml")]
    except OSError:
        return []


def _code_stamp(root: Path, code: Path) -> str:
    """A digest of what our code, in the folder `code`, and the project's looks like.

    Of a module that scripts import from elsewhere in the project, the file is looked at where its key is made; here is
    which names an import could find.
    """
    names = sorted(path.name for path in root.iterdir())
    stamps = [name for name in names if not name.startswith(".") and name != "artifacts"]
    for top in (code, root / "calibration"):
        for folder, folders, names in os.walk(top):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
            paths = (f"{folder}/{name}" for name in sorted(names) if name.endswith(".py"))
            stamps += [f"{path} {stamp_of(path)}" for path in paths]
    return hashlib.sha256("\n".join(stamps).encode("utf-8", "surrogatepass")).hexdigest()
