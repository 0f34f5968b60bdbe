from __future__ import annotations

import copyreg

import pytest
from tblib.pickling_support import pickle_exception  # type: ignore[import-untyped]

from pipeline.errors import ConfigError, WaitingError


@pytest.mark.parametrize("with_dask", [False, True])
def test_an_error_that_is_told_otherwise_keeps_all_it_carries(with_dask: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if with_dask:
        monkeypatch.setitem(copyreg.dispatch_table, WaitingError, pickle_exception)  # as importing it does for all
    waiting = WaitingError("waits", why="not here", remedy="there", hosts=["linux"], step="context:a")
    again = waiting.but(where="here", why="")
    assert (again.what, again.where, again.why, again.remedy) == ("waits", "here", "", "there")
    assert (again.hosts, again.step) == (("linux",), "context:a")
    assert waiting.where == ""
    assert waiting.at("there").hosts == ("linux",)
    assert again.at("there").where == "here"


def test_an_error_with_other_parts_has_no_history() -> None:
    try:
        raise ConfigError("wrong") from ValueError("cause")
    except ConfigError as error:
        other = error.but(remedy="right")
    assert (type(other), other.__cause__, other.__traceback__) == (ConfigError, None, None)
