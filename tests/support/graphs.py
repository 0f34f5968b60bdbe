"""Small models for tests of graph work, written as ONNX text and run on onnxruntime's CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto, numpy_helper

from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import save_graph

Arrays = Mapping[str, NDArray[Any]]


SPECTRUM = """g (float[1,64,16] x) => (float[1,64,16] y) {
    a = MatMul (x, w)
    power = Mul (a, a)
    floored = Max (power, floor)
    y = Log (floored)
}"""
"""A logarithm of what scales with its input, `w` [16,16] and `floor` being constants: it hears how loud that is."""


def graph(text: str, constants: Mapping[str, ArrayLike] | None = None, *, opset: int = 17) -> ModelProto:
    """A model from ONNX text (https://onnx.ai/onnx/repo-docs/Syntax.html), with constants and every type filled in."""
    model: ModelProto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')
    for name, array in (constants or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    inferred: ModelProto = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    for number, node in enumerate(inferred.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    return inferred


def save(model: ModelProto, folder: Path) -> Path:
    """Write a model as every stage leaves it: large tensors in `weights.bin`. Returns the graph file."""
    folder.mkdir(parents=True, exist_ok=True)
    with BlobWriter(folder / "weights.bin") as blob:
        for tensor in model.graph.initializer:
            tensor.CopyFrom(blob.tensor(tensor.name, numpy_helper.to_array(tensor)))
    save_graph(model, folder / "model.onnx")
    return folder / "model.onnx"


def outputs(model: ModelProto | Path, feeds: Arrays) -> dict[str, NDArray[Any]]:
    """What a model computes; a model in memory must carry all its weights."""
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def operators(model: ModelProto) -> Counter[str]:
    """How often each operator occurs."""
    return Counter(node.op_type for node in model.graph.node)


def constant(model: ModelProto, name: str) -> NDArray[Any]:
    """The value of an initializer that is inside the graph file."""
    found = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    return numpy_helper.to_array(found)


def attention(*, filler: float = float(np.finfo(np.float32).min), width: int = 32) -> ModelProto:
    """A block of a transformer as exporters write it: dynamic batch and sequence, learned positions, the usual mask.

    ``input_ids``, ``attention_mask`` int64 [batch, sequence] -> ``hidden`` float32 [batch, sequence, width].
    """
    numbers = np.random.default_rng(0)

    def weight(*shape: int) -> NDArray[np.float32]:
        # Columns of very different size, as trained weights have them: a scale a column is then worth something.
        columns = np.geomspace(0.1, 3, shape[-1]) / np.sqrt(shape[0])
        return np.asarray(numbers.normal(size=shape) * columns, np.float32)

    text = """attention (int64[batch,sequence] input_ids, int64[batch,sequence] attention_mask)
        => (float[batch,sequence,width] hidden) {
        tokens = Gather (words, input_ids)
        shape = Shape (input_ids)
        length = Gather (shape, second)
        positions = Slice (places, zeroth, length, zeroth)
        embedded = Add (tokens, positions)
        x = LayerNormalization (embedded, gamma, beta)
        query = MatMul (x, wq)
        key = MatMul (x, wk)
        value = MatMul (x, wv)
        turned = Transpose <perm = [0, 2, 1]> (key)
        scores = MatMul (query, turned)
        scaled = Div (scores, root)
        keep = Cast <to = 9> (attention_mask)
        wide = Unsqueeze (keep, second)
        masked = Where (wide, scaled, filler)
        weights = Softmax (masked)
        context = MatMul (weights, value)
        h = Add (x, context)
        up = MatMul (h, w1)
        u = Add (up, b1)
        d = Div (u, sqrt2)
        e = Erf (d)
        a = Add (e, one)
        m = Mul (u, a)
        g = Mul (m, half)
        down = MatMul (g, w2)
        hidden = Add (h, down)
    }""".replace("width", str(width))
    return graph(
        text,
        {
            "words": weight(100, width), "places": weight(64, width) * np.linspace(1, 4, 64, dtype=np.float32)[:, None],
            "gamma": np.linspace(0.5, 1.5, width, dtype=np.float32), "beta": weight(width),
            "wq": weight(width, width), "wk": weight(width, width), "wv": weight(width, width),
            "w1": weight(width, 2 * width), "b1": weight(2 * width), "w2": weight(2 * width, width),
            "zeroth": np.array([0]), "second": np.array([1]), "filler": np.float32(filler),
            "root": np.float32(np.sqrt(width)), "sqrt2": np.float32(np.sqrt(2)),
            "one": np.float32(1), "half": np.float32(0.5),
        },
    )  # fmt: skip


def sentence(length: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Inputs of :func:`attention`, unpadded."""
    ids = np.random.default_rng(seed).integers(1, 100, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones((1, length), np.int64)}


def encoder(layers: int = 4, width: int = 32, heads: int = 2) -> ModelProto:
    """A small encoder as exporters write BERT: embeddings, attention of several heads, an erf between products, norms.

    ``input_ids``, ``attention_mask`` int64 [batch, sequence] -> ``hidden`` float32 [batch, sequence, width].
    """
    numbers = np.random.default_rng(0)
    constants: dict[str, ArrayLike] = {
        "second": np.array([1]), "seen": np.array([1, 2]), "filler": np.float32(-1e4), "one": np.float32(1),
        "half": np.float32(0.5), "sqrt2": np.float32(np.sqrt(2)), "root": np.float32(np.sqrt(width / heads)),
        "apart": np.array([0, 0, heads, width // heads]), "joined": np.array([0, 0, width]),
    }  # fmt: skip

    def weight(name: str, *shape: int, times: float = 1.0) -> None:
        columns = times * np.geomspace(0.3, 3, shape[-1]) / np.sqrt(shape[0])
        constants[name] = np.asarray(numbers.normal(size=shape) * columns, np.float32)

    def norm(name: str) -> None:
        constants[f"gamma{name}"] = np.asarray(numbers.uniform(0.3, 2, width), np.float32)
        constants[f"beta{name}"] = np.asarray(numbers.normal(0, 0.3, width), np.float32)

    weight("words", 100, width)
    norm("0")
    lines = [
        "tokens = Gather (words, input_ids)",
        "keep = Cast <to = 9> (attention_mask)",
        "wide = Unsqueeze (keep, seen)",
        "x0 = LayerNormalization (tokens, gamma0, beta0)",
    ]
    for n in range(layers):
        for name in ("wq", "wk", "wv", "wo"):
            weight(
                f"{name}{n}", width, width, times=0.5
            )  # as trained: a random softmax would have one weight that counts
            lines.append(f"{name}x{n} = MatMul ({f'x{n}' if name != 'wo' else f'c{n}'}, {name}{n})")
        weight(f"up{n}", width, 2 * width, times=0.5)
        weight(f"down{n}", 2 * width, width, times=0.5)
        norm(f"a{n}")
        norm(f"{n + 1}")
        out = lines.pop()
        for name, order in (("wq", "0, 2, 1, 3"), ("wk", "0, 2, 3, 1"), ("wv", "0, 2, 1, 3")):
            lines.append(f"{name}r{n} = Reshape ({name}x{n}, apart)")
            lines.append(f"{name}t{n} = Transpose <perm = [{order}]> ({name}r{n})")
        lines += [
            f"s{n} = MatMul (wqt{n}, wkt{n})", f"d{n} = Div (s{n}, root)", f"m{n} = Where (wide, d{n}, filler)",
            f"p{n} = Softmax (m{n})", f"o{n} = MatMul (p{n}, wvt{n})", f"t{n} = Transpose <perm = [0, 2, 1, 3]> (o{n})",
            f"c{n} = Reshape (t{n}, joined)", out, f"ra{n} = Add (x{n}, wox{n})",
            f"a{n} = LayerNormalization (ra{n}, gammaa{n}, betaa{n})", f"u{n} = MatMul (a{n}, up{n})",
            f"q{n} = Div (u{n}, sqrt2)", f"e{n} = Erf (q{n})", f"f{n} = Add (e{n}, one)", f"g{n} = Mul (u{n}, f{n})",
            f"h{n} = Mul (g{n}, half)", f"w{n} = MatMul (h{n}, down{n})", f"rb{n} = Add (a{n}, w{n})",
            f"x{n + 1} = LayerNormalization (rb{n}, gamma{n + 1}, beta{n + 1})",
        ]  # fmt: skip
    lines.append(f"hidden = Identity (x{layers})")
    body = "\n        ".join(lines)
    return graph(
        f"""encoder (int64[batch,sequence] input_ids, int64[batch,sequence] attention_mask)
        => (float[batch,sequence,{width}] hidden) {{
        {body}
    }}""",
        constants,
    )


def convolutions() -> ModelProto:
    """Operators that take their constants in one type only, or along another axis than one would think."""
    numbers = np.random.default_rng(0)

    def weight(*shape: int) -> NDArray[np.float32]:
        return np.asarray(numbers.normal(size=shape) * 0.4, np.float32)

    return graph(
        """g (float[1,8,frames] x) => (float[1,16,out] y) {
            bent = PRelu (x, slope)
            deep = Conv <group = 8, pads = [1, 1]> (bent, w0, b0)
            wide = Conv (deep, w1, b1)
            normed = BatchNormalization (wide, gamma, beta, mean, variance)
            rolled = Tanh (normed)
            y = ConvTranspose <strides = [2], group = 2> (rolled, w2, b2)
        }""",
        {
            "slope": weight(8, 1), "w0": weight(8, 1, 3), "b0": weight(8), "w1": weight(16, 8, 1), "b1": weight(16),
            # With these, QNN's own arithmetic on a BatchNormalization loses the last channel.
            "gamma": np.ones(16, np.float32), "beta": np.linspace(-1, 1, 16, dtype=np.float32),
            "mean": np.zeros(16, np.float32), "variance": np.ones(16, np.float32),
            "w2": weight(16, 8, 2), "b2": weight(16),
        },
    )  # fmt: skip
