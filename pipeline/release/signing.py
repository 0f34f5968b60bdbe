"""Signatures: DSSE envelopes around the statement (https://github.com/secure-systems-lab/dsse), by securesystemslib.

Keys are ed25519, whose signatures of equal bytes are equal.

Make a pair of keys with OpenSSL::

    openssl genpkey -algorithm ed25519 -out release-key.pem
    openssl pkey -in release-key.pem -pubout -out release-key.pub.pem
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import FormatError, VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey  # type: ignore[attr-defined]  # public, not marked so

from pipeline.release.provenance import PAYLOAD_TYPE
from pipeline.signing_key import VARIABLE, no_key, private_key

KEY_VARIABLE = VARIABLE
"""Names the private key to sign releases with."""


def signed(statement: bytes, environ: Mapping[str, str]) -> bytes | None:
    """The statement in an envelope, signed with the key of the environment; None where that names none.

    Raises:
        ConfigError: it names no ed25519 key that can be read. The key itself is in no message.
    """
    key = private_key(environ)
    if key is None:
        return None
    envelope = Envelope(statement, PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(key))
    return json.dumps(envelope.to_dict(), indent=2, sort_keys=True).encode() + b"\n"


def key_ids(envelope: bytes) -> list[str]:
    """Which keys an envelope is signed with; raises ValueError for what is no envelope."""
    return sorted(_opened(envelope).signatures)


def check(envelope: bytes, statement: bytes) -> None:
    """Raise ValueError if the envelope is not around this statement; its signatures are not looked at."""
    opened = _opened(envelope)
    if opened.payload != statement or opened.payload_type != PAYLOAD_TYPE:
        raise ValueError("it is around another statement")
    if not opened.signatures:
        raise ValueError("it has no signature")


def verify(envelope: bytes, public_key: Path) -> str:
    """The id of the key, if the envelope is signed with it.

    Raises:
        ValueError: it is not.
        ConfigError: the file holds no ed25519 public key.
    """
    key = _public_key(public_key)
    try:
        _opened(envelope).verify([key], 1)
    except VerificationError:
        raise ValueError(f"no signature of it is by the key {key.keyid[:16]} of {public_key.name}") from None
    return key.keyid


def _opened(envelope: bytes) -> Envelope:
    try:
        return Envelope.from_dict(json.loads(envelope))
    except (KeyError, TypeError, AttributeError, ValueError, FormatError, RecursionError) as error:
        raise ValueError(f"it is no DSSE envelope ({type(error).__name__})") from None


def _public_key(path: Path) -> SSlibKey:
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise no_key(str(path), f"the file can't be read: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise no_key(str(path), "it is no public key in PEM") from None
    if not isinstance(key, Ed25519PublicKey):
        raise no_key(str(path), "it is a key of another kind")
    return SSlibKey.from_crypto(key)
