"""The terminal sequences that a viewer's terminal may receive. `filter.py` removes all others.

These tables are the whole list; docs/reference/terminal.md repeats the list with reasons. A
sequence passes if it draws, or sets a state that `attach` resets when the user leaves. A sequence
does not pass if a terminal answers, or if the effect lasts or reaches beyond the screen: files,
printers, keys, windows, other programs.
"""

from __future__ import annotations

from holdfast.core.screen.late_pattern import late

SHELL_MARK_OSC = 7717
"""The OSC number of Holdfast's authenticated shell marks."""

LINK_SCHEMES = (b"http:", b"https:", b"mailto:", b"file:")
"""Allowed schemes of an OSC 8 link; others could start a program on the viewer's machine."""

TITLE_CHARACTERS = 256
"""Characters of a title that pass; title bars show fewer."""

MAX_CLIPBOARD_BYTES = 64 * 1024
"""The longest OSC 52, in base64: 48 KiB of text. A longer one is dropped as a whole."""


class Verdict(str):
    """Whether a sequence passes. Not an `enum`, whose import takes 2 ms of an attach."""


PASS, DROP, WAIT = Verdict("pass"), Verdict("drop"), Verdict("wait")

# ESC + intermediates + final byte.
_ESC_PASSES = late(
    rb"[78]"  # save and restore the cursor
    rb"|[=>]"  # keypad
    rb"|[69DEHM]"  # index, next line, tab stop, and their reverse
    rb"|[VW]"  # guarded area
    rb"|c"  # reset
    rb"|\\"  # end of a string
    rb"|[NOno|}~]"  # shifts between character sets
    rb"|[()*+./-][ -/]?[0-~]"  # designation of character sets
    rb"|#[34568]"  # double size lines, alignment pattern
    rb"|%G"  # UTF-8
)

# CSI: private marker + intermediates + final byte.
_CSI_PASSES = frozenset(
    (
        *(bytes((final,)) for final in b"ABCDEFGHIZ`adef"),  # movement of the cursor
        *(bytes((final,)) for final in b"JKX@LMPSTb"),  # erase, insert, delete, scroll, repeat
        *(b"?J", b"?K", b" @", b" A", b"'}", b"'~"),
        *(b"m", b"g", b"r", b"s", b"u", b"h", b"l"),  # SGR, tab stops, margins, cursor, modes
        *(b"?h", b"?l", b"?s", b"?r"),  # private modes
        *(b" q", b"!p", b'"q'),  # shape of the cursor, soft reset, protection
        *(b"$r", b"$t", b"$v", b"$x", b"$z", b"${", b"*x"),  # rectangles
        b"$}",  # text goes to the status line, or back to the screen
        *(b"#P", b"#Q", b"#p", b"#q", b"#{", b"#}"),  # stacks of colours and attributes
        *(b">u", b"<u", b"=u", b">m", b">n"),  # the coding of keys, by kitty and by xterm
    )
)
_MODES = frozenset((b"4", b"20"))  # insert, line feed
# Private modes that paint and attach know: keys, drawing, cursor, mouse, focus, alternate screen,
# paste, synchronised output, clusters, colour scheme.
_PRIVATE_MODES = frozenset(
    b"1 5 6 7 9 12 25 45 47 66 67 69 1000 1002 1003 1004 1005 1006 1007 1015 1016 1034 1035 1036 "
    b"1039 1045 1047 1048 1049 2004 2026 2027 2031".split()
)
# XTSAVE keeps one value per mode, and attach keeps the user's own values of these there.
_SAVED_BY_ATTACH = frozenset(b"12 67 1007 1034 1035 1036 1039 2027".split())
_MODES_OF = {
    b"h": _MODES,
    b"l": _MODES,
    b"?h": _PRIVATE_MODES,
    b"?l": _PRIVATE_MODES,
    b"?s": _PRIVATE_MODES - _SAVED_BY_ATTACH,
    b"?r": _PRIVATE_MODES - _SAVED_BY_ATTACH,
}

_TITLES = frozenset((b"0", b"1", b"2"))
# Colours and pointer, and their resets; attach resets all of them.
_SETTINGS = frozenset(b"4 5 10 11 12 13 14 17 19 22 104 105 110 111 112 113 114 117 119".split())
_OSC_PASSES = _TITLES | _SETTINGS | {b"7", b"8", b"133"}

C0_AND_DEL = bytes((*range(0x20), 0x7F))
_OSC_NUMBER = late(rb"([0-9]{0,4})(;|\Z)")
_ASCII = late(rb"[ -~]*")
_ASKS_NOTHING = late(rb"[ ->@-~]*")  # printable, without a question mark
_CLIPBOARD_WRITE = late(rb"[cpqs0-7]*;[A-Za-z0-9+/]+={0,2}")
_CSI_SHAPE = late(rb"([<-?]?)([0-9:;]*)([ -/]*)")
_SIXEL = late(rb"[0-9;]*q")
_GRAPHICS = late(rb"G[ -~]*")
_GRAPHICS_ASKS = late(rb"a=q|t=(?!d\Z)")  # a query, or a file of the viewer's machine


def esc_passes(sequence: bytes) -> bool:
    """Judge intermediates and final byte of an ESC sequence."""
    return _ESC_PASSES.fullmatch(sequence) is not None


def judge_csi(header: bytes, final: int) -> bytes:
    """Return the part of this CSI that passes, without ESC; empty if no part does."""
    shape = _CSI_SHAPE.fullmatch(header)
    if shape is None:
        return b""
    marker, parameters, intermediates = shape.groups()
    key = marker + intermediates + bytes((final,))
    if key not in _CSI_PASSES or (key == b"T" and b";" in parameters):  # highlight tracking
        return b""
    if (allowed := _MODES_OF.get(key)) is not None:
        modes = [mode for mode in parameters.split(b";") if mode.lstrip(b"0") in allowed]
        return b"[" + marker + b";".join(modes) + bytes((final,)) if modes else b""
    return b"[" + header + bytes((final,))


def judge_dcs(header: bytes, final: int) -> Verdict:
    """Judge a DCS: only sixel images pass."""
    return PASS if _SIXEL.fullmatch(header + bytes((final,))) else DROP


def judge_osc(text: bytes, whole: bool, clipboard: bool) -> Verdict:
    """Judge an OSC that begins with `text`; `whole`: that is the whole text.

    A title passes as `clean_title` writes it. `clipboard`: OSC 52 may write, never ask.
    """
    found = _OSC_NUMBER.match(text)
    if found is None or (found[2] and found[1] not in _OSC_PASSES | {b"52"}):
        return DROP
    if found[1] == b"52" and not clipboard:
        return DROP
    if not whole:
        return WAIT
    number, content = found[1], text[found.end() :]
    if number == b"52":
        passes = _CLIPBOARD_WRITE.fullmatch(content) is not None
    elif number == b"8":
        uri = content.partition(b";")[2]
        passes = _ASCII.fullmatch(content) is not None and (
            uri.lower().startswith(LINK_SCHEMES) or (not uri and b";" in content)
        )
    elif number == b"7":
        passes = _is_text(content) and content.startswith(b"file:")
    elif number == b"133":
        passes = _is_text(content)
    elif number in _SETTINGS:
        passes = _ASKS_NOTHING.fullmatch(content) is not None
    else:
        passes = number in _TITLES
    return PASS if passes else DROP


def _is_text(content: bytes) -> bool:
    try:
        return content.decode().isprintable()
    except UnicodeDecodeError:
        return False


def clean_title(text: bytes) -> bytes:
    """Return an OSC 0, 1 or 2 with the printable characters of its title; other OSC unchanged."""
    number, separator, title = text.partition(b";")
    if number not in _TITLES:
        return text
    printable = filter(str.isprintable, title.decode("utf-8", "ignore"))
    return number + separator + "".join(printable)[:TITLE_CHARACTERS].encode()


def judge_apc(head: bytes, whole: bool) -> Verdict:
    """Judge an APC: only kitty graphics with the image in the sequence itself pass."""
    if head and not head.startswith(b"G"):
        return DROP
    header, separator, _ = head.partition(b";")
    if not separator and not whole:
        return WAIT
    if not _GRAPHICS.fullmatch(header) or any(map(_GRAPHICS_ASKS.match, header[1:].split(b","))):
        return DROP
    return PASS


def quiet_graphics(header: bytes) -> bytes:
    """Add q=2 to the control data: commands that name an image are answered without it."""
    keys = header[1:].split(b",")
    if [key for key in keys if key.startswith(b"q=")] == [b"q=2"]:
        return header
    return b"G" + b",".join((b"q=2", *(key for key in keys if key and not key.startswith(b"q="))))
