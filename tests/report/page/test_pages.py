"""Reports as a build leaves them: written where something changed, kept small, and no part of what is built."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from tests.support.project import Project

PAGES = ("artifacts/tiny/report.html", "artifacts/report.html")
SECTIONS = (
    "accuracy",
    "samples",
    "values",
    "precision",
    "forecasts",
    "sizes",
    "cost",
    "changes",
    "build",
    "provenance",
)


@pytest.fixture
def built(tiny_built: Project, tmp_path: Path) -> Project:
    """The tiny project with a store of its own, built."""
    return tiny_built.copy(tmp_path / "project", tmp_path / "store")


def pages(project: Project) -> list[bytes]:
    return [(project.root / name).read_bytes() for name in PAGES]


def text(project: Project) -> str:
    """What a page says, without its markup."""
    page = re.sub(r"<style>.*?</style>", "", pages(project)[0].decode("utf-8"), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def total(said: str) -> str:
    """The cell `total` of a table of accuracy with one row."""
    table = re.search(r"^SQNR in dB .*\n-.*\n.*", said, re.MULTILINE)
    assert table, said
    heading, _, row = table[0].splitlines()
    return dict(zip(re.split(r"  +", heading), re.split(r"  +", row), strict=True))["total"]


def test_a_build_writes_a_page_for_each_model_and_one_over_all(tiny_built: Project) -> None:
    page, index = pages(tiny_built)
    assert re.findall(rb'<section [^>]*id="(\w+)"', page) == [name.encode() for name in SECTIONS]
    assert b'href="tiny/report.html"' in index
    assert len(page) < 2 << 20
    said = text(tiny_built)
    assert "tiny keeps to its thresholds" in said
    assert re.search(r"worst output [\d.]+ dB over all 2 samples; 20 are asked for worst sample [\d.]+ dB in \S", said)
    assert "(net, bucket 8, sm8650)" in said
    assert "Not shown, as no held-out sample is short" in said
    assert "sm8650" in said
    assert re.search(r"w8a16 [\d.]+ M", said), "what a run takes"
    assert "verify:tiny/net/8" in said, "the build's timeline"
    runs = json.loads((tiny_built.root / ".build/run.json").read_text("utf-8"))["runs"]
    assert [len(each) for each in runs["verify:tiny/net/8"]] == [2], "it ran once: from when, for how long"
    assert "uv run doit blame:tiny/net/8" in said, "how to see errors along the graph"


def test_what_init_guessed_is_named_by_the_build_and_on_the_page(built: Project) -> None:
    config = (built.root / "configs/tiny.yaml").read_text("utf-8")
    assert config.count("\ntargets:") == 1
    guessed = config.replace("\ntargets:", "\n# GUESS: a chip\ntargets:")
    built.write("configs/tiny.yaml", guessed)
    said = "configs/tiny.yaml has guesses in it: targets. What was measured holds for samples prepared like that"
    assert said in built.doit("build").text
    built.doit("report", "--no-browser")
    assert said in text(built)
    built.write("configs/tiny.yaml", config)
    assert "guesses" not in built.doit("build").text
    assert said not in text(built), "who takes the word out need not ask for the page"


def test_what_is_current_is_not_written_again(built: Project) -> None:
    before = [(built.root / name).stat().st_mtime_ns for name in PAGES]
    built.doit("build")
    assert [(built.root / name).stat().st_mtime_ns for name in PAGES] == before
    for name in PAGES:
        (built.root / name).unlink()
    built.doit("build")
    assert [name for name in PAGES if not (built.root / name).is_file()] == []


def test_artifacts_and_keys_know_nothing_of_a_page(built: Project) -> None:
    (built.root / PAGES[0]).write_text("no page at all", "utf-8")
    run = built.doit("build")
    assert "Nothing to do" in run.text
    (line,) = re.findall(r".*report\.html.*", run.text)
    whole = re.fullmatch(
        r"artifacts/tiny/  1 artifact, (\d\d\.\d) dB or more in total: report\.html has the tables", line
    )
    assert whole, "nothing is said of it but that it has the tables"
    assert "SQNR in dB" not in run.text
    assert total(built.doit("emulate").text) == whole[1], "who asks for figures gets those of the build"
    assert pages(built)[0] == b"no page at all", "what a reader did to it is nobody's business"
    assert "not of this build" not in run.text
    assert built.doit("fsck").status == 0
    cleaned = built.doit("clean", "build:tiny").text
    assert "removed artifacts/tiny/report.html" in cleaned
    assert not (built.root / "artifacts" / "tiny").exists()
    assert not (built.root / PAGES[1]).exists()


def test_a_figure_of_fewer_samples_says_so(built: Project) -> None:
    built.edit("configs/tiny.yaml", "verification: {", "verification: {emulator_samples: 1, ")
    assert "2, 1 emulated" in built.doit("build").text
    assert re.search(r"worst output [\d.]+ dB over the one sample that was emulated; 20 are asked for", text(built))


@pytest.mark.slow
def test_blame_puts_the_errors_along_the_graph_onto_the_page(built: Project) -> None:
    timeline = "verify:tiny/net/8"
    assert timeline in text(built)
    built.doit("blame:tiny/net/8")
    said = text(built)
    assert "values at which most is lost" in said
    assert "from the inputs to the outputs" in said
    assert timeline in said, "the page still tells of the build"
    record = json.loads((built.root / ".build" / "run.json").read_text("utf-8"))
    assert record["command"] == ["blame:tiny/net/8"]


@pytest.mark.slow
def test_a_run_that_left_the_same_is_compared_with_the_one_before(built: Project) -> None:
    assert "No earlier run in this checkout left artifacts to compare with." in text(built)
    time.sleep(1)  # runs are told apart by the second in which they began
    (built.root / ".build/steps/verify/tiny/net/8.json").unlink()
    built.doit("build")
    assert re.search(
        r"Compared with the artifacts of [^:]*:\d\d UTC: 1 artifact\(s\) compared, .* none missed", text(built)
    )


@pytest.mark.slow
def test_a_change_is_told_and_so_is_what_it_missed(built: Project) -> None:
    built.edit("configs/tiny.yaml", "targets:", "quantization: {activations: uint8, weights: uint8}\ntargets:")
    built.doit("build", check=False)
    said = text(built)
    assert "Compared with the artifacts of" in said
    assert re.search(r"changed tiny/net/8/sm8650 scheme w8a16 in blocks of 32 w8a8|MISSED tiny/net/8/sm8650", said), (
        said
    )
    built.edit("configs/tiny.yaml", "targets:", "thresholds: {total_db: 99}\ntargets:")
    assert built.doit("build", check=False).status == 16
    said = text(built)
    assert "tiny misses a threshold" in said
    assert "✗ misses" in said
    assert "What failed" in said
    assert "asked in total" in said


@pytest.mark.slow
def test_a_page_that_cant_be_written_is_an_error_of_the_report(built: Project) -> None:
    page = built.root / PAGES[0]
    page.unlink()
    page.mkdir()
    run = built.doit("report", "--no-browser", check=False)
    assert run.status == 17
    assert "the report can't be written: Is a directory" in run.text
    assert run.text.count("next: ") == 1
    assert "move the folder away that is where the file belongs" in run.text
    built.edit("configs/tiny.yaml", "targets:", "thresholds: {total_db: 19}\ntargets:")
    run = built.doit("build")
    assert "the report can't be written: Is a directory\n  where: " in run.text
    assert "artifacts/tiny/report.html\n  next: move the folder away that is where the file belongs" in run.text
    for _ in range(2):  # with nothing to do, too, as long as the folder is there
        assert f"where: {page}\n  next: move the folder away" in built.doit("build").text
    page.rmdir()
    assert "the report can't be written" not in built.doit("build").text
    assert page.is_file()


@pytest.mark.slow
def test_report_writes_and_names_the_pages(built: Project, tmp_path: Path) -> None:
    for name in PAGES:
        (built.root / name).unlink()
    run = built.doit("report", BROWSER="", DISPLAY="", WAYLAND_DISPLAY="")
    assert run.text.split() == sorted(PAGES)
    (built.root / PAGES[0]).unlink()
    seen = tmp_path / "seen"
    script = built.write("browser.sh", f'#!/bin/sh\necho "$1" >> {seen}\n')
    script.chmod(0o755)
    run = built.doit("report:tiny", BROWSER=f"{script} %s")
    assert run.text.split() == [PAGES[0]]
    assert seen.read_text("utf-8").strip() == (built.root / PAGES[0]).as_uri()
    built.doit("report", "--no-browser", BROWSER=f"{script} %s")
    assert len(seen.read_text("utf-8").splitlines()) == 1


def test_a_page_of_what_a_changed_config_has_not_built_yet_says_so(built: Project) -> None:
    built.edit("configs/tiny.yaml", "targets: [sm8650]", "targets: [sm8550]")
    built.doit("report:tiny", "--no-browser")
    assert "tiny is not built as its config and inputs are now" in text(built)
    assert "tiny keeps to its thresholds" not in text(built)
    built.edit("configs/tiny.yaml", "targets: [sm8550]", "targets: [sm8650]")
    built.doit("report:tiny", "--no-browser")
    assert "tiny keeps to its thresholds" in text(built)


def test_report_of_what_is_not_built_or_not_there(tiny_built: Project, tmp_path: Path) -> None:
    project = tiny_built.copy(tmp_path / "project", tmp_path / "empty")
    shutil.rmtree(project.root / ".build")
    run = project.doit("report:tiny")
    assert "Nothing of tiny is built: run 'doit build:tiny' first." in run.text
    assert project.doit("report").text.strip() == "No model is built: run 'doit build' first."
    wrong = project.doit("report:tyny", check=False)
    assert wrong.status == 10
    assert "did you mean 'report:tiny'?" in wrong.text


@pytest.mark.slow
def test_what_is_kept_between_runs_may_be_lost_or_damaged(built: Project) -> None:
    kept = built.root / ".build" / "pages" / "tiny.json"
    for damage in (b"", b"{", b"[]", b'{"digest": 1, "page": {}, "run": {}, "artifacts": {}, "before": {}}', b"\xff"):
        kept.write_bytes(damage)
        run = built.doit("build")
        assert run.status == 0
        assert "tiny keeps to its thresholds" in text(built)
    assert json.loads(kept.read_bytes())["digest"]
