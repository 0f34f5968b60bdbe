"""The shared store: is there one, can it be read, can it be written."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.doctor.finding import CONFIG, Finding, error, ok, warning
from pipeline.errors import ConfigError
from pipeline.shared.tier import SharedStore, Trial

_CHECK = "store.shared"


def try_out(shared: SharedStore | None) -> Trial | ConfigError | None:
    """What becomes of a try: nothing without one, a mistake where its URL is one."""
    try:
        return shared.try_out() if shared else None
    except ConfigError as mistake:
        return mistake


def check(tried: Trial | ConfigError | None) -> Iterator[Finding]:
    """Whether it can be used. A build does without it, so whatever fails is a warning; a wrong URL fails the build."""
    if tried is None:
        yield ok(_CHECK, "there is no shared store")
    elif isinstance(tried, ConfigError):
        yield error(_CHECK, tried.what, CONFIG, tried.where, why=tried.why, remedy=tried.remedy)
    elif tried.unread:
        remedy = "check the URL, the credentials in the environment and the network; builds go on without it"
        yield warning(_CHECK, "the shared store can't be read", tried.shown, why=tried.unread, remedy=remedy)
    elif tried.unwritten:
        remedy = "ask for the right to write there, if builds of this machine are to be shared"
        what = "the shared store can be read, and not written"
        yield warning(_CHECK, what, tried.shown, why=tried.unwritten, remedy=remedy)
    else:
        yield ok(_CHECK, "the shared store can be read and written", tried.shown)
