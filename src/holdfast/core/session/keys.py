"""Names of keys, as `send --key` and agents write them, and the bytes that a terminal sends.

C-c  ^C          Ctrl with a letter or one of @ [ \\ ] ^ _ ?
M-x  A-x         Alt: ESC first; combines with others (M-C-x, M-Up)
S-Tab, S-Up, C-Right ...      modified special keys in xterm's encoding
Enter Return Tab Space Escape Esc BSpace Backspace Delete Insert Home End PageUp PgUp PageDown PgDn
Up Down Left Right F1 .. F12  and any single character
"""

from __future__ import annotations

from holdfast.model.errors import Usage

_PLAIN = {
    "enter": b"\r",
    "return": b"\r",
    "tab": b"\t",
    "space": b" ",
    "escape": b"\x1b",
    "esc": b"\x1b",
    "bspace": b"\x7f",
    "backspace": b"\x7f",
}
_LETTER = {"up": b"A", "down": b"B", "right": b"C", "left": b"D", "home": b"H", "end": b"F"}
_TILDE = {
    "insert": 2,
    "ic": 2,
    "delete": 3,
    "del": 3,
    "dc": 3,
    "pageup": 5,
    "pgup": 5,
    "ppage": 5,
    "pagedown": 6,
    "pgdn": 6,
    "npage": 6,
    "f5": 15,
    "f6": 17,
    "f7": 18,
    "f8": 19,
    "f9": 20,
    "f10": 21,
    "f11": 23,
    "f12": 24,
}
_SS3 = {"f1": b"P", "f2": b"Q", "f3": b"R", "f4": b"S"}
PASTE_START, PASTE_END = b"\x1b[200~", b"\x1b[201~"


def encode(name: str, application_cursor: bool = False) -> bytes:
    """Return the bytes of a key; Usage if there is no such key."""
    shift = alt = ctrl = False
    rest = name
    while len(rest) > 2 and rest[1] == "-" and rest[0] in "CMAS":
        shift, alt, ctrl = shift or rest[0] == "S", alt or rest[0] in "MA", ctrl or rest[0] == "C"
        rest = rest[2:]
    if len(rest) == 2 and rest[0] == "^":
        ctrl, rest = True, rest[1]
    special = _special(rest.lower(), 1 + shift + 2 * alt + 4 * ctrl, application_cursor)
    if special is not None:
        return special
    data = _simple(rest, shift, ctrl)
    if data is None:
        raise Usage(
            f"no key is called {name[:40]!a}",
            "examples: C-c, M-x, S-Tab, Up, Enter, Escape, F5, PageUp",
        )
    return b"\x1b" + data if alt else data


def _special(key: str, modifier: int, application_cursor: bool) -> bytes | None:
    if key in _LETTER:
        if modifier > 1:
            return b"\x1b[1;%d%s" % (modifier, _LETTER[key])
        return (b"\x1bO" if application_cursor else b"\x1b[") + _LETTER[key]
    if key in _TILDE:
        return (
            b"\x1b[%d;%d~" % (_TILDE[key], modifier) if modifier > 1 else b"\x1b[%d~" % _TILDE[key]
        )
    if key in _SS3:
        return b"\x1b[1;%d%s" % (modifier, _SS3[key]) if modifier > 1 else b"\x1bO" + _SS3[key]
    return None


def _simple(key: str, shift: bool, ctrl: bool) -> bytes | None:
    name = key.lower()
    if name == "tab" and shift:
        return b"\x1b[Z"
    if name in _PLAIN:
        data = _PLAIN[name]
        if ctrl:
            return {b" ": b"\0", b"\x7f": b"\x08"}.get(data)
        return data
    if len(key) != 1:
        return None
    if not ctrl:
        return (key.upper() if shift else key).encode("utf-8", "surrogateescape")
    if key == "?":
        return b"\x7f"
    if key == " ":
        return b"\0"
    code = ord(key.upper())
    return bytes([code & 0x1F]) if 0x40 <= code <= 0x5F else None


def prefix_key(name: str) -> int:
    """Return the byte of a prefix key such as C-\\; Usage if it is not a control key."""
    data = encode(name)
    if len(data) != 1 or data[0] >= 32:
        raise Usage(
            f"{name[:40]!a} cannot be a prefix key", "use a control key such as C-\\ or C-b"
        )
    return data[0]


def paste(data: bytes, bracketed: bool) -> bytes:
    """Encode text as one paste.

    Terminators inside are spelled out, or the rest would count as typed commands. Removing them
    would join the text around them, and a terminator hidden in another would appear.
    """
    clean = data.replace(PASTE_END, b"^[" + PASTE_END[1:]).replace(
        PASTE_START, b"^[" + PASTE_START[1:]
    )
    return PASTE_START + clean + PASTE_END if bracketed else clean
