"""`.github/workflows/nightly.yml`: its form, and what its scripts do in nights that go well and nights that don't."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import workflow_runs
from tests.support.project import ROOT
from tests.support.tiny_models import float_model, sample
from tests.support.uv_command import find_uv
from tests.support.workflow_runs import Job, Runner, evaluate, fill, holds

WORKFLOW = ROOT / ".github" / "workflows" / "nightly.yml"
CONFIG = """\
source: {path: ../models/tiny}
components:
  net: {file: model.onnx}
buckets: {sequence: [8]}
calibration: {reader: npz, folder: calibration/tiny}
verification: {samples: {reader: npz, folder: calibration/held_out}}
quantization: {activations: uint16, weights: uint8}
targets: [sm8650]
release: {version: "1.0", qdq: true}
"""
ARTIFACT = "tiny/net/8/sm8650"
BUILD, COMPARE = "Build", "Compare with the last run"
NPU = {"vars_NIGHTLY_ARM64_HOST": "with-npu"}


WORKFLOWS = sorted(WORKFLOW.parent.glob("*.yml"))


class TestForm:
    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
    def test_actionlint_finds_nothing(self, path: Path) -> None:
        lint = shutil.which("actionlint", path=str(Path(sys.executable).parent))
        assert lint, "it is a development dependency: run 'uv sync'"
        beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it asks shellcheck about scripts
        found = subprocess.run(
            [lint, "-no-color", str(path)],
            env=os.environ | {"PATH": beside},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (found.returncode, found.stdout, found.stderr) == (0, "", "")

    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
    def test_actions_are_pinned_by_commit_and_say_which_version_that_is(self, path: Path) -> None:
        used = [line for line in path.read_text("utf-8").splitlines() if "uses:" in line]

        assert used
        assert [line for line in used if not re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []

    def test_it_may_read_the_repository_and_nothing_else(self) -> None:
        workflow = workflow_runs.load(WORKFLOW)

        assert workflow["permissions"] == {"contents": "read"}
        assert not any("permissions" in job for job in workflow["jobs"].values())
        checkouts = [s for job in workflow["jobs"].values() for s in job["steps"] if "checkout" in s.get("uses", "")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)

    def test_every_job_ends_and_no_two_nights_run_at_once(self) -> None:
        workflow = workflow_runs.load(WORKFLOW)

        assert all(job["timeout-minutes"] <= 180 for job in workflow["jobs"].values())
        assert workflow["concurrency"] == {"group": "nightly-${{ github.ref }}", "cancel-in-progress": False}

    def test_long_runs_of_tests_hold_up_no_release(self) -> None:
        jobs = workflow_runs.load(WORKFLOW)["jobs"]

        assert "needs" not in jobs["disturbed"]
        assert [name for name, job in jobs.items() if "disturbed" in str(job.get("needs", ""))] == []
        programs = {match for step in jobs["disturbed"]["steps"] for match in re.findall(r"-m tests\.(\w+)", str(step))}
        assert programs == {"faults", "corruptions", "fuzz"}

    def test_what_is_released_is_reproduced_from_what_the_release_job_kept(self) -> None:
        jobs = workflow_runs.load(WORKFLOW)["jobs"]
        (kept,) = [
            step["with"]["name"] for step in jobs["release"]["steps"] if "upload-artifact" in step.get("uses", "")
        ]
        (taken,) = [s["with"]["name"] for s in jobs["reproduced"]["steps"] if "download-artifact" in s.get("uses", "")]

        assert jobs["reproduced"]["needs"] == "release"
        assert kept == taken
        assert 'uv run doit reproduce "$archive"' in jobs["reproduced"]["steps"][-1]["run"]

    def test_secrets_go_to_the_steps_that_need_them_and_into_no_script(self) -> None:
        workflow = workflow_runs.load(WORKFLOW)
        steps = [step for job in workflow["jobs"].values() for step in job["steps"]]

        assert "secrets." not in json.dumps(workflow["env"]) + json.dumps(
            [j.get("env") for j in workflow["jobs"].values()]
        )
        assert not any("${{" in step.get("run", "") for step in steps)
        with_secrets = {step["name"] for step in steps if "secrets." in json.dumps(step)}
        builds = {"Build", "Build what waits for this host", "Build the rest, and verify it"}
        assert with_secrets == {*builds, "Package and verify", "Publish", "Reproduce the releases"}

    def test_hosts_that_share_a_store_have_one_python(self) -> None:
        jobs = workflow_runs.load(WORKFLOW)["jobs"].values()

        assert {re.search(r"\d+\.\d+", job["env"]["UV_PYTHON"])[0] for job in jobs} == {"3.13"}  # type: ignore[index]

    def test_files_are_checked_out_as_they_were_committed(self) -> None:
        names = ["configs/demo.yaml", "pipeline/plan/keys.py", "calibration/demo/heldout.tsv"]
        told = subprocess.run(
            ["git", "check-attr", "text", "--", *names], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout

        assert told.splitlines() == [f"{name}: text: unset" for name in names]


class TestExpressions:
    @pytest.mark.parametrize(
        ("expression", "value"),
        [
            ("vars.A || 'b'", "b"),
            ("vars.B == ''", True),
            ("!cancelled() && vars.C == 'it''s'", True),
            ('contains(fromJSON(\'["success", "skipped"]\'), needs.a.result)', True),
            ("vars.C != '' && needs.a.result == 'failure'", False),
        ],
    )
    def test_evaluate(self, expression: str, value: object) -> None:
        assert evaluate(expression, {"vars.C": "it's", "needs.a.result": "skipped"}) == value

    def test_fill(self) -> None:
        assert (
            fill("a-${{ github.run_id }}-${{ inputs.accept }}", {"github.run_id": "7", "inputs.accept": True})
            == "a-7-true"
        )

    def test_a_condition_asks_for_success_if_it_asks_for_nothing_else(self) -> None:
        assert not holds("vars.A == ''", {}, failed=True)
        assert holds("${{ !cancelled() && vars.A == '' }}", {}, failed=True)
        assert not holds(None, {}, failed=True)
        assert holds("failure()", {}, failed=True)


def write_config(root: Path, name: str = "tiny", text: str = CONFIG) -> None:
    (root / "configs" / f"{name}.yaml").write_text(text, "utf-8")


def edit_config(root: Path, old: str, new: str) -> None:
    path = root / "configs" / "tiny.yaml"
    assert path.read_text("utf-8").count(old) == 1
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")


def kept(job: Job) -> list[str]:
    """What was uploaded from the job's own folder."""
    return [file for files in job.uploaded.values() for file in files if file.startswith("kept/")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout with what is edited in it, and with a tiny model for all configs."""
    root = tmp_path_factory.mktemp("repository") / "root"
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).is_file() and not name.startswith(("configs/", "tests/", "docs/", "kept/")):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    (root / "configs").mkdir()
    write_config(root)
    float_model(root / "models" / "tiny", sequence="sequence")
    for folder, seeds in (("tiny", range(4)), ("held_out", range(4, 6))):
        (root / "calibration" / folder).mkdir(parents=True, exist_ok=True)
        for seed in seeds:
            np.save(root / "calibration" / folder / f"{seed}.npy", sample(3 + seed, seed))
    return root


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the scripts are run in bash")
class TestNights:
    @pytest.fixture
    def source(self, repository: Path, tmp_path: Path) -> Path:
        """What the jobs check out; a test may edit it between nights."""
        return Path(shutil.copytree(repository, tmp_path / "source"))

    @pytest.fixture
    def runner(self, source: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Runner:
        found = find_uv()
        if found is None:
            pytest.skip("there is no uv")
        folder = tmp_path / "runner"
        folder.mkdir()
        environment = tmp_path_factory.getbasetemp() / "nightly-environment"  # one for all
        environment.mkdir(exist_ok=True)
        (folder / "environment").symlink_to(environment)
        workflow = workflow_runs.load(WORKFLOW)
        del workflow["jobs"]["disturbed"]  # hours of what the tests run briefly
        del workflow["jobs"]["reproduced"]  # a build of its own: tests/release/test_reproduce.py

        def checkout(root: Path) -> None:
            shutil.copytree(source, root)

        return Runner(workflow, folder, checkout, found)

    def test_a_first_night_and_one_in_which_nothing_changed(self, runner: Runner, tmp_path: Path) -> None:
        published = tmp_path / "published"
        published.mkdir()
        variables = {"vars_NIGHTLY_PUBLISH_TO": f"{published}/{{date}}"}
        first = runner.night(**variables)

        assert [job.result for job in first.values()] == ["success", "skipped", "success"], _told(first)
        record = first["build"].record()
        assert record["counts"]["built"] == len(record["steps"])
        assert "There is no last run to compare with." in first["build"].summary
        assert "## Build: all is built" in first["build"].summary
        # The last job has a machine of its own: it restores what the first one made.
        record = first["release"].record()
        assert record["counts"]["restored"] == len(record["steps"])
        assert {step["from"] for step in record["steps"].values()} == {"shared"}
        assert "tiny-1.0.qnn.zip" in first["release"].log
        assert [path.name for path in sorted(published.glob("*-*-*/*"))] == ["tiny-1.0.qnn.json", "tiny-1.0.qnn.zip"]
        (uploaded,) = first["release"].uploaded.values()
        assert {"kept/run.json", "kept/report.md", "artifacts/releases/tiny-1.0.qnn.zip"} <= {*uploaded}

        second = runner.night(**variables)

        assert [job.result for job in second.values()] == ["success", "skipped", "success"], _told(second)
        for job in (second["build"], second["release"]):
            counts = job.record()["counts"]
            assert counts["restored"] == len(job.record()["steps"]), _told(second)
            assert sum(counts.values()) == counts["restored"]
            assert "## Compared with the last run: ok" in job.summary
            assert "none missed" in job.log
        releases = [job["release"].root / "artifacts" / "releases" / "tiny-1.0.qnn.zip" for job in (first, second)]
        assert releases[0].read_bytes() == releases[1].read_bytes()

    def test_a_store_of_ones_own(self, runner: Runner, tmp_path: Path) -> None:
        variables = {"vars_PIPELINE_SHARED_STORE": str(tmp_path / "shared")}
        jobs = runner.night(**variables)

        assert [job.result for job in jobs.values()] == ["success", "skipped", "success"], _told(jobs)
        assert jobs["release"].record()["counts"]["built"] == 0
        assert [key.split("-")[0] for key in runner.cached] == ["last"]  # and the store is none of the cache's

    def test_what_waits_is_done_by_the_host_that_may(self, runner: Runner, source: Path) -> None:
        (source / "configs" / "project.yaml").write_text("stages: {context: {hosts: [with-npu]}}\n")

        jobs = runner.night(**NPU)

        assert [job.result for job in jobs.values()] == ["success"] * 3, _told(jobs)
        record = jobs["build"].record()
        assert (record["result"], record["exit_code"]) == ("waiting", 19)
        assert record["steps"][f"context:{ARTIFACT}"]["outcome"] == "waiting"
        assert record["steps"][f"context:{ARTIFACT}"]["hosts"] == ["with-npu"]
        assert record["steps"][f"emulate:{ARTIFACT}"]["because"] == f"context:{ARTIFACT}"
        assert "### Waiting for other hosts (1)" in jobs["build"].summary
        built = {name for name, step in jobs["arm64"].record()["steps"].items() if step["outcome"] == "built"}
        assert f"context:{ARTIFACT}" in built
        record = jobs["release"].record()
        assert record["steps"][f"context:{ARTIFACT}"] == {"outcome": "restored", "from": "shared"}
        assert "compile" in record["artifacts"][ARTIFACT]["sqnr_db"]
        assert (jobs["release"].root / "artifacts" / "releases" / "tiny-1.0.qnn.zip").is_file()

        again = runner.night(**NPU)  # nothing waits for a host whose work is in the store

        assert [job.result for job in again.values()] == ["success", "skipped", "success"], _told(again)

    def test_what_no_job_may_do_fails_the_last_one(self, runner: Runner, source: Path) -> None:
        (source / "configs" / "project.yaml").write_text("stages: {context: {hosts: [with-npu]}}\n")

        jobs = runner.night()

        assert [job.result for job in jobs.values()] == ["success", "success", "failure"], _told(jobs)
        assert jobs["release"].codes["Build the rest, and verify it"] == 19
        assert "Package and verify" not in jobs["release"].codes
        assert "with-npu" in jobs["release"].summary

    def test_a_model_that_fails_stops_the_night_and_no_other_model(self, runner: Runner, source: Path) -> None:
        float_model(source / "models" / "broken", sequence="sequence")
        (source / "models" / "broken" / "model.onnx").write_bytes(b"no model")
        write_config(source, "broken", CONFIG.replace("models/tiny", "models/broken"))

        jobs = runner.night()

        assert [job.result for job in jobs.values()] == ["failure", "skipped", "skipped"], _told(jobs)
        assert jobs["build"].codes[BUILD] == 12
        record = jobs["build"].record()
        assert (record["result"], record["exit_code"]) == ("failed", 12)
        (failure,) = record["failures"]
        assert failure["exit_code"] == 12
        assert all("broken" in task for task in failure["tasks"])
        assert record["published"] == {"tiny": "artifacts/tiny"}
        assert "## Build: FAILED (exit code 12)" in jobs["build"].summary
        assert failure["what"] in jobs["build"].summary
        assert COMPARE not in jobs["build"].codes
        assert any(name.startswith("kept/logs/") for name in kept(jobs["build"]))
        assert not any(key.startswith("last-run") for key in runner.cached)

        shutil.rmtree(source / "models" / "broken")
        (source / "configs" / "broken.yaml").unlink()
        mended = runner.night()

        assert mended["release"].result == "success", _told(mended)
        assert mended["build"].record()["counts"]["built"] == 0  # what was built that night is in the store

    def test_a_regression_beyond_a_limit_fails_until_it_is_accepted(self, runner: Runner, source: Path) -> None:
        edit_config(source, "targets: [sm8650]", "targets: [sm8650]\nthresholds: {total_db: 1}")
        assert runner.night()["release"].result == "success"
        edit_config(source, "activations: uint16", "activations: uint8")

        jobs = runner.night()

        assert [job.result for job in jobs.values()] == ["failure", "skipped", "skipped"], _told(jobs)
        assert (jobs["build"].codes[BUILD], jobs["build"].codes[COMPARE]) == (0, 16)
        assert "## Compared with the last run: FAILED" in jobs["build"].summary
        row = next(
            line for line in jobs["build"].log.splitlines() if line.startswith("MISSED") and "quantization" in line
        )
        before, since = (float(value) for value in re.findall(r"([0-9.]+) dB", row)[:2])
        assert ARTIFACT in row
        assert row.endswith("1 dB")
        assert before - since > 1

        assert runner.night()["build"].result == "failure"  # it is not forgotten by the next night
        accepted = runner.night(inputs_accept=True)
        assert accepted["release"].result == "success", _told(accepted)
        assert "Accepted, as asked for." in accepted["release"].summary
        after = runner.night()
        assert after["release"].result == "success", _told(after)
        assert "none missed" in after["build"].log

        newest = next(key for key in reversed(runner.cached) if key.startswith("last-run"))
        last = runner.folder / "cache" / newest / "last" / "run.json"
        last.write_text(last.read_text("utf-8").replace('"schema_version": 1', '"schema_version": 0'), "utf-8")
        assert runner.night()["build"].codes[COMPARE] == 10
        accepted = runner.night(inputs_accept=True)
        assert accepted["release"].result == "success", _told(accepted)


def _told(jobs: dict[str, Job]) -> str:
    return "\n".join(f"==== {name}: {job.result}\n{job.log[-6000:]}" for name, job in jobs.items())
