"""Names of repositories: `owner/name` of a model, `datasets/owner/name` of data, as in the addresses of their pages."""

from __future__ import annotations

from pipeline.contracts.fetch import DATA


def is_data(repo: str) -> bool:
    """Whether a repository holds data, not a model."""
    return repo.startswith(f"{DATA}/")


def repo_id(repo: str) -> str:
    """The repository as `owner/name`, which is what the client calls it."""
    return repo.removeprefix(f"{DATA}/")


def repo_type(repo: str) -> str:
    """The repository's kind, which the client calls `model` or `dataset`."""
    return "dataset" if is_data(repo) else "model"


def api_path(repo: str) -> str:
    """The path of the repository in the hub's API."""
    return repo if is_data(repo) else f"models/{repo}"
