"""Stands in for the tools of the QAIRT SDK: takes the documented options and no other, and notes what it was given.

It makes no binary: the generator hands out the file `prepared.bin` of the SDK's folder. Nothing of the project is
imported here; the tools run in an environment of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import onnx

ROOT = Path(os.environ.get("QAIRT_SDK_ROOT", ""))


def main() -> None:
    """Be the tool by whose name this was called."""
    tool = Path(sys.argv[0]).name
    assert {"QAIRT_PYTHON", "PIPELINE_STEP_LOG", "VIRTUAL_ENV"}.isdisjoint(os.environ), "the environment is the SDK's"
    assert os.environ["LD_LIBRARY_PATH"] == str(ROOT / "lib/x86_64-linux-clang")
    if (ROOT / "broken").exists() and (ROOT / "broken").read_text() == tool:
        sys.exit("ERROR - Encountered Error: no such luck")
    given = {"qairt-converter": convert, "qairt-quantizer": quantize, "qnn-context-binary-generator": generate}[tool]()
    with (ROOT / "calls.jsonl").open("a") as stream:
        stream.write(json.dumps({"tool": tool, **vars(given)}) + "\n")


def parser() -> argparse.ArgumentParser:
    """Options may not be shortened."""
    return argparse.ArgumentParser(allow_abbrev=False)


def convert() -> argparse.Namespace:
    """Look into model and encodings."""
    options = parser()
    for name in ("--input_network", "--output_path", "--target_backend"):
        options.add_argument(name, required=True)
    options.add_argument("--quantization_overrides")
    options.add_argument("--float_bitwidth", choices=["16", "32"])
    options.add_argument("--onnx_skip_simplification", action="store_true")
    options.add_argument("--preserve_io_datatype", nargs="*")
    for name in (f"--{which}_{kind}_layout" for which in ("source_model", "desired") for kind in ("input", "output")):
        options.add_argument(name, nargs=2, action="append", default=[])
    given = options.parse_args()
    onnx.checker.check_model(given.input_network)
    model = onnx.load(given.input_network)
    assert not [node.name for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    for kind, values in {"input": model.graph.input, "output": model.graph.output}.items():
        named = [[value.name, "NONTRIVIAL"] for value in values]
        assert getattr(given, f"source_model_{kind}_layout") == getattr(given, f"desired_{kind}_layout") == named
    given.encodings = given.quantization_overrides and json.loads(Path(given.quantization_overrides).read_text())
    if given.encodings:
        values = {name for node in model.graph.node for name in (*node.input, *node.output)}
        weights = {tensor.name for tensor in model.graph.initializer}
        assert {each["name"] for each in given.encodings["activation_encodings"]} <= values - weights
        assert {each["name"] for each in given.encodings["param_encodings"]} <= weights
    Path(given.output_path).write_text("float")
    return given


def quantize() -> argparse.Namespace:
    """Take what the converter wrote."""
    options = parser()
    for name in ("--input_dlc", "--output_dlc", "--float_bitwidth", "--target_backend"):
        options.add_argument(name, required=True)
    options.add_argument("--enable_float_fallback", action="store_true")
    options.add_argument("--preserve_io_datatype", nargs="*")
    given = options.parse_args()
    assert Path(given.input_dlc).read_text() == "float"
    Path(given.output_dlc).write_text("quantized")
    return given


def generate() -> argparse.Namespace:
    """Hand out the binary that was prepared."""
    options = parser()
    for name in ("--dlc_path", "--backend", "--config_file", "--binary_file", "--output_dir"):
        options.add_argument(name, required=True)
    given = options.parse_args()
    given.dlc = Path(given.dlc_path).read_text()
    extensions = json.loads(Path(given.config_file).read_text())["backend_extensions"]
    for library in (given.backend, extensions["shared_library_path"]):
        assert Path(library).is_file(), library
    given.settings = json.loads(Path(extensions["config_file_path"]).read_text())
    shutil.copyfile(ROOT / "prepared.bin", Path(given.output_dir, f"{given.binary_file}.bin"))
    return given


if __name__ == "__main__":
    main()
