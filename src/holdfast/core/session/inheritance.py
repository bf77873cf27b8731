"""The state that passes with the turn, and the operator that must be shown this state (A6).

An operator that takes the turn is owed a look at the inherited state. The operator that saw the
state last is owed none. The look is owed until a client of the operator has shown the look. An
operator that was away therefore sees the state on the next attach or act.

Pure: `host/session/takeover.py` collects the facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from holdfast.core.originators.lineage import SHELL
from holdfast.core.originators.originators import UNKNOWN, in_words
from holdfast.core.session.graph import File, Graph
from holdfast.model.printable import printable

Facts = dict[str, list[dict[str, Any]]]  # JSON: staged, jobs, changed, credentials, files

KNOWN_MAX: Final = 64  # operators whose last look is kept
SHOWN_TEXT: Final = 40  # characters of a staged line, a command or a name in a notice
SHOWN_EACH: Final = {"staged": 4, "jobs": 2, "changed": 3, "credentials": 3, "files": 2}
AGENTS: Final = ("ssh-agent", "gpg-agent")
SECRET_PLACES: Final = re.compile(
    r"/\.(?:ssh|aws|gnupg|kube|docker|azure|password-store|config/gcloud|config/gh)/"
    r"|/\.(?:netrc|pgpass|git-credentials|npmrc|pypirc)$"
)
NOT_SECRET: Final = "HOLDFAST_TOKEN_FILE"  # the path of the fencing token, which every program sees
_SECRET_NAME: Final = re.compile(
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|APIKEY|CREDENTIALS?|(?:^|_)KEY|_PWD|_PAT)"
    r"(?:_ID|_FILE)?$|SECRET_|_TOKEN_",
    re.IGNORECASE,
)


class Credential(NamedTuple):
    """An open credential: never its value."""

    kind: str  # "agent", "root", "file", "variable"
    name: str  # of the program or the variable; the path of a file or socket
    pid: int


class OpenFile(NamedTuple):
    """A file that a process of the session has open for writing, or has locked."""

    path: str
    pid: int
    write: bool
    lock: bool


def names_a_secret(variable: str) -> bool:
    """Say whether the name of a variable looks like that of a key or token."""
    return variable != NOT_SECRET and _SECRET_NAME.search(variable) is not None


def credentials(graph: Graph, root: int) -> Iterator[Credential]:
    """Yield the open credentials that the graph shows; `root`: the session's first process."""
    uids = {one.pid: one.uid for one in graph.processes}
    for one in graph.processes:
        if one.state == "zombie":
            continue
        if one.comm in AGENTS:
            yield Credential("agent", one.comm, one.pid)
        if one.uid == 0 and uids.get(root) and uids.get(one.ppid) != 0:
            yield Credential("root", one.comm, one.pid)
    for file in graph.files:
        if SECRET_PLACES.search(file.path):
            yield Credential("file", file.path, file.pid)


def files(graph: Graph, own: tuple[str, ...]) -> Iterator[OpenFile]:
    """Yield each file of interest once for each process, without files below `own`."""
    found: dict[tuple[str, int], list[File]] = {}
    for one in graph.files:
        if one.kind == "file" and ("w" in one.mode or one.locks) and not one.path.startswith(own):
            found.setdefault((one.path, one.pid), []).append(one)
    for (path, pid), each in found.items():
        yield OpenFile(
            path, pid, any("w" in one.mode for one in each), any(one.locks for one in each)
        )


@dataclass
class Inheritance:
    """The operator that knows the state of a session, and the operator that is owed a look."""

    known: str | None = None  # None: not known, because the host is new
    owed: str | None = None
    _told: dict[str, Facts] = field(default_factory=dict)

    def taken(self, operator: str) -> bool:
        """Note that an operator took the turn; return whether a look is owed."""
        self.owed = None if operator == self.known else operator
        return self.owed is not None

    def news(self, operator: str, found: Facts) -> Facts | None:
        """Return the part of the found state that the operator must be shown.

        None if nothing was inherited, or if the same state was shown to the operator before. State
        of an unknown author counts after a known operator: alone, an operator inherits nothing.
        """
        foreign = {
            key: [one for one in entries if _author(one) not in (operator, SHELL.actor)]
            for key, entries in found.items()
        }
        counts = any(
            _author(one) != UNKNOWN or (key != "changed" and self.known is not None)
            for key, entries in foreign.items()
            for one in entries
        )
        return foreign if counts and foreign != self._told.get(operator) else None

    def shown(self, operator: str, news: Facts | None) -> None:
        """Note that a client of the operator got the look."""
        if self.owed == operator:
            self.known, self.owed = operator, None
        if news is not None:
            self._told.pop(operator, None)
            self._told[operator] = news
            if len(self._told) > KNOWN_MAX:
                del self._told[next(iter(self._told))]


def _author(one: Mapping[str, object]) -> object:
    return one.get("actor", one.get("operator"))


# ------------------------------------------------------------ words


def in_a_line(facts: Mapping[str, Any], me: str = "", most: Mapping[str, int] = SHOWN_EACH) -> str:
    """Describe the inherited state of other operators; empty if there is none.

    A terminal may have no room for the whole line: the most dangerous parts come first. `most`: the
    number of facts of each kind.
    """
    known = {one["name"] for one in facts.get("credentials") or () if one["kind"] == "variable"}
    staged = [f"{p['text'][:SHOWN_TEXT]!r} by {p['operator']}" for p in facts.get("staged") or ()]
    jobs = [
        f"{job['command'][:SHOWN_TEXT]!r} by {job['actor']}"
        for job in facts.get("jobs") or ()
        if job["actor"] != me
    ]
    changed = [
        in_words(one["kind"], one["name"][:SHOWN_TEXT], one["actor"], one.get("sure", True))
        for one in facts.get("changed") or ()
        if one["actor"] not in (me, UNKNOWN) and one["name"] not in known
    ]
    opened = [credential_in_words(c) for c in facts.get("credentials") or () if c["actor"] != me]
    held = [file_in_words(one) for one in facts.get("files") or () if one["actor"] != me]
    return "".join(
        (
            _part(most["staged"], "on the line", staged),
            _part(most["credentials"], "open credentials", opened),
            _part(most["jobs"], "runs", jobs),
            _part(most["changed"], "changed", changed),
            _part(most["files"], "files", held),
        )
    )


def credential_in_words(one: Mapping[str, object]) -> str:
    """Describe an open credential with the operator that opened it."""
    kind, name = one["kind"], str(one["name"])
    if kind == UNKNOWN:
        return f"not all could be seen: {name}"
    what = {
        "agent": "{name}",
        "root": "{name} as root",
        "file": "file {name}",
        "variable": "variable {name}",
    }.get(str(kind), "{name}")
    return f"{_of(one)}{what.replace('{name}', name)}"


def file_in_words(one: Mapping[str, object]) -> str:
    """Describe an open file with the operator of the process."""
    how = [word for word, is_so in (("written", one["write"]), ("locked", one["lock"])) if is_so]
    return f"{_of(one)}{one['path']} ({', '.join(how)})"


def _of(one: Mapping[str, object]) -> str:
    return "" if one["actor"] == UNKNOWN else f"{one['actor']}'s "


def _part(most: int, title: str, told: Iterable[str]) -> str:
    each = list(told)
    more = f" and {len(each) - most} more" if len(each) > most else ""
    return printable(f"; {title}: {', '.join(each[:most])}{more}") if each else ""
