"""The container of binaries for several SoCs: written and read back, and nothing else taken for one."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from pipeline.errors import CompileError
from pipeline.qnn.format.dlc import MAX_RECORDS, NewRecord, is_dlc, read_records, write_records
from pipeline.qnn.format.flexible import read_flexible

RECORDS = (
    NewRecord("htp.shared.weights.<a-b_c>", 4096, bytes(range(256)) * 40),
    NewRecord("htp.metadata.shared_weights.<a-b_c>_metadata", 4096, b"about"),
    NewRecord("htp.cache.sm8650.0", 4096, b"cache"),
    NewRecord("dlc.metadata2.3.0", 8, b"{}"),
)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "a.bin"
    write_records(path, RECORDS)
    return path


def why(path: Path) -> str:
    with pytest.raises(CompileError) as caught:
        read_records(path)
    assert caught.value.what == "the context binary for several SoCs can't be read"
    assert caught.value.where == path.name
    return caught.value.why


def test_what_is_written_is_read(archive: Path) -> None:
    found = read_records(archive)
    assert [(record.name, record.alignment, b"".join(record.chunks())) for record in found] == [
        (record.name, record.alignment, record.data) for record in RECORDS
    ]
    assert all(record.offset % record.alignment == 0 for record in found)
    assert is_dlc(archive)


def test_what_is_read_is_written_again_to_the_byte(archive: Path, tmp_path: Path) -> None:
    write_records(tmp_path / "b.bin", read_records(archive))
    assert (tmp_path / "b.bin").read_bytes() == archive.read_bytes()


def test_it_is_a_zip_archive(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        order = ["dlc.metadata2.3.0", "htp.cache.sm8650.0", RECORDS[0].name, RECORDS[1].name]
        assert [info.filename for info in opened.infolist()] == order
        assert {info.filename: info.file_size for info in opened.infolist()} == {r.name: r.size for r in RECORDS}


def test_cut_short(archive: Path) -> None:
    data = archive.read_bytes()
    for size in (0, 3, 50, 97, 4096, len(data) - 1):
        archive.write_bytes(data[:size])
        assert why(archive) in ("it is cut short", "it does not end as an archive of QNN's does")


def test_something_behind_it_before_it_or_between_its_records(archive: Path) -> None:
    data = archive.read_bytes()
    archive.write_bytes(data + b"x")
    assert why(archive) == "it does not end as an archive of QNN's does"
    archive.write_bytes(b"x" + data)
    assert why(archive) == "it does not end as an archive of QNN's does"


def test_a_general_zip_archive(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "z.bin", "w", method) as opened:
            opened.writestr("htp.cache.sm8650.0", b"\0" * 100_000)
        assert why(tmp_path / "z.bin") == "it does not end as an archive of QNN's does"


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a\\b", "a b", "x" * 201, ""])
def test_a_name_that_is_none_of_a_record(tmp_path: Path, name: str) -> None:
    write_records(tmp_path / "a.bin", [NewRecord(name, 8, b"x")])
    assert why(tmp_path / "a.bin").startswith(f"the entry of {name.encode()!r} in its directory")


def test_two_records_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_records(path, [NewRecord("dlc.a", 8, b"x"), NewRecord("dlc.b", 8, b"y")])
    path.write_bytes(path.read_bytes().replace(b"dlc.b", b"dlc.a"))
    assert why(path).startswith("two of its records have one name")


def test_more_records_than_there_may_be(tmp_path: Path) -> None:
    write_records(tmp_path / "a.bin", [NewRecord(f"dlc.{n}", 8, b"") for n in range(MAX_RECORDS + 1)])
    assert why(tmp_path / "a.bin") == "it does not end as an archive of QNN's does"


@pytest.mark.parametrize("size", [0, 4, 6, 10**6, 2**62, 2**64 - 1])
def test_a_size_that_is_not_true(archive: Path, size: int) -> None:
    """In the directory, in the record's own header, and in both."""
    true, lie = struct.pack("<2Q", 5, 5), struct.pack("<2Q", size, size)
    data = archive.read_bytes()
    directory = data.rindex(b"PK\1\2", 0, data.rindex(b"<a-b_c>_metadata"))
    for changed_data in (
        data[:directory] + data[directory:].replace(true, lie, 1),
        data[:directory].replace(true, lie, 1) + data[directory:],
        data.replace(true, lie),
    ):
        assert changed_data != data
        archive.write_bytes(changed_data)
        assert why(archive)


def test_a_size_that_leads_out_of_the_file(archive: Path) -> None:
    """And a record of another entry seems to begin where it does."""
    data = archive.read_bytes()
    first, *_ = read_records(archive)
    lie = struct.pack("<2Q", 2**63, 2**63)
    true = struct.pack("<2Q", first.size, first.size)
    archive.write_bytes(data.replace(true, lie))
    assert why(archive)


def test_every_byte_of_its_structure_matters(archive: Path) -> None:
    """A change anywhere but in a record's own bytes is seen."""
    data = archive.read_bytes()
    inside = [range(record.offset, record.offset + record.size) for record in read_records(archive)]
    structure = [place for place in range(len(data)) if not any(place in record for record in inside)]
    # headers are short and padding long: all of the former, some of the latter
    looked_at = [place for place in structure if data[place] or place % 97 == 0]
    for place in looked_at:
        archive.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CompileError):
            read_records(archive)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{}", "KeyError"),
        (b"[]", "TypeError"),
        (b"\xff", "UnicodeDecodeError"),
        (b"[" * 100_000, "RecursionError"),
        (b'{"relations": [], "cacheList": [{"cacheName": "nope", "graphs": []}]}', "KeyError"),
        (b'{"relations": [{"parentRecordName": {}, "childRecordNames": [1]}], "cacheList": []}', "is not a name"),
        (
            b'{"relations": [], "cacheList": [{"cacheName": "htp.cache.x.0", "graphs": [], "socModel": Infinity}]}',
            "Ove",
        ),
        (b'{"relations": [], "cacheList": []}', "its records are not those that its metadata lists"),
    ],
)
def test_metadata_that_is_none(tmp_path: Path, text: bytes, expected: str) -> None:
    write_records(tmp_path / "a.bin", [*RECORDS[:3], NewRecord("dlc.metadata2.3.0", 8, text)])
    with pytest.raises(CompileError) as caught:
        read_flexible(tmp_path / "a.bin")
    assert expected in caught.value.why


@pytest.mark.parametrize("size", [0, (1 << 24) + 1])
def test_no_metadata_or_too_much(tmp_path: Path, size: int) -> None:
    records = [NewRecord("dlc.metadata2.3.0", 8, b" " * size)] if size else RECORDS[:3]
    write_records(tmp_path / "a.bin", records)
    with pytest.raises(CompileError) as caught:
        read_flexible(tmp_path / "a.bin")
    assert caught.value.why == "it has no metadata, or too much"
