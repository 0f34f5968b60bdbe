"""What several processes of one test run share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import made_once
from tests.support.project import ROOT

_MAKER = """\
import sys, time
from pathlib import Path
from tests.support.made_once import made_once

def make(folder):
    with Path(sys.argv[1]).open("a") as log:
        log.write("made\\n")
    (folder / "half").touch()
    time.sleep(0.5)
    (folder / "whole").touch()

print(sorted(path.name for path in made_once("thing", make).iterdir()))
"""

_KILLED = """\
import subprocess, sys, time
from tests.support.made_once import made_once

def make(folder):
    code = f"import sys; sys.stdin.read(); open({str(folder / 'late')!r}, 'w').close(); print('written')"
    subprocess.Popen([sys.executable, "-c", code])
    print("started", flush=True)
    time.sleep(60)

made_once("thing", make)
"""


def test_of_processes_that_ask_at_once_one_makes_and_all_have_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(made_once.VARIABLE, str(tmp_path))
    log = tmp_path / "log"
    command = [sys.executable, "-c", _MAKER, str(log)]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0] for process in started] == ["['half', 'whole']\n"] * 3
    assert log.read_text("utf-8") == "made\n"


def test_what_could_not_be_made_is_tried_again_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_once, "_root", lambda: tmp_path)

    def fails(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        made_once.made_once("thing", fails)
    made = made_once.made_once("thing", lambda folder: (folder / "whole").touch())
    assert [path.name for path in made.iterdir()] == ["whole"]
    assert made_once.made_once("thing", fails) == made


@pytest.mark.skipif(sys.platform == "win32", reason="there a file is not deleted that a process has open")
def test_what_a_killed_maker_started_does_not_write_into_what_is_made_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made_once, "_root", lambda: tmp_path)
    maker = subprocess.Popen(
        [sys.executable, "-c", _KILLED],
        cwd=ROOT,
        env={**os.environ, made_once.VARIABLE: str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert maker.stdin
    assert maker.stdout
    assert maker.stdout.readline() == "started\n"
    maker.kill()
    maker.wait()
    made = made_once.made_once("thing", lambda folder: (folder / "whole").touch())
    maker.stdin.close()
    assert maker.stdout.read() == "written\n"
    maker.stdout.close()
    assert [path.name for path in made.iterdir()] == ["whole"]
