"""Reads the private key to sign releases with, which the environment names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pipeline.errors import ConfigError

VARIABLE = "PIPELINE_SIGNING_KEY"
"""The environment variable with the path of a PEM file, or with its text."""


def private_key(environ: Mapping[str, str]) -> Ed25519PrivateKey | None:
    """The key that the environment names; None if it names none.

    Raises:
        ConfigError: what it names is no ed25519 key. No message contains the key itself.
    """
    given = environ.get(VARIABLE, "").strip()
    if not given:
        return None
    try:
        pem = given.encode() if given.startswith("-----") else Path(given).expanduser().read_bytes()
        key = load_pem_private_key(pem, None)
    except OSError as error:
        raise no_key(VARIABLE, f"the file can't be read: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise no_key(VARIABLE, "it is no private key in PEM, or has a password") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise no_key(VARIABLE, "it is a key of another kind")
    return key


def no_key(where: str, why: str) -> ConfigError:
    """The error for a key that can't be read or used."""
    return ConfigError(
        "there is no ed25519 key to be had",
        where=where,
        why=why,
        remedy="make one: openssl genpkey -algorithm ed25519 -out release-key.pem (docs/releases.md)",
    )
