"""attention: which sessions wait for somebody, and for what."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from holdfast.core.noticing import KINDS, Notice
from holdfast.faces.cli.connect import link
from holdfast.faces.cli.output import clean, duration, put_json, timed
from holdfast.model.errors import Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

COMMAND_CHARS = 40


def attention_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "sessions",
        nargs="*",
        metavar="SESSION",
        help="which sessions (default: all that you may observe; MACHINE/ for those of another machine)",
    )
    p.add_argument(
        "--follow",
        "-f",
        action="store_true",
        help="go on with every change, until these sessions have ended",
    )
    p.add_argument("--json", action="store_true", help="one object per session, and per change")
    p.description = (
        "which sessions wait for input or for a secret, work, are at their prompt, or have ended: from the kernel, never by how still the screen is. "
        "With --follow within a second of the change."
    )


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
                f"holdfast: {count} sessions came and went untold", file=sys.stderr
            ),
        ).follow()
        return 0
    for notice in sorted(
        now(connection, names),
        key=lambda n: (KINDS.index(n.kind) if n.kind in KINDS else len(KINDS), n.name),
    ):
        put(notice)
    return 0


def _one_machine(args: Namespace) -> list[str]:
    """The names without their machine; `link` finds it in `machine`."""
    machines = {name.partition("/")[0] if "/" in name else "" for name in args.sessions}
    if len(machines) > 1:
        raise Usage("these sessions are on different machines", "ask each machine by itself")
    args.machine = f"{machines.pop()}/" if machines and "" not in machines else None
    return [name for name in (one.rpartition("/")[2] for one in args.sessions) if name]


def said(n: Notice, now: float) -> str:
    """In one line. The program is named, if one is meant."""
    name, long = n.name or n.session, duration(max(0.0, now - n.since))
    program = (
        n.foreground.partition(" --rcfile ")[0].rpartition("/")[2]
        if " --rcfile " in n.foreground
        else n.foreground
    )  # the session's own shell
    program = program if len(program) <= COMMAND_CHARS else program[: COMMAND_CHARS - 3] + "..."
    about = f"{program}, " if program else ""
    if n.kind in ("input", "secret"):
        return f"{name}: waits for {'a secret' if n.kind == 'secret' else 'input'} ({about}since {long})"
    if n.kind == "approval":
        return f"{name}: waits for approval ({n.why}, since {long}; `holdfast approvals`)"
    if n.kind == "working":
        return f"{name}: works ({about}for {long})"
    if n.kind == "idle":
        return f"{name}: at its prompt (since {long})"
    if n.kind == "halted":
        return f"{name}: halted ({program or 'nothing goes on'})"
    if n.kind == "exited":
        return f"{name}: {n.why}{f' with {n.exit_code}' if n.exit_code is not None and n.why == 'exited' else ''} ({long} ago)"
    if n.kind == "lost":
        return f"{name}: {n.why} ({long} ago)"
    return f"{name}: unknown ({n.why})"
