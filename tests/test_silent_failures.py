"""What the libraries accept in silence, done with the real ones, and what we say to it: a test for every row."""

from __future__ import annotations

import ast
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime as ort
import pytest

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError, VerificationError
from pipeline.graph.files.model_file import load_graph
from pipeline.qnn.compiling.compile import compile_context
from pipeline.qnn.compiling.readback import OpTrace, read_context
from pipeline.qnn.running.emulate import run_context
from pipeline.qnn.session import session_options
from tests.support import tiny_project
from tests.support.build_processes import tree
from tests.support.contexts import X_ELITE, build
from tests.support.fresh import fresh
from tests.support.project import ROOT, Project
from tests.support.tiny_models import float_model, qdq_model, sample

CONTEXT = "tests/stages/test_context.py::"
HERE = "tests/test_silent_failures.py::"
ROWS: Mapping[str, tuple[str, ...]] = {
    "soc_model=9999": (f"{CONTEXT}TestSilentFailures::test_a_soc_that_the_sdk_does_not_know",),
    "soc_model=FOO": (
        f"{HERE}test_a_soc_that_is_no_number",
        f"{HERE}test_targets_that_make_no_sense_are_refused_before_anything_runs",
        f"{CONTEXT}TestSilentFailures::test_no_soc",
    ),
    "soc_model=57 with htp_arch=73, 60 with 79": (
        f"{CONTEXT}TestSilentFailures::test_an_architecture_that_is_not_the_socs",
    ),
    "vtcm_mb=32": (
        f"{HERE}test_targets_that_make_no_sense_are_refused_before_anything_runs",
        "tests/qnn/test_readback.py::test_another_vtcm_than_asked_for",
    ),
    "a model with dynamic shapes": (
        f"{CONTEXT}TestSilentFailures::test_a_dim_that_is_not_fixed",
        "tests/test_errors.py::test_an_axis_that_nobody_fixed",
    ),
    "1,000 random bytes over the middle of a binary": (
        f"{HERE}test_random_bytes_in_a_binary_are_seen_by_nobody_but_a_digest",
        f"{HERE}test_a_binary_that_was_damaged_in_the_store_is_found_dropped_and_made_again",
        f"{HERE}test_a_binary_that_was_damaged_in_the_artifacts_is_found_and_put_back",
    ),
    "a binary cut in half": (
        f"{HERE}test_a_binary_that_was_damaged_in_the_store_is_found_dropped_and_made_again",
        f"{HERE}test_a_binary_that_was_damaged_in_the_artifacts_is_found_and_put_back",
        f"{CONTEXT}TestEmulator::test_reports_a_binary_that_is_cut_short",
        "tests/stages/test_emulate.py::test_a_damaged_context_is_an_error_of_the_compile_rung",
    ),
    "a v79 context on the emulator with v73 options": (
        f"{HERE}test_the_emulator_runs_a_context_of_another_target_and_we_refuse_to",
        f"{CONTEXT}TestEmulator::test_refuses_a_context_of_another_target",
        "tests/stages/test_emulate.py::test_a_context_for_another_target_is_refused",
    ),
    "an output file that is there already": (
        f"{CONTEXT}TestBytes::test_nothing_of_what_was_in_the_folder_before_survives",
    ),
    "one unsupported node, CPU fallback disabled": (
        f"{HERE}test_the_error_for_an_unsupported_node_names_it",
        f"{CONTEXT}TestFacts::test_name_the_operator_that_qnn_does_not_take_and_why",
    ),
    "a second compile in one process": (f"{CONTEXT}TestSilentFailures::test_a_second_compile_in_the_same_process",),
    "the same compile again": (
        f"{CONTEXT}TestBytes::test_do_not_depend_on_folder_process_hash_seed_or_threads",
        "tests/build/test_build.py::test_two_builds_in_two_folders_are_byte_identical",
    ),
    "the same model under another name or path": (
        f"{CONTEXT}TestBytes::test_do_not_depend_on_folder_process_hash_seed_or_threads",
        "tests/plan/test_rebuild.py::test_a_renamed_config_runs_nothing",
        "tests/build/test_paths.py::test_a_build_under_any_path_makes_the_same_bytes",
    ),
}
"""What was tried, and the tests that try it and see our answer. docs/robustness.md has the answers in words."""

BINARY = "net_8_ctx_qnn.bin"


def test_every_row_has_its_tests_and_its_place_in_the_docs() -> None:
    docs = (ROOT / "docs" / "robustness.md").read_text("utf-8")
    told = [line.split("|")[1].strip() for line in docs.splitlines() if line.startswith("| ")]
    missing = [row for row in ROWS if row not in told]
    assert missing == []
    assert sorted({name for names in ROWS.values() for name in names} - set(_tests())) == []


def _tests() -> Iterator[str]:
    for path in (ROOT / "tests").rglob("test_*.py"):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.FunctionDef):
                yield f"{name}::{node.name}"
            if isinstance(node, ast.ClassDef):
                yield from (
                    f"{name}::{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)
                )


@pytest.fixture(scope="module")
def qdq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qdq_model(tmp_path_factory.mktemp("qdq"))


@pytest.fixture
def project(tiny_built: Project, tmp_path: Path) -> Project:
    """A built project with a store of its own, for a test to damage."""
    copy = tiny_built.copy(tmp_path / "project", tmp_path / "store")
    copy.doit("build")  # in a new place every file is read once
    return copy


def random_bytes(path: Path, part: float = 0.5) -> None:
    """1,000 of them over the middle, or another part, and nothing that `stat` shows to who doesn't look closely."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    at = int(len(data) * part)
    data[at : at + 1000] = random.Random(0).randbytes(1000)
    path.chmod(0o644)
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    path.chmod(status.st_mode)


def half(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size // 2)


def test_a_soc_that_is_no_number(qdq: Path, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="QNN compiled nothing of encoder_8 for SoC FOO") as caught:
        fresh(compile_context, qdq, "encoder_8", HtpTarget(cast("Any", "FOO"), 73, 8), tmp_path)
    assert "soc_model is not specified" in caught.value.why
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("FOO", "unknown target 'FOO'"),
        ("{soc: sm8650, vtcm_mb: 32}", "sm8650 has 8 MB of VTCM, not 32"),
        ("{soc: snapdragon-x2-elite, vtcm_mb: 32}", "no SoC is known to have more than 16 MB of VTCM, not 32"),
    ],
)
def test_targets_that_make_no_sense_are_refused_before_anything_runs(target: str, said: str, tmp_path: Path) -> None:
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", targets=[target])
    run = project.doit("build", check=False)
    assert run.status == 10
    assert said in run.text
    assert not (tmp_path / "store").exists()


def test_random_bytes_in_a_binary_are_seen_by_nobody_but_a_digest(qdq: Path, tmp_path: Path) -> None:
    """Neither by QNN, which computes with them, nor in what can be read from a binary."""
    build(qdq, tmp_path / "out")
    feed = {"x": sample(8)}
    ((before,),) = fresh(run_context, tmp_path / "out", "encoder_8_ctx.onnx", X_ELITE, [feed])
    random_bytes(tmp_path / "out" / "encoder_8_ctx_qnn.bin", 0.75)  # where so small a binary has its weights
    ((after,),) = fresh(run_context, tmp_path / "out", "encoder_8_ctx.onnx", X_ELITE, [feed])
    assert not np.array_equal(before, after)
    read_context(tmp_path / "out", "encoder_8_ctx.onnx", [X_ELITE], load_graph(qdq), OpTrace())


@pytest.mark.slow
@pytest.mark.parametrize("damage", [random_bytes, half])
def test_a_binary_that_was_damaged_in_the_store_is_found_dropped_and_made_again(project: Project, damage: Any) -> None:
    artifacts = tree(project.root / "artifacts")
    (payload,) = [
        path for path in project.store.glob("objects/*/*") if path.read_bytes() == artifacts[f"tiny/sm8650/{BINARY}"]
    ]
    sound = payload.read_bytes()
    damage(payload)
    shutil.rmtree(project.root / "artifacts")
    run = project.doit("build")
    assert f"damaged in the store: {BINARY}" in run.text
    assert tree(project.root / "artifacts") == artifacts
    assert payload.read_bytes() == sound

    damage(payload)
    checked = project.doit("fsck", check=False)
    assert checked.status == 17
    assert str(payload) in checked.text
    assert not payload.exists()
    project.doit("build")
    assert payload.read_bytes() == sound


@pytest.mark.slow
@pytest.mark.parametrize("damage", [random_bytes, half])
def test_a_binary_that_was_damaged_in_the_artifacts_is_found_and_put_back(project: Project, damage: Any) -> None:
    artifacts = tree(project.root / "artifacts")
    path = project.root / "artifacts" / "tiny" / "sm8650" / BINARY
    damage(path)
    checked = project.doit("fsck", check=False)
    assert checked.status == 17
    assert BINARY in checked.text
    run = project.doit("build")
    assert f"damaged: artifacts/tiny/sm8650/{BINARY}" in run.text
    assert not run.built
    assert tree(project.root / "artifacts") == artifacts


def test_the_emulator_runs_a_context_of_another_target_and_we_refuse_to(qdq: Path, tmp_path: Path) -> None:
    build(qdq, tmp_path / "out", HtpTarget(69, 79, 8))
    assert fresh(_run_unchecked, tmp_path / "out" / "encoder_8_ctx.onnx") == 1
    with pytest.raises(VerificationError) as caught:
        fresh(run_context, tmp_path / "out", "encoder_8_ctx.onnx", X_ELITE, [{"x": sample(8)}])
    assert caught.value.what == "encoder_8_ctx_qnn.bin is for SoC 69 (HTP v79), not for SoC 60 (HTP v73)"


def _run_unchecked(path: Path) -> int:
    session = ort.InferenceSession(str(path), session_options(X_ELITE))
    return len(session.run(None, {"x": sample(8)}))


@pytest.mark.slow
def test_the_error_for_an_unsupported_node_names_it(tmp_path: Path) -> None:
    said = fresh(_without_fallback, float_model(tmp_path / "model", between="Hardmax"))
    assert "fallback to CPU EP has been explicitly disabled" in said
    assert "between" not in said
    project = tiny_project.create(
        tmp_path / "project", tmp_path / "store", buckets=[8], targets=["sm8650"], between="Hardmax"
    )
    run = project.doit("build", check=False)
    assert run.status == 16
    assert "Hardmax 'between'" in run.text
    assert "Operators of type `Hardmax` are not supported" in run.text


def _without_fallback(model: Path) -> str:
    settings = session_options(X_ELITE)
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        ort.InferenceSession(str(model), settings)
    except Exception as error:
        return str(error)
    return ""
