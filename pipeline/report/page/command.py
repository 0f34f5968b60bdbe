"""`doit report`: writes the pages of models as they are now, says where they are, and opens them in a browser."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.load import ModelConfig
from pipeline.errors import StoreError
from pipeline.model import Manifest
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.report.page import PAGE
from pipeline.report.page.write import current_model, write_pages
from pipeline.report.run_record import RECORD
from pipeline.store.manifests import read_manifest

Models = Sequence[tuple[ModelConfig, Sequence[Step]]]
"""Models and their steps, those on demand too."""


def report(models: Models, name: str, workspace: Workspace, *, no_browser: bool = False) -> int:
    """Write the pages of these models, print where they are, and open that of `name`, or of all where it is empty.

    Raises:
        StoreError: a page can't be written.
    """
    known = {config.name for config, _ in models}
    wanted = [(config, steps) for config, steps in models if not name or config.name == name]
    built = []
    for config, steps in wanted:
        manifests = _manifests(steps, workspace)
        model = current_model(config, steps, manifests, workspace)
        if model.seen:
            built.append(model)
        elif name:
            print(f"Nothing of {name} is built: run 'doit build:{name}' first.")
            return 0
    if not built:
        print("No model is built: run 'doit build' first.")
        return 0
    refused: list[StoreError] = []
    write_pages(built, _last_run(workspace), known, workspace, refused.append)
    if refused:
        raise refused[0].but(why="pages that are there are of an earlier build")
    path = workspace.artifacts / name / PAGE if name else workspace.artifacts / PAGE
    for written in sorted({path, *(workspace.artifacts / model.config.name / PAGE for model in built)}):
        print(written.relative_to(workspace.root).as_posix())
    if not no_browser:
        _open(path)
    return 0


def _manifests(steps: Sequence[Step], workspace: Workspace) -> Mapping[str, Manifest]:
    found = {step.id: read_manifest(workspace.current(step)) for step in steps}
    return {name: manifest for name, manifest in found.items() if manifest is not None}


def _last_run(workspace: Workspace) -> Mapping[str, Any] | None:
    try:
        content = json.loads((workspace.build / RECORD).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and "steps" in content else None


def _open(path: Path) -> None:
    """Open a page where a browser can show itself; elsewhere its path was printed."""
    shown = os.environ.get("BROWSER") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform.startswith("linux") and not shown:
        return
    try:
        webbrowser.open(path.as_uri())
    except webbrowser.Error:
        return
