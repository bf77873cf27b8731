"""Receipts: heads and acks of a machine's records, kept by the client (P2).

    HOME/receipts/KEY   lines HEAD and ACK (docs/reference/record.md), in order of arrival;
                        KEY is the machine's public key in hexadecimal

A receipt proves that an entry was in the record when the machine signed. Losing receipts costs
proof and nothing else: a file that cannot be written or read is ignored. When a file is full, the
newest receipt of each session stays, and then the newest of all. `log verify --kept` and
verify_record.py read the same lines.
"""

from __future__ import annotations

import os

from holdfast.model import canonical, signing
from holdfast.model.errors import HoldfastError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Final

    from holdfast.home import Home

FILE_BYTES: Final = 256 * 1024  # then the file is trimmed to half of this
LINE_BYTES: Final = 4096
_DOMAINS: Final = {"ack": "ack/1", "head": "head/1"}


def path(home: Home, machine: str) -> str:
    return f"{home.state}/receipts/{signing.read(machine).hex()}"


def keep(home: Home, machine: str, kind: str, body: str, signature: str) -> bool:
    """Keep an ack or a head that the machine signed; whether the receipt was kept."""
    try:
        line = canonical.encode({kind: body, "signature": signature}) + b"\n"
        if len(line) > LINE_BYTES or not signing.verify(
            signing.read(machine), _DOMAINS[kind], body.encode(), bytes.fromhex(signature)
        ):
            return False
        _append(path(home, machine), line)
    except (OSError, ValueError):
        return False
    return True


def _append(name: str, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(name, flags, 0o600)
    except FileNotFoundError:
        os.mkdir(os.path.dirname(name), 0o700)
        fd = os.open(name, flags, 0o600)
    try:
        os.write(fd, line)
        full = os.fstat(fd).st_size > FILE_BYTES
    finally:
        os.close(fd)
    if full:
        _trim(name)


def _trim(name: str) -> None:
    """Write the receipts that stay; a receipt that another process adds meanwhile may be lost."""
    from holdfast.home import private

    lines = _read(name)
    newest = {session: n for n, line in enumerate(lines) if (session := session_of(line))}
    order = [*sorted(newest.values(), reverse=True), *reversed(range(len(lines)))]
    stay: dict[int, None] = {}
    room = FILE_BYTES // 2
    for n in dict.fromkeys(order):
        room -= len(lines[n])
        if room < 0:
            break
        stay[n] = None
    try:
        private.write(name, b"".join(lines[n] for n in sorted(stay)))
    except HoldfastError:
        pass


def _read(name: str) -> list[bytes]:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return []
    with os.fdopen(fd, "rb") as file:
        data = file.read(2 * FILE_BYTES)
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def snapshot(home: Home) -> dict[str, list[bytes]]:
    """All receipts that are kept now, by the machine's key in hexadecimal."""
    folder = f"{home.state}/receipts"
    try:
        return {name: _read(f"{folder}/{name}") for name in os.listdir(folder)}
    except OSError:
        return {}


def of(
    kept: Mapping[str, list[bytes]],
    machine: str,
    session: str,
    first: int = 1,
    until: int | None = None,
) -> Sequence[bytes]:
    """The receipts of a session's record, of entries from `first` on.

    `until`: only receipts that the machine signed up to this time.
    """
    try:
        lines = kept.get(signing.read(machine).hex(), ())
    except ValueError:
        return []
    return [
        line
        for line in lines
        if session_of(line) == session
        and _number(line, "seq") >= first
        and (until is None or _number(line, "time") <= until)
    ]


def session_of(line: bytes) -> str:
    """The session of a receipt; empty for a damaged line."""
    found = _body(line).get("session")
    return found if isinstance(found, str) else ""


def _number(line: bytes, name: str) -> int:
    found = _body(line).get(name)
    return found if isinstance(found, int) else 0


def _body(line: bytes) -> dict[str, object]:
    try:
        outer = canonical.decode(line[:-1])
        [text] = [outer[kind] for kind in _DOMAINS if kind in outer]
        body = canonical.decode(text.encode())
    except (ValueError, TypeError, AttributeError):
        return {}
    return body if isinstance(body, dict) else {}
