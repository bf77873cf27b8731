"""notify: tells a person which sessions wait, until the person ends the command."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING

from holdfast.core.session.waits import KINDS, Wait
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import ask
from holdfast.faces.cli.output import clean, put_json, timed
from holdfast.model.errors import Impossible, Usage

if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.faces.notify.following import Way

notify_parser = usage("""
    tell you when a session waits for an approval that you may give, for input, or for a secret.
    Follows all sessions of this machine and of all known machines until Ctrl-C, over restarts of
    hosts, and tells each question once. Every notice is a line here too. Without --desktop,
    --terminal and --webhook: the desktop if there is one, else the terminal.

    --desktop  a notification of the desktop, through the session's D-Bus
    --terminal  the bell, and a notification by the terminal itself (OSC 9 or 777); works over ssh
    --webhook URL...  a signed POST to this address; @FILE: the address, and a second line with a
        secret whsec_..., are in FILE, which no other account may read; may be repeated
    --session SESSION...  only this session; may be repeated
    --on LIST  approval, input, secret, exit, separated by commas (default: all but exit)
    --json  one object per notice
""")


def notify(args: Namespace) -> int:
    kinds = (args.on or "approval,input,secret").split(",")
    if unknown := [one for one in kinds if one not in KINDS]:
        raise Usage(f"--on does not know {unknown[0][:40]!a}", f"it takes {', '.join(KINDS)}")
    asyncio.run(_follow(args, frozenset(kinds), _ways(args)))
    return 0


def _ways(args: Namespace) -> list[Way]:
    from holdfast.faces.notify.desktop import Desktop
    from holdfast.faces.notify.terminal import Terminal
    from holdfast.faces.notify.webhook import Webhook

    ways: list[Way] = [Webhook(one) for one in args.webhook or ()]
    if args.desktop:
        ways.append(Desktop(os.environ))
    if args.terminal:
        ways.append(Terminal(os.environ))
    if ways:
        return ways
    # A desktop of a machine that is reached by ssh is not the one before which the user sits.
    for make in (Terminal,) if os.environ.get("SSH_CONNECTION") else (Desktop, Terminal):
        try:
            return [make(os.environ)]
        except Impossible:
            pass
    return []


async def _follow(args: Namespace, kinds: frozenset[str], ways: list[Way]) -> None:
    from holdfast.faces.notify.following import Outbox, Watched, follow
    from holdfast.sdk.client import connect

    sessions: dict[str, list[str]] = {}
    for word in args.session or ():
        machine, _, session = word.rpartition("/")
        sessions.setdefault(machine, []).append(session)
    outboxes = [Outbox(one, _say) for one in ways]

    def told(wait: Wait) -> None:
        _put(args, wait)
        for one in outboxes:
            one.put(wait)

    async with connect(operator=args.operator, modality="cli", passphrase=ask) as client:
        if not sessions:
            known = [one.name for one in await client.machines.known()]
            sessions = {name: [] for name in ("", *known)}
        watched = [
            Watched(client.engine(machine), machine, kinds, names, told, _say)
            for machine, names in sessions.items()
        ]
        if not args.json:
            by = ", ".join(one.name for one in ways) or "lines here only"
            _say(f"tells of {', '.join(one for one in KINDS if one in kinds)} ({by}); Ctrl-C ends")
        await follow(watched, outboxes, _say)


def _put(args: Namespace, wait: Wait) -> None:
    from holdfast.faces.notify.following import short

    if args.json:
        put_json(timed(wait._asdict(), wait.since))
    else:
        line = f"{wait.title}: {short(wait)}".removesuffix(": ")
        print(time.strftime("%H:%M:%S ") + clean(line))
    sys.stdout.flush()


def _say(text: str) -> None:
    print(f"holdfast: {clean(text)}", file=sys.stderr, flush=True)
