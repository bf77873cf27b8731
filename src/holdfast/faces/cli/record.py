"""log: the record of a session, for people and programs; exported and verified.

For people one line is one act: its intent, what it was, and what became of it. What the record keeps besides (the signature over
keys already shown, the outcome as an entry of its own) is in `--json`. Contents are shown escaped: a log must not act on the terminal
that shows it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import IO, TYPE_CHECKING, Any

from holdfast.core import acts
from holdfast.core.originators import told_of
from holdfast.faces.cli.connect import link
from holdfast.faces.cli.output import color, put_json, timed
from holdfast.model.errors import NotFound, Unavailable, Usage
from holdfast.model.printable import printable

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.client.link import Link
    from holdfast.core.examine import Fact, Finding

CONTENT_CHARS = 160  # of a command in a line for people
MACHINE_KINDS = frozenset(acts.ON_MACHINE.values())
UNTOLD = frozenset(
    ("env", "token", "umask", "agent", "verifier", "envelope")
)  # of an act on the machine: said for the signature, not for the reader
LIMIT_DEFAULT = 100
SHAPED_SHOWN = 3  # of what an act ran on, in a line for people
SPREAD_BYTES = 2 << 20  # a larger export is verified by several processes
AHEAD = 4  # pieces under way for each of them
_COLORS = {
    "dim": "\x1b[2m",
    "who": "\x1b[1m",
    "bad": "\x1b[31m",
    "wait": "\x1b[33m",
    "good": "\x1b[32m",
}


def log_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "words",
        nargs="+",
        metavar="SESSION | export SESSION [FILE] | verify FILE|SESSION",
        help="whose record; export it (to FILE, or stdout); verify an export or what a session has recorded",
    )
    p.add_argument(
        "--follow", "-f", action="store_true", help="go on with what is recorded from now on"
    )
    p.add_argument(
        "--limit",
        type=int,
        default=LIMIT_DEFAULT,
        metavar="N",
        help=f"the newest N entries (default {LIMIT_DEFAULT})",
    )
    p.add_argument("--kept", metavar="FILE", help="verify: heads and acks that were kept elsewhere")
    p.add_argument("--machine", metavar="KEY", help="verify: the machine's key as you know it")
    p.add_argument("--json", action="store_true", help="one object per entry; verify: one object")
    p.description = (
        "the record of a session: who did what, on whose state, with which verdict. An export can be verified anywhere, without a host: "
        "exit code 0 if nothing is broken, 1 if something is."
    )


def log(args: Namespace) -> int:
    words = args.words
    if words[0] == "export" and 2 <= len(words) <= 3:
        return _export(args, words[1], words[2] if len(words) == 3 else None)
    if words[0] == "verify" and len(words) == 2:
        return _verify(args, words[1])
    if len(words) != 1:
        raise Usage(
            "log takes one session",
            "holdfast log SESSION, log export SESSION [FILE], log verify FILE|SESSION",
        )
    return _show(args, words[0])


def _to(args: Namespace, session: str) -> tuple[Link, str]:
    """The machine where that session is, and what it is called there."""
    args.session = session
    return link(args), args.session


# ---------------------------------------------------------------- showing


def _show(args: Namespace, named: str) -> int:
    connection, session = _to(args, named)
    entries = newest(
        lambda after, limit: connection.request("log", session=session, limit=limit, after=after)[
            "entries"
        ],
        max(1, args.limit),
    )
    if args.json:
        for entry in entries:
            put_json(_timed(entry))
    else:
        for line in lines(entries, color()):
            print(line)
        if not entries and not args.follow:
            print("nothing is recorded")
    sys.stdout.flush()
    if args.follow:

        def on_event(event: dict[str, Any]) -> None:
            if event.get("event") != "recorded":
                return
            entry = event["body"]["entry"]
            if args.json:
                put_json(_timed(entry))
            else:
                for line in lines([entry], color(), alone=True):
                    print(line)
            sys.stdout.flush()

        connection.request(
            "log",
            wait_s=None,
            on_event=on_event,
            session=session,
            follow=True,
            after=entries[-1]["seq"] if entries else 0,
        )
    return 0


def _timed(entry: dict[str, Any]) -> dict[str, Any]:
    return timed(entry, entry["time"] // 1_000_000 / 1000)


def newest(
    ask: Callable[[int | None, int], list[dict[str, Any]]], count: int
) -> list[dict[str, Any]]:
    """The newest `count` entries. A host answers with a page at most: what is missing is asked for, oldest first."""
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


def lines(entries: list[dict[str, Any]], colored: bool, alone: bool = False) -> list[str]:
    """One line per act, oldest first. `alone`: as it comes, so that an outcome is a line of its own."""
    outcomes = {} if alone else {e["intent"]: e for e in entries if e["phase"] == "outcome"}
    known = {e["seq"] for e in entries if e["phase"] == "intent"}
    exits = (
        {} if alone else {e["facts"].get("of"): e["facts"] for e in entries if e["kind"] == "exit"}
    )  # of runs that nobody followed to their end
    covers = [e for e in entries if e["kind"] == "cover"]
    made: list[str] = []
    keys: dict[str, Any] | None = None  # ranges that follow each other are one line
    for e in entries:
        if (
            e["kind"] == "cover"
            or (e["phase"] == "outcome" and e["intent"] in known)
            or (e["kind"] == "exit" and e["facts"].get("of") in known and not alone)
        ):
            continue
        if e["kind"] == "keys" and e["phase"] == "fact":
            if (
                keys is not None
                and keys["client"] == e["client"]
                and keys["number"] + 1 == e["first"]
            ):
                keys = {**keys, "number": e["number"]}
                made[-1] = _line(keys, None, colored, covers)
                continue
            keys = e
        else:
            keys = None
        outcome = outcomes.get(e["seq"])
        if outcome is not None and e["seq"] in exits:
            outcome = {
                **outcome,
                "facts": {**outcome["facts"], "exit_code": exits[e["seq"]].get("exit_code")},
            }
        made.append(_line(e, outcome, colored, covers))
    return made


def _line(
    e: dict[str, Any], outcome: dict[str, Any] | None, colored: bool, covers: list[dict[str, Any]]
) -> str:
    def paint(name: str, text: str) -> str:
        return f"{_COLORS[name]}{text}\x1b[0m" if colored and text else text

    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e["time"] // 1_000_000_000))
    place = paint("dim", f"{stamp} {e['seq']:>5}")
    device = f" on {printable(str(e['device']))}" if e.get("device") else ""
    who = f"{place} {paint('who', printable(e['actor']))} ({printable(e['modality'])}{device})"
    if e["phase"] == "outcome":
        return f"{who} {printable(e['kind'])} of {e['intent']} -> {_result(e, paint)}"
    what = f"{printable(e['kind'])}: {text}" if (text := _what(e)) else printable(e["kind"])
    became = []
    if e["verdict"] in ("refuse", "hold"):
        became.append(
            paint(
                "bad" if e["verdict"] == "refuse" else "wait",
                {"refuse": "refused", "hold": "held"}[e["verdict"]] + _because(e),
            )
        )
    elif e["verdict"]:
        became.append("allowed")
    if outcome is not None:
        became.append(_result(outcome, paint))
    elif e["phase"] == "intent":
        became.append(paint("wait", "no outcome yet"))
    known = "; ".join(filter(None, (_originators(e), *_attested(e, covers))))
    return (
        who
        + " "
        + what
        + (f" -> {', '.join(became)}" if became else "")
        + (" " + paint("dim", f"[{known}]") if known else "")
    )


def _originators(e: dict[str, Any]) -> str:
    foreign = [o for o in e["originators"] if o != e["actor"]]
    told = [
        told_of(
            str(s.get("kind")),
            str(s.get("name")),
            str(s.get("actor")),
            s.get("sure", True) is not False,
        )
        for s in e["facts"].get("shaped") or ()
        if isinstance(s, dict) and s.get("actor") in foreign and s.get("actor") != "unknown"
    ]
    if told:
        more = f" and {len(told) - SHAPED_SHOWN} more" if len(told) > SHAPED_SHOWN else ""
        return f"on {printable(', '.join(told[:SHAPED_SHOWN]))}{more}" + (
            "; other originators unknown" if "unknown" in foreign else ""
        )
    return (
        "originators unknown"
        if foreign == ["unknown"]
        else f"on what {printable(', '.join(foreign))} left"
        if foreign
        else ""
    )


def _what(e: dict[str, Any]) -> str:
    if e["kind"] == "keys":
        count = e["number"] - e["first"] + 1
        return f"({count} {'input' if count == 1 else 'inputs'}, not stored)"
    if e["kind"] == "spawn" and "argv" in e["facts"]:
        return (
            printable(" ".join(map(str, e["facts"].get("argv", []))))[:CONTENT_CHARS]
            + f" ({e['facts'].get('layout')})"
        )
    if e["kind"] == "exec" and "words" in e["facts"]:
        return (
            printable(str(e["facts"]["words"]))[:CONTENT_CHARS]
            + f" (pid {e['facts'].get('pid')}, of act {str(e['facts'].get('caused_by')).rpartition('#')[2]})"
        )
    if e["kind"] == "exit":
        return f"of {e['facts'].get('of')} with {e['facts'].get('exit_code')}"
    if e["kind"] == "attach":
        return "to observe" if e["facts"].get("observe") else ""
    if e["kind"] in ("approve", "deny", "withdraw") and "operator" in e["facts"]:
        return printable(
            f"the {e['facts'].get('act')} of {e['facts']['operator']} ({e['facts'].get('id')})"
        )
    if e["content"] is not None:
        text = printable(_plain(e["kind"], e["content"]))
        return text if len(text) <= CONTENT_CHARS and not e["cut"] else text[:CONTENT_CHARS] + "..."
    if e["kept"]:
        return "(taken away)"
    if e["attestation"] == "host" and e["facts"]:
        return printable(" ".join(f"{k}={v}" for k, v in e["facts"].items() if k != "shaped"))[
            :CONTENT_CHARS
        ]
    return "(not stored)" if e["commit"] else ""


def _first(name: str) -> tuple[bool, bool, str]:
    return name not in ("argv", "name"), name != "name", name


def _told(name: str, value: Any) -> str:
    text = (
        " ".join(map(str, value))
        if name == "argv"
        else ",".join(map(str, value))
        if isinstance(value, list)
        else str(value)
    )
    return text if name in ("argv", "name") else f"{name}={text}"


def _plain(kind: str, content: str) -> str:
    """What acts without a text say in JSON, in words."""
    if kind in ("turn", "rename"):
        try:
            said = json.loads(content)
            return " ".join(str(said[key]) for key in ("act", "to", "name") if said.get(key))
        except (ValueError, TypeError, AttributeError):
            return content
    if kind == "signal":
        try:
            said = json.loads(content)
            return f"{str(said['signal']).removeprefix('SIG')} to {said['pid']}" + (
                " and all below it" if said.get("tree") else ""
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return content
    if kind in MACHINE_KINDS:
        try:
            said = json.loads(content)
            op = str(said.pop("op"))
            verb = op.replace(".", " ") if op.startswith("device.") else op.rpartition(".")[2]
            return " ".join(
                [
                    *([verb] if verb not in acts.ON_MACHINE and verb != kind else []),
                    *(
                        _told(name, said[name])
                        for name in sorted(said, key=_first)
                        if said[name] not in ([], False) and name not in UNTOLD
                    ),
                ]
            )
        except (ValueError, TypeError, AttributeError):
            return content
    return content.removesuffix("\r")


def _result(e: dict[str, Any], paint: Callable[[str, str], str]) -> str:
    code = e["facts"].get("exit_code")
    command = (
        f" ({printable(str(e['facts'].get('command')))[:CONTENT_CHARS]})"
        if e["kind"] == "signal" and e["facts"].get("command")
        else ""
    )
    act = (
        f" (act {e['facts']['act']})" if isinstance(e["facts"].get("act"), int) else ""
    )  # as `graph` has it: not the number of an entry
    text = (
        str(e["outcome"]) + ("" if code is None else f", exit {code}") + act + command + _because(e)
    )
    return paint(
        "good"
        if e["outcome"] == "applied" and not code
        else "bad"
        if e["outcome"] in ("void", "failed")
        else "wait",
        text,
    )


def _because(e: dict[str, Any]) -> str:
    return (
        f": {printable(e['reason'].removeprefix('refused: ').removeprefix('refused by '))}"
        if e["reason"]
        else ""
    )


def _attested(e: dict[str, Any], covers: list[dict[str, Any]]) -> Iterator[str]:
    """How it is known who did it; nothing for the ordinary case, the actor's own signature."""
    if e["attestation"].startswith("bridge:"):
        yield f"signed by the bridge {printable(e['attestation'][7:])}"
    elif e["attestation"] == "channel" and not any(
        c["client"] == e["client"] and c["first"] <= e["number"] and e["first"] <= c["number"]
        for c in covers
    ):
        yield "not signed yet"
    elif e["attestation"] == "host" and e["actor"] != "host":
        yield "by the host's word"
    if e["late"]:
        yield "written later"


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
    if args.json:
        put_json({**result, "file": path})
    else:
        print(
            f"{result['entries']} entries of {result['name']} in {path}; `holdfast log verify {path}` verifies them"
        )
    return 0


def _pull(args: Namespace, named: str, out: IO[bytes]) -> dict[str, Any]:
    def on_data(begin: int, end: int, data: bytes) -> None:
        out.write(data)

    connection, session = _to(args, named)
    result = connection.request("log.export", on_data=on_data, session=session)
    return result


# ---------------------------------------------------------------- verify


def _verify(args: Namespace, what: str) -> int:
    from tempfile import TemporaryFile

    if os.path.isfile(what):
        try:
            with open(what, "rb") as file:
                return _judge(args, file)
        except BrokenPipeError:
            raise  # of the output, not of the file
        except OSError as e:
            raise Unavailable(f"cannot read {what}: {e.strerror}", "check its permissions") from e
    if os.sep in what:
        raise NotFound(f"there is no file {what}", "give an export, or a session")
    with TemporaryFile() as file:
        _pull(args, what, file)
        file.seek(0)
        return _judge(args, file)


def _judge(args: Namespace, file: IO[bytes]) -> int:
    from holdfast.core import audit
    from holdfast.core.examine import read_signed

    kept: list[bytes] = []
    if args.kept:
        try:
            with open(args.kept, "rb") as other:
                kept = list(other)
        except OSError as e:
            raise Usage(f"cannot read {args.kept}: {e.strerror}") from e
    large = os.fstat(file.fileno()).st_size > SPREAD_BYTES
    findings = audit.verify(file, kept, args.machine, spread=spread if large else audit.one_by_one)
    bad = audit.broken(findings)
    file.seek(0)
    try:
        header: dict[str, Any] = read_signed(file.readline(), None)[1]
    except ValueError:
        header = {}
    if args.json:
        put_json(
            {
                "ok": not bad,
                "session": header.get("session"),
                "machine": header.get("machine"),
                "first": header.get("first"),
                "last": header.get("last"),
                "findings": [f._asdict() for f in findings],
            }
        )
        return 1 if bad else 0
    for line in findings_shown(findings, color()):
        print(line)
    if bad:
        print("BROKEN: this is not what was recorded")
        return 1
    print(
        f"nothing is broken: entries {header['first']} to {header['last']} of session {header['session']}, machine {header['machine']}"
        + (
            ""
            if args.machine
            else "\n  (compare that key with the machine's own, or give it with --machine)"
        )
    )
    return 0


def findings_shown(findings: list[Finding], colored: bool) -> Iterator[str]:
    for f in findings:
        level = (
            f"{_COLORS['bad' if f.level == 'broken' else 'wait']}{f.level}\x1b[0m"
            if colored
            else f.level
        )
        yield f"{level} {f.code}{'' if f.seq is None else f' at {f.seq}'}: {printable(f.text)}"


def spread(
    work: Callable[[list[bytes], str], list[Fact | Finding]],
    chunks: Iterable[list[bytes]],
    machine: str,
) -> Iterator[list[Fact | Finding]]:
    """The same, by as many processes as there are processors, in order, with a bounded number of pieces under way."""
    from collections import deque
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing import get_context

    count = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(count, mp_context=get_context("fork")) as pool:
        under_way: deque[Future[list[Fact | Finding]]] = deque()
        for chunk in chunks:
            under_way.append(pool.submit(work, chunk, machine))
            if len(under_way) >= AHEAD * count:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
