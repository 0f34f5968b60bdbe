"""Where HTP's arithmetic ends: limits that encodings and float values have to keep to.

Measured on the emulator of QAIRT 2.51 (onnxruntime-qnn 2.7), SoC 60 (HTP v73).
"""

REQUANTIZE = 2.0**-24
"""The least of ``scale_in * scale_weight / scale_out`` that a product with 16 bit activations is rescaled by.

Below, a channel comes out as the end of its encoding whatever its input is. Exact down to 2^-24.0 and saturated from
2^-24.1 on, for Conv (1d, 2d, depthwise), ConvTranspose, Gemm and MatMul, with a bias and without; with 8 bit
activations, 2^-32 is still exact.
"""

LARGEST_OF_16_BITS = 0x7F7F
"""The largest weight of 16 bits that HTP multiplies right.

It takes a weight as two signed bytes. The upper one of a larger weight would be 128; it computes with 127, and such a
weight comes out up to 0.8 % too small. Where 32767 stands for the largest weight, every channel whose largest is
positive has one: single products are 54 to 71 dB off the QDQ model, and with this as the end 74 to 84.
"""

MOST_TAPS_OF_16_BITS = 8
"""The most taps along an axis, divided by the stride, of a convolution whose weights have 16 bits.

Of more HTP multiplies by the upper byte of each weight alone: 33 to 40 dB off the QDQ model for Conv and ConvTranspose,
in groups or not, where 8 taps have 77 to 84, and -15 dB of a trained model with a kernel of 1 x 35.
"""

MOST_DILATION_OF_16_BITS = 2
"""The largest dilation of a Conv whose weights have 16 bits and that takes each channel by itself (73 to 80 dB).

Of most others HTP multiplies by the upper byte alone, whatever the taps: 36 to 42 dB with dilations of 3 and more on
all axes, or of 4 and 16 on one, and with any in groups of several channels, or where a channel makes two.
"""

FP16_LARGEST = 65504.0
"""Beyond, HTP cuts a value in float16 off: products of matrices here, other operators at twice as much."""
FP16_BITS = 10
"""Bits of float16 behind the first one: whole numbers up to 2048 are told apart."""
FP16_SMALLEST_NORMAL = 2.0**-14
"""Below, a value in float16 loses bits, and HTP may make 0 of it."""

FP16_SMALLEST = 2.0**-24
"""The least number above zero that float16 has: a floor below it is 0."""

FP16_SMALLEST_SHARE = 2.0**-6
"""The least result of a Sigmoid or Softmax in float16 that a logarithm is taken of: they are off by 0.0002 to 0.0009
however small they are. Log(Sigmoid(-7.95)) is -7.63, Log(Softmax) -7.6 for -20.8."""
FP16_SMALLEST_ANGLE = 0.02
"""The least that the largest argument of a Sin or Tan in float16 is: results have steps of 1.2e-4 near 0."""

FP16_ARGUMENTS = {"Atan": 32768.0, "Cos": 100.0, "Sin": 100.0, "Tan": 100.0}
"""Operator -> the largest argument whose result is right in float16: of more, Atan gives 131008, a sine is off by 0.1.
In 16 bit integers all but Tan near its poles are right."""
NORM_LARGEST = 361.0
"""The largest ReduceL2: HTP sums squares in float16, whatever is around it, up to 131008."""

LEAST_OF_INTEGERS = {
    "Asin": 0.004, "Atan": 0.004, "Ceil": 0.004, "Elu": 0.004, "Selu": 0.004, "Sin": 0.004, "Tan": 0.004,
    "Log": 0.004,
}  # fmt: skip
"""Operator -> the largest input up to which its results in 16 bit integers are wrong: computed in float16 inside, with
steps of 6e-5 or 1.2e-4."""
NARROWEST_OF_INTEGERS = {"Elu": 0.15, "Softmax": 0.15}
"""Operator -> the width of its input's 16 bit encoding from which its results are right. Of narrower ones a Softmax is
15 dB, as its rows add up to 1.07 to 1.18: up to 0.145 where zero is next to an end of the encoding, up to 0.12 wherever
it is. An Elu gives the end of its encoding for all that is negative, -13 to 3 dB, for some encodings up to 0.133 wide,
and is right for others in between. Of 0.15 to 0.25 both are 53 to 92 dB, with zero at five places."""
LARGEST_OF_INTEGERS = {"Elu": 20000.0, "Selu": 100000.0}
"""Operator -> the largest input up to which its results in integers are right: beyond, Elu gives the end of its
encoding for some arguments, and Selu stops at 131008. In float16 both are right as far as it goes."""
SOFTMAX_LARGEST = 256.0
"""The largest input of a Softmax in float16, which rounds it, in steps of 0.25 from there on: 0.0229 for 0.0180."""
TANGENT_LARGEST = 10.0
"""The largest Tan of integers: 14.1 comes out as 14.3, 32.5 as 33.3, 5.80 as 5.81. Float16 rounds the argument."""

GELU_WIDTH = 0.3
"""The least width of the encoding of a Gelu of 16 bits. HTP computes it piece by piece, off by up to 0.0014 wherever it
is, in float16, too: 256 steps of an encoding this wide, as of a Gelu whose arguments are all negative."""

LARGEST_RESCALE = {8: 2.0**7, 16: 2.0**13}
"""Bits -> the largest ``scale_in / scale_out`` that integers are multiplied by. Of more, HTP takes this: where 1 step
of the input is 15008 of the result, 8192 comes out."""
LARGEST_ZERO_POINT = 2.0**28
"""The largest ``zero_point_in * scale_in / scale_out`` of 16 bits. Beyond, numbers below zero come out as the largest:
a Relu of -30000 to 6 gives 6 for -4 (zero point 54520, 6016 times), and is right up to 4900 times."""
RESCALED_WITH_ZERO_POINT = ("Clip", "Concat", "Neg", "ReduceMax", "ReduceMin", "Relu", "Where")
RESCALED_WITHOUT = ("Abs", "Max", "Min")
"""Operators of 16 bits that the first limit alone holds for. Right beyond both: Add, Mul, Sub, Round, ReduceMean."""
RESCALED_IN_8_BITS = ("Max", "Min", "Neg")

ROWS_MISPLACED = 16
"""So many rows, and nothing in front of them ([16, n], [1, 16, n]), are placed wrongly where a LayerNormalization or a
Softmax in float16 hands them to a quantizer and that to a MatMul or a Gemm alone: rows 2 and 3 come out as zeros, 4 and
5 as what 2 and 3 are (2.1 and 0.2 dB, of every width tried, 32 to 576). Right are 1, 2, 4, 8, 12, 15, 17, 20, 24, 32,
48, 64 and 128 rows, [2, 8, n], [4, 16, n], other operators before the quantizer, and two readers behind it."""

LARGEST_INTEGER = 2.0**31 - 1
"""What HTP makes of larger ones: QNN's execution provider turns int64 into int32."""
COUNTED_IN_FLOAT = 2.0**24
"""Up to here HTP adds up integers exactly: CumSum and ReduceSum do it in float32."""
