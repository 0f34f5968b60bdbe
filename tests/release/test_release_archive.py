"""Archives of releases: one form, equal bytes, and nothing else is taken."""

from __future__ import annotations

import io
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import PipelineError, StoreError, VerificationError
from pipeline.release.archives import archive as zip_records
from pipeline.release.archives.archive import Archive, Member, write_archive

FILES = {"a.txt": b"first", "b/large.bin": bytes(range(90)), "b/empty": b"", "ü.txt": b"a name in UTF-8"}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return written(tmp_path / "r.zip")


def written(path: Path, files: dict[str, bytes] = FILES) -> Path:
    write_archive(path, {name: Member.of(data) for name, data in files.items()})
    return path


def read_all(path: Path) -> dict[str, bytes]:
    with Archive(path) as opened:
        return {name: opened.read(name, 1 << 20) for name in opened.entries}


def test_what_goes_in_comes_out_sorted_and_any_program_can_open_it(archive: Path) -> None:
    assert read_all(archive) == FILES
    assert [*read_all(archive)] == sorted(FILES)
    with zipfile.ZipFile(archive) as other:
        assert other.testzip() is None
        assert {info.filename: other.read(info) for info in other.infolist()} == FILES
        first = other.infolist()[0]
        assert (first.compress_type, first.date_time) == (zipfile.ZIP_STORED, (1980, 1, 1, 0, 0, 0))
        assert first.external_attr >> 16 == 0o100644


def test_equal_members_are_equal_bytes_wherever_and_in_whatever_order(tmp_path: Path) -> None:
    first = written(tmp_path / "one" / "r.zip")
    (tmp_path / "f").write_bytes(FILES["b/large.bin"])
    members = {name: Member.of(data) for name, data in reversed(FILES.items())}
    large = members["b/large.bin"]
    members["b/large.bin"] = Member(large.sha256, large.size, tmp_path / "f")
    write_archive(tmp_path / "two" / "other.zip", members)
    assert first.read_bytes() == (tmp_path / "two" / "other.zip").read_bytes()


def test_an_archive_without_files_is_one(tmp_path: Path) -> None:
    assert read_all(written(tmp_path / "r.zip", {})) == {}


def test_a_file_that_is_not_what_its_digest_says_leaves_no_archive(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"other")
    member = Member.of(b"right")
    with pytest.raises(StoreError, match=r"corrupt: x\.bin"):
        write_archive(tmp_path / "r.zip", {"x.bin": Member(member.sha256, member.size, tmp_path / "f")})
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize(
    "name", ["", "/a", "a//b", "../a", "a/..", "a\\b", "c:a", "a\n", "a. ", "con?", "NUL", "a/com1.txt"]
)
def test_a_name_that_some_system_can_not_have_is_not_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="can't be a name"):
        write_archive(tmp_path / "r.zip", {name: Member.of(b"")})


def test_names_that_differ_in_case_alone_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'files/A' and 'files/a' can't both be names"):
        write_archive(tmp_path / "r.zip", {"files/A": Member.of(b""), "files/a": Member.of(b"")})
    assert not [*tmp_path.iterdir()]


def test_numbers_that_do_not_fit_are_kept_as_zip64(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = archive.read_bytes()
    for limit_32, limit_16 in ((100, 0xFFFF), (0xFFFFFFFF, 3), (5, 2)):
        monkeypatch.setattr(zip_records, "LIMIT_32", limit_32)
        monkeypatch.setattr(zip_records, "LIMIT_16", limit_16)
        large = written(tmp_path / "large.zip")
        assert read_all(large) == FILES
        assert large.read_bytes() != plain


def test_a_directory_of_files_beyond_4_gb_is_read_by_another_program_as_well() -> None:
    entries = []
    offset = 0
    for number, size in enumerate((1 << 32, 10, 0xFFFFFFFF)):
        entries.append(zip_records.Entry(f"{number}.bin", size, number, offset))
        offset = entries[-1].end
    tail = zip_records.directory(entries)

    class Sparse(io.RawIOBase):
        """Zeros, and at the end the directory."""

        at = 0

        def seekable(self) -> bool:
            return True

        def tell(self) -> int:
            return self.at

        def seek(self, to: int, whence: int = 0) -> int:
            self.at = to + (0, self.at, offset + len(tail))[whence]
            return self.at

        def read(self, size: int = -1) -> bytes:
            start = self.at - offset
            found = tail[start:] if size < 0 else tail[start : start + size]
            self.at += len(found)
            return found

    infos = zipfile.ZipFile(Sparse()).infolist()
    assert [(info.filename, info.file_size, info.header_offset) for info in infos] == [
        (entry.name, entry.size, entry.offset) for entry in entries
    ]


def test_one_changed_byte_anywhere_is_refused_and_the_file_named(archive: Path) -> None:
    data = archive.read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << random.Random(at).randrange(8)
        archive.write_bytes(changed)
        with pytest.raises(VerificationError, match=r"^r\.zip: ") as refused:
            read_all(archive)
        assert "UnicodeDecodeError" not in str(refused.value)


def test_a_changed_byte_of_a_record_names_its_entry(archive: Path) -> None:
    data = archive.read_bytes()
    with Archive(archive) as opened:
        start = [*opened.entries.values()][-1].end
        names = [*opened.entries]
    at = start
    for name in names:
        at = data.index(b"PK\1\2", at)
        changed = bytearray(data)
        changed[at + 12] ^= 1  # of the time, which nothing else looks at
        archive.write_bytes(changed)
        with pytest.raises(VerificationError, match=f"the directory's record of {re.escape(name)} is not"):
            Archive(archive)
        at += 4
    archive.write_bytes(data[:-22] + data[-22:].replace(b"PK\5\6\0", b"PK\5\6\1"))
    with pytest.raises(VerificationError, match="the end of its directory is not"):
        Archive(archive)


def test_a_changed_byte_of_content_names_the_entry(archive: Path) -> None:
    data = archive.read_bytes()
    archive.write_bytes(data.replace(b"first", b"worst"))
    with pytest.raises(VerificationError, match=r"a\.txt is corrupt"):
        read_all(archive)


@pytest.mark.parametrize("size", [0, 1, 21, 22, 100])
def test_a_cut_archive_is_refused(archive: Path, size: int) -> None:
    data = archive.read_bytes()
    for cut in (data[:size], data[: len(data) - size - 1], data[size + 1 :]):
        archive.write_bytes(cut)
        with pytest.raises(VerificationError):
            read_all(archive)


def insert(data: bytes, at: int, what: bytes) -> bytes:
    return data[:at] + what + data[at:]


def zipped(change: Callable[[zipfile.ZipFile], object]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        change(made)
    return stream.getvalue()


def test_nothing_may_lie_before_between_or_after(archive: Path) -> None:
    data = archive.read_bytes()
    with Archive(archive) as opened:
        second, end = [*opened.entries.values()][1].offset, [*opened.entries.values()][-1].end
    for odd in (b"x" + data, data + b"x", data + bytes(22), insert(data, second, b"x"), insert(data, end, b"x")):
        archive.write_bytes(odd)
        with pytest.raises(VerificationError):
            read_all(archive)
    comment = data[:-2] + b"\3\0abc"
    archive.write_bytes(comment)
    with pytest.raises(VerificationError, match="does not end as one"):
        read_all(archive)


def two(first: str, second: str) -> bytes:
    """An archive of our form but for its names."""
    entries, content = [], b""
    for name in (first, second):
        entry = zip_records.Entry(name, 0, 0, len(content))
        entries.append(entry)
        content += zip_records.local_header(entry)
    return content + zip_records.directory(entries)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("a", "a"), "each name there once"),
        (("b", "a"), "entries are sorted"),
        (("../a", "b"), "which some systems can't have"),
        (("/etc/passwd", "b"), "which some systems can't have"),
        (("A", "a"), "differ in case alone"),
        (("a", "b\\c"), "which some systems can't have"),
        (("a" * 5000, "b"), "too long"),
    ],
)
def test_names_that_lie_or_collide_are_refused(archive: Path, names: tuple[str, str], why: str) -> None:
    archive.write_bytes(two(*names))
    with pytest.raises(VerificationError, match=why):
        read_all(archive)


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.writestr("a.txt", "x"),  # with a time
        lambda made: made.writestr(zipfile.ZipInfo("a.txt"), "x" * 99, zipfile.ZIP_DEFLATED),
        lambda made: made.writestr(zipfile.ZipInfo("a/"), ""),
    ],
)
def test_archives_of_other_programs_are_refused(archive: Path, change: Callable[[zipfile.ZipFile], object]) -> None:
    archive.write_bytes(zipped(change))
    with pytest.raises(VerificationError):
        read_all(archive)


def test_bytes_at_random_are_refused_as_no_archive(archive: Path) -> None:
    chance = random.Random(0)
    data = archive.read_bytes()
    for _ in range(300):
        at = chance.randrange(len(data))
        end = chance.randrange(at, len(data))
        changed = data[:at] + chance.randbytes(end - at + 1) + data[end + 1 :]
        archive.write_bytes(changed if changed != data else b"")
        with pytest.raises(PipelineError):
            read_all(archive)


def test_a_file_may_not_be_larger_than_its_reader_can_bear(archive: Path) -> None:
    with Archive(archive) as opened, pytest.raises(VerificationError, match=r"b/large\.bin is too large"):
        opened.read("b/large.bin", 80)
