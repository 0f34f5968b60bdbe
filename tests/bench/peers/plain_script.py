"""The documented way with onnxruntime alone: one script from a float model to context binaries.

Written as somebody would who has read onnxruntime's pages on the QNN execution provider, with their options, and who
knows that the model's axes are called `batch` and `sequence`:

    python plain_script.py MODEL TOKENIZER LINES OUT --lengths 32,64,128 --socs 60 [--compile-only]

For each length: fix the shapes, preprocess for QNN, quantize to QDQ with uint16 activations and uint8 weights, compile.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_qnn
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model
from onnxruntime.tools.onnx_model_utils import fix_output_shapes, make_dim_param_fixed
from tokenizers import Tokenizer

EP = "QNNExecutionProvider"


class Texts(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Lines of text, cut and padded to one length."""

    def __init__(self, lines: Sequence[str], tokenizer: Tokenizer, length: int) -> None:
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(length=length)
        self._encoded = iter(tokenizer.encode_batch(list(lines)))

    def get_next(self) -> dict[str, NDArray[np.int64]] | None:
        """The next sample's inputs, int64 [1, length] each."""
        encoding = next(self._encoded, None)
        if encoding is None:
            return None
        return {
            "input_ids": np.array([encoding.ids], np.int64),
            "attention_mask": np.array([encoding.attention_mask], np.int64),
        }


def quantize_for(length: int, model: Path, texts: Texts, out: Path) -> Path:
    """Make the QDQ model of one length."""
    fixed = onnx.load(model)
    make_dim_param_fixed(fixed.graph, "batch", 1)
    make_dim_param_fixed(fixed.graph, "sequence", length)
    fix_output_shapes(fixed)
    del fixed.metadata_props[:]  # with any, the next call raises TypeError
    source = out / f"model_{length}.onnx"
    onnx.save(fixed, source)
    preprocessed = out / f"model_{length}.pre.onnx"
    if not qnn_preprocess_model(source, preprocessed):
        preprocessed = source
    config = get_qnn_qdq_config(
        preprocessed, texts, activation_type=QuantType.QUInt16, weight_type=QuantType.QUInt8, per_channel=True
    )
    quantized = out / f"model_{length}.qdq.onnx"
    quantize(preprocessed, quantized, config)
    return quantized


def compile_for(soc: str, quantized: Path, out: Path) -> None:
    """Make the context binary of one QDQ model for one SoC, by starting a session that asks for it."""
    context = out / f"soc_{soc}" / quantized.name.replace(".qdq.onnx", "_ctx.onnx")
    context.parent.mkdir(exist_ok=True)
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(context))
    options.add_session_config_entry("ep.context_embed_mode", "0")
    provider_options = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": soc,
        "enable_htp_prepare_only": "1",
        "htp_graph_finalization_optimization_mode": "3",
    }
    options.add_provider_for_devices([each for each in ort.get_ep_devices() if each.ep_name == EP], provider_options)
    ort.InferenceSession(str(quantized), options)
    if not context.exists():
        raise SystemExit(f"nothing was compiled of {quantized}")


def main() -> None:
    """Do it for all lengths and SoCs."""
    parser = argparse.ArgumentParser()
    for name in ("model", "tokenizer", "lines", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--lengths", required=True)
    parser.add_argument("--socs", required=True)
    parser.add_argument("--compile-only", action="store_true", help="the QDQ models are there already")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(asked.tokenizer))
    lines = asked.lines.read_text("utf-8").splitlines()
    ort.register_execution_provider_library(EP, onnxruntime_qnn.get_library_path())
    for length in map(int, asked.lengths.split(",")):
        quantized = asked.out / f"model_{length}.qdq.onnx"
        if not asked.compile_only:
            quantize_for(length, asked.model, Texts(lines, tokenizer, length), asked.out)
        for soc in asked.socs.split(","):
            compile_for(soc, quantized, asked.out)


if __name__ == "__main__":
    main()
