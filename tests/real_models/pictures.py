"""Pictures: lines of text, pages, captchas and photos with people, drawn or cut from what ships in packages."""

from __future__ import annotations

import io
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

from tests.real_models.model import Share
from tests.real_models.packages import FONTS, PEOPLE, PHOTOS, Package, read

Pixels = NDArray[np.uint8]
_FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono", "DejaVuSerif-Italic", "STIXGeneral",
    "STIXGeneralBol", "DejaVuSans-Oblique",
)  # fmt: skip
_PHOTOS: dict[Share, list[tuple[Package, str]]] = {
    Share.CALIBRATION: [
        (PEOPLE, "ultralytics/assets/bus.jpg"),
        (PHOTOS, "skimage/data/coffee.png"),
        (PHOTOS, "skimage/data/rocket.jpg"),
        (PHOTOS, "skimage/data/motorcycle_left.png"),
        (PHOTOS, "skimage/data/camera.png"),
    ],
    Share.UNSEEN: [
        (PEOPLE, "ultralytics/assets/zidane.jpg"),
        (PHOTOS, "skimage/data/astronaut.png"),
        (PHOTOS, "skimage/data/chelsea.png"),
        (PHOTOS, "skimage/data/coins.png"),
    ],
}
_WITH_PEOPLE = {Share.CALIBRATION: (0, 4), Share.UNSEEN: (0, 1)}
_WORDS = {
    Share.CALIBRATION: (
        "harbour ticket window Garden No. platform Exit invoice coffee market Street 24h open monday price total "
        "library museum Parking level fresh bread water hotel Room bicycle repair north bridge station customer "
        "copy return deposit warranty number serial model summer winter fruit orange apple lemon green silver"
    ),
    Share.UNSEEN: (
        "airport luggage Counter closed sunday lunch menu soup salad pepper chapter figure table engine oil filter "
        "battery charger cable adapter Doctor appointment hospital nurse pharmacy school teacher pupil notebook "
        "pencil Theatre concert piano violin balcony row seat island ferry captain anchor mountain valley river"
    ),
}


@cache
def _font(face: int, size: int) -> ImageFont.FreeTypeFont:
    data = read(FONTS, f"matplotlib/mpl-data/fonts/ttf/{_FACES[face]}.ttf")
    return ImageFont.truetype(io.BytesIO(data), size)


@cache
def _photo(share: Share, number: int) -> Image.Image:
    package, member = _PHOTOS[share][number]
    return Image.open(io.BytesIO(read(package, member))).convert("RGB")


def _any_font(rng: np.random.Generator, size: int) -> ImageFont.FreeTypeFont:
    return _font(int(rng.integers(len(_FACES))), size)


def phrase(rng: np.random.Generator, share: Share, most: int = 4) -> str:
    """One to `most` words, with numbers and punctuation among them."""
    words = [str(rng.choice(_WORDS[share].split())) for _ in range(int(rng.integers(1, most + 1)))]
    if rng.random() < 0.4:
        number = int(rng.integers(1, 99_999))
        words.insert(int(rng.integers(len(words) + 1)), f"{number / 100:.2f}" if rng.random() < 0.5 else str(number))
    text = " ".join(words)
    return text.upper() if rng.random() < 0.2 else text


def background(rng: np.random.Generator, share: Share, width: int, height: int, light: bool) -> Image.Image:
    """Plain, a gradient, noise or a faded photo; light enough for dark text, or the reverse."""
    low, high = (175, 256) if light else (0, 80)
    kind = int(rng.integers(4))
    colour = rng.integers(low, high, 3)
    if kind == 1:
        ramp = np.linspace(0, 1, width)[None, :, None] * (rng.integers(low, high, 3) - colour) + colour
        return Image.fromarray(np.broadcast_to(ramp, (height, width, 3)).astype(np.uint8))
    if kind == 2:
        noise = colour + rng.normal(0, 10, (height, width, 3))
        return Image.fromarray(noise.clip(0, 255).astype(np.uint8))
    plain = Image.new("RGB", (width, height), tuple(int(part) for part in colour))
    if kind == 3:
        cut = ImageOps.fit(_photo(share, int(rng.integers(len(_PHOTOS[share])))), (width, height))
        return Image.blend(plain, cut, 0.25)
    return plain


def _ink(rng: np.random.Generator, light: bool) -> tuple[int, int, int]:
    low, high = (0, 90) if light else (190, 256)
    red, green, blue = (int(part) for part in rng.integers(low, high, 3))
    return red, green, blue


def text_line(rng: np.random.Generator, share: Share, text: str) -> Image.Image:
    """A line of text as a detector would cut it out: some margin, at times askew or out of focus."""
    font = _any_font(rng, int(rng.integers(24, 44)))
    left, top, right, bottom = font.getbbox(text)
    margin = int(rng.integers(2, 8))
    width, height = int(right - left) + 2 * margin, int(bottom - top) + 2 * margin
    light = bool(rng.random() < 0.7)
    picture = background(rng, share, width, height, light)
    ImageDraw.Draw(picture).text((margin - left, margin - top), text, fill=_ink(rng, light), font=font)
    if rng.random() < 0.3:
        picture = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.3, 0.9))))
    return picture


def page(rng: np.random.Generator, share: Share, size: int) -> Image.Image:
    """A square scene with some lines of text that don't touch each other."""
    light = bool(rng.random() < 0.6)
    picture = background(rng, share, size, size, light)
    draw = ImageDraw.Draw(picture)
    top = float(rng.integers(10, 50))
    while top < size - 60:
        font = _any_font(rng, int(rng.integers(18, 46)))
        text = phrase(rng, share)
        left, _, right, bottom = font.getbbox(text)
        if right - left < size - 40:
            draw.text((float(rng.integers(10, size - int(right - left) - 10)), top), text, _ink(rng, light), font)
        top += bottom + float(rng.integers(18, 70))
    return picture


def captcha(rng: np.random.Generator, share: Share) -> tuple[Image.Image, str]:
    """Four to six letters and digits, jittered and struck through; what stands there is the second value."""
    letters = "abcdefghkmnprstuvwxyzABCDEFGHKLMNPRSTUVWXYZ23456789"
    text = "".join(str(letter) for letter in rng.choice(list(letters), int(rng.integers(4, 7))))
    picture = background(rng, share, 30 * len(text) + 20, 60, light=True)
    for place, letter in enumerate(text):
        tile = Image.new("RGBA", (48, 56))
        ImageDraw.Draw(tile).text((8, 2), letter, (*_ink(rng, True), 255), _any_font(rng, int(rng.integers(30, 42))))
        tile = tile.rotate(float(rng.uniform(-18, 18)), Image.Resampling.BICUBIC)
        picture.paste(tile, (6 + 30 * place, int(rng.integers(-2, 8))), tile)
    draw = ImageDraw.Draw(picture)
    for _ in range(int(rng.integers(0, 3))):
        ends = [float(value) for value in rng.integers(0, (picture.width, 60, picture.width, 60))]
        draw.line(ends, _ink(rng, True), 1)
    return picture, text


def puzzle(rng: np.random.Generator, share: Share) -> Image.Image:
    """A photo with large letters on it, which the user of a captcha is told to click on."""
    photo = _photo(share, int(rng.integers(len(_PHOTOS[share]))))
    picture = ImageOps.fit(photo, (344, 344 if rng.random() < 0.5 else 200))
    for place in range(int(rng.integers(2, 5))):
        letter = str(rng.choice(list("ABCDEFGHKLMNPRSTXYZ23456789")))
        tile = Image.new("RGBA", (72, 72))
        ink = tuple(int(part) for part in rng.integers(0, 256, 3))
        ImageDraw.Draw(tile).text(
            (14, 6), letter, (*ink, 255), _any_font(rng, 48), stroke_width=2, stroke_fill=(255, 255, 255, 255)
        )
        tile = tile.rotate(float(rng.uniform(-30, 30)), Image.Resampling.BICUBIC)
        picture.paste(tile, (8 + 82 * place, int(rng.integers(0, picture.height - 72))), tile)
    return picture


def people(rng: np.random.Generator, share: Share) -> Image.Image:
    """A photo with people: cut, mirrored and lit at random."""
    photo = _photo(share, int(rng.choice(_WITH_PEOPLE[share])))
    side = int(min(photo.size) * rng.uniform(0.7, 1.0))
    left, top = int(rng.integers(photo.width - side + 1)), int(rng.integers(photo.height - side + 1))
    cut = photo.crop((left, top, left + side, top + side))
    if rng.random() < 0.5:
        cut = ImageOps.mirror(cut)
    return ImageEnhance.Brightness(cut).enhance(float(rng.uniform(0.7, 1.3)))


def planes(picture: Image.Image, width: int, height: int, *, bgr: bool = False) -> NDArray[np.float32]:
    """float32 [3, height, width] from 0 to 255."""
    pixels = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR), np.float32)
    return np.ascontiguousarray(pixels[..., ::-1] if bgr else pixels).transpose(2, 0, 1)
