"""Which waits of sessions a person is told of: each question once. Pure.

A wait for input or a secret is the same question until its process goes on or is another one. A
halt or a state that could not be observed ends no question, so a host that returns repeats none. A
question for approval has an id. `Waits` gets the states and lists of one machine.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from holdfast.core.session.notices import OVER, WAITS, Notice

KINDS: Final = ("approval", "input", "secret", "exit")
ASKED_MAX: Final = 4096  # questions whose ids are remembered
STILL: Final = ("halted", "unknown")  # a question may still be open


class Wait(NamedTuple):
    kind: str  # one of KINDS
    session: str  # empty: an act on the machine itself
    name: str
    since: float
    text: str = ""  # the act, the program, or how the session ended
    operator: str = ""  # whose act waits for approval
    why: str = ""  # the policy's reason
    id: str = ""  # of the question
    machine: str = ""  # empty: this machine

    @property
    def title(self) -> str:
        name = "/".join(filter(None, (self.machine, self.name))) or "this machine"
        if self.kind == "approval":
            return f"{name}: {self.operator} waits for approval"
        if self.kind == "exit":
            return f"{name}: {self.text}"
        return f"{name}: waits for {'a secret' if self.kind == 'secret' else 'input'}"


class Waits:
    """`only`: ids of sessions; none means all."""

    def __init__(self, kinds: frozenset[str], only: frozenset[str] = frozenset()) -> None:
        self._kinds, self._only = kinds, only
        self._running: dict[str, Notice | None] = {}  # by session, with the question it waits for
        self._asked: dict[str, None] = {}  # ids, oldest first

    def noticed(self, notice: Notice, before: bool = False) -> Wait | None:
        """`before`: the session ended before this report began, perhaps without a host."""
        id, kind = notice.session, notice.kind
        known, last = id in self._running, self._running.get(id)
        if kind in OVER:
            self._running.pop(id, None)
            if (before and not known) or "exit" not in self._kinds:
                return None
            code = "" if notice.exit_code is None else f" with {notice.exit_code}"
            text = notice.why + (code if notice.why == "exited" else "")
            return Wait("exit", id, notice.name, notice.since, text)
        if kind in STILL:
            self._running.setdefault(id, None)
            return None
        same = (
            last is not None
            and last.kind == kind
            and (None in (last.pid, notice.pid) or last.pid == notice.pid)
        )
        self._running[id] = notice if kind in WAITS else None
        if kind not in WAITS or kind not in self._kinds or same:
            return None
        return Wait(kind, id, notice.name, notice.since, notice.program)

    def asked(self, questions: list[dict[str, Any]]) -> list[Wait]:
        """The new questions of the list of acts that wait for approval."""
        found = []
        for one in questions if "approval" in self._kinds else ():
            id, session = str(one["id"]), str(one["session"])
            if id in self._asked or (self._only and session not in self._only):
                continue
            self._asked[id] = None
            if len(self._asked) > ASKED_MAX:
                del self._asked[next(iter(self._asked))]
            name, text = str(one["name"] or session), str(one["text"])
            facts = (text, str(one["operator"]), str(one["because"]), id)
            found.append(Wait("approval", session, name, float(one["asked"]), *facts))
        return found
