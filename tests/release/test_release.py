"""Packaging real builds by the command line, and what others make of the archives."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipeline.errors import VerificationError
from pipeline.release.archives.archive import Archive
from pipeline.release.archives.notices import notices
from pipeline.release.verify import verify_release
from tests.support.project import ROOT, Project
from tests.support.releases import keys
from tests.support.rot import rot

pytestmark = pytest.mark.slow

SCHEMA = ROOT / "pipeline" / "release" / "release.schema.json"
RELEASE = "release: {version: '1.0', files: [tokenizer.json], licenses: [LICENSE], qdq: true}\n"
ARCHIVE = "artifacts/releases/bert-1.0.qnn.zip"


@pytest.fixture(scope="module")
def packaged(bert_built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The small encoder with a release, packaged."""
    project = bert_built.copy(tmp_path_factory.mktemp("packaged") / "project")
    project.write("models/bert/LICENSE", "Do as you please.\n")
    add(project, RELEASE)
    run = project.doit("package")
    stages = {"fetch", "ingest", "samples", "reading"}
    assert set(run.stages()) <= stages, "a file more is no reason to build anything else again"
    return project


@pytest.fixture
def released(packaged: Project, tmp_path: Path) -> Project:
    """The same, for a test to change."""
    return packaged.copy(tmp_path / "project")


def add(project: Project, text: str) -> None:
    path = project.root / "configs" / "bert.yaml"
    path.write_text(path.read_text("utf-8") + text, "utf-8")


def index_of(archive: Path) -> dict[str, Any]:
    with zipfile.ZipFile(archive) as opened:
        found: dict[str, Any] = json.loads(opened.read("release.json"))
    return found


def test_an_archive_has_all_that_a_runtime_and_an_auditor_need(packaged: Project) -> None:
    archive = packaged.root / ARCHIVE
    verify_release(archive)
    with zipfile.ZipFile(archive) as opened:
        content = {name: opened.read(name) for name in opened.namelist()}
    built = packaged.artifacts()
    for target in ("snapdragon-x-elite", "sm8650"):
        for bucket in (16, 32):
            for name in (f"encoder_{bucket}_ctx.onnx", f"encoder_{bucket}_ctx_qnn.bin"):
                assert content[f"contexts/{target}/{name}"] == built[f"bert/{target}/{name}"]
    assert content["qdq/encoder_16.onnx"] == built["bert/qdq/encoder_16.onnx"]
    assert content["files/tokenizer.json"] == (packaged.root / "models/bert/tokenizer.json").read_bytes()
    assert content["licenses/model/LICENSE"] == b"Do as you please.\n"
    for name, path in notices().items():
        assert content[f"licenses/onnxruntime-qnn/{name}"] == path.read_bytes()
    assert {"release.json", "provenance.json", "sbom.cdx.json"} <= content.keys()
    assert str(packaged.root) not in "".join(content[name].decode() for name in content if name.endswith(".json"))


def test_the_index_is_what_its_schema_says_and_what_the_build_said(packaged: Project) -> None:
    index = index_of(packaged.root / ARCHIVE)
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))
    assert [error.message for error in validator.iter_errors(index)] == []
    manifest = json.loads(packaged.artifacts()["bert/sm8650/manifest.json"])
    encoder, built = index["components"]["encoder"], manifest["components"]["encoder"]["buckets"]
    assert [bucket["axes"] for bucket in encoder["buckets"]] == [{"sequence": 16}, {"sequence": 32}]
    assert encoder["inputs"] == [
        {"name": "input_ids", "dtype": "int64", "dims": [1, "sequence"], "padding": 0, "range": [0, 139]},
        {"name": "attention_mask", "dtype": "int64", "dims": [1, "sequence"], "padding": 0},
    ]
    dims = [{"size": 1}, {"axis": "sequence"}, {"size": 64}]
    assert encoder["outputs"] == [{"name": "last_hidden_state", "dtype": "float32", "dims": dims}]
    for bucket, was in zip(encoder["buckets"], built, strict=True):
        context = bucket["contexts"]["sm8650"]
        assert context["compatibility"] == was["compatibility"]
        assert context["verification"] == was["verification"]["emulator"]["sm8650"]
        assert bucket["verification"]["cpu"] == was["verification"]["cpu"]
        assert bucket["qdq"]["files"][-1] == "qdq/encoder_weights.bin"
    assert index["targets"][1] == manifest["targets"][0] | {"minimum_driver_sdk": "2.51"}
    assert index["source"]["files"].items() >= manifest["source"]["files"].items()
    assert index["gates"] == {"skipped": [], "failed": []}
    text = (packaged.root / "configs" / "bert.yaml").read_bytes()
    assert index["config"] == {"sha256": hashlib.sha256(text).hexdigest(), "text": text.decode()}
    assert {"fetch:bert", "context:bert/encoder/16/sm8650"} < index["keys"].keys()


def test_the_same_is_the_same_bytes_in_another_folder_signed_or_not(packaged: Project, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    other = packaged.copy(tmp_path / "another place" / "프로젝트")
    shutil.rmtree(other.root / "artifacts")
    shutil.rmtree(other.root / ".build")
    assert not other.doit("package").built
    assert (other.root / ARCHIVE).read_bytes() == (packaged.root / ARCHIVE).read_bytes()
    signed = []
    for project in (other, packaged.copy(tmp_path / "third")):
        project.doit("package", PIPELINE_SIGNING_KEY=private)
        signed.append((project.root / ARCHIVE).read_bytes())
    assert signed[0] == signed[1]
    assert verify_release(other.root / ARCHIVE, public).signed_by
    again = other.doit("package")
    assert ", not signed" in again.text
    assert "the archive that was there was signed, and PIPELINE_SIGNING_KEY is not set" in again.text
    assert ", signed\n" in other.doit("package", PIPELINE_SIGNING_KEY=private).text
    run = other.doit("verify-release", "--key", str(public), ARCHIVE)
    assert "signed by the given key" in run.text


def test_one_changed_byte_anywhere_is_refused_and_the_file_named(packaged: Project, tmp_path: Path) -> None:
    data = (packaged.root / ARCHIVE).read_bytes()
    with Archive(packaged.root / ARCHIVE) as opened:
        headers = [at for entry in opened.entries.values() for at in range(entry.offset, entry.data)]
        last = [*opened.entries.values()][-1].end
    path = tmp_path / "r.zip"
    for at in (*headers[::41], *range(last, len(data), 37), *range(0, len(data), len(data) // 60)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        with pytest.raises(VerificationError, match=r"^r\.zip: "):
            verify_release(path)


def test_a_release_that_is_current_is_not_written_and_a_damaged_one_is(released: Project) -> None:
    archive = released.root / ARCHIVE
    before = archive.read_bytes(), archive.stat().st_mtime_ns
    run = released.doit("package:bert")
    assert "current" in run.text
    assert (archive.read_bytes(), archive.stat().st_mtime_ns) == before
    archive.write_bytes(before[0][:-1])
    assert "written" in released.doit("package:bert").text
    assert archive.read_bytes() == before[0]


def test_it_is_checked_and_published_by_tasks(released: Project, tmp_path: Path) -> None:
    archive = released.root / ARCHIVE
    assert "22 files" in released.doit("verify-release", ARCHIVE).text
    late = released.doit("verify-release", ARCHIVE, "--key", "key.pem", check=False)
    assert (late.status, "error: --key comes after a file" in late.text) == (10, True)
    out = tmp_path / "out"
    assert "published" in released.doit("publish", str(out)).text
    assert (out / archive.name).read_bytes() == archive.read_bytes()
    (released.root / "artifacts" / "bert" / "qdq" / "manifest.json").unlink()
    refused = [released.doit("publish", *to, check=False) for to in ((), ("nothing://x",), ("s3://me:geheim@b/x",))]
    assert [(run.status, run.built, "package" in run.text) for run in refused] == [(10, frozenset(), False)] * 3
    assert "geheim" not in refused[2].text
    data = bytearray(archive.read_bytes())
    data[5000] ^= 1
    (tmp_path / "bad.zip").write_bytes(data)
    run = released.doit("verify-release", str(tmp_path / "bad.zip"), check=False)
    assert (run.status, "bad.zip: contexts/sm8650/encoder_16_ctx_qnn.bin is corrupt" in run.text) == (16, True)


def test_a_payload_that_rots_is_made_again_and_so_is_an_archive_until_it_is_cleaned_away(
    released: Project, fresh_store: Path
) -> None:
    archive = released.root / ARCHIVE
    before = archive.read_bytes()
    context = index_of(archive)["files"]["contexts/sm8650/encoder_16_ctx_qnn.bin"]["sha256"]
    released.store = fresh_store
    archive.unlink()
    rot(fresh_store / "objects" / context[:2] / context)
    made = [line for line in released.doit("package").text.splitlines() if line.startswith("made again: ")]
    assert made == ["made again: context:bert/encoder/16/sm8650"]
    assert archive.read_bytes() == before

    rot(archive)
    run = released.doit("fsck", check=False)
    assert run.status == 17
    assert f"WRONG  {ARCHIVE}: contexts/" in run.text
    assert "the next 'doit package' writes it again" in run.text
    assert "written" in released.doit("package").text
    assert archive.read_bytes() == before
    assert f"removed {ARCHIVE}" in released.doit("clean", "build:bert").text
    assert not archive.parent.exists()


def test_a_config_without_a_release_has_nothing_to_package(bert_built: Project, tmp_path: Path) -> None:
    project = bert_built.copy(tmp_path / "project")
    run = project.doit("package:bert", check=False)
    assert run.status == 10
    assert "error: bert has no release\n  where: configs/bert.yaml\n  next: say in the config" in run.text
    assert project.doit("package").status == 0
    assert not (project.root / "artifacts" / "releases").exists()


def test_a_file_that_the_source_has_not_is_said(released: Project) -> None:
    released.edit("configs/bert.yaml", "licenses: [LICENSE]", "licenses: [LICENCE]")
    run = released.doit("package", check=False)
    assert run.status == 11
    assert "LICENCE; did you mean 'LICENSE'" in run.text


def test_what_was_not_measured_is_refused_unless_it_is_named(released: Project) -> None:
    (released.root / ARCHIVE).unlink()
    released.edit("configs/bert.yaml", "verification: {", "verification: {emulator_samples: 0, ")
    run = released.doit("package", check=False)
    assert (run.status, "bert is not released" in run.text) == (16, True)
    assert "| encoder/16/sm8650, emulator: not measured: the config leaves it out" in run.text
    assert not (released.root / ARCHIVE).exists()

    released.edit("configs/bert.yaml", "qdq: true", "qdq: false, unverified: [encoder/16/sm8650]")
    run = released.doit("package", check=False)
    assert (run.status, "| encoder/16/sm8650" in run.text, "| encoder/32/sm8650" in run.text) == (16, False, True)
    released.edit("configs/bert.yaml", "encoder/16/sm8650]", "encoder/16/sm8651]")
    run = released.doit("package", check=False)
    assert (run.status, "did you mean 'encoder/16/sm8650'" in run.text) == (10, True)

    released.edit("configs/bert.yaml", "encoder/16/sm8651]", "encoder]")
    run = released.doit("package")
    assert "not verified, as asked for: encoder/16/sm8650, emulator" in run.text
    lapses = index_of(released.root / ARCHIVE)["gates"]["skipped"]
    assert len(lapses) == 4
    assert "gate skipped: encoder/32/sm8650, emulator" in released.doit("verify-release", ARCHIVE).text


def test_what_failed_is_refused_unless_it_is_named_and_then_the_release_says_so(released: Project) -> None:
    (released.root / ARCHIVE).unlink()
    add(released, "quantization: {weights: uint8}\nthresholds: {quantization_db: 43.75}\n")
    run = released.doit("--continue", "package", check=False)
    assert (run.status, "the quantization rung misses its threshold" in run.text) == (16, True)
    assert not (released.root / ARCHIVE).exists()

    released.edit("configs/bert.yaml", "qdq: true", "unverified: [encoder/16]")
    assert released.doit("build", check=False).status == 16, "a build fails as ever"
    run = released.doit("package")
    assert "not verified, as asked for: encoder/16, cpu: the quantization rung misses its threshold" in run.text
    gates = index_of(released.root / ARCHIVE)["gates"]
    assert gates["skipped"] == []
    assert [(lapse["artifact"], lapse["gate"]) for lapse in gates["failed"]] == [("encoder/16", "cpu")]
    verify_release(released.root / ARCHIVE)

    released.edit("configs/bert.yaml", "quantization_db: 43.75", "quantization_db: 60")
    run = released.doit("package", check=False)
    assert (run.status, "| encoder/32, cpu" in run.text, "| encoder/16, cpu" in run.text) == (16, True, False)


def test_some_targets_are_a_release_only_where_each_has_its_own(released: Project) -> None:
    run = released.doit("package", "targets=sm8650", check=False)
    assert (run.status, "snapdragon-x-elite was left out" in run.text) == (10, True)
    released.edit("configs/bert.yaml", "qdq: true", "split: targets")
    released.doit("package", "targets=sm8650")
    folder = released.root / "artifacts" / "releases"
    assert {path.name for path in folder.iterdir()} == {"bert-1.0.qnn.zip", "bert-1.0-sm8650.qnn.zip"}
    index = index_of(folder / "bert-1.0-sm8650.qnn.zip")
    assert [target["name"] for target in index["targets"]] == ["sm8650"]
    assert not [key for key in index["keys"] if "elite" in key]


@pytest.mark.parametrize("packing", ["buckets", "socs"])
def test_binaries_that_share_are_packaged_for_each_target(released: Project, packing: str) -> None:
    add(released, f"packing: {packing}\n")
    released.edit("configs/bert.yaml", "verification: {", "verification: {emulator_samples: 0, ")
    released.edit("configs/bert.yaml", "qdq: true", "split: targets, unverified: [encoder]")
    released.doit("package")
    folder = released.root / "artifacts" / "releases"
    for target, soc in (("sm8650", "57"), ("snapdragon-x-elite", "60")):
        archive = folder / f"bert-1.0-{target}.qnn.zip"
        verify_release(archive)
        index = index_of(archive)
        contexts = [bucket["contexts"] for bucket in index["components"]["encoder"]["buckets"]]
        assert all(set(each) == {target} for each in contexts)
        assert {each[target]["compatibility"].split(":")[5] for each in contexts} == {soc}
        assert len({name for each in contexts for name in each[target]["binaries"]}) == (
            1 if packing == "buckets" else 2
        )
    released.edit("configs/bert.yaml", "split: targets, ", "")
    released.doit("package")
    index = index_of(released.root / ARCHIVE)
    verify_release(released.root / ARCHIVE)
    binaries = [
        name
        for bucket in index["components"]["encoder"]["buckets"]
        for context in bucket["contexts"].values()
        for name in context["binaries"]
    ]
    assert (len(binaries), len({*binaries})) == (4, 2)


def test_listing_tasks_loads_nothing_that_only_releases_need(packaged: Project) -> None:
    code = (
        "import sys, doit.doit_cmd\n"
        "try:\n    doit.doit_cmd.DoitMain().run(['list'])\n"
        "finally:\n    print('LOADED', sorted(n for n in ('cryptography', 'cyclonedx', 'fsspec', 'jsonschema',"
        " 'securesystemslib', 'huggingface_hub') if n in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=packaged.root, capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
