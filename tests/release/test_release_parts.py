"""Parts of packaging: how shapes follow axes, what may ship, what is written about it, what configs say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.load import load
from pipeline.contracts.ingest import Table
from pipeline.contracts.values import TensorSpec
from pipeline.errors import ConfigError, StoreError, VerificationError
from pipeline.model import Json
from pipeline.plan.workspace import Workspace
from pipeline.release import commands
from pipeline.release.archives import provenance
from pipeline.release.archives.archive import Member
from pipeline.release.archives.index import Dim
from pipeline.release.archives.input_domains import with_domains
from pipeline.release.archives.notices import notices
from pipeline.release.archives.sbom import sbom
from pipeline.release.published import skipped
from tests.support.releases import index_of, payload

ONE = [{"sequence": 32}]
TWO = [{"sequence": 32}, {"sequence": 64}]
THREE = [*TWO, {"sequence": 128}]
TOGETHER = [{"text": 32, "latent": 32}, {"text": 64, "latent": 64}]
APART = [{"text": 32, "latent": 20}, {"text": 64, "latent": 50}]
FIXED = {"batch": 1, "past": 16}
UNKNOWN = {"unknown": True}


@pytest.mark.parametrize(
    ("declared", "sizes", "buckets", "found"),
    [
        (384, [384, 384], TWO, {"size": 384}),
        (384, [384], ONE, {"size": 384}),
        ("sequence", [32], ONE, {"axis": "sequence"}),
        ("sequence", [32, 64], TWO, {"axis": "sequence"}),
        ("MatMul_dim_1", [32, 64], TWO, {"axis": "sequence"}),
        ("MatMul_dim_1", [32], ONE, UNKNOWN),
        ("classes", [11, 11], TWO, {"size": 11}),
        ("classes", [11], ONE, UNKNOWN),
        ("classes", [11], [{}], {"size": 11}),
        (None, [320, 640], TWO, {"axis": "sequence", "times": 10, "offset": 0}),
        (None, [33, 65], TWO, UNKNOWN),
        (None, [33, 65, 129], THREE, {"axis": "sequence", "times": 1, "offset": 1}),
        (None, [30, 62, 126], THREE, {"axis": "sequence", "times": 1, "offset": -2}),
        (None, [16, 32, 64], THREE, UNKNOWN),
        (None, [64, 32], TWO, UNKNOWN),
        (None, [32, 64, 127], THREE, UNKNOWN),
        ("sequence", [31, 63], TWO, UNKNOWN),
        ("320*sequence", [32 * 320], ONE, {"axis": "sequence", "times": 320, "offset": 0}),
        ("320*sequence", [32, 64], TWO, {"axis": "sequence"}),
        ("2*latent", [64, 128], TOGETHER, {"axis": "latent", "times": 2, "offset": 0}),
        ("latent", [32, 64], TOGETHER, {"axis": "latent"}),
        ("noise", [32, 64], TOGETHER, UNKNOWN),
        ("noise", [20, 50], APART, {"axis": "latent"}),
        (None, [40, 100], APART, {"axis": "latent", "times": 2, "offset": 0}),
        ("past + text", [52, 52], [{"text": 32, "past": 20}, {"text": 2, "past": 50}], {"size": 52}),
        (None, [7, 7], [{"text": 32, "latent": 20}, {"text": 64, "latent": 20}], UNKNOWN),
    ],
)
def test_what_the_dim_of_an_output_follows(
    declared: Json, sizes: list[int], buckets: list[Mapping[str, int]], found: Json
) -> None:
    assert Dim(declared, sizes, buckets, FIXED).of_output() == found


@pytest.mark.parametrize(
    ("declared", "sizes", "buckets", "found"),
    [
        (1, [1, 1], TWO, 1),
        ("batch", [1, 1], TWO, 1),
        ("sequence", [32], ONE, "sequence"),
        ("2*sequence", [64, 128], TWO, {"axis": "sequence", "times": 2, "offset": 0}),
        ("2*sequence", [64], ONE, {"axis": "sequence", "times": 2, "offset": 0}),
        ("past + sequence", [48], ONE, {"axis": "sequence", "times": 1, "offset": 16}),
        ("sequence // 2", [16], ONE, None),
        ("text + latent", [52], APART[:1], None),
        ("past", [16], ONE, 16),
    ],
)
def test_what_the_dim_of_an_input_follows(
    declared: Json, sizes: list[int], buckets: list[Mapping[str, int]], found: Json
) -> None:
    assert Dim(declared, sizes, buckets, FIXED).of_input() == found


def components(cpu: Json, emulator: Json) -> dict[str, dict[str, Any]]:
    found: dict[str, Any] = index_of({}, "1")["components"]
    bucket = found["encoder"]["buckets"][0]
    bucket["verification"]["cpu"] = cpu
    bucket["contexts"]["sm8650"]["verification"] = emulator
    return found


@pytest.mark.parametrize(
    ("dtype", "floats", "in_float", "rewrites", "expected"),
    [
        ("int64", True, (), (), [0, 49]),
        ("int64", True, ("a", "b", "c"), (), [-50, 49]),
        ("int64", True, ("a",), (), [0, 49]),
        ("int64", True, None, (), [-50, 49]),
        ("int64", False, None, (), [0, 49]),
        ("int64", True, None, ("add_spare_rows",), [0, 49]),
        ("int32", True, None, (), [0, 49]),
    ],
)
def test_ids_count_from_the_end_where_htp_does(
    dtype: str, floats: bool, in_float: tuple[str, ...] | None, rewrites: tuple[str, ...], expected: list[int]
) -> None:
    given = (TensorSpec("ids", dtype, (1, 8)), TensorSpec("mask", "int64", (1, 8)))
    ids, mask = with_domains(given, {"ids": Table(50, ("a", "b"), floats)}, in_float, rewrites, {}, ())
    assert isinstance(ids, dict)
    assert isinstance(mask, dict)
    assert ids["range"] == expected
    assert "range" not in mask


def test_floats_have_the_range_of_calibration_or_of_float16() -> None:
    given = (TensorSpec("x", "float32", (1, 8)), TensorSpec("h", "float16", (1, 8)))
    x, h = with_domains(given, {}, (), (), {"x": (-1.5, 2.0)}, ("x",))
    assert isinstance(x, dict)
    assert isinstance(h, dict)
    assert (x["seen"], x["nan"]) == ([-1.5, 2.0], True)
    assert (h["seen"], h["nan"]) == ([-65504.0, 65504.0], False)


def test_what_was_not_measured_is_a_skipped_gate() -> None:
    assert skipped.skipped(components({"samples": 1}, {"samples": 1})) == []
    found = skipped.skipped(components(None, {"samples": 0}))
    assert [(lapse.artifact, lapse.gate) for lapse in found] == [
        ("encoder/16", "cpu"),
        ("encoder/16/sm8650", "emulator"),
    ]
    assert [lapse.why for lapse in found] == [
        "not measured: the config leaves it out",
        "not measured: no sample fits into the bucket",
    ]


@pytest.mark.parametrize("allowed", [["encoder"], ["encoder/16"], ["encoder/16", "other/1"]])
def test_what_is_named_may_ship(allowed: list[str]) -> None:
    lapses = skipped.skipped(components(None, None))
    skipped.may_ship(lapses, allowed, "bert", "bert.yaml")


@pytest.mark.parametrize("allowed", [[], ["encoder/16/sm8650"], ["enc"], ["encoder/1"], ["encoder/16/sm"]])
def test_what_is_not_named_may_not(allowed: list[str]) -> None:
    lapses = skipped.skipped(components(None, None))
    with pytest.raises(VerificationError, match="bert is not released") as error:
        skipped.may_ship(lapses, allowed, "bert", "bert.yaml")
    assert "| encoder/16, cpu: not measured" in error.value.why
    assert "unverified: [encoder/16" in error.value.remedy


def test_a_name_that_stands_for_nothing_is_a_mistake() -> None:
    artifacts = skipped.artifacts_of(components(None, None))
    assert artifacts == ["encoder/16/sm8650"]
    skipped.check_names(["encoder", "encoder/16"], artifacts, "bert.yaml")
    with pytest.raises(ConfigError, match="'encoder/17'; did you mean"):
        skipped.check_names(["encoder/17"], artifacts, "bert.yaml")


def test_the_statement_is_about_every_file_but_itself_and_its_signature() -> None:
    members = {name: Member.of(data) for name, data in payload().items()}
    raw = index_of(members, "1.0")
    raw["source"] = {"hub": "our/bert", "revision": "a" * 40, "files": {"model.onnx": "0" * 64}}
    members |= {name: Member.of(b"{}") for name in ("release.json", "provenance.json", "release.dsse.json")}
    said: Any = provenance.statement(raw, members)
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {subject["name"] for subject in said["subject"]} == {*payload(), "release.json"}
    definition = said["predicate"]["buildDefinition"]
    assert definition.keys() == {"buildType", "externalParameters", "internalParameters", "resolvedDependencies"}
    assert {"uri": f"pkg:huggingface/our/bert@{'a' * 40}", "digest": {"gitCommit": "a" * 40}} in definition[
        "resolvedDependencies"
    ]
    assert said["predicate"]["runDetails"].keys() == {"builder"}, "not when, where or by whom"


@pytest.mark.parametrize("hub", [None, "our/bert"])
def test_the_bill_of_materials_is_cyclonedx_and_depends_on_contents_alone(hub: str | None) -> None:
    members = {name: Member.of(data) for name, data in payload().items()}
    about = index_of(members, "1.0")
    about["source"] |= {"hub": hub, "revision": "a" * 40 if hub else None}
    text = sbom(about, members)
    assert text == sbom(about, dict(reversed(members.items())))
    found = json.loads(text)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert "timestamp" not in found["metadata"]
    assert found["metadata"]["component"]["name"] == "bert"
    hashes = {each["name"]: each["hashes"][0]["content"] for each in found["components"] if each["type"] == "file"}
    assert hashes == {name: member.sha256 for name, member in members.items()}
    tools = {each["name"]: each.get("purl") for each in found["metadata"]["tools"]["components"]}
    assert tools["onnxruntime-qnn"] == "pkg:pypi/onnxruntime-qnn@2.7.0"
    source = next(each for each in found["components"] if each["type"] == "machine-learning-model")
    assert source.get("purl") == (f"pkg:huggingface/our/bert@{'a' * 40}" if hub else None)
    other = members | {"x": Member.of(b"x")}
    assert json.loads(sbom(about, other))["serialNumber"] != found["serialNumber"]


def test_the_notices_of_the_compiler_are_those_of_the_installed_package() -> None:
    found = notices()
    assert {"LICENSE", "Qualcomm_LICENSE.pdf", "ThirdPartyNotices.txt"} <= set(found)
    assert all(path.is_file() for path in found.values())


CONFIG = """\
source: {path: model}
components: {encoder: {file: model.onnx}}
quantization: {precision: fp16}
targets: [sm8650]
"""


@pytest.mark.parametrize(
    ("release", "why"),
    [
        ("{}", "version"),
        ("{version: 1.0}", "version"),
        ("{version: 'a/b'}", "a version"),
        ("{version: '1', files: [../x]}", "files"),
        ("{version: '1', licenses: [a, a]}", "licenses"),
        ("{version: '1', split: target}", "targets"),
        ("{version: '1', qdq: maybe}", "qdq"),
        ("{version: '1', unverified: [encoderr/all]}", "no component is named 'encoderr'; did you mean 'encoder'"),
        ("{version: '1', unverified: [a/b/c/d]}", "unverified"),
        ("{version: '1', unverified: [1]}", "unverified"),
        ("{version: '1', licences: [a]}", "licenses"),
    ],
)
def test_mistakes_in_a_config_are_found_before_any_work(tmp_path: Path, release: str, why: str) -> None:
    (tmp_path / "m.yaml").write_text(f"{CONFIG}release: {release}\n")
    with pytest.raises(ConfigError, match=why):
        load(tmp_path / "m.yaml")


@pytest.mark.parametrize("name", ["releases", "Releases"])
def test_a_model_may_not_be_named_as_the_folder_of_archives(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.yaml").write_text(CONFIG)
    why = f"the file's name can't name a model: '{name}'; expected another name, as artifacts/releases/ is for archives"
    with pytest.raises(ConfigError, match=re.escape(why)):
        load(tmp_path / f"{name}.yaml")


def test_several_are_published_though_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "abc":
        (tmp_path / f"{name}.yaml").write_text(f"{CONFIG}release: {{version: '1'}}\n")
    configs = [load(tmp_path / f"{name}.yaml") for name in "abc"]

    def publish(archive: Path, url: str) -> str:
        if not archive.name.startswith("b"):
            return f"{archive.name} in {url}"
        raise StoreError(f"{archive.name} not to {url}")

    monkeypatch.setattr("pipeline.release.publish.publish", publish)
    with pytest.raises(StoreError, match=r"b-1\.qnn\.zip not to one"):
        commands.publish_models(configs, ["sm8650"], Workspace.at(tmp_path), ["one", "two"])
    assert capsys.readouterr().out.splitlines() == [
        "a-1.qnn.zip in one",
        "a-1.qnn.zip in two",
        "c-1.qnn.zip in one",
        "c-1.qnn.zip in two",
        "error: b-1.qnn.zip not to two",
    ]


def test_what_a_config_says_of_its_release(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(CONFIG)
    assert load(tmp_path / "m.yaml").release is None
    (tmp_path / "m.yaml").write_text(f"{CONFIG}release: {{version: '1.0', unverified: [encoder/all/sm8650]}}\n")
    found = load(tmp_path / "m.yaml").release
    assert found is not None
    assert (found.version, found.split, found.qdq, found.files) == ("1.0", "none", False, ())
