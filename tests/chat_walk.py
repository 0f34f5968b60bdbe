"""From a release to an answer, where there is only what an application needs: `python -m tests.chat_walk ARCHIVE`.

In a new virtual environment with the runtime, onnxruntime-genai and its own packages, the release alone is asked one
question by the numpy loop, by onnxruntime-genai and by Genie, all on QNN's emulator. All have to answer with the same
tokens. The emulator takes contexts with a binary of their own: build with `packing: separate`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.environments import python_with_runtime
from tests.support.project import ROOT

NEEDS = ("numpy", "onnxruntime", "onnxruntime-qnn", "onnxruntime-genai", "tokenizers", "jinja2")
ENGINES = ("numpy", "genai", "genie")


@dataclass(frozen=True)
class ChatWalk:
    """An archive, and the Python of an environment that has :data:`NEEDS` and the runtime."""

    archive: Path
    python: Path
    work: Path

    @classmethod
    def begin(cls, archive: Path, work: Path) -> ChatWalk:
        """Make the environment, in `work`."""
        return cls(archive, python_with_runtime(NEEDS, work / "environment"), work)

    def ask(self, engine: str, question: str, most: int) -> dict[str, Any]:
        """What one engine answers, in a process of its own."""
        with zipfile.ZipFile(self.archive) as opened:
            target = json.loads(opened.read("release.json"))["targets"][0]["name"]
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            job = {
                "release": str(self.archive),
                "engine": engine,
                "target": target,
                "question": question,
                "most": most,
                "cache": str(self.work / "cache"),
                "answer": f"{folder}/answer.json",
            }
            (Path(folder) / "job.json").write_text(json.dumps(job), "utf-8")
            program = ROOT / "tests" / "support" / "chat_alone.py"
            where = [str(self.python), "-I", "-c", "import onnxruntime_qnn as q; print(q.LIB_DIR_FULL_PATH)"]
            libraries = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
            done = subprocess.run(
                [str(self.python), "-I", str(program), f"{folder}/job.json"],
                cwd=folder,
                env={**os.environ, "LD_LIBRARY_PATH": libraries},
                capture_output=True,
                text=True,
                encoding="utf-8",
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            said: dict[str, Any] = json.loads((Path(folder) / "answer.json").read_text("utf-8"))
            return said


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chat_walk", description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--question", default="What is the capital of France?")
    parser.add_argument("--tokens", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        walk = ChatWalk.begin(given.archive.resolve(), Path(folder))
        answers = []
        for engine in ENGINES:
            said = walk.ask(engine, given.question, given.tokens)
            answers.append(said["tokens"])
            print(f"{engine}: {said['prompt']} tokens read, {said['tokens']}, {said['text']!r}, {said['seconds']} s")
    if any(each != answers[0] for each in answers):
        raise SystemExit("they differ")
    print("all three are equal")


if __name__ == "__main__":
    main()
