"""Open and recently ended invitations of this machine: stored, proved, used.

`core/people/invitation.py` decides each step; this module makes the steps durable, in sequence.
Letting a joiner in (operator, key, envelope, event) and using up the invitation are one
transaction. A host that dies before has let nobody in; a host that dies after knows the key when
the joiner comes again with the code. A wrong code counts before it is written, and is answered
after.

The authority checks the rights of an invitation when it is made and when it is used, by the
inviter's key. If that key was revoked or may not hand on so much any more, the invitation is void.
The code itself never reaches the host, a log or an event; the table has the public half of its key.

The inviter and operators with `manage` may list, end and decide invitations.

With `confirm` a joiner waits, connected, until the inviter decides. Only memory knows that: the
joiner comes again to the next host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.core.contract import invitations as contract
from holdfast.core.people import invitation, join_code, rate
from holdfast.core.people.invitation import Again, Ask, Closed, Invitation, Wrong
from holdfast.core.people.scope import Scope
from holdfast.host.people.authority import Authority
from holdfast.host.runtime.tasks import SerialTasks, serially
from holdfast.host.storage import store
from holdfast.host.storage.store import Job, Store, statement
from holdfast.model import rights, signing
from holdfast.model.errors import HoldfastError, NotAllowed, NotFound, Refused, Unavailable, Usage
from holdfast.model.ids import OPERATOR_KINDS
from holdfast.model.limits import (
    INVITATION_KEPT_S,
    INVITATION_S_MAX,
    INVITATIONS_KEPT,
    INVITATIONS_OPEN_MAX,
    WRONG_CODES,
    WRONG_CODES_S,
)
from holdfast.model.probe import probe

LEAVES_S = 60.0  # for a joiner to leave the relay line that the code opened
ASK_AGAIN = "ask whoever invited you for a new code"
ENDED = {
    "expired": "has expired",
    "used": "was used by somebody else",
    "revoked": "was withdrawn",
    "refused": "was refused",
    "void": "is void",
}


class Asking(NamedTuple):
    """A joiner that has proved the code and waits for the inviter."""

    name: str
    kind: str
    key: bytes
    answer: asyncio.Future[contract.Joined]
    suggested: str = ""  # the joiner's name for the device

    def show(self) -> contract.Joiner:
        return contract.Joiner(
            name=self.name,
            kind=self.kind,
            key=signing.show(self.key),
            fingerprint=join_code.group(join_code.fingerprint(self.key)),
        )


class Invitations:
    def __init__(self, database: Store, authority: Authority, told: Callable[[], None]) -> None:
        """Before the store's thread starts. `told` is called when an event was written."""
        self._store, self._authority, self._told = database, authority, told
        self._all: dict[str, Invitation] = {}
        for (body,) in database.rows("SELECT body FROM invitations ORDER BY rowid"):
            try:
                one = invitation.read(json.loads(body))
            except ValueError:  # an unreadable row lets nobody in
                continue
            self._all[one.id] = one
        self._asking: dict[str, Asking] = {}
        self._used_at: dict[str, float] = {}  # recently used invitations, with the time
        self._wrong = rate.Bucket(WRONG_CODES, WRONG_CODES_S, time.time())
        self._moved = asyncio.Event()
        self._serially = SerialTasks()
        authority.on_change.append(self._recheck)

    # ------------------------------------------------------------ the inviter

    def may_make(
        self,
        wanted: frozenset[str],
        within: Scope,
        by: bytes,
        now: float,
        of: str = "",
        device: str = "",
        spend: bool = True,
    ) -> None:
        """Raises NotAllowed if this key may not invite so. `spend`: count it against a rate."""
        if of:
            self._authority.may_add_device(of, by, now)
            if device:
                self._authority.unused(of, device)
            return
        try:
            self._authority.handable(wanted, within, by, now, spend)
        except NotAllowed as e:
            raise NotAllowed(
                e.message,
                f"{e.recover}; with `grant` alone: `holdfast operator add NAME`, "
                "then `holdfast grant NAME --own-key`",
                **e.facts,
            ) from e

    @serially
    async def make(
        self,
        id: str,
        verifier: bytes,
        wanted: frozenset[str],
        within: Scope,
        kind: str,
        confirm: bool,
        lasts: int,
        by: bytes,
        now: float,
        of: str = "",
        device: str = "",
    ) -> contract.Invitation:
        """Opens an invitation; a repeat of the request finds the same invitation.

        `of`: for another device of this operator, called `device`.
        """
        if kind not in OPERATOR_KINDS:
            raise Usage(
                f"{kind[:40]!a} is no kind of operator", f"kinds: {', '.join(OPERATOR_KINDS)}"
            )
        if of and (wanted or within != Scope()):
            raise Usage(
                "a device has the rights of its operator",
                "leave rights, session and end of rights out; "
                "`holdfast grant` changes them for all devices",
            )
        if bool(wanted) == bool(of) or not wanted <= set(rights.RIGHTS):
            raise Usage(
                "an invitation gives rights that there are", f"rights: {', '.join(rights.RIGHTS)}"
            )
        if not 0 < lasts <= INVITATION_S_MAX:
            raise Usage(
                f"a code counts for 1 second to {INVITATION_S_MAX // 86400} days", "like 10m or 1d"
            )
        if within.expires is not None and within.expires <= now:
            raise Usage("what it gives would have ended already", "give a later --expires")
        given = (wanted, within, kind, confirm)
        expires = min(int(now) + lasts, within.expires or 1 << 62)
        one = Invitation(id, verifier, by, *given, int(now), expires, of=of, device=device)
        self.may_make(wanted, within, by, now, of, device)
        if (there := self._all.get(id)) is not None:
            if (there.verifier, there.by) == (verifier, by):
                return self.describe(there, now)
            raise Refused("this id is taken", "try again: another one is drawn", taken=True)
        if len(self._open(now)) >= INVITATIONS_OPEN_MAX:
            raise Refused(
                f"{INVITATIONS_OPEN_MAX} invitations are open already",
                "`holdfast invite ls` lists them, `holdfast invite revoke ID` ends one",
            )
        gone = self._old(now)
        await self._save(
            one,
            now,
            "invitation.made",
            gone,
            kind=kind,
            rights=sorted(wanted),
            scope=within.show(),
            confirm=confirm,
            expires=one.expires,
            **({"of": of, "device": device} if of else {}),
        )
        for other in gone:
            del self._all[other]
        self._all[id] = one
        self._change()
        return self.describe(one, now)

    def _open(self, now: float) -> list[Invitation]:
        return [one for one in self._all.values() if one.at(now) == "open"]

    def _old(self, now: float) -> list[str]:
        ended = sorted(
            (o for o in self._all.values() if o.at(now) != "open"),
            key=lambda o: o.ended or o.expires,
        )
        late = sum((o.ended or o.expires) < now - INVITATION_KEPT_S for o in ended)
        return [o.id for o in ended[: max(late, len(ended) - INVITATIONS_KEPT)]]

    def knows(self, id: str) -> bool:
        return id in self._all

    def passes(self) -> list[bytes]:
        """The relay passes of open invitations, made from their codes.

        A joiner that was just let in is still on the line of its pass.
        """
        return [join_code.pass_of(self._all[id].verifier) for id in self.awaited()]

    def awaited(self) -> list[str]:
        """The ids of invitations that a joiner may still use, or has just used."""
        now = time.time()
        return [
            one.id
            for one in self._all.values()
            if one.at(now) == "open" or self._used_at.get(one.id, 0.0) + LEAVES_S > now
        ]

    def listed(self, by: bytes, now: float) -> list[contract.Invitation]:
        """The caller's own invitations, or all with `manage`; the host does not have the codes."""
        return [
            self.describe(one, now) for one in self._all.values() if self._concerns(one, by, now)
        ]

    async def revoke(self, id: str, by: bytes, now: float) -> contract.Invitation:
        return await self._end(
            self._of(id, by, now).id, "revoked", f"by {self._authority.name_of(by)}", now
        )

    async def decide(
        self, id: str, key: bytes, accept: bool, by: bytes, now: float
    ) -> contract.Invitation:
        """Lets the waiting joiner in, or sends the joiner away."""
        one = self._of(id, by, now)
        id, asking = one.id, self._asking.get(one.id)
        if asking is None or asking.key != key:
            if (
                one.joiner == key and accept
            ):  # accepted before; the client asks again because the answer was lost
                return self.describe(one, now)
            raise Refused("who asked is not waiting any more", "`holdfast invite ls` shows who is")
        if not accept:
            return await self._end(id, "refused", f"by {self._authority.name_of(by)}", now)
        try:
            joined = await self._let_in(id, asking.name, key, now, asking.suggested)
        except HoldfastError as e:
            if not asking.answer.done():
                asking.answer.set_exception(e)
            raise
        if not asking.answer.done():
            asking.answer.set_result(joined)
        return self.describe(self._all[id], now)

    async def wait(self, id: str, seen: str | None, by: bytes) -> contract.Invitation:
        """Returns when the invitation differs from the state that the caller has seen."""
        while True:
            shown = self.describe(one := self._of(id, by, now := time.time()), now)
            if shown.seen != seen or one.at(now) != "open":
                return shown
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), max(0.01, one.expires - now))

    def describe(self, one: Invitation, now: float) -> contract.Invitation:
        asking, state, name = self._asking.get(one.id), one.at(now), self._authority.name_of
        return contract.Invitation(
            id=one.id,
            state=state,
            by=name(one.by),
            kind=one.kind,
            rights=tuple(sorted(one.rights)),
            scope=one.scope.show(),
            confirm=one.confirm,
            made=one.made,
            expires=one.expires,
            guesses=one.guesses,
            why=one.why,
            joined=None if one.joiner is None else name(one.joiner),
            asks=asking.show() if asking else None,
            of=one.of or None,
            device=self._called(one),
            seen=f"{state}/{signing.show(asking.key) if asking else ''}",
        )

    def _called(self, one: Invitation) -> str | None:
        """The name of the device that joined, or the name for the new device."""
        if one.of:
            return self._authority.device_of(one.joiner) if one.joiner else one.device or None
        return None

    def _of(self, id: str, by: bytes, now: float) -> Invitation:
        one = self._all.get(join_code.read_id(id))
        if one is None or not self._concerns(one, by, now):
            raise NotFound(
                f"no invitation {id[:40]!a} of yours is known here",
                "`holdfast invite ls` lists them",
            )
        return one

    def _concerns(self, one: Invitation, by: bytes, now: float) -> bool:
        mine = self._authority.name_of(one.by) == self._authority.who(by).name
        return mine or "manage" in self._authority.rights_of(by, None, now)

    # ------------------------------------------------------------ the joiner

    async def join(
        self, name: str, key: bytes, statement: bytes, presented: Any, waits: Callable[..., None]
    ) -> contract.Joined:
        """Lets a joiner in that proves the code on this connection; NotAllowed otherwise.

        If the inviter decides first, `waits` is called.
        """
        id, now = join_code.read_id(str(presented["id"])), time.time()
        proof = bytes.fromhex(str(presented["proof"]))
        if (left := self._wrong.wait(now)) > 0:
            raise NotAllowed(
                "too many wrong codes were tried on this machine", f"again in {int(left) + 1} s"
            )
        found = self._all.get(id)
        if found is None:
            rate.take([self._wrong], now)
            raise NotAllowed(
                "this machine knows no such code",
                f"it may have ended, or be of another machine; {ASK_AGAIN}",
            )
        one, outcome = invitation.knock(
            found, key, join_code.holds(found.verifier, statement, proof), now
        )
        if isinstance(outcome, Wrong):
            rate.take([self._wrong], now)
            await self._guessed(one, found, now)
            raise NotAllowed(
                "that is not the code"
                + (
                    f"; {outcome.left} more wrong {'one' if outcome.left == 1 else 'ones'} "
                    "and the invitation is void"
                    if outcome.left
                    else ", and the invitation has ended"
                ),
                "type it as it was shown" if outcome.left else ASK_AGAIN,
            )
        if isinstance(outcome, Closed):
            raise NotAllowed(
                f"the invitation {ENDED[outcome.state]}"
                + (f": {outcome.why}" if outcome.why else ""),
                ASK_AGAIN,
            )
        if isinstance(outcome, Again):
            return self._joined(one, key, again=True)
        suggested = presented.get("device") if isinstance(presented.get("device"), str) else ""
        if one.of and name != one.of:
            raise Refused(
                f"this code makes another device of {one.of}, not an operator {name}",
                f"join as {one.of}: `holdfast join CODE --as {one.of}`",
            )
        if not one.of and self._authority.name_of(one.by) == name:
            raise Refused(
                f"{name} made this invitation",
                "join under another name: `holdfast join --as NAME`; "
                f"for another device of {name}: `holdfast device add`",
            )
        if isinstance(outcome, Ask):
            self._handable(one, now)
            kind = (
                self._authority.fits(name, key, one.by, now)
                if one.of
                else self._authority.newcomer(name, one.kind, key, one.by, now)[0]
            ).kind
            answer = asyncio.get_running_loop().create_future()
            asking = Asking(name, kind, key, answer, suggested)
            return await self._asked(one, asking, waits, now)
        return await self._let_in(id, name, key, now, suggested)

    async def _asked(
        self, one: Invitation, asking: Asking, waits: Callable[..., None], now: float
    ) -> contract.Joined:
        before = self._asking.get(one.id)
        if before is not None and before.key != asking.key:
            raise Refused("somebody else has used this code and waits to be let in", ASK_AGAIN)
        if before is not None and not before.answer.done():
            before.answer.set_exception(Refused("the same key asks again on another connection"))
        self._asking[one.id] = asking
        waits(
            by=self._authority.name_of(one.by),
            fingerprint=asking.show().fingerprint,
            expires=one.expires,
        )
        self._change()
        try:
            return await asyncio.wait_for(asking.answer, max(0.0, one.expires - now))
        except TimeoutError as e:
            raise NotAllowed("the invitation has expired: nobody answered", ASK_AGAIN) from e
        finally:
            if self._asking.get(one.id) is asking:
                del self._asking[one.id]
            self._change()

    @serially
    async def _let_in(
        self, id: str, name: str, key: bytes, now: float, suggested: str = ""
    ) -> contract.Joined:
        one, authority = self._all[id], self._authority
        if one.at(now) != "open":  # another joiner was first
            if one.state == "used" and one.joiner == key:
                return self._joined(one, key, again=True)
            raise NotAllowed(f"the invitation {ENDED[one.at(now)]}", ASK_AGAIN)
        self._handable(one, now)
        used, by = invitation.enter(one, key, now), one.by
        also = _save(used)
        if one.of:
            await authority.add_key(
                one.of, key, by, now, one.device, suggested, also, invitation=id
            )
        else:
            given = (one.rights, one.scope)
            await authority.join(
                name, one.kind, key, *given, by, now, also, suggested, invitation=id
            )
        probe("host.join.admitted")
        self._all[id] = used
        self._used_at = {other: at for other, at in self._used_at.items() if at + LEAVES_S > now}
        self._used_at[id] = now
        self._change()
        return self._joined(used, key, again=False)

    def _handable(self, one: Invitation, now: float) -> None:
        """Voids the invitation if its inviter may not hand on those rights any more."""
        try:
            if one.of:
                self._authority.may_add_device(one.of, one.by, now)
            else:
                self._authority.handable(one.rights, one.scope, one.by, now, spend=False)
        except (NotAllowed, Refused) as e:
            by = self._authority.name_of(one.by)
            why = f"{by} may not hand on what it gives any more ({e.message})"
            # Effective at once; written when the disk takes the write.
            self._serially.spawn(self._end(one.id, "void", why, now))
            raise NotAllowed(f"the invitation is void: {why}", ASK_AGAIN) from e

    def _recheck(self) -> None:
        """After a change of rights: voids invitations that are not covered any more."""
        now = time.time()
        for one in self._open(now):
            with contextlib.suppress(NotAllowed):
                self._handable(one, now)

    def _joined(self, one: Invitation, key: bytes, again: bool) -> contract.Joined:
        operator, device = self._authority.who(key), self._authority.device_of(key)
        gives, within = one.rights, one.scope
        if one.of:
            valid = [
                held.chain.last
                for held in self._authority.envelopes(key)
                if self._authority.state_of(held, time.time()) == "valid"
            ]
            gives = frozenset().union(*(link.rights for link in valid))
            within = valid[0].scope if len(valid) == 1 else Scope()
        return contract.Joined(
            name=operator.name,
            kind=operator.kind,
            by=self._authority.name_of(one.by),
            rights=tuple(sorted(gives)),
            scope=within.show(),
            device=device,
            of=one.of or None,
            again=again,
        )

    async def _guessed(self, one: Invitation, before: Invitation, now: float) -> None:
        if one is before:
            return
        self._all[one.id] = one  # effective at once, and without a write as long as this host lives
        with contextlib.suppress(Unavailable):
            await self._save_guess(one.id, now)

    @serially
    async def _save_guess(self, id: str, now: float) -> None:
        # It may have been used or ended meanwhile: that must not be undone.
        latest = self._all[id]
        await self._save(
            latest, now, "invitation.guessed", state=latest.state, guesses=latest.guesses
        )

    # ------------------------------------------------------------ keeping

    @serially
    async def _end(
        self, id: str, state: invitation.State, why: str, now: float
    ) -> contract.Invitation:
        one = invitation.end(self._all[id], state, why, now)
        if one is not self._all[id]:
            self._all[id] = one  # before the write: effective on a full disk too
            asking = self._asking.get(id)
            if asking is not None and not asking.answer.done():
                asking.answer.set_exception(
                    NotAllowed(f"the invitation {ENDED[state]}: {why}", ASK_AGAIN)
                )
            await self._save(one, now, "invitation.ended", state=state, why=why)
        return self.describe(one, now)

    async def _save(
        self, one: Invitation, now: float, event: str, gone: Sequence[str] = (), **facts: object
    ) -> None:
        note = store.event(
            now, "", event, {"invitation": one.id, "by": self._authority.name_of(one.by), **facts}
        )

        drop = statement("DELETE FROM invitations WHERE id = ?", *((other,) for other in gone))
        job = store.together(drop, _save(one), note)
        self._change()
        try:
            await self._store.run(job)
        except Unavailable as e:
            if one.id not in self._all:  # a new invitation: not made
                raise
            self._store.post(job)  # effective already; written again until the disk takes it
            raise Unavailable(
                f"it counts from now on, but could not be written down: {e.message}",
                f"{e.recover}; until then a restart of the host forgets it",
            ) from e
        self._authority.noted(event)
        self._change()

    def _change(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
        self._told()


def _save(one: Invitation) -> Job:
    """Saves an invitation; a row that is not open stays, and no counted guess is lost.

    A delayed write may come after a later one.
    """
    return statement(
        "INSERT INTO invitations VALUES (?,?) ON CONFLICT DO UPDATE SET body = excluded.body "
        "WHERE body ->> 'state' = 'open' AND body ->> 'guesses' <= excluded.body ->> 'guesses'",
        (one.id, json.dumps(invitation.write(one))),
    )
