"""Operators of ONNX in the forms that each opset has: attributes that became inputs, and defaults that changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.fuzz.forms.graphs import Form, Graph

STANDARD_FORMS: dict[str, tuple[int, int, Form]] = {}
"""Forms by name, with the first and the last opset that has them."""

_EVER = 1000


def _form(first: int = 7, last: int = _EVER) -> Callable[[Form], Form]:
    def add(form: Form) -> Form:
        STANDARD_FORMS[form.__name__.strip("_")] = (first, last, form)
        return form

    return add


@_form()
def _softmax(g: Graph) -> None:
    shape = g.shape()
    kind = g.random.choice(("Softmax", "LogSoftmax", "Hardmax"))
    g.give(g.op(kind, g.feed(g.numbers(*shape)), **g.some(axis=g.axis(len(shape)))))


@_form()
def _reduction(g: Graph) -> None:
    shape = g.shape()
    kinds = ("Max", "Mean", "Min", "Prod", "Sum", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    kind = g.random.choice([f"Reduce{kind}" for kind in kinds])
    x = g.feed(np.abs(g.numbers(*shape)) + np.float32(0.1))
    axes = g.axes(len(shape)) if g.maybe(0.8) else None
    kept = g.some(keepdims=g.random.randint(0, 1))
    if g.opset >= (13 if kind == "ReduceSum" else 18):
        kept |= g.some(noop_with_empty_axes=g.random.randint(0, 1))
        g.give(g.op(kind, x, g.integers(*axes) if axes is not None else "", **kept))
    else:
        g.give(g.op(kind, x, axes=axes, **kept))


@_form()
def _squeeze(g: Graph) -> None:
    shape = [1, *g.shape(1, 2), 1]
    axes = g.random.choice(([0], [0, len(shape) - 1], [len(shape) - 1], None))
    x = g.feed(g.numbers(*shape))
    if g.opset >= 13:
        g.give(g.op("Squeeze", x, g.integers(*axes) if axes else ""))
    else:
        g.give(g.op("Squeeze", x, axes=axes))


@_form()
def _unsqueeze(g: Graph) -> None:
    shape = g.shape(1, 2)
    axes = g.random.choice(([0], [1, 0], [len(shape)], [0, 2]))
    if g.opset >= 11 and g.maybe(0.3):
        axes = [axis - len(shape) - len(axes) for axis in axes]
    x = g.feed(g.numbers(*shape))
    made = g.op("Unsqueeze", x, g.integers(*axes)) if g.opset >= 13 else g.op("Unsqueeze", x, axes=axes)
    g.give(made)


@_form()
def _clip(g: Graph) -> None:
    x = g.feed(4 * g.numbers(*g.shape()))
    low, high = -g.rng.random(), g.rng.random()
    if g.opset < 11:
        g.give(g.op("Clip", x, **g.some(min=low, max=high)))
    else:
        bounds = [g.either(np.float32(each)) if g.maybe(0.7) else "" for each in (low, high)]
        g.give(g.op("Clip", x, *bounds))


@_form()
def _pad(g: Graph) -> None:
    shape = g.shape(2, 4)
    modes = ["constant", "reflect", "edge"] + ["wrap"] * (g.opset >= 19)
    mode, x = g.random.choice(modes), g.feed(g.numbers(*shape))
    if g.opset < 11:
        pads = [g.random.randint(-1 if mode == "constant" else 0, 1) for _ in range(2 * len(shape))]
        g.give(g.op("Pad", x, pads=pads, **g.some(mode=mode, value=1.5)))
        return
    axes = g.axes(len(shape)) if g.opset >= 18 and g.maybe() else None
    pads = [g.random.randint(0, 1) for _ in range(2 * len(axes or shape))]
    given = [g.integers(*pads), g.constant(np.float32(2.5)) if g.maybe() else ""]
    g.give(g.op("Pad", x, *given, *([g.integers(*axes)] if axes else []), **g.some(mode=mode)))


@_form()
def _slice(g: Graph) -> None:
    shape = g.shape(2, 4)
    axes = g.axes(len(shape))
    starts = [g.random.choice((0, 1, -2, -9)) for _ in axes]
    ends = [g.random.choice((2, -1, 9, 2**31)) for _ in axes]
    whole = not g.maybe(0.7)
    if whole:
        axes, starts, ends = [*range(len(starts))], starts, ends
    x = g.feed(g.numbers(*shape))
    if g.opset < 10:
        g.give(g.op("Slice", x, starts=starts, ends=ends, axes=None if whole else axes))
        return
    steps = [g.random.choice((1, 1, 2)) for _ in axes]
    if g.maybe(0.2):
        starts, ends, steps = [-1] * len(axes), [-9] * len(axes), [-1] * len(axes)
    given = [g.integers(*starts), g.integers(*ends), "" if whole else g.integers(*axes)]
    g.give(g.op("Slice", x, *given, g.integers(*steps) if g.maybe() or steps[0] < 0 else ""))


@_form()
def _topk(g: Graph) -> None:
    shape = g.shape()
    axis = g.axis(len(shape)) if g.maybe(0.7) else None
    x = g.feed(g.numbers(*shape))
    more = g.some(largest=0, sorted=1) if g.opset >= 11 else {}
    if g.opset < 10:
        g.give(*g.op("TopK", x, outputs=2, k=2, axis=axis))
    else:
        g.give(*g.op("TopK", x, g.integers(2), outputs=2, axis=axis, **more))


@_form()
def _split(g: Graph) -> None:
    rest = g.shape(1, 2)
    axis = g.random.randint(0, len(rest))
    shape = [*rest[:axis], 6, *rest[axis:]]
    x, sizes = g.feed(g.numbers(*shape)), g.random.choice(([1, 5], [2, 2, 2], [3, 1, 2]))
    attributes: dict[str, Any] = {"axis": axis} if axis or g.maybe() else {}
    if g.opset >= 18 and g.maybe():
        count = g.random.choice((2, 3, 4))
        g.give(*g.op("Split", x, outputs=count, num_outputs=count, **attributes))
    elif g.opset < 18 and g.maybe(0.3):
        g.give(*g.op("Split", x, outputs=3, **attributes))
    elif g.opset >= 13:
        g.give(*g.op("Split", x, g.integers(*sizes), outputs=len(sizes), **attributes))
    else:
        g.give(*g.op("Split", x, outputs=len(sizes), split=sizes, **attributes))


@_form(7, 9)
def _upsample(g: Graph) -> None:
    x = g.feed(g.numbers(1, 2, *g.shape(2, 2)))
    scales = [1.0, 1.0, g.random.choice((1.0, 2.0, 1.5, 2.3)), g.random.choice((1.0, 3.0, 1.5))]
    mode = g.some(mode=g.random.choice(("nearest", "linear")))
    if g.opset < 9:
        g.give(g.op("Upsample", x, scales=scales, **mode))
    else:
        g.give(g.op("Upsample", x, g.constant(np.array(scales, np.float32)), **mode))


@_form(10)
def _resize(g: Graph) -> None:
    dims = [g.random.randint(2, 6) for _ in range(2)]
    x = g.feed(g.numbers(1, 2, *dims))
    scales = [1.0, 1.0, *(g.random.choice((0.5, 0.7, 1.0, 1.5, 2.0, 2.3, 3.0)) for _ in dims)]
    mode = g.random.choice(["nearest", "linear"] + ["cubic"] * (g.opset >= 11))
    if g.opset == 10:
        g.give(g.op("Resize", x, g.constant(np.array(scales, np.float32)), **g.some(mode=mode)))
        return
    where = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
    attributes = g.some(
        mode=mode,
        coordinate_transformation_mode=g.random.choice(where + ["half_pixel_symmetric"] * (g.opset >= 19)),
        nearest_mode=g.random.choice(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
        cubic_coeff_a=-0.5,
        exclude_outside=1,
        extrapolation_value=1.5,
        **({"antialias": 1} if g.opset >= 18 else {}),
    )
    axes = [2, 3] if g.opset >= 18 and g.maybe(0.3) else None
    first = 2 if axes else 0
    roi = ""
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize" or g.opset == 11:
        roi = g.constant(np.array([0, 0, 0.1, 0.2][first:] + [1, 1, 0.9, 0.8][first:], np.float32))
    if g.maybe():
        if axes and g.maybe():
            attributes["keep_aspect_ratio_policy"] = g.random.choice(("not_larger", "not_smaller", "stretch"))
        sizes = [1, 2, *(g.random.randint(1, 9) for _ in dims)][first:]
        empty = g.constant(np.zeros(0, np.float32)) if g.opset < 13 else ""
        g.give(g.op("Resize", x, roi, empty, g.integers(*sizes), axes=axes, **attributes))
    else:
        g.give(g.op("Resize", x, roi, g.constant(np.array(scales[first:], np.float32)), axes=axes, **attributes))


@_form()
def _batch_norm(g: Graph) -> None:
    shape = [2, 3, *g.shape(1, 2)]
    given = [g.either(each) for each in (g.numbers(3), g.numbers(3), g.numbers(3), np.abs(g.numbers(3)))]
    attributes = g.some(epsilon=0.1, momentum=0.5)
    if g.opset < 9:
        attributes |= g.some(spatial=1)
    if g.opset >= 14:
        attributes |= g.some(training_mode=0)
    g.give(g.op("BatchNormalization", g.feed(g.numbers(*shape)), *given, **attributes))


@_form()
def _norm(g: Graph) -> None:
    x = g.feed(g.numbers(2, 4, *g.shape(1, 2)))
    scale, bias = (g.either(g.numbers(4)) for _ in range(2))
    kinds = ["InstanceNormalization", "LRN", "LpNormalization", "MeanVarianceNormalization"]
    kinds += ["GroupNormalization"] * (g.opset >= 18)
    match g.random.choice(kinds):
        case "InstanceNormalization":
            g.give(g.op("InstanceNormalization", x, scale, bias, **g.some(epsilon=0.1)))
        case "LRN":
            g.give(g.op("LRN", x, size=g.random.choice((2, 3)), **g.some(alpha=0.3, beta=0.5, bias=2.0)))
        case "LpNormalization":
            g.give(g.op("LpNormalization", x, **g.some(axis=1, p=1)))
        case "GroupNormalization":
            if g.opset < 21:
                scale, bias = (g.either(g.numbers(2)) for _ in range(2))
            g.give(g.op("GroupNormalization", x, scale, bias, num_groups=2, **g.some(epsilon=0.1)))
        case "MeanVarianceNormalization":
            if g.opset >= 9:
                g.give(g.op("MeanVarianceNormalization", g.feed(g.numbers(2, 3, 4, 5)), **g.some(axes=[0, 2])))
            else:
                g.give(g.op("Relu", x))


@_form(17)
def _layer_norm(g: Graph) -> None:
    shape = g.shape(2, 4)
    axis = g.axis(len(shape))
    x, rest = g.feed(g.numbers(*shape)), shape[axis:]
    scale = g.either(g.numbers(*rest))
    if g.opset >= 23 and g.maybe():
        g.give(g.op("RMSNormalization", x, scale, axis=axis, **g.some(epsilon=0.1)))
        return
    bias = g.either(g.numbers(*rest)) if g.maybe() else ""
    g.give(g.op("LayerNormalization", x, scale, bias, axis=axis, **g.some(epsilon=0.1)))


@_form()
def _dropout(g: Graph) -> None:
    x = g.feed(g.numbers(*g.shape()))
    given: list[str] = []
    attributes: dict[str, Any] = {}
    if g.opset < 12:
        attributes = g.some(ratio=0.3)
    elif g.maybe():
        given = [g.constant(np.float32(0.3)) if g.maybe() else "", g.constant(np.array(False)) if g.maybe() else ""]
    if g.maybe(0.3) and g.opset >= 10:
        g.give(*g.op("Dropout", x, *given, outputs=2, **attributes))
    else:
        g.give(g.op("Dropout", x, *given, **attributes))


@_form()
def _gemm(g: Graph) -> None:
    turns = g.some(transA=1, transB=1)
    a, b = g.numbers(3, 4), g.numbers(4, 5)
    c = g.numbers(*g.random.choice(((5,), (1, 5), (3, 1), (3, 5), ())))
    given = [g.feed(a.T if "transA" in turns else a), g.either(b.T if "transB" in turns else b)]
    if g.opset < 11 or g.maybe(0.7):
        given.append(g.either(c))
    g.give(g.op("Gemm", *given, **turns, **g.some(alpha=0.5, beta=2.0)))


@_form()
def _conv(g: Graph) -> None:
    spatial = g.random.choice((1, 2))
    group = g.random.choice((1, 2))
    kernel = [g.random.choice((1, 2, 3)) for _ in range(spatial)]
    attributes = g.some(dilations=[2, 1][:spatial], strides=[2, 1][:spatial], group=group, kernel_shape=kernel)
    group = attributes.get("group", 1)
    if g.maybe():
        attributes |= g.random.choice(
            ({"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"auto_pad": "VALID"}, {"pads": [1, 0, 2, 1]})
        )
        if "pads" in attributes:
            attributes["pads"] = [1, 2] if spatial == 1 else [1, 0, 2, 1]
    x = g.feed(g.numbers(1, 4, *[g.random.randint(6, 8) for _ in range(spatial)]))
    if g.maybe():
        given = [g.either(g.numbers(6, 4 // group, *kernel)), g.either(g.numbers(6)) if g.maybe() else ""]
        g.give(g.op("Conv", x, *given, **attributes))
        return
    attributes |= g.some(output_padding=[1, 0][:spatial]) if "strides" in attributes else {}
    if g.maybe(0.2) and "auto_pad" not in attributes and "pads" not in attributes:
        attributes["output_shape"] = [17, 12][:spatial]
    given = [g.either(g.numbers(4, 6 // group, *kernel)), g.either(g.numbers(6)) if g.maybe() else ""]
    g.give(g.op("ConvTranspose", x, *given, **attributes))


@_form()
def _pool(g: Graph) -> None:
    x = g.feed(g.numbers(1, 2, g.random.randint(5, 8), g.random.randint(5, 8)))
    kind = g.random.choice(("AveragePool", "MaxPool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"))
    if kind.startswith("Global"):
        g.give(g.op(kind, x, **(g.some(p=3) if kind == "GlobalLpPool" else {})))
        return
    attributes = g.some(strides=[2, 1], pads=[1, 0, 1, 1])
    if g.maybe(0.3):
        attributes.pop("pads", None)
        attributes["auto_pad"] = g.random.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    if g.opset >= {"AveragePool": 10, "MaxPool": 10, "LpPool": 18}[kind]:
        attributes |= g.some(ceil_mode=1)
    if g.opset >= {"AveragePool": 19, "MaxPool": 10, "LpPool": 18}[kind]:
        attributes |= g.some(dilations=[2, 1])
    if kind == "AveragePool":
        attributes |= g.some(count_include_pad=1)
    if kind == "LpPool":
        attributes |= g.some(p=3)
    if kind == "MaxPool" and g.maybe(0.3):
        attributes |= g.some(storage_order=1)
        g.give(*g.op(kind, x, outputs=2, kernel_shape=[2, 3], **attributes))
        return
    g.give(g.op(kind, x, kernel_shape=[2, 3], **attributes))


@_form()
def _gather(g: Graph) -> None:
    shape = g.shape(2, 3)
    axis = g.axis(len(shape)) if g.maybe(0.8) else None
    size = shape[axis or 0]
    least = -size if g.opset >= 11 else 0
    places = g.rng.integers(least, size, g.shape(1, 2))
    x = g.either(g.numbers(*shape))
    if g.opset >= 11 and g.maybe(0.4):
        full = [*shape]
        full[axis or 0] = 2
        places = g.rng.integers(least, size, full)
        g.give(g.op("GatherElements", x, g.feed(places), axis=axis))
    elif g.opset >= 11 and g.maybe(0.4):
        batch = g.random.randint(0, 1) if g.opset >= 12 else 0
        rows = g.rng.integers(0, 2, (*([shape[0]] if batch else []), 3, 1))
        g.give(g.op("GatherND", x, g.feed(rows), batch_dims=batch or None))
    else:
        kind = g.random.choice((np.int64, np.int32))
        g.give(g.op("Gather", x, g.either(places.astype(kind)), axis=axis))


@_form(9)
def _scatter(g: Graph) -> None:
    x = g.feed(g.numbers(4, 3))
    if g.opset < 11:
        places = np.array([[1, 2, 0], [0, 1, 2]])
        g.give(g.op("Scatter", x, g.either(places), g.either(g.numbers(2, 3)), **g.some(axis=0)))
        return
    reductions = ["none"] + ["add", "mul"] * (g.opset >= 16) + ["min", "max"] * (g.opset >= 18)
    more = g.some(reduction=g.random.choice(reductions)) if g.opset >= 16 else {}
    if g.maybe():
        axis = g.random.choice((0, 1, -1))
        places = np.array([[1, 2, 0], [0, -1, 2]])
        g.give(g.op("ScatterElements", x, g.either(places), g.either(g.numbers(2, 3)), axis=axis, **more))
    else:
        g.give(g.op("ScatterND", x, g.either(np.array([[1], [3]])), g.either(g.numbers(2, 3)), **more))


@_form()
def _activation(g: Graph) -> None:
    x = g.feed(3 * g.numbers(*g.shape()))
    alpha, beta = g.some(alpha=0.3), g.some(beta=0.4)
    forms: list[tuple[int, str, dict[str, Any]]] = [
        (7, "LeakyRelu", alpha), (7, "Elu", alpha), (7, "Selu", alpha | g.some(gamma=1.2)),
        (7, "HardSigmoid", alpha | beta), (7, "Softplus", {}), (7, "Softsign", {}), (10, "ThresholdedRelu", alpha),
        (9, "Shrink", g.some(lambd=0.3, bias=0.2)), (12, "Celu", alpha), (14, "HardSwish", {}), (18, "Mish", {}),
        (20, "Gelu", g.some(approximate="tanh")), (24, "Swish", alpha), (9, "Erf", {}), (9, "Sign", {}),
        (11, "Round", {}), (7, "Tanh", {}), (7, "Sigmoid", {}), (7, "Neg", {}), (7, "Abs", {}), (9, "Atanh", {}),
    ]  # fmt: skip
    _, kind, attributes = g.random.choice([each for each in forms if each[0] <= g.opset])
    g.give(g.op(kind, x, **attributes))


@_form()
def _prelu(g: Graph) -> None:
    shape = (2, 3, 4)
    slope = g.numbers(*g.random.choice(((1,), (4,), (3, 1), (2, 3, 4), (1, 1, 1))))
    g.give(g.op("PRelu", g.feed(g.numbers(*shape)), g.either(slope)))


@_form()
def _arg(g: Graph) -> None:
    shape = g.shape()
    more = g.some(select_last_index=1) if g.opset >= 12 else {}
    x = g.feed(np.round(g.numbers(*shape)))
    kind = g.random.choice(("ArgMax", "ArgMin"))
    g.give(g.op(kind, x, **g.some(axis=g.axis(len(shape)), keepdims=0), **more))


@_form(11)
def _cumsum(g: Graph) -> None:
    shape = g.shape()
    axis = g.constant(np.array(g.axis(len(shape)), g.random.choice((np.int32, np.int64))))
    g.give(g.op("CumSum", g.feed(g.numbers(*shape)), axis, **g.some(exclusive=1, reverse=1)))


@_form(9)
def _one_hot(g: Graph) -> None:
    places = g.feed(g.rng.integers(-4, 4, g.shape(1, 2)))
    depth = g.constant(np.array([4] if g.maybe() else 4))
    g.give(
        g.op(
            "OneHot",
            places,
            depth,
            g.constant(np.array([0.5, 2], np.float32)),
            **g.some(axis=g.random.choice((0, 1, -1))),
        )
    )


@_form()
def _shapes(g: Graph) -> None:
    shape = g.shape(2, 4)
    x = g.feed(g.numbers(*shape))
    forms = ["Flatten", "Transpose", "Reshape", "Concat", "Tile", "Expand", "Shape", "Space", "Mean", "Where", "Fill"]
    match g.random.choice(forms):
        case "Flatten":
            g.give(g.op("Flatten", x, **g.some(axis=g.random.randint(0, len(shape)))))
        case "Transpose":
            g.give(g.op("Transpose", x, **g.some(perm=g.random.sample(range(len(shape)), len(shape)))))
        case "Reshape":
            more = g.some(allowzero=0) if g.opset >= 14 else {}
            g.give(g.op("Reshape", x, g.integers(0, -1, *([1] if g.maybe() else [])), **more))
        case "Concat":
            g.give(g.op("Concat", x, g.either(g.numbers(*shape)), x, axis=g.axis(len(shape))))
        case "Tile":
            g.give(g.op("Tile", x, g.integers(*(g.random.randint(1, 2) for _ in shape))))
        case "Expand" if g.opset >= 8:
            g.give(
                g.op("Expand", g.feed(g.numbers(shape[0], 1)), g.integers(*g.random.choice(((2, 1, 3), (3,), (1, 1)))))
            )
        case "Shape":
            more = g.some(start=g.random.choice((1, -1, -9)), end=g.random.choice((1, -1, 9))) if g.opset >= 15 else {}
            g.give(g.op("Shape", x, **more), g.op("Size", x))
        case "Space":
            y = g.feed(g.numbers(1, 8, 4, 4))
            more = g.some(mode=g.random.choice(("DCR", "CRD"))) if g.opset >= 11 else {}
            g.give(g.op("DepthToSpace", y, blocksize=2, **more), g.op("SpaceToDepth", y, blocksize=2))
        case "Mean" if g.opset >= 8:
            kind = g.random.choice(("Sum", "Mean", "Max", "Min"))
            g.give(g.op(kind, x, g.either(g.numbers(shape[-1])), g.either(g.numbers(*shape))))
        case "Where" if g.opset >= 9:
            asked = g.op("Greater", x, g.either(g.numbers(1)))
            g.give(g.op("Where", asked, x, g.either(g.numbers(shape[-1]))))
        case "Fill" if g.opset >= 9:
            value = g.some(value=helper.make_tensor("", TensorProto.FLOAT, [1], [2.5]))
            g.give(g.op("ConstantOfShape", g.op("Shape", x), **value))
        case _:
            g.give(g.op("Mul", x, g.either(g.numbers(shape[-1]))))


@_form(10)
def _integers(g: Graph) -> None:
    a, b = g.rng.integers(-9, 9, (3, 4)), g.rng.integers(1, 5, (4,))
    kind = g.random.choice((np.int64, np.int32))
    x, y = g.feed(a.astype(kind)), g.either(b.astype(kind))
    match g.random.choice(("Mod", "Div", "Pow", "Cast", "Trilu", "Eye")):
        case "Mod":
            g.give(g.op("Mod", x, y, **g.some(fmod=1)))
        case "Pow" if g.opset >= 12:
            g.give(g.op("Pow", x, y))
        case "Cast":
            g.give(g.op("Cast", g.feed(3 * g.numbers(3, 4)), to=g.random.choice((1, 6, 7, 9, 10, 11))))
        case "Trilu" if g.opset >= 14:
            g.give(g.op("Trilu", x, g.constant(np.array(1)) if g.maybe() else "", **g.some(upper=0)))
        case "Eye":
            g.give(g.op("EyeLike", x, **g.some(k=1, dtype=1)))
        case _:
            g.give(g.op("Div", x, y))


@_form()
def _recurrent(g: Graph) -> None:
    kind, gates = g.random.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    direction = g.random.choice(("forward", "reverse", "bidirectional"))
    ways, hidden, size, batch, length = 1 + (direction == "bidirectional"), 3, 4, 2, 5
    attributes = g.some(direction=direction)
    ways = ways if "direction" in attributes else 1
    layout = int(g.opset >= 14 and g.maybe(0.2))
    attributes |= {"layout": 1} if layout else {}
    attributes |= g.some(linear_before_reset=1) if kind == "GRU" else g.some(clip=0.5) if g.maybe(0.3) else {}
    if g.maybe(0.3):
        names = {"LSTM": ["HardSigmoid", "Tanh", "Relu"], "GRU": ["Sigmoid", "Softsign"], "RNN": ["LeakyRelu"]}[kind]
        attributes["activations"] = names * ways
        if kind != "GRU" and g.maybe():
            attributes["activation_alpha"] = [0.3] * ways
    given = [
        g.feed(g.numbers(*((batch, length) if layout else (length, batch)), size)),
        g.either(g.numbers(ways, gates * hidden, size)),
        g.either(g.numbers(ways, gates * hidden, hidden)),
        g.either(g.numbers(ways, 2 * gates * hidden)) if g.maybe() else "",
        g.constant(np.array([5, 3], np.int32)) if g.maybe(0.2) else "",
    ]
    state = (batch, ways, hidden) if layout else (ways, batch, hidden)
    states = 2 if kind == "LSTM" else 1
    given += [g.either(g.numbers(*state)) if g.maybe() else "" for _ in range(states)]
    if kind == "LSTM" and g.maybe(0.2):
        given.append(g.either(g.numbers(ways, 3 * hidden)))
    made = g.op(kind, *given, outputs=1 + states, hidden_size=hidden, **attributes)
    if g.maybe(0.3):
        g.drop(made[0])
        made = made[1:]
    g.give(*made)


@_form(8)
def _control(g: Graph) -> None:
    """If by a constant, Loop with a fixed count, Scan: names inside are those around, where that is allowed."""
    x = g.feed(g.numbers(3, 4))

    def value(name: str, kind: int = TensorProto.FLOAT, dims: Any = None) -> Any:
        return helper.make_tensor_value_info(name, kind, dims)

    match g.random.choice(("If", "Loop", "Scan")):
        case "If":
            chosen = g.constant(np.array(g.maybe()))
            branches = {}
            for which, kind in (("then_branch", "Softmax"), ("else_branch", "LeakyRelu")):
                inner = helper.make_node(
                    kind, [x], ["t_inner"], **({"alpha": 0.3} if kind == "LeakyRelu" else {"axis": 1})
                )
                branches[which] = helper.make_graph([inner], which, [], [value("t_inner")])
            g.give(g.op("If", chosen, **branches))
        case "Loop" if g.opset >= 11:
            nodes = [
                helper.make_node("Identity", ["go"], ["go_on"]),
                helper.make_node("Add", ["state", x], ["new_state"]),
                helper.make_node("LeakyRelu", ["new_state"], ["each"], alpha=0.2),
            ]
            body = helper.make_graph(
                nodes, "body",
                [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("state")],
                [value("go_on", TensorProto.BOOL, []), value("new_state"), value("each")],
            )  # fmt: skip
            given = [
                g.constant(np.array(3)),
                g.constant(np.array(True)) if g.maybe() else "",
                g.either(g.numbers(3, 4)),
            ]
            g.give(*g.op("Loop", *given, outputs=2, body=body))
        case _ if g.opset >= 9:
            nodes = [
                helper.make_node("Mul", ["state", "row"], ["new_state"]),
                helper.make_node("Neg", ["new_state"], ["out"]),
            ]
            body = helper.make_graph(
                nodes,
                "body",
                [value("state", dims=[4]), value("row", dims=[4])],
                [value("new_state", dims=[4]), value("out", dims=[4])],
            )
            turned = g.some(scan_input_directions=[1], scan_output_directions=[1])
            made = g.op("Scan", g.either(g.numbers(4)), x, outputs=2, body=body, num_scan_inputs=1, **turned)
            g.give(*made)
        case _:
            g.give(g.op("Relu", x))


@_form(10)
def _encoded(g: Graph) -> None:
    """Weights behind DequantizeLinear: a scale for all, for each slice of an axis, or for each block."""
    shape = [8, 6]
    kinds = [TensorProto.INT8, TensorProto.UINT8]
    kinds += [TensorProto.INT16, TensorProto.UINT16, TensorProto.INT4, TensorProto.UINT4] * (g.opset >= 21)
    kinds += [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E4M3FNUZ] * (g.opset >= 19)
    kinds += [TensorProto.FLOAT8E5M2FNUZ] * (g.opset >= 19) + [TensorProto.FLOAT4E2M1] * (g.opset >= 23)
    kind = g.random.choice(kinds)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    whole = "INT" in TensorProto.DataType.Name(kind)
    least = 0 if TensorProto.DataType.Name(kind).startswith("U") else -7

    def stored(*dims: int) -> str:
        values = g.rng.integers(least, 8, dims) if whole else 2 * g.rng.standard_normal(dims)
        return g.constant(values.astype(dtype))

    form = g.random.choice(["all"] + ["axis"] * (g.opset >= 13) + ["blocks"] * (g.opset >= 21))
    axis = g.random.choice((0, 1, -1, None))
    along = 1 if axis is None else axis
    counts: tuple[int, ...] = ()
    if form == "axis":
        counts = (shape[along],)
    elif form == "blocks":
        counts = (4, 6) if along == 0 else (8, 3)
    more: dict[str, Any] = {} if axis is None or form == "all" else {"axis": axis}
    more |= {"block_size": 2} if form == "blocks" else {}
    given = [stored(*shape), g.constant(np.abs(g.numbers(*counts)) + np.float32(0.1))]
    if g.maybe():
        given.append(stored(*counts) if whole else g.constant(np.zeros(counts, dtype)))
    weights = g.op("DequantizeLinear", *given, **more)
    g.give(g.op("MatMul", g.feed(g.numbers(3, 8)), weights))


@_form(23)
def _attention(g: Graph) -> None:
    heads, kv_heads, size, queries, keys = 4, g.random.choice((4, 2, 1)), 4, 3, 5
    flat = g.maybe()

    def given(count: int, length: int) -> str:
        return g.feed(g.numbers(*((2, length, count * size) if flat else (2, count, length, size))))

    more = g.some(scale=0.3, softcap=2.0, is_causal=1)
    if flat:
        more |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    inputs = [given(heads, queries), given(kv_heads, keys), given(kv_heads, keys)]
    past = g.maybe(0.3)
    total = keys + 2 if past else keys
    mask: Any = g.numbers(*g.random.choice(((queries, total), (2, 1, queries, total), (1, 1, queries, total))))
    if g.maybe():
        mask = mask > -1
        mask[..., 0] = True  # onnxruntime gives 0 to a query that may look at no key, ONNX's definition NaN
    inputs.append(g.either(mask) if g.maybe(0.7) else "")
    inputs += [g.feed(g.numbers(2, kv_heads, 2, size)) for _ in range(2)] if past else []
    g.give(*g.op("Attention", *inputs, outputs=3, **more)) if past else g.give(g.op("Attention", *inputs, **more))


@_form(23)
def _rotary(g: Graph) -> None:
    heads, size, length = 2, 8, 5
    half = g.random.choice((4, 2))
    flat = g.maybe()
    x = g.feed(g.numbers(*((2, length, heads * size) if flat else (2, heads, length, size))))
    more: dict[str, Any] = {"num_heads": heads} if flat else {}
    more |= {"rotary_embedding_dim": 2 * half} if half < size // 2 else {}
    more |= g.some(interleaved=1)
    if g.maybe():
        tables = [g.either(g.numbers(9, half)) for _ in range(2)] + [g.feed(g.rng.integers(0, 9, (2, length)))]
    else:
        tables = [g.either(g.numbers(2, length, half)) for _ in range(2)]
    g.give(g.op("RotaryEmbedding", x, *tables, **more))
