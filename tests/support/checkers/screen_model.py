"""The screen oracle: after these bytes, does a terminal show the same as the host's model?

An `Eye` stands in for a user's terminal. It gets all bytes that a client wrote, and two emulators
evaluate them: the emulator of the host (pyghostty, through host/terminal/screen.py) and an
independent one (pyavt). An emulator that is wrong in the same way on both sides would agree with
itself. `differences` compares rows and cursor with the answer of `holdfast view --json`.

The second opinion is asked only about features that both emulators define alike. Three known
differences are left out, each seen in a run: a cursor that waits to wrap (one says the last column,
the other one past it), rows that contain a character whose width the two tables see differently
(emoji with modifiers), and the invisible cursor's place. Title and modes are compared with the
first only.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from holdfast.host.terminal.screen import Screen


class Eye:
    def __init__(self, cols: int, rows: int, second: bool = True) -> None:
        self.size = cols, rows
        self.fed = 0
        self.screen = Screen(cols, rows)
        self._second: Any = None
        self._held = b""
        if second:
            import avt

            self._second = avt.Vt(cols, rows)

    def feed(self, data: bytes | memoryview) -> None:
        data = bytes(data)
        self.fed += len(data)
        self.screen.feed(data)
        if self._second is not None:
            text, self._held = _whole(self._held + data)
            if text:
                self._second.feed_str(text.decode("utf-8", "replace"))

    def rows(self) -> list[str]:
        return [row.rstrip(" ") for row in self.screen.text()]

    def differences(self, view: dict[str, Any]) -> list[str]:
        """The differences from the host's model, in words; empty if there is none."""
        cols, rows = self.size
        if (view["size"]["cols"], view["size"]["rows"]) != self.size:
            return [f"the session is {view['size']}, this terminal {cols}x{rows}"]
        model = [line.rstrip(" ") for line in view["lines"]]
        model += [""] * (rows - len(model))
        found = _rows("the terminal", self.rows(), model)
        x, y, visible = self.screen.cursor
        at = view["cursor"]
        if visible != at["visible"] or (visible and (x, y) != (at["x"], at["y"])):
            found.append(
                f"the cursor is at {x},{y} {'shown' if visible else 'hidden'}, the model has {at}"
            )
        if self.screen.alternate != view["alternate"]:
            found.append(
                f"alternate screen: {self.screen.alternate}, the model has {view['alternate']}"
            )
        if self.screen.title != view["title"]:
            found.append(f"the title is {self.screen.title!r}, the model has {view['title']!r}")
        modes = self.screen.modes()
        found += [
            f"mode {name} is {modes[name]}, the model has {wanted}"
            for name, wanted in view["modes"].items()
            if modes.get(name) != wanted
        ]
        if self._second is not None:
            found += self._second_opinion(model, at)
        return found

    def _second_opinion(self, model: list[str], cursor: dict[str, Any]) -> list[str]:
        shown = [line.text.rstrip(" ") for line in self._second.view()]
        doubt = [
            any(_contested(c) for c in row + other) for row, other in zip(model, shown, strict=True)
        ]
        for i in range(1, len(doubt)):  # text that such a row pushed over its end is doubtful too
            doubt[i] = doubt[i] or (
                doubt[i - 1] and max(len(model[i - 1]), len(shown[i - 1])) >= self.size[0] // 2
            )
        kept = [i for i, unsure in enumerate(doubt) if not unsure]
        found = _rows("the second emulator", [shown[i] for i in kept], [model[i] for i in kept])
        at = self._second.cursor
        if (
            cursor["visible"]
            and cursor["x"] < self.size[0] - 1
            and cursor["y"] in kept
            and (at.col, at.row) != (cursor["x"], cursor["y"])
        ):
            found.append(
                f"the second emulator's cursor is at {at.col},{at.row}, the model has {cursor}"
            )
        return found

    def close(self) -> None:
        self.screen.close()


def _rows(who: str, shown: list[str], model: list[str]) -> list[str]:
    if shown == model:
        return []
    wrong = [i for i, (a, b) in enumerate(zip(shown, model, strict=True)) if a != b]
    first = wrong[0]
    return [
        f"{who} differs in {len(wrong)} rows; row {first} shows {shown[first]!r}, "
        f"the model has {model[first]!r}"
    ]


def _contested(character: str) -> bool:
    """Whether emulators disagree about the width or joining of this character."""
    return (
        ord(character) >= 0x1F000
        or unicodedata.combining(character) != 0
        or unicodedata.category(character) in ("Cf", "Mn", "Me")
    )


def _whole(data: bytes) -> tuple[bytes, bytes]:
    """Complete characters, and the beginning of one at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (data, b"") if back >= need else (data[:-back], data[-back:])
        if byte < 0x80:
            break
    return data, b""
