"""`.build/run.json` and `report.md` after builds that end in every way."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pipeline.errors import ConfigError
from pipeline.report import run_record
from pipeline.report.run_report import markdown
from pipeline.report.tables import text
from tests.support import tiny_project
from tests.support.build_processes import Build, kill, until
from tests.support.project import ROOT, Project
from tests.support.run_records import NAME, artifact, record

SCHEMA = json.loads((ROOT / "pipeline" / "report" / "run.schema.json").read_bytes())
ARTIFACT = "tiny/net/8/sm8650"


def kept(project: Project) -> dict[str, Any]:
    """The record of the last build, which must be as its schema says."""
    content: dict[str, Any] = json.loads((project.root / ".build" / "run.json").read_bytes())
    Draft202012Validator(SCHEMA).validate(content)
    assert (project.root / ".build" / "report.md").read_text("utf-8") == markdown(content)
    return content


def is_kept(project: Project) -> bool:
    return any((project.root / ".build" / name).exists() for name in ("run.json", "report.md"))


@pytest.fixture(scope="module")
def built(tiny_built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny model for one bucket and one target, built; its record says so."""
    folder = tmp_path_factory.mktemp("recorded")
    return tiny_built.copy(folder / "project", folder / "store")


@pytest.fixture
def again(built: Project, tmp_path: Path) -> Project:
    """The same, a copy for one test."""
    return built.copy(tmp_path / "project")


@pytest.mark.slow
class TestBuilds:
    def test_a_first_build_tells_what_it_made(self, again: Project) -> None:
        content = kept(again)

        assert (content["result"], content["exit_code"], content["whole"]) == ("ok", 0, True)
        assert content["command"] == ["build"]
        assert content["counts"]["built"] == len(content["steps"])
        assert content["steps"][f"context:{ARTIFACT}"].keys() == {"outcome", "seconds", "at"}
        assert content["published"] == {"tiny": "artifacts/tiny"}
        assert {"x86_64", "linux", "linux-x86_64"} <= {*content["host"]["names"]} or sys.platform != "linux"
        assert {"onnxruntime", "onnxruntime-qnn", "qairt"} <= content["versions"].keys()

    def test_artifacts_as_the_manifest_has_them(self, again: Project) -> None:
        (manifest,) = (again.root / "artifacts" / "tiny").glob("sm8650/manifest.json")
        (bucket,) = json.loads(manifest.read_bytes())["components"]["net"]["buckets"]

        found = kept(again)["artifacts"]

        assert found.keys() == {ARTIFACT}
        entry = found[ARTIFACT]
        assert entry["files"] == bucket["files"]
        assert entry["bytes"] == sum(each["bytes"] for each in bucket["files"].values())
        assert entry["sqnr_db"].keys() == {"reading", "padding", "rewrite", "quantization", "compile", "total"}
        (compiled,) = bucket["verification"]["emulator"]["sm8650"]["rungs"]["compile"].values()
        assert entry["sqnr_db"]["compile"] == compiled["sqnr_db"]
        assert entry["samples"] == {"cpu": bucket["verification"]["cpu"]["samples"], "emulator": 2}

    def test_a_build_with_nothing_to_do(self, again: Project) -> None:
        before = kept(again)

        again.doit("build")

        content = kept(again)
        assert content["counts"]["current"] == len(content["steps"])
        assert content["artifacts"] == before["artifacts"]

    def test_what_was_restored_and_from_where(self, again: Project) -> None:
        for path in (again.root / ".build" / "steps").rglob("*.json"):
            path.unlink()

        again.doit("build")

        content = kept(again)
        assert content["counts"]["restored"] == len(content["steps"])
        assert all(step == {"outcome": "restored", "from": "store"} for step in content["steps"].values())

    def test_a_part_of_a_build_is_not_the_whole(self, again: Project) -> None:
        again.doit("verify:tiny/net/8")
        content = kept(again)
        assert (content["command"], content["whole"]) == (["verify:tiny/net/8"], False)
        assert not any(name.startswith("context:") for name in content["steps"])

        again.doit("build", "models=tiny")
        assert kept(again)["whole"] is False

    @pytest.mark.parametrize("command", ["list", "info fetch:tiny", "doctor", "fsck", "gc", "check", "help"])
    def test_what_is_no_build_leaves_the_record_alone(self, command: str, again: Project) -> None:
        path = again.root / ".build" / "run.json"
        before = path.read_bytes()

        again.doit(*command.split(), check=False)

        assert path.read_bytes() == before

    def test_compare_by_command(self, again: Project) -> None:
        before = (again.root / ".build" / "run.json").read_bytes()
        (again.root / "last.json").write_bytes(before)
        assert "none missed" in again.doit("compare", "last.json").text

        last = json.loads(before)
        last["artifacts"][ARTIFACT]["sqnr_db"]["total"] += 3
        again.write("last.json", json.dumps(last))
        run = again.doit("compare", "last.json", check=False)
        assert run.status == 16
        assert re.search(rf"MISSED\s+{ARTIFACT}\s+total SQNR\s+[0-9.]+ dB\s+[0-9.]+ dB\s+1 dB", run.text)

        again.write("configs/project.yaml", "compare: {snr_db: 3.5}\n")
        assert again.doit("compare", "last.json").status == 0
        nowhere = again.doit("compare", "nowhere.json", check=False).text
        assert nowhere.startswith("FAILED             compare\nerror: nowhere.json can't be read")
        assert (again.root / ".build" / "run.json").read_bytes() == before


@pytest.mark.slow
class TestFailures:
    def test_a_threshold_that_is_missed(self, again: Project) -> None:
        again.write(
            tiny_project.CONFIG,
            (again.root / tiny_project.CONFIG).read_text()
            + "quantization: {weights: uint8}\nthresholds: {compile_db: 99}\n",
        )

        run = again.doit("--continue", "build", check=False)

        content = kept(again)
        assert (run.status, content["exit_code"], content["result"]) == (16, 16, "failed")
        assert content["steps"][f"emulate:{ARTIFACT}"]["outcome"] == "failed"
        (failure,) = content["failures"]
        assert failure["tasks"] == [f"emulate:{ARTIFACT}"]
        assert (failure["error"], failure["exit_code"]) == ("VerificationError", 16)
        assert failure["what"].startswith("the compile rung misses its threshold")
        assert failure["why"]
        assert failure["next"]
        assert content["published"] == {}
        assert ARTIFACT in content["artifacts"]  # with what was measured

    def test_a_step_that_fails_and_what_was_not_tried(self, again: Project) -> None:
        (again.root / "model" / "model.onnx").write_bytes(b"no model")

        run = again.doit("--continue", "build", check=False)

        content = kept(again)
        assert run.status == content["exit_code"] == 12
        assert content["counts"]["failed"] == 1
        (failed,) = (name for name, step in content["steps"].items() if step["outcome"] == "failed")
        rest = [step for step in content["steps"].values() if step["outcome"] == "not tried"]
        assert rest
        assert all(step["because"] == failed for step in rest)
        assert content["artifacts"] == {}

    def test_a_config_that_is_wrong(self, again: Project) -> None:
        again.write("configs/project.yaml", "compare: {snr: 1}\n")

        run = again.doit("build", check=False)

        content = kept(again)
        assert run.status == content["exit_code"] == 10
        assert content["failures"][0]["tasks"] == []
        assert "snr" in content["failures"][0]["what"] + content["failures"][0]["where"]
        assert "Refused before anything ran" in markdown(content)

    def test_a_build_that_the_guard_refuses(self, again: Project) -> None:
        again.edit(tiny_project.CONFIG, "targets: [sm8650]", "targets: [{soc: sm8650, driver_sdk: '2.10'}]")
        run = again.doit("build", check=False)

        content = kept(again)
        assert run.status == content["exit_code"] == 10
        assert "driver" in json.dumps(content["failures"])

    @pytest.mark.parametrize(
        "arguments", [("-n", "0", "build"), ("build", "nothing-of-that-name"), ("build", "--wrong")]
    )
    def test_a_command_line_that_is_not_understood_leaves_none(
        self, arguments: tuple[str, ...], again: Project
    ) -> None:
        assert again.doit(*arguments, check=False).status in (3, 10)
        assert not is_kept(again)

    def test_a_disk_that_refuses_is_told_and_changes_no_exit_code(self, again: Project) -> None:
        (again.root / ".build" / "report.md").unlink()
        (again.root / ".build" / "report.md").mkdir()

        run = again.doit("build")

        assert ".build/run.json can't be written: Is a directory\n  where: " in run.text
        assert (
            "\n  next: move the folder away that is where the file belongs, then run the same command again" in run.text
        )
        assert not (again.root / ".build" / "run.json").exists()


@pytest.mark.slow
class TestInterrupted:
    @pytest.fixture
    def fresh(self, tmp_path: Path) -> Project:
        return tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=(8,), targets=("sm8650",))

    def test_ctrl_c(self, fresh: Project, tmp_path: Path) -> None:
        for _ in range(5):  # on a busy machine we may come too late, or it to the record: it ends within two seconds
            with Build(fresh, "build", log=tmp_path / "log") as build:
                assert until(lambda: "built" in build.text(), build, 120)
                build.doit.send_signal(signal.SIGINT)
                status = build.end(60).status
            if status == 130 and is_kept(fresh):
                break
            shutil.rmtree(fresh.store)
            shutil.rmtree(fresh.root / ".build")

        content = kept(fresh)
        assert (content["result"], content["exit_code"]) == ("interrupted", 130)
        assert content["counts"]["built"] >= 1
        assert content["counts"]["not_tried"] >= 1

    def test_a_build_that_is_killed_leaves_none(self, again: Project, tmp_path: Path) -> None:
        assert is_kept(again)
        for path in (again.root / ".build" / "steps").rglob("*.json"):
            path.unlink()
        with Build(again, "build", log=tmp_path / "log", PIPELINE_STORE=str(tmp_path / "new")) as build:
            assert until(lambda: "built" in build.text(), build, 120)
            kill(build.doit)
            build.end(60)

        assert not is_kept(again)


class TestCommandLines:
    @pytest.mark.parametrize(
        "line",
        ["", "build", "-n 2 build", "build:demo", "run build", "models=demo", "context:demo/*", "package", "publish x"],
    )
    def test_a_build(self, line: str) -> None:
        assert run_record.is_build(line.split())

    @pytest.mark.parametrize(
        "line",
        [
            "list",
            "list build",
            "clean build:demo",
            "doctor",
            "compare a b",
            "compare build",
            "verify-release *.zip",
            "reproduce build",
            "record build",
            "--help",
            "help build",
            "fsck",
            "check",
        ],
    )
    def test_none(self, line: str) -> None:
        assert not run_record.is_build(line.split())


class TestCommit:
    SHA = "0123456789abcdef0123456789abcdef01234567"

    @pytest.mark.parametrize("how", ["loose", "packed", "detached"])
    def test_as_git_keeps_it(self, how: str, tmp_path: Path) -> None:
        git = tmp_path / ".git"
        (git / "refs" / "heads").mkdir(parents=True)
        (git / "HEAD").write_text(f"{self.SHA}\n" if how == "detached" else "ref: refs/heads/main\n")
        if how == "loose":
            (git / "refs" / "heads" / "main").write_text(f"{self.SHA}\n")
        if how == "packed":
            (git / "packed-refs").write_text(
                f"# pack-refs\n{self.SHA[::-1]} refs/heads/other\n{self.SHA} refs/heads/main\n"
            )

        assert self.recorded(tmp_path) == self.SHA

    @pytest.mark.parametrize("head", [None, "", "ref: refs/heads/none", "\x00", "nonsense"])
    def test_what_is_not_so_simple(self, head: str | None, tmp_path: Path) -> None:
        (tmp_path / ".git").mkdir()
        if head is not None:
            (tmp_path / ".git" / "HEAD").write_text(head)

        assert self.recorded(tmp_path) is None

    def recorded(self, root: Path) -> object:
        run_record.refused(root / ".build", ["build"], ConfigError("wrong"))
        return json.loads((root / ".build" / "run.json").read_bytes())["commit"]


class TestReport:
    def test_names_break_no_line_and_no_cell(self) -> None:
        content = record()
        content["artifacts"] = {"demo/`|<x>\n\x1b/32/sm8650": artifact(scheme="a|b\n# <b>")}
        content["failures"] = [
            {"tasks": ["`"], "error": "E", "exit_code": 1, "what": "a\n```\nb", "where": "", "why": "", "next": ""}
        ]

        page = markdown(content)

        rows = [line for line in page.splitlines() if line.startswith("| `demo")]
        assert len(rows) == 1
        assert len({line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("|")}) <= 2
        assert "````text\na\n```\nb\n````" in page
        assert page.replace("\n", "").isprintable()

    def test_text_shows_what_it_is(self) -> None:
        assert text("a*b_c <i> & `d` | [e](f)\nnext") == r"a\*b\_c &lt;i> &amp; \`d\` \| \[e\](f) next"

    def test_many_are_counted(self) -> None:
        content = record()
        content["artifacts"] = {f"{NAME}{number}": artifact() for number in range(100)}

        assert "and 60 more" in markdown(content)

    def test_what_waits_names_the_hosts(self) -> None:
        content = record() | {"result": "waiting", "exit_code": 19, "artifacts": {}}
        content["steps"] = {
            "context:a": {
                "outcome": "waiting",
                "hosts": ["windows-aarch64", "sc8280xp"],
                "why": "stages.context.hosts",
            },
            "emulate:a": {"outcome": "not tried", "because": "context:a"},
        }

        page = markdown(content)

        assert "| `context:a` | windows-aarch64 or sc8280xp | stages.context.hosts |" in page
        assert "Not tried until then: 1 step(s)." in page
        assert "Not tried:" not in page

    def test_an_artifact_that_may_not_ship_says_so(self) -> None:
        content = record()
        assert "FAILED" not in markdown(content)
        content["steps"][f"emulate:{NAME}"] = {"outcome": "failed"}

        assert f"| `{NAME}` | FAILED | w8a16 | 1.0&nbsp;kB |" in markdown(content)
