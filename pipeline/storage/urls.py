"""URLs of places that fsspec opens: opening one, and showing it, or what a library says about it, without secrets.

fsspec, and what it needs for a kind of URL, is imported when one is opened: that takes a second for some.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError

_LONGEST_TOLD = 300
_LEAST_SECRET = 8  # a shorter one may be part of any word
_USER = re.compile(r"//[^/\s'\"]*@")
_USER_WITH_SLASH = re.compile(r"//[^/\s:@'\"]*:(?!\d{1,5}(?:[/\s'\"]|$))[^@\s'\"]*@")
_QUERY = re.compile(
    r"([?&;](?:[\w-]*(?:sig|signature|token|key|secret|password|credential)[\w-]*)=)[^&;\s'\"<>]+", re.IGNORECASE
)
_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|CONNECTION_STRING|_KEY|^FSSPEC_", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Whether a text is a URL that is not of a folder on this machine."""
    return "://" in text and not text.startswith("file://")


def path_of(text: str) -> str:
    """The path of a folder that may be written as a URL."""
    if not text.startswith("file://"):
        return text
    from urllib.parse import urlsplit
    from urllib.request import url2pathname  # slow to import

    return url2pathname(urlsplit(text).path)


def redacted(text: str) -> str:
    """A URL, or text with URLs, without the user names, passwords and signatures that they may carry."""
    return _QUERY.sub(r"\1***", _USER_WITH_SLASH.sub("//", _USER.sub("//", text)))


def told(error: BaseException, url: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """What a library says of a failure, in a line, without what the URL or the environment have of secrets."""
    text = redacted(" ".join(f"{type(error).__name__}: {error}".split()))
    for secret, shown in _secrets(url, environ):
        for spelt in (secret, ascii(secret)[1:-1], ascii(secret.encode())[2:-1]):
            text = text.replace(spelt, shown)
    return text[:_LONGEST_TOLD]


def import_for(url: str, where: str) -> None:
    """Import what a URL needs, if that can be told from it. Raises ConfigError as :func:`open_url`."""
    import fsspec

    try:
        fsspec.get_filesystem_class(protocol_of(url))
    except ImportError as error:
        raise _not_installed(error, url, where) from None
    except ValueError as error:
        raise ConfigError(
            f"this kind of URL is not known: {redacted(url)}",
            where=where,
            why=told(error, url),
            remedy="write a folder, or a URL that fsspec opens, such as s3://bucket/folder",
        ) from None


def open_url(url: str, where: str, **options: Any) -> tuple[Any, str]:
    """The file system of fsspec that a URL leads to, and the path in it, without a slash at its end.

    Raises:
        ConfigError: there is no such kind of URL, or its package is not installed.
        Exception: what the library behind it has to say; :func:`told` makes text of it.
    """
    import fsspec

    import_for(url, where)
    try:
        system, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:  # of a chain, another one
        raise _not_installed(error, url, where) from None
    return system, str(path).rstrip("/")


def protocol_of(url: str) -> str:
    """What a URL begins with, as `s3`; of a chain, what is outermost."""
    return url.split("://", 1)[0].split("::", 1)[0].lower()


def _secrets(url: str, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """What must not be shown, and what is shown instead; the longest first, as one may hold another."""
    found = {value.strip(): f"<{name}>" for name, value in environ.items() if _SECRET_NAME.search(name)}
    if match := re.match(r"[^/]*://([^@]*)@", url):
        from urllib.parse import unquote

        user, _, password = match[1].partition(":")
        found |= dict.fromkeys((match[1], user, password, unquote(user), unquote(password)), "***")
    return sorted(
        ((value, shown) for value, shown in found.items() if len(value) >= _LEAST_SECRET),
        key=lambda each: len(each[0]),
        reverse=True,
    )


def _not_installed(error: ImportError, url: str, where: str) -> ConfigError:
    return ConfigError(
        "the package for this kind of URL is not installed",
        where=where,
        why=told(error, url),
        remedy="install it; for s3:// that is 'uv sync --extra s3'",
    )
