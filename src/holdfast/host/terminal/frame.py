"""A screen as cells, for drawing it to viewers of another size (core/screen/letterbox.py)."""

from __future__ import annotations

import re
from collections import OrderedDict

from holdfast.core.screen.letterbox import Cell, Frame, Line
from holdfast.host.terminal.screen import Screen

ROWS_CACHED = 2048  # most rows of a frame were in an earlier frame
_TOKEN = re.compile(
    r"\x1b\[([0-9;:]*)m|\x1b\][^\x1b\x07]*(?:\x1b\\|\x07)|\x1b.?|([^\x1b]+)", re.DOTALL
)
_cache: OrderedDict[bytes, Line] = OrderedDict()


def frame_of(screen: Screen) -> Frame:
    cols, rows = screen.size
    x, y, visible = screen.cursor
    lines = tuple(_line(screen, screen.row_vt(n)) for n in range(rows))
    return Frame(cols, rows, x, y, visible, lines, screen.title)


def _line(screen: Screen, row: bytes) -> Line:
    line = _cache.get(row)
    if line is None:
        line = _cells(screen, row.decode("utf-8", "replace"))
        _cache[row] = line
        if len(_cache) > ROWS_CACHED:
            _cache.popitem(last=False)
    return line


def _cells(screen: Screen, row: str) -> Line:
    cells: list[Cell] = []
    style = b""
    for match in _TOKEN.finditer(row):
        codes, text = match.group(1), match.group(2)
        if codes is not None:
            style = b"" if codes in ("", "0") else style + f"\x1b[{codes}m".encode()
        for char in text or "":
            width = 1 if char < "\x7f" else screen.width(char)
            if width == 0 and cells:
                cells[-1] = Cell(cells[-1].text + char, cells[-1].width, cells[-1].sgr)
            elif width:
                cells.append(Cell(char, width, style))
    return tuple(cells)
