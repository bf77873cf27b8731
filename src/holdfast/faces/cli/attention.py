"""attention: which sessions wait for a person, and the reason."""

from __future__ import annotations

import sys
import time

from holdfast.core.session.notices import KINDS, Notice
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import link, say_away
from holdfast.faces.cli.output import clean, duration, put_json, timed
from holdfast.model.errors import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

COMMAND_CHARS = 40


attention_parser = usage("""
    which sessions wait for input or for a secret, work, are at their prompt, or have ended. The
    answer comes from the kernel, not from how still the screen is. With --follow a change is shown
    within a second.

    sessions=[SESSION...]  the sessions (default: all that you may observe; MACHINE/ for those of a
        machine)
    --follow -f  print every change too, until these sessions have ended
    --json  one object per session and per change
""")


def attention(args: Namespace) -> int:
    from holdfast.client.attention import Following, now

    names = _one_machine(args)
    connection = link(args)

    def put(notice: Notice) -> None:
        if args.json:
            put_json(timed(notice.facts(), notice.since))
        else:
            print(
                (time.strftime("%H:%M:%S ") if args.follow else "")
                + clean(said(notice, time.time()))
            )
        sys.stdout.flush()

    if args.follow:
        Following(
            connection,
            names,
            put,
            lambda count: print(
                f"holdfast: {count} sessions came and went without a notice", file=sys.stderr
            ),
            say_away,
        ).follow()
        return 0
    for notice in sorted(
        now(connection, names),
        key=lambda n: (KINDS.index(n.kind) if n.kind in KINDS else len(KINDS), n.name),
    ):
        put(notice)
    return 0


def _one_machine(args: Namespace) -> list[str]:
    """The session names without the machine; sets `machine` for `link`."""
    machines = {name.partition("/")[0] if "/" in name else "" for name in args.sessions}
    if len(machines) > 1:
        raise Usage("these sessions are on different machines", "ask each machine by itself")
    args.machine = f"{machines.pop()}/" if machines and "" not in machines else None
    return [name for name in (one.rpartition("/")[2] for one in args.sessions) if name]


def said(n: Notice, now: float) -> str:
    """A notice as a line, with the program if the notice names a program."""
    name, long = n.name or n.session, duration(max(0.0, now - n.since))
    program = n.program
    program = program if len(program) <= COMMAND_CHARS else program[: COMMAND_CHARS - 3] + "..."
    about = f"{program}, " if program else ""
    if n.kind in ("input", "secret"):
        awaited = "a secret" if n.kind == "secret" else "input"
        return f"{name}: waits for {awaited} ({about}since {long})"
    if n.kind == "approval":
        return f"{name}: waits for approval ({n.why}, since {long}; `holdfast approvals`)"
    if n.kind == "working":
        return f"{name}: works ({about}for {long})"
    if n.kind == "idle":
        return f"{name}: at its prompt (since {long})"
    if n.kind == "halted":
        return f"{name}: halted ({program or 'nothing goes on'})"
    if n.kind == "exited":
        has_code = n.exit_code is not None and n.why == "exited"
        return f"{name}: {n.why}{f' with {n.exit_code}' if has_code else ''} ({long} ago)"
    if n.kind == "lost":
        return f"{name}: {n.why} ({long} ago)"
    return f"{name}: unknown ({n.why})"
