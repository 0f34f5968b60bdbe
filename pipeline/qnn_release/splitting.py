"""The interface that an application implements to run inputs that are longer than the largest bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray


class Splitter(Protocol):
    """Cuts inputs into pieces and joins the outputs. Only the application knows how its model allows that."""

    def split(
        self, inputs: Mapping[str, NDArray[Any]], limits: Mapping[str, int]
    ) -> Sequence[Mapping[str, NDArray[Any]]]:
        """The pieces, each with all inputs of the component. `limits` has the lengths of the largest bucket's axes."""
        ...

    def join(
        self, outputs: Sequence[Mapping[str, NDArray[Any]]], inputs: Mapping[str, NDArray[Any]]
    ) -> Mapping[str, NDArray[Any]]:
        """The outputs for the whole `inputs`, made from `outputs`, those of the pieces in their order."""
        ...
