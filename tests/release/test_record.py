"""A record says what contexts gave, is replayed from a release and itself alone, and can't be changed unnoticed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import VerificationError
from pipeline.release.archives.archive import Archive, Member, write_archive
from pipeline.release.records import record
from pipeline.release.records.record import RECORD, path_of
from pipeline.release.records.replay import replay
from tests.support import tiny_project
from tests.support.project import Project
from tests.support.releases import keys as new_keys
from tests.support.s3_server import S3Server, s3_fixture  # noqa: F401

pytestmark = pytest.mark.slow

RELEASED = "artifacts/releases/tiny-1.0.qnn.zip"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return new_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, keys: tuple[str, Path]) -> Project:
    root = tmp_path_factory.mktemp("here")
    project = tiny_project.create(root / "project", root / "store", buckets=[8], targets=["sm8650"])
    config = project.root / tiny_project.CONFIG
    config.write_text(config.read_text("utf-8") + 'release: {version: "1.0"}\n', "utf-8")
    project.doit("package:tiny", PIPELINE_SIGNING_KEY=keys[0])
    run = project.doit("record", RELEASED, PIPELINE_SIGNING_KEY=keys[0])
    assert "tiny-1.0.qnn-record.zip: 2 runs on the emulator, signed" in run.text
    assert "onnxruntime:" not in run.text, "what QNN prints is nobody's business here"
    return project


@pytest.fixture
def archive(recorded: Project) -> Path:
    return recorded.root / RELEASED


def changed(archive: Path, out: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The record of an archive with other members, in the one form that archives have."""
    with Archive(path_of(archive)) as opened:
        members = {name: b"".join(opened.chunks(name)) for name in opened.entries}
    change(members)
    write_archive(out / "changed.qnn-record.zip", {name: Member.of(data) for name, data in members.items()})
    return out / "changed.qnn-record.zip"


def array(values: Any) -> bytes:
    data = io.BytesIO()
    np.save(data, values)
    return data.getvalue()


def test_it_says_what_was_run_where_and_on_what(archive: Path) -> None:
    with Archive(path_of(archive)) as opened:
        raw = json.loads(opened.read(RECORD, 1 << 20))
        arrays = {name: np.load(io.BytesIO(opened.read(name, 1 << 20))) for name in raw["files"]}
    assert raw["where"]["device"] == "emulator"
    assert raw["where"]["driver"] == raw["where"]["tools"]["qairt"]
    first, _ = raw["runs"]
    assert (first["component"], first["axes"], first["target"]) == ("net", {"sequence": 8}, "sm8650")
    given, original, made = (arrays[first[kind][name]] for kind, name in zip(
        ("inputs", "original", "outputs"), ("x", "y", "y"), strict=True
    ))  # fmt: skip
    assert given.shape == made.shape == (1, 8, 32)
    assert original.shape[1] < 8, "the original takes a sample as it comes"
    noise = made[:, : original.shape[1]] - original
    assert 10 * np.log10((original**2).sum() / (noise**2).sum()) > 30, "8 bit weights"


def test_a_release_that_went_through_s3_is_replayed_by_who_has_no_project(
    archive: Path, s3: S3Server, keys: tuple[str, Path], tmp_path: Path
) -> None:
    system, url = s3.system(), s3.bucket()
    for file in (archive, path_of(archive)):
        system.put(str(file), f"{url}/releases/{file.name}")
        system.get(f"{url}/releases/{file.name}", str(tmp_path / file.name))
    told = [*replay(tmp_path / path_of(archive).name, tmp_path / archive.name, keys[1])]
    assert told[:2] == ["net, sm8650, 4.npy: equal", "net, sm8650, 5.npy: equal"]
    assert told[2].endswith("2 runs of the emulator, replayed on the emulator")


def test_a_tampered_record_is_refused(archive: Path, keys: tuple[str, Path], tmp_path: Path) -> None:
    def another_output(members: dict[str, bytes]) -> None:
        members["arrays/0000/output_00.npy"] = array(np.zeros((1, 8, 32), np.float32))

    def another_place(members: dict[str, bytes]) -> None:
        members[RECORD] = members[RECORD].replace(b'"emulator"', b'"npu"')

    def without_signature(members: dict[str, bytes]) -> None:
        del members["release.dsse.json"]

    for change, told in (
        (another_output, "output_00.npy is not the file that record.json names"),
        (another_place, "it is of another release, or was changed"),
        (without_signature, "it is not signed"),
    ):
        with pytest.raises(VerificationError, match=told):
            [*replay(changed(archive, tmp_path, change), archive, keys[1])]


def test_another_output_than_recorded_is_refused_here_and_told_in_db_of_another_device(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, equal = record.run_recorded, record.here()

    def noisy(*given: Any) -> Any:
        return [{name: array + np.float32(0.001) for name, array in outputs.items()} for outputs in run(*given)]

    monkeypatch.setattr("pipeline.release.records.replay.run_recorded", noisy)
    with pytest.raises(VerificationError, match="gives something else than it was recorded to give"):
        [*replay(path_of(archive), archive)]
    monkeypatch.setattr("pipeline.release.records.replay.here", lambda: {**equal, "device": "npu"})
    first, *_ = replay(path_of(archive), archive)
    assert first.startswith("net, sm8650, 4.npy: 'y' ")
    assert first.endswith(" dB")


def test_the_commands(recorded: Project) -> None:
    name = str(path_of(Path(RELEASED)))
    assert "4.npy: equal" in recorded.doit("verify-release", "--replay", name, RELEASED).text
    run = recorded.doit("verify-release", "--replay", "no-such.zip", RELEASED, check=False)
    assert (run.status, "there is no record no-such.zip" in run.text) == (10, True)
    assert recorded.doit("record", check=False).status == 10
