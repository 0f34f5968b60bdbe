"""The wheel of the runtime: what is in it, and that it runs alone in a new environment from the command line."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pipeline import qnn_release
from pipeline.qnn_release import __main__ as command
from pipeline.release.wheel import write_wheel
from tests.support import runtime_releases, tiny_models
from tests.support.project import ROOT
from tests.support.uv_command import find_uv


def _wheel(folder: Path) -> Path:
    folder.mkdir()
    (folder / "LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
    return write_wheel(folder)


def test_equal_code_is_equal_bytes_and_the_version_is_the_projects(tmp_path: Path) -> None:
    one, two = _wheel(tmp_path / "one"), _wheel(tmp_path / "two")
    assert one.read_bytes() == two.read_bytes()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert qnn_release.__version__ == project["version"]
    assert one.name == f"qnn_release-{project['version']}-py3-none-any.whl"
    names = set(zipfile.ZipFile(one).namelist())
    assert {"qnn_release/py.typed", "qnn_release/__init__.pyi", "qnn_release/client.py"} <= names


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release = runtime_releases.tiny(tmp_path)
    for arguments, said in (
        (["verify", str(tmp_path / "no")], "there is no such release"),
        (["run", str(release), "--device", "cpu", "--component", "no"], "it has layers"),
        (["run", str(release), "--device", "cpu", "--inputs", str(release / "release.json")], "numpy.savez"),
    ):
        assert command.main(arguments) == 1
        assert said in capsys.readouterr().err
    weights = release / "qdq" / "8" / "weights.bin"
    weights.write_bytes(weights.read_bytes()[::-1])
    assert command.main(["verify", str(release)]) == 1
    assert "qdq/8/weights.bin is not the file" in capsys.readouterr().err


@pytest.mark.slow
def test_it_is_installed_alone_and_runs(tmp_path: Path) -> None:
    uv, release = find_uv(), runtime_releases.tiny(tmp_path)
    assert uv
    venv = tmp_path / "venv"
    script = venv / ("Scripts" if sys.platform == "win32" else "bin")
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(venv)], check=True)
    install = [uv, "pip", "install", "-q", "--python", str(script / "python"), str(_wheel(tmp_path / "wheel"))]
    subprocess.run([*install, f"numpy=={np.__version__}"], check=True)

    def said(*arguments: str) -> str:
        done = subprocess.run([str(script / "qnn-release"), *arguments], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "4 files" in said("verify", str(release))  # with numpy alone
    subprocess.run([*install, "onnxruntime==1.31.1"], check=True)
    x = tiny_models.sample(5)
    np.savez(tmp_path / "in.npz", x=x)
    said("run", str(release), "--device", "cpu", "--inputs", "in.npz", "--outputs", "out.npz")
    with qnn_release.Release.open(release, device="cpu") as opened, np.load(tmp_path / "out.npz") as outputs:
        assert np.array_equal(outputs["y"], opened.run("layers", {"x": x})["y"])
    assert "layers at sequence 16: CPUExecutionProvider" in said(
        "bench", str(release), "--device", "cpu", "--seconds", "0.1"
    )
