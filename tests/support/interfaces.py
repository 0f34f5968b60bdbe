"""Small models with the inputs that models of text, pictures and sounds have, as exporters write them."""

from __future__ import annotations

from onnx import ModelProto, TensorProto, helper

TEXT = """net (int64[batch, sequence] input_ids, int64[batch, sequence] attention_mask) => (float[batch, sequence] y) {
    sum = Add (input_ids, attention_mask)
    y = Cast <to = 1> (sum)
}"""
PICTURE = "net (float[N, 3, H, W] pixel_values) => (float[N, 3, H, W] y) { y = Neg (pixel_values) }"
LAST = "net (uint8[batch, 224, 224, 3] image) => (uint8[batch, 224, 224, 3] y) { y = Identity (image) }"
WAVE = "net (float[batch, samples] waveform) => (float[batch, samples] y) { y = Neg (waveform) }"
HEARD = """net (float[batch, time] given, float[4, 1, 3] w) => (float[batch, 4, out] y) {
    axis = Constant <value = int64[1] {1}> ()
    wide = Unsqueeze (given, axis)
    y = Conv (wide, w)
}"""
NUMBERS = "net (float[batch, 512] embedding) => (float[batch, 512] y) { y = Neg (embedding) }"
LONG = "net (float[n, 43844, 1] x) => (float[n, 43844, 1] y) { y = Neg (x) }"
LOOKED_UP = """net (int64[n, 32] x, float[9, 4] table) => (float[n, 32, 4] y) {
    y = Gather (table, x)
}"""
MEL = "net (float[batch, 80, frames] mel) => (float[batch, 80, frames] y) { y = Neg (mel) }"
STATE = """net (float[batch, 512] input_audio, float[2, batch, 64] state, int64[1] wave_length)
    => (float[batch, 512] y, float[2, batch, 64] stateN) {
    y = Neg (input_audio)
    stateN = Neg (state)
}"""
LETTERS = """net (int32[n, letters] given) => (float[n, letters, 2] y)
<float[5, 2] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, int32 rows = {5}, int32 zero = {0}>
{
    below = Less (given, zero)
    behind = Add (given, rows)
    ids = Where (below, behind, given)
    y = Gather (table, ids)
}"""


def selecting() -> ModelProto:
    """A model that takes one way at 8000 Hz and another at any other rate."""
    branches = {}
    for branch, factor in (("then_branch", 1.0), ("else_branch", 2.0)):
        name = f"{branch}_y"
        made = helper.make_tensor(f"{branch}_k", TensorProto.FLOAT, [1], [factor])
        nodes = [helper.make_node("Mul", ["wave", f"{branch}_k"], [name])]
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 512])
        branches[branch] = helper.make_graph(nodes, branch, [], [out], [made])
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["is_low"]),
        helper.make_node("If", ["is_low"], ["y"], **branches),
    ]
    inputs = [
        helper.make_tensor_value_info("wave", TensorProto.FLOAT, [1, 512]),
        helper.make_tensor_value_info("sr", TensorProto.INT64, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 512])]
    constants = [helper.make_tensor("rate", TensorProto.INT64, [], [8000])]
    made_graph = helper.make_graph(nodes, "net", inputs, outputs, constants)
    return helper.make_model(made_graph, opset_imports=[helper.make_opsetid("", 17)])
