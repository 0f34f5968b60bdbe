"""Offline build pipeline: ONNX models to QNN context binaries."""
