"""The folders and files of one checkout, its store, and what is remembered about it between builds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pipeline.frozen import dataclass
from pipeline.plan.keys import CodeDigests
from pipeline.plan.steps import Step
from pipeline.store import costs, database, digests
from pipeline.store.digests import StatMemo
from pipeline.store.scratch import Scratch
from pipeline.store.shared import address, names
from pipeline.store.store import Store

if TYPE_CHECKING:
    from pipeline.config.project_file import ProjectFile
    from pipeline.store.shared.tier import SharedStore

STORE_VARIABLE = "PIPELINE_STORE"


def _defaults() -> ProjectFile:
    from pipeline.config.project_file import ProjectFile

    return ProjectFile()


class Named(Protocol):
    """Anything with the stage and name of a step."""

    @property
    def stage(self) -> str:
        """The kind of step."""

    @property
    def name(self) -> str:
        """What it is about, as `demo/classifier/64`."""


@dataclass(frozen=True)
class Workspace:
    """One checkout: the project's root folder, its build folder, the store, memos of what was read, and settings.

    The settings are defaults until :meth:`configured` puts in those of the project. Without
    them, commands can look at a checkout whose settings are wrong.
    """

    root: Path
    store: Store
    memo: StatMemo
    code: CodeDigests
    project: ProjectFile = field(default_factory=_defaults)
    shared: SharedStore | None = None

    @classmethod
    def at(cls, root: Path, environ: Mapping[str, str] = os.environ) -> Workspace:
        """The workspace of the checkout at `root`; the store is where PIPELINE_STORE says, else `.build/store`."""
        build = root / ".build"
        store = Path(environ[STORE_VARIABLE]).expanduser() if environ.get(STORE_VARIABLE) else build / "store"
        memo = StatMemo(build / "memo.json")
        return cls(root, Store(root / store), memo, CodeDigests(memo))

    def configured(self, project: ProjectFile, environ: Mapping[str, str] = os.environ) -> Workspace:
        """This workspace with the project's settings, and with the shared store that they or the environment name."""
        url, where = address.configured(environ, project.settings.store.shared, project.place("store.shared"))
        if not url:
            return replace(self, project=project)
        from pipeline.store.shared.tier import SharedStore

        shared = SharedStore(url, where, self.root, self.shared_record, self.store)
        return replace(self, project=project, shared=shared)

    @property
    def build(self) -> Path:
        """The build folder: everything in it can be deleted at the cost of building again."""
        return self.root / ".build"

    @property
    def scratch(self) -> Scratch:
        """Scratch folders for half-written files that end in the build folder or beside it."""
        return Scratch(self.build / "tmp")

    @property
    def database(self) -> Path:
        """The database of doit itself."""
        return self.build / "doit.json"

    @property
    def shared_record(self) -> Path:
        """What shared stores are known to have."""
        return self.build / "shared.json"

    def caches(self) -> Mapping[Path, str]:
        """Files that only save time, and what each must have."""
        return {
            self.build / "memo.json": digests.MEMBER,
            self.database: database.MEMBER,
            self.shared_record: names.PLACES,
            self.store.root / "costs.json": costs.MEMBER,
        }

    @property
    def artifacts(self) -> Path:
        """Where finished context models go."""
        return self.root / "artifacts"

    @property
    def pins(self) -> Path:
        """The file that pins branches of hub repos to commits."""
        return self.root / "configs" / "pins.yaml"

    def current(self, step: Step | str) -> Path:
        """The manifest of what a step produced last; a copy of the one in the store."""
        return Path(self.current_name(step.id if isinstance(step, Step) else step))

    def current_name(self, step: str) -> str:
        """The path of :meth:`current` as text.

        This takes a tenth of the time, and a project may have a hundred thousand steps.
        """
        return f"{self.root}/.build/steps/{step.replace(':', '/', 1)}.json"

    def log(self, step: Named) -> Path:
        """The output of the step's last run."""
        return self.build / "logs" / step.stage / f"{step.name}.log"
