"""Workers that start warm: each a process of its own, and none left over whoever is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import UserDict
from collections.abc import Iterator, KeysView
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from pipeline.build.warm import AVAILABLE, NotForkedError, Template, TemplateLostError
from pipeline.build.worker import dump_request, load_answer
from pipeline.errors import ModelError
from pipeline.model import StageRequest
from pipeline.stage_table import STAGES
from tests.support.pids import alive, gone
from tests.support.project import ROOT

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="there are only fresh workers on this system")

# A stage that does as it is told.
TOLD = """\
import os
import onnxruntime
from pipeline.model import StageResult

IMPORTED_BY = os.getpid()

def run(request):
    facts = {}
    exec(str(request.params["code"]), {"request": request, "facts": facts})
    return StageResult(facts)
"""

# Lets the template fork only while there is a file `go` in its folder: root has no limit that it could run into.
NO_PROCESS = """\
import errno, os

def fork(real=os.fork):
    if not os.path.exists("go"):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return real()

os.fork = fork
"""


@dataclass
class Warm:
    """A checkout with the stage above, and a template that runs it."""

    root: Path
    environ: dict[str, str]
    template: Template
    count: int = 0

    def request(self, code: str, stage: str = "told") -> Path:
        """A request file for that code, in a folder of its own; its `out` is the folder's."""
        self.count += 1
        folder = self.root / f"step{self.count}"
        (folder / "out").mkdir(parents=True)
        request = StageRequest(f"told:{self.count}", {"code": code}, {}, {}, folder / "out")
        (folder / "request.json").write_text(dump_request(request, stage, folder / "answer.json"))
        return folder / "request.json"

    def run(self, code: str, **environ: str) -> tuple[int, dict[str, object], str]:
        """Exit status, facts, and log of a step; no facts if it left no answer."""
        request = self.request(code)
        status = self.start(request, **environ)
        answer, log = request.with_name("answer.json"), request.with_name("log").read_text()
        return status, dict(load_answer(answer).facts) if answer.exists() else {}, log

    def start(self, request: Path, **environ: str) -> int:
        """The exit status of a request."""
        stage = json.loads(request.read_text())["stage"]
        log = request.with_name("log")
        return self.template.run(request, stage, log=log, cwd=request.parent, env=self.environ | environ)

    def template_pid(self) -> int:
        """The template's process id."""
        _, facts, _ = self.run("import os; facts['pid'] = os.getppid()")
        return int(str(facts["pid"]))


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pipeline" / "stages" / "told.py").write_text(TOLD)
    # what the system does when it has no memory left can't be had otherwise
    source = tmp_path / "pipeline" / "build" / "template.py"
    refusing = "if os.path.exists('refuse'): raise OSError('no memory')\n                child = os.fork()"
    assert source.read_text().count("child = os.fork()") == 1
    source.write_text(source.read_text().replace("child = os.fork()", refusing))
    environ = {"PYTHONPATH": str(tmp_path), "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    environ |= {"ORT_DISABLE_TELEMETRY": "1", "PATH": os.environ["PATH"]}
    template = Template(log=tmp_path / "template.log", cwd=tmp_path, env=environ)
    yield Warm(tmp_path, environ, template)
    template.close()


def appears(path: Path, within_s: float = 20) -> str:
    """The text of a file that another process is about to write."""
    deadline = time.monotonic() + within_s
    while not (path.exists() and path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return path.read_text()


def test_each_step_has_a_process_of_its_own_with_all_imports_done(warm: Warm) -> None:
    told = "__import__('pipeline.stages.told').stages.told"
    code = f"import os, sys; facts['pid'] = os.getpid(); facts['by'] = {told}.IMPORTED_BY; sys.seen = True"
    first, second = (warm.run(code)[1] for _ in range(2))
    assert first["by"] == second["by"] == warm.template_pid()
    assert first["pid"] != second["pid"]
    code = "import sys; facts['seen'] = hasattr(sys, 'seen')"
    assert warm.run(code)[1] == {"seen": False}, "what one step leaves behind is not there for the next"


def test_only_stages_that_run_are_imported(warm: Warm) -> None:
    code = "import sys; facts['stages'] = sorted(name for name in sys.modules if name.startswith('pipeline.stages.'))"
    assert warm.run(code)[1] == {"stages": ["pipeline.stages.told"]}
    warm.start(warm.request("", stage="shape"))
    assert warm.run(code)[1] == {"stages": ["pipeline.stages.shape", "pipeline.stages.told"]}


def test_a_context_is_compiled_with_what_the_template_has_imported(warm: Warm) -> None:
    warm.start(warm.request("", stage="context"))
    code = "import sys; facts['there'] = {'pipeline.qnn.compiling.compile', 'onnxruntime_qnn'} <= set(sys.modules)"
    assert warm.run(code)[1] == {"there": True}


def test_a_stage_that_can_not_be_imported_is_its_own_error(warm: Warm) -> None:
    (warm.root / "pipeline" / "stages" / "broken.py").write_text("import nothing_of_the_kind\n")
    assert warm.start(warm.request("", stage="broken"))
    assert warm.run("facts['fine'] = True")[1] == {"fine": True}


def test_a_step_sees_its_own_folder_log_and_environment(warm: Warm) -> None:
    code = (
        "import os, sys; facts |= {'cwd': os.getcwd(), 'token': os.environ.get('HF_TOKEN')};"
        "print('said'); print('complained', file=sys.stderr); os.system('echo shouted')"
    )
    status, facts, log = warm.run(code, HF_TOKEN="hf_secret")
    assert (status, facts) == (0, {"cwd": str(warm.root / "step1"), "token": "hf_secret"})
    assert set(log.split()) == {"said", "complained", "shouted"}
    assert warm.run(code)[1]["token"] is None
    status_file = Path(f"/proc/{warm.template_pid()}/environ")
    assert b"hf_secret" not in status_file.read_bytes()


def test_a_step_is_what_linux_ends_first_when_memory_runs_out(warm: Warm) -> None:
    code = "facts['score'] = int(open('/proc/self/oom_score_adj').read())"
    own = int(Path("/proc/self/oom_score_adj").read_text())
    _, facts, _ = warm.run(code)
    assert facts == {"score": max(own, 500)}
    assert int(Path(f"/proc/{warm.template_pid()}/oom_score_adj").read_text()) == own


def test_standard_input_is_there_and_empty(warm: Warm) -> None:
    _, facts, _ = warm.run("import os; facts['stdin'] = os.readlink('/proc/self/fd/0')")
    assert facts["stdin"] == "/dev/null"


def test_a_step_that_can_not_be_forked_is_told_apart_from_a_lost_template(warm: Warm) -> None:
    pid = warm.template_pid()
    (warm.root / "refuse").touch()
    with pytest.raises(NotForkedError):
        warm.run("pass")
    (warm.root / "refuse").unlink()
    assert warm.template_pid() == pid


@pytest.mark.parametrize("edited", [False, True])
def test_a_step_and_its_children_read_from_nowhere(warm: Warm, edited: bool) -> None:
    warm.template_pid()
    if edited:  # a step then starts anew
        (warm.root / "pipeline" / "stages" / "told.py").write_text(TOLD + "VERSION = 2\n")
    code = "import os; facts['input'] = os.readlink('/proc/self/fd/0'); os.system('readlink /proc/self/fd/0')"
    status, facts, log = warm.run(code)
    assert (status, facts, log.split()) == (0, {"input": os.devnull}, [os.devnull])


def test_the_template_has_one_thread_and_no_qnn(warm: Warm) -> None:
    for stage in STAGES:
        warm.start(warm.request("", stage=stage))
    pid = warm.template_pid()
    assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    assert "libQnn" not in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize(
    ("code", "expected"),
    [("import os; os._exit(3)", 3), ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV)],
)
def test_a_step_that_dies_says_how_and_costs_no_other(warm: Warm, code: str, expected: int) -> None:
    assert warm.run(code)[0] == expected
    assert warm.run("facts['fine'] = True")[1] == {"fine": True}


def test_an_error_is_answered_and_its_code_is_the_exit_status(warm: Warm) -> None:
    request = warm.request("from pipeline.errors import ModelError; raise ModelError('no model')")
    assert warm.start(request) == ModelError.exit_code
    with pytest.raises(ModelError, match="no model"):
        load_answer(request.with_name("answer.json"))


def test_steps_run_side_by_side(warm: Warm) -> None:
    wait = "import time; deadline = time.monotonic() + 20\nwhile not (request.out.parents[1] / 'go').exists(): "
    request = warm.request(f"{wait}\n    assert time.monotonic() < deadline; time.sleep(0.01)")
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(warm.start(request)))
    thread.start()
    assert warm.run("(request.out.parents[1] / 'go').touch()")[0] == 0
    thread.join()
    assert statuses == [0]


def test_what_a_step_left_running_ends_with_it(warm: Warm) -> None:
    code = "import subprocess; facts['pid'] = subprocess.Popen(['sleep', '60']).pid"
    _, facts, _ = warm.run(code)
    assert gone(int(str(facts["pid"])))


def spinning(warm: Warm) -> tuple[threading.Thread, list[object], int, int]:
    """A step that would run for a minute, what it comes to, and the pids of it and of its child."""
    code = (
        "import os, subprocess, time; child = subprocess.Popen(['sleep', '60']).pid\n"
        "(request.out.parent / 'pids').write_text(f'{os.getpid()} {child}'); time.sleep(60)"
    )
    request = warm.request(code)
    came_to: list[object] = []

    def run() -> None:
        try:
            came_to.append(warm.start(request))
        except TemplateLostError as error:
            came_to.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    step, child = map(int, appears(request.with_name("pids")).split())
    return thread, came_to, step, child


def test_a_step_that_is_killed_takes_its_children_along(warm: Warm) -> None:
    thread, came_to, step, child = spinning(warm)
    os.kill(step, signal.SIGKILL)
    thread.join(10)
    assert came_to == [-signal.SIGKILL]
    assert gone(child)
    assert warm.run("facts['fine'] = True")[1] == {"fine": True}


class KillsTheChild(UserDict[str, str]):
    """An environment that, when it is read to be sent to a new child, has that child killed first."""

    def __init__(self, environ: dict[str, str], template: int) -> None:
        super().__init__(environ)
        self._children = Path(f"/proc/{template}/task/{template}/children")

    def keys(self) -> KeysView[str]:
        """The names, after the deed."""
        os.kill(int(appears(self._children)), signal.SIGKILL)
        while self._children.read_text():  # until the template has seen it
            time.sleep(0.01)
        return super().keys()


def test_a_step_that_is_killed_before_it_has_its_job_costs_no_other(warm: Warm) -> None:
    environ = KillsTheChild(warm.environ, warm.template_pid())
    request = warm.request("facts['fine'] = True")
    status = warm.template.run(request, "told", log=request.with_name("log"), cwd=request.parent, env=environ)
    assert status == -signal.SIGKILL
    assert warm.run("facts['fine'] = True")[1] == {"fine": True}


def test_a_step_for_which_there_is_no_process_is_not_started_and_costs_no_other(tmp_path: Path, warm: Warm) -> None:
    forks = warm.root / "pipeline" / "stages" / "forks.py"
    forks.write_text(NO_PROCESS)
    (tmp_path / "go").touch()
    warm.template = Template(log=tmp_path / "second.log", cwd=tmp_path, env=warm.environ)
    warm.start(warm.request("", stage="forks"))
    thread, came_to, step, _ = spinning(warm)
    (tmp_path / "go").unlink()
    with pytest.raises(NotForkedError):
        warm.start(warm.request(""))
    assert alive(step)
    (tmp_path / "go").touch()
    assert warm.run("facts['fine'] = True")[1] == {"fine": True}
    os.kill(step, signal.SIGKILL)
    thread.join(10)
    assert came_to == [-signal.SIGKILL]
    warm.template.close()
    assert "a step can't be forked" in (tmp_path / "second.log").read_text()


def test_when_the_template_is_killed_its_steps_end_and_it_is_said(warm: Warm) -> None:
    pid = warm.template_pid()
    thread, came_to, step, child = spinning(warm)
    os.kill(pid, signal.SIGKILL)
    thread.join(10)
    assert [type(each) for each in came_to] == [TemplateLostError]
    assert gone(step)
    assert gone(child)
    with pytest.raises(TemplateLostError):
        warm.run("facts['fine'] = True")


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_template_that_is_stopped_is_lost_and_a_build_does_not_wait_for_it(
    when: str, warm: Warm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.build.warm._LOOK_S", 0.1)
    monkeypatch.setattr("pipeline.build.warm._STOPPED_S", 0.5)
    if when == "before":
        warm.run("pass")
        os.kill(warm.template._process.pid, signal.SIGSTOP)
        code = "pass"
    else:
        code = "import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); time.sleep(0.2)"
    with pytest.raises(TemplateLostError):
        warm.start(warm.request(code))
    assert gone(warm.template._process.pid)


def test_a_step_group_is_ended_before_its_number_may_be_another_s(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr("pipeline.processes.process.os.killpg", lambda group, _: killed.append(group))
    assert warm.run("facts['pid'] = __import__('os').getpid()")[1]["pid"] not in killed


def test_closing_ends_the_template_and_its_steps(warm: Warm) -> None:
    pid = warm.template_pid()
    thread, _, step, child = spinning(warm)
    warm.template.close()
    thread.join(10)
    assert gone(pid)
    assert gone(step)
    assert gone(child)


def test_an_import_that_starts_a_thread_ends_the_forks_and_no_step(tmp_path: Path, warm: Warm) -> None:
    stage = warm.root / "pipeline" / "stages" / "threads.py"
    stage.write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n")
    template = Template(log=tmp_path / "second.log", cwd=tmp_path, env=warm.environ)
    run = partial(template.run, cwd=tmp_path, env=warm.environ)
    with ThreadPoolExecutor(1) as beside:
        began = tmp_path / "began"
        request = warm.request(f"import time; open({str(began)!r}, 'w').close(); time.sleep(2)")
        running = beside.submit(run, request, "told", log=tmp_path / "running.log")
        while not began.exists():
            time.sleep(0.05)
        for name in ("threads", "told"):
            with pytest.raises(NotForkedError):
                run(warm.request(""), name, log=tmp_path / "log")
        assert running.result() == 0
    template.close()
    assert "an import started a thread" in (tmp_path / "second.log").read_text()


def test_code_that_is_edited_meanwhile_is_the_code_that_runs(warm: Warm) -> None:
    code = "facts['version'] = request.__module__ and __import__('pipeline.stages.told').stages.told.VERSION"
    told = warm.root / "pipeline" / "stages" / "told.py"
    assert warm.run("facts['fine'] = True")[1] == {"fine": True}
    told.write_text(TOLD + "VERSION = 2\n")
    assert warm.run(code)[1] == {"version": 2}


@pytest.mark.parametrize("with_template", [False, True])
def test_a_build_that_is_killed_leaves_no_step_running(warm: Warm, with_template: bool) -> None:
    request = warm.request(
        "import os, subprocess, time; child = subprocess.Popen(['sleep', '60']).pid\n"
        "(request.out.parent / 'pids').write_text(f'{os.getppid()} {os.getpid()} {child}'); time.sleep(60)"
    )
    build = (
        "import json, sys; from pathlib import Path; from pipeline.build.warm import Template\n"
        "request, environ = Path(sys.argv[1]), json.loads(sys.argv[2])\n"
        "template = Template(log=request.with_name('t.log'), cwd=request.parent, env=environ)\n"
        "template.run(request, 'told', log=request.with_name('log'), cwd=request.parent, env=environ)\n"
    )
    command = [sys.executable, "-c", build, str(request), json.dumps(warm.environ)]
    process = subprocess.Popen(command, cwd=warm.root)
    template, step, child = map(int, appears(request.with_name("pids")).split())
    os.kill(process.pid, signal.SIGSTOP)  # so that it can't clean up when the template dies first
    if with_template:
        os.kill(template, signal.SIGKILL)
    process.kill()
    process.wait()
    assert gone(template)
    assert gone(step)
    assert gone(child)
