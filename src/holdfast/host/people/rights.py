"""What each operator may do at this moment: the picture in memory, and the questions asked of it.

`may` is on the path of every key that is typed. A yes that depends on nothing but time is kept per (key, right, session) with the time from which and
until which it holds, so it is right whatever the clock does; any change forgets all of them. What has a rate or depends on the command is judged afresh,
and so is every no.

Knows no disk: `authority.py` changes the picture, after the change is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.core import devices, envelope, rate, scope
from holdfast.core.envelope import Allowed, Command, Denied, Facts, Revoked
from holdfast.host.roster import Held, Key, Operator, Revocation, Roster, Subject
from holdfast.host.telling import tell
from holdfast.model import rights, signing
from holdfast.model.errors import NotAllowed, NotFound, Refused
from holdfast.model.limits import DECISIONS_KEPT, GRANTORS_KEPT_S, GRANTORS_NAMED

FOREVER = float("inf")
ID_SHOWN = 12  # characters of an envelope's id, for people
RECOVER = "whoever controls the machine's account can run `holdfast operator recover`"
MANAGES = ("manage", "grant")  # who has both can let others in
_NEAREST = (
    "command",
    "expired",
    "early",
    "session",
    "machine",
    "revoked",
    "right",
    "holder",
)  # of several reasons, the one that says most


class Standing:
    def __init__(self, roster: Roster, machine: bytes) -> None:
        self.machine, self._roster = machine, roster
        self._held: dict[bytes, list[Held]] = {}
        for held in roster.held:
            self._held.setdefault(held.holder, []).append(held)
        self._links = {subject for kind, subject in roster.revoked if kind == "link"}
        self._dead_keys = {subject for kind, subject in roster.revoked if kind == "key"}
        self._revoked = Revoked(self._links, self._dead_keys)
        self._buckets: dict[tuple[bytes, int, int], rate.Bucket] = {}
        self._yes: dict[tuple[bytes, str, str | None], tuple[float, float]] = {}
        self._grantors: dict[tuple[str, str | None], tuple[float, list[str]]] = {}
        self.on_change: list[
            Callable[[], None]
        ] = []  # called after every change: what was cached or shown is to be asked again
        self.version = 0

    # ------------------------------------------------------------ asking

    def may(
        self,
        key: bytes,
        right: str,
        session: str | None,
        now: float,
        command: Command | None = None,
        spend: bool = True,
    ) -> None:
        """Returns if this key has the right there and then, or raises NotAllowed. `spend` counts it against rates: once for each act."""
        yes = self._yes.get((key, right, session))
        if yes is not None and yes[0] <= now < yes[1]:
            return
        self._decide(key, right, session, now, command, spend)

    def lasts(self, key: bytes, right: str, session: str | None, now: float) -> float:
        """For how long the yes that `may` just gave needs not be asked for again, unless something changes; 0 if each act is asked about."""
        yes = self._yes.get((key, right, session))
        return yes[1] - now if yes is not None else 0.0

    @property
    def several(self) -> bool:
        """Whether more than one operator is or was known here."""
        return len(self._roster.operators) > 1

    def who(self, key: bytes) -> Operator:
        """Whose key this is. NotAllowed for a stranger and for whoever was revoked."""
        known = self._roster.keys.get(key)
        if known is None:
            raise NotAllowed(
                "this key belongs to nobody who is known here",
                RECOVER
                if self._roster.lost
                else "an operator with `manage` adds it: `holdfast operator add`",
                key=signing.show(key),
            )
        if key in self._dead_keys or ("operator", known.operator.encode()) in self._roster.revoked:
            if ("operator", known.operator.encode()) in self._roster.revoked:
                raise NotAllowed(
                    f"{known.operator} was revoked",
                    "ask an operator with `manage`; what was revoked does not come back",
                    operator=known.operator,
                )
            raise NotAllowed(
                f"the device {known.name} of {known.operator} was revoked: this key does not count any more",
                f"on another device of {known.operator}: `holdfast device add`; then here: `holdfast join CODE --as {known.operator} --new-key`",
                operator=known.operator,
                device=known.name,
            )
        return self._roster.operators[known.operator]

    def counts(self, shown: str) -> bool:
        """Whether this key, as it is shown, is somebody's who is known and not revoked."""
        try:
            self.who(signing.read(shown))
        except (NotAllowed, ValueError):
            return False
        return True

    def dead(self, key: bytes) -> bool:
        """Whether it counted once and was revoked, alone or with its operator."""
        known = self._roster.keys.get(key)
        return key in self._dead_keys or (
            known is not None and ("operator", known.operator.encode()) in self._roster.revoked
        )

    def device_of(self, key: bytes) -> str | None:
        """What the device with this key is called, also one that was revoked."""
        known = self._roster.keys.get(key)
        return known.name if known else None

    def devices(self, name: str, all: bool = True) -> list[Key]:
        """Of one operator, the oldest first. `all`: those that were revoked, too."""
        return [
            one
            for one in self._roster.keys.values()
            if one.operator == name and (all or not self.dead(one.key))
        ]

    def device(self, name: str, word: str) -> Key:
        """The one that is called so, or has this key."""
        mine = {one.key: one for one in self.devices(self._operator(name).name)}
        return mine[
            devices.find(
                word,
                {key: one.name for key, one in mine.items()},
                {key: signing.show(key) for key in mine},
                name,
            )
        ]

    def living_keys(self, now: float) -> list[bytes]:
        """Of everybody who is known, may do anything at all, and was not revoked; the newest first."""
        alive = [
            one
            for one in self._roster.keys.values()
            if self.counts(signing.show(one.key))
            and any(self.state_of(held, now) == "valid" for held in self._held.get(one.key, ()))
        ]
        return [one.key for one in sorted(alive, key=lambda one: -one.added)]

    def approves(self, shown: str, session: str, now: float) -> bool:
        """Whether this key may decide what waits there, or on the machine."""
        return "approve" in self.rights_of(signing.read(shown), session or None, now)

    def name_of(self, key: bytes) -> str:
        """For people: also of who was revoked or is unknown."""
        known = self._roster.keys.get(key)
        return known.operator if known else "machine" if key == self.machine else signing.show(key)

    def everyone(self) -> dict[str, list[str]]:
        """Every name that was ever known here, with all its keys as text: those who were revoked have signed, too."""
        found: dict[str, list[str]] = {}
        for key, known in self._roster.keys.items():
            found.setdefault(known.operator, []).append(signing.show(key))
        return found

    def rights_of(self, key: bytes, session: str | None, now: float) -> frozenset[str]:
        """Everything this key may do there now; what is limited to certain commands or a rate included."""
        found: set[str] = set()
        if key in self._roster.keys:
            for held in self._held.get(key, ()):
                found |= {
                    right
                    for right in held.chain.last.rights
                    if self._could(held, right, session, now)
                }
        return frozenset(found)

    def until(self, key: bytes, right: str, session: str | None, now: float) -> float:
        """Until when it may, as things are: a moment at which to ask again, `now` if it may not."""
        ends = [
            held.chain.last.scope.expires
            for held in self._held.get(key, ())
            if self._could(held, right, session, now)
        ]
        return (
            FOREVER
            if None in ends
            else float(max((end for end in ends if end is not None), default=now))
        )

    @property
    def needs_first(self) -> bool:
        """Nobody was ever known here: whoever comes first gets admin."""
        return not self._roster.operators and not self._roster.lost

    def grantors(self, right: str, session: str | None, now: float) -> list[str]:
        """Who could grant that right there."""
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

    def _could(self, held: Held, right: str, session: str | None, now: float) -> bool:
        """Whether the envelope allows it there now, if the command is one it allows and the rate is not used up."""
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
        verdicts = self._verdicts(key, right, Facts(self.machine, session, command), now)
        wait: float | None = None
        for verdict, held in verdicts:
            if isinstance(verdict, Allowed) and not verdict.rates:
                if held.chain.last.scope.commands is None or right not in scope.STARTS_PROGRAMS:
                    if len(self._yes) >= DECISIONS_KEPT:
                        self._yes.clear()
                    self._yes[key, right, session] = (
                        verdict.since,
                        FOREVER if verdict.until is None else verdict.until,
                    )
                return
        for verdict, held in verdicts:
            if isinstance(verdict, Allowed):
                grants = {link.id: devices.grant(link) for link in held.chain.links}
                left = (
                    rate.take(
                        [
                            self._bucket(grants[link], count, seconds, now)
                            for link, count, seconds in verdict.rates
                        ],
                        now,
                    )
                    if spend
                    else 0.0
                )
                if left <= 0.0:
                    return
                wait = left if wait is None else min(wait, left)
        where = f" in session {session}" if session else ""
        facts: dict[str, Any] = {
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
            else f"nobody here can grant it; {RECOVER}",
            **facts,
            grantors=names[:GRANTORS_NAMED],
        )

    def _bucket(self, grant: bytes, count: int, seconds: int, now: float) -> rate.Bucket:
        found = self._buckets.get((grant, count, seconds))
        if found is None:
            found = self._buckets[grant, count, seconds] = rate.Bucket(count, seconds, now)
        return found

    # ------------------------------------------------------------ the last who can let others in

    def _orphans(self, subjects: Iterable[Subject], now: float) -> bool:
        """Whether revoking these takes the last who can let others in. Who can for good counts before who can for a time."""
        after = Revoked(
            self._links | {s for kind, s in subjects if kind == "link"},
            self._dead_keys | {s for kind, s in subjects if kind == "key"},
        )
        for lasting in (True, False):
            if self._managers(self._revoked, now, lasting):
                return not self._managers(after, now, lasting)
        return False

    def _managers(self, revoked: Revoked, now: float, lasting: bool) -> set[str]:
        facts = Facts(self.machine)
        return {
            self._roster.keys[held.holder].operator
            for held in self.all_held()
            if held.holder in self._roster.keys
            and not (lasting and held.chain.last.scope.expires is not None)
            and all(
                isinstance(
                    envelope.judge(held.chain, held.holder, right, facts, now, revoked), Allowed
                )
                for right in MANAGES
            )
        }

    # ------------------------------------------------------------ listing

    def all_held(self) -> list[Held]:
        return [held for mine in self._held.values() for held in mine]

    def envelopes(self, key: bytes) -> list[Held]:
        """What this key holds, for its holder to hand on."""
        return list(self._held.get(key, ()))

    def state_of(self, held: Held, now: float) -> str:
        verdict = envelope.judge(
            held.chain, held.holder, "", Facts(self.machine), now, self._revoked
        )
        if isinstance(verdict, Denied) and verdict.code == "revoked":
            return "revoked"
        within = held.chain.last.scope
        return (
            "expired"
            if within.expires is not None and now >= within.expires
            else "early"
            if now < (within.not_before or 0)
            else "valid"
        )

    def describe(self, name: str, now: float) -> dict[str, Any]:
        """An operator with its keys and envelopes, as `operator show` prints it."""
        operator = self._operator(name)
        keys = [one for one in self._roster.keys.values() if one.operator == name]
        return {
            "name": name,
            "kind": operator.kind,
            "added": operator.added,
            "added_by": self.name_of(operator.actor),
            **self.when("operator", name.encode()),
            "keys": [
                {
                    "key": signing.show(one.key),
                    "device": one.name,
                    "added": one.added,
                    "added_by": self.name_of(one.actor),
                    **self.when("key", one.key),
                }
                for one in keys
            ],
            "envelopes": [
                {
                    "id": held.id.hex(),
                    "holder": signing.show(held.holder),
                    "rights": sorted(held.chain.last.rights),
                    "scope": held.chain.last.scope.show(),
                    "given": held.given,
                    "given_by": self.name_of(held.actor),
                    "through": [self.name_of(key) for key in held.chain.keys[:-1]],
                    "state": self.state_of(held, now),
                }
                for one in keys
                for held in self._held.get(one.key, ())
            ],
        }

    def operators(self, now: float) -> list[dict[str, Any]]:
        return [self.describe(name, now) for name in self._roster.operators]

    def when(self, kind: str, subject: bytes) -> dict[str, Any]:
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
        """Human, agent or service; None: nobody of that name is known."""
        found = self._roster.operators.get(name)
        return None if found is None else found.kind

    def only_people(self, session: str, now: float) -> bool:
        """Whether nobody but people may act in that session."""
        return not any(
            (self.kind_of(one.operator) or "agent") != "human"
            and self.rights_of(one.key, session, now) & {"run", "input"}
            for one in self._roster.keys.values()
        )

    def living(self, name: str) -> Operator:
        """The operator of that name, if it is one who is known and was not revoked."""
        found = self._operator(name)
        if ("operator", name.encode()) in self._roster.revoked:
            raise Refused(f"{name} was revoked", "add a new operator")
        return found

    # ------------------------------------------------------------ changing the picture

    def _know(self, operator: Operator, key: Key) -> None:
        self._roster.operators[operator.name] = operator
        self._roster.keys[key.key] = key
        self._changed()

    def _hold(self, held: Held) -> None:
        mine = [one for one in self._held.get(held.holder, ()) if one.id != held.id]
        self._held[held.holder] = [*mine, held]
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
        tell(self.on_change)
