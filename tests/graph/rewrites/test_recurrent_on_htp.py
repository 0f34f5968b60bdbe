"""Small recurrent nets as torch exports them, through the default configuration down to the emulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db
from tests.support.recurrent import weights
from tests.support.stage_runs import Component

Arrays = dict[str, NDArray[Any]]
BUCKET, HIDDEN = 20, 24
RANDOM = np.random.default_rng(0)


def matrix(*shape: int) -> NDArray[np.float32]:
    return np.asarray(RANDOM.normal(0, 1 / np.sqrt(shape[0]), shape), np.float32)


def tagger() -> ModelProto:
    """Tokens to a score for each of six tags: an embedding, two layers of LSTM in both directions."""
    layers = weights("LSTM", HIDDEN, HIDDEN, 2, seed=1, suffix="1") | weights(
        "LSTM", 2 * HIDDEN, HIDDEN, 2, seed=2, suffix="2"
    )
    return graph(
        """tagger (int64[batch,n] ids) => (float[batch,n,6] scores) {
            e = Gather (words, ids)
            x = Transpose <perm = [1, 0, 2]> (e)
            a, ha, ca = LSTM <hidden_size = 24, direction = "bidirectional"> (x, W1, R1, B1)
            at = Transpose <perm = [0, 2, 1, 3]> (a)
            b0 = Reshape (at, joined)
            b, hb, cb = LSTM <hidden_size = 24, direction = "bidirectional"> (b0, W2, R2, B2)
            bt = Transpose <perm = [0, 2, 1, 3]> (b)
            c = Reshape (bt, joined)
            d = Transpose <perm = [1, 0, 2]> (c)
            m = MatMul (d, tags)
            scores = Add (m, bias)
        }""",
        {"words": RANDOM.normal(size=(50, HIDDEN)).astype(np.float32), **layers, "tags": matrix(2 * HIDDEN, 6),
         "bias": matrix(6), "joined": np.array([0, 0, -1])},
    )  # fmt: skip


def detector() -> ModelProto:
    """Frames and a state to a probability for each frame and the next state: a convolution, an LSTM."""
    return graph(
        """detector (float[batch,12,n] frames, float[1,batch,24] h, float[1,batch,24] c)
            => (float[batch,n,1] speech, float[1,batch,24] hn, float[1,batch,24] cn) {
            f0 = Conv <pads = [1, 0]> (frames, kernel)
            f = Relu (f0)
            x = Transpose <perm = [2, 0, 1]> (f)
            y, hn, cn = LSTM <hidden_size = 24> (x, W, R, B, , h, c)
            s = Squeeze (y, second)
            t = Transpose <perm = [1, 0, 2]> (s)
            m = MatMul (t, out)
            speech = Sigmoid (m)
        }""",
        {"kernel": matrix(24, 12, 2) * 1.5, **weights("LSTM", 24, HIDDEN, seed=3), "out": matrix(HIDDEN, 1) * 2,
         "second": np.array([1])},
    )  # fmt: skip


def speaker() -> ModelProto:
    """Frames to one vector: the last state of a GRU in both directions."""
    return graph(
        """speaker (float[batch,n,12] frames) => (float[batch,16] voice) {
            x = Transpose <perm = [1, 0, 2]> (frames)
            y, h = GRU <hidden_size = 24, direction = "bidirectional", linear_before_reset = 1> (x, W, R, B)
            t = Transpose <perm = [1, 0, 2]> (h)
            f = Flatten <axis = 1> (t)
            voice = Gemm (f, out, bias)
        }""",
        {**weights("GRU", 12, HIDDEN, 2, seed=4), "out": matrix(2 * HIDDEN, 16), "bias": matrix(16)},
    )


def frames(seed: int, length: int = BUCKET) -> NDArray[np.float32]:
    """float32 [1, length, 12], each frame much like the one before, as in speech."""
    random = np.random.default_rng(seed)
    steps = random.normal(size=(length, 12))
    for place in range(1, length):
        steps[place] = 0.85 * steps[place - 1] + 0.53 * steps[place]
    return np.asarray(np.tanh(steps) * np.linspace(0.5, 1.5, 12), np.float32)[None]


def detector_feeds(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    state = {name: np.tanh(random.normal(size=(1, 1, HIDDEN))).astype(np.float32) for name in "hc"}
    return {"frames": np.ascontiguousarray(frames(seed).transpose(0, 2, 1)), **state}


NETS: dict[str, tuple[Callable[[], ModelProto], Callable[[int], Arrays]]] = {
    "tagger": (tagger, lambda seed: {"ids": np.random.default_rng(seed).integers(0, 50, (1, BUCKET))}),
    "detector": (detector, detector_feeds),
    "speaker": (speaker, lambda seed: {"frames": frames(seed)}),
}


@pytest.mark.parametrize("name", NETS)
def test_a_net_is_right_in_one_partition(name: str, tmp_path: Path) -> None:
    build, feeds = NETS[name]
    component = Component(tmp_path / "net", build(), {"20": {"n": BUCKET}})
    samples = [feeds(seed) for seed in (100, 101)]
    truth = on_cpu(component.ingest, samples)
    assert min(sqnr_db(truth, on_cpu(component.rewrite["20"], samples), output) for output in truth[0]) > 60

    quantized = component.quantize("20", component.calibrate([feeds(seed) for seed in range(48)]))
    chip = on_chip(quantized, samples, tmp_path / "out")

    assert chip.context.partitions == 1
    assert not chip.cpu_ops
    assert min(sqnr_db(truth, chip.outputs, output) for output in truth[0]) > 25
