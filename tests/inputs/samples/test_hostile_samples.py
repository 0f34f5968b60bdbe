"""Hostile and broken calibration sets, as a user meets them; and odd ones that are no harm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import hostile_project
from tests.support.hostile_project import Said
from tests.support.hostile_samples import SAMPLES, TEXT
from tests.support.hostile_sources import make_pipe
from tests.support.models import bert
from tests.support.project import Project
from tests.support.sources import model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="makes pipes and links"),
]

MODEL = "g (int64[1,n] input_ids) => (float[1,n] y) { y = Cast <to = 1> (input_ids) }"
SETTINGS = "calibration: {}\n"


def _add(project: Project, name: str, reader: str) -> tuple[Path, Path]:
    """A model and its calibration set; the folders of both."""
    config = SETTINGS.format(reader % name if "%s" in reader else reader)
    folder = hostile_project.add_model(project, name, more=config)
    (folder / "model.onnx").write_bytes(model(MODEL).SerializeToString())
    bert.write(folder / "bert")
    (folder / "bert" / "tokenizer.json").rename(folder / "tokenizer.json")
    samples = project.root / "calibration" / name
    samples.mkdir()
    return samples, folder


@pytest.fixture(scope="module")
def of_samples(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """All sets that are refused, read at once."""
    project = hostile_project.create(tmp_path_factory.mktemp("samples"))
    for name, bad in SAMPLES.items():
        bad.make(*_add(project, name, bad.reader))
    return hostile_project.run(project, "--continue", *(f"samples:{name}/calibration" for name in SAMPLES))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_calibration_set_is_refused(of_samples: Said, name: str) -> None:
    assert of_samples.status == 13, of_samples.text
    said = of_samples.of_step.get(f"samples:{name}/calibration")
    if said is None:  # equal messages are printed once
        said = "\n".join(of_samples.of_step.values())
    assert SAMPLES[name].said in said, said


@pytest.mark.parametrize(
    ("reader", "make"),
    [
        ("{reader: text, file: calibration/%s/pipe}", "pipe"),
        ("{reader: text, file: /dev/zero}", ""),
        ("{reader: npz, folder: calibration/%s/pipe}", "pipe"),
    ],
)
def test_a_device_as_calibration_set_is_refused(tmp_path: Path, reader: str, make: str) -> None:
    project = hostile_project.create(tmp_path)
    samples, _ = _add(project, "device", reader)
    if make:
        make_pipe(samples / make)
    said = hostile_project.run(project, "samples:device/calibration")
    assert said.status == 10, said.text
    assert "is a device, a pipe or a socket" in said.text


def test_odd_text_is_taken_as_it_is(tmp_path: Path) -> None:
    """A byte order mark, Windows line ends, other separators of lines, and a generator without end."""
    project = hostile_project.create(tmp_path)
    samples, _ = _add(project, "odd", TEXT)
    (samples / "lines.txt").write_bytes(
        "\ufeffone\r\ntwo\u2028still two\x0b\x0c\r\n한국어 \u202e \U0001f600\r\n".encode()
    )
    endless, _ = _add(project, "endless", "{reader: python, run: 'calibration/%s/code.py:run', max_samples: 5}")
    (endless / "code.py").write_text(
        "import itertools\ndef run(path):\n    print('\\x1b[31m' * 10)\n"
        "    for number in itertools.count(1):\n        yield {'input_ids': [[number]], 'label': '\\ud800'}\n"
    )
    said = hostile_project.run(project, "samples:odd/calibration", "samples:endless/calibration")
    assert said.status == 0, said.text
