"""`doit compare`: what is a miss, what is none, and files that are no records."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.project_file import CompareSettings
from pipeline.errors import ConfigError
from pipeline.report.compare import read, run
from pipeline.report.comparison import Comparison, Verdict, compare
from tests.support.run_records import NAME, SHA, artifact, record

LIMITS = CompareSettings()


def with_(content: dict[str, Any], name: str = NAME, **changed: Any) -> dict[str, Any]:
    """The record with an artifact changed; of an object, the members that are given."""
    content = copy.deepcopy(content)
    for key, value in changed.items():
        known = content["artifacts"][name][key]
        content["artifacts"][name][key] = known | value if isinstance(known, dict) else value
    return content


def resized(content: dict[str, Any], size: int, name: str = NAME) -> dict[str, Any]:
    """The record with the artifact's one file of another size."""
    file = next(iter(content["artifacts"][name]["files"]))
    return with_(content, name, bytes=size, files={file: {"bytes": size, "sha256": SHA}})


def missed(found: Comparison) -> list[tuple[str, str]]:
    return [(row.artifact, row.figure) for row in found.missed]


def verdicts(found: Comparison) -> list[Verdict]:
    return [row.verdict for row in found.changes]


class TestLimits:
    def test_the_same_run_misses_nothing_and_changes_nothing(self) -> None:
        found = compare(record("32", "64"), record("32", "64"), LIMITS)

        assert (found.changes, found.artifacts, found.same) == ([], 2, 14)

    @pytest.mark.parametrize(
        ("now", "verdict"), [(1050, Verdict.CHANGED), (1051, Verdict.MISSED), (10, Verdict.CHANGED)]
    )
    def test_size_may_grow_by_five_percent_and_shrink_by_any(self, now: int, verdict: Verdict) -> None:
        found = compare(record(), resized(record(), now), LIMITS)

        assert [(row.figure, row.last, row.now, row.limit) for row in found.changes] == [("size", 1000, now, 5.0)]
        assert verdicts(found) == [verdict]

    @pytest.mark.parametrize(
        ("last", "now", "verdict"),
        [
            (1000, 1050, Verdict.CHANGED),
            (1000, 1051, Verdict.MISSED),
            (1000, 1, Verdict.CHANGED),
            (0, 1, Verdict.MISSED),
        ],
    )
    @pytest.mark.parametrize("figure", ["macs", "weight_bytes", "activation_bytes", "spill_bytes", "dram_read_bytes"])
    def test_what_a_run_takes_may_grow_by_five_percent(
        self, figure: str, last: int, now: int, verdict: Verdict
    ) -> None:
        before, after = record(), record()
        before["artifacts"][NAME]["cost"], after["artifacts"][NAME]["cost"] = {figure: last}, {figure: now}
        found = compare(before, after, LIMITS)

        assert [(row.last, row.now, row.limit, row.unit) for row in found.changes] == [(last, now, 5.0, "%")]
        assert verdicts(found) == [verdict]
        assert compare(record(), after, LIMITS).changes == [], "a record of before there were costs"

    @pytest.mark.parametrize("rung", ["padding", "rewrite", "quantization", "compile", "total"])
    def test_every_rung_may_lose_one_decibel(self, rung: str) -> None:
        before = record()["artifacts"][NAME]["sqnr_db"][rung]

        within = compare(record(), with_(record(), sqnr_db={rung: before - 1.0}), LIMITS)
        beyond = compare(record(), with_(record(), sqnr_db={rung: before - 1.01}), LIMITS)
        better = compare(with_(record(), sqnr_db={rung: before - 9.0}), record(), LIMITS)

        assert (missed(within), missed(better)) == ([], [])
        assert missed(beyond) == [(NAME, f"{rung} SQNR")]

    def test_no_number_where_there_was_one(self) -> None:
        found = compare(record(), with_(record(), sqnr_db={"compile": None}), LIMITS)

        assert missed(found) == [(NAME, "compile SQNR")]
        assert found.changes[0].cells()[3:5] == ("42.00 dB", "no number")

    @pytest.mark.parametrize("made", [0.911, 0.889])
    def test_a_score_that_leaves_that_of_the_original_on_either_side(self, made: float) -> None:
        found = compare(record(), with_(record(), score={"made": made}), LIMITS)

        assert missed(found) == [(NAME, "accuracy's distance to the original's")]
        assert not missed(compare(with_(record(), score={"made": made}), record(), LIMITS))

    def test_a_score_that_moves_with_the_original(self) -> None:
        assert compare(record(), with_(record(), score={"original": 0.5, "made": 0.5}), LIMITS).changes == []

    def test_the_score_of_the_few_that_are_emulated_is_not_judged(self) -> None:
        assert compare(record(), with_(record(), emulated_score={"made": 0.75}), LIMITS).changes == []

    def test_limits_come_from_the_settings(self) -> None:
        generous = CompareSettings(size_percent=100, snr_db=10, score=1)
        now = with_(resized(record(), 1900), sqnr_db={"total": 29.0}, score={"made": 0.0})

        assert missed(compare(record(), now, generous)) == []
        assert len(missed(compare(record(), now, LIMITS))) == 3

    def test_other_changes_are_told(self) -> None:
        found = compare(record(), with_(record(), cpu_nodes=2, scheme="w8a8"), LIMITS)

        assert [(row.verdict, row.figure, row.last, row.now) for row in found.changes] == [
            (Verdict.CHANGED, "cpu nodes", 0, 2),
            (Verdict.CHANGED, "scheme", "w8a16", "w8a8"),
        ]


class TestWhatIsNotThere:
    def test_an_artifact_that_vanished_is_a_miss(self) -> None:
        assert missed(compare(record("32", "64"), record("32"), LIMITS)) == [("demo/net/64/sm8650", "artifact")]

    def test_a_new_one_is_none(self) -> None:
        found = compare(record("32"), record("32", "64"), LIMITS)

        assert verdicts(found) == [Verdict.NEW]

    @pytest.mark.parametrize("rung", ["quantization", "compile"])
    def test_a_rung_that_is_not_measured_any_more_is_a_miss(self, rung: str) -> None:
        now = record()
        del now["artifacts"][NAME]["sqnr_db"][rung]

        assert missed(compare(record(), now, LIMITS)) == [(NAME, f"{rung} SQNR")]
        assert verdicts(compare(now, record(), LIMITS)) == [Verdict.NEW]

    def test_a_score_that_is_not_measured_any_more_is_a_miss(self) -> None:
        assert missed(compare(record(), with_(record()) | _without_score(), LIMITS)) == [
            (NAME, "accuracy's distance to the original's")
        ]

    def test_what_waits_for_a_host_is_none(self) -> None:
        now = record("32", "64")
        del now["artifacts"]["demo/net/64/sm8650"]
        now["steps"]["context:demo/net/64/sm8650"] = {"outcome": "waiting", "hosts": ["windows"], "why": ""}

        found = compare(record("32", "64"), now, LIMITS)

        assert [(row.verdict, row.artifact) for row in found.changes] == [(Verdict.WAITING, "demo/net/64/sm8650")]

    def test_a_rung_below_what_waits_is_none(self) -> None:
        now = record()
        del now["artifacts"][NAME]["sqnr_db"]["compile"]
        now["steps"][f"probe:{NAME}"] = {"outcome": "waiting", "hosts": ["windows"], "why": ""}
        now["steps"][f"emulate:{NAME}"] = {"outcome": "not tried", "because": f"probe:{NAME}"}

        assert verdicts(compare(record(), now, LIMITS)) == [Verdict.WAITING]

    def test_a_total_without_the_emulator_is_not_held_against_one_with_it(self) -> None:
        without = with_(record(), sqnr_db={"total": 40.0})
        del without["artifacts"][NAME]["sqnr_db"]["compile"]

        found = compare(without, record(), LIMITS)

        assert [(row.verdict, row.figure) for row in found.changes] == [(Verdict.NEW, "compile SQNR")]

    def test_what_a_run_was_not_about_is_none(self) -> None:
        now = record("32", whole=False)
        found = compare(record("32", "64"), now, LIMITS)
        assert found.changes == []
        assert "1 not compared, as this run was not about them" in found.summary()

        del now["steps"][f"emulate:{NAME}"]
        del now["artifacts"][NAME]["sqnr_db"]["compile"]
        assert compare(record("32", "64"), now, LIMITS).changes == []

    def test_what_failed_in_a_run_of_some_steps_is_a_miss(self) -> None:
        now = record("32", whole=False)
        now["steps"]["context:demo/net/64/sm8650"] = {"outcome": "failed"}

        assert missed(compare(record("32", "64"), now, LIMITS)) == [("demo/net/64/sm8650", "artifact")]


class TestPacks:
    def test_a_shared_binary_is_compared_once(self) -> None:
        last, now = record("32", "64", pack="buckets"), record("32", "64", pack="buckets")
        for name in now["artifacts"]:
            now = resized(now, 1100, name)

        assert missed(compare(last, now, LIMITS)) == [("demo/net/buckets/sm8650", "size")]

    def test_one_that_holds_another_bucket_now_is_told(self) -> None:
        now = record("32", "64", pack="buckets")
        for name in now["artifacts"]:
            now = resized(now, 1900, name)

        found = compare(record("32", pack="buckets"), now, LIMITS)

        assert sorted(verdicts(found), key=str) == [Verdict.CHANGED, Verdict.NEW]

    def test_one_that_lost_a_bucket_and_is_as_large_as_it_was_is_the_same(self) -> None:
        last, now = record("32", "64", pack="buckets"), record("32", pack="buckets")

        found = compare(last, now, LIMITS)

        assert [(row.artifact, row.figure) for row in found.changes] == [("demo/net/64/sm8650", "artifact")]
        assert found.same == compare(now, now, LIMITS).same

    def test_of_another_form_the_whole_component_is_compared(self) -> None:
        last = record("32", "64")
        now = record("32", "64", pack="buckets")

        smaller = compare(last, now, LIMITS)
        larger = compare(now, last, LIMITS)

        assert missed(smaller) == []
        assert missed(larger) == [("demo/net, all of it", "size")]


class TestFiles:
    def write(self, folder: Path, content: object) -> Path:
        path = folder / "last.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
        return path

    def test_a_record_is_read(self, tmp_path: Path) -> None:
        assert read(self.write(tmp_path, record())) == record()

    def test_fields_of_later_programs_are_no_hindrance(self, tmp_path: Path) -> None:
        assert read(self.write(tmp_path, record() | {"later": 1}))["later"] == 1

    def test_another_form_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="another form") as caught:
            read(self.write(tmp_path, {"schema_version": 2}))

        assert "schema_version is 2, and here it is 1" in caught.value.why

    def test_none(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"last.json can't be read"):
            read(tmp_path / "last.json")

    def test_no_record_of_this_checkout(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            read(tmp_path / ".build" / "run.json")

        assert caught.value.remedy == "run 'doit build'; a build that was killed leaves none"

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "null",
            "[]",
            "{}",
            "\x00\x01",
            "[" * 100_000,
            '{"schema_version": 1, "schema_version": 1}',
            '{"schema_version": true}',
            json.dumps(record()).replace("42.0", "NaN"),
            json.dumps(record()).replace("42.0", "1e999"),
            json.dumps(record()).replace("42.0", '"42"'),
            json.dumps(record()).replace("1000", "-1"),
            json.dumps(record()).replace('"built"', '"invented"'),
            json.dumps(record() | {"artifacts": {NAME: {}}}),
            json.dumps(record() | {"steps": []}),
        ],
    )
    def test_what_is_no_record(self, content: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"last.json is no record of a build"):
            read(self.write(tmp_path, content))

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "last.json").write_bytes(b"\xff\xfe{}")

        with pytest.raises(ConfigError, match="no record"):
            read(tmp_path / "last.json")

    def test_an_endless_one(self) -> None:
        with pytest.raises(ConfigError, match="no record"):
            read(Path("/dev/zero"))

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="can't be read"):
            read(tmp_path)


class TestOutput:
    def compared(self, folder: Path, last: dict[str, Any], now: dict[str, Any], *options: str) -> int:
        for name, content in (("last.json", last), ("now.json", now)):
            (folder / name).write_text(json.dumps(content), "utf-8")
        files = [str(folder / name) for name in ("last.json", "now.json")]
        return run([*files, *options], folder, LIMITS)

    def test_a_miss_is_a_line_with_all_that_is_known(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        status = self.compared(tmp_path, record(), with_(record(), sqnr_db={"compile": 40.5}))

        lines = capsys.readouterr().out.splitlines()
        assert status == 16
        assert lines[1].split() == ["MISSED", NAME, "compile", "SQNR", "42.00", "dB", "40.50", "dB", "1", "dB"]
        assert lines[3] == "1 artifact(s) compared, 6 figure(s) as they were, 1 MISSED"

    def test_nothing_changed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.compared(tmp_path, record(), record()) == 0
        assert capsys.readouterr().out == "1 artifact(s) compared, 7 figure(s) as they were, none missed\n"

    def test_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        status = self.compared(tmp_path, record(), resized(record(), 2000), "--json")

        content = json.loads(capsys.readouterr().out)
        assert status == 16
        assert content["ok"] is False
        assert content["rows"] == [
            {
                "verdict": "missed",
                "artifact": NAME,
                "figure": "size",
                "last": 1000,
                "now": 2000,
                "limit": 5.0,
                "unit": "%",
            }
        ]

    def test_sizes_that_look_alike_are_given_in_bytes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.compared(tmp_path, resized(record(), 1_000_001), resized(record(), 1_000_002))

        assert "1000001 B  1000002 B" in capsys.readouterr().out

    def test_names_steer_neither_a_terminal_nor_a_page(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        evil = "demo/\x1b[2J|`<img>`\n\u202e\ud800/32/sm8650"
        now = record()
        now["artifacts"] = {evil: artifact(scheme="\x9b5m|<b>"), NAME: artifact(scheme="\x9b5m|<b>")}

        for options in ((), ("--markdown",), ("--json",)):
            assert self.compared(tmp_path, record(), now, *options) == 0
            out = capsys.readouterr().out
            assert out.replace("\n", "").isprintable()
            if options == ("--markdown",):
                assert "<" not in re.sub(r"`[^`\n]*`", "", out)
                assert {line.count(" | ") for line in out.splitlines() if line.startswith("| ")} == {4}

    @pytest.mark.parametrize("files", [(), ("--json",), ("a", "b", "c")])
    def test_not_one_or_two_files(self, files: tuple[str, ...], tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"file is named|files are named"):
            run(files, tmp_path, LIMITS)


def _without_score() -> dict[str, Any]:
    now = record()
    now["artifacts"][NAME]["score"] = None
    return {"artifacts": now["artifacts"]}
