"""The viewer filter against a slow reference machine, and against a real terminal that answers queries.

`Reference` below is the VT500 machine one byte at a time, over the whole stream, with its own tables: it
shares no line with the filter, which works on chunks with patterns. `Answering` is libghostty with
everything switched on that can make it answer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyghostty import Terminal, ffi, lib

from holdfast.core.filter import MAX_HELD_BYTES, SHELL_MARK_OSC, FilterOptions, ViewerFilter

ESC, ST, BEL, CAN, SUB = b"\x1b", b"\x1b\\", b"\x07", b"\x18", b"\x1a"


# -- the reference


def csi_stands_for(body: bytes, final: bytes) -> bytes | None:
    """None: passes. Otherwise what is left of it."""
    well_formed = re.fullmatch(rb"([<=>?]|)([0-9:;]*)([ !\"#$%&'()*+,./-]*)", body)
    if not well_formed:
        return b"" if final in b"cnpxywuv|qRSmgthr" else None
    marker, parameters, intermediates = well_formed.groups()
    name = (marker + b" " + intermediates + final).decode()
    if name in (
        " c",
        "> c",
        "= c",
        " n",
        "? n",
        " $p",
        "? $p",
        " x",
        "> q",
        "? u",
        "? S",
        "? m",
        "? g",
    ):
        return b""
    if name in (" *y", " $w", " $u", " &u", ' "v', " '|", " #R", " #S", " #|", " $|", " *|"):
        return b""
    if name == " t":
        operation = int(re.split(rb"[:;]", parameters)[0] or 0)
        return None if operation in (22, 23) else b""
    if name in ("? h", "? r"):
        modes = parameters.split(b";")
        silent = [mode for mode in modes if not re.fullmatch(rb"0*20(33|48)", mode)]
        if silent != modes:
            return ESC + b"[?" + b";".join(silent) + final if silent else b""
    return None


def osc_passes(text: bytes, whole: bool, options: FilterOptions) -> bool | None:
    """True, False, or None while it cannot be known."""
    found = re.match(rb"([0-9]*)(;?)(.*)", text, re.DOTALL)
    assert found
    digits, separator, rest = found.groups()
    if not separator and not rest and not whole:
        return None
    number = int(digits) if digits else -1
    if number in (60, 61, 62, 72, 5113, 5522, 7717):
        return False
    if number in (9, 99, 777) and not options.keep_notifications:
        return False
    if number == 99:
        if b";" not in rest and not whole:
            return None
        return not any(field in (b"p=?", b"p=alive") for field in rest.split(b";")[0].split(b":"))
    if number == 52:
        if not options.allow_clipboard_write:
            return False
        content = rest.split(b";", 1)[1] if b";" in rest else None
        if content:
            return content[:1] != b"?"
        return content is not None if whole else None
    if number == 8:
        uri = rest.split(b";", 1)[1].lower() if b";" in rest else None
        if not uri:
            return uri is not None if whole else None
        schemes = (b"http:", b"https:", b"mailto:", b"file:")
        if any(uri.startswith(scheme) for scheme in schemes):
            return True
        return None if not whole and any(scheme.startswith(uri) for scheme in schemes) else False
    if number == 1337:
        names = [b"report", b"request", b"capabilities"]
        names += [] if options.allow_clipboard_write else [b"copy", b"endcopy"]
        if any(rest.lower().startswith(name) for name in names):
            return False
        return None if not whole and any(name.startswith(rest.lower()) for name in names) else True
    may_ask = number in (4, 5, 39, 49, 50, 176) or 10 <= number <= 22 or 701 <= number <= 713
    if may_ask or 7700 <= number <= 7799:
        return not re.search(rb"(?:^|;)\s*\?|=\?\s*(?:;|$)", rest) if whole else None
    return True


def apc_passes(head: bytes, whole: bool) -> bool | None:
    plain = bytes(b for b in head if b >= 0x20 and b != 0x7F)
    if plain[:1] == b"G":
        if b";" not in head and not whole:
            return None
        header = head.split(b";")[0]
        well_formed = header[:1] == b"G" and all(0x20 <= b < 0x7F for b in header)
        return well_formed and b"a=q" not in header[1:].split(b",")
    if plain.startswith(b"25a1"):
        return False
    return None if not whole and b"25a1".startswith(plain) else True


class Reference:
    def __init__(self, options: FilterOptions | None = None) -> None:
        self.options = options or FilterOptions()
        self.out = bytearray()
        self.state: Callable[[int], None] = self.ground
        self.sequence = bytearray()
        self.cuts = False
        self.lead = False  # 0xc2 seen, its second byte is not
        self.opener = 0
        self.body = bytearray()
        self.passes: bool | None = None
        self.link_open = False

    @classmethod
    def run(cls, stream: bytes, options: FilterOptions | None = None) -> bytes:
        machine, previous = cls(options), 0
        for byte in stream:
            if byte != 5:
                machine.state(byte)
            elif previous >= 0x80:
                machine.state(0)
            previous = byte
        machine.finish()
        return bytes(machine.out)

    def finish(self) -> None:
        if self.state == self.ground:
            self.flush_lead()
        elif self.state in (self.escape, self.csi):
            self.out += self.sequence
        elif self.state == self.string:
            self.end_string(whole=False)

    # output

    def flush_lead(self) -> None:
        if self.lead:
            self.out.append(0xC2)
            self.lead = False

    def text(self, byte: int) -> None:
        """A byte of text or of a passing body: C1 in UTF-8 goes, and leaves NUL after half a character."""
        if self.lead and 0x80 <= byte <= 0x9F:
            self.lead = False
            self.nul_after_half()
            return
        self.flush_lead()
        if byte == 0xC2:
            self.lead = True
        else:
            self.out.append(byte)

    def nul_after_half(self) -> None:
        for length in (1, 2, 3):
            lead = self.out[-length] if len(self.out) >= length else 0
            leads = ((0xC2, 0xDF), (0xE0, 0xEF), (0xF0, 0xF4))
            wanted = sum(2 + i for i, (low, high) in enumerate(leads) if low <= lead <= high)
            if wanted > length and all(
                0x80 <= b <= 0xBF for b in self.out[len(self.out) - length + 1 :]
            ):
                self.out.append(0)
                return

    def remove(self, instead: bytes = b"") -> None:
        if self.cuts and instead[:1] != ESC:
            self.out += ST
        elif not instead:
            self.nul_after_half()
        self.out += instead
        self.cuts = False

    # states

    def ground(self, byte: int) -> None:
        if byte == 0x1B:
            self.flush_lead()
            self.begin(cuts=False)
        else:
            self.text(byte)

    def begin(self, cuts: bool) -> None:
        self.cuts, self.state, self.sequence = cuts, self.escape, bytearray(ESC)

    def interrupted(self, byte: int) -> bool:
        """The cases that ESC, CSI and the start of a DCS have in common."""
        if len(self.sequence) >= MAX_HELD_BYTES:
            self.out += self.sequence + ST
            self.cuts, self.state = False, self.ground
            self.ground(byte)
        elif byte in (0x18, 0x1A):
            self.out += self.sequence
            self.out.append(byte)
            self.cuts, self.state = False, self.ground
        elif byte == 0x1B or 0x80 <= byte <= 0x9F:
            self.out += self.sequence
            self.begin(cuts=True)
            if byte != 0x1B:
                self.escape(byte - 0x40)
        else:
            return False
        return True

    def executed(self) -> bytes:
        return bytes(b for b in self.sequence if b < 0x20 and b != 0x1B)

    def printable(self) -> bytes:
        return bytes(b for b in self.sequence if 0x20 <= b < 0x7F)

    def escape(self, byte: int) -> None:
        if self.interrupted(byte):
            return
        self.sequence.append(byte)
        if not 0x30 <= byte <= 0x7E:
            return
        name = self.printable()
        if name == b"[":
            self.state = self.csi
        elif name == b"P":
            self.state = self.dcs_start
        elif name in (b"]", b"_", b"X", b"^"):
            self.open_string(byte, None)
        else:
            self.state = self.ground
            if name in (b"Z", b"%@"):
                self.remove(self.executed())
            else:
                self.out += self.sequence
                self.cuts = False

    def csi(self, byte: int) -> None:
        if self.interrupted(byte):
            return
        self.sequence.append(byte)
        if not 0x40 <= byte <= 0x7E:
            return
        self.state = self.ground
        name = self.printable()
        instead = csi_stands_for(name[1:-1], name[-1:])
        if instead is None:
            self.out += self.sequence
            self.cuts = False
        else:
            self.remove(self.executed() + instead)

    def dcs_start(self, byte: int) -> None:
        if len(self.sequence) >= MAX_HELD_BYTES:
            self.open_string(ord("P"), False)
            self.string(byte)
            return
        if self.interrupted(byte):
            return
        self.sequence.append(byte)
        name = self.printable()[1:]
        if not re.fullmatch(rb"[<=>?]?[0-9;]*[ -/]*[@-~]?", name):
            self.open_string(ord("P"), False)  # malformed: ignored to its end
        elif 0x40 <= byte <= 0x7E:
            self.open_string(ord("P"), not re.fullmatch(rb"[<=>?]?[0-9;]*(\$q|\+q|\+Q|@|p)", name))

    def open_string(self, opener: int, passes: bool | None) -> None:
        self.opener, self.passes, self.body, self.state = opener, passes, bytearray(), self.string

    def string(self, byte: int) -> None:
        ends = {0x18, 0x1A, 0x1B} | ({7} if self.opener == ord("]") else set())
        if self.opener in b"X^_":
            ends |= set(range(0x80, 0xA0))
        if byte not in ends:
            self.body.append(byte)
            return
        passed = self.end_string(whole=True)
        self.state = self.ground
        if byte == 7:
            if passed:
                self.out.append(byte)
        elif byte in (0x18, 0x1A):
            self.out.append(byte)
        elif passed:
            self.begin(cuts=True)
            if byte != 0x1B:
                self.escape(byte - 0x40)
        else:
            self.state = self.after_dropped
            if byte != 0x1B:
                self.after_dropped(byte - 0x40)

    def after_dropped(self, byte: int) -> None:
        self.state = self.ground
        if byte != ord("\\"):
            self.begin(cuts=False)
            self.escape(byte)

    def end_string(self, whole: bool) -> bool:
        """Give out or remove the string just read; whether it passed."""
        room = MAX_HELD_BYTES - len(self.sequence)
        head = bytes(self.body[:room])
        seen = whole and len(self.body) < room
        passes, is_link, uri = self.passes, False, b""
        if self.opener == ord("]"):
            text = re.sub(rb"\xc2(?:[\x80-\x9f]|$(?!\n))", b"", head)
            text = bytes(b for b in text if b >= 0x20 and b != 0x7F)
            passes = osc_passes(text, seen, self.options)
            link = re.match(rb"0*8;([^;]*)(;.|)", text, re.DOTALL)
            is_link, uri = link is not None, link[2][1:] if link else b""
        elif self.opener in b"X^_":
            passes = apc_passes(head, seen)
        if passes is None and not seen and len(self.body) < room:
            return False  # still undecided at the end of the stream
        executed = self.executed()
        if is_link:
            if not passes and self.link_open:
                executed += b"\x1b]8;;\x1b\\"
            self.link_open = bool(passes and uri)
        if not passes:
            if self.opener == ord("P"):
                before_opener = self.sequence[: self.sequence.index(ord("P"))]
                executed = bytes(b for b in before_opener if b < 0x20 and b != 0x1B)
            self.remove(executed)
            return False
        body = bytes(self.body)
        if self.opener in b"X^_" and body[:1] == b"G":
            header = body.split(b";")[0]
            keys = header[1:].split(b",")
            if [k for k in keys if k[:2] == b"q="] != [b"q=2"]:
                header = b"Gq=2" + b"".join(b"," + k for k in keys if k and k[:2] != b"q=")
                self.remove(executed + bytes((0x1B, self.opener)) + header)
                self.sequence.clear()
                body = body[len(body.split(b";")[0]) :]
        self.out += self.sequence
        self.cuts = False
        if self.opener in b"]P":
            for byte in body:
                self.text(byte)
            self.flush_lead()
        else:
            self.out += body
        return True


# -- helpers and strategies


def pieces_of(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(c % (len(stream) + 1) for c in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


def through(stream: bytes, *cuts: int, options: FilterOptions | None = None) -> bytes:
    """The stream as a viewer gets it when it comes in the pieces that `cuts` make."""
    viewer = ViewerFilter(options)
    return b"".join(bytes(viewer.feed(piece)) for piece in pieces_of(stream, cuts)) + viewer.flush()


QUERIES = (
    *(b"\x1b[c", b"\x1b[0c", b"\x1b[>c", b"\x1b[>0c", b"\x1b[=c", b"\x1b[=0c", b"\x1bZ"),
    *(b"\x1b[5n", b"\x1b[6n", b"\x1b[?6n", b"\x1b[?15n", b"\x1b[?996n", b"\x1b[?63;1n"),
    *(b"\x1b[?25$p", b"\x1b[4$p", b"\x1b[x", b"\x1b[1x", b"\x1b[>q", b"\x1b[>0q", b"\x1b[?u"),
    *(
        b"\x1b[11t",
        b"\x1b[13;2t",
        b"\x1b[14t",
        b"\x1b[16t",
        b"\x1b[18t",
        b"\x1b[19t",
        b"\x1b[20t",
        b"\x1b[21t",
    ),
    *(
        b"\x1b[?1;1;0S",
        b"\x1b[1;1;1;1;1;1*y",
        b"\x1b[1$w",
        b"\x1b[&u",
        b'\x1b["v',
        b"\x1b['|",
        b"\x1b[#R",
    ),
    *(b"\x1b[?4m", b"\x1b[?4g", b"\x1b[#S", b"\x1b[1;1;2;2#|", b"\x1b[?2048h", b"\x1b[?2033h"),
    *(
        b"\x1bP$qm\x1b\\",
        b"\x1bP+q544e\x1b\\",
        b"\x1bP+Q6e\x1b\\",
        b"\x1bP@kitty-cmd{}\x1b\\",
        b"\x1bP1000p%x\x1b\\",
    ),
    *(
        b"\x1b]4;1;?\x07",
        b"\x1b]10;?\x1b\\",
        b"\x1b]11;?\x07",
        b"\x1b]12;?;?\x07",
        b"\x1b]5;0;?\x07",
        b"\x1b]19;?\x07",
    ),
    *(
        b"\x1b]21;foreground=?\x1b\\",
        b"\x1b]22;?__current__\x07",
        b"\x1b]50;?\x07",
        b"\x1b]60\x07",
        b"\x1b]72;t=q\x1b\\",
    ),
    *(
        b"\x1b]52;c;?\x07",
        b"\x1b]52;;?\x1b\\",
        b"\x1b]5522;type=read;Lg==\x1b\\",
        b"\x1b]1337;ReportCellSize\x07",
    ),
    *(
        b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\",
        b"\x1b_Ga=q,i=1\x1b\\",
        b"\x1b_25a1;s\x1b\\",
        b"\x05",
    ),
)
OTHERS_REMOVED = (
    b"\x1b]7717;nonce;prompt\x07",
    b"\x1b]7717;nonce;end;0\x1b\\",
    b"\x1b]52;c;aGVsbG8=\x07",
    b"\x1b]9;done\x07",
    b"\x1b]777;notify;a;b\x1b\\",
    b"\x1b]99;i=1;hello\x1b\\",
    b"\x1b]1337;Copy=:aGk=\x07",
    b"\x1bX25a1;s\x1b\\",
    b"\x1b^Ga=q,i=1\x1b\\",
    b"\x1b[8;24;80t",
    b"\x1b[4;600;800t",
    b"\x1b[9;1t",
    b"\x1b[36t",
    b"\x1b[t",
    b"\x1b[0t",
    b"\x1b[1t",
    b"\x1b[2t",
    b"\x1b[3;0;0t",
    b"\x1b[03:0:0t",
    b"\x1b[5t",
    b"\x1b[6t",
    b"\x1b[7t",
    b"\x1b[132$|",
    b"\x1b[40*|",
    b"\x1b%@",
    b"\xc2\x9b",
    b"\xc2\x85",
)
PASSING = (
    *(
        b"plain text",
        b"\r\n",
        b"\t",
        b"\x07",
        b"\x08",
        b"\x0e\x0f",
        b"\x00",
        b"\x7f",
        b"\x18",
        b"\x1a",
    ),
    *(
        "zażółć gęślą jaźń 日本語 ✓".encode(),
        "ś6n ścn".encode(),
        b"\x9b6n",
        b"\x9c",
        b"\xff\xfe\x80",
        b"caf\xe9",
    ),
    *(
        b"\x1b[m",
        b"\x1b[1;31m",
        b"\x1b[38;2;1;2;3m",
        b"\x1b[4:3m",
        b"\x1b[H",
        b"\x1b[6;6H",
        b"\x1b[6A",
        b"\x1b[2J",
    ),
    *(
        b"\x1b[K",
        b"\x1b[6 q",
        b"\x1b[!p",
        b'\x1b[62;1"p',
        b"\x1b[u",
        b"\x1b[s",
        b"\x1b[>1u",
        b"\x1b[<u",
        b"\x1b[=1u",
    ),
    *(
        b"\x1b[5S",
        b"\x1b[3T",
        b"\x1b[>4;2m",
        b"\x1b[>4n",
        b"\x1b[?1c",
        b"\x1b[22;0t",
        b"\x1b[23;0t",
        b"\x1b[22t",
    ),
    *(
        b"\x1b[23;2t",
        b"\x1b[022;1t",
        b"\x1b[>2t",
        b"\x1b[2 t",
    ),
    *(
        b"\x1b[?25l",
        b"\x1b[?25;1049h",
        b"\x1b[?2048l",
        b"\x1b[?2026h",
        b"\x1b[?1000;1006h",
        b"\x1b[4h",
        b"\x1b[2*x",
    ),
    *(
        b"\x1b[65;1;1;2;2$x",
        b"\x1b[#P",
        b"\x1b[#Q",
        b"\x1b[1;1;2;2$v",
        b"\x1b[#{",
        b"\x1b[3g",
        b"\x1b[[A",
    ),
    *(
        b"\x1b7",
        b"\x1b8",
        b"\x1bM",
        b"\x1b(B",
        b"\x1b(0",
        b"\x1b%G",
        b"\x1b#8",
        b"\x1b=",
        b"\x1b\\",
        b"\x1b F",
        b"\x1b(Z",
    ),
    *(
        b"\x1b]0;title?\x07",
        b"\x1b]2;?\x1b\\",
        b"\x1b]7;file:///tmp\x1b\\",
        b"\x1b]133;A\x07",
        b"\x1b]4;1;#fff\x07",
    ),
    *(
        b"\x1b]10;#123456\x1b\\",
        b"\x1b]104\x07",
        b"\x1b]1337;File=inline=1:AAAA\x07",
        b"\x1b]l;x\x1b\\",
        b"\x1b]R\x07",
    ),
    *(
        b"\x1b]8;;https://example.org/?\x1b\\link\x1b]8;;\x1b\\",
        b"\x1b]8;id=1;FILE:///x\x07a\x1b]8;;\x07",
    ),
    *(
        b"\x1bPq#0;2;0;0;0~~\x1b\\",
        b"\x1bP+p544e\x1b\\",
        b"\x1bP=1s\x1b\\",
        b"\x1bP1$r0m\x1b\\",
        b"\x1bPtmux;x\x1b\\",
    ),
    *(
        b"\x1b_Gq=2,i=1,a=T,f=24,s=1,v=1;AAAA\x1b\\",
        b"\x1b_Gq=2;\x1b\\",
        b"\x1b_other\x1b\\",
        b"\x1bXsos\x1b\\",
        b"\x1b^pm\x1b\\",
    ),
)
FRAGMENTS = (
    *(
        b"\x1b",
        b"\x1b[",
        b"\x1b[?",
        b"\x1b[>",
        b"\x1b[6",
        b"n",
        b"c",
        b"t",
        b"6n",
        b"[6n",
        b"q",
        b"$",
        b"\x1b]",
        b"\x1bP",
    ),
    *(
        b"\x1b_",
        b"\x1b_G",
        b"\x1bX",
        b"\x1b^",
        b"\x1b]8;;",
        b"\x1b]8;;ht",
        b"javascript:x",
        b"http://x",
        b"\x1b]52;c;",
        b"?",
    ),
    *(
        b";",
        b"4;1;",
        b"11;",
        b"a=q",
        b"i=1,a=T",
        b"\xc2",
        b"\x9b",
        b"\x9c",
        b"\x9d",
        b"\x90",
        b"\x9f",
        b"\x85",
        b"\x9a",
        b"\xe2\x82",
    ),
    *(
        b"\xac",
        b"\n",
        b"\x05",
        b"\x18",
        b"\x1a",
        b"\x07",
        b"\x1b\\",
        b"\\",
        b"\x7f",
        b"2048",
        b"h",
        b"8;",
        b"25a1;",
        b"52;c;?",
    ),
    *(
        b"\xa5",
        b"\xc2\x9c",
        b"\xc2\x9b6n",
        b"\xc2\x9d11;?\x07",
        b"1337;",
        b"Rep",
        b"Copy",
        b"5",
        b"99;p=?;",
        b"0;",
        b" ",
        b"p",
        b"Z",
    ),
)
pieces = st.one_of(
    st.sampled_from(QUERIES),
    st.sampled_from(OTHERS_REMOVED),
    st.sampled_from(PASSING),
    st.sampled_from(FRAGMENTS),
    st.sampled_from(FRAGMENTS),
    st.binary(max_size=4),
)
streams = st.lists(pieces, max_size=24).map(b"".join)
anything = st.one_of(streams, streams, st.binary(max_size=300))
cut_points = st.lists(st.integers(0, 400), max_size=12)
option_sets = st.builds(
    FilterOptions, keep_notifications=st.booleans(), allow_clipboard_write=st.booleans()
)


class Answering:
    """libghostty with every source of answers switched on, and what it answered."""

    def __init__(self) -> None:
        self.terminal = Terminal(40, 8, fg=(1, 2, 3), bg=(4, 5, 6))
        self.replies: list[bytes] = []
        self.terminal.on_reply(self.replies.append)
        answerback = ffi.new("uint8_t[]", b"answerback")
        enquiry = ffi.new("GhosttyString*", {"ptr": answerback, "len": len(b"answerback")})
        self._alive: list[Any] = [answerback, enquiry]
        self._set("SIZE", ffi.callback("GhosttyTerminalSizeFn", self._size))
        self._set(
            "COLOR_SCHEME", ffi.callback("GhosttyTerminalColorSchemeFn", lambda t, u, out: True)
        )
        self._set("ENQUIRY", ffi.callback("GhosttyTerminalEnquiryFn", lambda t, u: enquiry[0]))
        self._set("TITLE_REPORT", ffi.new("bool*", True))

    def _set(self, option: str, value: Any) -> None:
        self._alive.append(value)
        number = getattr(lib, f"GHOSTTY_TERMINAL_OPT_{option}")
        assert lib.ghostty_terminal_set(self.terminal._t[0], number, value) == 0

    @staticmethod
    def _size(_terminal: Any, _data: Any, out: Any) -> bool:
        out.rows, out.columns, out.cell_width, out.cell_height = 8, 40, 8, 16
        return True

    def feed(self, data: bytes) -> None:
        self.terminal.feed(data)

    def screen(self) -> tuple[str, tuple[int, int]]:
        return self.terminal.text(), self.terminal.cursor


def after(stream: bytes) -> Answering:
    terminal = Answering()
    terminal.feed(stream)
    return terminal


# -- what is removed and what passes


@pytest.mark.parametrize("sequence", [*QUERIES, *OTHERS_REMOVED])
def test_removed_whole_and_nothing_else(sequence: bytes) -> None:
    assert through(b"before" + sequence + b"after") == b"beforeafter"


@pytest.mark.parametrize("sequence", PASSING)
def test_passes_byte_for_byte_as_the_same_object(sequence: bytes) -> None:
    for chunk in (b"before" + sequence + b"after", memoryview(b"before" + sequence + b"after")):
        viewer = ViewerFilter()
        assert viewer.feed(chunk) is chunk
        assert viewer.pending == 0


@pytest.mark.parametrize("sequence", [*QUERIES, *OTHERS_REMOVED, *PASSING])
def test_any_split_gives_the_same(sequence: bytes) -> None:
    stream = b"a" + sequence + b"b"
    assert {through(stream, cut) for cut in range(len(stream) + 1)} == {through(stream)}
    assert through(stream, *range(len(stream))) == through(stream)


def test_notifications_and_clipboard_writes_pass_when_asked_for() -> None:
    options = FilterOptions(keep_notifications=True, allow_clipboard_write=True)
    for kept in (
        b"\x1b]9;done\x07",
        b"\x1b]777;notify;a;b\x07",
        b"\x1b]99;i=1;hi\x1b\\",
        b"\x1b]52;c;aGk=\x07",
    ):
        assert through(kept, options=options) == kept
    for asked in (
        b"\x1b]52;c;?\x07",
        b"\x1b]99;i=1:p=?;\x1b\\",
        b"\x1b]99;p=alive;\x1b\\",
        b"\x1b]1337;ReportCellSize\x07",
    ):
        assert through(asked, options=options) == b""


def test_link_with_another_scheme_loses_the_link_and_keeps_the_text() -> None:
    assert through(b"\x1b]8;;javascript:alert(1)\x1b\\text\x1b]8;;\x1b\\") == b"text\x1b]8;;\x1b\\"
    for uri in (
        b"JavaScript:x",
        b"vscode://x",
        b"httpx://x",
        b"//host/x",
        b" http://x",
        b"x",
        b"data:,http:",
    ):
        assert through(b"\x1b]8;;" + uri + b"\x07text") == b"text"
    # inside another link: that one is closed, or the text would point there
    start = b"\x1b]8;;http://a\x07a"
    assert through(start + b"\x1b]8;;evil:b\x07b") == start + b"\x1b]8;;\x1b\\b"
    assert through(start + b"\x1b]8;;\x07" + b"\x1b]8;;evil:b\x07b") == start + b"\x1b]8;;\x07b"


def test_one_mode_that_answers_is_taken_out_of_a_list() -> None:
    assert through(b"\x1b[?25;2048;1049h") == b"\x1b[?25;1049h"
    assert through(b"\x1b[?02048h") == b""
    assert through(b"\x1b[?12048h") == b"\x1b[?12048h"


def test_graphics_commands_are_told_to_be_quiet() -> None:
    assert through(b"\x1b_Gi=1,a=T;AAAA\x1b\\x") == b"\x1b_Gq=2,i=1,a=T;AAAA\x1b\\x"
    assert through(b"\x1b_Gi=1,q=1,a=T;AAAA\x1b\\x") == b"\x1b_Gq=2,i=1,a=T;AAAA\x1b\\x"
    payload = b"A" * (3 * MAX_HELD_BYTES)
    assert through(b"\x1b_Gm=1,i=1;" + payload + ST, 5000) == b"\x1b_Gq=2,m=1,i=1;" + payload + ST


# -- judged as a terminal parses it


@pytest.mark.parametrize(
    ("stream", "seen"),
    [
        (b"\x1b[6\nn", b"\n"),  # C0 inside a query acts; the query goes
        (b"\x1b\r[\x086n", b"\r\x08"),
        (b"\x1b[\x7f6n", b""),
        (b"\x1b[6\x18n", b"\x1b[6\x18n"),  # aborted: `n` is text
        (b"\x1b\x1a[6n", b"\x1b\x1a[6n"),
        (
            b"\x1b[31\x1b[6nm",
            b"\x1b[31\x1b\\m",
        ),  # ESC restarts: what is left must not become SGR 31
        (b"\x1b\x1b[6n[6n", b"\x1b\x1b\\[6n"),  # ... or the query again
        (b"\x1b]0;a\x1b[6nb\x07", b"\x1b]0;a\x1b\\b\x07"),  # a string ends at ESC
        (b"\x1b]0;[6n\x07", b"\x1b]0;[6n\x07"),  # without ESC it is a title
        (b"\x1bP1;2|[6n]11;?\x1b\\", b"\x1bP1;2|[6n]11;?\x1b\\"),
        (b"\x1b]11;?\x1b[mx", b"\x1b[mx"),  # some terminals run an OSC at any ESC
        (b"\x1b]11;?\x18x", b"\x18x"),
        (b"\x1bP$qm\x1b[mx", b"\x1b[mx"),
        (b"\x1bP$qm\x07x\x1b\\y", b"y"),  # BEL does not end a DCS
        (b"\x1b]1\n1;\x00?\x07", b""),  # C0 is skipped inside an OSC
        (b"\x1b]11?\x07", b""),  # kitty takes the number without a separator
        (b"\x1b]0011;?\x07", b""),
        (b"\x1b[$6n", b""),  # malformed: ignored by a VT500, so no loss
        (b"\x1b[6\xe9n", b""),  # bytes of 0xa0 and up are skipped inside a CSI
        (b"\x1b[3\x9b6n1m", b"\x1b[3\x1b\\1m"),  # C1 inside a CSI acts in a VT500 ...
        (b"\x1b[3\x851m", b"\x1b[3\x1bE1m"),  # ... and is respelled when it passes
        (b"\x1b[\x9a", b"\x1b[\x1b\\"),
        (b"\x1b_x\x9b6ny", b"\x1b_x\x1b\\y"),
        (b"\x1b(Z", b"\x1b(Z"),
        (b"\xc2\x05\x9b6n", b"\xc2\x00\x9b6n"),  # removal joins no halves
        (b"\xc2\x1b[c\x9b6n", b"\xc2\x00\x9b6n"),
        (b"\xc2\xc2\x85\x9b6n", b"\xc2\x00\x9b6n"),
        (b"\xc3\xa9\x1b[c\x9b6n", b"\xc3\xa9\x9b6n"),
        (b"\x1b]5\xc2\x9b2;c;?\x07", b""),  # what is taken out is not there when the number is read
    ],
)
def test_judged_as_parsed(stream: bytes, seen: bytes) -> None:
    assert through(stream) == seen
    assert Reference.run(stream) == seen
    assert {through(stream, cut) for cut in range(len(stream))} == {seen}


# -- holding back


def test_holds_back_only_while_undecided() -> None:
    viewer = ViewerFilter()
    assert viewer.feed(b"text\x1b") == b"text"
    assert viewer.pending == 1
    assert viewer.feed(b"[3") == b""
    assert viewer.pending == 3
    assert viewer.feed(b"1mred\xc2") == b"\x1b[31mred"
    assert viewer.pending == 1
    assert (
        viewer.feed(b"\xa0\x1b]0;a long ti") == b"\xc2\xa0\x1b]0;a long ti"
    )  # a title is never removed
    assert viewer.pending == 0
    assert viewer.feed(b"tle\x07\x1b]8;;https:") == b"tle\x07\x1b]8;;https:"
    assert (
        viewer.feed(b"//x\x07\x1b]52;c;AAAA") == b"//x\x07"
    )  # its removal is decided: nothing to hold
    assert viewer.pending == 0
    assert viewer.feed(b"AAAA" * 10_000) == b""
    assert viewer.feed(b"\x07x") == b"x"


def test_flush_gives_out_what_is_harmless_and_starts_afresh() -> None:
    for held, given_out in (
        (b"\x1b[6", b"\x1b[6"),
        (b"\x1b", b"\x1b"),
        (b"\xc2", b"\xc2"),
        (b"\x1b]11;?", b""),
        (b"\x1bP$", b""),
    ):
        viewer = ViewerFilter()
        assert viewer.feed(held) == b""
        assert viewer.pending == len(held)
        assert viewer.flush() == given_out
        assert viewer.pending == 0
        text = b"n text"
        assert viewer.feed(text) is text
    dropping = ViewerFilter()
    assert dropping.feed(b"\x1b]52;c;AAA\x1b") == b""
    assert dropping.flush() == b""
    assert dropping.feed(b"x") == b"x"


@pytest.mark.parametrize("size", [1, 7, 1000, 100_000])
def test_bound_on_what_is_held_back(size: int) -> None:
    endless = {
        b"\x1b[": b"1;",  # cut by ST where it gets too long
        b"\x1b]4;": b"1;#ffffff;",  # undecided to the end: dropped
        b"\x1b_Ga=T,": b"x=1,",
        b"\x1b]8;;": b"",
        b"\x1b": b"\0",
        b"\x1bP": b"1;",
    }
    for start, more in endless.items():
        stream = start + more * (2 * MAX_HELD_BYTES // max(1, len(more))) + b"\x1b\\end"
        viewer, out = ViewerFilter(), b""
        for at in range(0, len(stream), size):
            out += bytes(viewer.feed(stream[at : at + size]))
            assert viewer.pending < MAX_HELD_BYTES
        assert out + viewer.flush() == Reference.run(stream)
        assert out.endswith(b"end")
    as_far_as_it_goes = b"\x1b[" + b"1" * (MAX_HELD_BYTES - 2)
    assert through(as_far_as_it_goes + b"11n") == as_far_as_it_goes + ST + b"11n"
    assert through(b"\x1b]4;1;" + b"x" * MAX_HELD_BYTES + b"\x07ok") == b"ok"


# -- properties


@settings(max_examples=1500, deadline=None)
@given(streams, cut_points, option_sets)
@example(b"\x1b]\xc2\x9b52;c;?\x07", [4], FilterOptions())
@example(b"\x1b]52;c;A\x1b\x1b[6n", [8, 9], FilterOptions())
def test_equals_the_reference_for_any_split(
    stream: bytes, cuts: list[int], options: FilterOptions
) -> None:
    expected = Reference.run(stream, options)
    assert through(stream, options=options) == expected
    assert through(stream, *cuts, options=options) == expected


@settings(max_examples=400, deadline=None)
@given(streams)
def test_equals_the_reference_byte_by_byte(stream: bytes) -> None:
    assert through(stream, *range(len(stream))) == Reference.run(stream)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=600), cut_points)
def test_equals_the_reference_on_random_bytes(stream: bytes, cuts: list[int]) -> None:
    assert through(stream, *cuts) == Reference.run(stream)


@pytest.mark.parametrize(
    ("stream", "pending"),
    [
        (b"text", 0),
        (b"text\x1b", 1),
        (b"\x1b[\x05\x05", 4),  # ENQ is already taken out of what is held back, but it came in
        (b"\x05\x05\x1b\x05[6\x05", 5),
        (b"\xc2\x05\x05\x1b\x05[", 3),
        (b"\x1b[3\x9b6", 2),  # and 0x9b is held back as two bytes
        (b"\x1b[3\x9b\x056", 3),
        (b"\x1b]11;", 5),
        (b"\x1b]52;c;", 0),
        (b"\x1b]0;title", 0),
        (b"\x1b]0;title\xc2", 1),
    ],
)
def test_pending_counts_the_bytes_as_received(stream: bytes, pending: int) -> None:
    viewer = ViewerFilter()
    viewer.feed(stream)
    assert viewer.pending == pending


@settings(max_examples=600, deadline=None)
@given(anything, cut_points)
def test_pending_is_the_same_for_any_split(stream: bytes, cuts: list[int]) -> None:
    at_once, split, single = ViewerFilter(), ViewerFilter(), ViewerFilter()
    at_once.feed(stream)
    for piece in pieces_of(stream, cuts):
        split.feed(piece)
    for i in range(len(stream)):
        single.feed(stream[i : i + 1])
    assert at_once.pending == split.pending == single.pending <= len(stream)


@settings(max_examples=600, deadline=None)
@given(anything)
def test_nothing_that_passes_would_be_removed_at_a_second_pass(stream: bytes) -> None:
    once = through(stream + CAN)
    assert through(once) == once


@settings(max_examples=1000, deadline=None)
@given(anything, cut_points)
def test_a_viewers_terminal_never_answers(stream: bytes, cuts: list[int]) -> None:
    assert after(through(stream, *cuts)).replies == []


@settings(max_examples=1000, deadline=None)
@given(anything)
def test_a_viewers_screen_is_the_hosts(stream: bytes) -> None:
    closed = stream + CAN  # or what flush does not give out would count
    assert after(through(closed)).screen() == after(closed).screen()


def test_the_raw_stream_does_make_the_terminal_answer() -> None:
    """The two properties above can fail: the same terminal answers most of the same queries."""
    answered = [query for query in QUERIES if after(query).replies]
    assert len(answered) >= 25
    stream = b"text".join(QUERIES)
    assert len(after(stream).replies) >= len(answered)
    assert after(through(stream)).replies == []


def test_every_sequence_that_the_terminal_answers_is_removed() -> None:
    """All CSI, ESC and DCS shapes and many OSC numbers, asked one at a time: none that is answered passes."""
    parameters = (
        b"",
        b"0",
        b"1",
        b"2",
        b"5",
        b"6",
        b"14",
        b"16",
        b"18",
        b"21",
        b"996",
        b"2048",
        b"1;1;0",
    )
    intermediates = (b"", *(bytes((i,)) for i in range(0x20, 0x30)))
    shapes = [
        b"\x1b[" + marker + parameter + intermediate + bytes((final,))
        for marker in (b"", b"?", b">", b"=", b"<")
        for parameter in parameters
        for intermediate in intermediates
        for final in range(0x40, 0x7F)
    ]
    shapes += [b"\x1b[?%d%s" % (mode, setting) for mode in range(3000) for setting in (b"h", b"r")]
    shapes += [ESC + i + bytes((final,)) + ST for i in intermediates for final in range(0x30, 0x7F)]
    shapes += [
        b"\x1bP%b%cm\x1b\\" % (i, final) for i in intermediates for final in range(0x40, 0x7F)
    ]
    asking = (b"?", b"1;?", b"foreground=?", b"t=q")
    shapes += [
        b"\x1b]%d;%s\x07" % (number, question) for number in range(6000) for question in asking
    ]
    terminal, answered = Answering(), 0
    for shape in shapes:
        terminal.replies.clear()
        terminal.feed(shape)
        terminal.feed(b"\x1b[?2048;2033l")
        if terminal.replies:
            answered += 1
            assert through(shape) in (b"", ST), shape
    assert answered > 100


def test_shell_marks_are_removed_in_every_split_and_form() -> None:
    for end in (BEL, ST):
        mark = b"\x1b]%d;4f2a;end;0;%s" % (SHELL_MARK_OSC, "ścieżka".encode()) + end
        stream = b"out" + mark + mark + b"put"
        for cut in range(len(stream)):
            viewer = ViewerFilter()
            assert bytes(viewer.feed(stream[:cut])) + bytes(viewer.feed(stream[cut:])) == b"output"
            assert viewer.pending == 0
