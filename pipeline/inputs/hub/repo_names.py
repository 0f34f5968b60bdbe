"""Names of repositories: `owner/name` of a model, `datasets/owner/name` of data, as in the addresses of their pages."""

from __future__ import annotations

from pipeline.contracts.fetch import DATA


def is_data(repo: str) -> bool:
    """Whether a repository holds data, not a model."""
    return repo.startswith(f"{DATA}/")


def repo_id(repo: str) -> str:
    """`owner/name`, as the client calls it."""
    return repo.removeprefix(f"{DATA}/")


def repo_type(repo: str) -> str:
    """`model` or `dataset`, as the client calls them."""
    return "dataset" if is_data(repo) else "model"


def api_path(repo: str) -> str:
    """Where the hub's API has it."""
    return repo if is_data(repo) else f"models/{repo}"
