"""What `verify-release` refuses, and what it says: releases that hold together in form and not in what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pipeline.errors import ConfigError, VerificationError
from pipeline.release import signing, signing_key
from pipeline.release.archives import index
from pipeline.release.archives.archive import Archive, Member, write_archive
from pipeline.release.verify import main, verify_release
from tests.support.project import ROOT
from tests.support.releases import BINARY, MODEL, Change, keys, payload, release


def members(path: Path) -> dict[str, Member]:
    with Archive(path) as archive:
        return {name: Member.of(archive.read(name, 1 << 20)) for name in archive.entries}


def test_a_release_as_it_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = release(tmp_path / "r.zip")
    found = verify_release(path)
    assert (found.files, found.signatures, found.signed_by) == (7, (), None)
    assert main([str(path)]) == 0
    told = capsys.readouterr().out
    assert told == f"bert 1.0 for sm8650: 7 files, {path.stat().st_size} bytes, all as they were made\nnot signed\n"


def test_what_was_not_verified_is_told(tmp_path: Path) -> None:
    lapse = {"artifact": "encoder/16/sm8650", "gate": "emulator", "why": "not measured"}
    path = release(tmp_path / "r.zip", change=lambda raw: raw["gates"]["skipped"].append(lapse))
    assert "gate skipped: encoder/16/sm8650, emulator: not measured" in verify_release(path).lines()


def test_what_a_release_says_is_no_command_to_a_terminal(tmp_path: Path) -> None:
    lapse = {"artifact": "a\x1b[2Jb", "gate": "cpu", "why": "c\nd"}
    path = release(tmp_path / "r.zip", change=lambda raw: raw["gates"]["failed"].append(lapse))
    assert "gate failed: a\ufffd[2Jb, cpu: c\ufffdd" in verify_release(path).lines()
    path = release(
        tmp_path / "s.zip", change=lambda raw: raw["files"].update({"\x1b": {"sha256": "0" * 64, "bytes": 1}})
    )
    with pytest.raises(VerificationError, match="\ufffd is missing"):
        verify_release(path)


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "r.zip", tmp_path):
        with pytest.raises(ConfigError, match=r"^there is no archive .* that can be read"):
            verify_release(path)
    assert main([str(tmp_path / "r.zip")]) == 10
    assert "error: there is no archive r.zip that can be read" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["verify", "publish"])
def test_the_programs_say_how_they_are_called(module: str) -> None:
    command = [sys.executable, "-m", f"pipeline.release.{module}"]
    run = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False)
    helped, wrong = run([*command, "--help"]), run(command)
    assert (helped.returncode, wrong.returncode) == (0, 2)
    assert helped.stdout.startswith(f"usage: python -m pipeline.release.{module} [-h]")
    assert "the following arguments are required: file" in wrong.stderr


def context(raw: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = raw["components"]["encoder"]["buckets"][0]["contexts"]["sm8650"]
    return found


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: raw.update(schema_version=2), "it is of a later form, 2"),
        (lambda raw: raw.update(schema_version=0), r"not as its schema asks, at \$\.schema_version"),
        (lambda raw: raw.update(surprise=1), "not as its schema asks"),
        (lambda raw: raw.pop("gates"), "not as its schema asks"),
        (lambda raw: raw["files"].pop(BINARY), f"{BINARY} does not belong there"),
        (lambda raw: raw["files"].update({"x": {"sha256": "0" * 64, "bytes": 1}}), "x is missing"),
        (
            lambda raw: raw["files"].update({"release.json": {"sha256": "0" * 64, "bytes": 1}}),
            "release.json lists release.json",
        ),
        (lambda raw: raw["files"][MODEL].update(sha256="0" * 64), f"{MODEL} is not the file that release.json names"),
        (lambda raw: raw["files"][MODEL].update(bytes=1), f"{MODEL} is not the file that release.json names"),
        (lambda raw: context(raw).update(model="other.onnx"), r"encoder/16/sm8650 needs other\.onnx"),
        (lambda raw: context(raw).update(binaries=["files/tokenizer.json"]), "does not lie beside"),
        (lambda raw: raw["config"].update(text="other"), "the config in release.json"),
        (lambda raw: raw["targets"][0].update(name="sm8750"), "for sm8650, which is no target of the release"),
        (lambda raw: raw["targets"][0].update(soc_model=60), "it is for the SoCs 57, not 60"),
        (lambda raw: raw["targets"][0].update(htp_arch=73), "it is for HTP v75, not v73"),
        (lambda raw: raw["targets"][0].update(vtcm_mb=None), "it is for 8 MB of VTCM, not None"),
        (lambda raw: raw["targets"][0].update(minimum_driver_sdk="2.40"), "it needs a driver of 2.51, not 2.40"),
        (lambda raw: context(raw).update(compatibility="v3:1"), "has another form"),
        (
            lambda raw: context(raw).update(compatibility="v2:6:2.51.1:5.51.0:75:57:8:0"),
            f"{MODEL} does not say that it is for",
        ),
    ],
)
def test_an_index_that_says_what_is_not_so_is_refused(tmp_path: Path, change: Change, why: str) -> None:
    with pytest.raises(VerificationError, match=why):
        verify_release(release(tmp_path / "r.zip", change=change))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (index.INDEX, b"{", r"release\.json is no JSON"),
        (index.INDEX, b'{"a": 1, "a": 2}', "the key 'a' is there twice"),
        (index.INDEX, b'{"a": NaN}', "NaN is no JSON"),
        (index.INDEX, b"[" * 100_000, r"release\.json is no JSON"),
        (index.INDEX, b"[]", "not as its schema asks"),
        (index.PROVENANCE, b"{}", "no in-toto statement"),
        (index.PROVENANCE, b"[]", "no in-toto statement"),
        (index.PROVENANCE, b'{"_type": "x", "predicateType": "y", "subject": []}', "of the form that releases have"),
    ],
)
def test_texts_that_are_not_what_they_should_be_are_refused(tmp_path: Path, name: str, text: bytes, why: str) -> None:
    path = release(tmp_path / "r.zip")
    write_archive(path, members(path) | {name: Member.of(text)})
    with pytest.raises(VerificationError, match=why):
        verify_release(path)


@pytest.mark.parametrize("edit", ["one less", "one more", "one twice"])
def test_a_statement_that_is_about_other_files_is_refused(tmp_path: Path, edit: str) -> None:
    path = release(tmp_path / "r.zip")
    source = members(path)[index.PROVENANCE].source
    assert isinstance(source, bytes)
    said = json.loads(source)
    if edit == "one less":
        said["subject"].pop()
    else:
        name = "x" if edit == "one more" else said["subject"][0]["name"]
        said["subject"].append({"name": name, "digest": {"sha256": "0" * 64}})
    write_archive(path, members(path) | {index.PROVENANCE: Member.of(json.dumps(said).encode())})
    with pytest.raises(VerificationError, match=r"provenance\.json is (about other files|no in-toto statement)"):
        verify_release(path)


@pytest.mark.parametrize("name", [index.INDEX, index.PROVENANCE, index.SBOM, BINARY])
def test_a_file_that_was_taken_out_is_missed(tmp_path: Path, name: str) -> None:
    path = release(tmp_path / "r.zip")
    write_archive(path, {kept: member for kept, member in members(path).items() if kept != name})
    with pytest.raises(VerificationError, match=rf"{name} is missing"):
        verify_release(path)


def test_an_index_that_was_put_in_place_of_the_right_one_is_not_what_the_statement_is_about(tmp_path: Path) -> None:
    path, other = release(tmp_path / "r.zip"), release(tmp_path / "o.zip", version="1.1")
    write_archive(path, members(path) | {index.INDEX: members(other)[index.INDEX]})
    with pytest.raises(VerificationError, match=r"release\.json is not the file that provenance\.json is about"):
        verify_release(path)


def test_a_signature_is_checked_with_the_key_that_is_given(tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    path = release(tmp_path / "r.zip", key=private)
    found = verify_release(path, public)
    assert found.signed_by == found.signatures[0]
    assert f"signed by the given key, {found.signed_by[:16]}" in found.lines()
    assert f"signed by {found.signatures[0][:16]}, not checked: give --key" in verify_release(path).lines()
    assert release(tmp_path / "s.zip", key=private).read_bytes() == path.read_bytes()

    _, other = keys(tmp_path, "other")
    with pytest.raises(
        VerificationError, match=r"r\.zip: release\.dsse\.json is no signature of this release"
    ) as error:
        verify_release(path, other)
    assert "no signature of it is by the key" in error.value.why
    with pytest.raises(VerificationError, match=r"u\.zip is not signed"):
        verify_release(release(tmp_path / "u.zip"), public)


def test_a_signature_of_another_release_is_refused_even_without_a_key(tmp_path: Path) -> None:
    private, _ = keys(tmp_path)
    path = release(tmp_path / "r.zip", key=private, signed=lambda statement: statement + b" ")
    with pytest.raises(VerificationError, match="no signature of this release") as error:
        verify_release(path)
    assert error.value.why == "it is around another statement"


@pytest.mark.parametrize("edit", ["sig", "payload", "none", "no JSON", "no object"])
def test_an_envelope_that_was_edited_is_refused(tmp_path: Path, edit: str) -> None:
    private, public = keys(tmp_path)
    path = release(tmp_path / "r.zip", key=private)
    have = members(path)
    source = have[index.SIGNATURE].source
    assert isinstance(source, bytes)
    envelope = json.loads(source)
    if edit == "sig":
        envelope["signatures"][0]["sig"] = "A" * 86 + "=="
    elif edit == "payload":
        envelope["payload"] = "e30="
    elif edit == "none":
        envelope["signatures"] = []
    text = {"no JSON": b"x", "no object": b"[1]"}.get(edit, json.dumps(envelope).encode())
    write_archive(path, have | {index.SIGNATURE: Member.of(text)})
    for key in (public, None) if edit != "sig" else (public,):
        with pytest.raises(VerificationError, match="no signature of this release"):
            verify_release(path, key)


def test_the_key_of_the_environment_is_a_path_or_the_text_and_never_shown(tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    file = tmp_path / "key.pem"
    file.write_text(private)
    variable = signing_key.VARIABLE
    assert signing.signed(b"x", {variable: str(file)}) == signing.signed(b"x", {variable: private})
    assert signing.signed(b"x", {}) is None
    other = ec.generate_private_key(ec.SECP256R1())
    wrong = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    for given in (private.replace("MC4", "MC5"), wrong, str(tmp_path / "none.pem"), public.read_text()):
        with pytest.raises(ConfigError) as error:
            signing.signed(b"x", {variable: given})
        assert "PRIVATE" not in str(error.value)
        assert given not in str(error.value)
    with pytest.raises(ConfigError, match="no ed25519 key"):
        verify_release(release(tmp_path / "r.zip", key=private), file)


def test_openssl_makes_keys_as_the_docs_say(tmp_path: Path) -> None:
    private, public = tmp_path / "release-key.pem", tmp_path / "release-key.pub.pem"
    try:
        subprocess.run(
            ["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True, capture_output=True
        )
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl here")
    assert verify_release(release(tmp_path / "r.zip", key=str(private)), public).signed_by


def test_one_changed_byte_anywhere_is_refused_and_the_file_named(tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    path = release(tmp_path / "r.zip", payload(bytes(1000)), key=private)
    data = path.read_bytes()
    for at in range(0, len(data), 29):
        changed = bytearray(data)
        changed[at] ^= 0x20
        path.write_bytes(changed)
        with pytest.raises(VerificationError, match=r"^r\.zip: "):
            verify_release(path, public)


def test_neither_qnn_nor_onnx_nor_numpy_is_needed(tmp_path: Path) -> None:
    path = release(tmp_path / "r.zip", key=keys(tmp_path)[0])
    refused = "onnxruntime", "onnxruntime_qnn", "onnx", "numpy", "huggingface_hub", "yaml", "doit"
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({refused!r}))\n"  # importing what is None here raises ImportError
        "from pipeline.release.verify import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, str(path), "--key", str(tmp_path / "key.pub.pem")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "signed by the given key" in done.stdout
