"""The certificates that Dask's configuration names for connections to a scheduler.

Dask would say what is wrong with them in the words of its own code, without the name of a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipeline.errors import ConfigError

_SETTINGS = "distributed.comm.tls"
_REMEDY = f"set {_SETTINGS} in Dask's configuration, on every machine of the cluster (docs/cluster.md, Safety)"


def check_certificates(url: str, role: Literal["client", "worker"], where: str) -> None:
    """See that a build (`client`) or a worker may connect to a scheduler at `url`, which was given at `where`.

    Raises:
        ConfigError: the address asks for certificates and there are none, or they can't be used; or encryption is
            required and the address has none.
    """
    from distributed.security import Security

    try:
        security = Security()
        context = security.get_connection_args(role)["ssl_context"]
    except (OSError, ValueError, TypeError) as error:
        lost = [f"{_SETTINGS}.{key} is {path}" for key, path in _files(role).items() if not path.is_file()]
        raise ConfigError(
            "the certificates of the cluster can't be used",
            where=where,
            why=f"{' and '.join(lost)}, and there is no such file" if lost else str(error),
            remedy=_REMEDY,
        ) from error
    if url.startswith("tls://") and context is None:
        raise ConfigError(
            "there are no certificates for the cluster",
            where=where,
            why=f"the scheduler's address is {url}, and {_SETTINGS} has no ca-file, or no cert for the {role}",
            remedy=_REMEDY,
        )
    if security.require_encryption and not url.startswith("tls://"):
        raise ConfigError(
            "the cluster is to be reached by encrypted connections alone",
            where=where,
            why=f"the scheduler's address is {url}, and Dask's configuration has distributed.comm.require-encryption",
            remedy="write the address as tls://host:port, and start the scheduler with such a one",
        )


def _files(role: str) -> dict[str, Path]:
    """The files that the configuration names, by setting. What is written out in it, keys too, has several lines."""
    import dask

    named = {key: dask.config.get(f"{_SETTINGS}.{key}", None) for key in ("ca-file", f"{role}.cert", f"{role}.key")}
    return {key: Path(value) for key, value in named.items() if isinstance(value, str) and "\n" not in value}
