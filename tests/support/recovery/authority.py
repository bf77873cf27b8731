"""A private authority with certificates for servers and clients, for tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Pair(NamedTuple):
    certificate: str
    key: str


class Authority:
    def __init__(self, place: Path, name: str = "authority") -> None:
        self._place, self._name = place, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        place.mkdir(parents=True, exist_ok=True)
        self.ca = str(place / f"{name}.pem")
        _write(self.ca, _pem(self._sign(name, self._key, x509.BasicConstraints(True, None))))

    def pair(self, name: str, address: str = "127.0.0.1", common_name: str = "") -> Pair:
        """A certificate for `address`, with its key (mode 0600)."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        made = Pair(*(str(self._place / f"{name}.{end}") for end in ("pem", "key")))
        _write(made.certificate, _pem(self._sign(common_name, key, names)))
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _write(made.key, private)
        return made

    def _sign(
        self, name: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(self._name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(1))
            .not_valid_after(now + datetime.timedelta(1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: str, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
