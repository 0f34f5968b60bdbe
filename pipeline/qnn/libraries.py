"""Where the QNN libraries are that come with onnxruntime-qnn. Doesn't load onnxruntime."""

from __future__ import annotations

from pathlib import Path

import onnxruntime_qnn


def sdk_library(name: str) -> Path:
    """The path of a library that onnxruntime-qnn bundles, by its base name, e.g. `QnnSystem`."""
    htp = Path(onnxruntime_qnn.get_qnn_htp_path())
    return htp.with_name(htp.name.replace("QnnHtp", name))
