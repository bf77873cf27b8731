"""The next incarnation of a session whose memory was lost (R1), decided from what was stored.

A power cut, or a kill of keeper and host, takes the processes, the terminal and all memory. The
store still has a description of the session: the request that made it, and what the host last saw.
From these this module decides which program the next incarnation starts, where, and with which
variables, and what its operators are told.

1. No command runs again. Only a shell is started; a program that was no shell, and all programs
   that ran, are listed for an operator to start.
2. Output of the new incarnation has offsets above every offset of the old one, also above output
   that was never stored. So no cursor of an old client means other bytes now.
3. The terminal, an event and the record say what was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any, Final, NamedTuple

from holdfast.model.printable import printable

RUNNING_KEPT: Final = 16  # programs that are listed for an operator
IN_FLIGHT_KEPT: Final = 32  # acts that are listed; the record has all of them
RUNNING_CHARS: Final = 200  # of the arguments of each
SUBSHELL: Final = "a background job of the shell"
NAMES_BYTES: Final = 8 << 10  # in the label of the keeper
# The next shell sets these itself.
OF_THE_SHELL: Final = frozenset(
    ("SHLVL", "PWD", "OLDPWD", "_", "ENV", "ZDOTDIR", "COLUMNS", "LINES")
)
# Above what a session prints between two writes of its output to the disk.
OFFSET_STEP: Final = 1 << 32
# Ends any unfinished sequence, leaves the alternate screen, and resets modes, margins and colours.
# Then goes below the last row, because leaving the alternate screen may move the cursor up.
_RESET: Final = (
    b"\x18\x1b\\\x1b[?1049l\x1b[!p\x1b[r\x1b[?6;69;1000;1002;1003;1004;1006;2004l"
    b"\x1b[?25h\x1b[0m\x0f\x1b[9999;1H\r\n"
)


class Running(NamedTuple):
    """A program that ran when the host last looked. `argv`: empty for a copy of the shell."""

    argv: str
    operator: str
    act: str | None


class LastSeen(NamedTuple):
    """The state of a session when the host last looked. `environment`: what the shell exports."""

    at: float
    cwd: str = ""
    environment: Mapping[str, str] | None = None
    running: tuple[Running, ...] = ()

    def save(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "cwd": self.cwd,
            "environment": None if self.environment is None else dict(self.environment),
            "running": [list(one) for one in self.running],
        }

    @classmethod
    def restore(cls, saved: Mapping[str, Any]) -> LastSeen:
        environment = saved["environment"]
        return cls(
            float(saved["at"]),
            str(saved["cwd"]),
            None if environment is None else {str(k): str(v) for k, v in environment.items()},
            tuple(Running(str(argv), str(who), act) for argv, who, act in saved["running"]),
        )


class Lost(NamedTuple):
    """What the next incarnation says about the last one."""

    epoch: int  # of the lost incarnation
    reason: str
    seen: float | None  # when the host last looked
    running: tuple[Running, ...]
    in_flight: tuple[str, ...]  # references of acts with an unknown outcome
    halted: bool
    notes: tuple[str, ...]  # what could not be brought back, in words

    def facts(self) -> dict[str, Any]:
        return {
            "from": self.epoch,
            "reason": self.reason,
            "seen": self.seen,
            "running": [one._asdict() for one in self.running],
            "in_flight": list(self.in_flight),
            "halted": self.halted,
            "notes": list(self.notes),
        }


def first_offset(end: int, epoch: int) -> int:
    """Return the first offset of the incarnation `epoch`. `end`: of the stored output.

    The epoch counts too, because the last incarnation may have stored nothing.
    """
    return max(end // OFFSET_STEP + 1, epoch - 1) * OFFSET_STEP


def scrollback(pieces: Sequence[tuple[int, bytes]]) -> tuple[int, bytes]:
    """Return the end of the stored output, and the output to show. A gap becomes a line.

    Only output of the last incarnation counts: it began with a copy of the output before it.
    """
    if not pieces:
        return 0, b""
    end = pieces[-1][0] + len(pieces[-1][1])
    first, shown, at = (end - 1) // OFFSET_STEP * OFFSET_STEP, bytearray(), None
    for offset, data in pieces:
        if offset < first:
            continue
        if at is not None and offset > at:
            shown += _RESET + b"[holdfast] %d bytes of output were not stored\r\n" % (offset - at)
        shown += data
        at = offset + len(data)
    return end, bytes(shown)


def environment(
    start: Mapping[str, str], request: Mapping[str, str], last: LastSeen | None
) -> tuple[dict[str, str], list[str]]:
    """Return the variables to start with, and the names whose last author is not known any more.

    `start`: of a new session of that request. Variables that the shell had unset stay unset. If
    the names are too many, some of these variables are not brought back.
    """
    if last is None or last.environment is None:
        return dict(start), []
    known, changed, left = last.environment, list[str](), NAMES_BYTES
    found = {name: value for name, value in start.items() if name in known or name not in request}
    for name, value in known.items():
        if name in OF_THE_SHELL or start.get(name) == value:
            continue
        if (left := left - len(name.encode("utf-8", "replace")) - 8) < 0:
            break
        found[name] = value
        changed.append(name)
    return found, changed


def running(
    programs: Iterable[Running], argv: Iterable[str], is_shell: bool
) -> tuple[Running, ...]:
    """Return the programs to list: of a session without a shell, its own program is the first."""
    own = " ".join(argv)
    found = [one._replace(argv=one.argv[:RUNNING_CHARS]) for one in programs]
    if not is_shell and not any(one.argv == own[:RUNNING_CHARS] for one in found):
        found.insert(0, Running(own[:RUNNING_CHARS], "unknown", None))
    return tuple(found[:RUNNING_KEPT])


def named(programs: Iterable[Running], texts: Mapping[str, str]) -> tuple[Running, ...]:
    """Return the programs with words for each subshell, which is stored without arguments.

    A subshell has the arguments of its shell, which start nothing again: the text of the act that
    started it says more. `texts`: by the reference of the act. Subshells that the shell started by
    itself are left out.
    """
    found = list[Running]()
    for one in programs:
        if one.argv:
            found.append(one)
            continue
        text = texts.get(one.act or "", "").strip()[:RUNNING_CHARS] or SUBSHELL
        if one.operator != "shell" and (known := one._replace(argv=text)) not in found:
            found.append(known)
    return tuple(found)


def notice(name: str, epoch: int, lost: Lost, when: str, cols: int) -> bytes:
    """Return the lines that the terminal shows below the old output, wrapped at `cols`.

    `when`: the moment at which the host last looked.
    """
    lines = [
        f"{lost.reason}. This is a new incarnation ({epoch}) of {name}: directory, variables and "
        "output are back; memory and programs are lost.",
        *(f"It ran{when}: {printable(one.argv)}{_by(one)}" for one in lost.running),
        *(["Nothing was started again. Run what you need."] if lost.running else []),
        *(
            [f"Acts with an unknown outcome: {', '.join(lost.in_flight)} (`holdfast log {name}`)."]
            if lost.in_flight
            else []
        ),
        *(["It was halted. The new incarnation is not."] if lost.halted else []),
        *(printable(note) for note in lost.notes),
    ]
    rows = [
        row for line in lines for row in wrap(f"[holdfast] {line}", cols, break_on_hyphens=False)
    ]
    text = "".join(f"{row}\r\n" for row in rows)
    return _RESET + text.encode("utf-8", "backslashreplace")


def _by(one: Running) -> str:
    return f" (by {one.operator})" if one.operator not in ("unknown", "shell") else ""
