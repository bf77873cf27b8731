"""Lengths of time as people write them: `90s`, `30m`, `8h`, `7d`."""

from __future__ import annotations

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
SECONDS_MAX = 1e9


def read(text: str) -> int:
    """The seconds; ValueError if the text is no length of time."""
    number, unit = text[:-1], text[-1:]
    digits = number.isascii() and number.isdigit() and len(number) <= 12
    if unit not in UNITS or not digits or not 0 < int(number) * UNITS[unit] < SECONDS_MAX:
        raise ValueError("a length of time is like 90s, 30m, 8h or 7d")
    return int(number) * UNITS[unit]
