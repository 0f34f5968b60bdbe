"""Readers: each turns what a config's `calibration` section names into calls of a model's components.

A reader is a function ``read(request: ReadRequest) -> Iterator[Call]``. It yields the same calls in the same order on
every run, so that equal samples give equal bytes and equal keys.
"""
