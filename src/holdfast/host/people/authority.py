"""Operators and their rights on this machine: all changes, made durable.

The checks at each act are in `rights.py`: a picture in memory, loaded from the store at the start.
A change takes effect after it is durable. A revocation takes effect at once and is written then. If
the write fails, the caller gets an error, the revocation stays in effect, and the write is tried
again. A full disk must not keep a stolen key alive, and the answer "revoked" must not hide that a
restart would forget the revocation.

The machine has no owner, so the departure of an operator must not close the machine:

- An operator with `manage` and `grant` gives rights through the host (`issue`), signed by the
  machine's key. Such a grant does not go through the giver's key, so it outlives the giver. It is
  never wider than the giver's rights, and the giver is listed.
- An envelope that an operator hands on with its own key (`envelope.delegate`, then `give` or
  `admit`) goes through that key, and ends with that key.
- The last operator that could let others in is revoked only with `force`. `recover` is the way
  back: a statement signed with the machine's key file.
- A first link counts only if this roster remembers the link. So a lost database loses authority,
  never revocations. A client that comes first after such a loss is not the new first identity: only
  `recover` makes one.

Each change is also an event of the machine, written in the same transaction. A new kind of change
takes `by` and checks the needed rights here; it does not rely on the caller.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from holdfast.core.people import devices, envelope, recovery, scope
from holdfast.core.people.envelope import NONCE_BYTES, Allowed, Denied, Facts, Revoked, Scope
from holdfast.home import recovery_switch
from holdfast.home.keys import Identity
from holdfast.host.people import operator_rows
from holdfast.host.people.operator_rows import Held, Key, Operator, Revocation, Subject
from holdfast.host.people.rights import MANAGES, Rights
from holdfast.host.runtime.notify import tell
from holdfast.host.runtime.tasks import SerialTasks, serially
from holdfast.host.storage import store
from holdfast.host.storage.store import Job, Store
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, NotAllowed, NotFound, Refused, Unavailable, Usage
from holdfast.model.ids import OPERATOR_KINDS, check_name
from holdfast.model.limits import ENVELOPES_MAX, OPERATOR_KEYS_MAX, OPERATORS_MAX
from holdfast.model.reserved_names import check_lookalike, check_new_operator
from holdfast.model.rights import ADMIN, PLAIN


class Authority(Rights):
    def __init__(
        self,
        store: Store,
        machine: Identity,
        noted: Callable[[str], None] = lambda event: None,
        closed_to_agents: Callable[[str, str], str] = lambda session, operator: "",
    ) -> None:
        """Reads the store in this thread, so it must be made before the store's own thread starts.

        `noted` is called for each event that was written with a change.
        """
        super().__init__(
            operator_rows.load(store, machine.public), machine.public, closed_to_agents
        )
        self._private, self._store = machine.secret(), store
        self._serially, self.noted = SerialTasks(), noted
        self.on_recovered: list[Callable[[], None]] = []  # called after every recovery
        self.recovery_off = False  # whether the machine's key makes no administrator any more
        self._owed: dict[Subject, Revocation] = {}  # bites, and is not durable yet

    # ------------------------------------------------------------ letting in

    @serially
    async def first_identity(
        self, name: str, kind: str, key: bytes, now: float, device: str = ""
    ) -> Operator:
        """Gives admin to the first operator of a new machine."""
        if not self.needs_first:
            raise Refused(
                "the list of operators was lost with the database"
                if self._roster.lost
                else "there are operators here already",
                self.way_back if self._roster.lost else "ask one of them: `holdfast operator ls`",
            )
        operator, added = self._new(name, kind, key, self.machine, now, device)
        return await self._enter("operator.first", operator, added, now, os.urandom(NONCE_BYTES))

    @serially
    async def recover(
        self, statement: bytes, signature: bytes, now: float, device: str = ""
    ) -> Operator:
        """Gives admin to a key that the machine's key vouches for (core/people/recovery.py).

        Every other key of a known operator is told once (`unseen`).
        """
        if self.recovery_off:
            raise recovery_switch.refusal()
        try:
            wish = recovery.read(self.machine, statement, signature, now)
        except envelope.Malformed as e:
            raise NotAllowed(f"not recovered: {e}", self.way_back) from e
        if self._known_nonce(wish.nonce):
            raise NotAllowed("not recovered: this recovery was used already", self.way_back)
        others = [key for key in self._roster.keys if key != wish.key and not self.dead(key)]
        untold = operator_rows.untold(others, wish.name, int(now))
        if wish.name not in self._roster.operators:
            operator, added = self._new(wish.name, wish.kind, wish.key, self.machine, now, device)
            await self._enter("operator.recovered", operator, added, now, wish.nonce, untold)
            self._announce(others, wish.name, int(now))
            return operator
        operator, known = self.living(wish.name), self._roster.keys.get(wish.key)
        if known is None:
            self._new_key(wish.key)
            called = self._free_name(wish.name, device)
            known = Key(wish.key, wish.name, int(now), self.machine, called)
        elif self.who(wish.key).name != wish.name:
            raise Refused(
                f"this key belongs to {known.operator}", "recover with that name, or with a new key"
            )
        held = self._sign(wish.key, ADMIN, Scope(), wish.nonce, now, self.machine)
        facts = {"operator": wish.name, "key": signing.show(wish.key)}
        await self._change("operator.recovered", now, facts, operator, known, [held], also=untold)
        self._announce(others, wish.name, int(now))
        return operator

    def _announce(self, keys: Sequence[bytes], name: str, at: int) -> None:
        for key in keys:
            self._roster.unseen.setdefault(key, {})[name] = at
        tell(self.on_recovered)

    def told(self, key: bytes) -> None:
        """A client with this key shows its operator the recoveries."""
        if names := self._roster.unseen.pop(key, {}):
            self._store.post(operator_rows.told(key, names))

    @serially
    async def switch_recovery_off(self, by: bytes, now: float, write: Callable[[], None]) -> None:
        """Refuses every later `recover`. `write` keeps that outside of the database, for good."""
        self.check_admin(by, now)
        write()
        self.recovery_is_off()
        await self._write([], now, "recovery.off", {"by": self.name_of(by)})

    def recovery_is_off(self) -> None:
        self.recovery_off, self.way_back = True, recovery_switch.OFF

    def unseen(self, key: bytes) -> dict[str, int]:
        """The recoveries that this key was not told of: the operator, and when."""
        return dict(self._roster.unseen.get(key, {}))

    def check_admin(self, by: bytes, now: float) -> None:
        """Returns if this key has all rights of `admin` on the machine."""
        for right in sorted(ADMIN):
            self.require(by, right, None, now, spend=False)

    @serially
    async def add_operator(
        self, name: str, kind: str, key: bytes, by: bytes, now: float, device: str = ""
    ) -> Operator:
        """Known from now on, with no rights. Needs `manage` or `grant`."""
        self._may_one(by, MANAGES, now)
        operator, added = self._new(name, kind, key, by, now, device)
        return await self._enter("operator.added", operator, added, now)

    def ended(self, name: str, session: str, now: float) -> str:
        """Why an operator may not act in a session any more; "" if it may, or is no operator.

        Programs that it left running still belong to it.
        """
        if name not in self._roster.operators:
            return ""
        if ("operator", name.encode()) in self._roster.revoked:
            return f"{name} was revoked"
        acting = scope.ORDERS | {"new"}
        if any(self.rights_of(one.key, session, now) & acting for one in self.devices(name, False)):
            return ""
        return f"{name} may not act in this session any more"

    def may_add(self, name: str, kind: str, key: bytes, by: bytes, now: float) -> None:
        """Returns if `add_operator` would add this operator now; counts nothing against a rate."""
        self._may_one(by, MANAGES, now, spend=False)
        self._new(name, kind, key, by, now)

    # ------------------------------------------------------------ devices

    @serially
    async def add_key(
        self,
        name: str,
        key: bytes,
        by: bytes,
        now: float,
        device: str = "",
        suggested: str = "",
        also: Job | None = None,
        invitation: str | None = None,
    ) -> Key:
        """Adds a device of an operator, with the operator's rights (core/people/devices.py).

        The operator adds it, or an operator with `manage` that could give all those rights.
        `device` is a required name, `suggested` a preferred one. `also` is written in the same
        transaction.
        """
        rights = self.may_add_device(name, by, now)
        self._fits(name, key)
        called = self.unused(name, device) if device else self._free_name(name, suggested)
        added = Key(key, name, int(now), by, called)
        given = [
            self._sign(key, link.rights, within, link.nonce, now, actor)
            for link, within, actor in rights
        ]
        facts = {
            "operator": name,
            "key": signing.show(key),
            "device": called,
            "by": self.name_of(by),
            "links": [held.id.hex() for held in given],
            **({"invitation": invitation} if invitation is not None else {}),
        }
        await self._change("operator.key_added", now, facts, None, added, given, also=also)
        await self._still(
            lambda: self.may_add_device(name, by, now), [("key", key)], now, tell=also is None
        )
        if late := [
            ("link", held.id)
            for held, (link, *_) in zip(given, rights, strict=True)
            if link.id in self._links
        ]:
            what = f"what the device {called} of {name} was given meanwhile"
            await self._revoke(what, late, self.machine, now, force=True)
        return added

    def may_add_device(
        self, name: str, by: bytes, now: float
    ) -> list[tuple[envelope.Terms, Scope, bytes]]:
        """The grants that a new device of this operator would get, if this key may add a device.

        Each grant has its reach and giver. NotAllowed or Refused if the key may not. Added from a
        device of the operator, the new device gets the rights of that device: a recovered device
        may have more than the lost ones.
        """
        adder = self.who(by)
        living = {one.key for one in self.devices(self.living(name).name, all=False)}
        if adder.name != name:
            self.require(by, "manage", None, now)
        held = [
            one
            for one in self.all_held()
            if one.holder in ({by} & living or living)
            and self.state_of(one, now) in ("valid", "early")
        ]
        grants = devices.carried(((one.chain, one) for one in held), self.machine)
        if len(grants) > ENVELOPES_MAX:
            raise Refused(
                f"{name} holds more than {ENVELOPES_MAX} envelopes",
                "revoke those that are not needed",
            )
        return [
            (
                link,
                link.scope
                if adder.name == name
                else self.handable(link.rights, link.scope, by, now, spend=False),
                one.actor,
            )
            for link, one in grants.values()
        ]

    def _fits(self, name: str, key: bytes) -> None:
        """Raises Refused if this key cannot be another device of that operator."""
        known = self._roster.keys.get(key)
        if known is not None and known.operator == name and not self.dead(key):
            raise Refused(
                f"this key is the device {known.name} of {name} already",
                "a new device has a key of its own: `holdfast join` on that machine makes one",
            )
        if known is not None and self.dead(key):
            raise Refused(
                f"this key was revoked: it was the device {known.name} of {known.operator}",
                "a key that was revoked does not come back: "
                "`holdfast join CODE --new-key` makes another",
            )
        self._new_key(key)
        if len(self.devices(name)) >= OPERATOR_KEYS_MAX:
            raise Refused(
                f"{name} has had {OPERATOR_KEYS_MAX} devices, and there is no room for more",
                "add another operator",
            )

    def fits(self, name: str, key: bytes, by: bytes, now: float) -> Operator:
        """The operator of the new device; Refused or NotAllowed if the key cannot be added."""
        self.may_add_device(name, by, now)
        self._fits(name, key)
        return self.living(name)

    @serially
    async def rename_device(self, name: str, word: str, new: str, by: bytes, now: float) -> Key:
        """Renames a device, for its operator or an operator with `manage`."""
        if self.who(by).name != name:
            self.require(by, "manage", None, now)
        found = self.renamable(name, word, new)
        if found.name == new:
            return found
        renamed = found._replace(name=new)
        facts = {
            "operator": name,
            "key": signing.show(found.key),
            "device": new,
            "was": found.name,
            "by": self.name_of(by),
        }
        await self._change("device.renamed", now, facts, key=renamed)
        return renamed

    def renamable(self, name: str, word: str, new: str) -> Key:
        """The device to rename, if the new name is valid."""
        found = self.device(name, word)
        if self.dead(found.key):
            raise Refused(
                f"the device {found.name} of {name} was revoked",
                "what was revoked keeps its name: the record is read with it",
            )
        if check_name(new) != found.name:
            self.unused(name, new)
        return found

    def unused(self, name: str, device: str) -> str:
        """The name, if no device of this operator has or had that name."""
        return devices.unused(check_name(device), name, self._names(name))

    def _names(self, name: str) -> set[str]:
        return {one.name for one in self.devices(name)}

    def _free_name(self, name: str, suggested: str) -> str:
        return devices.free(devices.plain(suggested), self._names(name))

    # ------------------------------------------------------------ newcomers

    @serially
    async def admit(self, name: str, kind: str, text: str, by: bytes, now: float) -> Operator:
        """Adds the holder of an envelope as a new operator.

        An operator that may hand on rights may also admit the receiver of these rights. The request
        comes from the holder or the issuer of the envelope.
        """
        held = self._presented(text, now)
        if by not in (held.holder, held.actor):
            raise NotAllowed(
                "not accepted: the envelope is for another key",
                "its holder or whoever issued it can bring it",
            )
        operator, key = self._new(name, kind, held.holder, held.actor, now)
        facts = {
            "operator": name,
            "kind": kind,
            "key": signing.show(key.key),
            "by": self.name_of(held.actor),
            "link": held.id.hex(),
        }
        await self._change("operator.admitted", now, facts, operator, key, [held])
        return operator

    def newcomer(
        self, name: str, kind: str, key: bytes, by: bytes, now: float, device: str = ""
    ) -> tuple[Operator, Key]:
        """The operator that a joiner would be: a new one, or the one with this name and key.

        Refused if the joiner can be neither.
        """
        known = self._roster.keys.get(key)
        if known is None:
            if name in self._roster.operators:
                raise Refused(
                    f"{name} is known here with another key",
                    "join under another name: `holdfast join --as OTHER`; "
                    f"a code that makes this another device of {name} "
                    f"comes from {name}: `holdfast device add`",
                )
            return self._new(name, kind, key, by, now, device)
        if (operator := self.who(key)).name != name:
            raise Refused(
                f"this key is {operator.name}'s, not {name}'s", f"use --as {operator.name}"
            )
        return operator, known

    @serially
    async def join(
        self,
        name: str,
        kind: str,
        key: bytes,
        rights: Iterable[str],
        wanted: Scope,
        by: bytes,
        now: float,
        also: Job,
        device: str = "",
        invitation: str | None = None,
    ) -> Held:
        """Makes an invited key known, with the rights of the invitation.

        `also` is written in the same transaction.
        """
        handable = partial(self.handable, rights, wanted, by, now, spend=False)
        within = handable()
        operator, added = self.newcomer(name, kind, key, by, now, device)
        held = self._sign(key, rights, within, os.urandom(NONCE_BYTES), now, by)
        facts = {
            "operator": name,
            "kind": operator.kind,
            "key": signing.show(key),
            "device": added.name,
            "by": self.name_of(by),
            "link": held.id.hex(),
            "rights": sorted(held.chain.last.rights),
            "scope": within.show(),
            **({"invitation": invitation} if invitation is not None else {}),
        }
        gone = self._room(held, now)
        await self._change("operator.joined", now, facts, operator, added, [held], gone, also)
        await self._still(handable, [("link", held.id)], now, tell=False)
        return held

    # ------------------------------------------------------------ the last who can let others in

    def _orphans(self, subjects: Iterable[Subject], now: float) -> bool:
        """Whether these revocations would leave no operator that can let others in.

        Operators that can for good count before operators that can for a time.
        """
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

    # ------------------------------------------------------------ giving

    @serially
    async def issue(
        self, holder: bytes, rights: Iterable[str], wanted: Scope, by: bytes, now: float
    ) -> Held:
        """As `issue_to`, for a single device."""
        self.who(holder)
        return await self._issue([holder], rights, wanted, by, now)

    @serially
    async def issue_to(
        self, name: str, rights: Iterable[str], wanted: Scope, by: bytes, now: float
    ) -> Held:
        """Gives rights from the machine, for an operator that has them with `manage` and `grant`.

        Such rights outlive the giver. One grant for all present devices, or for none.
        """
        self.living(name)
        if not (mine := self.devices(name, all=False)):
            raise NotFound(f"{name} has no device that counts", f"`holdfast device ls {name}`")
        return await self._issue([one.key for one in mine], rights, wanted, by, now)

    async def _issue(
        self, keys: Sequence[bytes], rights: Iterable[str], wanted: Scope, by: bytes, now: float
    ) -> Held:
        within, nonce = self.handable(rights, wanted, by, now), os.urandom(NONCE_BYTES)
        given = [self._sign(key, rights, within, nonce, now, by) for key in keys]
        await self._give(given, now, links=[held.id.hex() for held in given])
        handable = partial(self.handable, rights, wanted, by, now, spend=False)
        await self._still(handable, [("link", held.id) for held in given], now)
        return given[0]

    def handable(
        self, rights: Iterable[str], wanted: Scope, by: bytes, now: float, spend: bool = True
    ) -> Scope:
        """The reach of these rights if this key gives them through the machine.

        NotAllowed without `manage` and `grant`, or for more than the key has.
        """
        for right in MANAGES:
            self.require(by, right, None, now, spend=spend)
        asked, why = frozenset(rights), "you lack it"
        if PLAIN in asked:
            self._check_person(by)
            asked -= {PLAIN}
        for verdict, mine in self._verdicts(by, "grant", Facts(self.machine), now):
            if isinstance(verdict, Denied):
                continue
            within = scope.inherit(mine.chain.last.scope, wanted)
            more = asked - mine.chain.last.rights
            wider = scope.widening(mine.chain.last.scope, within)
            if not more and not wider:
                return within
            why = f"you lack `{min(more)}`" if more else f"it {wider}"
        raise NotAllowed(
            f"not granted: {why}", "grant only what you have; for more, ask who gave it to you"
        )

    @serially
    async def give(self, text: str, now: float) -> Held:
        """Takes an envelope that its issuer signed, for a key that is known here.

        The envelope proves itself, so any caller may bring it.
        """
        held = self._presented(text, now)
        self.who(held.holder)
        await self._give([held], now)
        return held

    def may_give(self, text: str, now: float) -> None:
        """Returns if `give` would take this envelope now."""
        self.who(self._presented(text, now).holder)

    def _presented(self, text: str, now: float) -> Held:
        try:
            chain = envelope.verify(envelope.decode(text), [self.machine])
        except envelope.Malformed as e:
            raise NotAllowed(f"not accepted: {e}", "ask whoever gave it for a new one") from e
        if chain.links[0].id not in {held.chain.links[0].id for held in self.all_held()}:
            raise NotAllowed(
                "not accepted: this machine does not remember where the envelope begins",
                "ask an operator for a new one",
            )
        if PLAIN in chain.last.rights:
            for one in chain.links[1:]:
                self._check_person(one.issuer)
        held = Held(chain, text, int(now), chain.last.issuer)
        if (state := self.state_of(held, now)) in ("revoked", "expired"):
            raise NotAllowed(
                "not accepted: the envelope has "
                f"{'ended' if state == 'expired' else 'been revoked'}",
                "ask an operator for a new one",
            )
        return held

    def _check_person(self, key: bytes) -> None:
        """Only a person allows an agent to steer plain sessions."""
        if self.who(key).kind != "human":
            raise NotAllowed(
                f"not granted: only a person gives the right `{PLAIN}`", "ask a person to grant it"
            )

    def _sign(
        self,
        holder: bytes,
        rights: Iterable[str],
        within: Scope,
        nonce: bytes,
        now: float,
        actor: bytes,
    ) -> Held:
        chain = envelope.delegate(self._private, (), holder, rights, within, nonce)
        return Held(envelope.verify(chain, [self.machine]), envelope.encode(chain), int(now), actor)

    async def _give(self, given: Sequence[Held], now: float, **more: object) -> None:
        """Takes the envelopes of one grant."""
        gone = [old for held in given for old in self._room(held, now)]
        one, last = given[0], given[0].chain.last
        facts = {
            "operator": self.name_of(one.holder),
            "by": self.name_of(one.actor),
            "link": one.id.hex(),
            **more,
            "rights": sorted(last.rights),
            "scope": last.scope.show(),
        }
        await self._change("envelope.given", now, facts, held=given, drop=gone)

    def _room(self, held: Held, now: float) -> list[Held]:
        """The expired envelopes that make room for a new envelope of that key."""
        mine = self._held.get(held.holder, [])
        gone = (
            []
            if len(mine) < ENVELOPES_MAX
            else [one for one in mine if self.state_of(one, now) in ("expired", "revoked")]
        )
        if len(mine) - len(gone) >= ENVELOPES_MAX:
            raise Refused(
                f"{self.name_of(held.holder)} holds {ENVELOPES_MAX} envelopes already",
                "revoke those that are not needed",
            )
        return gone

    # ------------------------------------------------------------ revoking

    async def revoke_operator(
        self, name: str, by: bytes, now: float, force: bool = False, with_grants: bool = False
    ) -> None:
        """Revokes all keys of an operator, and all envelopes that were handed on with those keys.

        `with_grants`: also grants that this operator gave to others and the machine's key signed.
        """
        operator = self._operator(name)
        keys = [key for key, one in self._roster.keys.items() if one.operator == name]
        if self.who(by).name != name and self.name_of(operator.actor) != self.who(by).name:
            self.require(by, "manage", None, now)
        subjects: list[Subject] = [("operator", name.encode()), *(("key", key) for key in keys)]
        subjects += self._given_by(keys) if with_grants else []
        await self._revoke(name, subjects, by, now, force)

    async def revoke_key(
        self, key: bytes, by: bytes, now: float, force: bool = False, with_grants: bool = False
    ) -> None:
        """Revokes a device, also an unknown one, and all envelopes handed on with its key.

        `with_grants`: also grants that this device gave and the machine's key signed, and devices
        of the operator that the device added, because a thief may have added them.
        """
        if key == self.machine:
            raise Usage(
                "the machine's own key cannot be revoked",
                "to begin anew: stop the host, remove keys/machine, "
                "then `holdfast operator recover`",
            )
        known = self._roster.keys.get(key)
        if known is None or self.who(by).name not in (known.operator, self.name_of(known.actor)):
            self.require(by, "manage", None, now)
        keys = [key, *(self.added_by(key) if with_grants else ())]
        what = (
            f"the device {known.name} of {known.operator}"
            if known
            else f"the key {signing.show(key)}"
        )
        subjects: list[Subject] = [("key", one) for one in keys]
        subjects += self._given_by(keys) if with_grants else []
        await self._revoke(what, subjects, by, now, force)

    def added_by(self, key: bytes) -> list[bytes]:
        """The valid devices of the same operator that this device added, directly or not."""
        known, found = self._roster.keys.get(key), [key]
        for one in found:
            found += [
                other.key
                for other in self._roster.keys.values()
                if known
                and other.operator == known.operator
                and other.actor == one
                and other.key not in found
            ]
        return [one for one in found[1:] if not self.dead(one)]

    async def revoke_link(self, link: bytes, by: bytes, now: float, force: bool = False) -> None:
        """Revokes a link and every envelope through that link.

        The issuer, an earlier link's key, the holder, or an operator with `manage` may do that.
        """
        me = self.who(by).name
        concerned = {
            self.name_of(key)
            for held in self.all_held()
            for at, one in enumerate(held.chain.links)
            if one.id == link
            for key in (
                *held.chain.keys[: at + 2],
                *((held.actor,) if at == len(held.chain.links) - 1 else ()),
            )
        }
        if me not in concerned:
            self.require(by, "manage", None, now)
        links: list[Subject] = [("link", one) for one in self._of_one_grant(link)]
        await self._revoke(f"the envelope {link.hex()[:16]}", links, by, now, force)

    def _of_one_grant(self, link: bytes) -> list[bytes]:
        """The link, and the links of the same grant for other devices of the holder."""
        links = {one.id: one for held in self.all_held() for one in held.chain.links}
        mine = links.get(link)
        if mine is None:
            return [link]
        return [
            link,
            *(
                one.id
                for one in links.values()
                if one.id != link
                and devices.grant(one) == devices.grant(mine)
                and self.name_of(one.holder) == self.name_of(mine.holder)
            ),
        ]

    def _given_by(self, keys: Sequence[bytes]) -> list[Subject]:
        return [
            ("link", held.id)
            for held in self.all_held()
            if held.actor in keys
            and held.chain.links[0].issuer == self.machine
            and len(held.chain.links) == 1
        ]

    async def _revoke(
        self, what: str, subjects: Iterable[Subject], by: bytes, now: float, force: bool
    ) -> None:
        new = [subject for subject in subjects if subject not in self._roster.revoked]
        if not force and self._orphans(new, now):
            raise Refused(
                f"{what} is the last who can let others in",
                f"grant admin to somebody else first, or use --force; afterwards {self.way_back}",
            )
        revocation = Revocation(int(now), by)
        self._owed.update(dict.fromkeys(new, revocation))
        self._bury(new, revocation)
        if self._owed:
            try:
                await self._settle(now, what, self.name_of(by))
            except Unavailable as e:
                self._serially.spawn(self._settle_later(now, what, self.name_of(by)))
                raise Unavailable(
                    f"{what} is revoked from now on, but that could not be written down: "
                    f"{e.message}",
                    "free disk space or make the directory writable: "
                    "it is tried again until it is written; until then a restart of the host "
                    "forgets it",
                ) from e

    async def _still(
        self, allowed: Callable[[], object], given: list[Subject], now: float, tell: bool = True
    ) -> None:
        """Drops a grant whose giver was revoked while the grant was being written.

        A revocation does not wait for writes. Changes written in the same transaction stay.
        """
        try:
            allowed()
        except HoldfastError:
            await self._revoke("what was given meanwhile", given, self.machine, now, force=True)
            if tell:
                raise

    async def _settle(self, now: float, what: str, by: str) -> None:
        owed = dict(self._owed)
        jobs = [operator_rows.revoke([subject], revocation) for subject, revocation in owed.items()]
        subjects = [[kind, subject.hex()] for kind, subject in owed]
        await self._write(jobs, now, "revoked", {"what": what, "by": by, "subjects": subjects})
        for subject in owed:
            self._owed.pop(subject, None)

    async def _settle_later(self, now: float, what: str, by: str) -> None:
        while self._owed:
            await asyncio.sleep(store.RETRY_S)
            try:
                await self._settle(now, what, by)
            except Unavailable:
                continue

    @property
    def owed(self) -> int:
        """Revocations that bite but are not durable yet."""
        return len(self._owed)

    # ------------------------------------------------------------ changing

    async def _enter(
        self,
        event: str,
        operator: Operator,
        key: Key,
        now: float,
        admin: bytes | None = None,
        also: Job | None = None,
    ) -> Operator:
        """Makes a new operator known; `admin`: the nonce of an envelope with all rights."""
        held = list[Held]()
        if admin is not None:
            held = [self._sign(key.key, ADMIN, Scope(), admin, now, self.machine)]
        facts = {
            "operator": operator.name,
            "kind": operator.kind,
            "key": signing.show(key.key),
            "by": self.name_of(key.actor),
        }
        await self._change(event, now, facts, operator, key, held, also=also)
        return operator

    async def _change(
        self,
        event: str,
        now: float,
        facts: Mapping[str, object],
        operator: Operator | None = None,
        key: Key | None = None,
        held: Sequence[Held] = (),
        drop: Sequence[Held] = (),
        also: Job | None = None,
    ) -> None:
        """Makes a change durable together with its event, then changes the picture."""
        rows = operator_rows.save(operator, key, held, drop)
        await self._write([rows, *([also] if also else [])], now, event, facts)
        self._take(operator, key, held, drop)

    def _new(
        self, name: str, kind: str, key: bytes, by: bytes, now: float, device: str = ""
    ) -> tuple[Operator, Key]:
        check_new_operator(name)
        if kind not in OPERATOR_KINDS:
            raise Usage(
                f"{kind[:40]!a} is no kind of operator", f"kinds: {', '.join(OPERATOR_KINDS)}"
            )
        if name in self._roster.operators:
            raise Refused(
                f"the name {name} is taken"
                + (
                    " by somebody who was revoked"
                    if ("operator", name.encode()) in self._roster.revoked
                    else ""
                ),
                "choose another one: names are never used again, "
                "because the record names people by them",
            )
        check_lookalike(name, self._roster.operators)
        if len(self._roster.operators) >= OPERATORS_MAX:
            raise Refused(
                f"{OPERATORS_MAX} operators are known here, and there is no room for more",
                "use another machine's home",
            )
        self._new_key(key)
        return Operator(name, kind, int(now), by), Key(
            key, name, int(now), by, devices.plain(device)
        )

    def _new_key(self, key: bytes) -> None:
        if len(key) != signing.KEY_BYTES or key == self.machine:
            raise Usage("that is no operator's key", "keys look like ed25519:...")
        if key in self._roster.keys:
            raise Refused(
                f"this key belongs to {self._roster.keys[key].operator} already",
                "every operator has keys of its own",
            )
        if key in self._dead_keys:
            raise Refused("this key was revoked", "make a new one")

    def _may_one(self, by: bytes, rights: Sequence[str], now: float, spend: bool = True) -> None:
        for right in rights[:-1]:
            try:
                return self.require(by, right, None, now, spend=spend)
            except NotAllowed:
                continue
        self.require(by, rights[-1], None, now, spend=spend)

    def _known_nonce(self, nonce: bytes) -> bool:
        return any(held.chain.links[0].nonce == nonce for held in self.all_held())

    async def _write(
        self, jobs: Sequence[Job], now: float, event: str, facts: Mapping[str, object]
    ) -> None:
        await self._store.run(store.together(*jobs, store.event(now, "", event, facts)))
        self.noted(event)
