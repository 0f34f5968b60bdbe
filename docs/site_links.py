"""A hook of mkdocs: links to files of the repository that are no pages become names of those files."""

from __future__ import annotations

import re
from typing import Any

_LINK = re.compile(r"\[([^\]\[]+)\]\((?!\w+:)((?:\.\./)+[^)#\s]*|[^)#\s]+\.(?:json|py|yaml))(?:#[^)\s]*)?\)")
_UP = re.compile(r"^(?:\.\./)+")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with links that lead out of docs/ as text: a site has no such files."""
    return _LINK.sub(_named, markdown)


def _named(link: re.Match[str]) -> str:
    text, target = link[1], _UP.sub("", link[2])
    return text if target in text or not target else f"{text} (`{target}`)"
