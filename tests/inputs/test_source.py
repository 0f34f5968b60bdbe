"""Local model folders: which files belong to a model, and what is refused; and the fetch stage that copies them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.errors import ModelError, SourceError
from pipeline.inputs.source import external_names, local_files
from pipeline.store.digests import StatMemo
from tests.support.fetching import Machine, facts_text, model_with


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder as people have them."""
    root = tmp_path / "model"
    (root / "onnx" / "parts").mkdir(parents=True)
    (root / "onnx" / "model.onnx").write_bytes(model_with("model.onnx_data", "./parts/b.bin", "model.onnx_data"))
    (root / "onnx" / "model.onnx_data").write_bytes(b"weights")
    (root / "onnx" / "parts" / "b.bin").write_bytes(b"more weights")
    (root / "tokenizer.json").write_text("{}")
    (root / "notes.txt").write_text("not part of the model")
    return root


NEEDED = ["onnx/model.onnx", "onnx/model.onnx_data", "onnx/parts/b.bin", "tokenizer.json"]


def test_named_files_and_external_data_belong_to_the_model(folder: Path) -> None:
    files = local_files(folder, ["onnx/model.onnx", "tokenizer.json"])
    assert sorted(files) == NEEDED
    assert files["onnx/parts/b.bin"].read_bytes() == b"more weights"


def test_a_remembered_model_is_not_parsed_again(folder: Path, tmp_path: Path) -> None:
    class Counting(StatMemo):
        parsed = 0

        def value(self, path, what, compute):  # type: ignore[no-untyped-def]
            def counted(path):  # type: ignore[no-untyped-def]
                self.parsed += 1
                return compute(path)

            return super().value(path, what, counted)

    os.utime(folder / "onnx" / "model.onnx", (1, 1))
    memo = Counting(tmp_path / "memo.json")
    assert local_files(folder, ["onnx/model.onnx"], memo) == local_files(folder, ["onnx/model.onnx"], memo)
    assert memo.parsed == 1


def test_the_stage_copies_them_and_tells_no_path(folder: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    fetched = machine.copy(local_files(folder, ["onnx/model.onnx", "tokenizer.json"]))
    assert sorted(fetched.files) == NEEDED
    assert fetched.files["onnx/model.onnx_data"] == b"weights"
    assert fetched.facts == {}
    assert str(tmp_path) not in facts_text(fetched)


def test_the_stage_sees_that_a_model_changed_meanwhile(folder: Path, tmp_path: Path) -> None:
    files = local_files(folder, ["onnx/model.onnx"])
    (folder / "onnx" / "model.onnx").write_bytes(model_with("model.onnx_data", "new.bin"))
    with pytest.raises(SourceError, match=r"onnx/model\.onnx changed while the build ran.* onnx/new\.bin now"):
        Machine(tmp_path / "machine").copy(files)


def test_a_file_that_is_not_there(folder: Path) -> None:
    with pytest.raises(SourceError, match=r"has no file model\.onnx; did you mean 'onnx/model\.onnx'\?"):
        local_files(folder, ["model.onnx"])


def test_external_data_that_is_not_there(folder: Path) -> None:
    (folder / "onnx" / "model.onnx_data").rename(folder / "onnx" / "renamed.onnx_data")
    with pytest.raises(SourceError, match=r"has no external data onnx/model\.onnx_data; did you mean") as raised:
        local_files(folder, ["onnx/model.onnx"])
    assert raised.value.where == f"{folder}, named by onnx/model.onnx"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="the model folder nothing does not exist") as raised:
        local_files(tmp_path / "nothing", ["model.onnx"])
    assert "relative to the config file" in raised.value.remedy


@pytest.mark.parametrize("name", ["../secret", "onnx/../../secret", "/etc/passwd", "a\\b", "C:/x", ""])
def test_names_that_lead_out_are_refused(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("x")
    with pytest.raises(SourceError, match="is no name of a file in the source"):
        local_files(folder, [name])


def test_a_name_has_one_spelling(folder: Path) -> None:
    with pytest.raises(SourceError) as raised:
        local_files(folder, ["onnx/./model.onnx"])
    assert raised.value.remedy == "write onnx/model.onnx"


@pytest.mark.parametrize(
    "location", ["../weights.bin", "/etc/passwd", "a/../../b", "C:\\weights.bin", "D:w", "..\\w", "", ".", "a\0b"]
)
def test_external_data_that_leads_out_is_refused(folder: Path, location: str) -> None:
    path = folder / "evil.onnx"
    path.write_bytes(model_with(location))
    with pytest.raises(ModelError, match=r"evil\.onnx names external data outside its folder"):
        external_names("evil.onnx", path)


@pytest.mark.parametrize("name", ["onnx/model.onnx", "onnx/model.onnx_data"])
def test_links_out_of_the_folder_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (folder / name).rename(outside)
    try:
        (folder / name).symlink_to(outside)
    except OSError:
        pytest.skip("this account can't make links")
    with pytest.raises(SourceError, match=f"{name} is a link that leads out of the model folder") as raised:
        local_files(folder, ["onnx/model.onnx"])
    assert "give source.hub instead of path" in raised.value.remedy


def test_links_within_the_folder_are_followed(folder: Path) -> None:
    try:
        (folder / "alias.json").symlink_to("tokenizer.json")
    except OSError:
        pytest.skip("this account can't make links")
    assert local_files(folder, ["alias.json"])["alias.json"].read_text() == "{}"


@pytest.mark.parametrize("name", ["onnx/model.onnx", "onnx/model.onnx_data"])
def test_a_clone_without_lfs_is_recognized(folder: Path, name: str) -> None:
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n")
    with pytest.raises(SourceError, match=f"{name} is a Git LFS pointer") as raised:
        local_files(folder, ["onnx/model.onnx"])
    assert raised.value.remedy == "run 'git lfs pull' in it"


@pytest.mark.parametrize("content", [b"", b"<html>404</html>", model_with("w.bin")[:-9]])
def test_a_file_that_is_no_onnx(folder: Path, content: bytes) -> None:
    (folder / "onnx" / "model.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.onnx is not an ONNX model, or is damaged"):
        local_files(folder, ["onnx/model.onnx"])
