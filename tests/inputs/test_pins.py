"""Branches and tags are looked up once, pinned in a file, and not followed from then on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import ConfigError, SourceError
from pipeline.inputs.pins import pin, pinned_revision, read_pins, write_pin
from tests.support.fetching import Machine
from tests.support.hub_faults import Fault
from tests.support.hub_server import HubServer, hub_fixture  # noqa: F401

REPO = "owner/name"
OLD = "1" * 40


@pytest.fixture
def machine(tmp_path: Path, hub: HubServer) -> Machine:
    hub.add(REPO, {"a.txt": b"1"})
    return Machine(tmp_path, hub)


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    return tmp_path / "configs" / "pins.yaml"


def test_a_branch_is_looked_up_once_and_then_not_followed(hub: HubServer, machine: Machine, pins: Path) -> None:
    first = hub.repos[REPO].branches["main"]
    pinned = machine.pin(REPO, "main", pins)
    line, commit = pinned.stdout.splitlines()
    assert commit == first
    assert line.startswith(f"{REPO}: 'main' is pinned to commit {first} in configs/pins.yaml")
    assert "delete the line to move on" in line
    assert read_pins(pins) == {f"{REPO}@main": first}

    moved = hub.repos[REPO].commit({"a.txt": b"2"})
    hub.requests.clear()
    assert machine.pin(REPO, "main", pins).stdout == f"{first}\n"
    assert hub.requests == []

    pins.unlink()
    assert machine.pin(REPO, "main", pins).stdout.splitlines()[-1] == moved


def test_tags_and_other_branches_have_pins_of_their_own(hub: HubServer, machine: Machine, pins: Path) -> None:
    repo = hub.repos[REPO]
    repo.tags["v1.0"] = repo.branches["main"]
    hub.faults.append(Fault("", status=503))
    assert "try 2 of" in machine.pin(REPO, "v1.0", pins).stdout
    write_pin(pins, "another/repo", "main", OLD)
    assert read_pins(pins) == {"another/repo@main": OLD, f"{REPO}@v1.0": repo.branches["main"]}
    lines = pins.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert lines[-2:] == sorted(lines[-2:])


def test_a_commit_needs_neither_pin_nor_hub(pins: Path) -> None:
    assert pin(REPO, OLD, pins) == OLD
    assert not pins.exists()


def test_a_pin_needs_no_hub(pins: Path) -> None:
    write_pin(pins, REPO, "main", OLD)
    assert pinned_revision(REPO, "main", pins) == OLD
    assert pinned_revision(REPO, "dev", pins) is None
    said: list[str] = []
    assert pin(REPO, "main", pins, said.append) == OLD
    assert said == []


def test_a_branch_that_is_not_there(machine: Machine, pins: Path) -> None:
    error = machine.pin(REPO, "mian", pins).stderr
    assert f"{REPO} has no revision 'mian'; did you mean 'main'?" in error
    assert "its branches and tags: main" in error
    assert not pins.exists()


def test_a_repo_that_is_not_there(machine: Machine, pins: Path) -> None:
    assert "the hub has no repo owner/nema" in machine.pin("owner/nema", "main", pins).stderr


def test_offline_the_cache_says_where_a_branch_was(hub: HubServer, machine: Machine, pins: Path) -> None:
    error = machine.pin(REPO, "main", pins, HF_HUB_OFFLINE="1").stderr
    assert f"{REPO} is not in the HF cache, and the build is offline" in error
    refs = machine.cache / "models--owner--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(OLD)
    assert machine.pin(REPO, "main", pins, HF_HUB_OFFLINE="1").stdout.splitlines()[-1] == OLD
    assert hub.requests == []


@pytest.mark.parametrize(
    "text", ["- a list", "owner/name@main: main", "owner/name@main: [1]", "{", "a: !!python/object:os.x {}", "\xff\0"]
)
def test_a_damaged_file_of_pins_is_an_error(pins: Path, text: str) -> None:
    pins.parent.mkdir()
    pins.write_text(text, "latin-1")
    with pytest.raises(ConfigError, match=r"pins\.yaml can't be read") as raised:
        pin(REPO, "main", pins)
    assert "restore it from version control" in raised.value.remedy


def test_a_pin_that_cannot_be_written(hub: HubServer, machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = machine.pin(REPO, "main", tmp_path / "file" / "pins.yaml").stderr
    assert f"'main' of {REPO} can't be pinned" in error or "can't be read" in error
    assert SourceError.exit_code == 11
