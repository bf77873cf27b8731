"""Verification of an exported record (P2): findings per entry; only signatures are trusted.

There are two stages, because only the first can be spread over processes. core/record/examine.py
looks at each entry alone: spelling, fields, hash, commitment, statement and signature, which is
nearly all the work. `Chain` then processes the results in order: links, numbers, epochs, intents
and outcomes, identities, covers, the heads that actors had seen, and signed heads.

A finding is `broken` (a change, or an invalid entry) or a `note`. An honest record can have notes:
an act in progress, keys that are not signed yet, removed content, a clock that was set back.

No verifier can find two things from an export alone: a host that keeps two records, or a record
made with invented keys. Against the first there are heads and acks that other parties kept (`kept`)
and the `seen` of the actors' statements. Against the second there are the keys of the machine and
the actors, known from another source (`machine`, `operators`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from holdfast.core.record import record
from holdfast.core.record.examine import Fact, Finding, examine, read_signed

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

CHUNK_LINES: Final = 400  # examined at once
FINDINGS_MAX: Final = 1000  # a file that is not a record need not be listed in full


def broken(findings: Iterable[Finding]) -> bool:
    return any(f.level == "broken" for f in findings)


class _Ranges:
    """Numbers of one client, as ranges that do not touch."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int]] = []

    def add(self, first: int, last: int) -> bool:
        """Add numbers; return False without effect if any number was present."""
        if not self.ends or first > self.ends[-1][1] + 1:
            self.ends.append((first, last))
            return True
        if first == self.ends[-1][1] + 1:
            self.ends[-1] = (self.ends[-1][0], last)
            return True
        at = bisect_left(self.ends, (first, first))
        before = self.ends[at - 1] if at else (-2, -2)
        if before[1] >= first or (at < len(self.ends) and self.ends[at][0] <= last):
            return False
        self.ends.insert(at, (first, last))
        return True

    def remove(self, first: int, last: int) -> bool:
        """Remove numbers; return False without effect if any number was absent."""
        taken = [(a, b) for a, b in self.ends if a <= last and b >= first]
        if sum(min(b, last) - max(a, first) + 1 for a, b in taken) != last - first + 1:
            return False
        rest = [(a, b) for a, b in self.ends if a > last or b < first]
        for a, b in taken:
            rest += [(a, first - 1)] if a < first else []
            rest += [(last + 1, b)] if b > last else []
        self.ends = sorted(rest)
        return True

    def __len__(self) -> int:
        return sum(b - a + 1 for a, b in self.ends)


class Chain:
    """The entries of an export, in order."""

    def __init__(
        self, header: Json, operators: Mapping[str, Iterable[str]], found: list[Finding]
    ) -> None:
        self.header = header
        self.found = found
        self.hashes: dict[int, bytes] = {}
        self.first = header["first"]
        self._operators = {name: frozenset(keys) for name, keys in operators.items()}
        self._known: set[bytes] = set()
        self._expected: int = self.first
        self._prev = record.GENESIS if self.first == 1 else None
        self._began: str = record.GENESIS  # `prev` of the first present entry
        self._epoch = self._time = 0
        self._open: dict[int, Json] = {}
        self._closed: set[int] = set()
        self._keys: dict[str, str] = {}  # client -> key
        self._done: defaultdict[str, _Ranges] = defaultdict(_Ranges)
        self._uncovered: defaultdict[str, _Ranges] = defaultdict(_Ranges)
        self._missing: dict[int, None] = {}
        self._checkpoint: tuple[Any, Any] = (0, record.GENESIS)

    def say(self, level: Literal["broken", "note"], code: str, seq: int | None, text: str) -> None:
        if len(self.found) < FINDINGS_MAX:
            self.found.append(Finding(level, code, seq, text))

    def broken(self, code: str, seq: int | None, text: str) -> None:
        self.say("broken", code, seq, text)

    def note(self, code: str, seq: int | None, text: str) -> None:
        self.say("note", code, seq, text)

    def add(self, fact: Fact) -> None:
        for finding in fact.findings:
            self.say(*finding)
        entry, seq = fact.entry, fact.seq
        self._link(seq, fact.hash, entry)
        if "v" not in entry:  # unreadable, and reported already
            return
        if entry["session"] != self.header["session"]:
            self.broken("session", seq, "it belongs to another session")
        if entry["phase"] != record.OUTCOME:  # an outcome has the epoch of its intent
            if entry["epoch"] < self._epoch:
                self.broken("epoch", seq, f"epoch {entry['epoch']} after {self._epoch}")
            self._epoch = max(self._epoch, entry["epoch"])
        if "late" not in entry:
            if entry["time"] < self._time:
                self.note("time", seq, "the machine's clock was set back before this entry")
            self._time = entry["time"]
        self._who(seq, entry)
        self._what(seq, entry)
        if (
            fact.said
            and fact.seen is not None
            and self.first == 1
            and bytes.fromhex(fact.seen) not in self._known
        ):
            self.broken("seen", seq, "its actor had seen an entry that is not in this record")
        if "kept" in entry and not fact.content:
            self._missing[seq] = None
        self._known.add(self.hashes[seq])

    def _link(self, seq: int, hash: str, entry: Json) -> None:
        if seq != self._expected:
            text = (
                f"entries {self._expected} to {seq - 1} are missing"
                if seq > self._expected
                else f"it stands where {self._expected} should be"
            )
            self.broken("order", seq, text)
        elif self._prev is not None and entry["prev"] != self._prev:
            self.broken("chain", seq, "it does not continue the previous entry")
        if not self.hashes:
            self._began = str(entry["prev"])
        self._expected, self._prev = seq + 1, hash
        self.hashes[seq] = bytes.fromhex(hash)

    def _who(self, seq: int, entry: Json) -> None:
        attestation, key, client = entry["attestation"], entry.get("key"), entry.get("client")
        if attestation != record.HOST:
            name = (
                attestation.removeprefix(record.BRIDGE)
                if attestation.startswith(record.BRIDGE)
                else entry["actor"]
            )
            if key not in self._operators.get(name, ()):
                self.broken("actor", seq, f"its key does not belong to {name[:64]!a}")
            if self._keys.setdefault(str(client), str(key)) != key:
                self.broken("client", seq, "its client belongs to another key")

    def _what(self, seq: int, entry: Json) -> None:
        phase, kind = entry["phase"], entry["kind"]
        client, number = entry.get("client"), entry.get("number")
        if phase == record.INTENT:
            self._open[seq] = {
                name: entry.get(name) for name in ("actor", "kind", "client", "number", "epoch")
            }
            if None not in (client, number) and self._repeated(client, number):
                self.broken("repeated", seq, f"act {number} of its client was done before")
        elif phase == record.OUTCOME:
            self._outcome(seq, entry)
        elif kind == record.KEYS:
            if not self._done[str(client)].add(entry["first"], entry["number"]):
                self.broken("repeated", seq, "some of its keys were recorded before")
            self._uncovered[str(client)].add(entry["first"], entry["number"])
        elif kind == record.COVER:
            if not self._uncovered[str(client)].remove(entry["first"], entry["number"]):
                self.say(
                    "broken" if self.first == 1 else "note",
                    "cover",
                    seq,
                    "it covers keys that were not typed, or are covered already",
                )
        elif entry["attestation"] != record.HOST:  # an act that is complete when it is recorded
            stopped = entry.get("verdict") in ("refuse", "hold")
            if not stopped and self._repeated(client, number):
                self.broken("repeated", seq, f"act {number} of its client was done before")
        else:
            facts = entry.get("facts", {})
            if kind == record.CHECKPOINT:
                self._checkpoint = (facts.get("through"), facts.get("hash"))
            elif kind == record.REDACT and type(facts.get("seqs")) is list:
                for gone in facts["seqs"]:
                    self._missing.pop(gone if type(gone) is int else 0, None)
            elif kind == record.GAP:
                self.note(
                    "gap", seq, f"{facts.get('lost')!s:.20} entries before it could not be written"
                )

    def _repeated(self, client: Any, number: Any) -> bool:
        return not self._done[str(client)].add(number, number)

    def _outcome(self, seq: int, entry: Json) -> None:
        intent = entry["intent"]
        was = self._open.pop(intent, None)
        if was is None:
            if intent >= self.first:
                wrong = (
                    "has an outcome already"
                    if intent in self._closed
                    else "is not an earlier intent"
                )
                self.broken("outcome", seq, f"{intent} {wrong}")
            return
        self._closed.add(intent)
        if any(
            entry.get(name) != was[name] for name in ("actor", "kind", "client", "number", "epoch")
        ):
            self.broken("outcome", seq, f"it is not the outcome of {intent}")
        elif (
            entry["outcome"] == record.VOID
            and was["client"] is not None
            and was["number"] is not None
            and was["client"] in self._done
        ):
            # the act did not happen, so a retry with the same number is valid
            self._done[was["client"]].remove(was["number"], was["number"])

    def end(self) -> None:
        header = self.header
        tip = self._prev if self.hashes else record.GENESIS
        if (header["last"], header["hash"]) != (self._expected - 1, tip):
            self.broken(
                "truncated", None, f"it should end with entry {header['last']}, but does not"
            )
        if self.first != 1 and self._checkpoint != (self.first - 1, self._began):
            self.broken(
                "pruned", self.first, "no checkpoint says that the entries before it were dropped"
            )
        for seq in self._open:
            self.note("open", seq, "an intent without an outcome")
        for seq in self._missing:
            self.note(
                "content", seq, "its content is missing, and no entry says that it was removed"
            )
        for client, ranges in self._uncovered.items():
            if len(ranges):
                self.note(
                    "uncovered",
                    None,
                    f"{len(ranges)} inputs of client {client} are attested by their channel only",
                )

    def at(self, seq: int) -> str | None:
        found = self.hashes.get(seq)
        return None if found is None else found.hex()


# ---------------------------------------------------------------- the whole export

Spread = Callable[
    [Callable[[list[bytes], str], list[Fact | Finding]], Iterable[list[bytes]], str],
    Iterable[list[Fact | Finding]],
]


def one_by_one(
    work: Callable[[list[bytes], str], list[Fact | Finding]],
    chunks: Iterable[list[bytes]],
    machine: str,
) -> Iterator[list[Fact | Finding]]:
    return (work(chunk, machine) for chunk in chunks)


def verify(
    lines: Iterable[bytes],
    kept: Iterable[bytes] = (),
    machine: str | None = None,
    operators: Mapping[str, Iterable[str]] | None = None,
    spread: Spread = one_by_one,
) -> list[Finding]:
    """Return all findings about an export, given as its lines.

    `kept` are lines with heads and acks that other parties kept. `machine` and `operators` are keys
    from another source, used instead of the keys in the export. `spread` runs the first stage.
    """
    found: list[Finding] = []
    source = iter(lines)
    try:
        kind, header = read_signed(next(source, b""), None)
        if kind != "header":
            raise ValueError("it does not begin with a header")
    except ValueError as e:
        return [Finding("broken", "header", None, str(e))]
    if machine is not None and header["machine"] != machine:
        found.append(
            Finding(
                "broken",
                "machine",
                None,
                f"it is signed by {header['machine']}, not by the machine that was named",
            )
        )
    machine = str(header["machine"])
    chain = Chain(
        header,
        {o["name"]: o["keys"] for o in header["operators"]} if operators is None else operators,
        found,
    )
    heads: list[bytes] = []

    def chunks() -> Iterator[list[bytes]]:
        entries = (line for line in source if _is_entry(line, heads))
        while chunk := list(islice(entries, CHUNK_LINES)):
            yield chunk

    for facts in spread(examine, chunks(), machine):
        for fact in facts:
            if isinstance(fact, Fact):
                chain.add(fact)
            else:
                chain.say(*fact)
    chain.end()
    _heads(chain, heads, machine)
    for line in kept:
        _kept(chain, line, machine)
    return found


def _is_entry(line: bytes, heads: list[bytes]) -> bool:
    """Say whether a line is an entry; all lines from the first signed line on are heads."""
    if not heads and not line.startswith((b'{"head":', b'{"ack":', b'{"header":')):
        return True
    if len(heads) <= FINDINGS_MAX:
        heads.append(line)
    return False


def _heads(chain: Chain, lines: list[bytes], machine: str) -> None:
    last = 0
    for line in lines:
        try:
            kind, head = read_signed(line, machine)
            if kind != "head":
                raise ValueError(f"a {kind} among the heads")
        except ValueError as e:
            chain.broken("head", None, str(e))
            continue
        if (
            head["session"] != chain.header["session"]
            or head["seq"] <= last
            or chain.at(head["seq"]) != head["hash"]
        ):
            chain.broken(
                "head", head["seq"], "a head that does not belong to this chain, or is out of order"
            )
        last = head["seq"]
    if len(lines) != chain.header["heads"]:
        chain.broken("head", None, f"{len(lines)} heads where there were {chain.header['heads']}")


def _kept(chain: Chain, line: bytes, machine: str) -> None:
    try:
        kind, head = read_signed(line, machine)
    except ValueError as e:
        return chain.broken("kept", None, f"a kept line: {e}")
    if kind == "header":
        return
    if head["session"] != chain.header["session"]:
        return chain.note("kept", head["seq"], f"a kept {kind} is of another session")
    if head["seq"] < chain.first:
        return chain.note("kept", head["seq"], f"a kept {kind} is of an entry that was pruned")
    found, receipt = chain.at(head["seq"]), receipt_name(kind, head)
    if found is None:
        text = f"{receipt} is of an entry that is missing: the record was cut off"
        chain.broken("truncated", head["seq"], text)
    elif found != head["hash"]:
        text = f"{receipt} has another hash: the record was rewritten"
        chain.broken("kept", head["seq"], text)


def receipt_name(kind: str, head: Json) -> str:
    """The name of a kept head or ack: when the machine signed, and for which act."""
    when = datetime.fromtimestamp(head["time"] // 1_000_000_000, UTC).isoformat()
    act = f" for act {head['number']} of client {head['client']}" if kind == "ack" else ""
    return f"a kept {kind} of {when}{act}"
