"""Fused operators of onnxruntime are written out in ONNX's own, and compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import ModelError
from pipeline.graph.files.inlining import rename
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.fused import FUSED
from tests.support.graphs import operators
from tests.support.sources import model, numbers, outputs, shaped

M = "com.microsoft"
X3 = "g (float[b,n,16] x) => (float[b,n,k] y)"
TABLE: dict[str, NDArray[np.generic]] = {
    "w16": numbers(16, 16) / 4, "w48": numbers(16, 48) / 4, "b16": numbers(16), "b48": numbers(48), "g": numbers(16),
    "kernel": numbers(4, 3, 3, 3) / 5, "lengths": np.array([4, 2], np.int32),
    "keep": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32),
    "late": np.array([[0, 0, 1, 1, 0], [0, 1, 1, 0, 0]], np.int32),
    "one": np.array([1]), "two": np.array([2]),
    "four": np.array([4]), "places": np.array([[0, 1, 2, 3, 4]] * 2),
    "cosines": np.cos(np.arange(9)[:, None] * np.array([1, 0.3])).astype(np.float32),
    "sines": np.sin(np.arange(9)[:, None] * np.array([1, 0.3])).astype(np.float32),
    "first": np.array([2]), "added": numbers(1, 4, 5, 5), "past": numbers(2, 2, 4, 3, 4),
    "past_k": numbers(2, 4, 3, 4), "past_v": numbers(2, 4, 3, 4), "words": numbers(30, 16), "table": numbers(9, 16),
    "kinds": numbers(2, 16), "segments": np.array([[0, 0, 1, 1, 1]] * 2, np.int32), "z": numbers(2, 4, 4, 4),
}  # fmt: skip
FORMS = {
    "Attention with lengths": f"{X3} {{ y = {M}.Attention <num_heads = 4> (x, w48, b48, lengths) }}",
    "Attention with a mask and scores": f"{X3} {{ y = {M}.Attention <num_heads = 4> (x, w48, b48, keep, , added) }}",
    "Attention that is causal and has a past": f"""g (float[b,n,16] x) => (float[b,n,k] y, float[i,j,h,m,s] p)
        {{ y, p = {M}.Attention <num_heads = 4, unidirectional = 1> (x, w48, b48, , past) }}""",
    "Attention that is causal with a mask": f"""{X3} {{
        y = {M}.Attention <num_heads = 4, unidirectional = 1> (x, w48, b48, late) }}""",
    "Attention with sizes of its own": f"""{X3} {{
        y = {M}.Attention <num_heads = 4, qkv_hidden_sizes = [12, 12, 24]> (x, w48, b48) }}""",
    "BiasGelu": f"{X3} {{ y = {M}.BiasGelu (x, b16) }}",
    "EmbedLayerNormalization": f"""g (int32[b,n] ids) => (float[b,n,16] y, int32[b] m) {{
        y, m = {M}.EmbedLayerNormalization <epsilon = 0.01> (ids, segments, words, table, kinds, g, b16, keep) }}""",
    "EmbedLayerNormalization that says no kind of mask": f"""g (int32[b,n] ids) => (float[b,n,16] y, int32[b] m) {{
        y, m = {M}.EmbedLayerNormalization <mask_index_type = 0> (ids, , words, table, , g, b16, keep) }}""",
    "FastGelu": f"{X3} {{ y = {M}.FastGelu (x, b16) }}",
    "FusedConv": f"""g (float[2,3,6,6] x) => (float[2,4,4,4] y) {{
        y = {M}.FusedConv <activation = "LeakyRelu", activation_params = [0.2]> (x, kernel) }}""",
    "FusedConv with a sum": f"""g (float[2,3,6,6] x) => (float[2,4,4,4] y) {{
        y = {M}.FusedConv <activation = "Relu"> (x, kernel, , z) }}""",
    "FusedGemm": f"""g (float[2,16] x) => (float[2,16] y) {{
        y = {M}.FusedGemm <transB = 1, activation = "LeakyRelu", activation_alpha = 0.3> (x, w16, b16) }}""",
    "FusedMatMul": f"{X3} {{ y = {M}.FusedMatMul <transB = 1, alpha = 0.25> (x, x) }}",
    "MultiHeadAttention": f"""{X3} {{ k = Relu (x)
        y = {M}.MultiHeadAttention <num_heads = 4, scale = 0.3> (x, k, x, b48, keep) }}""",
    "MultiHeadAttention that is causal over fewer keys": f"""{X3} {{ k = Slice (x, two, four, one)
        y = {M}.MultiHeadAttention <num_heads = 4, unidirectional = 1> (x, k, k) }}""",
    "MultiHeadAttention with a flag of 2": f"""{X3} {{
        y = {M}.MultiHeadAttention <num_heads = 4, unidirectional = 2> (x, x, x) }}""",
    "MultiHeadAttention with a past": f"""g (float[b,n,16] x) => (float[b,n,16] y, float[b,h,m,s] k, float[b,h,m,s] v)
        {{ y, k, v = {M}.MultiHeadAttention <num_heads = 4, unidirectional = 1> (x, x, x, , , , past_k, past_v) }}""",
    "QuickGelu": f"{X3} {{ y = {M}.QuickGelu <alpha = 1.5> (x) }}",
    "RotaryEmbedding": f"""{X3} {{
        y = {M}.RotaryEmbedding <num_heads = 4> (x, places, cosines, sines) }}""",
    "RotaryEmbedding from a position on": f"{X3} {{ y = {M}.RotaryEmbedding (x, first, cosines, sines) }}",
    "SkipLayerNormalization": f"""g (float[b,n,16] x) => (float[b,n,16] y, float[b,n,16] t) {{ r = Relu (x)
        y, , , t = {M}.SkipLayerNormalization <epsilon = 0.01> (x, r, g, b16, b16) }}""",
    "SkipSimplifiedLayerNormalization": f"""{X3} {{ r = Relu (x)
        y = {M}.SkipSimplifiedLayerNormalization <epsilon = 0.01> (x, r, g) }}""",
    "TransposeMatMul": f"{X3} {{ y = {M}.TransposeMatMul <transA = 1> (x, x) }}",
}  # fmt: skip


def test_every_operator_that_is_written_out_has_a_form_here() -> None:
    assert {form.split(" ")[0] for form in FORMS} == set(FUSED)


@pytest.mark.parametrize("form", FORMS)
def test_a_fused_operator_is_written_in_onnx(form: str, tmp_path: Path) -> None:
    text = FORMS[form]
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    source = model(text, {name: array for name, array in TABLE.items() if name in words})
    feeds: dict[str, NDArray[np.generic]] = {"x": numbers(2, 5, 16)}
    if "ids" in words:
        feeds = {"ids": np.arange(10, dtype=np.int32).reshape(2, 5)}
    elif "[2,3,6,6]" in text:
        feeds = {"x": numbers(2, 3, 6, 6)}
    elif "[2,16]" in text:
        feeds = {"x": numbers(2, 16)}

    static = shaped(tmp_path, source, b=2, n=5).folder / MODEL

    graph = load_graph(static).graph
    assert {node.op_type for node in graph.node if node.domain} <= {"Gelu"}, "which is fused for HTP again"
    wanted, made = outputs(source, feeds), outputs(static, feeds)
    assert [each.shape for each in made] == [each.shape for each in wanted]
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["float", "int64"])
@pytest.mark.parametrize(
    "numbers_given", ["offset = [1.5, -2.0, 0.0], scale = [0.5, 2.0, 4.0]", "offset = [1.0], scale = [0.25]"]
)
def test_a_scaler_of_scikit_learn_is_written_in_onnx(kind: str, numbers_given: str, tmp_path: Path) -> None:
    """As skl2onnx has it in front of every network whose pipeline has a StandardScaler."""
    source = model(
        f"g ({kind}[b,3] x) => (float[b,k] y) {{ s = ai.onnx.ml.Scaler <{numbers_given}> (x) y = Relu (s) }}"
    )
    feeds = {"x": (10 * numbers(4, 3)).astype(np.float32 if kind == "float" else np.int64)}

    static = shaped(tmp_path, source, b=4).folder / MODEL

    assert not [node.op_type for node in load_graph(static).graph.node if node.domain]
    np.testing.assert_allclose(outputs(static, feeds)[0], outputs(source, feeds)[0], rtol=1e-6)


def test_names_of_values_are_not_taken_twice(tmp_path: Path) -> None:
    """Of a node that is named like its output, and of values that are named as those that it becomes."""
    taken = ("y/1", "y/2", "y/3")
    source = model(
        f"g (float[b,n,16] x) => (float[b,n,16] y, {', '.join(f'float[b,n,16] v{n}' for n in range(3))}) {{"
        f" y = {M}.FastGelu (x) v0 = Neg (x) v1 = Exp (v0) v2 = Add (v0, v1) }}"
    )
    rename(source.graph, {f"v{number}": name for number, name in enumerate(taken)})
    source.graph.node[0].name = "y"
    for value, name in zip(source.graph.output[1:], taken, strict=True):
        value.name = name
    feeds: dict[str, NDArray[np.generic]] = {"x": numbers(2, 5, 16)}
    made = outputs(shaped(tmp_path, source, b=2, n=5).folder / MODEL, feeds)
    for one, other in zip(made, outputs(source, feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_names_are_the_same_in_every_bucket(tmp_path: Path) -> None:
    source = model(FORMS["MultiHeadAttention"].replace(", keep", ""), {"b48": TABLE["b48"]})
    taken = [load_graph(shaped(tmp_path / str(n), source, b=1, n=n).folder / MODEL).graph for n in (3, 7)]
    assert [node.output for node in taken[0].node] == [node.output for node in taken[1].node]


def test_other_operators_are_left_alone(tmp_path: Path) -> None:
    source = model(f"{X3} {{ a = {M}.Gelu (x) y = MatMul (a, w16) }}", {"w16": TABLE["w16"]})
    found = operators(load_graph(shaped(tmp_path, source, b=2, n=5).folder / MODEL))
    assert found == {"Gelu": 1, "MatMul": 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{X3} {{ y = {M}.Attention <num_heads = 4, do_rotary = 1> (x, w48, b48) }}", "by their positions"),
        (f"{X3} {{ y = {M}.FusedMatMul <transBatchA = 1> (x, x) }}", "transposes dims of a batch"),
        (f"{X3} {{ y = {M}.RotaryEmbedding <interleaved = 1> (x, first, cosines, sines) }}", "stand beside each other"),
        (f"{X3} {{ y, m = {M}.SkipLayerNormalization (x, x, g, b16) }}", "its mean or deviation is read"),
    ],
)
def test_uses_that_are_not_known_are_refused(text: str, why: str, tmp_path: Path) -> None:
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    source = model(text, {name: array for name, array in TABLE.items() if name in words})
    if "m =" in text:
        source.graph.output.add(name="m").type.tensor_type.elem_type = 1
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path, source, b=2, n=5)
    assert "can't be written out in ONNX's own operators" in caught.value.what
    assert why in str(caught.value.why)
    assert "'onnx/model.onnx'" in str(caught.value.remedy)
