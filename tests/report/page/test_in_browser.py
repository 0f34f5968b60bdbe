"""Reports in a real Chromium: light, dark, narrow, by mouse and by keyboard, with names that would do harm."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support import browser
from tests.support.browser import Browser
from tests.support.project import Project
from tests.support.tiny_models import float_model, sample

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the pipe to the browser is of POSIX"),
    pytest.mark.skipif(browser.found() is None, reason="no chromium on PATH: apt-get install chromium"),
]
EVIL = "<script>console.error('run')</script><img src=x onerror=console.error('run')>"
LAYOUTS = {"light": (1280, False), "dark": (1280, True), "narrow": (390, False)}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a model whose values have names that are markup; errors along its graph are on it."""
    folder = tmp_path_factory.mktemp("evil")
    project = Project.create(folder / "project", folder / "store")
    path = float_model(project.root / "model", sequence="sequence")
    model = onnx.load(path)
    names = {each.name: f"{EVIL}{each.name}" for each in (*model.graph.input, *model.graph.output)}
    names |= {output: f"{EVIL}{output}" for each in model.graph.node for output in each.output}
    for given in (*model.graph.input, *model.graph.output):
        given.name = names[given.name]
    for each in model.graph.node:
        for field in (each.input, each.output):
            field[:] = [names.get(name, name) for name in field]
    onnx.save(model, path)
    for seed in range(6):
        target = project.root / "calibration" / f"set/{EVIL.replace('/', '')}{seed}.npz"
        target.parent.mkdir(parents=True, exist_ok=True)
        np.savez(target, **{f"{EVIL}x": sample(3 + seed, seed)})  # type: ignore[arg-type]  # no name is one of savez's
    project.write(
        "configs/evil.yaml",
        "source: {path: ../model}\ncomponents: {net: {file: model.onnx}}\nbuckets: {sequence: [8]}\n"
        "calibration: {reader: npz, folder: calibration/set}\ntargets: [sm8650]\n",
    )
    project.doit("build")
    project.doit("blame:evil/net/8")
    return project.root / "artifacts" / "evil" / "report.html"


@pytest.fixture(params=LAYOUTS)
def opened(request: pytest.FixtureRequest, reported: Path, tmp_path: Path) -> Iterator[Browser]:
    width, dark = LAYOUTS[request.param]
    with Browser(tmp_path / "profile", width=width, dark=dark) as page:
        page.open(reported)
        yield page


def test_nothing_is_run_asked_for_or_complained_of(opened: Browser, reported: Path) -> None:
    assert opened.told == []
    assert opened.asked[0] == reported.as_uri()
    assert [url for url in opened.asked[1:] if not url.startswith("data:")] == []
    assert opened.value("document.scripts.length + document.querySelectorAll('[onerror], iframe, object').length") == 0
    assert opened.value("document.body.innerText.includes(\"<script>console.error('run')\")"), (
        "names are shown as they are"
    )


@pytest.mark.parametrize(("width", "across"), [(390, 1), (500, 2), (1300, 4)])
def test_nothing_of_a_key_is_cut_and_headlines_stand_in_rows(
    reported: Path, tmp_path: Path, width: int, across: int
) -> None:
    with Browser(tmp_path / "profile", width=width) as page:
        page.open(reported)
        assert page.value("document.querySelectorAll('.key li').length") >= 2
        assert page.value(
            "[...document.querySelectorAll('.key li')].every(each => each.getBoundingClientRect().right"
            " <= each.closest('figure').getBoundingClientRect().right && each.scrollWidth <= each.clientWidth + 1)"
        )
        tops = page.value("[...document.querySelectorAll('.figures > div')].map(each => each.offsetTop).join()")
        rows = str(tops).split(",")
        assert len(rows) == 4
        assert rows.count(rows[0]) == across


def test_the_page_is_never_wider_than_the_screen(opened: Browser) -> None:
    for state in ("false", "true"):
        opened.value(f"document.querySelectorAll('details').forEach(each => each.open = {state})")
        assert opened.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_text_stands_out_from_what_is_behind_it(opened: Browser) -> None:
    """By 4.5 to 1, WCAG 2.2 (1.4.3)."""
    opened.value("document.querySelectorAll('details').forEach(each => each.open = true)")
    pairs = opened.value(
        "[...document.querySelectorAll('p, td, th, dt, dd, a, summary, figcaption, h1, h2, h3, h4, svg text')]"
        ".filter(each => each.textContent.trim()).map(each => { const style = getComputedStyle(each);"
        " let behind = each, colour; while (behind && (colour = getComputedStyle(behind).backgroundColor,"
        " colour === 'rgba(0, 0, 0, 0)')) behind = behind.parentElement;"
        " return [each instanceof SVGElement ? style.fill : style.color, colour]; }).map(JSON.stringify)"
        ".filter((each, at, all) => all.indexOf(each) === at)"
    )
    assert len(pairs) >= 4
    for pair in pairs:
        one, other = (_luminance(colour) for colour in re.findall(r'rgb\([^"]*\)', pair))
        assert (max(one, other) + 0.05) / (min(one, other) + 0.05) >= 4.5, pair


def test_the_mouse_opens_and_closes_and_follows_links(opened: Browser) -> None:
    closed = opened.value("[...document.querySelectorAll('details')].findIndex(each => !each.open)")
    opened.click("details > summary", closed)
    assert opened.value(f"document.querySelectorAll('details')[{closed}].open") is True
    opened.click("details > summary", closed)
    assert opened.value(f"document.querySelectorAll('details')[{closed}].open") is False
    for at in range(opened.value("document.querySelectorAll('nav a').length")):
        opened.click("nav a", at)
        name = opened.value("location.hash.slice(1)")
        assert opened.value(f"document.querySelectorAll('nav a')[{at}].hash") == f"#{name}"
        top = opened.value(f"document.getElementById('{name}').getBoundingClientRect().top")
        assert top < 900, f"{name} is in sight"
    assert opened.told == []


def test_the_keyboard_reaches_and_opens_everything(opened: Browser) -> None:
    opened.press("Tab")
    assert opened.value("document.activeElement.className") == "skip"
    opened.value("(() => { const each = document.querySelector('details:not([open]) > summary'); each.focus(); })()")
    opened.press("Enter")
    assert opened.value("document.activeElement.parentElement.open") is True
    scrolled = opened.value("[...document.querySelectorAll('.wide')].every(each => each.tabIndex === 0)")
    assert scrolled, "what is scrolled can be scrolled by keys"


def test_charts_and_pictures_have_words(opened: Browser) -> None:
    charts = opened.value(
        "[...document.querySelectorAll('svg')].map(each => [each.getAttribute('role'), "
        "each.querySelector('title').textContent])"
    )
    assert len(charts) >= 3
    assert all(role == "img" and len(title) > 10 for role, title in charts)
    assert opened.value("[...document.images].every(each => each.alt && each.naturalWidth > 0)")
    marks = opened.value("new Set([...document.querySelectorAll('svg marker')].map(each => each.innerHTML)).size")
    assert marks >= 2, "series differ by more than colour"


def _luminance(colour: str) -> float:
    """Of `rgb(r, g, b)`, by WCAG 2.2."""
    channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
