"""`doit doctor` as it is typed, where something is wrong with project or environment; and what guards a build."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipeline.config.load import load
from pipeline.errors import WorkerError
from pipeline.plan.planner import plan
from pipeline.plan.workspace import Workspace
from pipeline.upkeep.doctor import guard, host
from tests.support.hub_faults import Fault
from tests.support.hub_server import HubServer, hub_fixture  # noqa: F401
from tests.support.project import ROOT, Project

pytestmark = pytest.mark.slow

CONFIG = "configs/bert.yaml"
SCHEMA = json.loads((ROOT / "docs" / "doctor.schema.json").read_text("utf-8"))
HUB = """\
source: {hub: owner/net, revision: main}
components: {net: {file: net.onnx}}
fixed: {batch: 1}
quantization: {precision: fp16}
verification: {enabled: false}
targets: [sm8650]
"""


@pytest.fixture
def fresh(bert_project: Project, tmp_path: Path) -> Project:
    """A project that was never built, with the pins of this one."""
    project = bert_project.copy(tmp_path / "project")
    project.store = tmp_path / "store"
    shutil.copy(ROOT / "pyproject.toml", project.root)
    return project


def examined(project: Project, *, status: int, **environ: str) -> dict[str, list[dict[str, Any]]]:
    """What `doit doctor --json` found, by check; its exit code must be `status`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PIPELINE_"))}
    given = inherited | {"PIPELINE_STORE": str(project.store)} | project.environ | environ
    command = [sys.executable, "-m", "doit", "doctor", "--json"]
    done = subprocess.run(command, cwd=project.root, env=given, capture_output=True, text=True, encoding="utf-8")
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    told = json.loads(done.stdout)
    jsonschema.validate(told, SCHEMA)
    assert done.returncode == told["exit_code"] == status, done.stdout
    found: dict[str, list[dict[str, Any]]] = {}
    for each in told["findings"]:
        found.setdefault(each["check"], []).append(each)
    return found


def worst(found: dict[str, list[dict[str, Any]]], check: str) -> dict[str, Any]:
    """The finding of a check that matters most."""
    order = ("ok", "not checked", "warning", "error")
    return max(found[check], key=lambda each: order.index(each["level"]))


def shadowed(folder: Path, *modules: str) -> dict[str, str]:
    """The environment of a Python that lacks these modules."""
    for module in modules:
        (folder / module).mkdir(parents=True)
        text = f"raise ModuleNotFoundError(\"No module named '{module}'\", name='{module}')\n"
        (folder / module / "__init__.py").write_text(text)
    return {"PYTHONPATH": str(folder)}


def installed(folder: Path, name: str, version: str, record: str = "") -> dict[str, str]:
    """The environment of a Python in which pip installed another distribution, which says that it wrote `record`."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if record:
        (info / "RECORD").write_text(record)
    return {"PYTHONPATH": str(folder)}


def test_a_good_project_on_a_good_host(fresh: Project) -> None:
    run = fresh.doit("doctor", HF_TOKEN="hf_secret")
    for said in ("known to work", "configs/bert.yaml: is valid", "the store can be written", "emulate of a tiny model"):
        assert said in run.text
    assert " 0 error" in run.text.splitlines()[-1]
    assert "hf_secret" not in run.text
    assert not fresh.store.exists()
    found = examined(fresh, status=0)
    levels = {check: worst(found, check)["level"] for check in found}
    assert {check for check, level in levels.items() if level != "ok"} <= {
        "targets.driver",
        "hub.reach",
        "space.memory",
    }
    assert {f"compiler.{part}" for part in ("stages", "compile", "readback", "emulate")} <= levels.keys()
    assert "API version 29" in worst(found, "packages.api")["what"]
    assert "doctor" in fresh.doit("list").text
    assert "--json" in fresh.doit("help", "doctor").text
    assert fresh.doit("doctor", "--jsn", check=False).status == 3


def test_it_works_beside_other_tasks(fresh: Project) -> None:
    run = fresh.doit("doctor", "fetch:bert")
    assert "known to work" in run.text
    assert run.built == {"fetch:bert"}


def test_mistakes_of_a_project_are_all_found_at_once(fresh: Project) -> None:
    fresh.write("configs/wrong.yaml", "targets: [sm8650\n")
    fresh.write("configs/pins.yaml", "owner/name@main: [\n")
    (fresh.root / "calibration/lines.txt").unlink()
    (fresh.root / "models/bert/onnx/model.onnx").unlink()
    found = examined(fresh, status=10, PIPLINE_MEMORY="12G")
    assert worst(found, "project.configs")["subject"] == "configs/wrong.yaml"
    assert "pins.yaml can't be read" in worst(found, "project.pins")["what"]
    where = "configs/bert.yaml:6:35, for samples:bert/calibration"
    told = f"the file of samples calibration/lines.txt does not exist ({where})"
    assert worst(found, "project.calibration")["what"] == told
    assert "the model folder has no file onnx/model.onnx" in worst(found, "project.source")["what"]
    assert worst(found, "project.variables")["remedy"] == "write PIPELINE_MEMORY"
    assert worst(found, "compiler.compile")["level"] == "ok"


@pytest.mark.parametrize("setting", ["not/a/folder", ""])
def test_a_store_that_can_not_be_written(fresh: Project, setting: str) -> None:
    if setting:
        fresh.write("not", "a file where a folder must be")
        fresh.store = fresh.root / "not" / "a" / "store"
    else:
        fresh.write("artifacts", "a file where a folder must be")
    found = examined(fresh, status=17)
    broken = "store.folder" if setting else "store.artifacts"
    assert worst(found, broken)["why"].endswith("is a file")


def test_a_damaged_store_is_pointed_out(bert_built: Project, fresh_store: Path, tmp_path: Path) -> None:
    project = bert_built.copy(tmp_path / "project")
    project.store = fresh_store
    assert worst(examined(project, status=0), "store.health")["level"] == "ok"
    for path in [*(fresh_store / "manifests").rglob("*.json")][:5]:
        path.chmod(0o644)
        path.write_text(path.read_text("utf-8")[:-20], "utf-8")
    health = worst(examined(project, status=0), "store.health")
    assert (health["level"], "doit fsck" in health["remedy"]) == ("warning", True)


def test_missing_packages(fresh: Project, tmp_path: Path) -> None:
    without = shadowed(tmp_path / "shadow", "yaml", "filelock")
    found = examined(fresh, status=18, **without)
    assert "No module named" in worst(found, "project.configs")["why"]
    assert worst(found, "project.configs")["level"] == "error"
    assert {each["subject"] for each in found["packages.clash"]} == {"yaml", "filelock"}
    run = fresh.doit("list", check=False, **without)
    assert run.status == 18
    assert "this environment can't run the project" in run.text
    assert "'python -m pipeline.upkeep.doctor' says more" in run.text
    assert "Traceback" not in run.text


@pytest.mark.parametrize("text", ["x =\n", "x = 1\n", "raise RuntimeError('junk')\n"])
def test_a_file_that_hides_a_package(fresh: Project, tmp_path: Path, text: str) -> None:
    hiding = tmp_path / "junk" / "yaml.py"
    hiding.parent.mkdir()
    hiding.write_text(text)
    environ = {"PYTHONPATH": str(hiding.parent)}
    clash = worst(examined(fresh, status=18, **environ), "packages.clash")
    assert f"yaml in {hiding.parent} hides the module of pyyaml" in clash["what"]
    run = fresh.doit("list", check=False, **environ)
    assert (run.status, "Traceback" in run.text) == (18, False)
    assert f"where: {hiding}" in run.text


def test_a_python_with_no_packages_at_all(fresh: Project) -> None:
    command = [sys.executable, "-S", "-m", "pipeline.upkeep.doctor"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=fresh.root, env=environ, capture_output=True, text=True, encoding="utf-8")
    assert "Traceback" not in done.stderr + done.stdout
    assert "onnxruntime: onnxruntime is not installed" in done.stdout
    assert "numpy: numpy is not installed" in done.stdout
    assert done.returncode in (15, 18)


def test_packages_that_clash(fresh: Project, tmp_path: Path) -> None:
    environ = installed(tmp_path / "gpu", "onnxruntime-gpu", "1.31.1", "onnxruntime/__init__.py,,\n")
    found = examined(fresh, status=15, **environ)
    clash = worst(found, "packages.clash")
    assert clash["what"].endswith("both install the module onnxruntime")
    assert worst(found, "compiler.compile")["why"] == "the host or its packages are not fit for it"
    run = fresh.doit("build", check=False, **environ)
    assert run.status == 15, run.text
    assert "onnxruntime-gpu 1.31.1" in run.text
    assert "'doit doctor' says more" in run.text
    assert not run.built


def test_another_version_of_a_package(fresh: Project, tmp_path: Path) -> None:
    environ = installed(tmp_path / "old", "onnxruntime-qnn", "1.24.1")
    found = examined(fresh, status=15, **environ)
    assert "two copies of onnxruntime-qnn" in " ".join(each["what"] for each in found["packages.clash"])
    assert "is no plugin" in worst(found, "packages.trio")["why"]


def test_a_build_with_nothing_to_do_is_not_held_up(project: Project, tmp_path: Path) -> None:
    environ = installed(tmp_path / "gpu", "onnxruntime-gpu", "1.31.1", "onnxruntime/__init__.py,,\n")
    project.environ |= environ
    assert not project.doit("build").built


@pytest.mark.parametrize(("driver", "works"), [("2.40", False), ("2.9", False), ("2.51", True)])
def test_the_driver_rule(fresh: Project, driver: str, works: bool) -> None:
    fresh.edit(CONFIG, "sm8650]", f"{{soc: sm8650, driver_sdk: '{driver}'}}]")
    found = examined(fresh, status=0 if works else 10)
    checked = next(each for each in found["targets.driver"] if each["subject"] == "bert/sm8650")
    assert checked["level"] == ("ok" if works else "error")
    if works:
        return
    assert (
        f"its driver is of QAIRT {driver}, and contexts are made with 2.51.0 here (configs/bert.yaml:8:"
        in checked["what"]
    )
    run = fresh.doit("build", check=False)
    assert run.status == 10
    assert f"contexts for sm8650 would be made with QAIRT 2.51.0, and its driver is of {driver}" in run.text
    assert "where: configs/bert.yaml:8:" in run.text
    assert "update the device's NPU driver" in run.text
    assert not run.built
    assert fresh.doit("ingest:bert/encoder").built == {"fetch:bert", "ingest:bert/encoder"}


def test_a_disk_that_is_too_small_is_refused_before_any_work(fresh: Project, tmp_path: Path) -> None:
    text = "import shutil, collections\nusage = collections.namedtuple('usage', 'total used free')\n"
    text += "shutil.disk_usage = lambda path: usage(10**9, 10**9 - 10**6, 10**6)\n"
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "sitecustomize.py").write_text(text)
    environ = {"PYTHONPATH": str(tmp_path / "small")}
    assert worst(examined(fresh, status=17, **environ), "space.disk")["what"].startswith("1.0 MB free, ")
    run = fresh.doit("build", check=False, **environ)
    assert run.status == 17, run.text
    assert "the build would fill the disk" in run.text
    assert not run.built


def test_an_emulated_python_is_refused(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Windows on ARM64 would tell it; that can't be had here."""
    steps = plan(load(fresh.root / CONFIG))
    there = host.HostFacts("Windows", "11", "aarch64", "x86_64", (3, 12, 1))
    monkeypatch.setattr(host, "cheap_facts", lambda: there)
    guarded = guard.Guard(Workspace.at(fresh.root, {}))
    guarded.expect(steps)
    for _ in range(2):
        with pytest.raises(WorkerError, match="x86_64 Python on an ARM64 machine") as raised:
            guarded.before_work()
    assert raised.value.remedy.endswith("'doit doctor' says more")


def test_the_hub_is_asked(hub: HubServer, fresh: Project, tmp_path: Path) -> None:
    hub.add("owner/net", {"net.onnx": b"\x08\x0anet"})
    hub.tokens = {"hf_good"}
    fresh.write("configs/net.yaml", HUB)
    fresh.environ |= hub.environ(tmp_path / "home")
    found = examined(fresh, status=0, HF_TOKEN="hf_good")
    assert worst(found, "hub.reach")["what"] == f"{hub.url} answers"
    assert worst(found, "hub.token")["what"] == "the hub accepts the token"
    assert worst(found, "hub.model")["what"] == "owner/net at main can be had"
    assert worst(found, "space.disk")["why"] == "the size of net is known when it was fetched"
    assert "there is no token" in worst(examined(fresh, status=0), "hub.token")["what"]

    refused = examined(fresh, status=11, HF_TOKEN="hf_bad_secret")
    assert worst(refused, "hub.token")["what"] == "the hub does not accept the token"
    assert "hf_bad_secret" not in json.dumps(refused)

    fresh.edit("configs/net.yaml", "owner/net", "owner/nte")
    assert "the hub has no repo owner/nte" in worst(examined(fresh, status=11), "hub.model")["what"]
    gone = examined(fresh, status=11, HF_ENDPOINT="http://127.0.0.1:9")
    assert "ConnectError" in worst(gone, "hub.reach")["why"]
    assert "on_request" not in worst(gone, "hub.model")["what"]
    hub.faults.append(Fault("", page=b"<title>Log in</title>", times=None))
    assert "no JSON" in worst(examined(fresh, status=11), "hub.reach")["why"]


def test_what_is_cached_needs_no_hub(hub: HubServer, fresh: Project, tmp_path: Path) -> None:
    hub.add("owner/net", {"net.onnx": b"\x08\x0anet"})
    fresh.write("configs/net.yaml", HUB)
    fresh.environ |= hub.environ(tmp_path / "home")
    offline = worst(examined(fresh, status=11, HF_HUB_OFFLINE="1"), "hub.model")
    assert offline["why"] == "the build is offline, and it is not in the HF cache"
    fresh.doit("fetch:net")
    found = examined(fresh, status=0, HF_HUB_OFFLINE="1")
    assert worst(found, "hub.model")["what"].endswith("is in the HF cache")
    assert worst(found, "hub.reach")["what"].endswith("is left alone: HF_HUB_OFFLINE is set")
    assert worst(examined(fresh, status=0, HF_ENDPOINT="http://127.0.0.1:9"), "hub.reach")["level"] == "warning"
