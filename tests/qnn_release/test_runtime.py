"""A release opened and run on the CPU; and which target it would be for on an NPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from pipeline.qnn_release import (
    ArgumentError,
    ClosedError,
    DamagedError,
    InputError,
    LoadError,
    Release,
    ReleaseError,
    RunError,
    TargetError,
    TooLongError,
    provider,
)
from pipeline.qnn_release.index import Index
from pipeline.qnn_release.placement import CPU, EMULATOR, NPU, OPTIMAL, USABLE, Placement, fitting, place
from pipeline.qnn_release.provider import Host
from tests.support import runtime_releases, tiny_models
from tests.support.project import ROOT
from tests.support.runtime_releases import index


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A release of a float model in two buckets, for the CPU."""
    return runtime_releases.tiny(tmp_path)


def truth(folder: Path, x: NDArray[np.float32]) -> NDArray[Any]:
    """What the model gives without any padding."""
    model = tiny_models.float_model(folder / "truth", sequence="sequence")
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def test_every_length_gives_what_the_model_gives_without_padding(tiny: Path, tmp_path: Path) -> None:
    with Release.open(tiny, device="cpu") as release:
        for length in range(1, 17):
            x = tiny_models.sample(length, seed=length)
            assert np.allclose(release.run("layers", {"x": x})["y"], truth(tmp_path, x), atol=1e-5)
        small, large = release.report().sessions
    assert (small.runs, large.runs) == (8, 8)
    assert small.padding == pytest.approx(1 - (1 + 8) / 2 / 8)
    assert large.padding == pytest.approx(1 - (9 + 16) / 2 / 16)


def test_sessions_are_made_when_they_are_needed_and_hashes_checked_before(tiny: Path) -> None:
    with Release.open(tiny, device="cpu") as release:
        assert release.report().verified == ()
        release.run("layers", {"x": tiny_models.sample(3)})
        report = release.report()
        assert report.verified == ("qdq/8/model.onnx", "qdq/8/weights.bin")
        assert [session.provider for session in report.sessions] == ["CPUExecutionProvider", ""]
        (tiny / "qdq/16/weights.bin").write_bytes((tiny / "qdq/16/weights.bin").read_bytes()[:-1] + b"\x01")
        with pytest.raises(DamagedError, match=r"qdq/16/weights\.bin is not the file"):
            release.run("layers", {"x": tiny_models.sample(9)})
        with pytest.raises(DamagedError):
            release.load()


def test_the_report_says_what_happened(tiny: Path) -> None:
    with Release.open(tiny, device="cpu") as release:
        for _ in range(3):
            release.run("layers", {"x": tiny_models.sample(4)})
        report = release.report()
    first, second = str(report).splitlines()[2:]
    assert str(report).startswith("tiny 1.0 on cpu: the caller asked for the CPU\n")
    assert first.startswith("  layers, sequence 8: CPUExecutionProvider, loaded in ")
    assert first.endswith(" s, 3 runs, 50% padding")
    assert second == "  layers, sequence 16: not loaded"
    assert report.as_dict()["sessions"][0]["runs"] == 3
    assert (report.device, report.target, len(report.digest)) == ("cpu", None, 64)


def test_many_threads_share_a_release(tiny: Path, tmp_path: Path) -> None:
    inputs = {length: tiny_models.sample(length, seed=length) for length in range(1, 17)}
    wanted = {length: truth(tmp_path, x) for length, x in inputs.items()}
    wrong: list[int] = []

    def work(release: Release) -> None:
        for length, x in inputs.items():
            if not np.allclose(release.run("layers", {"x": x})["y"], wanted[length], atol=1e-5):
                wrong.append(length)

    with Release.open(tiny, device="cpu") as release:
        threads = [threading.Thread(target=work, args=(release,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report = release.report()
    assert wrong == []
    assert [session.runs for session in report.sessions] == [48, 48]


class Halves:
    """Cuts along the sequence; this model looks at each place alone, so nothing more is needed."""

    def split(self, inputs: Mapping[str, NDArray[Any]], limits: Mapping[str, int]) -> Sequence[dict[str, NDArray[Any]]]:
        step = limits["sequence"]
        return [{"x": inputs["x"][:, at : at + step]} for at in range(0, inputs["x"].shape[1], step)]

    def join(
        self, outputs: Sequence[Mapping[str, NDArray[Any]]], inputs: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        return {"y": np.concatenate([output["y"] for output in outputs], axis=1)}


def test_longer_than_the_largest_bucket(tiny: Path, tmp_path: Path) -> None:
    x = tiny_models.sample(37)
    with Release.open(tiny, device="cpu") as release:
        with pytest.raises(TooLongError, match="the largest bucket is sequence 16"):
            release.run("layers", {"x": x})
        joined = release.run("layers", {"x": x}, splitter=Halves())["y"]
        assert np.allclose(joined, truth(tmp_path, x), atol=1e-5)
        assert release.report().split == 1
        assert [session.runs for session in release.report().sessions] == [1, 2]


class Attached:
    """An array of another library that numpy can't have."""

    def __array__(self, *_: object, **__: object) -> NDArray[Any]:
        raise RuntimeError("call detach() first")


def test_wrong_calls(tiny: Path) -> None:
    with Release.open(tiny, device="cpu") as release:
        with pytest.raises(InputError, match=r"no component 'encoder'\n.*\n  why: it has layers"):
            release.run("encoder", {})
        with pytest.raises(InputError, match="its type is float64, not float32"):
            release.run("layers", {"x": np.zeros((1, 3, 32))})
        for component in (None, 5, ["layers"]):
            with pytest.raises(InputError, match="no component"):
                release.run(component, {})  # type: ignore[arg-type]
        with pytest.raises(InputError, match="no component"):
            release.load(["layers"])  # type: ignore[arg-type]
        for inputs in (None, [1], {"x": [[1.0], [2.0, 3.0]]}, {"x": Attached()}):
            with pytest.raises(InputError, match="can't be made arrays"):
                release.run("layers", inputs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        {"fallback": "maybe"},
        {"fallback": ["cpu"]},
        {"fallback": None},
        {"fallback": np.array(["cpu", "refuse"])},
        {"target": 5},
        {"cache": 5},
        {"options": "burst"},
        {"options": {"soc_model": 57}},
        {"options": ["soc_model"]},
        {"configure": "fast"},
    ],
)
def test_an_argument_that_makes_no_sense_is_a_release_error_that_names_it(tiny: Path, given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ArgumentError, match=rf"^{name} is not what .*\n  where: {name}=.*\n  why: it is "):
        Release.open(tiny, **given)
    assert issubclass(ArgumentError, ReleaseError)


def test_other_wrong_arguments_are_release_errors(tiny: Path) -> None:
    for path in (None, 5, [tiny]):
        with pytest.raises(ArgumentError, match=r"^path is not what"):
            Release.open(path)  # type: ignore[arg-type]
    for device in (5, "gpu", ["cpu"], np.array(["cpu", "npu"])):
        with pytest.raises(TargetError, match="there is no device"):
            Release.open(tiny, device=device)  # type: ignore[arg-type]


def test_a_release_that_was_closed_runs_nothing(tiny: Path) -> None:
    x = tiny_models.sample(3)
    with Release.open(tiny, device="cpu") as release:
        release.run("layers", {"x": x})
    for call in (lambda: release.run("layers", {"x": x}), release.load):
        with pytest.raises(ClosedError, match="the release is closed"):
            call()
    assert release.report().sessions[0].runs == 1
    release.close()


class Wrong(Halves):
    """Returns what it is told to."""

    def __init__(self, pieces: Any, joined: Any) -> None:
        self.pieces, self.joined = pieces, joined

    def split(self, inputs: Mapping[str, NDArray[Any]], limits: Mapping[str, int]) -> Any:
        return super().split(inputs, limits) if self.pieces is ... else self.pieces

    def join(self, outputs: Sequence[Mapping[str, NDArray[Any]]], inputs: Mapping[str, NDArray[Any]]) -> Any:
        return self.joined


@pytest.mark.parametrize(
    ("pieces", "joined", "why"),
    [
        ([], {"y": np.float32(np.nan)}, r"split\(\) returned no piece"),
        (iter(()), {}, r"split\(\) returned no piece"),
        (None, {}, r"split\(\) returned None, which is no list of pieces"),
        (..., None, r"join\(\) returned None, which is no dict of outputs"),
    ],
)
def test_a_splitter_that_returns_nothing_is_refused(tiny: Path, pieces: Any, joined: Any, why: str) -> None:
    with Release.open(tiny, device="cpu") as release:
        with pytest.raises(ReleaseError, match=rf"where: Wrong\n  why: {why}"):
            release.run("layers", {"x": tiny_models.sample(37)}, splitter=Wrong(pieces, joined))
        assert release.report().split == 0


def test_a_model_that_is_not_what_the_release_says(tiny: Path) -> None:
    def swap(index_raw: dict[str, Any]) -> None:
        first, second = index_raw["components"]["layers"]["buckets"]
        first["qdq"] = second["qdq"]

    runtime_releases.edit(tiny, swap)
    with (
        Release.open(tiny, device="cpu") as release,
        pytest.raises(RunError, match="layers at sequence 8 failed to run"),
    ):
        release.run("layers", {"x": tiny_models.sample(3)})


def test_what_the_release_has_no_model_for(tiny: Path) -> None:
    def drop(index_raw: dict[str, Any]) -> None:
        index_raw["components"]["layers"]["buckets"][0]["qdq"] = None

    runtime_releases.edit(tiny, drop)
    with Release.open(tiny, device="cpu") as release, pytest.raises(LoadError, match="the release has no QDQ model"):
        release.run("layers", {"x": tiny_models.sample(3)})


def test_the_session_options_are_the_callers_too(tiny: Path) -> None:
    seen: list[ort.SessionOptions] = []

    def configure(options: ort.SessionOptions) -> None:
        options.intra_op_num_threads = 1
        seen.append(options)

    with Release.open(tiny, device="cpu", configure=configure) as release:
        release.load("layers")
    assert [options.intra_op_num_threads for options in seen] == [1, 1]
    as_measured = [options.get_session_config_entry("session.disable_quant_qdq") for options in seen]
    assert as_measured == ["1", "1"], "Q and DQ are computed as written"


def two_targets() -> Index:
    contexts = {
        name: {"model": "a.onnx", "binaries": ["a.onnx"], "packing": "separate", "compatibility": f"v2:{name}"}
        for name in ("sm8650", "sm8750")
    }
    component = {"inputs": [], "outputs": [], "buckets": [{"axes": {}, "contexts": contexts, "qdq": None}]}
    targets = [
        {**runtime_releases.SM8650, "minimum_driver_sdk": "2.51"},
        {**runtime_releases.SM8650, "name": "sm8750"},
        {**runtime_releases.SM8650, "name": "sm8550"},
    ]
    return index(component, targets=targets)


@pytest.mark.parametrize(
    ("said", "device", "target"),
    [
        ({"v2:sm8650": OPTIMAL, "v2:sm8750": OPTIMAL}, NPU, "sm8650"),
        ({"v2:sm8650": "EP_UNSUPPORTED", "v2:sm8750": OPTIMAL}, NPU, "sm8750"),
        ({"v2:sm8650": USABLE, "v2:sm8750": OPTIMAL}, NPU, "sm8750"),
        ({"v2:sm8650": USABLE, "v2:sm8750": "EP_UNSUPPORTED"}, NPU, "sm8650"),
        ({"v2:sm8650": USABLE, "v2:sm8750": USABLE}, NPU, "sm8650"),
        ({"v2:sm8650": "EP_UNSUPPORTED", "v2:sm8750": "EP_NOT_APPLICABLE"}, CPU, None),
        ({"v2:sm8650": "RuntimeError: no", "v2:sm8750": "RuntimeError: no"}, CPU, None),
    ],
)
def test_the_target_is_the_one_that_the_provider_takes(said: dict[str, str], device: str, target: str | None) -> None:
    release = two_targets()
    found = fitting(release, release.targets, said.__getitem__)
    assert (found.device, found.target.name if found.target else None) == (device, target)
    assert found.fell_back == (target is None)
    if target is None:
        wrong = "no" if "no" in said["v2:sm8650"] else "for another chip, or for a newer driver"
        for name in (f"sm8650, driver 2.51 or newer: {wrong}", "sm8750: ", "sm8550: it has no context"):
            assert name in found.why.replace("RuntimeError: ", "")
        assert "driver" in found.remedy


ON_X86, ON_ARM64 = Host(None, cast("Any", "cpu"), "no NPU"), Host(None, None, "no NPU")
ON_A_CHIP, ALONE = Host(cast("Any", "npu"), None), Host(None, None, "no package", "install it")


@pytest.mark.parametrize(
    ("host", "asked", "found"),
    [
        (ALONE, {}, (CPU, "no package", "install it")),
        (ALONE, {"device": EMULATOR}, (CPU, "no package", "install it")),
        (ON_ARM64, {}, (CPU, "no NPU", "")),
        (ON_ARM64, {"device": EMULATOR}, (CPU, "QNN's emulator is for x86_64 hosts", "")),
        (ON_X86, {}, (CPU, "no NPU", "name a target, or give device='emulator', for QNN's emulator, which is slow")),
        (ON_X86, {"device": NPU}, (CPU, "no NPU", "")),
        (ON_X86, {"device": EMULATOR}, (EMULATOR, "it is the release's first, and none was named; no NPU", "")),
        (ON_X86, {"target": "sm8750"}, (EMULATOR, "the caller named it; no NPU", "")),
        (ON_A_CHIP, {}, (NPU, "the execution provider finds its contexts optimal: v2:sm8750", "")),
        (ON_A_CHIP, {"device": EMULATOR}, (CPU, "QNN's emulator is for x86_64 hosts", "")),
        (ON_A_CHIP, {"target": "sm8550"}, (CPU, "no target of the release fits this NPU (sm8550: it has no context)",
         "get a release for this chip, or update the NPU's driver")),
        (ON_A_CHIP, {"device": CPU}, (CPU, "the caller asked for the CPU", "")),
    ],
)  # fmt: skip
def test_the_device_is_what_the_host_has_and_the_caller_asks_for(
    monkeypatch: pytest.MonkeyPatch, host: Host, asked: dict[str, str], found: tuple[str, str, str]
) -> None:
    monkeypatch.setattr(provider, "host", lambda: host)
    monkeypatch.setattr(provider, "compatibility", lambda _, info: OPTIMAL if "8750" in info else "EP_UNSUPPORTED")
    made: Placement = place(two_targets(), asked.get("target"), asked.get("device"))
    assert (made.device, made.why, made.remedy) == found
    assert made.fell_back == (made.device == CPU and asked.get("device") != CPU)
    assert made.ep_device == {CPU: made.ep_device, NPU: "npu", EMULATOR: "cpu"}[made.device]


def test_it_is_vendored_under_any_name_and_imports_nothing_else(tiny: Path, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pipeline" / "qnn_release", tmp_path / "app" / "vendored" / "npu", ignore=ignored)
    (tmp_path / "app" / "vendored" / "__init__.py").write_text("")
    program = """
import sys
from vendored.npu import Release
assert "onnxruntime" not in sys.modules, "not until a session is made"
import numpy as np
with Release.open(sys.argv[1], device="cpu") as release:
    assert release.run("layers", {"x": np.ones((1, 3, 32), np.float32)})["y"].shape == (1, 3, 32)
assert not [name for name in sys.modules if name.split(".")[0] in ("pipeline", "onnx", "yaml", "doit")]
"""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-c", program, str(tiny)]
    subprocess.run(command, cwd=tmp_path / "app", env=environ, check=True)


@pytest.mark.slow
def test_the_benchmark_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.runtime", "20"], cwd=ROOT, capture_output=True, check=True
    )
    assert len([line for line in done.stdout.decode().splitlines() if line.startswith("3 inputs")]) == 6


def test_the_name_before_1_0_has_the_same_modules() -> None:
    code = (
        "from pipeline.runtime import Release as old; from pipeline.runtime.errors import ReleaseError as error;"
        "from pipeline import qnn_release as new; assert old is new.Release and error is new.ReleaseError;"
        "import sys; assert 'onnxruntime' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
