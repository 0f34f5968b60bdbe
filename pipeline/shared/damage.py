"""What is damaged in a shared store: found when it is read, said once, and remembered so that it is written anew."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pipeline.model import Manifest
from pipeline.shared.known import Known
from pipeline.shared.reach import Reach
from pipeline.storage.manifests import parse_manifest


@dataclass(frozen=True)
class Damage:
    """Notes what is damaged there."""

    reach: Reach
    known: Known

    def checked(self, key: str, stage: str, data: bytes) -> Manifest | None:
        """The manifest in what was found under a key; None, and noted, if it is not what was written."""
        manifest = parse_manifest(data)
        if manifest is not None and (manifest.key, manifest.stage) == (key, stage):
            return manifest
        self.note(key, (), f"what it knows of a step ({stage})", "it is not what was written")
        return None

    def note(self, key: str, payloads: Collection[str], what: str, fault: str) -> None:
        """Have an output written anew when it was made again, with the payloads of it that were not seen to be good."""
        self.known.note_bad(key, payloads)
        again = "it is not used, and written anew when it was made again"
        self.reach.tell_once(f"damaged {key}", f"damaged in the shared store: {what}: {fault}; {again}")
