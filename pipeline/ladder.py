"""The accuracy ladder: its rungs, and what counts as exact. Limits are in :mod:`pipeline.config.thresholds`."""

EXACT_DB = 100.0
"""The most that is reported: below that, outputs differ by the order of float32 sums, which varies with the CPU."""

READING = "reading"
RUNGS = (READING, "padding", "rewrite", "quantization", "compile")
"""The rungs of the ladder, top down. The first is the model that was read, held against the source's own file."""
