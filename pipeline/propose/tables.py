"""The vocabulary that goes with a model's ids: which of the files beside it has one, and how it reads a text."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import CalibrationError
from pipeline.inputs.samples.vocabulary import read_vocabularies
from pipeline.propose.found_model import FoundModel

_UNKNOWN = ("<unk>", "[UNK]", "<UNK>", "UNK", "unk", "<oov>", "[OOV]", "<OOV>")
_BEGIN = ("[CLS]", "<s>", "<bos>", "<BOS>", "<sos>", "<SOS>")
_END = ("[SEP]", "</s>", "<eos>", "<EOS>")
_MOSTLY = 0.8


@dataclass(frozen=True)
class FoundTable:
    """A vocabulary of `file`, in JSON at `key`, of `size` tokens; the rest as a config's :class:`TokenTable` has it."""

    file: str
    key: str
    size: int
    tokens: str
    lowercase: bool
    unknown: str | None
    begin: str | None
    end: str | None


def find_table(found: FoundModel, rows: int | None) -> FoundTable | None:
    """The vocabulary beside a model whose ids look up a table of `rows`: the one with as many tokens, or nearly."""
    fitting: list[tuple[int, str, str, dict[str, int]]] = []
    for file, path in found.tables.items():
        try:
            tables = read_vocabularies(path, file)
        except (CalibrationError, OSError):
            continue
        for key, tokens in tables.items():
            missing = 0 if rows is None else rows - 1 - max(tokens.values(), default=0)
            if len(tokens) > 1 and 0 <= missing <= (rows or 0) // 2:
                fitting.append((missing, file, key, tokens))
    if not fitting:
        return None
    _, file, key, tokens = min(fitting, key=lambda each: each[0])  # of equals, the nearest to the root
    plain = [token for token in tokens if not (token.startswith(("<", "[")) and token.endswith((">", "]")))]
    single = sum(len(token) == 1 for token in plain) / max(1, len(plain))
    kind = "characters" if single >= _MOSTLY else "pieces" if any(t.startswith("##") for t in plain) else "words"
    cased = any(token != token.lower() for token in plain)
    small = any(token != token.upper() for token in plain)
    unknown, begin, end = (next((t for t in among if t in tokens), None) for among in (_UNKNOWN, _BEGIN, _END))
    return FoundTable(file, key, len(tokens), kind, small and not cased, unknown, begin, end)
