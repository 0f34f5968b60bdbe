"""A project with a tiny language model, from its GGUF file on."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.gguf_files import tiny_gguf
from tests.support.project import Project, Run

CONFIG = """\
source: {path: ../models/tiny}
components: {model: {file: tiny.gguf}}
language_model: {context: 32, prefill: 8}
calibration: {reader: chat, file: calibration/chat/chats.jsonl, max_samples: 8}
targets: [snapdragon-x-elite]
thresholds: {kl: 0.1, top1: 0.8, perplexity: 0.1}
release: {version: "1.0", licenses: [LICENSE], qdq: true}
"""
WORDS = ("other", "inner", "ant", "her", "hand", "den", "rather", "thin")


def language_project(root: Path) -> Project:
    """The project, not built; its calibration set is as small as the model."""
    made = Project.create(root / "project", root / "store")
    folder = made.root / "models" / "tiny"
    folder.mkdir(parents=True)
    tiny_gguf(folder / "tiny.gguf")
    (folder / "LICENSE").write_text("Weights are random.\n", "utf-8")
    chats = [
        [{"role": "user", "content": f"then and there {word}"}, {"role": "assistant", "content": f"the {word} and in"}]
        for word in WORDS
    ]
    made.write("calibration/chat/chats.jsonl", "".join(f"{json.dumps(chat)}\n" for chat in chats))
    made.write("configs/tiny.yaml", CONFIG)
    return made


def built_with(project: Project, folder: Path, file: str, old: str, new: str) -> Run:
    """A build of a copy, in `folder`, in which a file of the pipeline is edited."""
    wrong = project.copy(folder / "project")
    wrong.edit(file, old, new)
    return wrong.doit("build:tiny", check=False)
