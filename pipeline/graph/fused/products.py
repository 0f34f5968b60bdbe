"""Products and convolutions that ONNX Runtime's optimizer fused with what stood before or behind them."""

from __future__ import annotations

from pipeline.graph.fused.activations import activated
from pipeline.graph.fused.unfused import Unfused

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def write_matmul(made: Unfused) -> None:
    """``alpha A B``, either of them transposed before: FusedMatMul and TransposeMatMul."""
    batch = made.whole("transBatchA") or made.whole("transBatchB")
    made.refuse_unless(not batch, "it transposes dims of a batch")
    left = _turned(made, made.given(0), made.whole("transA"))
    right = _turned(made, made.given(1), made.whole("transB"))
    product, alpha = made.op("MatMul", left, right), made.number("alpha", 1.0)
    made.give(0, product if alpha == 1 else made.op("Mul", product, made.scalar(alpha)))


def write_gemm(made: Unfused) -> None:
    """A Gemm and its activation: FusedGemm."""
    attributes = made.kept_attributes(("alpha", "beta", "transA", "transB"))
    product = made.op("Gemm", *made.node.input, **attributes)
    parameters = [
        made.number(f"activation_{name}", 0.0)
        for name in ("alpha", "beta", "gamma")
        if made.kept_attributes((f"activation_{name}",))
    ]
    made.give(0, activated(made, product, made.text("activation"), parameters))


def write_conv(made: Unfused) -> None:
    """A Conv, what is added to it, and its activation: FusedConv."""
    given = [made.given(position) for position in range(3)]
    result = made.op("Conv", *(given if given[2] else given[:2]), **made.kept_attributes(_CONV))
    if made.given(3):
        result = made.op("Add", result, made.given(3))
    made.give(0, activated(made, result, made.text("activation"), made.numbers("activation_params")))


def _turned(made: Unfused, name: str, turn: int) -> str:
    rank = len(made.dims(name))
    if not turn or rank < 2:
        return name
    return made.op("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])
