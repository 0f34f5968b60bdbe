"""Opens URLs of places that fsspec knows, and shows them and errors about them without secrets.

fsspec and its packages are imported only when a URL is opened, as that takes up to a second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

_LONGEST_TOLD = 300
_ODD = re.compile(r"(?!file://)[A-Za-z][\w+.-]+:")  # a scheme, which is longer than the letter of a drive of Windows
_LEAST_SECRET = 8  # a shorter one may be part of any word
_USER = re.compile(r"//[^/\s'\"]*@")
_USER_WITH_SLASH = re.compile(r"//[^/\s:@'\"]*:(?!\d{1,5}(?:[/\s'\"]|$))[^@\s'\"]*@")
_QUERY = re.compile(
    r"([?&;](?:[\w-]*(?:sig|signature|token|key|secret|password|credential)[\w-]*)=)[^&;\s'\"<>]+", re.IGNORECASE
)
_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|CONNECTION_STRING|_KEY|^FSSPEC_", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Whether a text is a URL, but not that of a folder on this machine."""
    return "://" in text and not text.startswith("file://")


def path_of(text: str) -> str:
    """The path of a folder that may be written as a URL."""
    if not text.startswith("file://"):
        return text
    from urllib.parse import urlsplit
    from urllib.request import url2pathname  # slow to import

    return url2pathname(urlsplit(text).path)


def folder_of(text: str, where: str) -> Path:
    """The folder that a path or a `file://` URL names.

    Raises:
        ConfigError: it names none, or one on another host.
    """
    if _ODD.match(text) or text.startswith("-") or "::" in text:
        raise ConfigError(
            f"neither a folder nor a URL: {redacted(text)}",
            where=where,
            remedy="write a folder, or a URL that fsspec opens, such as s3://bucket/folder",
        )
    host = text.removeprefix("file://").partition("/")[0] if text.startswith("file://") else ""
    if host not in ("", "localhost"):
        raise ConfigError(
            f"a file:// URL has three slashes, or names a host, whose files can't be had: {redacted(text)}",
            where=where,
            remedy=f"write file:///{redacted(text).removeprefix('file://')}, or the folder where they are mounted",
        )
    return Path(os.path.expanduser(path_of(text)))  # noqa: PTH111  # Path.expanduser raises for an unknown user


def redacted(text: str) -> str:
    """A URL, or text with URLs, without user names, passwords and signatures."""
    return _QUERY.sub(r"\1***", _USER_WITH_SLASH.sub("//", _USER.sub("//", text)))


def told(error: BaseException, url: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """The error of a library in one line, without secrets of the URL or the environment."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if user := _user_of(url):  # also without its scheme, as libraries take URLs apart
        text = text.replace(f"{user}@", "***@")
    text = redacted(text)
    for secret, shown in _secrets(url, environ):
        for spelt in (secret, ascii(secret)[1:-1], ascii(secret.encode())[2:-1]):
            text = text.replace(spelt, shown)
    return text[:_LONGEST_TOLD]


def import_for(url: str, where: str) -> None:
    """Import the package for a kind of URL. Raises ConfigError as :func:`open_url`."""
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
        Exception: an error of the library behind it, which :func:`told` turns into text.
    """
    import fsspec

    if protocol_of(url) in ("s3", "s3a") and _user_of(
        url
    ):  # the library would take the user for a part of the bucket's name
        raise ConfigError(
            f"a URL of S3 names a bucket and no user: {redacted(url)}",
            where=where,
            remedy="put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into the environment, and take them out of the URL",
        )
    import_for(url, where)
    try:
        system, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:  # the package of another URL of the chain
        raise _not_installed(error, url, where) from None
    return system, str(path).rstrip("/")


def protocol_of(url: str) -> str:
    """The scheme of a URL, such as `s3`; the outermost of a chain."""
    return url.split("://", 1)[0].split("::", 1)[0].lower()


def _secrets(url: str, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Secrets and what to show instead of each, the longest first, as one may contain another."""
    found = {value.strip(): f"<{name}>" for name, value in environ.items() if _SECRET_NAME.search(name)}
    if whole := _user_of(url):
        from urllib.parse import unquote

        user, _, password = whole.partition(":")
        found |= dict.fromkeys((whole, user, password, unquote(user), unquote(password)), "***")
    return sorted(
        ((value, shown) for value, shown in found.items() if len(value) >= _LEAST_SECRET),
        key=lambda each: len(each[0]),
        reverse=True,
    )


def _user_of(url: str) -> str:
    """The user name and password in a URL as they are written; a password may have slashes and any other signs."""
    match = re.match(r"[^/]*://([^/\s]*|[^/\s:@]*:(?!\d{1,5}(?:/|$)).*)@", url)
    return match[1] if match else ""


def _not_installed(error: ImportError, url: str, where: str) -> ConfigError:
    return ConfigError(
        "the package for this kind of URL is not installed",
        where=where,
        why=told(error, url),
        remedy="install it; for s3:// that is 'uv sync --extra s3'",
    )
