"""Reads the string by which ONNX Runtime decides whether a device can load a context."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

_FIELDS = 8


@dataclass(frozen=True)
class Compatibility:
    """`v2:<backend>:<SDK>:<API>:<arch,..>:<SoC,..>:<VTCM,..>:<driver>`; the three lists have an entry a target."""

    backend: str
    sdk: str
    api: str
    archs: tuple[str, ...]
    socs: tuple[str, ...]
    vtcm_mb: tuple[str, ...]
    driver: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The fields of a string; None if it has another form."""
        version, *fields = text.split(":")
        if version != "v2" or len(fields) != _FIELDS - 1:
            return None
        backend, sdk, api, *lists, driver = fields
        archs, socs, vtcm_mb = (tuple(column.split(",")) for column in lists)
        if not len(archs) == len(socs) == len(vtcm_mb) or len(set(socs)) != len(socs):
            return None
        return cls(backend, sdk, api, archs, socs, vtcm_mb, driver)

    def of(self, socs: Collection[int]) -> Self:
        """Only the entries of these SoCs, by their ids; their order stays."""
        kept = [number for number, soc in enumerate(self.socs) if soc in map(str, socs)]
        archs, ids, vtcm_mb = (
            tuple(column[number] for number in kept) for column in (self.archs, self.socs, self.vtcm_mb)
        )
        return replace(self, archs=archs, socs=ids, vtcm_mb=vtcm_mb)

    def __str__(self) -> str:
        lists = (",".join(column) for column in (self.archs, self.socs, self.vtcm_mb))
        return ":".join(("v2", self.backend, self.sdk, self.api, *lists, self.driver))
