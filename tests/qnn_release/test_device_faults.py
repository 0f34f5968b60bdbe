"""Devices that are lost while a release runs: faults are injected where a session of onnxruntime is called."""

from __future__ import annotations

import platform
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import EngineError, Fail

from pipeline.qnn_release import FallbackWarning, LoadError, Release, RunError, provider
from tests.support import runtime_releases, tiny_models
from tests.support.fresh import fresh
from tests.support.project import Project

LOST = "NPU crashed again after SSR recovery."


class Faulty:
    """A session that raises an error instead of a run whenever `fails` says so."""

    def __init__(self, session: Any, fails: Callable[[], Exception | None]) -> None:
        self._session, self._fails = session, fails

    def run(self, names: Sequence[str], feeds: Any) -> Any:
        if error := self._fails():
            raise error
        return self._session.run(names, feeds)


class Faults:
    """At most `count` lost devices, by chance in one of three runs, and never two in a row in one thread."""

    def __init__(self, count: int) -> None:
        self.left = count
        self._random, self._lock, self._mine = np.random.default_rng(7), threading.Lock(), threading.local()

    def __call__(self) -> Exception | None:
        with self._lock:
            lost = self.left > 0 and not getattr(self._mine, "lost", False) and self._random.random() < 1 / 3
            self.left -= lost
        self._mine.lost = lost
        return EngineError(LOST) if lost else None


def inject(patch: pytest.MonkeyPatch, maker: str, fails: Callable[[], Exception | None]) -> list[Faulty]:
    """Let `provider` make sessions that fail; returns those that it made."""
    make, made = getattr(provider, maker), []

    def faulty(*arguments: Any) -> Faulty:
        made.append(Faulty(make(*arguments), fails))
        return made[-1]

    patch.setattr(provider, maker, faulty)
    return made


def test_200_lost_devices_under_four_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runtime_releases.tiny(tmp_path)
    inputs = {length: tiny_models.sample(length, seed=length) for length in range(1, 17)}
    with Release.open(folder, device="cpu") as release:
        right = {length: release.run("layers", {"x": x})["y"] for length, x in inputs.items()}
    faults, wrong = Faults(200), []
    made = inject(monkeypatch, "cpu_session", faults)
    with Release.open(folder, device="cpu") as release:

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            while faults.left:
                length = int(random.integers(1, 17))
                outputs = release.run("layers", {"x": inputs[length]})
                if not np.array_equal(outputs["y"], right[length]):
                    wrong.append(length)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        report = release.report()
    assert wrong == []
    assert faults.left == 0
    assert sum(session.repeated for session in report.sessions) == 200
    assert 3 <= len(made) <= 202  # threads that lost one session together share the next
    assert "repeated as the device was lost" in str(report)


def test_a_second_loss_is_an_error_that_says_so_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter([EngineError(LOST), EngineError(LOST), None, Fail("a wrong kernel"), None])
    made = inject(monkeypatch, "cpu_session", lambda: next(errors))
    x = {"x": tiny_models.sample(3)}
    with Release.open(runtime_releases.tiny(tmp_path), device="cpu") as release:
        with pytest.raises(RunError, match="lost, and again on a new session: NPU crashed again"):
            release.run("layers", x)
        release.run("layers", x)
        with pytest.raises(RunError, match="a wrong kernel"):
            release.run("layers", x)
        release.run("layers", x)
        assert len(made) == 2  # only a lost device makes a session anew
        assert release.report().sessions[0].repeated == 1


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="QNN's emulator is for x86_64")
def test_a_context_that_is_lost_twice_goes_to_the_fallback_that_was_chosen(bert_built: Project, tmp_path: Path) -> None:
    shapes = {name: [1, "sequence"] for name in ("input_ids", "attention_mask", "token_type_ids")}
    bert = {**shapes, "last_hidden_state": [1, {"axis": "sequence"}, {"unknown": True}]}
    made = runtime_releases.from_artifacts(bert_built.root / "artifacts" / "bert", tmp_path / "release", bert)
    found = fresh(lose_contexts, made)
    assert found == {
        "once": ["QNNExecutionProvider", 1, True],
        "twice": ["CPUExecutionProvider", 1, True],
        "warned": True,
        "refused": True,
    }


def lose_contexts(folder: Path) -> dict[str, Any]:
    tokens = np.random.default_rng(3).integers(1, 60, (1, 9))

    def run(losses: int, fallback: Any) -> tuple[Any, Any]:
        errors = [EngineError(LOST)] * losses
        with pytest.MonkeyPatch.context() as patch:
            inject(patch, "qnn_session", lambda: errors.pop() if errors else None)
            with Release.open(folder, target="sm8650", device="emulator", fallback=fallback) as release:
                names = [each.name for each in release.components["encoder"].inputs]
                ones = np.ones_like(tokens)
                given = {"input_ids": tokens, "attention_mask": ones, "token_type_ids": np.zeros_like(tokens)}
                outputs = release.run("encoder", {name: given[name] for name in names})
                session = next(each for each in release.report().sessions if each.runs)
        (array,) = outputs.values()
        return array, session

    right, _ = run(0, "refuse")
    once, first = run(1, "refuse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        twice, second = run(2, "cpu")
    try:
        run(2, "refuse")
        refused = False
    except LoadError as error:
        refused = "failed again after its session was made anew" in error.why
    return {
        "once": [first.provider, first.repeated, bool(np.array_equal(once, right))],
        "twice": [second.provider, second.repeated, bool(twice.shape == right.shape)],
        "warned": any(issubclass(each.category, FallbackWarning) for each in caught),
        "refused": refused,
    }
