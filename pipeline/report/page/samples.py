"""The part of a page that shows the worst samples as pictures, curves or numbers, beside the original's."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from pipeline.config.readers import ImagesReader
from pipeline.contracts.preview import Pair, Preview, Shown
from pipeline.report.page import charts
from pipeline.report.page.markup import Content, element, figure, folded, note, picture, section, table
from pipeline.report.page.source import Measurement, PageSource, measurements
from pipeline.report.run_report import decibels

_MOST_BYTES = 1_000_000
"""Of all samples of a page; those of the buckets that are worst come first."""


def samples(source: PageSource) -> Element | None:
    """The worst sample of each component and bucket, where an artifact was emulated of the worst target."""
    worst: dict[tuple[str, str], Measurement] = {}
    for each in measurements(source):
        other = worst.get((each.component, each.bucket))
        if other is None or _db(each) < _db(other):
            worst[each.component, each.bucket] = each
    parts: list[Content] = []
    left, out = _MOST_BYTES, []
    for each in sorted(worst.values(), key=_db):
        how = 1 if each.emulator.samples else 0
        preview = source.preview_of(each.steps[how])
        if preview is None:
            continue
        size = len(str(preview.to_json()))
        if size > left:
            out.append(f"{each.component}, bucket {each.bucket}")
            continue
        left -= size
        parts.append(_sample(each, preview, emulated=bool(how), opened=not parts, turned=_is_turned(source)))
    if out:
        parts.append(note(f"Not shown, as this page is kept small: {'; '.join(out)}."))
    if not parts:
        return None
    said = note(
        "Of each component and bucket, the sample that the artifact is furthest off on. "
        "An original and what was made of it are drawn in one scale."
    )
    return section("Worst samples", "samples", said, *parts)


def _db(each: Measurement) -> float:
    found = [figures.worst_db for figures in each.last.values()]
    return min((-1000.0 if db is None else db for db in found), default=1000.0)


def _is_turned(source: PageSource) -> bool:
    """Whether the channels of pictures go in as blue, green, red."""
    read = source.config.verification.samples or source.config.calibration
    return isinstance(read, ImagesReader) and read.color == "bgr"


def _sample(each: Measurement, preview: Preview, *, emulated: bool, opened: bool, turned: bool) -> Element:
    db = _db(each)
    made = f"the context for {each.target}, emulated" if emulated else "the model that is compiled, on the CPU"
    least = "no number" if db == -1000.0 else f"{decibels(db)} dB"
    parts: list[Content] = [element("h4", "What went in")]
    if preview.text is not None:
        parts.append(element("blockquote", preview.text))
    if preview.label is not None:
        parts.append(note("Its label: ", element("b", preview.label)))
    inputs = [_shown(each, "input", turned=turned) for each in preview.inputs]
    if preview.text is not None:
        parts.append(folded("As numbers", *inputs))
    else:
        parts += inputs
    parts.append(_more(preview.more_inputs, "input"))
    parts.append(element("h4", f"What came out of the original and of {made}"))
    for pair in preview.outputs:
        parts += _pair(pair)
    parts.append(_more(preview.more_outputs, "output"))
    made_of = folded(f"{each.component}, bucket {each.bucket}: {preview.sample}, {least}", *parts)
    if opened:
        made_of.set("open", "open")
    made_of.set("class", "sample")
    return made_of


def _more(count: int, what: str) -> Content:
    return note(f"and {count} more {what}{'s' if count > 1 else ''}") if count else None


def _pair(pair: Pair) -> Iterator[Content]:
    expected, got = pair.expected, pair.got
    db = "no number" if pair.sqnr_db is None else f"{decibels(pair.sqnr_db)} dB"
    yield _title(expected, f"{db} on this sample")
    if expected.picture and got.picture and pair.error.picture:
        three = {"original": expected, "artifact": got, _difference(pair.error): pair.error}
        drawn = [figure_of for name, shown in three.items() if (figure_of := _picture(shown, name))]
        yield element("div", *drawn, class_="pictures")
    elif expected.curve and got.curve:
        caption = f"{expected.name}: the original as a band, the artifact as dashed lines{_part(expected)}"
        length = max(expected.shape, default=1)
        both = (expected.curve.low, expected.curve.high), (got.curve.low, got.curve.high)
        yield figure(charts.overlay(*both, length), caption)
    else:
        yield _values(pair)


def _difference(error: Shown) -> str:
    """The title of the picture of a difference, with the numbers that are black and white in it."""
    if error.low is None or error.high is None:
        return "difference"
    return f"difference, {error.low:.2g} (black) to {error.high:.2g} (white)"


def _values(pair: Pair) -> Content:
    columns = (pair.expected.values, pair.got.values, pair.error.values)
    digits = _decimals([value for column in columns for value in column])
    rows = [
        (str(at), *("none" if value is None else f"{value:.{digits}f}" for value in row))
        for at, row in enumerate(zip(*columns, strict=False))
    ]
    return table([(">place", ">original", ">artifact", ">difference"), *rows], f"The values of {pair.expected.name}")


def _shown(shown: Shown, what: str, *, turned: bool) -> Element:
    parts: list[Content] = [_title(shown, "")]
    if shown.picture:
        parts.append(_picture(shown, what, turned=turned))
    elif shown.curve:
        length = max(shown.shape, default=1)
        parts.append(figure(charts.curve(shown.curve.low, shown.curve.high, length), f"{shown.name}{_part(shown)}"))
    else:
        parts.append(element("p", " ".join(map(_number, shown.values)) or "nothing", class_="values"))
    return element("div", *parts)


def _title(shown: Shown, more: str) -> Element:
    shape = " × ".join(map(str, shown.shape)) or "a single number"
    told = [f"{shown.dtype}, {shape}"]
    if shown.low is not None and shown.high is not None:
        told.append(f"{shown.low:.4g} to {shown.high:.4g}")
    if shown.bad:
        told.append(f"{shown.bad} are not finite")
    if more:
        told.append(more)
    return element("p", element("code", shown.name), " ", element("span", "; ".join(told), class_="soft"))


def _part(shown: Shown) -> str:
    return f" ({shown.part})" if shown.part else ""


def _picture(shown: Shown, what: str, *, turned: bool = False) -> Element | None:
    if shown.picture is None:
        return None
    try:
        pixels = base64.b64decode(shown.picture.pixels, validate=True)
    except (ValueError, binascii.Error):
        return None
    if shown.picture.channels not in (1, 3):
        return None
    if turned and shown.picture.channels == 3:  # blue, green, red as the model has it: seen as it was photographed
        pixels = b"".join(pixels[at : at + 3][::-1] for at in range(0, len(pixels), 3))
    image = picture(shown.picture.width, shown.picture.height, shown.picture.channels, pixels, f"{shown.name}: {what}")
    return element("figure", image, element("figcaption", f"{what}{_part(shown)}"))


def _decimals(values: Sequence[float | None]) -> int:
    """How many decimals numbers get that stand one below the other: five digits for the largest."""
    known = [abs(value) for value in values if value is not None]
    largest = max(known, default=0.0)
    if all(value == int(value) for value in known):
        return 0
    return max(0, 4 - math.floor(math.log10(largest))) if largest else 0


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
