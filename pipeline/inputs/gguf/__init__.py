"""GGUF files: what is in them, their numbers as float32, and the tokenizer that they carry."""
