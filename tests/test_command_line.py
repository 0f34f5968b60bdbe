from __future__ import annotations

from pathlib import Path

import pytest
from doit.cmd_base import DodoTaskLoader
from doit.cmd_run import Run
from doit.doit_cmd import DoitMain

from pipeline import command_line
from pipeline.command_line import CommandLine, parse
from pipeline.doit_adapter import check_options, task
from pipeline.errors import UsageError
from tests.support.project import Project


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", CommandLine("run", [], (), {}, [], False)),
        ("list --all", CommandLine("list", [], (), {}, ["--all"], False)),
        ("run -n 4 build", CommandLine("run", ["build"], [], {}, ["-n"], False)),
        ("-n 4 -d x doctor --json", CommandLine("run", ["doctor"], ["--json"], {}, ["-n", "-d", "--json"], False)),
        ("--process 2 shape:* a b", CommandLine("run", ["shape:*", "a", "b"], ["a", "b"], {}, ["--process"], False)),
        ("build models=a,b targets=x", CommandLine("run", ["build"], ["models=a,b", "targets=x"],
                                                   {"models": "a,b", "targets": "x"}, [], False)),
        ("--help", CommandLine("run", [], (), {}, ["--help"], True)),
        ("clean build:x", CommandLine("clean", ["build:x"], [], {}, [], False)),
    ],
)  # fmt: skip
def test_a_command_line_is_read_as_doit_does(line: str, expected: CommandLine) -> None:
    assert parse(line.split()) == expected


def test_the_options_and_commands_are_doit_s() -> None:
    """doit is bound to a version in pyproject.toml: another one has to be looked at here."""
    options = [*Run(task_loader=DodoTaskLoader()).get_options()]
    valued = {
        f"{dashes}{name}"
        for option in options
        if option.type is not bool
        for dashes, name in (("-", option.short), ("--", option.long))
        if name
    }
    assert valued == command_line._OPTIONS_WITH_VALUE
    assert set(DoitMain(DodoTaskLoader()).get_cmds().to_dict()) == command_line._COMMANDS


@pytest.mark.parametrize(
    ("options", "given", "told"),
    [
        (["dry-run", "json"], ["--bogus"], ["fsck does not understand its options\n", "option --bogus not recognized"]),
        (["days", "json"], ["--day", "3"], ["fsck does not understand its options; did you mean '--days'?\n"]),
        (["dry-run", "json"], ["--jsn"], ["did you mean '--json'?", "it takes --dry-run, --json; options of a build"]),
        (
            [],
            ["-n", "2"],
            ["command line: fsck -n 2", "it takes none; options of a build come before: doit -n 2 build"],
        ),
    ],
)
def test_an_option_that_a_task_does_not_take_is_refused_in_our_words(
    options: list[str], given: list[str], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    params = [{"name": name, "long": name, "type": bool, "default": False} for name in options]
    with pytest.raises(SystemExit) as ended:
        task("fsck", "", actions=[], params=params).init_options(given)
    assert ended.value.code == 10
    printed = capsys.readouterr()
    for text in told:
        assert text in printed.out + printed.err
    assert "CmdOption" not in printed.out + printed.err


@pytest.mark.parametrize("given", [["--help"], ["--json", "-h"]])
def test_a_task_that_is_asked_for_help_says_what_it_takes(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    params = [{"name": "json", "long": "json", "type": bool, "default": False, "help": "print JSON"}]
    with pytest.raises(SystemExit) as ended:
        task("fsck", "", doc="Hash it all.", actions=[], params=params).init_options(given)
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("fsck  Hash it all.\n  --json ")
    assert "print JSON" in printed


def test_a_build_says_what_it_takes_and_how_it_ends_to_who_asks(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project", tmp_path / "store")
    lines = project.doit("help", "build").text.splitlines()
    assert lines[0].startswith("build  Build every model but those on request: doit ")
    assert [line.split()[0] for line in lines if line.startswith("  ")] == ["-n", "--no-continue", "engine=ADDRESS"]
    assert "docs/troubleshooting.md has the others. An example: uv run doit -n 4 build:demo" in lines[-1]
    assert project.doit("list").text.count("docs/") == 0, "a line a command"


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("list --al", "'--all'"),
        ("--always-exec build", "'--always-execute'"),
        ("run --no-cont build", "'--no-continue'"),
        ("--proc=2 build", "'--process'"),
        ("--proc=2 build -- --al", "'--process'"),
    ],
)
def test_the_beginning_of_an_option_of_doit_s_is_none(line: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_options(parse(line.split()))
    assert f"did you mean {meant}?\n  where: command line\n  next: write options in full" in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "line",
    [
        "list --all",
        "--no-continue -n 2 build",
        "--process=2 build",
        "gc --day 3",
        "--help",
        "help --al",
        "list -- --al",
    ],
)
def test_whole_options_and_those_of_tasks_are_left_to_doit(line: str) -> None:
    check_options(parse(line.split()))
