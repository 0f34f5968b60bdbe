"""The hub's token is for the hub: it is in no file, no output, and in the environment of no step but fetch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.release.signing_key import VARIABLE as KEY_VARIABLE
from tests.support import tiny_project
from tests.support.build_processes import Build, until
from tests.support.hub_faults import Fault
from tests.support.hub_server import HubServer, hub_fixture  # noqa: F401
from tests.support.project import Project

pytestmark = pytest.mark.slow

TOKEN = "hf_" + "NeverToBeSeenAnywhere" * 2
_LONG_S = 120


@pytest.fixture
def project(hub: HubServer, tmp_path: Path) -> Project:
    """The tiny model, in a repo that asks for the token."""
    made = tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=[8], targets=["sm8650"])
    repo = hub.add("our/tiny", made.root / "model")
    repo.gated = True
    repo.allowed.add(TOKEN)
    hub.tokens.add(TOKEN)
    made.edit(tiny_project.CONFIG, "{path: ../model}", "{hub: our/tiny, revision: main}")
    made.environ |= hub.environ(tmp_path / "home") | {"HF_TOKEN": TOKEN, "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    return made


def holding_it(folder: Path) -> Iterator[str]:
    """Files and names of files with the token, or enough of it to be of use."""
    for path in folder.rglob("*"):
        if TOKEN[:12] in path.name or (path.is_file() and TOKEN[:12].encode() in path.read_bytes()):
            yield str(path)


def test_the_token_reaches_the_hub_and_nothing_else(hub: HubServer, project: Project, tmp_path: Path) -> None:
    run = project.doit("build", PIPELINE_TRACEBACK="1")
    assert TOKEN in {request.token for request in hub.requests}
    assert TOKEN[:12] not in run.text
    assert project.root / ".build" / "doit.json" in project.root.rglob("*")
    assert [*holding_it(tmp_path)] == []


@pytest.mark.parametrize(
    ("status", "workers"), [(401, "warm"), (403, "fresh"), (404, "warm"), (429, "warm"), (500, "warm")]
)
def test_a_hub_that_refuses_does_not_make_us_tell(
    status: int, workers: str, hub: HubServer, project: Project, tmp_path: Path
) -> None:
    # As a hub, or a proxy before it, might answer: with what it was sent.
    said = {"X-Error-Message": f"denied: {TOKEN}"}
    hub.faults.append(Fault("*", times=None, status=status, message="denied: Bearer {token}", headers=said))
    path = project.root / "pipeline" / "inputs" / "hub" / "failures.py"
    path.write_text(path.read_text("utf-8") + "\nWAITS_S = (0.01, 0.02)\n", "utf-8")
    run = project.doit("build", check=False, PIPELINE_TRACEBACK="1", PIPELINE_WORKERS=workers)
    assert run.status == 11, run.text
    assert TOKEN[:12] not in run.text
    assert [*holding_it(tmp_path)] == []


def test_a_token_that_no_request_can_carry_is_not_quoted(project: Project, tmp_path: Path) -> None:
    """Libraries quote the header that they refuse to send."""
    run = project.doit("build", check=False, HF_TOKEN=f"{TOKEN}\x01{TOKEN}", PIPELINE_TRACEBACK="1")
    assert run.status in (11, 18), run.text
    assert TOKEN[:12] not in run.text
    assert [*holding_it(tmp_path)] == []


def test_a_broken_step_does_not_make_us_tell(project: Project, tmp_path: Path) -> None:
    project.edit(
        "pipeline/stages/fetch.py",
        "from __future__ import annotations\n",
        "from __future__ import annotations\n\nimport os\n\nraise ValueError(os.environ['HF_TOKEN'])\n",
    )
    run = project.doit("build", check=False)
    assert run.status == 18, run.text
    assert TOKEN[:12] not in run.text
    assert [path for path in holding_it(tmp_path) if not path.endswith("fetch.py")] == []


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="shows what a process was started with")
@pytest.mark.parametrize("workers", ["warm", "fresh"])
def test_no_process_but_doit_and_fetch_is_given_it(workers: str, project: Project, tmp_path: Path) -> None:
    project.doit("fetch")
    project.write("calibration/tell.py", _TELL)
    calibration = "{reader: npz, folder: calibration/calibration}"
    project.edit(tiny_project.CONFIG, calibration, '{reader: python, run: "calibration/tell.py:run"}')
    environ = {"PIPELINE_WORKERS": workers} if workers == "fresh" else {}
    environ[KEY_VARIABLE] = TOKEN  # as secret, and for no step at all
    with Build(project, "build", log=tmp_path / "log", HF_TOKEN=TOKEN, **environ) as build:
        held: dict[int, bytes] = {}
        doit = Path(f"/proc/{build.doit.pid}/cmdline").read_bytes()

        def look() -> bool:
            for process in build.alive():
                try:
                    command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
                    given = Path(f"/proc/{process.pid}/environ").read_bytes()
                except OSError:
                    continue
                # A child that doit has just forked is still doit, by its command line too, until it executes another.
                if TOKEN.encode() in given and command != doit:
                    held[process.pid] = command
            return build.is_over()

        until(look, build, _LONG_S)
        ended = build.end(_LONG_S)
    assert ended.status == 0, ended.text
    assert held == {}
    assert (tmp_path / "project" / "told").read_text() == "None"


_TELL = """\
import os
from pathlib import Path
import numpy as np


def run(path):
    Path(__file__).parent.parent.joinpath("told").write_text(str(os.environ.get("HF_TOKEN")))
    for seed in range(4):
        yield {"x": np.random.default_rng(seed).normal(size=(1, 3 + seed, 32)).astype(np.float32)}
"""


def test_the_token_is_looked_for_where_it_could_be(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log").write_bytes(b"x" + TOKEN.encode())
    assert [*holding_it(tmp_path)] == [os.fspath(tmp_path / "a" / "log")]
