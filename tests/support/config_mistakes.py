"""Configs that are wrong in one way each, with the beginnings of the lines that must be said about them."""

from __future__ import annotations

from pathlib import Path

GOOD = """\
source: {path: ../models/mine}
components:
  encoder: {file: onnx/model.onnx}
fixed: {batch: 1}
buckets: {sequence: [64, 32]}
calibration: {reader: text, file: calibration/lines.txt}
targets: [sm8650]
"""


def write(root: Path, text: str | bytes, name: str = "mine.yaml") -> Path:
    path = root / "configs" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


MISTAKES: dict[str, tuple[str | bytes, list[str]]] = {
    "a tokenizer beside a vocabulary": (
        changed("file: calibration/lines.txt", "file: a.txt, tokenizer: t.json, vocabulary: {file: vocab.txt}"),
        ["6:53: calibration.tokenizer: there is a vocabulary as well; expected one of the two"],
    ),
    "unknown key": (
        changed("buckets:", "bucket:"),
        ["5:1: bucket: unknown key; did you mean 'buckets'?"],
    ),
    "unknown key, nothing near": (
        GOOD + "zzz: 1\n",
        [
            "8:1: zzz: unknown key; expected one of source, components, targets, files, fixed, constants, buckets, "
            "language_model, speech_model, cross, calibration, quantization, verification, thresholds, packing, "
            "compiler, outputs, limits, release, on_request"
        ],
    ),
    "a misspelt optional key is one mistake": (
        changed("calibration:", "calibraton:"),
        ["6:1: calibraton: unknown key; did you mean 'calibration'?"],
    ),
    "missing key": (
        changed("targets: [sm8650]\n", ""),
        ["1:1: targets: is missing; expected a list, each entry text, or a mapping with soc, vtcm_mb"],
    ),
    "bool where int": (
        changed("batch: 1", "batch: true"),
        ["4:16: fixed.batch: true; expected an integer from 1 to 2147483647"],
    ),
    "float where int": (
        changed("64, 32", "64, 32.0"),
        ["5:26: buckets.sequence[1]: number 32.0; expected an integer from 1 to 2147483647"],
    ),
    "out of bounds": (
        changed("64, 32", "0, 99999999999999999999"),
        [
            "5:22: buckets.sequence[0]: number 0; expected an integer from 1 to 2147483647",
            "5:25: buckets.sequence[1]: number 99999999999999999999; expected an integer from 1 to 2147483647",
        ],
    ),
    "number where text": (
        changed("[sm8650]", "[57]"),
        [
            "7:11: targets[0]: number 57; expected text (in quotes, as it reads as a number or a truth value)",
        ],
    ),
    "text where bool": (
        GOOD + "on_request: yes\n",
        ["8:13: on_request: text 'yes'; expected true or false"],
    ),
    "no value": (changed("{batch: 1}", "{batch: }"), ["4:16: fixed.batch: no value; expected an integer from 1 to"]),
    "list where mapping": (
        changed("{batch: 1}", "[batch]"),
        [
            "4:8: fixed: a list; expected a mapping from the name of a length axis to an integer from 1 to 2147483647",
        ],
    ),
    "unknown word": (
        GOOD + "quantization: {weights: unt8}\n",
        [
            "8:25: quantization.weights: 'unt8' is not known here; expected uint8 or int8 or int4 or int16;"
            " did you mean 'uint8'?"
        ],
    ),
    "a rule that changes nothing": (
        GOOD + "quantization: {overrides: [{ops: [Softmax]}]}\n",
        ["8:28: quantization.overrides[0]: changes nothing; expected one of activations, weights, per_channel"],
    ),
    "a rule of two kinds": (
        GOOD + "quantization: {overrides: [{ops: [Softmax], nodes: ['*'], precision: fp16}]}\n",
        ["8:45: quantization.overrides[0]: 'ops' and 'nodes' exclude each other; expected one of them"],
    ),
    "a rule of no kind": (
        GOOD + "quantization: {overrides: [{precision: fp16}]}\n",
        ["8:28: quantization.overrides[0]: does not say which; expected 'ops' or 'nodes' or 'tensors'"],
    ),
    "types of nodes that stay in float": (
        GOOD + "quantization: {overrides: [{nodes: ['*'], precision: fp16, weights: int4}]}\n",
        ["8:54: quantization.overrides[0].precision: excludes types: these nodes stay in float; expected precision"],
    ),
    "a percentile of nothing": (
        GOOD + "quantization: {method: percentile, percentile: 0.1}\n",
        ["8:48: quantization.percentile: 0.1; expected more than 50 and at most 100, such as 99.99"],
    ),
    "wide products on an old chip": (
        GOOD.replace("[sm8650]", "[sm8350]") + "quantization: {wide_products: true}\n",
        ["8:31: quantization.wide_products: component 'encoder' can't multiply 16 by 16 bits on sm8350"],
    ),
    "blocks of a type that computes": (
        GOOD + "quantization: {weights: {dtype: uint4, block: 32}}\n",
        ["8:33: quantization.weights.dtype: text 'uint4'; expected int4 or int8: QNN takes blocks of uint4"],
    ),
    "blocks of another size": (
        GOOD + "quantization: {weights: {dtype: int4, block: 48}}\n",
        ["8:46: quantization.weights.block: number 48; expected 16 or 32 or 64"],
    ),
    "blocks beside activations of 8 bits": (
        GOOD + "quantization: {activations: uint8, weights: {dtype: int8}}\n",
        ["8:45: quantization.weights: blocks of weights exclude activations of 8 bits: QNN's kernel for blocks"],
    ),
    "blocks in a rule for 8 bits": (
        GOOD + "quantization: {overrides: [{ops: [Gemm], activations: uint8, weights: {dtype: int8}}]}\n",
        ["8:71: quantization.overrides[0].weights: blocks of weights exclude activations of 8 bits"],
    ),
    "blocks without scales of their own": (
        GOOD + "quantization: {per_channel: false, weights: {dtype: int8}}\n",
        ["8:45: quantization.weights: blocks of weights exclude per_channel: false: every block of a channel"],
    ),
    "another precision": (
        GOOD + "quantization: {precision: fp8}\n",
        ["8:27: quantization.precision: 'fp8' is not known here; expected fp16 or auto"],
    ),
    "what does not go with a search": (
        GOOD + "quantization: {precision: auto, weights: int4}\n",
        ["8:33: quantization.weights: does not go with precision: auto; expected one of precision, fp16, max_trials"],
    ),
    "hub and path": (
        changed("{path: ../models/mine}", "{hub: a/b, path: c}"),
        ["1:20: source: 'hub' and 'path' exclude each other; expected one of them"],
    ),
    "neither hub nor path": (
        changed("{path: ../models/mine}", "{}"),
        ["1:9: source: does not say which; expected 'hub' or 'path'"],
    ),
    "hub without a revision": (
        changed("{path: ../models/mine}", "{hub: a/b}"),
        ["1:9: source.revision: is missing; expected a commit of 40 hex digits, a branch or a tag"],
    ),
    "not a repository": (
        changed("{path: ../models/mine}", "{hub: a/b/c, revision: main}"),
        ["1:15: source.hub: text 'a/b/c'; expected a repository as owner/name"],
    ),
    "no reader": (
        changed("reader: text, ", ""),
        ["6:14: calibration.reader: is missing; expected text or npz or python or record"],
    ),
    "key of another reader": (
        changed("reader: text, file: calibration/lines.txt", "reader: npz, folder: a, tokenizer: b"),
        ["6:39: calibration.tokenizer: does not go with reader: npz; expected one of reader, folder, max_samples"],
    ),
    "path escapes": (
        changed("onnx/model.onnx", "../model.onnx"),
        [
            "3:19: components.encoder.file: text '../model.onnx'; expected an .onnx file in the source, or a .gguf "
            "or .safetensors file of a language model, or the index of several of these, with '/' and without '..'"
        ],
    ),
    "not onnx": (
        changed("onnx/model.onnx", "model.pt"),
        ["3:19: components.encoder.file: text 'model.pt'; expected an .onnx file in the source"],
    ),
    "backslash": (
        GOOD + "files: ['voices\\M1.bin']\n",
        ["8:9: files[0]: text 'voices\\M1.bin'; expected a path in the source, with '/' and without '..'"],
    ),
    "run elsewhere": (
        changed("{reader: text, file: calibration/lines.txt}", "{reader: python, run: 'code.py:run'}"),
        ["6:36: calibration.run: text 'code.py:run'; expected calibration/<file>.py:<function>"],
    ),
    "run leads out": (
        changed("{reader: text, file: calibration/lines.txt}", "{reader: python, run: 'calibration/../x.py:run'}"),
        ["6:36: calibration.run: text 'calibration/../x.py:run'; expected calibration/<file>.py:<function>"],
    ),
    "component name": (
        changed("encoder:", "Encoder:"),
        ["3:3: components.Encoder: text 'Encoder'; expected a name of at most 64 of a-z"],
    ),
    "a name that Windows reserves": (
        changed("encoder:", "con:"),
        ["3:3: components.con: text 'con'; expected a name of at most 64 of a-z"],
    ),
    "no components": (
        changed("components:\n  encoder: {file: onnx/model.onnx}", "components: {}"),
        ["2:13: components: is empty; expected at least one component"],
    ),
    "axes of several lengths": (
        changed("{sequence: [64, 32]}", "{a: [1, 2], b: [2]}"),
        ["5:10: buckets: has 2 of a and 1 of b; expected as many of each, which go together place by place"],
    ),
    "a pair twice": (
        changed("{sequence: [64, 32]}", "{a: [1, 1, 1], b: [2, 3, 2]}"),
        ["5:10: buckets: bucket 3 is the same as bucket 1; expected each once"],
    ),
    "a value twice, crossed": (
        changed("{sequence: [64, 32]}", "{a: [1, 1], b: [2]}\ncross: true"),
        ["5:18: buckets.a[1]: the same as entry [0]; expected each once"],
    ),
    "too many, crossed": (
        changed("{sequence: [64, 32]}", f"{{a: {[*range(1, 18)]}, b: {[*range(1, 18)]}}}\ncross: true"),
        ["5:10: buckets: makes too many buckets; expected 256 at most"],
    ),
    "points crossed": (
        changed("{sequence: [64, 32]}", "[{a: 1, b: 2}]\ncross: true"),
        ["6:8: cross: points can't be crossed; expected lists of values to cross"],
    ),
    "brackets without quotes": (
        changed("{batch: 1}", "{batch: 1, x[0]: 1}"),
        ["4:20: is not YAML: while parsing a flow mapping, did not find expected ',' or '}'; expected a name with "],
    ),
    "text for a constant": (
        GOOD + "constants: {sr: fast, mask: [1, [true, x]], rate: 1.5}\n",
        [
            "8:17: constants.sr: text 'fast'; expected a number, true or false, or lists of them",
            "8:29: constants.mask: a list; expected a number",
        ],
    ),
    "no values": (
        changed("[64, 32]", "[]"),
        ["5:21: buckets.sequence: is empty; expected at least one value, such as [64]"],
    ),
    "a value twice": (
        changed("64, 32", "64, 32, 64"),
        ["5:30: buckets.sequence[2]: the same as entry [0]; expected each once"],
    ),
    "a point twice": (
        changed("{sequence: [64, 32]}", "[{a: 1, b: 2}, {b: 2, a: 1}]"),
        ["5:25: buckets[1]: the same as entry [0]; expected each once"],
    ),
    "points of other axes": (
        changed("{sequence: [64, 32]}", "[{a: 1, b: 2}, {a: 1}, {a: 3, c: 3}]"),
        [
            "5:25: buckets[1]: has other axes than the first point; expected a and b",
            "5:33: buckets[2]: has other axes than the first point; expected a and b",
        ],
    ),
    "fixed and bucketed": (
        changed("{batch: 1}", "{batch: 1, sequence: 8}"),
        ["4:29: fixed.sequence: is fixed and has buckets too; expected one of the two"],
    ),
    "unknown target": (
        changed("[sm8650]", "[sm8560]"),
        [
            "7:11: targets[0]: unknown target 'sm8560'; expected a SoC of the catalogue, which docs/config.md lists; "
            "did you mean 'sm8650'?"
        ],
    ),
    "a target twice": (
        changed("[sm8650]", "[sm8650, {soc: SM8650, vtcm_mb: 4}]"),
        ["7:19: targets[1]: 'SM8650' is sm8650, which is there already"],
    ),
    "a target twice in the same words": (
        changed("[sm8650]", "[sm8650, sm8550, sm8650]"),
        ["7:27: targets[2]: the same as entry [0]; expected each once"],
    ),
    "an unknown target twice": (
        changed("[sm8650]", "[sm9999, sm9999]"),
        [
            "7:11: targets[0]: unknown target 'sm9999'; expected a SoC of the catalogue",
            "7:19: targets[1]: the same as entry [0]; expected each once",
        ],
    ),
    "more VTCM than there is": (
        changed("[sm8650]", "\n- soc: sm8350\n  vtcm_mb: 8"),
        ["9:12: targets[0].vtcm_mb: sm8350 has 4 MB of VTCM, not 8; expected 4 or less"],
    ),
    "a provider option that the EP does not know": (
        changed("[sm8650]", "\n- soc: sm8350\n  provider_options: {enable_htp_monolitic_lstm: '1'}"),
        [
            "9:49: targets[0].provider_options.enable_htp_monolitic_lstm: can't be set: this version of "
            "onnxruntime-qnn knows no option of that name; expected one of disable_file_mapped_weights"
        ],
    ),
    "a setting that only QNN's own tools reach": (
        changed("[sm8650]", "[{soc: sm8350, provider_options: {dlbc: '1'}}]"),
        ["7:50: targets[0].provider_options.dlbc: can't be set: onnxruntime-qnn has no such option, only QNN's own"],
    ),
    "a provider option that has a field": (
        changed("[sm8650]", "[{soc: sm8350, provider_options: {qnn_context_priority: high}}]"),
        ["7:66: targets[0].provider_options.qnn_context_priority: can't be set: say 'priority'"],
    ),
    "an optimization that there is not": (
        changed("[sm8650]", "[{soc: sm8350, optimization: 4}]"),
        ["7:39: targets[0].optimization: number 4; expected an integer from 0 to 3"],
    ),
    "targets in one binary that are compiled otherwise": (
        changed("[sm8650]", "[sm8650, {soc: sm8550, priority: high}]") + "packing: socs\n",
        ["8:10: packing: targets that are compiled with other options can't share a binary"],
    ),
    "a compiler that makes no binaries that share": (
        changed("[sm8650]", "[sm8650, sm8550]") + "packing: buckets\ncompiler: qairt\n",
        ["9:11: compiler: the QAIRT SDK's tools make one binary for one bucket and target here"],
    ),
    "neither host nor device": (
        changed("[sm8650]", "[{soc: sm8350, compile: phone}]"),
        ["7:34: targets[0].compile: 'phone' is not known here; expected host or device"],
    ),
    "buckets in one binary that the device makes": (
        changed("[sm8650]", "[{soc: sm8650, compile: device}]") + "packing: buckets\n",
        [
            "8:10: packing: contexts for sm8650 are compiled on the device, which makes no binaries that share; "
            "expected packing: separate, or for the target compile: host"
        ],
    ),
    "targets in one binary, of which the device makes one": (
        changed("[sm8650]", "[sm8650, sm8350]") + "packing: socs\n",
        ["8:10: packing: contexts for sm8350 are compiled on the device"],
    ),
    "fp16 where the HTP has none": (
        changed("[sm8650]", "[sm8650, sm8350]") + "quantization:\n  precision: fp16\n",
        [
            "9:14: quantization.precision: component 'encoder' can't be fp16 on sm8350, whose HTP is v68; expected "
            "targets from HTP v73 on, or quantization to integers"
        ],
    ),
    "one component fp16 where the HTP has none": (
        changed("[sm8650]", "[sm8350]").replace("onnx}", "onnx, quantization: {precision: fp16}}"),
        ["3:62: components.encoder.quantization.precision: component 'encoder' can't be fp16 on sm8350, whose HTP is"],
    ),
    "misspelt precision": (
        GOOD + "quantization: {precison: fp16}\n",
        ["8:16: quantization.precison: unknown key; did you mean 'precision'?"],
    ),
    "misspelt key of the other quantization": (
        GOOD + "quantization: {per_chanel: true}\n",
        ["8:16: quantization.per_chanel: unknown key; did you mean 'per_channel'?"],
    ),
    "a line break and a terminal escape": (
        changed("[sm8650]", '["sm\\n\\e[31m"]'),
        ["7:11: targets[0]: unknown target 'sm\\n\\x1b[31m'; expected a SoC"],
    ),
    "verified on the calibration samples": (
        GOOD + "verification: {samples: {reader: text, file: ./calibration/lines.txt, max_samples: 8}}\n",
        ["8:25: verification.samples: the same samples as calibration; expected other samples, held out from"],
    ),
    "no calibration": (
        changed("calibration: {reader: text, file: calibration/lines.txt}\n", ""),
        ["1:1: calibration: is missing; expected samples, as in calibration: {reader: text, file: ...}, or quantiz"],
    ),
    "no calibration for one of two": (
        changed("calibration: {reader: text, file: calibration/lines.txt}", "quantization: {precision: fp16}").replace(
            "  encoder:", "  second: {file: b.onnx, quantization: {weights: int8}}\n  encoder:"
        ),
        ["1:1: calibration: is missing; expected samples"],
    ),
    "no calibration, and no component that could be read": (
        changed("calibration: {reader: text, file: calibration/lines.txt}\n", "").replace("model.onnx", "model.pt"),
        ["1:1: calibration: is missing", "3:19: components.encoder.file: text 'onnx/model.pt'"],
    ),
    "no calibration, and a component that may do without": (
        changed("calibration: {reader: text, file: calibration/lines.txt}\n", "").replace(
            "model.onnx", "model.pt, quantization: {precision: fp16}"
        ),
        ["3:19: components.encoder.file: text 'onnx/model.pt'"],
    ),
    "a key twice": (
        GOOD + "fixed: {batch: 2}\n",
        ["8:1: fixed: key 'fixed' is written twice, first on line 4; expected each key once"],
    ),
    "a tag": (
        changed("batch: 1", "batch: !!int 1"),
        ["4:16: fixed.batch: tag 'tag:yaml.org,2002:int'; expected a plain value, without a tag"],
    ),
    "an alias": (
        changed("{batch: 1}", "{batch: &n 1, other: *n}"),
        ["4:29: fixed.other: alias '*n'; expected the value written out"],
    ),
    "a second document": (GOOD + "---\na: 1\n", ["8:1: a second document begins here; expected one document a file"]),
    "empty": ("# nothing\n", ["1:1: is empty; expected a mapping"]),
    "a list": ("- 1\n", ["1:1: a list; expected a mapping with source, components, targets"]),
    "a tab": (
        changed("  encoder:", "\tencoder:"),
        ["3:1: is not YAML: while scanning for the next token, found character that cannot start any token; expected "],
    ),
    "not UTF-8": (b"source: {path: ..}\nname: caf\xe9\n", ["2:10: byte 0xe9 is not UTF-8; expected UTF-8"]),
    "unprintable": ("a: 1\nb: \x07\n", ["2:4: character U+0007 is not allowed; expected printable text"]),
    "too large": (b"#" * (1 << 20) + b"\n", ["1:1: is too large; expected at most 1048576 bytes"]),
    "too deep": ("a: " + "[" * 17 + "]" * 17 + "\n", ["1:20: nested too deeply; expected at most 16 levels"]),
    "too many": ("a: [" + "1," * 20_000 + "]\n", ["1:39999: too many values; expected at most 20000 in a file"]),
    "not closed": ("a: [1\n", ["2:1: is not YAML: "]),
}

PROJECT_MISTAKES: dict[str, tuple[str | bytes, list[str]]] = {
    "unknown key": ("stores: {}\n", ["1:1: stores: unknown key; did you mean 'store'?"]),
    "unknown key, nothing near": (
        "zzz: 1\n",
        ["1:1: zzz: unknown key; expected one of store, stages, engine, compare"],
    ),
    "unknown key of the store": ("store: {shard: a}\n", ["1:9: store.shard: unknown key; did you mean 'shared'?"]),
    "no place for the store": ("store: {shared: 1}\n", ["1:17: store.shared: number 1; expected a folder or a URL"]),
    "unknown stage": (
        "stages:\n  contxt: {hosts: [x86_64]}\n",
        ["2:3: stages.contxt: 'contxt' is not known here; expected * or fetch or"],
    ),
    "a stage without hosts": ("stages: {fetch: {}}\n", ["1:17: stages.fetch.hosts: is missing; expected a list"]),
    "no hosts": (
        "stages: {'*': {hosts: []}}\n",
        ["1:23: stages['*'].hosts: is empty; expected at least one host name, such as [x86_64]"],
    ),
    "one host, no list": ("stages: {fetch: {hosts: a}}\n", ["1:25: stages.fetch.hosts: text 'a'; expected a list"]),
    "another word for an architecture": (
        "stages: {context: {hosts: [quantizer, arm64]}}\n",
        ["1:39: stages.context.hosts[1]: no host has the name 'arm64'; did you mean 'aarch64'?"],
    ),
    "a name the other way round": (
        "stages: {context: {hosts: [arm64-windows]}}\n",
        ["1:28: stages.context.hosts[0]: no host has the name 'arm64-windows'; did you mean 'windows-aarch64'?"],
    ),
    "a misspelt SoC": (
        "stages: {context: {hosts: [snapdragon-x-elit]}}\n",
        ["1:28: stages.context.hosts[0]: no host has the name 'snapdragon-x-elit'; did you mean 'snapdragon-x-elite'?"],
    ),
    "a host twice": (
        "stages: {fetch: {hosts: [sm8650, a, SM8650]}}\n",
        ["1:37: stages.fetch.hosts[2]: the same as entry [0]; expected each once"],
    ),
    "no name": (
        "stages: {fetch: {hosts: ['a,b']}}\n",
        ["1:26: stages.fetch.hosts[0]: text 'a,b'; expected a host name"],
    ),
    "a limit below zero": ("compare: {snr_db: -1}\n", ["1:19: compare.snr_db: number -1; expected 0 or more"]),
    "no limit": ("compare: {score: }\n", ["1:18: compare.score: no value; expected a number"]),
    "a model": (GOOD, ["1:1: describes a model; expected another name for it: in this file are settings"]),
    "a list": ("- 1\n", ["1:1: a list; expected a mapping with store, stages, engine, compare"]),
    "not UTF-8": (b"store: caf\xe9\n", ["1:11: byte 0xe9 is not UTF-8; expected UTF-8"]),
    "a key twice": ("store: {}\nstore: {}\n", ["2:1: store: key 'store' is written twice, first on line 1"]),
}
"""The same for `configs/project.yaml`."""
