"""Recognition of text in lines and captchas, and which way up a line is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from tests.real_models.model import Application, Array, Run, Share, Verdict, equal_share, first
from tests.real_models.pictures import captcha, phrase, planes, text_line

_CLEAR = 0.05  # a letter that is this much likelier than the next does not hang on rounding


@dataclass(frozen=True)
class Reading:
    """What a CTC head reads: its classes without repeats and blanks, equal if and only if the texts are.

    It is `clear` if every letter has a step where it is likelier than any other class by 0.05.
    """

    classes: tuple[int, ...]
    clear: bool


_LINES = {Share.CALIBRATION: 64, Share.UNSEEN: 24}


def _line(picture: Image.Image, height: int, width: int) -> Array:
    """float32 [1, 3, height, width] from -1 to 1, the aspect kept, filled up with 0 on the right."""
    wide = min(width, math.ceil(picture.width * height / picture.height))
    out = np.zeros((1, 3, height, width), np.float32)
    out[0, :, :, :wide] = planes(picture, wide, height, bgr=True) / 127.5 - 1
    return out


def _decoded(scores: Array) -> Reading:
    """Greedy CTC of probabilities, float [steps, classes]; class 0 is the blank."""
    best = scores.argmax(axis=-1).tolist()
    second, first_ = np.sort(scores, axis=-1)[:, -2:].T
    margins = (first_ - second).tolist()
    letters: list[int] = []
    clearest: list[float] = []
    for place, label in enumerate(best):
        if label and place and label == best[place - 1]:
            clearest[-1] = max(clearest[-1], margins[place])
        elif label:
            letters.append(label)
            clearest.append(margins[place])
    return Reading(tuple(letters), min(clearest, default=1.0) >= _CLEAR)


def _same_texts(expected: Sequence[Reading], actual: Sequence[Reading]) -> Verdict:
    """All texts must be equal that don't hang on a tie in the original."""
    pairs = [(one, other) for one, other in zip(expected, actual, strict=True) if one.clear]
    same = sum(one.classes == other.classes for one, other in pairs)
    ties = len(expected) - len(pairs)
    text = f"texts {same}/{len(pairs)}" + (f", {ties} more on a tie" if ties else "")
    return Verdict(same == len(pairs) > 0, text)


def _width(picture: Image.Image, widths: Sequence[int]) -> int:
    """The smallest width that holds the line at a height of 48, else the largest, to which it is squeezed."""
    need = math.ceil(picture.width * 48 / picture.height)
    return min((width for width in widths if width >= need), default=max(widths))


def recognition(widths: Sequence[int]) -> Application[Reading]:
    """PP-OCR's recognition: each line is padded to one of these widths, which the application has the right to."""

    def use(run: Run, share: Share) -> list[Reading]:
        rng = share.rng(1)
        found = []
        for number in range(_LINES[share]):
            most = 1 + number % 4 if len(widths) > 1 else 2
            picture = text_line(rng, share, phrase(rng, share, most))
            found.append(_decoded(first(run("rec", {"x": _line(picture, 48, _width(picture, widths))}))[0]))
        return found

    return Application(use, _same_texts)


def _turned(run: Run, share: Share) -> list[int]:
    rng = share.rng(2)
    found = []
    for number in range(_LINES[share]):
        picture = text_line(rng, share, phrase(rng, share))
        if number % 2:
            picture = picture.rotate(180)
        found.append(int(first(run("cls", {"x": _line(picture, 48, 192)})).argmax()))
    return found


def _captchas(run: Run, share: Share) -> list[Reading]:
    """The height becomes 64 and the width follows; a user who builds one width makes captchas of one width."""
    rng = share.rng(3)
    found = []
    for _ in range(_LINES[share]):
        picture, _ = captcha(rng, share)
        grey = np.asarray(picture.resize((CAPTCHA_WIDTH, 64), Image.Resampling.LANCZOS).convert("L"), np.float32)
        scores = first(run("ocr", {"input1": grey[None, None] / 255}))
        odds = np.exp(scores.reshape(-1, scores.shape[-1]) - scores.max())
        found.append(_decoded(odds / odds.sum(axis=-1, keepdims=True)))
    return found


CAPTCHA_WIDTH = 168
DIRECTION: Application[int] = Application(_turned, lambda one, other: equal_share(one, other, "labels"))
CAPTCHAS: Application[Reading] = Application(_captchas, _same_texts)
