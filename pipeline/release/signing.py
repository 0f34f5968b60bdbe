"""Signs the statement and checks its signature: DSSE envelopes (https://github.com/secure-systems-lab/dsse).

Keys are ed25519, because its signatures of equal bytes are equal.

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

from pipeline.release.archives.provenance import PAYLOAD_TYPE
from pipeline.release.signing_key import no_key, private_key


def signed(statement: bytes, environ: Mapping[str, str]) -> bytes | None:
    """The statement in a signed envelope; None if the environment names no key.

    Raises:
        ConfigError: what the environment names is no ed25519 key. No message contains the key itself.
    """
    key = private_key(environ)
    if key is None:
        return None
    envelope = Envelope(statement, PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(key))
    return json.dumps(envelope.to_dict(), indent=2, sort_keys=True).encode() + b"\n"


def signers(envelope: bytes, statement: bytes) -> tuple[str, ...]:
    """The ids of the keys that an envelope claims to be signed with; :func:`verify` checks a signature.

    Raises:
        ValueError: the bytes are no envelope, hold another statement, or have no signature.
    """
    opened = _opened(envelope)
    if opened.payload != statement or opened.payload_type != PAYLOAD_TYPE:
        raise ValueError("it is around another statement")
    if not opened.signatures:
        raise ValueError("it has no signature")
    return (*sorted(opened.signatures),)


def verify(envelope: bytes, public_key: Path) -> str:
    """Check that an envelope is signed with a public key. Returns the id of the key.

    Raises:
        ValueError: it is not signed with this key.
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
