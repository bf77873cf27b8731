"""Draws recorded terminals as an animated SVG: small, crisp, without a script inside.

The input is asciicast events, the output of a program with its times. The emulator that Holdfast
itself uses makes the screens. Each different row is defined once. The frames stand below each other
in a film, and a CSS animation moves the film behind a window, frame by frame.
Characters of two columns are drawn too narrow; the recording has none.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.host.terminal.emulator import Emulator

CELL_WIDTH, ROW_HEIGHT, FONT_PX = 8.4, 18, 14
EDGE, BAR, CAPTION = 12, 26, 40  # pixels: around a pane, its title bar, the line on top
FRAMES_PER_SECOND = 5
STILL_S = 3.0  # a picture that stays longer than this is shortened to this
END_S = 5.0  # the last picture stays
COLOURS = (  # of the 16 SGR colours, on a dark ground
    *("#3b4048", "#f0717b", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#c9d1d9"),
    *("#7d8590", "#ff8b92", "#b5e890", "#ffd68a", "#8ac6ff", "#dd9cf0", "#7fd8e2", "#ffffff"),
)
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
INK, GROUND = "#c9d1d9", "#0d1117"
SGR = re.compile(rb"\x1b\[([0-9;:]*)m|\x1b\]8;[^\x1b]*\x1b\\")


@dataclass
class Cast:
    """The output of one terminal, as asciicast has it: seconds and text."""

    title: str
    cols: int
    rows: int
    events: list[tuple[float, str]] = field(default_factory=list)


@dataclass
class Scene:
    """Terminals that are seen together, with the caption above them from a time on."""

    casts: list[Cast]
    captions: list[tuple[float, str]]
    end: float


@dataclass(frozen=True)
class Style:
    ink: str = INK
    ground: str = ""
    bold: bool = False
    dim: bool = False
    reverse: bool = False

    def after(self, codes: list[int]) -> Style:
        now = self
        while codes:
            code = codes.pop(0)
            if code in (38, 48) and len(codes) >= 2:
                kind = codes.pop(0)
                values = [codes.pop(0) for _ in range(3 if kind == 2 else 1)]
                colour = _hex(values) if kind == 2 else _indexed(values[0])
                now = replace(now, ink=colour) if code == 38 else replace(now, ground=colour)
            elif code % 10 < 8 and code // 10 in (3, 4, 9, 10):
                colour = COLOURS[code % 10 + (8 if code >= 90 else 0)]
                ink = code // 10 in (3, 9)
                now = replace(now, ink=colour) if ink else replace(now, ground=colour)
            else:
                now = replace(now, **_CHANGES.get(code, {}))
        return now


_CHANGES: dict[int, dict[str, Any]] = {
    0: vars(Style()),
    1: {"bold": True},
    2: {"dim": True},
    7: {"reverse": True},
    22: {"bold": False, "dim": False},
    27: {"reverse": False},
    39: {"ink": INK},
    49: {"ground": ""},
}


def _hex(parts: list[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in parts)


def _indexed(number: int) -> str:
    if number < 16:
        return COLOURS[number]
    if number >= 232:
        return _hex([8 + 10 * (number - 232)] * 3)
    levels = (0, 95, 135, 175, 215, 255)
    number -= 16
    return _hex([levels[number // step % 6] for step in (36, 6, 1)])


def runs(row: bytes) -> Iterator[tuple[Style, str]]:
    """The parts of a row of equal style."""
    style, at = Style(), 0
    for found in [*SGR.finditer(row), None]:
        text = row[at : found.start() if found else len(row)].decode("utf-8", "replace")
        if text:
            yield style, text
        if found:
            at = found.end()
            if found[1] is not None:
                style = style.after([int(one or 0) for one in re.split(rb"[;:]", found[1])])


def draw_row(row: bytes, cursor: int | None) -> str:
    """SVG of a row, its first cell at 0; every run has its exact width, whatever the font is."""
    boxes, texts, x = [], [], 0
    for style, text in runs(row):
        ink, ground = style.ink, style.ground
        if style.reverse:
            ink, ground = ground or GROUND, ink
        left, width = round(x * CELL_WIDTH, 1), round(len(text) * CELL_WIDTH, 1)
        if ground:
            boxes.append(f'<rect x="{left:g}" width="{width:g}" height="18" fill="{ground}"/>')
        if text.strip():
            lead = len(text) - len(text.lstrip())
            word = text.strip()
            looks = "".join(
                f' {name}="{value}"'
                for name, value, wanted in (
                    ("fill", ink, ink != INK),
                    ("font-weight", "bold", style.bold),
                    ("opacity", ".6", style.dim),
                )
                if wanted
            )
            start, length = (x + lead) * CELL_WIDTH, len(word) * CELL_WIDTH
            texts.append(
                f'<text x="{round(start, 1):g}" y="13" textLength="{round(length, 1):g}"{looks}>'
                f"{html.escape(word, quote=False)}</text>"
            )
        x += len(text)
    if cursor is not None:
        left = round(cursor * CELL_WIDTH, 1)
        boxes.append(f'<rect x="{left:g}" width="8.4" height="18" fill="#8ac6ff" opacity=".55"/>')
    return "".join(boxes + texts)


class Film:
    """Frames; equal rows and equal frames are kept once."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.frames: list[tuple[float, str]] = []  # how long it is seen, and its content
        self.height = 0

    def row(self, drawn: str, x: float, y: float) -> str:
        if not drawn:
            return ""
        number = self.rows.setdefault(drawn, len(self.rows))
        return f'<use href="#r{number:x}" x="{x:g}" y="{y:g}"/>'

    def add(self, content: str, seconds: float) -> None:
        if self.frames and self.frames[-1][1] == content:
            seconds += self.frames.pop()[0]
        self.frames.append((min(seconds, STILL_S), content))

    def scene(self, scene: Scene) -> None:
        screens = [Emulator(cast.cols, cast.rows, 0) for cast in scene.casts]
        todo = [list(cast.events) for cast in scene.casts]
        for number in range(int(scene.end * FRAMES_PER_SECOND) + 1):
            now = (number + 1) / FRAMES_PER_SECOND
            for screen, events in zip(screens, todo, strict=True):
                while events and events[0][0] <= now:
                    screen.write(events.pop(0)[1].encode())
            caption = [text for at, text in scene.captions if at <= now][-1:] or [""]
            self.add(self._frame(scene, screens, caption[0]), 1 / FRAMES_PER_SECOND)
        for screen in screens:
            screen.close()

    def _frame(self, scene: Scene, screens: list[Emulator], caption: str) -> str:
        drawn = [self.row(f'<text class="c" y="26">{html.escape(caption)}</text>', EDGE, 0)]
        y = float(CAPTION)
        for cast, screen in zip(scene.casts, screens, strict=True):
            width = cast.cols * CELL_WIDTH + 2 * EDGE
            height = BAR + cast.rows * ROW_HEIGHT + EDGE
            drawn.append(self.row(_window(cast.title, width, height), 0, y))
            cursor = screen.cursor
            for number, row in enumerate(screen.rows_vt(screen.history_rows, cast.rows)):
                x = cursor.x if number == cursor.y and screen.mode(25) else None
                drawn.append(self.row(draw_row(row, x), EDGE, y + BAR + number * ROW_HEIGHT))
            y += height + EDGE
        self.height = max(self.height, int(y))
        return "".join(drawn)

    def svg(self, width: float, title: str, description: str) -> str:
        self.frames[-1] = (END_S, self.frames[-1][1])
        total = sum(seconds for seconds, _ in self.frames)
        steps, at = [], 0.0
        for number, (seconds, _) in enumerate(self.frames):
            steps.append(
                f"{100 * at / total:.3f}%{{transform:translateY(-{number * self.height}px)}}"
            )
            at += seconds
        last = (len(self.frames) - 1) * self.height
        film = "\n".join(
            f'<g transform="translate(0,{number * self.height})">{content}</g>'
            for number, (_, content) in enumerate(self.frames)
        )
        rows = "\n".join(f'<g id="r{number:x}">{drawn}</g>' for drawn, number in self.rows.items())
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {self.height}"'
            f' width="{width:g}" height="{self.height}" role="img" font-size="{FONT_PX}"'
            f' fill="{INK}" font-family="{FONTS}">\n'
            f"<title>{html.escape(title)}</title>\n<desc>{html.escape(description)}</desc>\n"
            "<style>\n"
            "text{white-space:pre}\n"
            "text.c{font:bold 17px system-ui,sans-serif;fill:#e6edf3}\n"
            "text.t{font:12px system-ui,sans-serif;fill:#8b949e}\n"
            f".film{{animation:film {total:.2f}s step-end infinite}}\n"
            "@media (prefers-reduced-motion:reduce)"
            f"{{.film{{animation:none;transform:translateY(-{last}px)}}}}\n"
            "@keyframes film{" + "".join(steps) + "}\n</style>\n"
            f"<defs>\n{rows}\n</defs>\n"
            f'<rect width="100%" height="100%" rx="8" fill="#161b22"/>\n'
            f'<svg width="{width:g}" height="{self.height}"><g class="film">\n{film}\n</g></svg>\n'
            "</svg>\n"
        )


def _window(title: str, width: float, height: float) -> str:
    return (
        f'<rect x="4" width="{width - 8:g}" height="{height:g}" rx="6" fill="{GROUND}"'
        ' stroke="#30363d"/>'
        f'<text class="t" x="{EDGE}" y="17">{html.escape(title)}</text>'
    )


def draw(scenes: list[Scene], title: str, description: str) -> str:
    film = Film()
    for scene in scenes:
        film.scene(scene)
    width = max(cast.cols for scene in scenes for cast in scene.casts) * CELL_WIDTH + 2 * EDGE
    return film.svg(width, title, description)
