"""The address of a relay: a scheme that names the transport, a host and an optional port.

    wss://relay.example    grpcs://relay.example:8411    ws://127.0.0.1:8410    grpc://[::1]:8411

    wss://203.0.113.7:8443#sha256-R0FtWiWOd3D5s0Vc2iPVx0p8mSTIyoZ8cGpBCUrVK1A

A relay without a certificate of an authority has a pin behind `#`: SHA-256 of the relay's public
key (its SubjectPublicKeyInfo), in base64url. Then exactly that key counts, and no authority, name
or date. The pin is never sent.

ws and grpc (without TLS) are allowed for loopback addresses only: anywhere else the credential
could be read in transit, and `relay serve` has TLS there. A query string, user name or password is
refused, because addresses end up in logs. A path may be needed by a proxy
in front of a WebSocket relay; gRPC has no use for one.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from holdfast.model import base64url
from holdfast.model.errors import Usage

SECURE: Final = ("wss", "grpcs")
PLAIN: Final = ("ws", "grpc")
GRPC: Final = ("grpc", "grpcs")
SSH: Final = "ssh://"
SSH_CHARS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
PIN: Final = "sha256-"
PIN_BYTES: Final = 32
LIKE: Final = (
    "it looks like wss://relay.example or grpcs://relay.example:8411; on this machine also"
    " ws://127.0.0.1:8410"
)


def parsed(url: str) -> SplitResult:
    """Split a relay's address into its parts. Raises Usage if the address is invalid."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        raise Usage(f"{_shown(url)} is not the address of a relay", LIKE) from e
    if (
        parts.scheme not in (*SECURE, *PLAIN)
        or not _plausible(parts.hostname or "")
        or port == 0
        or not url.isascii()
        or not url.isprintable()
    ):
        raise Usage(f"{_shown(url)} is not the address of a relay", LIKE)
    if parts.query or parts.username is not None or parts.password is not None:
        raise Usage(
            "the address of a relay has no query, user name or password",
            "run `host connect URL --token -`; it asks for the token",
        )
    if "#" in url and (parts.scheme not in SECURE or _pin(parts.fragment) is None):
        raise Usage(
            f"behind # an address of a relay has {PIN} and the pin of its key, and then it is wss"
            " or grpcs",
            "copy the whole address as `holdfast relay serve` printed it",
        )
    if parts.scheme in GRPC and parts.path not in ("", "/"):
        raise Usage(
            f"{_shown(url)} has a path, which gRPC does not support",
            f"use {parts.scheme}://{parts.netloc}",
        )
    if parts.scheme in PLAIN and not loopback(parts.hostname or ""):
        raise Usage(
            f"{_shown(url)} is not on this machine; without TLS its credential could be read",
            f"use {parts.scheme}s://{parts.netloc}, with its pin if its certificate is self-signed",
        )
    return parts


def pin(url: str) -> bytes | None:
    """Return the hash of the key that the relay must have; None: authorities decide."""
    return _pin(parsed(url).fragment)


def _pin(fragment: str) -> bytes | None:
    try:
        found = base64url.decode(fragment.removeprefix(PIN))
    except ValueError:
        return None
    return found if fragment.startswith(PIN) and len(found) == PIN_BYTES else None


def pinned(url: str, pin: bytes) -> str:
    return f"{url}#{PIN}{base64url.encode(pin)}"


def bare(url: str) -> str:
    """Return the address without its pin."""
    return url.partition("#")[0]


class Ssh(NamedTuple):
    """A machine that the system's `ssh` reaches, and the port of the relay on its loopback."""

    destination: str  # [user@]host
    host: str
    port: int | None
    relay: int | None

    def url(self, relay: int) -> str:
        """Return the address of that relay, for the list of machines."""
        return f"{SSH}{self.destination}{f':{self.port}' if self.port else ''}/{relay}"


def ssh(url: str) -> Ssh | None:
    """Parse ssh://[user@]host[:port][/relay port]; None for another scheme. Usage if invalid.

    The characters are few: ssh gives host and user to commands of the user's configuration.
    """
    if not url.startswith(SSH):
        return None
    place, slash, relay = url.removeprefix(SSH).partition("/")
    destination, colon, port = place.partition(":")
    user, at, host = destination.rpartition("@")
    words = (user, host) if at else (host,)
    if (
        not all(word and not word.strip(SSH_CHARS) and word[0] != "-" for word in words)
        or (colon and not _port(port))
        or (slash and relay and not _port(relay))
    ):
        raise Usage(
            f"{_shown(url)} is not the address of a machine for ssh",
            "it looks like ssh://me@box:22",
        )
    return Ssh(destination, host, int(port) if port else None, int(relay) if relay else None)


def _port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536


def _plausible(host: str) -> bool:
    return bool(host) and len(host) <= 253 and not any(c in host for c in " ,;\\\"'<>|^`{}")


def secure(url: str) -> bool:
    return parsed(url).scheme in SECURE


def host_and_port(url: str) -> tuple[str, int]:
    """Return host and port."""
    parts = parsed(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme in SECURE else 80)


def endpoint(text: str) -> tuple[str, int]:
    """Parse ADDR:PORT, the address of a listening socket."""
    host, _, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
    except ValueError as e:
        raise Usage(
            f"{text[:80]!a} is not ADDR:PORT", "for example 127.0.0.1:8410, 0.0.0.0:443, [::1]:8410"
        ) from e
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Usage(f"{text[:80]!a} is not ADDR:PORT", "a port is a number up to 65535")
    return host, int(port)


def loopback(host: str) -> bool:
    """Tell whether an address or name reaches this machine only."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host == "localhost"


def on_loopback(url: str) -> bool:
    """Tell whether only this machine reaches the relay at this address."""
    try:
        return loopback(parsed(url).hostname or "")
    except Usage:
        return False


def _shown(url: str) -> str:
    """Quote a URL for a message, unless it has a part in which people put secrets."""
    return "that" if any(mark in url for mark in "@?#") else f"{url[:80]!a}"


def name(url: str) -> str:
    """Name a relay by host and, if not the default, port."""
    if (way := ssh(url)) is not None:
        return f"on {way.host}"
    host, port = host_and_port(url)
    shown = f"[{host}]" if ":" in host else host
    return shown if port == (443 if secure(url) else 80) else f"{shown}:{port}"
