"""TLS with a relay whose address pins the relay's key: exactly this key counts.

The pin is SHA-256 of the public key, not of the certificate, so that a relay can renew its
certificate. No authority, name or date is checked.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl

from holdfast.model import address
from holdfast.model.errors import Unavailable, WrongPin


def of_certificate(der: bytes) -> bytes:
    """Return the pin of the certificate's key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from cryptography.x509 import load_der_x509_certificate

    key = load_der_x509_certificate(der).public_key()
    return hashlib.sha256(
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).digest()


def wrap(sock: socket.socket, url: str, pin: bytes, protocol: str) -> ssl.SSLSocket:
    """Add TLS and check the key before any byte of ours is sent. Raises WrongPin."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the key decides, below
    context.set_alpn_protocols([protocol])
    made = context.wrap_socket(sock, server_hostname=address.host_and_port(url)[0])
    try:
        found = of_certificate(made.getpeercert(binary_form=True) or b"")
    except ValueError:
        found = b""
    if not hmac.compare_digest(found, pin):
        made.close()
        raise WrongPin(f"the relay {address.name(url)} does not have the key that its address pins")
    return made


def fetch(url: str, pin: bytes, wait_s: float) -> tuple[bytes, str]:
    """Return the certificate with the pinned key, as PEM, and its first DNS name."""
    from cryptography import x509

    where = address.name(url)
    try:
        with (
            socket.create_connection(address.host_and_port(url), timeout=wait_s) as sock,
            wrap(sock, url, pin, "h2") as secured,
        ):
            der = secured.getpeercert(binary_form=True) or b""
    except ssl.SSLError as e:
        raise Unavailable(
            f"the relay {where} answers, but not with TLS: {e.reason or e}", "is the address right?"
        ) from e
    except OSError as e:
        raise Unavailable(
            f"the relay {where} cannot be reached: {e.strerror or e}",
            "is the address right, is the network up?",
        ) from e
    names: list[str] = []
    try:
        extensions = x509.load_der_x509_certificate(der).extensions
        alternative = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = alternative.get_values_for_type(x509.DNSName)
    except (ValueError, x509.ExtensionNotFound):
        pass
    return ssl.DER_cert_to_PEM_cert(der).encode(), names[0] if names else ""
