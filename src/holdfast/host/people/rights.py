"""The rights of each operator at this moment: a picture in memory, and the questions about it.

`require` is on the path of every typed key. A yes that depends on time alone is cached per (key,
right, session) with the times from which and until which the yes holds, so the cache is right for
any clock. Any change clears the cache. A right with a rate or for certain commands is judged
afresh, and so is every no.

This module does no I/O: `authority.py` changes the picture after the change is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypedDict

from holdfast.core.contract import operators as contract
from holdfast.core.people import devices, envelope, rate, scope
from holdfast.core.people.envelope import Allowed, Command, Denied, Facts, Revoked
from holdfast.host.people.operator_rows import Held, Key, Operator, Revocation, Roster, Subject
from holdfast.host.runtime.notify import tell
from holdfast.model import rights, signing
from holdfast.model.errors import NotAllowed, NotFound, Refused
from holdfast.model.limits import DECISIONS_KEPT, GRANTORS_KEPT_S, GRANTORS_NAMED

FOREVER = float("inf")
ID_SHOWN = 12  # characters of an envelope's id, for people
RECOVER = "whoever controls the machine's account can run `holdfast operator recover`"
MANAGES = ("manage", "grant")  # an operator with both can let others in
# Of several reasons, the most telling comes first.
_NEAREST = ("command", "expired", "early", "session", "machine", "revoked", "right", "holder")


class WhenRevoked(TypedDict):
    """The time of a revocation and the operator that revoked."""

    revoked: int | None
    revoked_by: str | None


class Rights:
    def __init__(
        self,
        roster: Roster,
        machine: bytes,
        closed_to_agents: Callable[[str, str], str] = lambda session, operator: "",
    ) -> None:
        """`closed_to_agents`: why this agent needs PLAIN in this session, or ""."""
        self.machine, self._roster, self._closed_to_agents = machine, roster, closed_to_agents
        self.way_back = RECOVER  # the advice for a machine whose operators are gone
        self._held: dict[bytes, list[Held]] = {}
        for held in roster.held:
            self._held.setdefault(held.holder, []).append(held)
        self._links = {subject for kind, subject in roster.revoked if kind == "link"}
        self._dead_keys = {subject for kind, subject in roster.revoked if kind == "key"}
        self._revoked = Revoked(self._links, self._dead_keys)
        self._buckets: dict[tuple[bytes, int, int], rate.Bucket] = {}
        self._yes: dict[tuple[bytes, str, str | None], tuple[float, float]] = {}
        self._grantors: dict[tuple[str, str | None], tuple[float, list[str]]] = {}
        # The programs of `commands_of`, with the times from which and until which they hold.
        self._commands: dict[
            tuple[str, str | None], tuple[float, float, frozenset[str] | None]
        ] = {}
        self._any_commands: bool | None = None  # None: look
        self.on_change: list[Callable[[], None]] = []  # called after every change of rights
        self.version = 0

    # ------------------------------------------------------------ asking

    def require(
        self,
        key: bytes,
        right: str,
        session: str | None,
        now: float,
        command: Command | None = None,
        spend: bool = True,
    ) -> None:
        """Returns if this key has the right there and then; raises NotAllowed otherwise.

        `spend` counts the act against rates: once for each act.
        """
        yes = self._yes.get((key, right, session))
        if yes is not None and yes[0] <= now < yes[1]:
            return
        self._decide(key, right, session, now, command, spend)

    def lasts(self, key: bytes, right: str, session: str | None, now: float) -> float:
        """How long the last yes of `require` holds without a change; 0 if each act is checked."""
        yes = self._yes.get((key, right, session))
        return yes[1] - now if yes is not None else 0.0

    @property
    def several(self) -> bool:
        """Whether the machine knows or knew more than one operator."""
        return len(self._roster.operators) > 1

    def who(self, key: bytes) -> Operator:
        """The operator of this key; NotAllowed for an unknown or revoked key."""
        known = self._roster.keys.get(key)
        if known is None:
            raise NotAllowed(
                "this key belongs to nobody who is known here",
                self.way_back
                if self._roster.lost
                else "an operator with `manage` adds it: `holdfast operator add`",
                key=signing.show(key),
            )
        if ("operator", known.operator.encode()) in self._roster.revoked:
            raise NotAllowed(
                f"{known.operator} was revoked",
                "ask an operator with `manage`; what was revoked does not come back",
                operator=known.operator,
            )
        if key in self._dead_keys:
            raise NotAllowed(
                f"the device {known.name} of {known.operator} was revoked: "
                "this key does not count any more",
                f"on another device of {known.operator}: `holdfast device add`; "
                f"then here: `holdfast join CODE --as {known.operator} --new-key`",
                operator=known.operator,
                device=known.name,
            )
        return self._roster.operators[known.operator]

    def counts(self, shown: str) -> bool:
        """Whether this key, in its text form, is known and not revoked."""
        try:
            self.who(signing.read(shown))
        except (NotAllowed, ValueError):
            return False
        return True

    def dead(self, key: bytes) -> bool:
        """Whether the key was valid once and was revoked, alone or with the operator."""
        known = self._roster.keys.get(key)
        return key in self._dead_keys or (
            known is not None and ("operator", known.operator.encode()) in self._roster.revoked
        )

    def device_of(self, key: bytes) -> str | None:
        """The name of the device with this key, also of a revoked device."""
        known = self._roster.keys.get(key)
        return known.name if known else None

    def devices(self, name: str, all: bool = True) -> list[Key]:
        """The devices of an operator, the oldest first. `all`: revoked devices too."""
        return [
            one
            for one in self._roster.keys.values()
            if one.operator == name and (all or not self.dead(one.key))
        ]

    def device(self, name: str, word: str) -> Key:
        """The device of the operator `name`; `word` is the device's name or key."""
        mine = {one.key: one for one in self.devices(self._operator(name).name)}
        names = {key: one.name for key, one in mine.items()}
        keys = {key: signing.show(key) for key in mine}
        return mine[devices.find(word, names, keys, name)]

    def all_keys(self) -> list[Key]:
        """Every key that is or was known here, the oldest first."""
        return list(self._roster.keys.values())

    def approves(self, shown: str, session: str, now: float) -> bool:
        """Whether this key may decide questions of that session, or of the machine."""
        return "approve" in self.rights_of(signing.read(shown), session or None, now)

    def name_of(self, key: bytes) -> str:
        """The operator's name for display, also for revoked and unknown keys."""
        known = self._roster.keys.get(key)
        return known.operator if known else "machine" if key == self.machine else signing.show(key)

    def everyone(self) -> dict[str, list[str]]:
        """Every name ever known here, with all keys as text: revoked operators have signed too."""
        found: dict[str, list[str]] = {}
        for key, known in self._roster.keys.items():
            found.setdefault(known.operator, []).append(signing.show(key))
        return found

    def rights_of(self, key: bytes, session: str | None, now: float) -> frozenset[str]:
        """All rights of this key there now, including rights limited by commands or a rate."""
        found: set[str] = set()
        if key in self._roster.keys:
            for held in self._held.get(key, ()):
                found |= {
                    right
                    for right in held.chain.last.rights
                    if self._could(held, right, session, now)
                }
        if found & rights.STEERS and self._steers_until(key, session, now) <= now:
            found -= rights.STEERS
        return frozenset(found)

    def could(self, key: bytes, right: str, session: str | None, now: float) -> bool:
        """Whether `rights_of` has this right: asked for each of a thousand sessions by `ls`."""
        if right in rights.STEERS and self._steers_until(key, session, now) <= now:
            return False
        return key in self._roster.keys and any(
            right in held.chain.last.rights and self._could(held, right, session, now)
            for held in self._held.get(key, ())
        )

    def until(self, key: bytes, right: str, session: str | None, now: float) -> float:
        """The time until which the key has the right; `now` if the key lacks the right."""
        ends = [
            held.chain.last.scope.expires
            for held in self._held.get(key, ())
            if self._could(held, right, session, now)
        ]
        if None in ends:
            return FOREVER
        return float(max((end for end in ends if end is not None), default=now))

    def commands_of(self, name: str, session: str | None, now: float) -> frozenset[str] | None:
        """The programs that this operator's acts may start in a session; None: no limit.

        `session` None: the programs of sessions that the operator makes. The lists of all envelopes
        that are valid now count together, and one without a list lifts the limit. If no envelope is
        valid any more, the lists of the old envelopes still bind programs that were left running.
        """
        kept = self._commands.get((name, session))
        if kept is not None and kept[0] <= now < kept[1]:
            return kept[2]
        wanted = {"new"} if session is None else scope.ORDERS
        mine = [
            held
            for one in self.devices(name)
            for held in self._held.get(one.key, ())
            if held.chain.last.rights & wanted and held.chain.last.scope.session in (None, session)
        ]
        valid = [
            held.chain.last.scope.commands
            for held in mine
            if any(
                # an envelope with a list never allows `input`
                self._could(held, right, session, now)
                for right in held.chain.last.rights & wanted
            )
        ]
        lists = valid or [c for held in mine if (c := held.chain.last.scope.commands) is not None]
        found = (
            None
            if None in lists or not lists
            else frozenset(name for one in lists if one is not None for name in one)
        )
        times = [
            float(time)
            for held in mine
            for time in (held.chain.last.scope.not_before, held.chain.last.scope.expires)
            if time is not None
        ]
        since = max((time for time in times if time <= now), default=-FOREVER)
        until = min((time for time in times if time > now), default=FOREVER)
        if len(self._commands) >= DECISIONS_KEPT:
            self._commands.clear()
        self._commands[name, session] = (since, until, found)
        return found

    @property
    def has_commands(self) -> bool:
        """Whether any envelope is, or was, for certain commands only."""
        if self._any_commands is None:
            self._any_commands = any(
                held.chain.last.scope.commands is not None for held in self.all_held()
            )
        return self._any_commands

    def names(self) -> list[str]:
        """Every operator that is or was known here."""
        return list(self._roster.operators)

    @property
    def needs_first(self) -> bool:
        """Whether the machine never knew an operator: the first one gets admin."""
        return not self._roster.operators and not self._roster.lost

    def grantors(self, right: str, session: str | None, now: float) -> list[str]:
        """The operators that could grant that right there."""
        kept = self._grantors.get((right, session))
        if kept is not None and kept[0] <= now < kept[0] + GRANTORS_KEPT_S:
            return kept[1]
        found = {
            self._roster.keys[key].operator
            for key, mine in self._held.items()
            if key in self._roster.keys
            for held in mine
            if self._could(held, "grant", session, now) and self._could(held, right, session, now)
        }
        if len(self._grantors) >= DECISIONS_KEPT:
            self._grantors.clear()
        self._grantors[right, session] = (now, sorted(found))
        return sorted(found)

    def _steers_until(self, key: bytes, session: str | None, now: float) -> float:
        """Until when this key may steer programs there at all: an agent needs PLAIN (`now`: no)."""
        known = self._roster.keys.get(key)
        who = self._roster.operators[known.operator] if known is not None else None
        if session is None or who is None or who.kind != "agent":
            return FOREVER
        closed = self._closed_to_agents(session, who.name)
        return self.until(key, rights.PLAIN, session, now) if closed else FOREVER

    def _could(self, held: Held, right: str, session: str | None, now: float) -> bool:
        """Whether the envelope allows the right there now, commands and rates aside."""
        commands = held.chain.last.scope.commands
        facts = Facts(self.machine, session, None if commands is None else (commands,))
        return isinstance(
            envelope.judge(held.chain, held.holder, right, facts, now, self._revoked), Allowed
        )

    def _verdicts(
        self, key: bytes, right: str, facts: Facts, now: float
    ) -> list[tuple[Allowed | Denied, Held]]:
        return [
            (envelope.judge(held.chain, key, right, facts, now, self._revoked), held)
            for held in self._held.get(key, ())
        ]

    def _decide(
        self,
        key: bytes,
        right: str,
        session: str | None,
        now: float,
        command: Command | None,
        spend: bool,
    ) -> None:
        operator = self.who(key)
        steers = self._steers_until(key, session, now) if right in rights.STEERS else FOREVER
        if steers <= now:
            closed = self._closed_to_agents(session or "", operator.name)
            raise NotAllowed(
                f"{operator.name} is an agent, and {closed}",
                "work in a contained session (`holdfast new --contained`), or a person allows it: "
                f"`holdfast grant {operator.name} --rights plain --session SESSION`",
                operator=operator.name,
                right=rights.PLAIN,
                session=session,
            )
        verdicts = self._verdicts(key, right, Facts(self.machine, session, command), now)
        wait: float | None = None
        for verdict, held in verdicts:
            if isinstance(verdict, Allowed) and not verdict.rates:
                if held.chain.last.scope.commands is None or right not in scope.STARTS_PROGRAMS:
                    if len(self._yes) >= DECISIONS_KEPT:
                        self._yes.clear()
                    self._yes[key, right, session] = (
                        verdict.since,
                        steers if verdict.until is None else min(verdict.until, steers),
                    )
                return
        for verdict, held in verdicts:
            if isinstance(verdict, Allowed):
                grants = {link.id: devices.grant(link) for link in held.chain.links}
                buckets = [
                    self._bucket(grants[link], count, seconds, now)
                    for link, count, seconds in verdict.rates
                ]
                left = rate.take(buckets, now) if spend else 0.0
                if left <= 0.0:
                    return
                wait = left if wait is None else min(wait, left)
        where = f" in session {session}" if session else ""
        facts: dict[str, object] = {
            "operator": operator.name,
            "right": right,
            **({"session": session} if session else {}),
        }
        if wait is not None:
            raise NotAllowed(
                f"{operator.name} used the right `{right}`{where} as often as it may for now",
                f"again in {wait:.1f} s",
                **facts,
                retry_in_s=round(wait, 3),
            )
        near, which = min(
            ((verdict, held) for verdict, held in verdicts if isinstance(verdict, Denied)),
            key=lambda one: (_NEAREST.index(one[0].code), -(one[1].chain.last.scope.expires or 0)),
            default=(None, None),
        )
        why = near.reason if near else "no envelope was given"
        if near and which and near.code == "expired":
            why += f" (it was from {self.name_of(which.actor)}: {which.id.hex()[:ID_SHOWN]})"
        names = self.grantors(right, session, now)
        grant = f"holdfast grant {operator.name} --rights {right}" + (
            f" --session {session}" if session and right not in rights.MACHINE_WIDE else ""
        )
        raise NotAllowed(
            f"{operator.name} lacks the right `{right}`{where}: {why}",
            f"{' or '.join(names[:GRANTORS_NAMED])} can grant it: `{grant}`"
            if names
            else f"nobody here can grant it; {self.way_back}",
            **facts,
            grantors=names[:GRANTORS_NAMED],
        )

    def _bucket(self, grant: bytes, count: int, seconds: int, now: float) -> rate.Bucket:
        found = self._buckets.get((grant, count, seconds))
        if found is None:
            found = self._buckets[grant, count, seconds] = rate.Bucket(count, seconds, now)
        return found

    # ------------------------------------------------------------ listing

    def all_held(self) -> list[Held]:
        return [held for mine in self._held.values() for held in mine]

    def envelopes(self, key: bytes) -> list[Held]:
        """The envelopes that this key holds, for handing on."""
        return list(self._held.get(key, ()))

    def state_of(self, held: Held, now: float) -> str:
        verdict = envelope.judge(
            held.chain, held.holder, "", Facts(self.machine), now, self._revoked
        )
        if isinstance(verdict, Denied) and verdict.code == "revoked":
            return "revoked"
        within = held.chain.last.scope
        if within.expires is not None and now >= within.expires:
            return "expired"
        if now < (within.not_before or 0):
            return "early"
        return "valid"

    def describe(self, name: str, now: float) -> contract.Operator:
        """An operator with keys and envelopes, as `operator show` prints an operator."""
        operator = self._operator(name)
        keys = [one for one in self._roster.keys.values() if one.operator == name]
        return contract.Operator(
            name=name,
            kind=operator.kind,
            added=operator.added,
            added_by=self.name_of(operator.actor),
            **self.revocation("operator", name.encode()),
            keys=tuple(
                contract.OperatorKey(
                    key=signing.show(one.key),
                    device=one.name,
                    added=one.added,
                    added_by=self.name_of(one.actor),
                    **self.revocation("key", one.key),
                )
                for one in keys
            ),
            envelopes=tuple(
                contract.EnvelopeHeld(
                    id=held.id.hex(),
                    holder=signing.show(held.holder),
                    rights=tuple(sorted(held.chain.last.rights)),
                    scope=held.chain.last.scope.show(),
                    given=held.given,
                    given_by=self.name_of(held.actor),
                    through=tuple(self.name_of(key) for key in held.chain.keys[:-1]),
                    state=self.state_of(held, now),
                )
                for one in keys
                for held in self._held.get(one.key, ())
            ),
        )

    def operators(self, now: float) -> list[contract.Operator]:
        return [self.describe(name, now) for name in self._roster.operators]

    def revocation(self, kind: str, subject: bytes) -> WhenRevoked:
        found = self._roster.revoked.get((kind, subject))
        return {
            "revoked": found.at if found else None,
            "revoked_by": self.name_of(found.actor) if found else None,
        }

    def _operator(self, name: str) -> Operator:
        found = self._roster.operators.get(name)
        if found is None:
            raise NotFound(
                f"no operator {name[:80]!a} is known here",
                "`holdfast operator ls` lists them",
                what="operator",
                word=name[:80],
            )
        return found

    def kind_of(self, name: str) -> str | None:
        """Human, agent or service; None for an unknown name."""
        found = self._roster.operators.get(name)
        return None if found is None else found.kind

    def may_act(self, name: str, session: str, now: float) -> bool:
        """Whether an operator may still start programs in that session."""
        return any(
            one.operator == name and self.rights_of(one.key, session, now) & {"run", "input"}
            for one in self._roster.keys.values()
        )

    def only_people(self, session: str, now: float) -> bool:
        """Whether only people may act in that session."""
        return not any(
            (self.kind_of(one.operator) or "agent") != "human"
            and self.rights_of(one.key, session, now) & {"run", "input"}
            for one in self._roster.keys.values()
        )

    def living(self, name: str) -> Operator:
        """The operator of that name, if known and not revoked."""
        found = self._operator(name)
        if ("operator", name.encode()) in self._roster.revoked:
            raise Refused(f"{name} was revoked", "add a new operator")
        return found

    # ------------------------------------------------------------ changing the picture

    def _take(
        self,
        operator: Operator | None,
        key: Key | None,
        held: Iterable[Held],
        drop: Collection[Held],
    ) -> None:
        """Takes over a new or changed operator and key, new envelopes, and dropped envelopes."""
        if operator is not None:
            self._roster.operators[operator.name] = operator
        if key is not None:
            self._roster.keys[key.key] = key
        for new in held:
            mine = self._held.get(new.holder, ())
            kept = [one for one in mine if one.id != new.id and one not in drop]
            self._held[new.holder] = [*kept, new]
        self._changed()

    def _bury(self, subjects: Iterable[Subject], revocation: Revocation) -> None:
        for kind, subject in subjects:
            self._roster.revoked[kind, subject] = revocation
            if kind == "link":
                self._links.add(subject)
            elif kind == "key":
                self._dead_keys.add(subject)
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._yes.clear()
        self._grantors.clear()
        self._commands.clear()
        self._any_commands = None
        tell(self.on_change)
