"""Certificates for the machines of a cluster, and the settings by which Dask finds them."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_ROLES = ("scheduler", "worker", "client")


def issue(folder: Path) -> dict[str, str]:
    """Write an authority, and a certificate of it for all roles, into a new folder.

    Returns the environment in which Dask encrypts and asks for certificates of that authority.
    """
    folder.mkdir()
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority, own = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("authority", "cluster"))

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, *, signs: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder(authority, subject, public, x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=signs, path_length=None), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        return made.public_bytes(Encoding.PEM)

    (folder / "ca.pem").write_bytes(signed(authority, authority_key.public_key(), signs=True))
    (folder / "cert.pem").write_bytes(signed(own, key.public_key(), signs=False))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    files = {f"{role}__{part}": f"{part}.pem" for role in _ROLES for part in ("cert", "key")} | {"ca_file": "ca.pem"}
    return {
        "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True",
        **{f"DASK_DISTRIBUTED__COMM__TLS__{key.upper()}": str(folder / name) for key, name in files.items()},
    }
