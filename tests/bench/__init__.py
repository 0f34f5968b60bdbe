"""The benchmark: `uv run python -m tests.bench` measures this pipeline beside what its users would run otherwise."""
