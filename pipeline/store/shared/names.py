"""What things are called in a shared store.

objects/<2 hex>/<sha256>       payloads
manifests/<2 hex>/<key>.json   what the step with that key produced, as in the store of a machine
"""

from __future__ import annotations

MANIFESTS = "manifests"
PLACES = "places"
"""The name, in the file that says what shared stores are known to have, under which they are."""
MANIFEST_BYTES = 64 << 20
"""More than any manifest has: so much of one is read."""


def manifest_name(key: str) -> str:
    """The name of a manifest."""
    return f"{MANIFESTS}/{key[:2]}/{key}.json"


def object_name(sha256: str) -> str:
    """The name of a payload."""
    return f"objects/{sha256[:2]}/{sha256}"
