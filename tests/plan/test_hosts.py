from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import host_names
from pipeline.config.host_names import Host
from pipeline.config.load import load
from pipeline.config.project_file import ProjectFile
from pipeline.config.project_file import load as load_project
from pipeline.contracts import context
from pipeline.contracts.codec import Contract
from pipeline.errors import ConfigError, WaitingError
from pipeline.model import Manifest
from pipeline.plan import hosts
from pipeline.plan.keys import step_key
from pipeline.plan.planner import plan
from pipeline.plan.steps import Step
from pipeline.upkeep.doctor import may_run
from tests.support.config_mistakes import GOOD, write

LINUX = Host.of("x86_64", "linux", None)
LAPTOP = Host.of("aarch64", "windows", "snapdragon-x-elite")
PHONE = Host.of("aarch64", "linux", "sm8350")
BARE = Host.of("aarch64", "linux", None)
QUANTIZER = Host.of("x86_64", "linux", None, "quantizer")
TWO = GOOD.replace("[sm8650]", "[sm8650, snapdragon-x-elite]")
OLD = GOOD.replace("[sm8650]", "[sm8350, sm8650]")
AUTO = "quantization: {precision: auto}\n"


def steps(root: Path, text: str = TWO) -> dict[str, Step]:
    return {step.id: step for step in plan(load(write(root, text)))}


def project(root: Path, rules: str = "") -> ProjectFile:
    return load_project(write(root, f"stages: {{{rules}}}\n", "project.yaml").parent)


def refused(
    step: Step,
    host: Host,
    ruled: ProjectFile | None = None,
    params: Contract | None = None,
    inputs: Mapping[str, Manifest] | None = None,
    **environ: str,
) -> WaitingError | None:
    """The error with which a step is left to another host, None where it may run."""
    caught: WaitingError | None = None
    try:
        hosts.check_step(step, params or step.params, inputs or {}, ruled or ProjectFile(), host, environ)
    except WaitingError as error:
        caught = error
    assert caught is None or (caught.exit_code, caught.step) == (19, step.id)
    return caught


def runs(found: Mapping[str, Step], host: Host, ruled: ProjectFile | None = None) -> set[str]:
    return {name for name, step in found.items() if refused(step, host, ruled) is None}


@pytest.mark.parametrize(
    ("host", "names"),
    [
        (LINUX, ("x86_64", "linux", "linux-x86_64")),
        (LAPTOP, ("aarch64", "windows", "windows-aarch64", "snapdragon-x-elite")),
        (Host.of("x86_64", "linux", None, " Quantizer, ,CI ,x86_64"), (*LINUX.names, "quantizer", "ci")),
        (Host.of("x86_64", "linux", None, "a b;c"), (*LINUX.names, "a", "b", "c")),
        (Host.of("x86_64", "linux", None, "a,Snapdragon 8 Gen 3"), (*LINUX.names, "a", "sm8650")),
        (Host.of("x86_64", "linux", None, ",;  ,"), LINUX.names),
        (Host.of("aarch64", "linux", None, "SM8650"), ("aarch64", "linux", "linux-aarch64", "sm8650")),
    ],
)  # fmt: skip
def test_a_host_has_names_by_nature_and_those_it_is_given(host: Host, names: tuple[str, ...]) -> None:
    assert host.names == names


def test_this_host_has_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_HOST", "mine")
    found = Host.here()
    assert {found.arch, found.system, f"{found.system}-{found.arch}", "mine"} <= set(found.names)
    assert found.arch in ("x86_64", "aarch64")


def test_a_soc_that_cannot_be_told_may_be_given_on_arm64_and_changes_nothing_elsewhere() -> None:
    assert Host.of("aarch64", "linux", None, "Snapdragon 8 Gen 3").soc == "sm8650"
    assert Host.of("aarch64", "linux", "sm8350", "sm8650").soc == "sm8350"
    assert Host.of("x86_64", "linux", None, "sm8650").soc is None


@pytest.mark.parametrize(
    ("text", "soc"),
    [
        ("SM8650\n", "sm8650"),
        ("QCS9075", "qcs9100"),
        ("X1E80100", "snapdragon-x-elite"),
        ("Snapdragon(R) X Elite - X1E78100 - Qualcomm(R) Oryon(TM) CPU", "snapdragon-x-elite"),
        ("Snapdragon(R) X Plus - X1P64100 - Qualcomm(R) Oryon(TM) CPU", "snapdragon-x-elite"),
        ("Snapdragon(R) X Plus - X1P42100 - Qualcomm(R) Oryon(TM) CPU", None),  # another die under the same name
        ("Snapdragon (TM) 8cx Gen 3 @ 3.0 GHz", None),
        ("Intel(R) Xeon(R) Processor @ 2.60GHz", None),
        ("", None),
    ],
)
def test_the_soc_is_told_by_its_part_number(text: str, soc: str | None) -> None:
    assert host_names.soc_called(text) == soc


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("x86_64", ""),
        ("sm8650", ""),
        ("x86-64", "x86_64"),
        ("amd64", "x86_64"),
        ("arm64", "aarch64"),
        ("aarch46", "aarch64"),
        ("windows-arm64", "windows-aarch64"),
        ("win-x64", "windows-x86_64"),
        ("aarch64-linux", "linux-aarch64"),
        ("quantizer", ""),
        ("linux-2", ""),
        ("x86_64 farm", ""),
        ("build-arm64", ""),
    ],
)
def test_slips_for_names_by_nature_are_found_and_free_names_are_free(name: str, meant: str) -> None:
    assert host_names.meant(name) == meant


def test_without_rules_x86_64_may_run_everything_but_what_is_for_the_device(tmp_path: Path) -> None:
    found = steps(tmp_path)
    assert runs(found, LINUX) == set(found)
    old = steps(tmp_path, OLD)
    assert set(old) - runs(old, LINUX) == {"context:mine/encoder/32/sm8350", "context:mine/encoder/64/sm8350"}


def test_arm64_compiles_for_its_own_soc_and_emulates_nothing(tmp_path: Path) -> None:
    found = steps(tmp_path)
    left = set(found) - runs(found, LAPTOP)
    assert {name.split(":")[0] for name in left} == {"context", "emulate", "probe"}
    assert {name for name in left if name.startswith("context")} == {
        "context:mine/encoder/32/sm8650",
        "context:mine/encoder/64/sm8650",
    }
    error = refused(found["context:mine/encoder/32/sm8650"], LAPTOP)
    assert error is not None
    assert error.hosts == ("x86_64", "sm8650")
    assert "own SoC only" in error.why
    bare = refused(found["context:mine/encoder/32/snapdragon-x-elite"], BARE)
    assert bare is not None
    assert "PIPELINE_HOST=<SoC>" in bare.why


def test_emulation_waits_for_x86_64_and_says_what_to_type(tmp_path: Path) -> None:
    found = steps(tmp_path)
    error = refused(found["emulate:mine/encoder/32/sm8650"], LAPTOP, PIPELINE_STORE="/mnt/store")
    assert str(error) == (
        "emulate:mine/encoder/32/sm8650 can not run on this host"
        " (aarch64, windows, windows-aarch64, snapdragon-x-elite)\n"
        "  why: the emulator of HTP is only there for x86_64\n"
        "  next: run 'doit build:mine' on x86_64, then come back"
    )
    probe = refused(found["probe:mine/encoder/32/sm8650"], LAPTOP, PIPELINE_SHARED_STORE="s3://a/b")
    assert probe is not None
    assert probe.remedy == "run 'doit probe:mine/encoder/32/sm8650' on x86_64, then come back"


def test_without_a_store_that_they_share_a_walk_leads_nowhere(tmp_path: Path) -> None:
    step = steps(tmp_path)["emulate:mine/encoder/32/sm8650"]
    error = refused(step, LAPTOP)
    assert error is not None
    assert error.remedy.endswith("; the two need a store that they share (store.shared in configs/project.yaml)")


def test_what_else_keeps_it_away_is_told_with_the_reason(tmp_path: Path) -> None:
    step = steps(tmp_path)["emulate:mine/encoder/32/sm8650"]
    with pytest.raises(WaitingError, match="emulate") as caught:
        hosts.check_step(step, step.params, {}, ProjectFile(), LAPTOP, {}, besides="the store can't be read")
    assert caught.value.why == "the emulator of HTP is only there for x86_64; the store can't be read"
    hosts.check_step(step, step.params, {}, ProjectFile(), LINUX, {}, besides="the store can't be read")


def test_a_search_runs_the_emulator(tmp_path: Path) -> None:
    assert refused(steps(tmp_path, TWO + AUTO)["precision:mine/encoder"], LAPTOP)


def test_packing_and_blame_run_anywhere(tmp_path: Path) -> None:
    found = steps(tmp_path, TWO + "packing: auto\n")
    assert {"packing:mine/encoder", "blame:mine/encoder/32", "verify:mine/encoder/32"} <= runs(found, BARE)


def test_packs_are_made_on_x86_64(tmp_path: Path) -> None:
    for packing, name in (("buckets", "buckets/snapdragon-x-elite"), ("socs", "32/socs")):
        step = steps(tmp_path, TWO + f"packing: {packing}\n")[f"context:mine/encoder/{name}"]
        error = refused(step, LAPTOP)
        assert error is not None
        assert error.hosts == ("x86_64",)
    one = GOOD.replace("sm8650", "snapdragon-x-elite").replace("64, 32", "64")
    assert (
        refused(steps(tmp_path, one + "packing: buckets\n")["context:mine/encoder/64/snapdragon-x-elite"], LAPTOP)
        is None
    )


def test_a_pack_of_buckets_that_are_equal_is_none(tmp_path: Path) -> None:
    step = steps(tmp_path, TWO + "packing: buckets\n")["context:mine/encoder/buckets/snapdragon-x-elite"]
    assert isinstance(step.params, context.Params)
    assert refused(step, LAPTOP, params=replace(step.params, buckets={"all": {}})) is None


def test_a_form_that_was_not_chosen_is_made_by_any_host(tmp_path: Path) -> None:
    step = steps(tmp_path, TWO + "packing: auto\n")["context:mine/encoder/32/socs"]
    ruled = project(tmp_path, "context: {hosts: [compiler]}")
    for chosen, waits in (("separate", False), ("socs", True)):
        packing = Manifest("packing", "0" * 64, {}, {"chosen": chosen})
        assert (refused(step, LAPTOP, ruled, inputs={"packing": packing}) is not None) is waits


def test_v68_is_compiled_on_the_device_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    name = "context:mine/encoder/32/sm8350"
    old = steps(tmp_path, OLD)
    error = refused(old[name], LINUX, PIPELINE_STORE="/mnt/store")
    assert str(error) == (
        "context:mine/encoder/32/sm8350 can not run on this host (x86_64, linux, linux-x86_64)\n"
        "  where: configs/mine.yaml:7:11\n"
        "  why: for HTP v68 the device itself compiles: binaries that x86_64 makes fail there"
        " (https://github.com/microsoft/onnxruntime/issues/26686)\n"
        "  next: run 'doit build:mine' on sm8350, then come back; or compile it anywhere, with compile: host for the"
        " target"
    )
    assert refused(old[name], PHONE) is None
    assert refused(old[name], LAPTOP) is not None
    pretender = Host.of("x86_64", "linux", None, "sm8350")
    assert refused(old[name], pretender) is not None
    overridden = steps(tmp_path, OLD.replace("[sm8350", "[{soc: sm8350, compile: host}"))
    assert refused(overridden[name], LINUX) is None
    newer = steps(tmp_path, GOOD.replace("[sm8650]", "[{soc: sm8650, compile: device}]"))
    error = refused(newer["context:mine/encoder/32/sm8650"], LINUX)
    assert error is not None
    assert "the config says" in error.why


def test_where_it_is_compiled_is_in_the_key_and_who_compiles_it_is_not(tmp_path: Path) -> None:
    name = "context:mine/encoder/32/sm8350"
    on_device, anywhere = (
        steps(tmp_path, text)[name] for text in (OLD, OLD.replace("[sm8350", "[{soc: sm8350, compile: host}"))
    )
    keys = {
        step_key("context", code="", params=step.params.to_json(), inputs={}, files={}, tools={})
        for step in (on_device, anywhere)
    }
    assert len(keys) == 2
    others = [step for step in steps(tmp_path).values() if "compile" in step.params.to_json()]
    assert others == []


def test_auto_packing_shares_nothing_with_what_the_device_compiles(tmp_path: Path) -> None:
    assert not [name for name in steps(tmp_path, OLD + "packing: auto\n") if "packing:" in name or "/socs" in name]
    host = OLD.replace("[sm8350", "[{soc: sm8350, compile: host}")
    assert [name for name in steps(tmp_path, host + "packing: auto\n") if "/socs" in name]


def test_a_rule_names_hosts_of_which_any_one_will_do(tmp_path: Path) -> None:
    found = steps(tmp_path)
    ruled = project(tmp_path, "'*': {hosts: [quantizer]}, context: {hosts: [windows-aarch64, sm8650]}")
    assert {name.split(":")[0] for name in set(found) - runs(found, QUANTIZER, ruled)} == {"context"}
    assert runs(found, LAPTOP, ruled) == {
        "context:mine/encoder/32/snapdragon-x-elite",
        "context:mine/encoder/64/snapdragon-x-elite",
    }
    error = refused(found["context:mine/encoder/32/snapdragon-x-elite"], QUANTIZER, ruled, PIPELINE_STORE="s")
    assert str(error) == (
        "context:mine/encoder/32/snapdragon-x-elite may not run on this host (x86_64, linux, linux-x86_64, quantizer)\n"
        "  where: configs/project.yaml:1:54\n"
        "  why: stages.context.hosts names windows-aarch64 and sm8650\n"
        "  next: run 'doit build:mine' on windows-aarch64, then come back"
    )


def test_both_rules_at_once_are_told_together(tmp_path: Path) -> None:
    ruled = project(tmp_path, "context: {hosts: [windows-aarch64, compiler, linux]}")
    error = refused(steps(tmp_path)["context:mine/encoder/32/sm8650"], LAPTOP, ruled)
    assert error is not None
    assert error.hosts == ("windows-aarch64 (sm8650)", "compiler (x86_64)", "compiler (sm8650)", "linux (x86_64)",
                           "linux (sm8650)")  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "text", "step"),
    [
        ("'*': {hosts: [x86_64]}", OLD, "context:mine/encoder/32/sm8350"),
        ("context: {hosts: [linux-x86_64, snapdragon-x-elite]}", OLD, "context:mine/encoder/32/sm8350"),
        ("emulate: {hosts: [aarch64, windows-aarch64, sm8650]}", GOOD, "emulate:mine/encoder/32/sm8650"),
    ],
)
def test_a_step_that_no_host_could_run_is_a_mistake_in_the_config(
    tmp_path: Path, rules: str, text: str, step: str
) -> None:
    with pytest.raises(ConfigError, match=f"no host could run {step}") as caught:
        hosts.check(steps(tmp_path, text).values(), project(tmp_path, rules))
    assert caught.value.where.startswith("configs/project.yaml:1:")
    assert caught.value.remedy


def test_rules_that_leave_a_host_are_none(tmp_path: Path) -> None:
    for rules in ("'*': {hosts: [x86_64, sm8350]}", "'*': {hosts: [mine]}", "'*': {hosts: [linux]}"):
        hosts.check(steps(tmp_path, OLD).values(), project(tmp_path, rules))
    hosts.check(steps(tmp_path, OLD).values(), ProjectFile())


def test_a_name_like_one_that_this_host_was_given_is_asked_about(tmp_path: Path) -> None:
    ruled = project(tmp_path, "fetch: {hosts: [quantzier]}")
    error = refused(steps(tmp_path)["fetch:mine"], QUANTIZER, ruled)
    assert error is not None
    assert error.why == (
        "stages.fetch.hosts names quantzier (is 'quantzier' meant to be 'quantizer', as this host is called?)"
    )


def findings(root: Path, rules: str, given: str, host: Host) -> list[tuple[str, str]]:
    config = load(write(root, TWO))
    found = may_run.check(project(root, rules), [config], {"PIPELINE_HOST": given}, host)
    return [(each.level, f"{each.what} | {each.why}") for each in found]


def test_the_doctor_says_what_this_host_may_not_run(tmp_path: Path) -> None:
    ((level, said),) = findings(tmp_path, "", "", LINUX)
    assert (level, said) == (
        "ok",
        "this host is x86_64, linux, linux-x86_64, and may run every step of this project | ",
    )
    (found,) = findings(tmp_path, "context: {hosts: [compiler]}", "", LINUX)
    assert found == (
        "ok",
        "this host is x86_64, linux, linux-x86_64; 4 step(s) of context are for compiler"
        " | stages.context.hosts names compiler",
    )
    assert [level for level, _ in findings(tmp_path, "emulate: {hosts: [aarch64]}", "", LINUX)] == ["error"]


@pytest.mark.parametrize(
    ("given", "host", "said"),
    [
        ("arm64", LINUX, "PIPELINE_HOST says 'arm64'"),
        ("quantzier", QUANTIZER, "one names 'quantizer'"),
        ("sm8650", LINUX, "PIPELINE_HOST says that this host is sm8650"),
        ("", BARE, "which SoC this host has can't be told"),
    ],
)
def test_the_doctor_warns_of_names_that_do_nothing(tmp_path: Path, given: str, host: Host, said: str) -> None:
    warned = [text for level, text in findings(tmp_path, "fetch: {hosts: [quantizer, linux]}", given, host)
              if level == "warning"]  # fmt: skip
    assert len(warned) == 1
    assert said in warned[0]


@pytest.mark.parametrize(
    ("name", "near"),
    [("sm8560", "sm8650"), ("sm8505", "sm8550"), ("sm8651", "sm8650"), ("aarhc64", "aarch64"), ("linxu", "linux")],
)
def test_letters_that_were_swapped_are_the_likeliest_slip(name: str, near: str) -> None:
    assert host_names.like(name, host_names.by_nature()) == near


def test_an_x86_64_host_that_is_called_a_soc_is_told_that_this_is_not_believed(tmp_path: Path) -> None:
    host = Host.of("x86_64", "linux", None, "sm8350")
    step = steps(tmp_path, GOOD.replace("sm8650", "sm8350"))["context:mine/encoder/32/sm8350"]
    error = refused(step, host)
    assert error is not None
    assert "; that it is sm8350, as PIPELINE_HOST says, is not believed of an x86_64 host" in error.why
    other = refused(step, LINUX)
    assert other is not None
    assert "believed" not in other.why


def test_the_doctor_reports_a_project_file_that_is_wrong(tmp_path: Path) -> None:
    folder = write(tmp_path, "stages: {fetch: {hosts: [arm64]}}\n", "project.yaml").parent
    found, wrong = may_run.check_file(folder)
    assert found == ProjectFile()
    assert [(each.level, each.exit_code) for each in wrong] == [("error", 10)]
    assert "did you mean 'aarch64'?" in wrong[0].what
