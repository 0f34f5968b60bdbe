"""Random ONNX files, by kind: one function a form of an operator."""
