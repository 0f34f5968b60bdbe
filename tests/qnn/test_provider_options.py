"""Options by name: each is one that the EP knows, and those that change a context are read back from it."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnxruntime_qnn
import pytest

from pipeline.contracts.target import HtpTarget
from pipeline.qnn import provider_options
from pipeline.qnn.format.context_binary import read_binary
from tests.support.contexts import build
from tests.support.tiny_models import qdq_model


def test_the_ep_knows_every_option_and_none_that_is_said_to_be_elsewhere() -> None:
    library = Path(onnxruntime_qnn.get_library_path()).read_bytes()
    known = provider_options.COMPILE | provider_options.OURS.keys()
    # The compiler keeps some names of up to 20 bytes in instructions, cut into pieces, and no string of them.
    assert {name for name in known if name.encode()[:16] not in library} <= {"soc_model", "htp_arch", "vtcm_mb"}
    assert not {name for name in provider_options.ELSEWHERE if name.encode() in library}


@pytest.mark.slow
def test_optimization_and_priority_change_the_binary_and_the_first_is_read_back(tmp_path: Path) -> None:
    qdq = qdq_model(tmp_path)
    found = {}
    for name, options in {
        "plain": None,
        "less": ((provider_options.OPTIMIZATION, "1"),),
        "first": ((provider_options.PRIORITY, "high"),),
    }.items():
        build(qdq, tmp_path / name, HtpTarget(60, 73, 8, options))
        binary = tmp_path / name / "encoder_8_ctx_qnn.bin"
        found[binary.read_bytes()] = [graph.optimization_mode for graph in read_binary(binary).graphs]
        shutil.rmtree(tmp_path / name)
    assert [*found.values()] == [[3], [1], [3]]
