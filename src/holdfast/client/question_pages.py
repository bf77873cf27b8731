"""Pages of a question for approval that is longer than the terminal.

If a long question scrolled, its end would hide its beginning. So a question is shown page by page,
and an answer counts only on the last page.
"""

from __future__ import annotations

ROWS_MIN, COLS_MIN = 8, 20  # the smallest terminal on which a question can be read


def wrapped(line: str, cols: int) -> list[str]:
    """Break a line for a terminal that is `cols` wide.

    Indented text keeps its indent and breaks anywhere, so that no character is left out. Prose
    breaks at blanks. Terminals differ in the width of characters beyond ASCII. The widest counts,
    so that no row needs two rows of the terminal.
    """

    def width(text: str) -> int:
        return sum(1 if c.isascii() else 2 for c in text)

    indent = line[: len(line) - len(line.lstrip(" "))]
    rows, row = [], indent
    used = len(indent)
    for c in line[len(indent) :]:
        if used + width(c) > cols:
            rest = ""
            if not indent and c != " " and " " in row:
                row, _, rest = row.rpartition(" ")
            rows.append(row)
            row, used = indent + rest, len(indent) + width(rest)
            if not indent and c == " ":
                continue
        row, used = row + c, used + width(c)
    return [*rows, row]


def pages(lines: list[str], size: tuple[int, int], more: str, last: list[str]) -> list[list[str]]:
    """Return the rows of each page, for a terminal of this size (columns, rows).

    Every page but the last ends with `more`, and the last one with the lines of `last`. The last
    column and the last row of the terminal stay free.
    """
    cols, height = size[0] - 1, size[1] - 1
    rows = [row for line in lines for row in wrapped(line, cols)]
    foot, end = wrapped(more, cols), [row for line in last for row in wrapped(line, cols)]
    found = []
    while len(rows) + len(end) > height:
        cut = min(height - len(foot), len(rows) - 1)
        found.append([*rows[:cut], *foot])
        del rows[:cut]
    return [*found, [*rows, *end]]
