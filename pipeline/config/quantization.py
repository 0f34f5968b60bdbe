"""What may be written under `quantization` in a config file, as types; see :mod:`pipeline.config.file`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Literal

from pipeline.config.yaml.field_types import Between, Distinct, Pattern, Size
from pipeline.contracts.precision import Prefer
from pipeline.contracts.scheme import ROOM
from pipeline.frozen import dataclass
from pipeline.qnn.target import BLOCKS_HTP_ARCH, WIDE_PRODUCTS_HTP_ARCH

Activations = Literal["uint16", "uint8"]
Rounding = Literal["nearest", "gptq"]
Clip = Literal["none", "mse", "hessian"]
Minutes = Annotated[int, Between(1, 100_000)]
BUDGET_MINUTES = 30
_GGUF_BLOCK = 32
Method = Literal["minmax", "percentile", "entropy", "mse"]
Glob = Annotated[str, Pattern(r"[^\x00-\x1f]{1,500}", "a name, in which * and ? stand for any letters")]
OpType = Annotated[str, Pattern(r"[A-Za-z][A-Za-z0-9_]{0,99}", "an ONNX operator, such as MatMul")]
Globs = Annotated[tuple[Glob, ...], Size(1, expected="at least one name, such as ['/layers.0/*']"), Distinct()]


@dataclass(frozen=True)
class BlockWeights:
    """Weights in blocks: every few inputs of an output channel share a scale. It needs 16 bit activations, and holds
    for the constant matrices of MatMul, Gemm and Conv 1x1 whose inputs can be split so; others get a scale for each
    channel. A rule with int4 that names a Gather gives its table 4 bits, and every few columns of a row a scale.
    """

    dtype: Annotated[
        str,
        Pattern("int4|int8", "int4 or int8: QNN takes blocks of uint4 and computes something else, at -14 dB of SQNR"),
    ]
    """Their type: `int4` or `int8`."""
    block: Annotated[int, Between(16, 64)] = 32
    """How many inputs share a scale: 16, 32 or 64."""


Weights = Literal["uint8", "int8", "int4", "int16"] | BlockWeights


@dataclass(frozen=True)
class OpsRule:
    """What all nodes of some operators do differently."""

    ops: Annotated[tuple[OpType, ...], Size(1, expected="at least one operator, such as [Softmax]"), Distinct()]
    """Operators, such as `[Softmax]`."""
    precision: Literal["fp16"] | None = None
    """`fp16` leaves these nodes in float; HTP computes them in float16."""
    activations: Activations | None = None
    """Type that these nodes compute in. A conversion is put between nodes of different types."""
    weights: Weights | None = None
    """Type of these nodes' constant weights."""
    per_channel: bool | None = None
    """Whether these nodes' weights get one scale for each output channel."""


@dataclass(frozen=True)
class NodesRule:
    """What some nodes do differently."""

    nodes: Globs
    """Names of nodes, with `*` and `?`; `doit blame:...` prints them."""
    precision: Literal["fp16"] | None = None
    """`fp16` leaves these nodes in float; HTP computes them in float16."""
    activations: Activations | None = None
    """Type that these nodes compute in. A conversion is put between nodes of different types."""
    weights: Weights | None = None
    """Type of these nodes' constant weights."""
    per_channel: bool | None = None
    """Whether these nodes' weights get one scale for each output channel."""


@dataclass(frozen=True)
class TensorsRule:
    """The encoding of some values."""

    tensors: Globs
    """Names of values, with `*` and `?`: activations or weights."""
    activations: Activations | None = None
    """Type of those among them that are activations."""
    weights: Weights | None = None
    """Type of those among them that are weights."""
    per_channel: bool | None = None
    """Whether those among them that are weights get one scale for each output channel."""


def of_weights(written: Weights | None) -> tuple[str | None, int | None]:
    """The type of weights that the config gives, and the block size if it gives one."""
    return (written.dtype, written.block) if isinstance(written, BlockWeights) else (written, None)


Rule = OpsRule | NodesRule | TensorsRule


@dataclass(frozen=True)
class Quantization:
    """Integer quantization, with encodings from calibration that all buckets of a component share."""

    activations: Activations = "uint16"
    """Type of activations. Before arch v73, HTP computes `uint16` much less exactly."""
    weights: Weights = "uint8"
    """Type of weights, or type and block: `{dtype: int8, block: 32}`. `int4` is for the weights of MatMul, Gemm and
    Conv; others stay at 8 bits. `int16` is for HTP v73 and later."""
    per_channel: bool = True
    """One scale for each output channel of a weight; `false` is one scale for the whole weight, and less accurate."""
    method: Method = "minmax"
    """How calibration makes ranges from samples: `minmax` keeps the smallest and the largest value seen, `percentile`
    leaves out the rarest, `entropy` and `mse` choose the range that loses least by either measure."""
    percentile: float = 99.99
    """With `method: percentile`: the share of values, in percent, that a range keeps."""
    wide_products: bool = False
    """Whether 16 bit activations are multiplied with each other at full width, which HTP can do from arch v73 on. With
    `false`, one of them is rounded to 8 bits."""
    overrides: tuple[Rule, ...] = ()
    """What some operators, nodes or values do differently. If several rules apply to one place, the last wins. For a
    language model they come after the rules that keep its residual stream in float16:
    `nodes: ['*_residual', '*_norm']`."""
    rounding: Rounding = "nearest"
    """How the weights of MatMul, Gemm and Conv 1x1 are rounded: to the `nearest` number, or by `gptq`, which corrects
    the error of each by rounding the next ones, with weight for the inputs that calibration samples show."""
    clip: Clip = "mse"
    """How the scales of these weights are chosen: `none`, to hold the largest; `mse`, for the least squared error;
    `hessian`, for the least squared error with each input weighted by its size in calibration samples."""
    room: Annotated[float, Between(0, 16)] = ROOM
    """How far 16 bit encodings reach beyond the range that calibration saw, as a share of that range, at each end that
    is not zero. Few samples need more: with `2`, 13107 of 65536 steps are left for what was seen."""

    @property
    def looks_at_data(self) -> bool:
        """Whether weights are rounded or scaled by their inputs in calibration samples."""
        return self.rounding == "gptq" or self.clip == "hessian"


FOR_SEARCH = Quantization(method="mse", rounding="gptq", clip="hessian")
"""How a search quantizes. On MiniLM at 20 dB, a third of all operations may be in 8 bits with mse, 29 % with minmax."""


def takes_blocks(outputs: Collection[str], compiler: str) -> bool:
    """Whether all files that are made from a model can have weights in blocks.

    QNN (2.51) crashes when it composes a DLC with them (ADR 49); the QAIRT SDK's overrides can't express them (ADR 50).
    """
    return "dlc" not in outputs and compiler != "qairt"


def by_default(architectures: Iterable[int], *, blocks: bool) -> Quantization:
    """The quantization without one in the config, for targets of these HTP architectures: the best with 8 bit weights.

    On MiniLM it has 36 dB in place of 28, for 1 % more bytes (ADR 29). `blocks` is the answer of :func:`takes_blocks`.
    """
    oldest = min(architectures, default=0)
    return Quantization(
        weights=BlockWeights("int8") if blocks and oldest >= BLOCKS_HTP_ARCH else "uint8",
        rounding="gptq",
        clip="hessian",
        wide_products=oldest >= WIDE_PRODUCTS_HTP_ARCH,
    )


@dataclass(frozen=True)
class Fp16:
    """No quantization: HTP computes the float model in 16 bits. Needs no calibration."""

    precision: Literal["fp16"]
    """`fp16`."""


@dataclass(frozen=True)
class Climb:
    """w8a16, in blocks if every target has them; if that misses a threshold, the cheapest precision that keeps to all.
    This is also what a config without `quantization` gets.
    """

    budget_minutes: Minutes
    """For how long precisions may be tried. As long as time is left, another one is begun. Results are kept, and the
    next build goes on from there."""


@dataclass(frozen=True)
class Auto:
    """The cheapest quantization that keeps to `thresholds`, found by measuring on calibration samples."""

    precision: Literal["auto"]
    """`auto`."""
    fp16: bool = True
    """Whether single layers may stay in float, which HTP computes in float16, if every target can do that."""
    max_trials: Annotated[int, Between(1, 10_000)] = 40
    """How many quantizations may be tried on the CPU."""
    max_emulations: Annotated[int, Between(1, 1000)] = 6
    """How many of them may be compiled and tried on the emulator."""
    budget_minutes: Minutes = BUDGET_MINUTES
    """For how long other precisions may be tried if the one that was found misses a threshold."""
    prefer: Prefer = "size"
    """What makes a quantization cheap: with `size`, few bytes of weights, and then little work; with `speed`, little
    time for both on a chip, by its published figures."""


@dataclass(frozen=True)
class QuantizationOverride:
    """What one component does differently; a key left out keeps the value that the model has."""

    activations: Activations | None = None
    """As in the model's `quantization`."""
    weights: Weights | None = None
    """As in the model's `quantization`."""
    per_channel: bool | None = None
    """As in the model's `quantization`."""
    rounding: Rounding | None = None
    """As in the model's `quantization`."""
    clip: Clip | None = None
    """As in the model's `quantization`."""
    method: Method | None = None
    """As in the model's `quantization`."""
    percentile: float | None = None
    """As in the model's `quantization`."""
    wide_products: bool | None = None
    """As in the model's `quantization`."""
    overrides: tuple[Rule, ...] | None = None
    """In place of the model's."""
    room: Annotated[float, Between(0, 16)] | None = None
    """As in the model's `quantization`."""


def keeps_fours(quantization: object) -> bool:
    """Whether weights have 4 bits in blocks that fit into GGUF's blocks of 32, so that they can keep its integers."""
    weights = quantization.weights if isinstance(quantization, Quantization) else None
    return isinstance(weights, BlockWeights) and weights.dtype == "int4" and _GGUF_BLOCK % weights.block == 0
