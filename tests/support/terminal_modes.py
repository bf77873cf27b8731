"""The modes a session can leave behind in a terminal."""

from __future__ import annotations

from holdfast.host.terminal.screen import Screen

# The states in which a program in a session may leave its terminal. All of these sequences pass the
# viewers' filter.
DIRT = {
    "mouse": b"".join(b"\x1b[?%dh" % n for n in (9, 1000, 1002, 1003, 1005, 1015, 1006, 1016)),
    "mouse, highlighted": b"\x1b[?1001h",
    "paste, focus, colour scheme": b"\x1b[?2004h\x1b[?1004h\x1b[?2031h",
    "alternate screen": b"\x1b[?1049h",
    "alternate screen, old": b"\x1b[?47h",
    "alternate screen, other": b"\x1b[?1047h",
    "cursor": b"\x1b[?25l\x1b[5 q",
    "cursor, blinking": b"\x1b[?12h",
    "keypad and cursor keys": b"\x1b=\x1b[?1h",
    "keys": b"\x1b[>4;2m\x1b[?67h\x1b[?1036l\x1b[?1039h\x1b[?1035l",
    "kitty keys": b"\x1b[>1u\x1b[>31u",
    "kitty keys, on both screens": b"\x1b[>1u\x1b[?1049h\x1b[>3u\x1b[=5u",
    "colours": (
        b"\x1b]4;1;rgb:11/22/33\x1b\\\x1b]10;#123456\x1b\\\x1b]11;#654321\x1b\\\x1b]12;#abcdef\x1b\\"
    ),
    "pen and link": b'\x1b[1;3;4;31;44m\x1b]8;;https://example.org\x1b\\\x1b[1"q',
    "region": b"\x1b[5;10r\x1b[?6h",
    "margins": b"\x1b[?69h\x1b[3;20s",
    "insert, no wrap": b"\x1b[4h\x1b[?7l",
    "reverse wrap": b"\x1b[?45h\x1b[?1045h",
    "line feed, local echo, locked": b"\x1b[20h\x1b[12l\x1b[2h",
    "reverse video": b"\x1b[?5h",
    "charsets": b"\x1b(0\x1b)A\x1b*0\x1b+0\x0e",
    "charset, shifted right": b"\x1b~",
    "tab stops": b"\x1b[3g\x1b[5G\x1bH",
    "saved cursor": b"\x1b[31m\x1b(0\x1b[5;5H\x1b7",
    "scrolling by mouse": b"\x1b[?1007l",
    "held back": b"\x1b[?2026h",
    "in the middle of a sequence": b"\x1b[38;5",
    "in the middle of a string": b"\x1b]0;a title that",
    "in the middle of a picture": b"\x1bP1;2;3q#0",
}


FRESH_LINE = b"\x1b(B\x1b)B\x1b*B\x1b+B\x1b[24;1H\r\n\x1b7"


def state(screen: Screen) -> tuple[object, ...]:
    """The whole state of the emulator except the text on the screen."""
    screen.feed(b"\x1b8\x1b[H\x1b[2J")
    others: list[object] = [screen._emulator.mode(number, ansi=True) for number in (2, 12)]
    painted = screen.paint(0)
    for _ in range(3):  # the other screen's stack of keyboard modes
        screen.feed(b"\x1b[?1049h")
        others.append(screen._emulator.kitty_flags)
        screen.feed(b"\x1b[<u")
    return painted, *others
