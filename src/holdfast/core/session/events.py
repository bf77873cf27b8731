"""The events of a host: every name that it may note, what it means and which facts come with it. One table, for everybody who reads events.

`holdfast events --json` prints one object per event: `number`, `time`, `when`, `session` (empty: of the machine itself), `event`, and the facts below. Names and facts are only added,
never renamed, and keep their types; `docs/events.md` is rendered from here, and a test fails when the host notes something that is not in the table, or the table has what nobody notes.

1. Facts are for people and programs that may look at the session. They may name operators, never the text of a command, what a terminal shows, or a secret. The reason of a rule is
   the policy's own text.
2. Of all this, metrics and traces get the name of the event alone, and facts that are one of a few words (how a client left, how the turn moved).
3. What happens as often as somebody likes (a key that is refused) is told once until something changes; counters have the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

KEYS: Final = ("number", "time", "when", "session", "event")  # of every event, before its facts
OF_SESSION, OF_MACHINE = "session", "machine"
TYPES: Final[dict[str, tuple[type, ...]]] = {
    "text": (str,),
    "number": (int, float),
    "yes": (bool,),
    "list": (list,),
    "object": (dict,),
}


class Fact(NamedTuple):
    kind: str  # one of TYPES; with "?" it may be null, with "*" it may be missing
    says: str


class Event(NamedTuple):
    means: str
    facts: dict[str, Fact]
    of: str = OF_SESSION
    since: str = "0.1"
    planned: bool = False  # the name is taken; this release notes it nowhere


_BEFORE: Final = {
    "before": Fact("text", "the state before"),
    "after": Fact("text", "the state after"),
}
_WHO: Final = {"operator": Fact("text", "who did it")}
_ROOT: Final = {
    "root_pid": Fact("number", "the session's first process: the same before and after a gap")
}
_WHERE: Final = {**_ROOT, "output": Fact("number", "the output's absolute offset then")}
_QUESTION: Final = {
    "id": Fact("text", "of the question"),
    "operator": Fact("text", "whose act waits"),
    "act": Fact("text", "which kind of act"),
    "rule": Fact("text", "the policy's rule that asks"),
    "because": Fact("text", "the reason, in the policy's words"),
    "needed": Fact("number", "how many approvals it takes"),
    "given": Fact("list", "who has approved it"),
    "expires": Fact("number", "when it lapses, in seconds since 1970"),
}
_EXEC: Final = {
    "operator": Fact("text*", "whose act caused it"),
    "originators": Fact("list*", "who shaped what it would run on"),
    "program": Fact("text*", "the file"),
    "pid": Fact("number*", "of the process"),
    "rule": Fact("text*", "the policy's rule; empty if none"),
    "caused_by": Fact("text?*", "the reference of the act that caused it"),
    "because": Fact("text", "the reason, in the policy's words"),
    "count": Fact("number*", "of how many this is told, if it is not of one"),
}
_CLOSED: Final = {**_QUESTION, "why": Fact("text*", "in words")}
_ANSWERED: Final = {
    "by": Fact("text*", "who answered"),
    "key": Fact("text*", "with which key"),
    "signature": Fact("text*", "over the statement"),
    "statement": Fact("text*", "what was signed, in hex"),
}
_KNOWN: Final = {
    "operator": Fact("text", "who"),
    "kind": Fact("text", "human, agent or service"),
    "key": Fact("text", "the public key"),
    "by": Fact("text", "who let them in"),
}
_RIGHTS: Final = {
    "link": Fact("text", "the envelope's id"),
    "rights": Fact("list", "what it gives"),
    "scope": Fact("object", "how far"),
}
_INVITATION: Final = {"invitation": Fact("text", "its id"), "by": Fact("text", "who made it")}
_HOW: Final = "`lost`, `detached`, `switched` or `ended`"

EVENTS: Final[dict[str, Event]] = {
    # ------------------------------------------------------------ the life of a session
    "session.started": Event("it was made, and its program runs", {**_BEFORE, **_WHO, **_ROOT}),
    "session.attached": Event(
        "somebody attached to it, and nobody was before",
        {
            **_BEFORE,
            **_WHO,
            "modality": Fact("text", "through which kind of client"),
            "root_pid": Fact("number*", "the session's first process"),
            "output": Fact("number*", "the output's absolute offset then"),
        },
    ),
    "session.left": Event(
        "the last client left it, or was lost; the execution goes on",
        {
            **_BEFORE,
            **_WHO,
            "modality": Fact("text", "through which kind of client"),
            "how": Fact("text", _HOW),
            **_WHERE,
        },
    ),
    "session.adopted": Event(
        "a host found it again, after its own restart or death",
        {
            "term": Fact("number", "the host's; higher than the last one's"),
            **_ROOT,
            "output": Fact("list", "the range of output that was found"),
        },
    ),
    "session.reclaimed": Event(
        "the link to its keeper broke, and was made again or given up",
        {"term": Fact("number", "the host's")},
    ),
    "session.halted": Event(
        "every process of it was stopped",
        {
            **_BEFORE,
            **_WHO,
            "how": Fact("text", "by which means"),
            "took_ms": Fact("number", "until all stood still"),
            "complete": Fact("yes", "whether all of them do"),
            "act": Fact("number", "the last act that was taken before"),
        },
    ),
    "session.resumed": Event(
        "it goes on",
        {
            **_BEFORE,
            **_WHO,
            "how": Fact("text", "by which means"),
            "took_ms": Fact("number", "how long that took"),
        },
    ),
    "process.exited": Event(
        "a process that outlived its command has exited: a server in the background, a daemon",
        {
            "pid": Fact("number", "of the process"),
            "program": Fact("text", "its name; empty if it lived too briefly"),
            "exit_code": Fact("number?", "its exit code"),
            "signal": Fact("text?", "the signal that ended it"),
            "actor": Fact("text", "who started it"),
            "act": Fact("text?", "the reference of the act that did"),
            "untold": Fact(
                "number*", "how many more have exited untold, because there were too many"
            ),
        },
    ),
    "session.renamed": Event("it has another name", {"name": Fact("text", "the new one")}),
    "session.end_asked": Event("somebody ends it", dict(_WHO)),
    "session.exited": Event(
        "its program ended",
        {
            **_BEFORE,
            "exit_code": Fact("number?", "null if nobody could learn it"),
            "reason": Fact("text", "in words"),
            "survivors": Fact("number", "processes of it that still ran then"),
        },
    ),
    "session.lost": Event(
        "its keeper died or the machine was restarted: what ran on its terminal is gone",
        {
            "before": Fact("text*", "the state before"),
            "after": Fact("text*", "the state after"),
            "exit_code": Fact("number?*", "null"),
            "reason": Fact("text", "in words"),
            "survivors": Fact("number*", "processes of it that still ran then"),
        },
    ),
    "session.output_rolled": Event(
        "the host itself missed output that had rolled off",
        {"start": Fact("number", "from this offset"), "end": Fact("number", "up to this one")},
    ),
    "session.keeper_malformed": Event(
        "its keeper said something that this host does not understand",
        {"detail": Fact("text", "what")},
    ),
    # ------------------------------------------------------------ clients
    "client.attached": Event(
        "a client attached, whether or not others are there",
        {
            **_WHO,
            "kind": Fact("text", "human, agent or service"),
            "modality": Fact("text", "through which kind of client"),
            "observe": Fact("yes", "to look only"),
            **_WHERE,
        },
    ),
    "client.left": Event(
        "a client left, or was lost; the execution goes on",
        {
            **_WHO,
            "kind": Fact("text", "human, agent or service"),
            "modality": Fact("text", "through which kind of client"),
            "how": Fact("text", _HOW),
            **_WHERE,
        },
    ),
    # ------------------------------------------------------------ the turn
    "turn.taken": Event(
        "somebody has the turn now",
        {
            "holder": Fact("text", "who"),
            "previous": Fact("text?", "who had it"),
            "how": Fact("text", "`write`, `request`, `grant`, `hand` or `seize`"),
        },
    ),
    "turn.asked": Event("somebody asks for it", {**_WHO, "holder": Fact("text", "who has it")}),
    "turn.withdrawn": Event("a request for it is over", {**_WHO, "why": Fact("text", "in words")}),
    "turn.freed": Event("nobody has it now", {"previous": Fact("text", "who had it")}),
    "turn.refused": Event(
        "two wanted to write at once: an input was not taken. Told once for each who is refused, until the turn moves",
        {
            **_WHO,
            "holder": Fact("text", "who has the turn, or whose line is begun"),
            "why": Fact("text", "`held` or `unfinished`"),
        },
    ),
    # ------------------------------------------------------------ the gate
    "gate.refused": Event(
        "the policy, or whoever was asked, refused an act; nothing of it happened. The same refusal is told once a second at most",
        {
            **_WHO,
            "kind": Fact("text", "human, agent or service"),
            "act": Fact("text", "which kind of act"),
            "rule": Fact("text", "the policy's rule; empty if none"),
            "originators": Fact("list", "who shaped what it would run on"),
        },
    ),
    "originators.foreign": Event(
        "an act was about to run on state that others shaped, and the gate was told",
        {
            **_WHO,
            "act": Fact("text", "which kind of act"),
            "originators": Fact("list", "who shaped it"),
            "kinds": Fact("list", "which kinds of state: alias, path, file ..."),
            "verdict": Fact("text", "what the gate said"),
        },
    ),
    "originators.doubted": Event(
        "a program other than the shell opened a file in which the shell says what it is made of: what it is made of is unknown until it says so again. Root's sessions only",
        {
            **_WHO,
            "pid": Fact("number*", "of that program"),
            "caused_by": Fact("text?*", "the reference of the act that started it"),
            "because": Fact("text", "in words"),
        },
    ),
    "exec.refused": Event(
        "a program was about to run inside the session, and the policy refused it. Of very many in a short time, how many",
        _EXEC,
    ),
    "exec.mismatch": Event(
        "what ran inside the session was not what had been judged: its words or its file were changed in between",
        {
            **_EXEC,
            "shown": Fact("text*", "the program that had been judged"),
            "killed": Fact("yes*", "whether it was killed for that"),
        },
    ),
    # ------------------------------------------------------------ approvals
    "approval.asked": Event("an act waits for somebody else's decision", dict(_QUESTION)),
    "approval.given": Event(
        "somebody approved it; all that it takes, or one of several", {**_QUESTION, **_ANSWERED}
    ),
    "approval.used": Event("it happened, by this approval, once", dict(_CLOSED)),
    "approval.denied": Event("somebody refused it", {**_CLOSED, **_ANSWERED}),
    "approval.withdrawn": Event("whoever asked wants it no longer", {**_CLOSED, **_ANSWERED}),
    "approval.expired": Event("nobody decided in time", dict(_CLOSED)),
    "approval.void": Event(
        "it counts no more: something changed that it was asked under", dict(_CLOSED)
    ),
    # ------------------------------------------------------------ who is known
    "operator.first": Event("the first operator of this machine", dict(_KNOWN), OF_MACHINE),
    "operator.added": Event("somebody was added", dict(_KNOWN), OF_MACHINE),
    "operator.admitted": Event(
        "somebody came with an envelope that a known one signed",
        {**_KNOWN, "link": Fact("text", "the envelope's id")},
        OF_MACHINE,
    ),
    "operator.joined": Event(
        "somebody came by an invitation",
        {
            **_KNOWN,
            "device": Fact("text", "its name"),
            **_RIGHTS,
            "invitation": Fact("text*", "its id"),
        },
        OF_MACHINE,
    ),
    "operator.recovered": Event(
        "somebody was let in again by the machine's own key",
        {
            "operator": Fact("text", "who"),
            "key": Fact("text", "the public key"),
            "kind": Fact("text*", "human, agent or service"),
            "by": Fact("text*", "the machine"),
        },
        OF_MACHINE,
    ),
    "operator.key_added": Event(
        "an operator has one more device",
        {
            "operator": Fact("text", "whose"),
            "key": Fact("text", "the public key"),
            "device": Fact("text", "its name"),
            "by": Fact("text", "who added it"),
            "links": Fact("list", "ids of its envelopes"),
            "invitation": Fact("text*", "its id"),
        },
        OF_MACHINE,
    ),
    "device.renamed": Event(
        "a device has another name",
        {
            "operator": Fact("text", "whose"),
            "key": Fact("text", "the public key"),
            "device": Fact("text", "the new name"),
            "was": Fact("text", "the old one"),
            "by": Fact("text", "who did it"),
        },
        OF_MACHINE,
    ),
    "envelope.given": Event(
        "rights were handed on",
        {
            "operator": Fact("text", "to whom"),
            "by": Fact("text", "by whom"),
            **_RIGHTS,
            "links": Fact("list*", "ids of all envelopes, one for each device"),
        },
        OF_MACHINE,
    ),
    "revoked": Event(
        "an operator, a device or an envelope counts no more",
        {
            "what": Fact("text", "in words"),
            "by": Fact("text", "by whom"),
            "subjects": Fact("list", "pairs of kind and id"),
        },
        OF_MACHINE,
    ),
    "invitation.made": Event(
        "somebody was invited",
        {
            **_INVITATION,
            "kind": Fact("text", "human, agent or service"),
            "rights": Fact("list", "what it gives"),
            "scope": Fact("object", "how far"),
            "confirm": Fact("yes", "whether its maker is asked first"),
            "expires": Fact("number", "in seconds since 1970"),
            "of": Fact("text*", "whose new device it is for"),
            "device": Fact("text*", "that device's name"),
        },
        OF_MACHINE,
    ),
    "invitation.guessed": Event(
        "somebody came with a wrong code",
        {
            **_INVITATION,
            "state": Fact("text", "what became of the invitation"),
            "guesses": Fact("number", "how many so far"),
        },
        OF_MACHINE,
    ),
    "invitation.ended": Event(
        "an invitation counts no more",
        {**_INVITATION, "state": Fact("text", "how"), "why": Fact("text", "in words")},
        OF_MACHINE,
    ),
    # ------------------------------------------------------------ what went wrong here
    "record.damaged": Event("the record of a session is not what this machine signed", {}),
    "store.failed": Event(
        "what is known of an ended session could not be written down yet",
        {"detail": Fact("text", "the disk's answer")},
    ),
}


def faults(name: str, facts: Mapping[str, Any]) -> list[str]:
    """What of an event is not as the table says."""
    event = EVENTS.get(name)
    if event is None:
        return [f"{name} is not in the table"]
    found = [
        f"{name} has {fact!a}, which the table does not know"
        for fact in facts.keys() - event.facts.keys()
    ]
    for fact, (kind, _) in event.facts.items():
        if fact not in facts:
            found += [] if kind.endswith("*") else [f"{name} lacks {fact}"]
        elif facts[fact] is None:
            found += [] if "?" in kind else [f"{name}: {fact} is null"]
        elif type(facts[fact]) not in TYPES[kind.rstrip("?*")]:
            found.append(f"{name}: {fact} is a {type(facts[fact]).__name__}, not a {kind}")
    return found


def page() -> str:
    """docs/events.md, between its head and its end."""
    rows = []
    for name, event in EVENTS.items():
        facts = "; ".join(
            f"`{fact}` {_kind(kind)}: {says}" for fact, (kind, says) in event.facts.items()
        )
        rows.append(
            f"| `{name}` | {event.of} | {event.means} | {facts or 'none'} | {'planned' if event.planned else event.since} |"
        )
    return "\n".join(["| event | of | means | facts | since |", "|---|---|---|---|---|", *rows])


def _kind(kind: str) -> str:
    words = {"yes": "true or false"}.get(kind.rstrip("?*"), kind.rstrip("?*"))
    return (
        words + (" or null" if "?" in kind else "") + (", not always there" if "*" in kind else "")
    )
