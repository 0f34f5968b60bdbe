"""Where uv is: it runs the tests, and some of them need it to make other environments."""

from __future__ import annotations

import os
import shutil


def find_uv() -> str | None:
    """The uv that runs these tests, or any; what `pip install uv` installed need not be on the path."""
    return os.environ.get("UV") or shutil.which("uv")
