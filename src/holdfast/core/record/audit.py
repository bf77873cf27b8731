"""Verifying an export of a record (P2): what is wrong with it, said entry by entry; nothing is trusted but signatures.

Two stages, because one can be spread over processes and the other cannot. core/examine.py looks at each entry alone: spelling, fields,
hash, commitment, statement and signature, which is nearly all the work. `Chain` then goes through what it found in order: links,
numbers, epochs, intents and outcomes, who is who, what was covered, what actors had seen, heads.

A finding is `broken` (somebody changed something, or wrote what may not be) or a `note` (what a reader should know, and an honest record can
have: an act under way, keys not signed yet, content taken away, a clock set back).

What no verifier can find from an export alone: a host that keeps two records, or makes up one with keys of its own invention. Against
the first there are heads and acks that others kept (`kept`) and the `seen` of the actors' statements; against the second the key of
the machine and the keys of the actors, known from elsewhere (`machine`, `operators`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Literal

from holdfast.core import record
from holdfast.core.examine import Fact, Finding, examine, read_signed

CHUNK_LINES: Final = 400  # examined at once
FINDINGS_MAX: Final = 1000  # a file that is not a record at all need not be listed in full


def broken(findings: Iterable[Finding]) -> bool:
    return any(f.level == "broken" for f in findings)


class _Ranges:
    """Numbers of one client, as ranges that do not touch."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int]] = []

    def add(self, first: int, last: int) -> bool:
        """False if one of them was there already; then nothing is added."""
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
        """False if one of them was not there; then nothing is removed."""
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
    """The entries of one export, in their order."""

    def __init__(
        self, header: dict[str, Any], operators: Mapping[str, Iterable[str]], found: list[Finding]
    ) -> None:
        self.header = header
        self.found = found
        self.hashes: dict[int, bytes] = {}
        self.first = header["first"]
        self._operators = {name: frozenset(keys) for name, keys in operators.items()}
        self._known: set[bytes] = set()
        self._expected: int = self.first
        self._prev = record.GENESIS if self.first == 1 else None
        self._began: str = record.GENESIS  # `prev` of the first entry there is
        self._epoch = self._time = 0
        self._open: dict[int, dict[str, Any]] = {}
        self._closed: set[int] = set()
        self._keys: dict[str, str] = {}  # client -> its key
        self._done: dict[str, _Ranges] = {}
        self._uncovered: dict[str, _Ranges] = {}
        self._missing: dict[int, None] = {}
        self._checkpoint: tuple[Any, Any] = (0, record.GENESIS)

    def say(self, level: Literal["broken", "note"], code: str, seq: int | None, text: str) -> None:
        if len(self.found) < FINDINGS_MAX:
            self.found.append(Finding(level, code, seq, text))

    def add(self, fact: Fact) -> None:
        for finding in fact.findings:
            self.say(*finding)
        entry, seq = fact.entry, fact.seq
        self._link(seq, fact.hash, entry)
        if "v" not in entry:  # unreadable: said already
            return
        if entry["session"] != self.header["session"]:
            self.say("broken", "session", seq, "it belongs to another session")
        if entry["phase"] != record.OUTCOME:  # whose epoch is that of its intent
            if entry["epoch"] < self._epoch:
                self.say("broken", "epoch", seq, f"epoch {entry['epoch']} after {self._epoch}")
            self._epoch = max(self._epoch, entry["epoch"])
        if "late" not in entry:
            if entry["time"] < self._time:
                self.say("note", "time", seq, "the machine's clock was set back before it")
            self._time = entry["time"]
        self._who(seq, entry)
        self._what(seq, entry)
        if (
            fact.said
            and fact.seen is not None
            and self.first == 1
            and bytes.fromhex(fact.seen) not in self._known
        ):
            self.say(
                "broken", "seen", seq, "its actor had seen an entry that is not in this record"
            )
        if "kept" in entry and not fact.content:
            self._missing[seq] = None
        self._known.add(self.hashes[seq])

    def _link(self, seq: int, hash: str, entry: dict[str, Any]) -> None:
        if seq != self._expected:
            text = (
                f"entries {self._expected} to {seq - 1} are missing"
                if seq > self._expected
                else f"it stands where {self._expected} should be"
            )
            self.say("broken", "order", seq, text)
        elif self._prev is not None and entry["prev"] != self._prev:
            self.say("broken", "chain", seq, "it does not follow from the entry before it")
        if not self.hashes:
            self._began = str(entry["prev"])
        self._expected, self._prev = seq + 1, hash
        self.hashes[seq] = bytes.fromhex(hash)

    def _who(self, seq: int, entry: dict[str, Any]) -> None:
        attestation, key, client = entry["attestation"], entry.get("key"), entry.get("client")
        if attestation != record.HOST:
            name = (
                attestation.removeprefix(record.BRIDGE)
                if attestation.startswith(record.BRIDGE)
                else entry["actor"]
            )
            if key not in self._operators.get(name, ()):
                self.say("broken", "actor", seq, f"its key is not one of {name[:64]!a}")
            if self._keys.setdefault(str(client), str(key)) != key:
                self.say("broken", "client", seq, "its client is that of another key")

    def _what(self, seq: int, entry: dict[str, Any]) -> None:
        phase, kind, client, number = (
            entry["phase"],
            entry["kind"],
            entry.get("client"),
            entry.get("number"),
        )
        if phase == record.INTENT:
            self._open[seq] = {
                name: entry.get(name) for name in ("actor", "kind", "client", "number", "epoch")
            }
            if (
                client is not None
                and number is not None
                and not self._done.setdefault(client, _Ranges()).add(number, number)
            ):
                self.say("broken", "repeated", seq, f"act {number} of its client was done before")
        elif phase == record.OUTCOME:
            self._outcome(seq, entry)
        elif kind == record.KEYS:
            if not self._done.setdefault(str(client), _Ranges()).add(
                entry["first"], entry["number"]
            ):
                self.say("broken", "repeated", seq, "some of its keys were typed before")
            self._uncovered.setdefault(str(client), _Ranges()).add(entry["first"], entry["number"])
        elif kind == record.COVER:
            if not self._uncovered.setdefault(str(client), _Ranges()).remove(
                entry["first"], entry["number"]
            ):
                self.say(
                    "broken" if self.first == 1 else "note",
                    "cover",
                    seq,
                    "it covers keys that nobody typed, or that are covered already",
                )
        elif (
            entry["attestation"] != record.HOST
        ):  # an act that is done when it is recorded, unless it was not allowed
            if entry.get("verdict") not in ("refuse", "hold") and not self._done.setdefault(
                str(client), _Ranges()
            ).add(entry["number"], entry["number"]):
                self.say("broken", "repeated", seq, f"act {number} of its client was done before")
        else:
            facts = entry.get("facts", {})
            if kind == record.CHECKPOINT:
                self._checkpoint = (facts.get("through"), facts.get("hash"))
            elif kind == record.REDACT and type(facts.get("seqs")) is list:
                for gone in facts["seqs"]:
                    self._missing.pop(gone if type(gone) is int else 0, None)
            elif kind == record.GAP:
                self.say(
                    "note",
                    "gap",
                    seq,
                    f"{facts.get('lost')!s:.20} entries before it could not be written",
                )

    def _outcome(self, seq: int, entry: dict[str, Any]) -> None:
        intent = entry["intent"]
        was = self._open.pop(intent, None)
        if was is None:
            if intent >= self.first:
                self.say(
                    "broken",
                    "outcome",
                    seq,
                    f"{intent} has an outcome already"
                    if intent in self._closed
                    else f"{intent} is no intent before it",
                )
            return
        self._closed.add(intent)
        if any(
            entry.get(name) != was[name] for name in ("actor", "kind", "client", "number", "epoch")
        ):
            self.say("broken", "outcome", seq, f"it is not the outcome of {intent}")
        elif (
            entry["outcome"] == record.VOID
            and was["client"] is not None
            and was["number"] is not None
            and was["client"] in self._done
        ):
            self._done[was["client"]].remove(
                was["number"], was["number"]
            )  # it may be done after all, by a retry

    def end(self) -> None:
        header = self.header
        tip = self._prev if self.hashes else record.GENESIS
        if (header["last"], header["hash"]) != (self._expected - 1, tip):
            self.say(
                "broken",
                "truncated",
                None,
                f"it should end with entry {header['last']}, and ends otherwise",
            )
        if self.first != 1 and self._checkpoint != (self.first - 1, self._began):
            self.say(
                "broken",
                "pruned",
                self.first,
                "no checkpoint in it says that the entries before it were dropped",
            )
        for seq in self._open:
            self.say("note", "open", seq, "an intent without an outcome")
        for seq in self._missing:
            self.say(
                "note",
                "content",
                seq,
                "its content is not here, and no entry says that it was taken away",
            )
        for client, ranges in self._uncovered.items():
            if len(ranges):
                self.say(
                    "note",
                    "uncovered",
                    None,
                    f"{len(ranges)} inputs of client {client} are attested by their channel only",
                )

    def at(self, seq: int) -> str | None:
        found = self.hashes.get(seq)
        return None if found is None else found.hex()


# ---------------------------------------------------------------- all of it

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
    """All that is wrong with an export, given as its lines. `kept`: lines with heads and acks that somebody kept; `machine` and
    `operators`: keys known from elsewhere, instead of what the export says of itself; `spread`: how the first stage is run."""
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
    """Entries come first; from the first signed line on everything is taken for one."""
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
                raise ValueError(f"a {kind} where heads are")
        except ValueError as e:
            chain.say("broken", "head", None, str(e))
            continue
        if (
            head["session"] != chain.header["session"]
            or head["seq"] <= last
            or chain.at(head["seq"]) != head["hash"]
        ):
            chain.say(
                "broken",
                "head",
                head["seq"],
                "a head that is not of this chain, or not in its place",
            )
        last = head["seq"]
    if len(lines) != chain.header["heads"]:
        chain.say(
            "broken", "head", None, f"{len(lines)} heads where there were {chain.header['heads']}"
        )


def _kept(chain: Chain, line: bytes, machine: str) -> None:
    try:
        kind, head = read_signed(line, machine)
    except ValueError as e:
        return chain.say("broken", "kept", None, f"of what was kept: {e}")
    if kind == "header":
        return
    if head["session"] != chain.header["session"]:
        return chain.say("note", "kept", head["seq"], f"a kept {kind} is of another session")
    if head["seq"] < chain.first:
        return chain.say(
            "note", "kept", head["seq"], f"a kept {kind} is of an entry that was pruned"
        )
    found = chain.at(head["seq"])
    if found is None:
        chain.say(
            "broken",
            "truncated",
            head["seq"],
            f"a kept {kind} is of an entry that is not in it: the record was cut off",
        )
    elif found != head["hash"]:
        chain.say(
            "broken",
            "kept",
            head["seq"],
            f"a kept {kind} has another hash: the record was rewritten",
        )
