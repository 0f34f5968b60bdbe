"""Foretold against real CPU seconds of a sample on the emulator: `python -m tests.emulation_cost`.

Twenty random nets, each of one kind of layers, in float16 and as w8a16. Prints the table of docs/accuracy.md, and ends
with 1 where more than two of either are foretold wrong by more than half. CPU time of the emulator's process counts,
so other work on the machine does little to it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from pipeline.graph.accuracy.emulation.emulation_cost import sample_s
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.model import StageInput
from pipeline.qnn.compiling.compile import compile_context
from pipeline.qnn.running.emulate import run_each
from tests.support.fresh import fresh
from tests.support.graphs import encoder, graph
from tests.support.stage_runs import X_ELITE, Component

WITHIN, BUT = 1.5, 2
"""Foretold is at most so many times the real, or the real the foretold; but for so many nets of a format."""
_ROWS = 50
"""Rows of tables that are looked up by ids."""
_RUNS = 4
FORMATS = ("fp16", "w8a16")
Arrays = Mapping[str, NDArray[Any]]


def net(signature: str, body: str, weights: Mapping[str, tuple[int, ...]], **constants: Any) -> ModelProto:
    """A net with random `weights` by their shapes, and `constants`."""
    numbers = np.random.default_rng(0)
    made = {
        name: (numbers.normal(size=shape) / math.sqrt(math.prod(shape[1:]))).astype(np.float32)
        for name, shape in weights.items()
    }
    return graph(f"g {signature} {{{body}}}", {**made, **constants}, opset=18)


def nets() -> Iterator[tuple[str, ModelProto, Mapping[str, int]]]:
    """Each net by its kind, with the lengths of its axes."""
    yield "encoder, short", encoder(layers=2, width=128, heads=4), {"sequence": 64}
    yield "encoder, long", encoder(layers=1, width=64, heads=4), {"sequence": 256}
    yield (
        "convolutions, 3 x 3",
        net(
            "(float[1,32,56,56] x) => (float[1,64,28,28] y)",
            """a = Conv <pads = [1,1,1,1]> (x, w1, b1) ra = Relu (a)
            c = Conv <pads = [1,1,1,1]> (ra, w2, b1) s = Add (c, x) rs = Relu (s)
            y = Conv <pads = [1,1,1,1], strides = [2,2]> (rs, w3, b3)""",
            {"w1": (32, 32, 3, 3), "b1": (32,), "w2": (32, 32, 3, 3), "w3": (64, 32, 3, 3), "b3": (64,)},
        ),
        {},
    )
    yield (
        "depthwise",
        net(
            "(float[1,16,56,56] x) => (float[1,24,28,28] y)",
            """e = Conv (x, w1, b1) ce = Clip (e, zero, six)
            d = Conv <pads = [1,1,1,1], strides = [2,2], group = 64> (ce, w2, b1) cd = Clip (d, zero, six)
            p = Conv (cd, w3, b3) e2 = Conv (p, w4, b4) ce2 = Clip (e2, zero, six)
            d2 = Conv <pads = [2,2,2,2], group = 96> (ce2, w5, b4) cd2 = Clip (d2, zero, six)
            y = Conv (cd2, w6, b3)""",
            {"w1": (64, 16, 1, 1), "b1": (64,), "w2": (64, 1, 3, 3), "w3": (24, 64, 1, 1), "b3": (24,),
             "w4": (96, 24, 1, 1), "b4": (96,), "w5": (96, 1, 5, 5), "w6": (24, 96, 1, 1)},
            zero=np.float32(0), six=np.float32(6),
        ),
        {},
    )  # fmt: skip
    yield (
        "groups of channels",
        net(
            "(float[1,64,32,32] x) => (float[1,64,32,32] y)",
            """a = Conv (x, w1, b1) ra = Relu (a) g = Conv <pads = [1,1,1,1], group = 8> (ra, w2, b1) rg = Relu (g)
            c = Conv (rg, w3, b1) s = Add (c, x) y = Relu (s)""",
            {"w1": (64, 64, 1, 1), "b1": (64,), "w2": (64, 8, 3, 3), "w3": (64, 64, 1, 1)},
        ),
        {},
    )
    yield (
        "transposed convolutions",
        net(
            "(float[1,64,16,16] x) => (float[1,3,64,64] y)",
            """a = ConvTranspose <strides = [2,2], pads = [1,1,1,1]> (x, w1, b1) ra = LeakyRelu (a)
            c = ConvTranspose <strides = [2,2], pads = [1,1,1,1]> (ra, w2, b2) rc = LeakyRelu (c)
            z = Conv <pads = [1,1,1,1]> (rc, w3, b3) y = Tanh (z)""",
            {"w1": (64, 32, 4, 4), "b1": (32,), "w2": (32, 16, 4, 4), "b2": (16,), "w3": (3, 16, 3, 3), "b3": (3,)},
        ),
        {},
    )
    yield (
        "large planes",
        net(
            "(float[1,3,256,256] x) => (float[1,1,256,256] y)",
            """a = Conv <pads = [1,1,1,1]> (x, w1, b1) ra = Relu (a) c = Conv <pads = [1,1,1,1]> (ra, w2, b1)
            rc = Relu (c) z = Conv (rc, w3, b3) y = Sigmoid (z)""",
            {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "w3": (1, 8, 1, 1), "b3": (1,)},
        ),
        {},
    )
    yield (
        "pyramid with Resize",
        net(
            "(float[1,16,64,64] x) => (float[1,8,128,128] y)",
            """a = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w1, b1) ra = Relu (a)
            up = Resize <mode = "nearest", nearest_mode = "floor",
              coordinate_transformation_mode = "asymmetric"> (ra, , two)
            s = Add (up, x)
            big = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (s, , two)
            y = Conv (big, w2, b2)""",
            {"w1": (16, 16, 3, 3), "b1": (16,), "w2": (8, 16, 1, 1), "b2": (8,)},
            two=np.array([1, 1, 2, 2], np.float32),
        ),
        {},
    )
    yield (
        "U with pools",
        net(
            "(float[1,8,96,96] x) => (float[1,8,96,96] y)",
            """a = Conv <pads = [1,1,1,1]> (x, w1, b1) ra = Relu (a)
            m = MaxPool <kernel_shape = [2,2], strides = [2,2]> (ra) c = Conv <pads = [1,1,1,1]> (m, w2, b2)
            rc = Relu (c) v = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (rc)
            u = ConvTranspose <strides = [2,2]> (v, w3, b1) j = Concat <axis = 1> (ra, u)
            y = Conv <pads = [1,1,1,1]> (j, w4, b1)""",
            {"w1": (8, 8, 3, 3), "b1": (8,), "w2": (16, 8, 3, 3), "b2": (16,), "w3": (16, 8, 2, 2),
             "w4": (8, 16, 3, 3)},
        ),
        {},
    )  # fmt: skip
    yield (
        "gates of channels",
        net(
            "(float[1,32,48,48] x) => (float[1,32,48,48] y)",
            """a = Conv (x, w1, b1) h = HardSwish (a) g = GlobalAveragePool (h) r = Conv (g, w2, b2) rr = Relu (r)
            e = Conv (rr, w3, b1) s = HardSigmoid (e) m = Mul (h, s) c = Conv (m, w4, b1) sc = Sigmoid (c)
            sw = Mul (c, sc) y = Add (sw, x)""",
            {"w1": (32, 32, 1, 1), "b1": (32,), "w2": (8, 32, 1, 1), "b2": (8,), "w3": (32, 8, 1, 1),
             "w4": (32, 32, 1, 1)},
        ),
        {},
    )  # fmt: skip
    yield (
        "dilated, of sound",
        net(
            "(float[1,32,2048] x) => (float[1,32,2048] y)",
            """f = Conv <pads = [2,2], dilations = [2]> (x, w1, b1) tf = Tanh (f)
            g = Conv <pads = [2,2], dilations = [2]> (x, w2, b1) sg = Sigmoid (g) m = Mul (tf, sg)
            r = Conv (m, w3, b1) s = Add (r, x) k = Conv <pads = [8,8], dilations = [4]> (s, w4, b1) y = Relu (k)""",
            {"w1": (32, 32, 3), "b1": (32,), "w2": (32, 32, 3), "w3": (32, 32, 1), "w4": (32, 32, 5)},
        ),
        {},
    )
    yield (
        "LSTM",
        net(
            "(float[32,1,64] x) => (float[32,1,1,64] y)",
            "y, h, c = LSTM <hidden_size = 64> (x, w1, r1, b1)",
            {"w1": (1, 256, 64), "r1": (1, 256, 64), "b1": (1, 512)},
        ),
        {},
    )
    yield (
        "GRU, both ways",
        net(
            "(float[24,1,48] x) => (float[24,2,1,48] y)",
            'y, h = GRU <hidden_size = 48, direction = "bidirectional", linear_before_reset = 1> (x, w1, r1, b1)',
            {"w1": (2, 144, 48), "r1": (2, 144, 48), "b1": (2, 288)},
        ),
        {},
    )
    yield (
        "norms",
        net(
            "(float[1,256,192] x) => (float[1,256,192] y)",
            """n = LayerNormalization (x, g1, b1) m = MatMul (n, w1) s = Add (m, x) t = Transpose <perm = [0,2,1]> (s)
            i = InstanceNormalization (t, g1, b1) u = Transpose <perm = [0,2,1]> (i)
            q = Mul (u, u) mean = ReduceMean <keepdims = 1> (q, last) e = Add (mean, small) r = Sqrt (e)
            d = Div (u, r) y = Mul (d, g1)""",
            {"w1": (192, 192)},
            g1=np.linspace(0.5, 2, 192, dtype=np.float32), b1=np.linspace(-1, 1, 192, dtype=np.float32),
            last=np.array([-1]), small=np.float32(1e-3),
        ),
        {},
    )  # fmt: skip
    yield (
        "tables and Gemm",
        net(
            "(int64[1,512] ids) => (float[512,64] y)",
            """a = Gather (t1, ids) c = Gather (t2, ids) s = Add (a, c) f = Reshape (s, flat)
            h = Gemm <transB = 1> (f, w1, b1) r = Relu (h) y = Gemm <transB = 1> (r, w2, b2)""",
            {"t1": (_ROWS, 128), "t2": (_ROWS, 128), "w1": (256, 128), "b1": (256,), "w2": (64, 256), "b2": (64,)},
            flat=np.array([512, 128]),
        ),
        {},
    )
    yield (
        "elementwise",
        net(
            "(float[1,200000] x) => (float[1,200000] y)",
            """s = Sigmoid (x) a = Add (s, x) m = Mul (a, s) e = Exp (s) d = Div (m, e) t = Tanh (d) q = Sqrt (s)
            y = Sub (t, q)""",
            {},
        ),
        {},
    )
    yield (
        "Softmax and sums",
        net(
            "(float[1,8,128,512] x) => (float[1,8,128] y)",
            """p = Softmax <axis = -1> (x) m = Mul (p, x) s = ReduceSum <keepdims = 0> (m, last)
            k = ReduceMax <keepdims = 0> (x, last) y = Sub (s, k)""",
            {},
            last=np.array([-1]),
        ),
        {},
    )
    yield (
        "mixer",
        net(
            "(float[1,64,256] x) => (float[1,64,256] y)",
            """t = Transpose <perm = [0,2,1]> (x) a = MatMul (t, w1) ga = Gelu (a) c = MatMul (ga, w2)
            u = Transpose <perm = [0,2,1]> (c) s = Add (u, x) d = MatMul (s, w3) gd = Gelu (d) e = MatMul (gd, w4)
            y = Add (e, s)""".replace("Gelu", "Erf"),
            {"w1": (64, 128), "w2": (128, 64), "w3": (256, 512), "w4": (512, 256)},
        ),
        {},
    )
    yield (
        "spectrum",
        net(
            "(float[1,200,400] x) => (float[1,200,40] y)",
            """w = Mul (x, window) re = MatMul (w, w1) im = MatMul (w, w2) r2 = Mul (re, re) i2 = Mul (im, im)
            p = Add (r2, i2) m = MatMul (p, mel) f = Max (m, small) y = Log (f)""",
            {"w1": (400, 201), "w2": (400, 201)},
            window=np.hanning(400).astype(np.float32),
            mel=np.abs(np.random.default_rng(1).normal(size=(201, 40))).astype(np.float32),
            small=np.float32(1e-3),
        ),
        {},
    )
    yield (
        "dense blocks",
        net(
            "(float[1,32,40,40] x) => (float[1,16,20,20] y)",
            """n = BatchNormalization (x, g1, b1, g0, g1) rn = PRelu (n, slope) a = Conv <pads = [1,1,1,1]> (rn, w1, b2)
            j = Concat <axis = 1> (x, a) rj = Relu (j) c = Conv <pads = [1,1,1,1]> (rj, w2, b2)
            k = Concat <axis = 1> (j, c) rk = Relu (k) v = AveragePool <kernel_shape = [2,2], strides = [2,2]> (rk)
            y = Conv (v, w3, b2)""",
            {"w1": (16, 32, 3, 3), "b2": (16,), "w2": (16, 48, 3, 3), "w3": (16, 64, 1, 1), "slope": (32, 1, 1)},
            g0=np.zeros(32, np.float32), g1=np.ones(32, np.float32), b1=np.zeros(32, np.float32),
        ),
        {},
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """CPU seconds of a sample of a net in a format."""

    name: str
    form: str
    foretold_s: float
    real_s: float

    @property
    def is_within(self) -> bool:
        """Whether the one is near enough to the other."""
        return 1 / WITHIN <= self.foretold_s / self.real_s <= WITHIN


def seconds(folder: Path, context_model: str, feeds: list[Arrays]) -> float:
    """CPU seconds of this process for a sample, the first one, which has what is made once, left out."""
    spent, before = [], time.process_time()
    for _ in run_each(folder, context_model, X_ELITE, feeds):
        now = time.process_time()
        spent.append(now - before)
        before = now
    return min(spent[1:])


def feeds_of(model: ModelProto, axes: Mapping[str, int], count: int) -> list[Arrays]:
    """Random inputs: numbers around 0, or ids of rows."""
    found: list[Arrays] = []
    for number in range(count):
        numbers, feed = np.random.default_rng(number), dict[str, NDArray[Any]]()
        for value in model.graph.input:
            kind = value.type.tensor_type
            shape = [dim.dim_value or axes.get(dim.dim_param, 1) for dim in kind.shape.dim]
            if kind.elem_type == TensorProto.INT64:
                feed[value.name] = numbers.integers(1, _ROWS if value.name == "ids" else 2, shape)
            else:
                feed[value.name] = numbers.normal(size=shape).astype(np.float32)
        found.append(feed)
    return found


def rows(root: Path, chosen: Sequence[str]) -> Iterator[tuple[Row, ...]]:
    """Every net in every format, compiled and run."""
    for name, model, axes in nets():
        if chosen and not any(word in name for word in chosen):
            continue
        feeds = feeds_of(model, axes, _RUNS)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            component = Component(root / name.replace(" ", "-"), model, {"all": axes})
            quantized = component.quantize("all", component.calibrate(feeds))
        made = zip(FORMATS, (component.rewrite["all"], quantized), strict=True)
        yield tuple(_row(name, form, given, feeds, root / f"{name} {form}") for form, given in made)


def _row(name: str, form: str, given: StageInput, feeds: list[Arrays], out: Path) -> Row:
    out.mkdir()
    context = fresh(compile_context, given.folder / MODEL, "net", X_ELITE, out)
    real_s = fresh(seconds, out, context.context_model, feeds)
    return Row(name, form, sample_s(load_graph(given.folder / MODEL)), real_s)


def main() -> int:
    """1 if more than two nets of a format are foretold wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulation_cost", description=__doc__)
    parser.add_argument("--nets", nargs="+", metavar="WORD", default=(), help="those with one of these in their names")
    chosen = parser.parse_args()
    found: list[Row] = []
    print("| net | fp16, foretold | real | w8a16, foretold | real |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as root:
        for made in rows(Path(root), chosen.nets):
            found += made
            cells = " | ".join(f"{row.foretold_s:.2g} | {row.real_s:.2g}" for row in made)
            print(f"| {made[0].name} | {cells} |", flush=True)
    far = {form: [row.name for row in found if row.form == form and not row.is_within] for form in FORMATS}
    for form, names in far.items():
        print(f"{form}: {len(names)} further than {WITHIN} times: {', '.join(names) or 'none'}")
    return int(any(len(names) > BUT for names in far.values()))


if __name__ == "__main__":
    raise SystemExit(main())
