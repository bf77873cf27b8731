"""The address of a relay, whose scheme says by which of its doors: wss:// or ws:// (WebSocket), grpcs:// or grpc:// (gRPC), with a host and perhaps a port.

    wss://relay.example    grpcs://relay.example:8411    ws://127.0.0.1:8410    grpc://[::1]:8411

Without TLS (ws, grpc) it is an address of this machine: what admits would be read on the way elsewhere, and `relay serve` listens nowhere else without TLS. A query string, or a name and
password, are refused: addresses end up in logs. A path is the business of a WebSocket's proxy; gRPC has none of ours to give.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import SplitResult, urlsplit

from holdfast.model.errors import Usage

SECURE: Final = ("wss", "grpcs")
PLAIN: Final = ("ws", "grpc")
GRPC: Final = ("grpc", "grpcs")
LIKE: Final = "it looks like wss://relay.example or grpcs://relay.example:8411; on this machine also ws://127.0.0.1:8410"


def parsed(url: str) -> SplitResult:
    """The parts of a relay's address; Usage if it is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        raise Usage(f"{_shown(url)} is no address of a relay", LIKE) from e
    if (
        parts.scheme not in (*SECURE, *PLAIN)
        or not _plausible(parts.hostname or "")
        or port == 0
        or not url.isascii()
        or not url.isprintable()
    ):
        raise Usage(f"{_shown(url)} is no address of a relay", LIKE)
    if parts.query or parts.username is not None or parts.password is not None or parts.fragment:
        raise Usage(
            "an address of a relay has no query, name, password or fragment",
            "a token is given apart: `host connect URL`, then it is asked for",
        )
    if parts.scheme in GRPC and parts.path not in ("", "/"):
        raise Usage(
            f"{_shown(url)} has a path, and gRPC knows none",
            f"without it: {parts.scheme}://{parts.netloc}",
        )
    if parts.scheme in PLAIN and not loopback(parts.hostname or ""):
        raise Usage(
            f"{_shown(url)} is not on this machine, and without TLS what admits us could be read on the way",
            f"{parts.scheme}s://{parts.netloc}, with --ca if its certificate is its own",
        )
    return parts


def _plausible(host: str) -> bool:
    return bool(host) and len(host) <= 253 and not any(c in host for c in " ,;\\\"'<>|^`{}")


def secure(url: str) -> bool:
    return parsed(url).scheme in SECURE


def place(url: str) -> tuple[str, int]:
    """Host and port."""
    parts = parsed(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme in SECURE else 80)


def endpoint(text: str) -> tuple[str, int]:
    """ADDR:PORT, where somebody listens."""
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
    """Whether this, an address or a name, is this machine alone."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(url: str) -> str:
    """In a message: unless there is a place in it where people put secrets."""
    return "that" if any(mark in url for mark in "@?#") else f"{url[:80]!a}"


def name(url: str) -> str:
    """The relay as it is dialled: host and, if it is not the usual one, port."""
    host, port = place(url)
    shown = f"[{host}]" if ":" in host else host
    return shown if port == (443 if secure(url) else 80) else f"{shown}:{port}"
