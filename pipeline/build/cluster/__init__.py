"""Steps on many machines: Dask hands them out, the shared store has the data."""

REFUSALS_REMEDY = "check out the same commit there, run 'uv sync --extra cluster', and start the worker again"
"""What to do about a worker that is not as the build has it."""
