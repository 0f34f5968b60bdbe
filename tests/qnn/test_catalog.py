from __future__ import annotations

import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from pipeline.contracts.target import HtpTarget
from pipeline.errors import ConfigError
from pipeline.qnn import catalog, session
from pipeline.qnn.format.context_binary import BinaryInfo, parse
from tests.support.fresh import fresh
from tests.support.tiny_models import qdq_model


@pytest.mark.parametrize(
    ("name", "soc_model"),
    [
        ("snapdragon-x-elite", 60),
        ("Snapdragon X Elite", 60),
        ("SNAPDRAGON_X_ELITE", 60),
        ("Snapdragon X Plus", 60),
        ("sc8380xp", 60),
        ("60", 60),
        ("sm8650", 57),
        ("SM8650", 57),
        ("snapdragon-8-gen-3", 57),
        ("Snapdragon 8 Gen 1", 36),
        ("Snapdragon 8+ Gen 1", 42),
        ("snapdragon-8-plus-gen-1", 42),
        ("QCS9075", 77),
    ],
)
def test_a_soc_is_found_by_any_of_its_names(name: str, soc_model: int) -> None:
    assert catalog.resolve(name).soc_model == soc_model


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("sm865O", "did you mean 'sm8650'?"),
        ("sm8560", "did you mean 'sm8650'?"),
        ("snapdragon-x-elit", "did you mean 'snapdragon-x-elite'?"),
        ("Snapdragon 8 Gen 33", "did you mean 'snapdragon-8-gen-3'?"),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.resolve(name)
    assert caught.value.what == f"unknown target '{name}'; {suggestion}"


@pytest.mark.parametrize("name", ["", "npu", "9999", "sm 8650", "../sm8650/x"])
def test_an_unknown_name_is_refused_with_the_list_of_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown target") as caught:
        catalog.resolve(name)
    assert "sm8650, sm8735" in caught.value.why


def test_names_are_unique_sorted_and_safe_in_paths() -> None:
    names = catalog.names()
    assert list(names) == sorted(set(names))
    assert len(names) == len(catalog.SOCS) == len({soc.soc_model for soc in catalog.SOCS})
    assert all(name.replace("-", "").isalnum() and name.isascii() and name == name.lower() for name in names)


def test_no_alias_belongs_to_two_socs() -> None:
    for soc in catalog.SOCS:
        for name in (soc.name, soc.chip, *soc.also_known_as):
            assert catalog.resolve(name) == soc


def test_every_spelling_leads_to_the_soc_it_names() -> None:
    spellings = catalog.spellings()
    assert spellings["Snapdragon 8+ Gen 1"] == spellings["snapdragon-8-plus-gen-1"] == "sm8475"
    assert all(catalog.resolve(spelling).name == name for spelling, name in spellings.items())


def test_vtcm_is_the_socs_own_unless_less_is_asked_for() -> None:
    phone = catalog.resolve("sm8350")
    assert phone.usable_vtcm_mb(None) == 4
    assert phone.usable_vtcm_mb(2) == 2
    with pytest.raises(ConfigError) as caught:
        phone.usable_vtcm_mb(8)
    assert str(caught.value) == (
        "sm8350 has 4 MB of VTCM, not 8\n"
        "  why: a context compiled for more than there is can't be loaded on the device\n"
        "  next: set vtcm_mb to 4 or less, or leave it out"
    )


def test_vtcm_is_not_guessed_where_no_table_gives_it() -> None:
    laptop = catalog.resolve("snapdragon-x2-elite")
    assert laptop.usable_vtcm_mb(None) is None
    assert laptop.usable_vtcm_mb(8) == 8
    with pytest.raises(ConfigError, match="no SoC is known to have more than 16 MB of VTCM, not 32"):
        laptop.usable_vtcm_mb(32)


def test_float16_needs_v73() -> None:
    assert not catalog.resolve("sm8350").computes_float16
    assert not catalog.resolve("sm8450").computes_float16
    assert catalog.resolve("sm8550").computes_float16


def test_reading_the_catalogue_imports_nothing_heavy() -> None:
    code = "import sys, pipeline.qnn.catalog; print({'numpy', 'onnx', 'onnxruntime'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_installed_sdk_agrees_on_id_chip_and_architecture(tmp_path: Path) -> None:
    """A flexible context binary for all SoCs at once has one record for each, named after its chip."""
    model = qdq_model(tmp_path / "model")
    records = fresh(_flexible_records, model, tmp_path, [soc.soc_model for soc in catalog.SOCS])
    told = {(info.soc_model, chip, info.htp_arch) for chip, info in records.items()}
    assert told == {(soc.soc_model, soc.chip.lower(), soc.htp_arch) for soc in catalog.SOCS}


def _flexible_records(model: Path, folder: Path, soc_models: list[int]) -> dict[str, BinaryInfo]:
    several = {"soc_model": ",".join(map(str, soc_models)), "htp_arch": ",".join("0" for _ in soc_models)}
    settings = session.session_options(HtpTarget(0, 0), several | {"enable_htp_prepare_only": "1"})
    flags = ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
    ort.ModelCompiler(settings, str(model), flags=flags).compile_to_file(str(folder / "all_ctx.onnx"))
    binary = folder / "all_ctx_qnn.bin"
    prefix = "htp.cache."
    with zipfile.ZipFile(binary) as archive:
        records = [entry for entry in archive.infolist() if entry.filename.startswith(prefix)]
    data = np.fromfile(binary, np.uint8)
    return {
        entry.filename.removeprefix(prefix).split(".")[0]: parse(_stored(data, entry), entry.filename)
        for entry in records
    }


def _stored(data: NDArray[np.uint8], entry: zipfile.ZipInfo) -> NDArray[np.uint8]:
    """A record's bytes. They are not compressed, and QNN writes no checksums, which the zipfile module insists on."""
    name_length, extra_length = struct.unpack_from("<HH", data.data, entry.header_offset + 26)
    start = entry.header_offset + 30 + name_length + extra_length
    return data[start : start + entry.file_size].copy()
