"""What several processes of one test run share."""

from __future__ import annotations

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
    assert [*made_once.made_once("thing", lambda folder: (folder / "whole").touch()).iterdir()] == [
        tmp_path / "thing" / "whole"
    ]
