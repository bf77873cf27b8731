"""Sizes in bytes as people write them: `512M`, `4G`, or a share of the whole like `50%`."""

from __future__ import annotations

import re
from typing import Final

BYTES_MAX: Final = 1 << 60
_SIZE: Final = re.compile(r"(\d{1,18})([KMGT]?)(?:I?B)?", re.IGNORECASE | re.ASCII)
_PERCENT: Final = re.compile(r"(\d{1,3})%", re.ASCII)
_SHIFTS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def read(text: str, whole: int) -> int:
    """The bytes of a size or of a share of `whole`; ValueError if the text is neither."""
    if (percent := _PERCENT.fullmatch(text)) is not None and 1 <= int(percent[1]) <= 100:
        return max(whole * int(percent[1]) // 100, 1)
    size = _SIZE.fullmatch(text)
    value = int(size[1]) << _SHIFTS[size[2].upper()] if size is not None else 0
    if not 1 <= value <= BYTES_MAX:
        raise ValueError("a size is like 512M or 4G, or a share from 1% to 100%")
    return value


def show(count: int) -> str:
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.3g} {unit}"
    return f"{count >> 10} KiB"
