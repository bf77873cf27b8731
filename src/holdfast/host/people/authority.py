"""Who is known on this machine and what each may do: how that changes, durably.

What follows from it at each act is in `standing.py`: one picture in memory, loaded from the store at the start. A change takes effect after it is durable;
a revocation the other way round: it bites at once and is then written, and when it cannot be written the caller is told so loudly while it goes on biting
and is tried again. A full disk must not keep a stolen key alive, nor may the answer "revoked" hide that a restart would forget it.

Nobody owns the machine, so nobody's departure may close it:
- What an operator with `manage` and `grant` gives through the host (`issue`) is signed by the machine's key. It does not go through the giver's key and so
  outlives the giver. It is still narrower than what the giver has, and is listed as theirs.
- What somebody hands on with their own key (`envelope.delegate`, then `give` or `admit`) goes through that key, and ends with it.
- The last operator who could let others in is revoked only with `force`, and `recover` is the way back: a statement signed with the machine's key file.
- A first link counts only if this roster remembers it. So a lost database loses authority, never revocations; and it does not make whoever comes
  first the new first identity: `recover` does.

Each change is also an event of the machine, written with it. When you add one: take `by`, ask what it needs here, and never rely on the caller for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apsw

from holdfast.core import devices, envelope, recovery, scope
from holdfast.core.envelope import Denied, Facts, Scope
from holdfast.home.keys import Identity
from holdfast.host import roster, store
from holdfast.host.roster import Held, Job, Key, Operator, Revocation, Subject
from holdfast.host.serially import Serially
from holdfast.host.standing import MANAGES, RECOVER, Standing
from holdfast.host.store import Store
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, NotAllowed, NotFound, Refused, Unavailable, Usage
from holdfast.model.ids import OPERATOR_KINDS, check_name
from holdfast.model.limits import ENVELOPES_MAX, OPERATOR_KEYS_MAX, OPERATORS_MAX
from holdfast.model.rights import ADMIN


class Authority(Standing):
    def __init__(
        self, store: Store, machine: Identity, noted: Callable[[str], None] = lambda event: None
    ) -> None:
        """Before the store's thread starts. `noted` is told of each event that was written, together with what it is about."""
        super().__init__(roster.load(store, machine.public), machine.public)
        self._private, self._store = machine.secret(), store
        self._serially, self.noted = Serially(), noted
        self._owed: dict[Subject, Revocation] = {}  # bites, and is not durable yet

    # ------------------------------------------------------------ letting in

    async def first_identity(
        self, name: str, kind: str, key: bytes, now: float, device: str = ""
    ) -> Operator:
        """On a machine where nobody was ever known: this one gets admin, from the machine itself."""

        async def work() -> Operator:
            if not self.needs_first:
                raise Refused(
                    "the list of operators was lost with the database"
                    if self._roster.lost
                    else "there are operators here already",
                    RECOVER if self._roster.lost else "ask one of them: `holdfast operator ls`",
                )
            return await self._enter(
                "operator.first",
                name,
                kind,
                key,
                self.machine,
                now,
                device,
                os.urandom(envelope.NONCE_BYTES),
            )

        return await self._serially.do(work())

    async def recover(
        self, statement: bytes, signature: bytes, now: float, device: str = ""
    ) -> Operator:
        """Admin for whoever can sign with the machine's key (`core/recovery.py`)."""

        async def work() -> Operator:
            try:
                wish = recovery.read(self.machine, statement, signature, now)
            except envelope.Malformed as e:
                raise NotAllowed(f"not recovered: {e}", RECOVER) from e
            if self._known_nonce(wish.nonce):
                raise NotAllowed("not recovered: this recovery was used already", RECOVER)
            if wish.name not in self._roster.operators:
                return await self._enter(
                    "operator.recovered",
                    wish.name,
                    wish.kind,
                    wish.key,
                    self.machine,
                    now,
                    device,
                    wish.nonce,
                )
            operator, known = self.living(wish.name), self._roster.keys.get(wish.key)
            if known is None:
                self._new_key(wish.key)
                known = Key(
                    wish.key, wish.name, int(now), self.machine, self._free_name(wish.name, device)
                )
            elif self.who(wish.key).name != wish.name:
                raise Refused(
                    f"this key belongs to {known.operator}",
                    "recover with that name, or with a new key",
                )
            held = self._sign(wish.key, ADMIN, Scope(), wish.nonce, now, self.machine)
            await self._write(
                roster.save(key=known, held=held),
                now,
                "operator.recovered",
                operator=wish.name,
                key=signing.show(wish.key),
            )
            self._know(operator, known)
            self._hold(held)
            return operator

        return await self._serially.do(work())

    async def add_operator(
        self, name: str, kind: str, key: bytes, by: bytes, now: float, device: str = ""
    ) -> Operator:
        """Known from now on, with no rights. Needs `manage` or `grant`."""

        async def work() -> Operator:
            self._may_one(by, MANAGES, now)
            return await self._enter("operator.added", name, kind, key, by, now, device)

        return await self._serially.do(work())

    # ------------------------------------------------------------ devices

    async def add_key(
        self,
        name: str,
        key: bytes,
        by: bytes,
        now: float,
        device: str = "",
        suggested: str = "",
        also: Job | None = None,
        **facts: Any,
    ) -> Key:
        """Another device of an operator, which may do what its operator may (core/devices.py): added by themselves, or by somebody with `manage` who could give all of
        that. `device` is its name if it must be this one, `suggested` if it need not be. `also` is written with it, or nothing is."""

        async def work() -> Key:
            rights = self.may_add_device(name, by, now)
            self._fits(name, key)
            called = self.unused(name, device) if device else self._free_name(name, suggested)
            added = Key(key, name, int(now), by, called)
            given = [
                self._sign(key, link.rights, within, link.nonce, now, actor)
                for link, within, actor in rights
            ]
            await self._write(
                _all(
                    [
                        roster.save(key=added),
                        *(roster.save(held=held) for held in given),
                        *([also] if also else []),
                    ]
                ),
                now,
                "operator.key_added",
                operator=name,
                key=signing.show(key),
                device=called,
                by=self.name_of(by),
                links=[held.id.hex() for held in given],
                **facts,
            )
            self._roster.keys[key] = added
            for held in given:
                self._hold(held)
            self._changed()
            await self._still(
                lambda: self.may_add_device(name, by, now), [("key", key)], now, tell=also is None
            )
            if late := [
                ("link", held.id)
                for held, (link, *_) in zip(given, rights, strict=True)
                if link.id in self._links
            ]:
                await self._revoke(
                    f"what the device {called} of {name} was given meanwhile",
                    late,
                    self.machine,
                    now,
                    force=True,
                )
            return added

        return await self._serially.do(work())

    def may_add_device(
        self, name: str, by: bytes, now: float
    ) -> list[tuple[envelope.Terms, Scope, bytes]]:
        """What another device of this operator would get, if this key may add it: each grant with its reach and who gave it; NotAllowed or Refused if it may not.
        From a device of its own it gets what that one has: one that was recovered may have more than those that were lost."""
        adder, living = (
            self.who(by),
            {one.key for one in self.devices(self.living(name).name, all=False)},
        )
        if adder.name != name:
            self.may(by, "manage", None, now)
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
        """Refused if this key cannot be another device of that operator."""
        known = self._roster.keys.get(key)
        if known is not None and known.operator == name and not self.dead(key):
            raise Refused(
                f"this key is the device {known.name} of {name} already",
                "a new device has a key of its own: `holdfast join` on that machine makes one",
            )
        if known is not None and self.dead(key):
            raise Refused(
                f"this key was revoked: it was the device {known.name} of {known.operator}",
                "a key that was revoked does not come back: `holdfast join CODE --new-key` makes another",
            )
        self._new_key(key)
        if len(self.devices(name)) >= OPERATOR_KEYS_MAX:
            raise Refused(
                f"{name} has had {OPERATOR_KEYS_MAX} devices, and there is no room for more",
                "add another operator",
            )

    def fits(self, name: str, key: bytes, by: bytes, now: float) -> Operator:
        """Whose device this would be; Refused or NotAllowed if it cannot."""
        self.may_add_device(name, by, now)
        self._fits(name, key)
        return self.living(name)

    async def rename_device(self, name: str, word: str, new: str, by: bytes, now: float) -> Key:
        """By its operator, or somebody with `manage`."""

        async def work() -> Key:
            if self.who(by).name != name:
                self.may(by, "manage", None, now)
            found = self.renamable(name, word, new)
            if found.name == new:
                return found
            renamed = found._replace(name=new)
            await self._write(
                roster.save(key=renamed),
                now,
                "device.renamed",
                operator=name,
                key=signing.show(found.key),
                device=new,
                was=found.name,
                by=self.name_of(by),
            )
            self._roster.keys[found.key] = renamed
            self._changed()
            return renamed

        return await self._serially.do(work())

    def renamable(self, name: str, word: str, new: str) -> Key:
        """The device that is meant, if it may be called so."""
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
        """That name, if no device of this operator has or had it."""
        return devices.unused(check_name(device), name, self._names(name))

    def _names(self, name: str) -> set[str]:
        return {one.name for one in self.devices(name)}

    def _free_name(self, name: str, suggested: str) -> str:
        return devices.free(devices.plain(suggested), self._names(name))

    # ------------------------------------------------------------ newcomers

    async def admit(self, name: str, kind: str, text: str, by: bytes, now: float) -> Operator:
        """A newcomer with an envelope: known from now on, for whoever may hand on rights may let in who gets them. Its holder says so, or its issuer."""

        async def work() -> Operator:
            held = self._presented(text, now)
            if by not in (held.holder, held.actor):
                raise NotAllowed(
                    "not accepted: the envelope is for another key",
                    "its holder or whoever issued it can bring it",
                )
            operator, key = self._new(name, kind, held.holder, held.actor, now)
            await self._write(
                roster.save(operator, key, held),
                now,
                "operator.admitted",
                operator=name,
                kind=kind,
                key=signing.show(key.key),
                by=self.name_of(held.actor),
                link=held.id.hex(),
            )
            self._know(operator, key)
            self._hold(held)
            return operator

        return await self._serially.do(work())

    def newcomer(
        self, name: str, kind: str, key: bytes, by: bytes, now: float, device: str = ""
    ) -> tuple[Operator, Key]:
        """Who this would be if it were let in: somebody new, or who has this name and key already; Refused if it can be neither."""
        known = self._roster.keys.get(key)
        if known is None:
            if name in self._roster.operators:
                raise Refused(
                    f"{name} is known here with another key",
                    f"join under another name: `holdfast join --as OTHER`; a code that makes this another device of {name} "
                    f"comes from {name}: `holdfast device add`",
                )
            return self._new(name, kind, key, by, now, device)
        if (operator := self.who(key)).name != name:
            raise Refused(
                f"this key is {operator.name}'s, not {name}'s", f"use --as {operator.name}"
            )
        return operator, known

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
        **facts: Any,
    ) -> Held:
        """Who was invited: known from now on if it was not, with these rights on the inviter's word. `also` is written with it, or nothing is."""

        async def work() -> Held:
            within, (operator, added) = (
                self.handable(rights, wanted, by, now, spend=False),
                self.newcomer(name, kind, key, by, now, device),
            )
            held = self._sign(key, rights, within, os.urandom(envelope.NONCE_BYTES), now, by)
            gone = self._room(held, now)
            await self._write(
                _all([roster.save(operator, added, held, gone), also]),
                now,
                "operator.joined",
                operator=name,
                kind=operator.kind,
                key=signing.show(key),
                device=added.name,
                by=self.name_of(by),
                link=held.id.hex(),
                rights=sorted(held.chain.last.rights),
                scope=within.show(),
                **facts,
            )
            self._drop(key, gone)
            self._know(operator, added)
            self._hold(held)
            await self._still(
                lambda: self.handable(rights, wanted, by, now, spend=False),
                [("link", held.id)],
                now,
                tell=False,
            )
            return held

        return await self._serially.do(work())

    # ------------------------------------------------------------ giving

    async def issue(
        self, holder: bytes, rights: Iterable[str], wanted: Scope, by: bytes, now: float
    ) -> Held:
        """Rights from the machine itself, on the word of somebody with `manage` and `grant` who has them: they outlive the giver."""

        async def work() -> Held:
            self.who(holder)
            held = self._sign(
                holder,
                rights,
                self.handable(rights, wanted, by, now),
                os.urandom(envelope.NONCE_BYTES),
                now,
                by,
            )
            await self._give(held, now)
            await self._still(
                lambda: self.handable(rights, wanted, by, now, spend=False),
                [("link", held.id)],
                now,
            )
            return held

        return await self._serially.do(work())

    async def issue_to(
        self, name: str, rights: Iterable[str], wanted: Scope, by: bytes, now: float
    ) -> Held:
        """The same for an operator: one grant, for each of its devices as they are at that moment, or for none."""

        async def work() -> Held:
            self.living(name)
            if not (mine := self.devices(name, all=False)):
                raise NotFound(f"{name} has no device that counts", f"`holdfast device ls {name}`")
            within, nonce = self.handable(rights, wanted, by, now), os.urandom(envelope.NONCE_BYTES)
            given = [self._sign(one.key, rights, within, nonce, now, by) for one in mine]
            gone = [self._room(held, now) for held in given]
            await self._write(
                _all(
                    [
                        roster.save(held=held, drop=old)
                        for held, old in zip(given, gone, strict=True)
                    ]
                ),
                now,
                "envelope.given",
                operator=name,
                by=self.name_of(by),
                link=given[0].id.hex(),
                links=[held.id.hex() for held in given],
                rights=sorted(given[0].chain.last.rights),
                scope=within.show(),
            )
            for held, old in zip(given, gone, strict=True):
                self._drop(held.holder, old)
                self._hold(held)
            await self._still(
                lambda: self.handable(rights, wanted, by, now, spend=False),
                [("link", held.id) for held in given],
                now,
            )
            return given[0]

        return await self._serially.do(work())

    def handable(
        self, rights: Iterable[str], wanted: Scope, by: bytes, now: float, spend: bool = True
    ) -> Scope:
        """How far these rights reach if this key gives them through the machine; NotAllowed if it may not: `manage` and `grant`, and never more than it has."""
        for right in MANAGES:
            self.may(by, right, None, now, spend=spend)
        asked, why = frozenset(rights), "you lack it"
        for verdict, mine in self._verdicts(by, "grant", Facts(self.machine), now):
            if isinstance(verdict, Denied):
                continue
            within = scope.inherit(mine.chain.last.scope, wanted)
            more, wider = (
                asked - mine.chain.last.rights,
                scope.widening(mine.chain.last.scope, within),
            )
            if not more and not wider:
                return within
            why = f"you lack `{min(more)}`" if more else f"it {wider}"
        raise NotAllowed(
            f"not granted: {why}", "grant only what you have; for more, ask who gave it to you"
        )

    async def give(self, text: str, now: float) -> Held:
        """An envelope that was handed on by its issuer's own key, to somebody known here. It proves itself: anybody may bring it."""

        async def work() -> Held:
            held = self._presented(text, now)
            self.who(held.holder)
            await self._give(held, now)
            return held

        return await self._serially.do(work())

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
        held = Held(chain, text, int(now), chain.last.issuer)
        if (state := self.state_of(held, now)) in ("revoked", "expired"):
            raise NotAllowed(
                f"not accepted: the envelope has {'ended' if state == 'expired' else 'been revoked'}",
                "ask an operator for a new one",
            )
        return held

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

    async def _give(self, held: Held, now: float) -> None:
        gone = self._room(held, now)
        await self._write(
            roster.save(held=held, drop=gone),
            now,
            "envelope.given",
            operator=self.name_of(held.holder),
            by=self.name_of(held.actor),
            link=held.id.hex(),
            rights=sorted(held.chain.last.rights),
            scope=held.chain.last.scope.show(),
        )
        self._drop(held.holder, gone)
        self._hold(held)

    def _room(self, held: Held, now: float) -> list[Held]:
        """What gives way to one more envelope of that key: none, or those that have ended."""
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

    def _drop(self, holder: bytes, gone: Sequence[Held]) -> None:
        if gone:
            self._held[holder] = [one for one in self._held[holder] if one not in gone]

    # ------------------------------------------------------------ revoking

    async def revoke_operator(
        self, name: str, by: bytes, now: float, force: bool = False, with_grants: bool = False
    ) -> None:
        """All keys of it, and what was handed on with them. `with_grants`: also what the machine issued on its word."""
        operator = self._operator(name)
        keys = [key for key, one in self._roster.keys.items() if one.operator == name]
        if self.who(by).name != name and self.name_of(operator.actor) != self.who(by).name:
            self.may(by, "manage", None, now)
        subjects: list[Subject] = [("operator", name.encode()), *(("key", key) for key in keys)]
        await self._revoke(
            name, [*subjects, *(self._given_by(keys) if with_grants else [])], by, now, force
        )

    async def revoke_key(
        self, key: bytes, by: bytes, now: float, force: bool = False, with_grants: bool = False
    ) -> None:
        """One device, also one that was never seen here, and what was handed on with it. `with_grants`: also what the machine issued on its word, and the devices
        of its operator that it added, for a thief may have."""
        if key == self.machine:
            raise Usage(
                "the machine's own key cannot be revoked",
                "to begin anew: stop the host, remove keys/machine, then `holdfast operator recover`",
            )
        known = self._roster.keys.get(key)
        if known is None or self.who(by).name not in (known.operator, self.name_of(known.actor)):
            self.may(by, "manage", None, now)
        keys = [key, *(self.added_by(key) if with_grants else ())]
        what = (
            f"the device {known.name} of {known.operator}"
            if known
            else f"the key {signing.show(key)}"
        )
        await self._revoke(
            what,
            [*(("key", one) for one in keys), *(self._given_by(keys) if with_grants else [])],
            by,
            now,
            force,
        )

    def added_by(self, key: bytes) -> list[bytes]:
        """The devices of the same operator that came in by this one, and by those, as far as they count."""
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
        """One link and every envelope through it: by its issuer, anybody before it, its holder, or somebody with `manage`."""
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
            self.may(by, "manage", None, now)
        await self._revoke(
            f"the envelope {link.hex()[:16]}",
            [("link", one) for one in self._of_one_grant(link)],
            by,
            now,
            force,
        )

    def _of_one_grant(self, link: bytes) -> list[bytes]:
        """That link, and those of the same grant that other devices of its holder have."""
        links = {one.id: one for held in self.all_held() for one in held.chain.links}
        mine = links.get(link)
        return (
            [link]
            if mine is None
            else [
                link,
                *(
                    one.id
                    for one in links.values()
                    if one.id != link
                    and devices.grant(one) == devices.grant(mine)
                    and self.name_of(one.holder) == self.name_of(mine.holder)
                ),
            ]
        )

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
                f"grant admin to somebody else first, or use --force; afterwards {RECOVER}",
            )
        revocation = Revocation(int(now), by)
        self._owed.update(dict.fromkeys(new, revocation))
        self._bury(new, revocation)
        if self._owed:
            try:
                await self._settle(now, what, self.name_of(by))
            except Unavailable as e:
                self._serially.beside(self._settle_later(now, what, self.name_of(by)))
                raise Unavailable(
                    f"{what} is revoked and bites from now on, but it could not be written down: {e.message}",
                    "free disk space or make the directory writable: it is tried again until it is written; until then a restart of the host "
                    "forgets it",
                ) from e

    async def _still(
        self, allowed: Callable[[], object], given: list[Subject], now: float, tell: bool = True
    ) -> None:
        """A revocation does not wait for what is being written: what somebody gave who was revoked meanwhile never counts. Not to `tell`: what was written with it is done."""
        try:
            allowed()
        except HoldfastError:
            await self._revoke("what was given meanwhile", given, self.machine, now, force=True)
            if tell:
                raise

    async def _settle(self, now: float, what: str, by: str) -> None:
        owed = dict(self._owed)
        jobs = [roster.revoke([subject], revocation) for subject, revocation in owed.items()]
        await self._write(
            _all(jobs),
            now,
            "revoked",
            what=what,
            by=by,
            subjects=[[kind, subject.hex()] for kind, subject in owed],
        )
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
        name: str,
        kind: str,
        key: bytes,
        by: bytes,
        now: float,
        device: str,
        nonce: bytes | None = None,
    ) -> Operator:
        operator, added = self._new(name, kind, key, by, now, device)
        held = (
            self._sign(key, ADMIN, Scope(), nonce, now, self.machine) if nonce is not None else None
        )
        await self._write(
            roster.save(operator, added, held),
            now,
            event,
            operator=name,
            kind=kind,
            key=signing.show(key),
            by=self.name_of(by),
        )
        self._know(operator, added)
        if held is not None:
            self._hold(held)
        return operator

    def _new(
        self, name: str, kind: str, key: bytes, by: bytes, now: float, device: str = ""
    ) -> tuple[Operator, Key]:
        check_name(name)
        if kind not in OPERATOR_KINDS:
            raise Usage(
                f"{kind[:40]!a} is no kind of operator", f"kinds: {', '.join(OPERATOR_KINDS)}"
            )
        if name == "machine" or name in self._roster.operators:
            raise Refused(
                f"the name {name} is taken"
                + (
                    " by somebody who was revoked"
                    if ("operator", name.encode()) in self._roster.revoked
                    else ""
                ),
                "choose another one: names are never used again, because the record names people by them",
            )
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

    def _may_one(self, by: bytes, rights: Sequence[str], now: float) -> None:
        for right in rights[:-1]:
            try:
                return self.may(by, right, None, now)
            except NotAllowed:
                continue
        self.may(by, rights[-1], None, now)

    def _known_nonce(self, nonce: bytes) -> bool:
        return any(held.chain.links[0].nonce == nonce for held in self.all_held())

    async def _write(self, job: Job, now: float, event: str, **facts: Any) -> None:
        await self._store.write(_all([job, store.event(now, "", event, facts)]))
        self.noted(event)


def _all(jobs: Iterable[Job]) -> Job:
    def job(db: apsw.Connection) -> None:
        for one in jobs:
            one(db)

    return job
