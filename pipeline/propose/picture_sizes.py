"""How large the pictures are that a model takes: what files beside it say, and what is tried where none does."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.propose.found_model import FoundModel
from pipeline.propose.guessed_axes import GuessedAxis
from pipeline.propose.interface import GuessedInput

Picture = tuple[int, int]
"""Height and width in pixels."""
USUAL: Picture = (224, 224)
OTHERS: tuple[Picture, ...] = (
    *((side, side) for side in (256, 512, 640, 384, 320, 448)),
    *((48, 320), (32, 320), (64, 320), (32, 128), (32, 100)),
    *((side, side) for side in (128, 112, 96, 64, 32, 28, 160, 192, 299, 300, 336, 480, 608, 768, 800, 1024)),
    *((256, 128), (256, 192), (384, 288)),
)
"""What models are trained with beside the usual size, in the order in which it is tried; wide ones: lines of text."""


def said_side(axis: GuessedAxis, found: FoundModel, inputs: Sequence[GuessedInput]) -> tuple[int, str] | None:
    """The height or width of pictures, and who says so; 0 where the other side is fixed by the graph and this is free.

    None where nothing says it.
    """
    said = found.said("preprocessor_config.json")
    for key in ("crop_size", "size"):
        match said.get(key):
            case {"height": int(height), "width": int(width)}:
                return (height if axis.kind == "height" else width), f"{key} of preprocessor_config.json"
            case {"shortest_edge": int(edge)} | int(edge):
                return edge, f"{key} of preprocessor_config.json"
    size = found.said("config.json").get("image_size")
    if isinstance(size, int):
        return size, "image_size of config.json"
    for given in inputs:
        shape = given.spec.shape
        if given.kind == "image" and axis.name in shape:
            others = [dim for dim in shape[1:] if isinstance(dim, int) and dim > 4]
            if others:
                return 0, f"GUESS: the other side is {others[0]}"
    return None


def guessed_side(axis: GuessedAxis, picture: Picture) -> tuple[int, str]:
    """The height or width of a size that is tried, and why it is."""
    why = "" if picture == USUAL else f"; the graph has no shapes for {USUAL[0]}"
    return picture[0 if axis.kind == "height" else 1], f"GUESS: what the model was trained with{why}"
