"""Detection: lines of text on a page, people in photos, letters of a captcha."""

from __future__ import annotations

import numpy as np

from tests.real_models.boxes import Box, compare_boxes, connected, without_overlaps
from tests.real_models.model import Application, Array, Run, Share, first
from tests.real_models.pictures import page, people, planes, puzzle

Boxes = list[Box]


def _text_boxes(probability: Array) -> Boxes:
    """Boxes of float [height, width], as PP-OCR makes them: regions above 0.3 whose mean is above 0.5, widened."""
    mask = probability > 0.3
    mask[1:] |= mask[:-1]
    mask[:, 1:] |= mask[:, :-1]
    found = []
    for region in connected(mask):
        (top, left), (bottom, right) = region.min(axis=0).tolist(), (region.max(axis=0) + 1).tolist()
        wide, high = right - left, bottom - top
        score = float(probability[top:bottom, left:right].mean())
        if min(wide, high) < 3 or score < 0.5:
            continue
        more = wide * high * 1.6 / (2 * (wide + high))
        found.append(Box(left - more, top - more, right + more, bottom + more, 0, score, score - 0.5))
    return found


def pages(size: int, count: int) -> Application[Boxes]:
    """PP-OCR's detection on square pages."""

    def use(run: Run, share: Share) -> list[Boxes]:
        rng = share.rng(4)
        found = []
        for _ in range(count if share is Share.UNSEEN else 16):
            pixels = planes(page(rng, share, size), size, size, bgr=True) / 127.5 - 1
            found.append(_text_boxes(first(run("det", {"x": pixels[None].astype(np.float32)}))[0, 0]))
        return found

    return Application(use, compare_boxes)


def _centred(boxes: Array, scores: Array, labels: Array, threshold: float) -> Boxes:
    """Boxes above the threshold, of float [count, 4] with centre and size."""
    found = []
    for place in np.flatnonzero(scores >= threshold):
        across, down, wide, high = (float(value) for value in boxes[place, :4])
        corners = (across - wide / 2, down - high / 2, across + wide / 2, down + high / 2)
        score = float(scores[place])
        found.append(Box(*corners, label=int(labels[place]), score=score, above=score - threshold))
    return found


def _photos(run: Run, share: Share) -> list[Boxes]:
    """YOLOv8: [1, 4 + classes, places] in pixels; scores from 0.25, overlaps up to 0.45."""
    rng = share.rng(5)
    found = []
    for _ in range(32 if share is Share.CALIBRATION else 8):
        pixels = planes(people(rng, share), 320, 320)[None] / 255
        places = first(run("yolo", {"images": pixels.astype(np.float32)}))[0].T
        scores = places[:, 4:]
        boxes = _centred(places, scores.max(axis=1), scores.argmax(axis=1), 0.25)
        found.append(without_overlaps(boxes, 0.45))
    return found


def _puzzles(run: Run, share: Share) -> list[Boxes]:
    """YOLOX at 416: [1, places, 4 + 1 + classes] in cells of three grids; scores from 0.1, overlaps up to 0.45."""
    cells, strides = [], []
    for stride in (8, 16, 32):
        side = 416 // stride
        down, across = np.mgrid[:side, :side]
        cells.append(np.stack([across, down], axis=-1).reshape(-1, 2))
        strides.append(np.full((side * side, 1), stride))
    grid, scale = np.concatenate(cells), np.concatenate(strides)
    rng = share.rng(6)
    found = []
    for _ in range(32 if share is Share.CALIBRATION else 8):
        picture = puzzle(rng, share)
        ratio = 416 / max(picture.size)
        wide, high = int(picture.width * ratio), int(picture.height * ratio)
        pixels = np.full((1, 3, 416, 416), 114, np.float32)
        pixels[0, :, :high, :wide] = np.asarray(planes(picture, wide, high, bgr=True)).round()
        places = first(run("det", {"images": pixels}))[0]
        boxes = np.concatenate([(places[:, :2] + grid) * scale, np.exp(places[:, 2:4]) * scale], axis=1)
        scores = places[:, 4:5] * places[:, 5:]
        found.append(without_overlaps(_centred(boxes, scores.max(axis=1), scores.argmax(axis=1), 0.1), 0.45))
    return found


PHOTOS: Application[Boxes] = Application(_photos, compare_boxes)
PUZZLES: Application[Boxes] = Application(_puzzles, compare_boxes)
