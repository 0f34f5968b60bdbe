"""What an application supplies for inputs that are longer than the largest bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray


class Splitter(Protocol):
    """Cuts an input into pieces, and makes one output of theirs. Only the application knows how a model allows that."""

    def split(
        self, inputs: Mapping[str, NDArray[Any]], limits: Mapping[str, int]
    ) -> Sequence[Mapping[str, NDArray[Any]]]:
        """The inputs as pieces, each with all inputs of the component; `limits` are the largest bucket's axes."""
        ...

    def join(
        self, outputs: Sequence[Mapping[str, NDArray[Any]]], inputs: Mapping[str, NDArray[Any]]
    ) -> Mapping[str, NDArray[Any]]:
        """The outputs of the pieces, in their order, as the output of the whole; `inputs` is what was given."""
        ...
