"""The user script of the Olive runs: lines of text, cut and padded to one length. Runs in Olive's own environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from olive.data.registry import Registry  # type: ignore[import-not-found,unused-ignore]
from tokenizers import Tokenizer

Item = tuple[dict[str, NDArray[np.int64]], int]


class Texts:
    """Samples as Olive wants them: inputs by name without the batch axis, int64 [length] each, and a label."""

    def __init__(self, lines: Sequence[str], tokenizer: Tokenizer, length: int) -> None:
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(length=length)
        self._encoded = tokenizer.encode_batch(list(lines))

    def __len__(self) -> int:
        return len(self._encoded)

    def __getitem__(self, index: int) -> Item:
        encoding = self._encoded[index]
        inputs = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask}
        return {name: np.array(values, np.int64) for name, values in inputs.items()}, 0


@Registry.register_dataset()  # type: ignore[untyped-decorator,unused-ignore]
def lines_of_text(lines: str, tokenizer: str, length: int, **_: object) -> Texts:
    """The data set that the config names."""
    return Texts(Path(lines).read_text("utf-8").splitlines(), Tokenizer.from_file(tokenizer), length)
