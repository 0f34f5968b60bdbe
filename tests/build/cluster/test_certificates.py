"""A cluster behind TLS: the bytes of one host, and a word for each way in which certificates can be wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.build.cluster.__main__ import main
from pipeline.build.cluster.certificates import check_certificates
from pipeline.errors import ConfigError
from tests.support import tiny_project
from tests.support.certificates import issue
from tests.support.cluster import cluster
from tests.support.project import Project

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills process groups")
def test_steps_are_made_behind_tls_and_nobody_of_another_authority_is_let_in(tmp_path: Path) -> None:
    alone, here = (
        tiny_project.create(tmp_path / name, tmp_path / f"{name}-store", targets=["sm8650"])
        for name in ("alone", "here")
    )
    alone.doit("build")
    certificates, others = issue(tmp_path / "tls"), issue(tmp_path / "other-tls")
    with cluster(tmp_path / "cluster", certificates) as at:
        at.start_worker("one", Project.create(tmp_path / "one", tmp_path / "one-store"))
        assert at.url.startswith("tls://")

        def build(environ: dict[str, str], *, check: bool = True) -> Any:
            shared = {"PIPELINE_SHARED_STORE": str(at.shared)}
            return here.doit("-n", "4", "build", f"engine={at.url}", check=check, **environ, **shared)

        bare = build({}, check=False)
        assert bare.status == 10, bare.text
        assert "there are no certificates for the cluster" in bare.text
        assert "Traceback" not in bare.text
        other = build(others, check=False)
        assert other.status == 18, other.text
        assert "certificate" in other.text
        build(certificates)
    assert here.artifacts() == alone.artifacts()
    assert [*(tmp_path / "one").glob(".build/logs/context/**/*.log")], "the worker made them"


def settings(folder: Path) -> dict[str, object]:
    """Dask's settings for new certificates in a folder, by the names that they have in its files."""
    found = {name.removeprefix("DASK_").lower().replace("__", "."): value for name, value in issue(folder).items()}
    return {name.replace("_", "-"): value == "True" or value for name, value in found.items()}


@pytest.mark.parametrize("role", ["client", "worker"])
def test_certificates_that_fit_are_let_pass(role: Any, tmp_path: Path) -> None:
    check_certificates("tcp://host:1", role, "here")
    with dask.config.set(settings(tmp_path / "tls")):
        check_certificates("tls://host:1", role, "here")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    given = settings(tmp_path / "tls")
    (tmp_path / "tls" / "key.pem").unlink()
    with dask.config.set(given), pytest.raises(ConfigError) as met:
        check_certificates("tls://host:1", "worker", "here")
    assert met.value.where == "here"
    assert f"worker.key is {tmp_path / 'tls' / 'key.pem'}" in met.value.why
    assert "ca-file" not in met.value.why, "that one is there"


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    given = settings(tmp_path / "tls")
    issue(tmp_path / "other")
    (tmp_path / "other" / "key.pem").replace(tmp_path / "tls" / "key.pem")
    with dask.config.set(given), pytest.raises(ConfigError, match="can't be used"):
        check_certificates("tls://host:1", "client", "here")


def test_what_is_written_out_is_not_told(tmp_path: Path) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
    given = settings(tmp_path / "tls") | {"distributed.comm.tls.client.key": key}
    with dask.config.set(given), pytest.raises(ConfigError) as met:
        check_certificates("tls://host:1", "client", "here")
    assert "c2VjcmV0" not in str(met.value)


def test_an_address_without_encryption_is_refused_where_that_is_required(tmp_path: Path) -> None:
    with dask.config.set(settings(tmp_path / "tls")), pytest.raises(ConfigError) as met:
        check_certificates("tcp://host:1", "client", "here")
    assert "tls://" in met.value.remedy


def test_a_worker_without_certificates_ends_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What a worker leaves behind in its process, for good: other tests have this one as well.
    monkeypatch.setattr("pipeline.build.cluster.on_worker.member", None)
    monkeypatch.setattr("pipeline.processes.process._closing", False)
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("PIPELINE_SHARED_STORE", str(tmp_path / "shared"))
    monkeypatch.setenv("PIPELINE_STORE", str(tmp_path / "store"))
    assert main(["tls://127.0.0.1:9"]) == ConfigError.exit_code
    assert "there are no certificates for the cluster" in capsys.readouterr().err
