"""Convolutions with strides, dilations, taps and padding that HTP computes wrongly or QNN does not compile.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from pipeline.graph.ir.rules import F32, GraphValue, Node, lower, op


@lower(
    "Conv",
    after={
        "convolve_averages": "it writes an average as a convolution in groups",
    },
)
def stride_behind(n: Node) -> GraphValue | None:
    """``Conv <strides, dilations, group> -> Slice(Conv <dilations, group>, steps=strides)`` over planes.

    QNN's compiler compiles nothing of a convolution with all three: in integers, depthwise ones of 3 by 3 taps apart;
    in float16, if it is depthwise. An AveragePool with both becomes one. Without groups, gather_taps writes it. Left
    alone: one axis, or three; padding that is not written out.
    """
    given = n.attributes
    strides = given.pop("strides", [1, 1])
    if len(n[0].shape) != 4 or given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    if given.get("group", 1) == 1 or max(strides) == 1 or max(given.get("dilations", [1, 1])) == 1:
        return None
    every = op.Conv(*n.inputs, **given)
    return every.slice([0, 0], list(every.shape[2:]), [2, 3], strides)


@lower(
    "Conv",
    after={
        "convolve_averages": "it writes a convolution in groups",
    },
)
def add_second_taps(n: Node) -> bool:
    """Add a second tap of zero to the kernels of a depthwise convolution of one tap, with a pad at the end.

    With 16 bit activations and 8 bit weights QNN does not compile one whose weights differ by more than about 256 times
    (64 channels of 0.001 to 2), and of 384 channels its compiler's process ends (0.1 to 2): branches beside each other
    in MobileOne and FastViT. Float16, 8 bits, and two taps are right. Left alone: computed weights, and forms that are
    right: strides, padding, several outputs a channel, and rows.
    """
    kernel = n[1].array if n[1].is_f32 else None
    if kernel is None or kernel.shape[1:] != (1, 1, 1) or not 1 < len(kernel) == n.attr("group", 1):
        return False
    if (
        {*n.attr("strides", [1])} != {1}
        or any(n.attr("pads", [0]))
        or n.attr("auto_pad", "NOTSET")
        not in (
            "NOTSET",
            "VALID",
        )
    ):
        return False
    n.read(1, n.constant(np.concatenate([kernel, np.zeros_like(kernel)], axis=2), f"{n[1].name}_two_taps"))
    made = n.attributes | {"kernel_shape": [2, 1], "pads": [0, 0, 1, 0]}
    del n.proto.attribute[:]
    n.proto.attribute.extend(
        helper.make_attribute(name, value) for name, value in made.items() if name not in ("auto_pad", "dilations")
    )
    return True


@lower(
    "ConvTranspose",
    after={
        "drop_output_padding": "it makes pads differ",
    },
)
def crop_volumes(n: Node) -> GraphValue | None:
    """``ConvTranspose <pads> -> Slice(ConvTranspose)`` over volumes whose pads, which are cut off, differ.

    HTP computes other numbers, -3 dB in float16 and integers, where depth has other pads than height, as decoders of
    videos have; no tool says so. Left alone: equal pads, `auto_pad` and `output_shape`.
    """
    given, pads = n.attributes, n.attr("pads", [0])
    if len(n[0].shape) != 5 or not n.pads_are_given or "output_shape" in given or len(set(pads)) < 2:
        return None
    whole = op.ConvTranspose(*n.inputs, name=n.name, **given | {"pads": [0] * len(pads)})
    ends = [start + size for start, size in zip(pads[:3], n.y.shape[2:], strict=True)]
    return whole.slice(pads[:3], ends, [2, 3, 4])


@lower(
    "ConvTranspose",
    after={
        "place_patches": "it writes a ConvTranspose with output padding",
        "spread_kernels": "it leaves no dilations",
    },
)
def drop_output_padding(n: Node) -> GraphValue | None:
    """Output padding becomes padding that is not cut off, and zeros at the end of the kernel where that is too little.

    The same products are added. HTP computes other numbers for a depthwise one with output padding, as decoders with
    kernels of 3 and strides of 2 have: -3 dB in float16 and integers. Others are right, or not compiled (2 with a
    stride of 3). Left alone: computed weights; dilations; `auto_pad` and `output_shape`.
    """
    given = n.attributes
    more, w = given.pop("output_padding", []), n[1]
    if not any(more) or not n.pads_are_given or "output_shape" in given or {*given.get("dilations", [1])} != {1}:
        return None
    kernel = w.array if w.is_f32 else None
    if kernel is None:
        return None
    rank = len(more)
    pads = given.get("pads", [0] * 2 * rank)
    rest = [after - extra for after, extra in zip(pads[rank:], more, strict=True)]
    given["pads"] = [*pads[:rank], *(max(size, 0) for size in rest)]
    if min(rest) < 0:
        w = n.constant(np.pad(kernel, [(0, 0), (0, 0), *((0, max(-size, 0)) for size in rest)]), f"{w.name}_grown")
        given["kernel_shape"] = list(w.shape[2:])
    return op.ConvTranspose(n[0], w, *n.inputs[2:], **given)


@lower("ConvTranspose", of=F32, after={"narrow_doubles": "it looks for constants of float32"})
def fold_biases(n: Node) -> bool:
    """``ConvTranspose(x, W, B) + b -> ConvTranspose(x, W, B + b)`` for a constant b, one sum after the other.

    So PaddlePaddle exports the bias of such a layer. In integers HTP adds something else: one layer has 7 dB in 8 and
    in 16 bits, and 47 and 76 with a bias; PP-OCR's detectors ended in float16 for that. Left alone: a convolution that
    others read (put_constants_last turns the sum around, which HTP computes right), a computed bias.
    """
    dims, given, last = n.y.shape, n.get(2), n
    bias = given.array if given else np.zeros(dims[1], np.float32)
    while bias is not None:
        reader = last.y.reader("Add")
        term = _term(reader, dims) if reader else None
        if reader is None or term is None:
            break
        bias, last = np.asarray(bias + term, np.float32), reader
    if bias is None or last is n or not (last.y.readers or last.y.is_output):
        return False
    return last.become(op.ConvTranspose(n[0], n[1], n.constant(bias, f"{last.y.name}_bias"), **n.attributes))


def _term(node: Node, dims: tuple[int, ...]) -> NDArray[np.float32] | None:
    """The constant of a sum with a value of these dims, as a number for each channel; None without one."""
    term = next((each for each in (node[0].array, node[1].array) if each is not None), None)
    if term is None or term.ndim > len(dims) or term.size not in (1, dims[1]):
        return None
    spread = (1,) * (len(dims) - term.ndim) + term.shape
    return np.broadcast_to(term.reshape(-1), (dims[1],)) if term.size == spread[1] else None


_MOST_WEIGHTS = 1 << 22


@lower(
    "ConvTranspose",
    after={
        "place_patches": "it writes a ConvTranspose with dilations",
    },
)
def spread_kernels(n: Node) -> bool:
    """A transposed convolution with dilations becomes one without, whose constant kernel has zeros in between.

    The same products are added, and zeros. QNN's TransposeConv2d has no dilations, and such a node stays on the CPU.
    Left alone: computed weights; kernels that would have more than 4 million weights.
    """
    steps, kernel = n.attr("dilations", [1]), n[1].array if n[1].is_f32 else None
    if kernel is None or {*steps} == {1}:
        return False
    sizes = [(size - 1) * step + 1 for size, step in zip(kernel.shape[2:], steps, strict=True)]
    shape = (*kernel.shape[:2], *sizes)
    if math.prod(shape) > _MOST_WEIGHTS:
        return False
    spread = np.zeros(shape, kernel.dtype)
    spread[(slice(None), slice(None), *(slice(None, None, step) for step in steps))] = kernel
    for attribute in n.proto.attribute:
        if attribute.name == "dilations":
            attribute.ints[:] = [1] * len(sizes)
        if attribute.name == "kernel_shape":
            attribute.ints[:] = sizes
    return n.read(1, n.constant(spread, f"{n[1].name}_spread"))


@lower(
    "Conv",
    after={
        "convolve_averages": "of one channel it writes a convolution without groups",
    },
)
def gather_taps(n: Node) -> GraphValue | None:
    """``Conv(x, w) <dilations> -> Conv(Concat(Slice(x), ..., axis=1), w')`` with a slice for each tap, taps far apart.

    The same products are added; w' is [out, taps * in, 1], and a Pad goes before where the node has pads. QNN's
    compiler cuts a long row into tiles, each with all that its taps reach, so that far taps make it read the row many
    times over. Seconds to compile and emulate one of 128 channels and three taps over 7500 places (HTP v73, a busy
    machine), before and after: dilation 1 15 s; 512 20 and 12 s in w8a16; 1024 34 s, over 100 and 8 s in float16; 2048
    out of memory; 4096 out of memory and 12 s. WaveNet and TCN are made of such. In groups, as depthwise, QNN takes
    them (2048: 17 s).

    So is a convolution over planes that has both strides and dilations, of which QNN compiles nothing ("Memory
    allocation related error", whatever the sizes; over rows it does). In groups stride_behind writes it. Left alone:
    taps that reach less than 512 places, or more than nine of them, without both; more than 49; groups; computed
    weights; padding that is not written out.
    """
    given = n.attributes
    w = n[1].array if n[1].is_f32 else None
    if w is None or given.get("group", 1) != 1 or given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    kernel, rank = w.shape[2:], w.ndim - 2
    dilations, strides = given.get("dilations", [1] * rank), given.get("strides", [1] * rank)
    if rank > 1 and max(dilations) > 1 and max(strides) > 1:
        if math.prod(kernel) > 49:
            return None
    else:
        reach = max(((size - 1) * far for size, far in zip(kernel, dilations, strict=True) if far > 1), default=0)
        if reach < 512 or math.prod(kernel) > 9:
            return None
    x, pads = n[0], given.get("pads", [0] * 2 * rank)
    if any(pads) and n.pads_are_given:
        x = op.Pad(x, [0, 0, *pads[:rank], 0, 0, *pads[rank:]], mode="constant")
    seen, axes = [], list(range(2, 2 + rank))
    for tap in np.ndindex(*kernel):
        first = [place * far for place, far in zip(tap, dilations, strict=True)]
        last = [start + (size - 1) * step + 1 for start, size, step in zip(first, n.y.shape[2:], strides, strict=True)]
        seen.append(x.slice(first, last, axes, strides))
    flat = w.reshape(*w.shape[:2], -1).transpose(0, 2, 1).reshape(len(w), -1, *[1] * rank)
    folded = n.constant(np.ascontiguousarray(flat), f"{n[1].name}_taps")
    return op.Conv(op.Concat(*seen, axis=1), folded, *n.inputs[2:], kernel_shape=[1] * rank)


@lower("Col2Im", of=F32)
def place_patches(n: Node) -> GraphValue | None:
    """``Col2Im(x, picture, patch) -> ConvTranspose(Reshape(x), kernels)``, torch's `fold`, for constant shapes.

    The kernel of each of a patch's places is 1 there and else 0. Patches that fill the picture side by side are a
    Transpose between Reshapes. The same elements are added, and zeros. QNN leaves Col2Im to the CPU.
    """
    picture, patch = n[1].array, n[2].array
    if picture is None or patch is None:
        return None
    rank, sizes = len(patch), patch.tolist()
    strides, dilations = n.attr("strides", [1] * rank), n.attr("dilations", [1] * rank)
    pads = n.attr("pads", [0, 0] * rank)
    reach = [(size - 1) * far + 1 for size, far in zip(sizes, dilations, strict=True)]
    room = [size + pads[at] + pads[rank + at] for at, size in enumerate(picture.tolist())]
    counts = [(size - far) // step + 1 for size, far, step in zip(room, reach, strides, strict=True)]
    over = [
        size - (count - 1) * step - far for size, count, step, far in zip(room, counts, strides, reach, strict=True)
    ]
    if not any(pads) and not any(over) and {*dilations} == {1} and [*strides] == sizes:
        order = [0, *(axis for at in range(rank) for axis in (1 + rank + at, 1 + at))]
        return n[0].reshape(-1, *sizes, *counts).transpose(*order).reshape(*n.y.shape)
    (batch, rows), places = n[0].shape[:2], math.prod(sizes)
    kernels = np.tile(np.eye(places, dtype=np.float32), (rows // places, 1)).reshape(rows, 1, *sizes)
    return op.ConvTranspose(
        n[0].reshape(batch, rows, *counts), kernels, group=rows // places, kernel_shape=sizes, strides=[*strides],
        dilations=[*dilations], pads=[*pads], output_padding=over,
    )  # fmt: skip
