"""Reads GGUF files: metadata, weights as float32, and the tokenizer."""
