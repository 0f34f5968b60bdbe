"""The table of known failures, against texts as the libraries write them."""

from __future__ import annotations

import re

import onnxruntime_qnn
import pytest

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.qnn import session
from pipeline.qnn.failures import FAILURES, find


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("libc++.so.1: cannot open shared object file: No such file or directory", "LLVM C++ runtime"),
        ("Failed to load libQnnHtp.so: libatomic.so.1: cannot open shared object file", "libatomic is missing"),
        ("The requested API version [28] is not available, only API versions [1, 24]", "onnxruntime is older"),
        ("Specified config SOC, ignoring on real target", "the host's own SoC"),
        ("Failed to create device. Error: QNN_DEVICE_ERROR_INVALID_CONFIG: Invalid config", "no SoC with this id"),
        ("Unrecognized soc_model 'FOO'. Expected a numeric ID", "no SoC with this id"),
        ("QNN_BACKEND_ERROR_CANNOT_INITIALIZE", "can't start on this host"),
        ("MatMul 'm': Cannot get shape", "dims that are not fixed"),
        ("Requires 0x2400000 bytes of TCM, which is greater than the TCM size of 0x800000!", "more fast memory"),
        ("Error: QNN_COMMON_ERROR_MEM_ALLOC: Memory allocation related error., Code: 1002", "more memory"),
        ("Failed to finalize graph (id: 1) with err 1002", "more memory"),
        ("Finalize Graph for Idx = 0 failed with error = 1002", "more memory"),
        ("QNN.backendValidateOpConfig() failed for node `c` of type `Conv2d` with error code 3110", "data types"),
        ("QnnBackend_validateOpConfig failed 3110", "data types"),
        ("Could not load: Status Code: 5000", "another QNN SDK"),
        ("Could not create context from binary for context index = 0 : err 5000", "another QNN SDK"),
        ("QNN graph execute error. Error code: 6031", "can't run"),
        ("QNN.graphAddNode() failed for node `r` of type `Relu` with error code 6007", "first accepted"),
        ("EP_FAIL : Failed to write context cache file.", "the disk is full"),
        ("EP_FAIL : Failed to compose Qnn graph.", "first accepted"),
        ("Failed to load from EpContext model. Failed to get context binary info.", "cut short or damaged"),
        ("The file path in ep_cache_context does not exist or is not accessible.", "may have been renamed"),
    ],
)
def test_a_known_text_has_a_cause(text: str, cause: str) -> None:
    failure = find(f"first line\n{text}\nlast line")
    assert failure is not None
    assert cause in failure.cause
    assert failure.remedy


@pytest.mark.parametrize("text", ["", "all is well", "1002 nodes compiled", "took 5000 ms", "node_3110 was fused"])
def test_other_texts_have_none(text: str) -> None:
    assert find(text) is None


def test_patterns_are_valid_and_sources_are_links() -> None:
    for failure in FAILURES:
        re.compile(failure.pattern)
        assert failure.source.startswith("https://") or not failure.source


def test_a_library_that_cannot_be_loaded_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "EP", "NoSuchProvider")
    monkeypatch.setattr(onnxruntime_qnn, "get_library_path", lambda: "no_such_library.so")
    with pytest.raises(CompileError) as caught:
        session.session_options(HtpTarget(60, 73))
    assert caught.value.what == "onnxruntime can't load the QNN execution provider"
    assert "no_such_library.so" in caught.value.why
    assert caught.value.remedy == "reinstall it: uv sync --reinstall-package onnxruntime-qnn"
