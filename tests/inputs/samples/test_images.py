"""The samples step with reader `images`: what becomes of a picture, and what is refused."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pipeline.model import Json
from tests.support.sample_sets import SampleStep, arrays, calls, net_step, refusal

NCHW = "net (float[batch, 3, 4, 6] pixels) => (float[batch, 3, 4, 6] y) { y = Neg (pixels) }"
NHWC = "net (float[batch, 4, 6, 3] pixels) => (float[batch, 4, 6, 3] y) { y = Neg (pixels) }"
GRAY = "net (float[1, 1, 4, 6] pixels) => (float[1, 1, 4, 6] y) { y = Neg (pixels) }"
FREE = "net (float[1, 3, 4, width] pixels) => (float[1, 3, 4, width] y) { y = Neg (pixels) }"
BYTES = "net (uint8[1, 4, 6, 3] pixels) => (uint8[1, 4, 6, 3] y) { y = Identity (pixels) }"
OPEN = "net (float[1, 3, height, width] pixels) => (float[1, 3, height, width] y) { y = Neg (pixels) }"


def reading(**said: Json) -> dict[str, Json]:
    return {"reader": "images", "images": {**said}}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    return folder


def colours(width: int, height: int) -> Image.Image:
    """A picture whose red counts columns, whose green counts rows, and whose blue is 7."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, :, 0] = np.arange(width)
    pixels[:, :, 1] = np.arange(height)[:, None]
    pixels[:, :, 2] = 7
    return Image.fromarray(pixels)


def only(step: SampleStep, pictures: Path, **said: Json) -> NDArray[Any]:
    (found,) = arrays(step.run(reading(**said), pictures), "net")
    return found["pixels"]


def test_pixels_are_scaled_then_normalized_in_float32(tmp_path: Path, pictures: Path) -> None:
    colours(6, 4).save(pictures / "a.png")
    made = only(net_step(tmp_path, NCHW), pictures, scale=0.5, mean=[1.0, 0.5, 3.5], std=[2.0, 1.0, 4.0])
    assert made.shape == (1, 3, 4, 6)
    assert made.dtype == np.float32
    assert made[0, 0, 0].tolist() == [-0.5, -0.25, 0.0, 0.25, 0.5, 0.75]
    assert made[0, 1, :, 0].tolist() == [-0.5, 0.0, 0.5, 1.0]
    assert not made[0, 2].any()


def test_color_order_and_layout_are_the_models(tmp_path: Path, pictures: Path) -> None:
    colours(6, 4).save(pictures / "a.png")
    made = only(net_step(tmp_path, NHWC), pictures, scale=1.0, color="bgr")
    assert made.shape == (1, 4, 6, 3)
    assert made[0, 3, 5].tolist() == [7, 3, 5]


def test_one_channel_is_gray_and_bytes_stay_bytes(tmp_path: Path, pictures: Path) -> None:
    Image.new("RGB", (6, 4), (255, 255, 255)).save(pictures / "a.png")
    assert only(net_step(tmp_path / "gray", GRAY), pictures).tolist() == [[[[1.0] * 6] * 4]]
    colours(6, 4).save(pictures / "a.png")
    made = only(net_step(tmp_path / "bytes", BYTES), pictures)
    assert made.dtype == np.uint8
    assert made[0, 3, 5].tolist() == [5, 3, 7]


def test_letterbox_keeps_the_ratio_and_fills_the_rest(tmp_path: Path, pictures: Path) -> None:
    Image.new("RGB", (40, 40), (200, 200, 200)).save(pictures / "a.png")
    made = only(net_step(tmp_path, NCHW), pictures, scale=1.0, fit="letterbox", fill=9)
    assert made[0, 0].tolist() == [[9, 200, 200, 200, 200, 9]] * 4


def test_crop_takes_the_middle(tmp_path: Path, pictures: Path) -> None:
    colours(20, 8).save(pictures / "a.png")
    made = only(net_step(tmp_path, NCHW), pictures, scale=1.0, fit="crop", edge=8, resample="nearest")
    assert made[0, 0, 0].tolist() == [7, 8, 9, 10, 11, 12]
    assert made[0, 1, :, 0].tolist() == [2, 3, 4, 5]


def test_a_free_side_follows_the_ratio_up_to_the_largest_bucket(tmp_path: Path, pictures: Path) -> None:
    free = net_step(tmp_path, FREE, {"8": {"width": 8}, "16": {"width": 16}})
    Image.new("RGB", (24, 8)).save(pictures / "a.png")
    Image.new("RGB", (999, 8)).save(pictures / "b.png")
    found = arrays(free.run(reading(size=[4, 0]), pictures), "net")
    assert [each["pixels"].shape for each in found] == [(1, 3, 4, 12), (1, 3, 4, 16)]


def test_pictures_are_read_by_path_and_folders_are_labels(tmp_path: Path, pictures: Path) -> None:
    for name in ("b.png", "cat/z.JPG", "cat/a.webp", "notes.txt"):
        (pictures / name).parent.mkdir(exist_ok=True)
        if name == "notes.txt":
            (pictures / name).write_text("no picture")
        else:
            colours(6, 4).convert("RGB").save(pictures / name)
    found = calls(net_step(tmp_path, NCHW).run(reading(), pictures), "net")
    assert [(call.name, call.sample.label) for call in found] == [
        ("b.png", None),
        ("cat/a.webp", "cat"),
        ("cat/z.JPG", "cat"),
    ]


def test_a_turned_picture_is_set_upright(tmp_path: Path, pictures: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    colours(4, 6).save(pictures / "a.png", exif=exif)
    made = only(net_step(tmp_path, NCHW), pictures, scale=1.0)
    assert made[0, 1, 0].tolist() == [5, 4, 3, 2, 1, 0]


PROCESSOR = {
    "do_resize": True,
    "size": {"shortest_edge": 8},
    "resample": 0,
    "do_center_crop": True,
    "crop_size": {"height": 4, "width": 6},
    "do_rescale": True,
    "rescale_factor": 0.5,
    "do_normalize": True,
    "image_mean": [1.0, 0.5, 3.5],
    "image_std": [0.5, 0.5, 0.5],
}


def processed(tmp_path: Path, said: object) -> SampleStep:
    found = net_step(tmp_path, NCHW)
    (found.inputs["fetch"].folder / "preprocessor_config.json").write_text(json.dumps(said))
    return found


def test_a_processor_file_says_it_all_and_the_config_goes_before_it(tmp_path: Path, pictures: Path) -> None:
    colours(20, 8).save(pictures / "a.png")
    of_file = processed(tmp_path, PROCESSOR)
    made = only(of_file, pictures, processor="preprocessor_config.json")
    assert made[0, 0, 0].tolist() == [(column * 0.5 - 1) / 0.5 for column in range(7, 13)]
    made = only(of_file, pictures, processor="preprocessor_config.json", mean=[0.0], std=[1.0])
    assert made[0, 0, 0].tolist() == [column * 0.5 for column in range(7, 13)]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([1], "it is no JSON object"),
        ({"size": {"shortest_edge": 8, "longest_edge": 99}}, "keeps the ratio of each picture"),
        ({"size": "large"}, 'its size is "large"'),
        ({"do_normalize": True}, "'image_mean'"),
    ],
)
def test_a_processor_file_that_can_not_be_followed_is_refused(
    tmp_path: Path, pictures: Path, said: object, why: str
) -> None:
    colours(6, 4).save(pictures / "a.png")
    text = refusal(processed(tmp_path, said), reading(processor="preprocessor_config.json"), pictures)
    assert "preprocessor_config.json does not say how pictures are prepared" in text
    assert why in text


def test_a_set_without_pictures_is_refused(tmp_path: Path, pictures: Path) -> None:
    (pictures / "readme.txt").write_text("soon")
    text = refusal(net_step(tmp_path, NCHW), reading(), pictures)
    assert "the calibration set is empty: pictures holds no picture" in text
    assert ".jpg" in text


def bomb() -> bytes:
    """A PNG of a hundred bytes that says that it has 60,000 by 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def cut() -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(stream, "PNG")
    return stream.getvalue()[:-900]


def deep() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "UnidentifiedImageError"),
        (b"GIF89a", "UnidentifiedImageError"),
        (cut(), "OSError"),
        (bomb(), "60000"),
        (deep(), "8 bits a channel are read"),
    ],
    ids=["empty", "no picture", "cut", "bomb", "16 bits"],
)
def test_a_picture_that_can_not_be_read_is_named(tmp_path: Path, pictures: Path, data: bytes, why: str) -> None:
    (pictures / "bad.png").write_bytes(data)
    text = refusal(net_step(tmp_path, NCHW), reading(), pictures)
    assert "the picture bad.png can't be read" in text
    assert why in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"input": "pixel"}, "the model has no input 'pixel'"),
        ({"color": "gray"}, "calibration.color is gray"),
        ({"mean": [0.1, 0.2]}, "calibration.mean has 2 values"),
        ({"std": [0.0]}, "calibration.std holds a 0"),
        ({"size": [4, 0], "fit": "crop"}, "calibration.size leaves a side free, and fit is crop"),
        ({"size": [8, 8]}, "input 'pixels' has 8 in dim 2"),
        ({"processor": "preprocessor.json"}, "the source has no file 'preprocessor.json'"),
    ],
)
def test_what_does_not_fit_the_input_is_refused(
    tmp_path: Path, pictures: Path, said: dict[str, Json], text: str
) -> None:
    colours(6, 4).save(pictures / "a.png")
    assert text in refusal(net_step(tmp_path, NCHW), reading(**said), pictures)


def test_a_size_that_nothing_says_is_asked_for(tmp_path: Path, pictures: Path) -> None:
    colours(6, 4).save(pictures / "a.png")
    assert "it is not said how large the pictures are" in refusal(net_step(tmp_path, OPEN), reading(), pictures)
