"""Readers: each turns what a config's `calibration` section names into calls of a model's components.

A reader is a function ``read(request: ReadRequest) -> Iterator[Call]``. It yields calls in a fixed order and the same
ones on every run: the calibration set is content, and content has one spelling.
"""
