"""The address of a relay: ws:// or wss:// with a host and perhaps a path. A query string, or a name and password in it, are refused: addresses end up in logs."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from holdfast.model.errors import Usage


def parsed(url: str) -> SplitResult:
    """The parts of a relay's address; Usage if it is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        raise Usage(f"{url[:80]!a} is no address of a relay", "it looks like wss://relay.example or ws://127.0.0.1:7000") from e
    if parts.scheme not in ("ws", "wss") or not parts.hostname or port == 0:
        raise Usage(f"{url[:80]!a} is no address of a relay", "it looks like wss://relay.example or ws://127.0.0.1:7000")
    if parts.query or parts.username is not None or parts.password is not None or parts.fragment:
        raise Usage("an address of a relay has no query, name, password or fragment", "a token is given apart: `host connect URL`, then it is asked for")
    return parts


def name(url: str) -> str:
    """The relay as it is dialled: host and, if it is not the usual one, port."""
    parts = parsed(url)
    host = (parts.hostname or "").lower()
    usual = 443 if parts.scheme == "wss" else 80
    shown = f"[{host}]" if ":" in host else host
    return shown if parts.port in (None, usual) else f"{shown}:{parts.port}"
