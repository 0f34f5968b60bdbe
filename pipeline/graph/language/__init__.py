"""Language models as ONNX graphs: built from weights by name, one module an architecture."""
