"""Folders with a language model as transformers saves it: config.json, safetensors, tokenizer.json."""
