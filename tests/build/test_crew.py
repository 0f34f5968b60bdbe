"""Steps of real builds: how many run at once, what a failure or a kill costs, and that warm workers change no byte."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.build.warm import AVAILABLE
from tests.support import tiny_models
from tests.support.pids import gone
from tests.support.project import Project

CONFIG = """\
source: {path: ../models/tiny}
components:
  layers: {file: model.onnx}
buckets: {sequence: [4, 8]}
calibration: {reader: npz, folder: calibration/samples}
thresholds: {padding_db: 0, rewrite_db: 0, quantization_db: 0, compile_db: 0, total_db: 0}
targets: [sm8650]
"""
SLOW = """\
import time
import numpy as np

def run(path):
    def say(what):
        with open(path.with_name("log"), "a") as log:
            log.write(what)
    say("+")
    time.sleep(0.3)
    while path.with_name("hold").exists():
        time.sleep(0.01)
    if path.read_text().startswith("bad"):
        raise ValueError("a bad file")
    say("-")
    yield {"x": np.zeros((1, 4, 32), np.float32)}
"""


@pytest.fixture(scope="session")
def tiny_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A perceptron with two buckets; not built yet."""
    root = tmp_path_factory.mktemp("tiny")
    project = Project.create(root / "project", root / "store")
    tiny_models.float_model(project.root / "models" / "tiny", sequence="sequence")
    (project.root / "calibration" / "samples").mkdir()
    for number in range(8):
        np.savez(project.root / "calibration" / "samples" / f"{number}.npz", x=tiny_models.sample(8, number))
    project.write("configs/tiny.yaml", CONFIG)
    return project


@pytest.fixture
def tiny(tiny_project: Project, tmp_path: Path) -> Project:
    """A checkout and a store of the test's own."""
    project = tiny_project.copy(tmp_path / "project")
    project.store = tmp_path / "store"
    return project


@pytest.fixture
def slow(tiny: Project) -> Project:
    """Four models whose samples take a third of a second each, or as long as there is a `hold`, and log a + and a -."""
    (tiny.root / "configs" / "tiny.yaml").unlink()
    tiny.write("calibration/slow.py", SLOW)
    for name in "abcd":
        tiny.write(f"calibration/{name}.txt", name)
        reader = f'{{reader: python, run: "calibration/slow.py:run", file: calibration/{name}.txt}}'
        tiny.write(f"configs/{name}.yaml", CONFIG.replace("{reader: npz, folder: calibration/samples}", reader))
    return tiny


def log_of(project: Project) -> str:
    path = project.root / "calibration" / "log"
    return path.read_text() if path.exists() else ""


def at_once(log: str) -> int:
    """The most steps that ran at the same time."""
    running = [log[: place + 1].count("+") - log[: place + 1].count("-") for place in range(len(log))]
    return max(running)


def test_a_step_is_told_what_memory_it_may_use(slow: Project) -> None:
    told = "    path.with_name(f'told {path.stem}').write_text(__import__('os').environ['PIPELINE_STEP_MEMORY'])"
    slow.write("calibration/slow.py", SLOW.replace('    say("+")', f'{told}\n    say("+")'))
    limited = (slow.root / "configs" / "a.yaml").read_text() + "limits: {memory_mb: 140}\n"
    slow.write("configs/a.yaml", limited)
    slow.doit("-n2", "samples:a*", "samples:b*", PIPELINE_MEMORY="5G")
    seen = {name: int((slow.root / "calibration" / f"told {name}").read_text()) >> 20 for name in "ab"}
    assert seen["a"] == 140
    assert 150 <= seen["b"] < 160  # what a samples step of a tiny model is taken to need


@pytest.mark.parametrize("number", [["-n1"], ["--process=3"]])
def test_as_many_steps_run_at_once_as_the_command_line_says(slow: Project, number: list[str]) -> None:
    slow.doit(*number, "samples:*")
    assert at_once(log_of(slow)) == int(number[-1][-1])


def test_steps_that_do_not_fit_into_memory_together_run_one_after_another(slow: Project) -> None:
    slow.doit("-n", "4", "samples:*", PIPELINE_MEMORY="200M")
    assert at_once(log_of(slow)) == 1


@pytest.mark.parametrize(
    ("arguments", "environ", "texts"),
    [
        ((), {"PIPELINE_MEMORY": "a lot"}, ("PIPELINE_MEMORY=a lot is not an amount of memory", "PIPELINE_MEMORY=12G")),
        ((), {"PIPELINE_MEMORY": " "}, ("is not an amount of memory", "it is set, and blank", "or unset it")),
        ((), {"PIPELINE_WORKERS": "bogus"}, ("PIPELINE_WORKERS=bogus is no way to start workers", "fresh", "unset it")),
        ((), {"PIPELINE_WORKERS": ""}, ("PIPELINE_WORKERS= is no way to start workers",)),
        (("-n", "0"), {}, ("-n 0: no step could run", "give a number from 1 on")),
        (("-n", "-1"), {}, ("-n -1: no step could run",)),
    ],
)
def test_what_says_how_to_run_steps_and_makes_no_sense_is_refused(
    slow: Project, arguments: tuple[str, ...], environ: dict[str, str], texts: tuple[str, ...]
) -> None:
    run = slow.doit(*arguments, "samples:*", check=False, **environ)
    assert run.status == 10
    for text in texts:
        assert text in run.text
    assert "Traceback" not in run.text
    assert log_of(slow) == ""


def test_after_a_failure_what_waits_is_not_started(slow: Project) -> None:
    for name in "abcd":
        slow.write(f"calibration/{name}.txt", f"bad {name}")
    run = slow.doit("-n", "1", "--no-continue", "samples:*", check=False)
    assert run.status == 13
    assert log_of(slow) == "+"
    assert run.text.count("FAILED") == 2, "one line for the step, one for the build"


def test_what_is_wrong_for_several_steps_is_said_once(tiny: Project) -> None:
    tiny.write("configs/tiny.yaml", CONFIG + "fixed: {sequnce: 1}\n")
    run = tiny.doit("build", check=False)
    assert run.status == 10
    what = "has an axis named 'sequnce'; did you mean 'sequence'?"
    full, end = run.text.split("FAILED: ")[-2:]
    assert (full.count(what), end.count(what)) == (1, 1), "once with what to do about it, once with the steps it met"
    assert end.startswith("3 step(s)")


def test_without_it_what_waits_is_started(slow: Project) -> None:
    slow.write("calibration/a.txt", "bad")
    run = slow.doit("-n", "1", "samples:*", check=False)
    assert run.status == 13
    assert log_of(slow).count("-") == 3


def test_what_steps_took_is_kept_and_a_wrong_file_of_it_costs_nothing(tiny: Project) -> None:
    tiny.doit("context:*")
    costs = tiny.store / "costs.json"
    assert '"context:tiny/layers/4/sm8650"' in costs.read_text()
    costs.write_text("{")
    tiny.write("configs/tiny.yaml", CONFIG.replace("[4, 8]", "[4, 8, 12]"))
    tiny.doit("context:*")
    assert '"context:tiny/layers/12/sm8650"' in costs.read_text()


@pytest.mark.slow
@pytest.mark.skipif(not AVAILABLE, reason="there are only fresh workers on this system")
def test_warm_and_fresh_workers_write_the_same_bytes(tiny: Project, tmp_path: Path) -> None:
    fresh = tiny.copy(tmp_path / "fresh")
    fresh.store = tmp_path / "fresh-store"
    assert tiny.doit("build").built == fresh.doit("build", PIPELINE_WORKERS="fresh").built
    warm_files, fresh_files = tiny.artifacts(), fresh.artifacts()
    assert any(name.endswith(".bin") for name in warm_files)
    assert any(name.startswith("tiny/qdq/") for name in warm_files)
    assert warm_files.keys() == fresh_files.keys()
    assert [name for name in warm_files if warm_files[name] != fresh_files[name]] == []


class Started:
    """A build that runs, held at its samples, and the processes that belong to it."""

    def __init__(self, project: Project) -> None:
        self._hold = project.write("calibration/hold", "")
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "doit", "-n", "2", "samples:*"],
            cwd=project.root,
            env=environ | {"PIPELINE_STORE": str(project.store)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:  # samples come after ingest
            if "ingest" in line:
                break
        while not log_of(project):
            assert self.process.poll() is None

    def go_on(self) -> None:
        """Let the steps end, which do not until then, however late this process and the build are."""
        self._hold.unlink()

    def ended(self) -> tuple[int, str]:
        """Its exit status, and what it has printed since."""
        rest, _ = self.process.communicate(timeout=60)
        return self.process.returncode, rest

    def below(self) -> list[int]:
        """Its descendants, the template first."""
        return list(_below(self.process.pid))


def _below(pid: int) -> Iterator[int]:
    threads: list[str] = []
    with contextlib.suppress(OSError):  # the process may have ended since
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  # names are all that is wanted
    for thread in threads:
        children = ""
        with contextlib.suppress(OSError):  # and so may a thread
            children = Path(f"/proc/{pid}/task/{thread}/children").read_text()
        for child in map(int, children.split()):
            yield child
            yield from _below(child)


def kept_costs(project: Project) -> str:
    """What the builds of a project have kept of what steps took."""
    return (project.store / "costs.json").read_text()


@pytest.fixture
def started(slow: Project) -> Iterator[Started]:
    build = Started(slow)
    yield build
    build.process.kill()
    build.process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
class TestKilled:
    def test_a_build_that_is_killed_leaves_nothing_running(self, started: Started) -> None:
        below = started.below()
        assert len(below) >= 2, "a template and a step"
        started.process.kill()
        assert [pid for pid in below if not gone(pid)] == []

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_build_that_is_interrupted_ends_all_and_can_go_on(
        self, started: Started, slow: Project, number: int
    ) -> None:
        below = started.below()
        started.process.send_signal(number)
        status, text = started.ended()
        assert status == 130
        assert "What was built is kept" in text
        assert [pid for pid in below if not gone(pid)] == []
        started.go_on()
        assert "samples" not in kept_costs(slow), "what we killed is not taken to be short of memory"
        assert len(slow.doit("samples:*").built) == 4

    def test_a_worker_that_is_killed_fails_its_step_and_says_so(self, started: Started, slow: Project) -> None:
        template, worker, *_ = started.below()
        os.kill(worker, signal.SIGKILL)
        started.go_on()
        status, text = started.ended()
        assert status == 18
        assert "died: killed by signal 9 (SIGKILL)" in text
        assert "with less at a time if memory is short (doit -n 1)" in text
        assert gone(template)
        samples = [cost for step, cost in json.loads(kept_costs(slow))["steps"].items() if step.startswith("samples:")]
        assert max(cost["peak_bytes"] for cost in samples) >= 2 * (150 << 20), "twice the guess for what never ran"

    def test_a_template_that_is_killed_costs_no_step(self, started: Started, slow: Project) -> None:
        os.kill(started.below()[0], signal.SIGKILL)
        started.go_on()
        status, text = started.ended()
        assert status == 0, text
        assert log_of(slow).count("-") == 4


@pytest.mark.slow
@pytest.mark.skipif(not AVAILABLE, reason="there are only fresh workers on this system")
def test_a_template_that_is_killed_while_the_emulator_runs_costs_no_step(tiny: Project) -> None:
    tiny.doit("context:*")
    environ = os.environ | {"PIPELINE_STORE": str(tiny.store)}
    with subprocess.Popen(
        [sys.executable, "-m", "doit", "-n", "1", "emulate:*"],
        cwd=tiny.root,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as build:
        while not emulating(tiny):
            assert build.poll() is None
            time.sleep(0.001)
        os.kill(next(_below(build.pid)), signal.SIGKILL)
        text, _ = build.communicate(timeout=120)
    assert build.returncode == 0, text


def emulating(project: Project) -> bool:
    """Whether the emulator's input is written; folders of the build come and go while they are looked through."""
    with contextlib.suppress(FileNotFoundError):
        return any((project.store / "tmp").glob("*/tmp*/**/request.json"))
    return False
