"""The record of a session as lines for people: an act with its content and its outcome per line.

Contents are escaped: a log must not control the reader's terminal.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.originators.originators import in_words
from holdfast.core.record import acts
from holdfast.core.session.connections import words
from holdfast.model.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.model.jsontext import Json

CONTENT_CHARS = 160  # shown of a command in a line for people
# By kind of act: the fields of its content that a line shows, in this order.
_WHOM: Final = ("act", "to", "name", "operator")
SAID_FIELDS: Final = {
    **dict.fromkeys(("turn", "rename", "halt", "resume"), _WHOM),
    "files": ("op", "pattern", "path", "to"),
    "forward": ("port",),
}
MACHINE_KINDS = frozenset(acts.ON_MACHINE.values())
# Fields of an act on the machine that matter to the signature, not to a reader.
UNTOLD = frozenset(("env", "token", "umask", "agent", "verifier", "envelope"))
GONE = "(redacted)"  # by an entry that is not among those shown
SIGNATURE_CHARS = 16  # shown of an approver's signature
SHAPED_SHOWN = 3  # originators shown in a line for people
EFFECTS_SHOWN = 3  # programs, files or ports shown in a line for people
_COLORS = {
    "dim": "\x1b[2m",
    "who": "\x1b[1m",
    "bad": "\x1b[31m",
    "wait": "\x1b[33m",
    "good": "\x1b[32m",
}


def lines(entries: list[Json], colored: bool, alone: bool = False) -> list[str]:
    """A line per act, oldest first. `alone`: outcomes are separate lines, in order of arrival."""
    outcomes = {} if alone else {e["intent"]: e for e in entries if e["phase"] == "outcome"}
    known = {e["seq"] for e in entries if e["phase"] == "intent"}
    # The exits of runs without a client that waited for the end.
    exits = (
        {} if alone else {e["facts"].get("of"): e["facts"] for e in entries if e["kind"] == "exit"}
    )
    acts_here = {_act(o) for o in outcomes.values() if o["intent"] in known}
    # The newest entry about the effects of an act replaces the earlier ones.
    effects = {} if alone else {_act(e): e for e in entries if e["kind"] == "effects"}
    covers = [e for e in entries if e["kind"] == "cover"]
    made: list[str] = []
    keys: Json | None = None  # consecutive ranges become a single line
    for e in entries:
        if (
            e["kind"] == "cover"
            or (e["phase"] == "outcome" and e["intent"] in known)
            or (e["kind"] == "exit" and e["facts"].get("of") in known and not alone)
            or (
                effects
                and e["kind"] == "effects"
                and (_act(e) in acts_here or e is not effects[_act(e)])
            )
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
        if outcome is not None and (later := effects.get(_act(outcome))) is not None:
            said = {"effects": later["facts"].get("effects")}
            outcome = {**outcome, "facts": {**outcome["facts"], **said}}
        made.append(_line(e, outcome, colored, covers))
    return made


def _act(e: Json) -> tuple[int, int | None]:
    """The incarnation and the session's number of an act."""
    number = e["act"] if e["kind"] == "effects" else e["facts"].get("act")
    return e["epoch"], number if isinstance(number, int) else None


def _line(e: Json, outcome: Json | None, colored: bool, covers: list[Json]) -> str:
    def paint(name: str, text: str) -> str:
        return f"{_COLORS[name]}{text}\x1b[0m" if colored and text else text

    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e["time"] // 1_000_000_000))
    place = paint("dim", f"{stamp} {e['seq']:>5}")
    device = f" on {printable(str(e['device']))}" if e.get("device") else ""
    who = f"{place} {paint('who', printable(e['actor']))} ({printable(e['modality'])}{device})"
    if e["phase"] == "outcome":
        said = f"{who} {printable(e['kind'])} of {e['intent']} -> {_result(e, paint)}"
        return said + (" " + paint("dim", f"[{did}]") if (did := _effects(e)) else "")
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
    meant = acts.meant_in_words(e["facts"], CONTENT_CHARS)
    did = _effects(outcome if outcome is not None else e)
    more = (meant, did, _originators(e, outcome), _inside(e), *_attested(e, covers))
    known = "; ".join(filter(None, more))
    return (
        who
        + " "
        + what
        + (f" -> {', '.join(became)}" if became else "")
        + (" " + paint("dim", f"[{known}]") if known else "")
    )


def _originators(e: Json, outcome: Json | None) -> str:
    later = outcome if outcome is not None else e
    foreign = [o for o in later["originators"] if o != e["actor"]]
    told = [
        in_words(
            str(s.get("kind")),
            str(s.get("name")),
            str(s.get("actor")),
            s.get("sure", True) is not False,
        )
        for s in (*(e["facts"].get("shaped") or ()), *(later["facts"].get("included") or ()))
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


def _effects(e: Json) -> str:
    """What an act did: programs, files and ports."""
    found = e["facts"].get("effects")
    if not isinstance(found, dict):
        return ""
    told = []
    for kind in ("programs", "files", "ports"):
        names = [printable(str(one)) for one in found[kind]["names"]]
        # A program may have been started several times.
        count = len(names) if kind == "programs" else found[kind]["count"]
        left = count - min(len(names), EFFECTS_SHOWN)
        more = f" and {left} more" if left > 0 else ""
        if names or left:
            told.append(f"{kind}: {', '.join(names[:EFFECTS_SHOWN])}{more}")
    if found["unknown"]:
        told.append(f"perhaps further {printable(' and '.join(map(str, found['unknown'])))}")
    return "; ".join(told)


def _inside(e: Json) -> str:
    """The session that the act's client ran in, and another operator who started the client."""
    found = e["facts"].get("inside")
    if not isinstance(found, dict):
        return ""
    if (where := found.get("session")) is None:
        return "perhaps from inside a session"
    session = str(where).removeprefix("hf:").partition("@")[0]
    others = [str(one) for one in found.get("operators") or () if one != e["actor"]]
    started = f", started by {', '.join(others)}" if others else ""
    return printable(f"from inside {session}{started}")


def _what(e: Json) -> str:
    if e["kind"] == "keys":
        count = e["number"] - e["first"] + 1
        return f"({count} {'input' if count == 1 else 'inputs'}, not stored)"
    if e["kind"] == "spawn" and "argv" in e["facts"]:
        return (
            printable(" ".join(map(str, e["facts"].get("argv", []))))[:CONTENT_CHARS]
            + f" ({e['facts'].get('layout')})"
        )
    if e["kind"] == "exec" and "words" in e["facts"]:
        act = str(e["facts"].get("caused_by")).rpartition("#")[2]
        return (
            printable(str(e["facts"]["words"]))[:CONTENT_CHARS]
            + f" (pid {e['facts'].get('pid')}, of act {act})"
        )
    if e["kind"] == "redact" and "seqs" in e["facts"]:
        return f"the content of {', '.join(map(str, e['facts']['seqs']))}"
    if e["kind"] == "connections" and isinstance(e["facts"].get("lost"), list):
        facts = e["facts"]
        return printable(
            f"did not survive the {facts.get('closed_by')}: {words(facts['lost'], facts['more'])}"
        )
    if e["kind"] == "taken_over" and isinstance(e["facts"].get("files"), list):
        files = (
            f"the files of {one.get('path')} are in {one.get('place')}"
            for one in e["facts"]["files"]
            if isinstance(one, dict)
        )
        return printable("; ".join((f"from {e['facts'].get('from')}", *files)))
    if e["kind"] == "effects":
        return f"of act {e['act']}"
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
        return f"(redacted by {printable(e['redacted_by'])})" if e.get("redacted_by") else GONE
    if e["attestation"] == "host" and e["facts"]:
        return printable(
            " ".join(f"{k}={v}" for k, v in e["facts"].items() if k not in ("shaped", "inside"))
        )[:CONTENT_CHARS]
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
    """The JSON content of an act without text, in words."""
    if kind == "command":
        text, nul, stdin = content.partition("\0")
        return f"{text} <{stdin}" if nul else text
    if kind in SAID_FIELDS:
        try:
            said = json.loads(content)
            words = (str(said[field]) for field in SAID_FIELDS[kind] if said.get(field))
            return " ".join(words).removeprefix(f"{kind}.")
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
    return _typed(content) if kind in ("line", "paste") else content.removesuffix("\r")


def _typed(content: str) -> str:
    """Typed text in quotes and keys by their names, as `send` takes them (core/record/acts.py)."""
    text, keys = content, list[str]()
    if content.startswith("\0"):
        try:
            said = json.loads(content[1:])
            keys = [str(key) for key in said["keys"]]
            text = bytes.fromhex(said["text"]).decode("utf-8", "backslashreplace")
        except (ValueError, TypeError, KeyError):
            return content
    elif content.endswith("\r"):
        text, keys = content[:-1], ["Enter"]
    quoted = [json.dumps(text, ensure_ascii=False)] if text or not keys else []
    return " ".join([*quoted, *keys])


def _exit(facts: Json) -> str:
    """The exit code, and what the shell said of it if the kernel contradicts."""
    code, said = facts.get("exit_code"), facts.get("shell_exit")
    if code is None:
        return ""
    return f", exit {code}" + ("" if said is None else f" (the shell said {said})")


def _result(e: Json, paint: Callable[[str, str], str]) -> str:
    command = (
        f" ({printable(str(e['facts'].get('command')))[:CONTENT_CHARS]})"
        if e["kind"] == "signal" and e["facts"].get("command")
        else ""
    )
    # The act number of `graph`, not the number of an entry.
    act = f" (act {e['facts']['act']})" if isinstance(e["facts"].get("act"), int) else ""
    text = str(e["outcome"]) + _exit(e["facts"]) + act + command + _because(e)
    return paint(
        "good"
        if e["outcome"] == "applied" and not e["facts"].get("exit_code")
        else "bad"
        if e["outcome"] in ("void", "failed")
        else "wait",
        text,
    )


def _because(e: Json) -> str:
    return (
        f": {printable(e['reason'].removeprefix('refused: ').removeprefix('refused by '))}"
        if e["reason"]
        else ""
    )


def _attested(e: Json, covers: list[Json]) -> Iterator[str]:
    """How the actor is known; empty in the ordinary case, the actor's own signature."""
    if e["attestation"].startswith("bridge:"):
        yield f"signed by the bridge {printable(e['attestation'][7:])}"
    elif e["attestation"] == "channel" and not any(
        c["client"] == e["client"] and c["first"] <= e["number"] and e["first"] <= c["number"]
        for c in covers
    ):
        yield "not signed yet"
    elif e["attestation"] == "host" and "signature" in e["facts"]:
        yield _decided(e)
    elif e["attestation"] == "host" and e["actor"] != "host":
        yield "according to the host"
    if e["late"]:
        yield "written later"


def _decided(e: Json) -> str:
    """The signature of an approver, which is checked here."""
    from holdfast.core.policy.approvals import DOMAIN
    from holdfast.model import signing

    facts, key = e["facts"], str(e["key"])
    try:
        said, signature = str(facts["statement"]).encode(), bytes.fromhex(facts["signature"])
        good = signing.verify(signing.read(key), DOMAIN, said, signature)
    except (ValueError, KeyError, TypeError):
        good = False
    shown = f"signature {printable(str(facts['signature']))[:SIGNATURE_CHARS]}... of {key}"
    return shown if good else f"{shown} DOES NOT VERIFY"
