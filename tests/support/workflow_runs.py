"""Runs the `run:` scripts of a GitHub workflow on this machine, and stands in for the actions between them.

What is real: the scripts, in bash as GitHub starts it, with the environment that the file gives them; conditions,
outputs and the order of jobs; the keys of caches. Each job has a checkout of its own. What is not: the machines, and
the actions themselves, of which the cache is a folder and the others do nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Context = Mapping[str, Any]

_TOKEN = re.compile(r"'(?:[^']|'')*'|[A-Za-z_][\w-]*(?:\.[\w-]+)+|&&|\|\||!(?!=)")
_OPERATORS = {"&&": " and ", "||": " or ", "!": " not "}
_STATUS = re.compile(r"\b(always|cancelled|failure|success)\(\)")
_OURS = ("PIPELINE_", "HF_", "AWS_", "GITHUB_", "PYTHON", "VIRTUAL_ENV", "PYTEST_", "UV_PYTHON", "UV_PROJECT", "CI")


def load(path: Path) -> dict[str, Any]:
    """A workflow file. YAML takes its key `on` for true."""
    content: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return content


def evaluate(expression: str, context: Context, *, failed: bool = False) -> Any:
    """What an expression comes to; unknown names are empty, as on GitHub."""

    def translated(match: re.Match[str]) -> str:
        token = match[0]
        if token.startswith("'"):
            return repr(token[1:-1].replace("''", "'"))
        return _OPERATORS.get(token) or f"get({token!r})"

    names = {
        "get": lambda name: context.get(name, ""),
        "always": lambda: True,
        "cancelled": lambda: False,
        "failure": lambda: failed,
        "success": lambda: not failed,
        "fromJSON": json.loads,
        "contains": lambda within, item: item in within,
    }
    return eval(_TOKEN.sub(translated, expression).strip(), {"__builtins__": {}}, names)


def fill(text: str, context: Context) -> str:
    """Text with its expressions replaced."""

    def filled(match: re.Match[str]) -> str:
        value = evaluate(match[1], context)
        return str(value).lower() if isinstance(value, bool) else str(value)

    return re.sub(r"\$\{\{(.*?)\}\}", filled, text)


def holds(condition: str | None, context: Context, *, failed: bool) -> bool:
    """Whether an `if` holds; one that does not ask how it went so far asks for success."""
    text = re.sub(r"^\s*\$\{\{(.*)\}\}\s*$", r"\1", condition or "success()")
    return bool(evaluate(text, context, failed=failed)) and (bool(_STATUS.search(text)) or not failed)


@dataclass
class Job:
    """How a job went: `result` as the others see it, the exit codes of its scripts by name, and what they said."""

    result: str
    root: Path
    codes: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    log: str = ""
    uploaded: dict[str, list[str]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The run.json that the job keeps."""
        content: dict[str, Any] = json.loads((self.root / "kept" / "run.json").read_bytes())
        return content


@dataclass
class Runner:
    """A place where a workflow runs again and again: what is between the runs is its cache.

    `checkout` makes the folder of a job.
    """

    workflow: dict[str, Any]
    folder: Path
    checkout: Callable[[Path], None]
    uv: str
    nights: int = 0
    cached: list[str] = field(default_factory=list)

    def night(self, **context: Any) -> dict[str, Job]:
        """Run all jobs, each after those that it needs; `context` has names such as `vars.X` with `_` for the dot."""
        self.nights += 1
        known: dict[str, Any] = {name.replace("_", ".", 1): value for name, value in context.items()}
        known |= {"github.run_id": str(self.nights), "github.run_attempt": "1", "github.ref": "refs/heads/main"}
        jobs: dict[str, Job] = {}
        for name, job in self.workflow["jobs"].items():
            needs: Sequence[str] = [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])
            here = dict(known)
            for need in needs:
                here[f"needs.{need}.result"] = jobs[need].result
                here |= {f"needs.{need}.outputs.{key}": value for key, value in jobs[need].outputs.items()}
            root = self.folder / f"night-{self.nights}" / name
            if not holds(job.get("if"), here, failed=any(jobs[need].result != "success" for need in needs)):
                jobs[name] = Job("skipped", root)
                continue
            jobs[name] = self._job(name, job, here, root)
        return jobs

    def _job(self, name: str, job: Mapping[str, Any], context: dict[str, Any], root: Path) -> Job:
        self.checkout(root)
        done = Job("success", root)
        temp = root.parent / f"{name}-temp"
        temp.mkdir()
        files = {key: temp / key for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for number, step in enumerate(job["steps"]):
            if not holds(step.get("if"), context, failed=done.result == "failure"):
                continue
            if "uses" in step:
                self._action(step, context, done)
                continue
            for path in files.values():
                path.write_text("")
            given = {**self.workflow.get("env", {}), **job.get("env", {}), **step.get("env", {})}
            own = {key: fill(str(value), context) for key, value in given.items()}
            title = step.get("name", f"step {number}")
            code = self._script(step["run"], own | {key: str(path) for key, path in files.items()}, done, temp)
            done.codes[title] = code
            done.summary += files["GITHUB_STEP_SUMMARY"].read_text("utf-8")
            if "id" in step:
                lines = files["GITHUB_OUTPUT"].read_text("utf-8").splitlines()
                context |= {
                    f"steps.{step['id']}.outputs.{key}": value for key, _, value in (x.partition("=") for x in lines)
                }
            if code:
                done.result = "failure"
        done.outputs = {key: fill(value, context) for key, value in job.get("outputs", {}).items()}
        return done

    def _script(self, script: str, own: Mapping[str, str], done: Job, temp: Path) -> int:
        """Run it as GitHub does with `shell: bash`."""
        path = temp / "script.sh"
        path.write_text(script, "utf-8")
        (temp / "bin").mkdir(exist_ok=True)
        if not (temp / "bin" / "uv").exists():
            (temp / "bin" / "uv").symlink_to(self.uv)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        machine = {
            "PATH": f"{temp / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "RUNNER_TEMP": str(temp),
            "UV_PROJECT_ENVIRONMENT": str(self.folder / "environment"),
        }
        ran = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(path)],
            cwd=done.root,
            env={**inherited, **machine, **own, "UV_PYTHON": sys.executable},  # the one that is here
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            check=False,
        )
        done.log += f"$ {script}\n{ran.stdout}\n"
        return ran.returncode

    def _action(self, step: Mapping[str, Any], context: Context, done: Job) -> None:
        action = step["uses"].split("@")[0]
        given = {key: fill(str(value), context) for key, value in step.get("with", {}).items()}
        if action == "actions/cache/restore":
            prefixes = given.get("restore-keys", "").split()
            found = [key for key in self.cached if key == given["key"]]
            for prefix in prefixes:
                found = found or [key for key in reversed(self.cached) if key.startswith(prefix)]
            if found:
                shutil.copytree(self.folder / "cache" / found[0], done.root, dirs_exist_ok=True)
        elif action == "actions/cache/save":
            kept = self.folder / "cache" / given["key"]
            if given["key"] not in self.cached and (done.root / given["path"]).exists():
                shutil.copytree(done.root / given["path"], kept / given["path"])
                self.cached.append(given["key"])
        elif action == "actions/upload-artifact":
            folders = [done.root / line for line in given["path"].split()]
            files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
            done.uploaded[given["name"]] = sorted(path.relative_to(done.root).as_posix() for path in files)
