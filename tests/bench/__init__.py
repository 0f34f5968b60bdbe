"""The benchmark: `uv run python -m bench` measures this pipeline beside what its users would run otherwise."""
