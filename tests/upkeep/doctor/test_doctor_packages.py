"""What the doctor finds about packages and drivers that are not installed here."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.qnn import drivers, session, versions
from pipeline.upkeep.doctor import packages
from tests.support.findings import levels, the
from tests.support.project import ROOT


def distribution(name: str, version: str, *modules: str, place: str = "/site") -> packages.Distribution:
    return packages.Distribution(name, version, frozenset(modules), place)


ORT = distribution("onnxruntime", "1.31.1", "onnxruntime")
EP = distribution("onnxruntime-qnn", "2.7.0", "onnxruntime_qnn")
PINS = (packages.Pin("onnxruntime", "==", "1.31.1"), packages.Pin("onnxruntime-qnn", "==", "2.7.0"))
GOOD = packages.PackageFacts(
    (ORT, EP, distribution("six", "1.0", "six")), PINS, "2.51.0", {"onnxruntime": "1.31.1"}, (29, 31)
)


def test_good_packages_are_good() -> None:
    assert set(levels(packages.check(GOOD)).values()) == {"ok"}
    assert [*packages.refusals(GOOD)] == []


@pytest.mark.parametrize(
    ("name", "version", "modules"),
    [
        ("onnxruntime-gpu", "1.31.1", ["onnxruntime"]),
        ("onnxruntime-directml", "1.24.1", ["onnxruntime"]),
        ("onnxruntime-openvino", "1.24.1", []),
        ("onnxruntime-training", "1.19.2", []),
        ("onnxruntime-silicon", "1.16", []),
        ("ort-nightly", "1.32.dev1", []),
        ("someone-elses-build", "0.1", ["onnxruntime", "helper"]),
    ],
)
def test_another_owner_of_onnxruntime_is_found_by_what_it_installed(
    name: str, version: str, modules: list[str]
) -> None:
    facts = replace(GOOD, installed=(*GOOD.installed, distribution(name, version, *modules)))
    found = the(packages.check(facts), "packages.clash")
    assert found.what == f"onnxruntime 1.31.1 and {name} {version} both install the module onnxruntime"
    assert found.remedy == f"uninstall {name}, then reinstall what it broke: uv sync --reinstall-package onnxruntime"
    assert found.exit_code == 15
    assert found in [*packages.refusals(facts)]


@pytest.mark.parametrize("modules", [[], ["onnxruntime"]])
def test_the_old_package_that_replaces_onnxruntime(modules: list[str]) -> None:
    old = distribution("onnxruntime-qnn", "1.24.1", *modules)
    facts = replace(GOOD, installed=(ORT, old), qairt="")
    found = the(packages.check(facts), "packages.clash")
    assert "onnxruntime-qnn before 2.0 has an onnxruntime of its own" in found.why
    assert "uninstall onnxruntime-qnn" in found.remedy
    assert "is no plugin" in the(packages.check(facts), "packages.trio").why


def test_what_only_begins_alike_does_not_clash() -> None:
    others = (
        distribution("onnxruntime-extensions", "0.14", "onnxruntime_extensions"),
        distribution("onnxruntime-genai", "0.10"),
        distribution("olive-ai", "0.13", "olive"),
    )
    assert levels(packages.check(replace(GOOD, installed=(*GOOD.installed, *others))))["packages.installed"] == "ok"


def test_two_copies_on_the_path() -> None:
    facts = replace(GOOD, installed=(distribution("onnxruntime", "1.20.0", place="/old"), *GOOD.installed))
    found = [each for each in packages.check(facts) if each.check == "packages.clash"]
    assert "two copies of onnxruntime" in found[0].what
    assert "1.20.0 in /old, 1.31.1 in /site" in found[0].why


def test_a_second_copy_behind_the_right_one_is_no_error() -> None:
    facts = replace(GOOD, installed=(*GOOD.installed, distribution("onnxruntime", "1.20.0", place="/old")))
    found = the(packages.check(facts), "packages.clash")
    assert (found.level, found.what) == ("warning", "two copies of onnxruntime")
    assert [*packages.refusals(facts)] == []


@pytest.mark.parametrize(("module", "code"), [("onnxruntime", 15), ("yaml", 18)])
def test_a_module_that_is_imported_from_elsewhere(module: str, code: int) -> None:
    yaml = distribution("pyyaml", "6.0", "yaml")
    good = replace(GOOD, installed=(*GOOD.installed, yaml), imported={"onnxruntime": "/site", "yaml": "/site"})
    assert set(levels(packages.check(good)).values()) == {"ok"}
    facts = replace(good, imported={**good.imported, module: "/junk"})
    found = the(packages.check(facts), "packages.clash")
    assert (found.exit_code, found.subject) == (code, module)
    assert "/junk" in found.what
    assert "PYTHONPATH" in found.remedy
    assert found in [*packages.refusals(facts)]


def test_distributions_are_what_importlib_says_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both forms; and what a description says is no field, whatever it looks like."""
    files = {
        "New_One-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: New_One\nVersion: 1.5\n"
        "license: MIT\n Name: no field\nrequires-dist: other>=1\nRequires-Dist: more;\n  extra == 'all'\nVersion: 2\n\n"
        "Requires-Dist: told\n\nName: another\n",
        "New_One-1.5.dist-info/RECORD": "new_one/__init__.py,,\n",
        "old-2.egg-info/PKG-INFO": "Metadata-Version: 1.0\nName: old\nVersion: 2\n",
        "old-2.egg-info/requires.txt": "needed>=3\n",
        "half-1.dist-info/RECORD": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    found = {each.name: each for each in packages._installed()}
    place = str(tmp_path)
    assert found == {
        "new-one": packages.Distribution("new-one", "1.5", frozenset({"new_one"}), place, frozenset({"other"})),
        "old": packages.Distribution("old", "2", frozenset(), place, frozenset({"needed"})),
    }


def test_every_module_here_is_imported_from_where_it_was_installed() -> None:
    facts = packages.gather(ROOT / "pyproject.toml")
    assert {"numpy", "onnx", "yaml", "onnxruntime_qnn"} <= facts.imported.keys()
    assert "packages.clash" not in levels(packages.check(facts))


@pytest.mark.parametrize(
    ("facts", "check", "text"),
    [
        (replace(GOOD, installed=(ORT,)), "packages.installed", "onnxruntime-qnn is not installed"),
        (replace(GOOD, installed=(replace(ORT, version="1.30.0"), EP)), "packages.trio", "not the tested trio"),
        (replace(GOOD, qairt="2.50.0"), "packages.trio", "qairt 2.50.0"),
        (replace(GOOD, api=(32, 31)), "packages.api", "asks onnxruntime for API version 32, and this one has 31"),
        (replace(GOOD, in_files={"onnxruntime": "1.24.1"}), "packages.installed", "are of version 1.24.1"),
    ],
)
def test_packages_that_do_not_fit(facts: packages.PackageFacts, check: str, text: str) -> None:
    found = the(packages.check(facts), check)
    assert text in found.what
    assert found.exit_code == 15


def test_a_known_bad_pair_says_why() -> None:
    pair = (replace(ORT, version="1.28.0"), replace(EP, version="2.3.0"))
    found = the(packages.check(replace(GOOD, installed=pair, qairt="2.47.0")), "packages.trio")
    assert "onnxruntime-qnn/issues/564" in found.why
    pair = (replace(ORT, version="1.24.4"), replace(EP, version="2.3.0"))
    found = the(packages.check(replace(GOOD, installed=pair, qairt="2.47.0")), "packages.trio")
    assert "was built with onnxruntime 1.24.4" in found.why


def test_versions_are_compared_as_numbers() -> None:
    assert packages.Pin("a", ">=", "2.4").holds("2.40.1")
    assert not packages.Pin("a", ">=", "2.40").holds("2.9")
    assert versions.numbers("v2.45.40.260326") == (2, 45, 40, 260326)
    assert versions.newer("2.42.0", "2.9")
    assert not versions.newer("2.9.0", "2.40")
    assert not versions.newer("2.40.7", "2.40")
    assert versions.newer("2.40.7", "2.40.1")
    assert not versions.newer("2.51.0.260101", "2.51.0")


def test_the_trio_is_the_one_that_is_pinned_and_enforced() -> None:
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    pins = {pin.name: pin for pin in packages.read_pins(ROOT / "pyproject.toml")}
    assert len(pins) == len(lines)
    pair = {name: version for name, version in packages.TESTED.items() if name != "qairt"}
    assert pair == session.TESTED == {name: pins[name].version for name in pair}
    assert packages.TESTED["qairt"] == session.bundled_sdk()
    assert drivers.RELEASES[0].ep == packages.TESTED["onnxruntime-qnn"]
    assert drivers.RELEASES[0].sdk == packages.TESTED["qairt"]


@pytest.mark.parametrize("seen", drivers.OBSERVATIONS[:4])
def test_the_rule_agrees_with_what_was_seen(seen: drivers.Observation) -> None:
    too_new = drivers.refuses(seen.sdk, seen.driver)
    assert too_new == (not seen.works and versions.newer(seen.sdk, seen.driver))
    assert bool(drivers.is_stale(seen.sdk, seen.driver)) == (not seen.works and not too_new)


def test_what_to_install_for_an_older_driver() -> None:
    assert "onnxruntime-qnn==2.3.0 (QAIRT 2.47.0)" in drivers.remedy("2.51.0", "2.47")
    assert "onnxruntime-qnn==2.2.0 (QAIRT 2.45.40)" in drivers.remedy("2.51.0", "2.46.1")
    assert "no release of onnxruntime-qnn 2.x is known to have a QAIRT as old as 2.40" in drivers.remedy(
        "2.51.0", "2.40"
    )
    assert all(release.source for release in drivers.RELEASES)
