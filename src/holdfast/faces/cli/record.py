"""log: the record of a session, for people and programs; exported and verified.

For people, a line is an act (faces/record_lines.py). `--json` has the rest of the record:
signatures over keys already shown, outcomes as separate entries.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import IO, TYPE_CHECKING, Final

from holdfast.core.record.shown_entries import named_redactions
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import home_here, link, say_away
from holdfast.faces.cli.output import color, put, put_json, timed
from holdfast.faces.record_lines import lines
from holdfast.model.errors import NotFound, Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from holdfast.client.link import Link
    from holdfast.model.jsontext import Json

LIMIT_DEFAULT = 100
DECISIONS: Final = ("approve", "deny")


def log_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "words",
        nargs="+",
        metavar="SESSION | export SESSION [FILE] | verify FILE|SESSION | redact SESSION SEQ...",
        help="the session; export: write its record to FILE or stdout; "
        "verify: check an export or a session's record; "
        "redact: drop the content of these entries for good",
    )
    usage(f"""
        the record of a session: each act with its actor, originators, verdict and result. An
        export can be verified anywhere, without a host: exit code 0 if the record is intact, 1 if
        it is broken.

        --follow -f  continue with new entries
        --agent NAME  only the acts of this operator, and decisions about acts
        --limit N={LIMIT_DEFAULT}  the newest N entries (default {LIMIT_DEFAULT})
        --kept FILE  verify: heads and acks that you kept elsewhere
        --machine KEY  verify: the machine's key as you know it
        --reason TEXT  redact: the reason, which is recorded
        --json  one object per entry; verify, redact: one object
    """)(p)


def log(args: Namespace) -> int:
    words = args.words
    if words[0] == "export" and 2 <= len(words) <= 3:
        return _export(args, words[1], words[2] if len(words) == 3 else None)
    if words[0] == "verify" and len(words) == 2:
        from holdfast.faces.verification import verify

        return verify(args, words[1], _pull, home_here())
    if words[0] == "redact" and len(words) >= 3:
        return _redact(args, words[1], words[2:])
    if len(words) != 1:
        raise Usage(
            "log takes one session",
            "holdfast log SESSION, log export SESSION [FILE], log verify FILE|SESSION, "
            "log redact SESSION SEQ...",
        )
    return _show(args, words[0])


def _to(args: Namespace, session: str) -> tuple[Link, str]:
    """A link to the machine of that session, and the session's name there."""
    args.session = session
    return link(args), args.session


# ---------------------------------------------------------------- showing


def _show(args: Namespace, named: str) -> int:
    from holdfast.home import receipts

    kept = receipts.snapshot(home_here())  # before the request: later receipts are of later entries
    connection, session = _to(args, named)

    def ask(after: int | None, limit: int) -> list[Json]:
        nonlocal session
        page = connection.request("log", session=session, limit=limit, after=after)
        session = page["id"]
        return list(page["entries"])

    def wanted(entry: Json) -> bool:
        return args.agent in (None, entry["actor"]) or entry["kind"] in DECISIONS

    found = named_redactions(newest(ask, max(1, args.limit)))
    entries = [e for e in found if wanted(e)]
    if args.json:
        for entry in entries:
            put_json(_timed(entry))
    else:
        for line in lines(entries, color()):
            print(line)
        if not entries and not args.follow:
            print("nothing is recorded")
    sys.stdout.flush()
    if kept:
        from holdfast.faces.verification import check_shown

        check_shown(kept, connection.machine, session, found)
    if args.follow:

        def on_event(event: Json) -> None:
            if event.get("event") != "recorded":
                return
            entry = event["body"]["entry"]
            if not wanted(entry):
                return
            if args.json:
                put_json(_timed(entry))
            else:
                for line in lines([entry], color(), alone=True):
                    print(line)
            sys.stdout.flush()

        from holdfast.client.following import follow

        last = found[-1]["seq"] if found else 0
        follow(connection, "log", say_away, on_event=on_event, session=session, after=last)
    return 0


def _timed(entry: Json) -> Json:
    return timed(entry, entry["time"] // 1_000_000 / 1000)


def newest(ask: Callable[[int | None, int], list[Json]], count: int) -> list[Json]:
    """The newest `count` entries, requested from the host page by page, newest page first."""
    found = ask(None, count)
    if not found or len(found) >= count:
        return found
    after, before = max(0, found[0]["seq"] - 1 - (count - len(found))), []
    while after < found[0]["seq"] - 1 and (page := ask(after, found[0]["seq"] - 1 - after)):
        page = [entry for entry in page if entry["seq"] < found[0]["seq"]]
        before += page
        if not page:
            break
        after = page[-1]["seq"]
    return before + found


# ---------------------------------------------------------------- redact


def _redact(args: Namespace, named: str, numbers: list[str]) -> int:
    if not all(number.isdecimal() for number in numbers):
        raise Usage("entries are named by their numbers", "`holdfast log SESSION` shows them")
    connection, session = _to(args, named)
    result = connection.request(
        "log.redact", record=session, seqs=[*map(int, numbers)], reason=args.reason or ""
    )
    if not result["seqs"]:
        raise NotFound(
            "none of these entries has content that could be dropped",
            f"`holdfast log {named}` shows which have; a held act has several entries",
        )
    gone = ", ".join(map(str, result["seqs"]))
    return put(args, result, f"the content of {gone} is gone; the record still verifies")


# ---------------------------------------------------------------- export


def _export(args: Namespace, session: str, path: str | None) -> int:
    if path is None:
        _pull(args, session, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return 0
    if os.path.lexists(path):
        raise Usage(f"{path} exists", "remove it, or choose another name")
    unfinished = f"{path}.{os.getpid()}.unfinished"
    try:
        with open(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
        ) as file:
            result = _pull(args, session, file)
        os.rename(unfinished, path)
    except BaseException:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise
    return put(
        args,
        {**result, "file": path},
        f"{result['entries']} entries of {result['name']} in {path}; "
        f"`holdfast log verify {path}` verifies them",
    )


def _pull(args: Namespace, named: str, out: IO[bytes]) -> Json:
    """Write the record of a session to `out`, and keep the head at its end as a receipt."""
    from holdfast.home import receipts

    tail = b""

    def on_data(begin: int, end: int, data: bytes) -> None:
        nonlocal tail
        out.write(data)
        tail = (tail + data)[-receipts.LINE_BYTES :]

    connection, session = _to(args, named)
    result = connection.request("log.export", on_data=on_data, session=session)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        last = json.loads(tail.splitlines()[-1])
        receipts.keep(connection.home, connection.machine, "head", last["head"], last["signature"])
    return result
