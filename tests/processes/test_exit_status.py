"""What is said of a process that ended: its status in words, and the end of its log."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from pipeline.processes.exit_status import exit_reason
from pipeline.processes.log_tail import log_tail
from pipeline.qnn.failures import OUT_OF_MEMORY, find


@pytest.mark.parametrize(
    ("status", "reason", "cause"),
    [
        (-11, "killed by signal 11 (SIGSEGV)", "native code crashed"),
        (-6, "killed by signal 6 (SIGABRT)", "native code gave up"),
        (-4, "killed by signal 4 (SIGILL)", "this processor, emulator or virtual machine doesn't have"),
        (-9, "killed by signal 9 (SIGKILL)", "when memory runs out"),
        (-15, "killed by signal 15 (SIGTERM)", "told it to end"),
        (-8, "killed by signal 8 (SIGFPE)", "divided by zero"),
        (-25, "killed by signal 25 (SIGXFSZ)", "a limit of this shell"),
        (127, "exit status 127", "a library or program was not found"),
        (126, "exit status 126", "may not be executed"),
        (0, "exit status 0", "as if all was well"),
        (139, "exit status 139 (by which a shell means signal 11 (SIGSEGV))", "native code crashed"),
        (0xC0000005, "exit status 0xC0000005 (STATUS_ACCESS_VIOLATION)", "native code crashed"),
        (-1073741819, "exit status 0xC0000005 (STATUS_ACCESS_VIOLATION)", "native code crashed"),
        (0xC0000135, "exit status 0xC0000135 (STATUS_DLL_NOT_FOUND)", "a DLL is missing"),
        (0xC0000139, "exit status 0xC0000139 (STATUS_ENTRYPOINT_NOT_FOUND)", "a DLL is missing, or is too old"),
        (0xC000001D, "exit status 0xC000001D (STATUS_ILLEGAL_INSTRUCTION)", "used an instruction"),
        (0xC0000409, "exit status 0xC0000409 (STATUS_STACK_BUFFER_OVERRUN)", "native code gave up"),
        (0xC0000017, "exit status 0xC0000017 (STATUS_NO_MEMORY)", "no more memory"),
        (0xC00000FD, "exit status 0xC00000FD (STATUS_STACK_OVERFLOW)", "used up its stack"),
        (0xC000007B, "exit status 0xC000007B (STATUS_INVALID_IMAGE_FORMAT)", "another kind of processor"),
        (0xC000013A, "exit status 0xC000013A (STATUS_CONTROL_C_EXIT)", "told it to end"),
    ],
)
@pytest.mark.skipif("sys.platform == 'win32'", reason="names of signals that Windows does not have")
def test_a_status_has_a_name_and_a_cause(status: int, reason: str, cause: str) -> None:
    assert exit_reason(status) == reason
    known = find(reason)
    assert known is not None
    assert cause in known.cause
    assert known.source.startswith("https://")


def test_others_are_numbers() -> None:
    assert exit_reason(-63) == "killed by signal 63"
    assert exit_reason(3) == "exit status 3"
    assert exit_reason(0xC0DEDEAD) == "exit status 0xC0DEDEAD"
    assert find(exit_reason(3)) is None


def test_what_the_log_says_comes_before_what_the_status_says() -> None:
    known = find("terminate called after throwing an instance of 'std::bad_alloc'\nkilled by signal 6 (SIGABRT)")
    assert known is not None
    assert known.cause == "the system gave the process no more memory"
    known = find(f"{OUT_OF_MEMORY}\nkilled by signal 9 (SIGKILL)")
    assert known is not None
    assert known.cause == "the system ran out of memory, and Linux ended the process"


class TestLogTail:
    def test_the_last_lines_that_hold_something(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_bytes(b"first\nsecond\r\n\n  \nthird\n\n")
        assert log_tail(log, 2) == ["second", "third"]
        assert log_tail(log, 9) == ["first", "second", "third"]

    def test_what_a_terminal_would_obey_is_not_passed_on(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_bytes(b"\x1b[31mred\x1b[0m \xff\x07\x00 end\n")
        assert log_tail(log, 1) == ["red \ufffd\\x07\\x00 end"]

    def test_a_long_line_is_cut(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text("x" * 1_000_000)
        (line,) = log_tail(log, 5)
        assert len(line) == 300
        assert line.endswith("…")

    def test_of_a_large_log_the_end_is_read(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        with log.open("wb") as stream:
            stream.truncate(2 << 30)  # takes no room on the disk
            stream.seek(0, 2)
            stream.write(b"\nthe end\n")
        tracemalloc.start()
        try:
            assert log_tail(log, 1) == ["the end"]
            assert tracemalloc.get_traced_memory()[1] < 2 << 20
        finally:
            tracemalloc.stop()

    def test_without_a_log_there_are_none(self, tmp_path: Path) -> None:
        assert log_tail(tmp_path / "log", 5) == []
        assert log_tail(tmp_path, 5) == []
