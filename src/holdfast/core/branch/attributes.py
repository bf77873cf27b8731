"""Extended attributes of files and directories, and their access control lists, as texts."""

from __future__ import annotations

import struct
from typing import Final

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
USERS: Final = "user."
OVERLAY: Final = "user.overlay."  # marks of a layer
SHOWN_BYTES: Final = 200
CARRIED_BYTES: Final = 4096  # of one entry: more than ext4 stores by default
LARGE: Final = "attributes"  # instead of the names; the value is a digest
_TAGS: Final = {1: "user:", 2: "user:", 4: "group:", 8: "group:", 16: "mask:", 32: "other:"}
_NAMED: Final = (2, 8)
_HEAD, _RULE = struct.Struct("<I"), struct.Struct("<HHI")

Attributes = tuple[tuple[str, str], ...]  # (name, value in hexadecimal), sorted


def carried(name: str) -> bool:
    """Whether a fork and a keep carry the attribute; others belong to the kernel or to root."""
    return name in (ACCESS, DEFAULT) or (name.startswith(USERS) and not name.startswith(OVERLAY))


def lines(before: Attributes, after: Attributes) -> str:
    """What changed, a line for each value that went or came."""
    old, new = dict(before), dict(after)
    changed = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    return "".join(
        f"{sign}{name}: {_shown(name, found[name])}\n"
        for name in changed
        for sign, found in (("-", old), ("+", new))
        if name in found
    )


def _shown(name: str, value: str) -> str:
    if name == LARGE:
        return f"more than {CARRIED_BYTES >> 10} KiB"
    data = bytes.fromhex(value)
    if name in (ACCESS, DEFAULT) and (len(data) - _HEAD.size) % _RULE.size == 0:
        rules = _RULE.iter_unpack(data[_HEAD.size :])
        return ",".join(_rule(tag, rights, number) for tag, rights, number in rules)
    shown = ascii(data[:SHOWN_BYTES].decode("utf-8", "backslashreplace"))
    return shown if len(data) <= SHOWN_BYTES else f"{shown}... ({len(data)} bytes)"


def _rule(tag: int, rights: int, number: int) -> str:
    letters = "".join(
        letter if rights & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1))
    )
    return f"{_TAGS.get(tag, f'{tag}:')}{number if tag in _NAMED else ''}:{letters}"
