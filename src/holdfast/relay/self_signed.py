"""The certificate of a relay that has none from an authority.

    DATA/tls.key   the private key, made once: its hash is the pin in the relay's addresses
    DATA/tls.pem   the certificate, made at every start

The certificate has no useful date or name, because clients check the pin and nothing else
(transport/pinning.py). So it never expires; removing `tls.key` makes a new pin.
"""

from __future__ import annotations

import datetime
from typing import Final

from holdfast.home import private
from holdfast.model.errors import Unavailable

NAME: Final = "holdfast-relay"
FILE_BYTES: Final = 16384
FIRST: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
LAST: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)  # RFC 5280: no end


def files(data: str) -> tuple[str, str]:
    """Return the files of certificate and key; makes them if necessary."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    chain, secret = f"{data}/tls.pem", f"{data}/tls.key"
    kept = private.read(secret, FILE_BYTES)
    if kept is None:
        key = ec.generate_private_key(ec.SECP256R1())
        kept = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        private.write(secret, kept)
    else:
        try:
            loaded = serialization.load_pem_private_key(kept, None)
        except (ValueError, TypeError) as e:
            raise Unavailable(
                f"{secret} is damaged: {e}", "move it away; the relay then gets a new pin"
            ) from e
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise Unavailable(f"{secret} is not a key of this relay", "move it away")
        key = loaded
    private.write(chain, _certificate(key))
    return chain, secret


def _certificate(key: object) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    assert isinstance(key, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(FIRST)
        .not_valid_after(LAST)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
