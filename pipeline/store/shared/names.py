"""The names of files in a shared store.

objects/<2 hex>/<sha256>       payloads
manifests/<2 hex>/<key>.json   what the step with that key produced, as in the store of a machine
"""

from __future__ import annotations

MANIFESTS = "manifests"
PLACES = "places"
"""The name under which shared stores are in the file that says what they are known to have."""
MANIFEST_BYTES = 64 << 20
"""How many bytes of a manifest are read: more than any has."""


def manifest_name(key: str) -> str:
    """The name of a manifest."""
    return f"{MANIFESTS}/{key[:2]}/{key}.json"


def object_name(sha256: str) -> str:
    """The name of a payload."""
    return f"objects/{sha256[:2]}/{sha256}"
