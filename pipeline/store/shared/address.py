"""Finds where the shared store is, by the environment and the project's settings."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "PIPELINE_SHARED_STORE"


def configured(environ: Mapping[str, str], written: str | None, place: str) -> tuple[str, str]:
    """The URL of the shared store, "" for none, and where it is given: in the environment, else in the config.

    `written` is the URL in the config, and `place` where it stands there.
    """
    if VARIABLE in environ:
        return environ[VARIABLE].strip(), f"{VARIABLE} in the environment"
    return (written or "").strip(), place
