"""Invitations that are open on this machine and those that have just ended: kept, proved, used.

What each step does is decided in core/invitation.py; here it is made durable, one step after the other. Letting somebody in (operator, key, envelope, event)
and using up the invitation are one transaction: a host that dies before has let nobody in, one that dies after it knows the key when it comes again with
the same code. A wrong code counts before it is written, and is answered after.

What an invitation gives is asked of the authority when it is made and once more when it is used, by the inviter's key: if that was revoked, or may not
hand on so much any more, the invitation is void. The code itself never comes here, nor into a log or an event; the table has the public half of its key.

Who may list, end and decide them: their inviter, and whoever has `manage`.

With `confirm` a joiner waits, connected, until the inviter decides. That is in memory only: whoever waited comes again to the next host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from holdfast.core import invitation, joincode, rate
from holdfast.core.invitation import Again, Ask, Closed, Invitation, Wrong
from holdfast.core.scope import Scope
from holdfast.host import store
from holdfast.host.authority import Authority
from holdfast.host.connection import Connection
from holdfast.host.roster import Job
from holdfast.host.serially import Serially
from holdfast.host.store import Store
from holdfast.model import rights, signing
from holdfast.model.errors import HoldfastError, NotAllowed, NotFound, Refused, Unavailable, Usage
from holdfast.model.ids import OPERATOR_KINDS
from holdfast.model.limits import (
    INVITATION_KEPT_S,
    INVITATION_S,
    INVITATION_S_MAX,
    INVITATIONS_KEPT,
    INVITATIONS_OPEN_MAX,
    WRONG_CODES,
    WRONG_CODES_S,
)
from holdfast.model.probe import probe

if TYPE_CHECKING:
    from holdfast.host.ops import Ops

LEAVES_S = 60.0  # for who came in through a relay to leave the line that the code opened
ASK_AGAIN = "ask whoever invited you for a new code"
ENDED = {
    "expired": "has expired",
    "used": "was used by somebody else",
    "revoked": "was withdrawn",
    "refused": "was refused",
    "void": "is void",
}


class Asking(NamedTuple):
    """Somebody has proved the code and waits for the inviter."""

    name: str
    kind: str
    key: bytes
    answer: asyncio.Future[dict[str, Any]]
    suggested: str = ""  # how it calls its device

    def show(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "key": signing.show(self.key),
            "fingerprint": joincode.group(joincode.fingerprint(self.key)),
        }


class Invitations:
    def __init__(self, database: Store, authority: Authority, told: Callable[[], None]) -> None:
        """Before the store's thread starts. `told` is called when an event was written."""
        self._store, self._authority, self._told = database, authority, told
        self._all: dict[str, Invitation] = {}
        for (body,) in database.rows("SELECT body FROM invitations ORDER BY rowid"):
            try:
                one = invitation.read(json.loads(body))
            except ValueError:  # lets nobody in
                continue
            self._all[one.id] = one
        self._asking: dict[str, Asking] = {}
        self._used_at: dict[str, float] = {}  # the last ones, and when
        self._wrong = rate.Bucket(WRONG_CODES, WRONG_CODES_S, time.time())
        self._moved = asyncio.Event()
        self._serially = Serially()
        authority.on_change.append(self._recheck)

    # ------------------------------------------------------------ the inviter

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
    ) -> dict[str, Any]:
        """Open from now on. The same one again (its answer was lost) is the same one. `of`: for another device of this operator, called `device`."""
        if kind not in OPERATOR_KINDS:
            raise Usage(
                f"{kind[:40]!a} is no kind of operator", f"kinds: {', '.join(OPERATOR_KINDS)}"
            )
        if of and (wanted or within != Scope()):
            raise Usage(
                "a device has the rights of its operator",
                "leave rights, session and end of rights out; `holdfast grant` changes them for all devices",
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
        one = Invitation(
            id,
            verifier,
            by,
            wanted,
            within,
            kind,
            confirm,
            int(now),
            min(int(now) + lasts, within.expires or 1 << 62),
            of=of,
            device=device,
        )

        async def work() -> dict[str, Any]:
            try:
                if of:
                    self._authority.may_add_device(of, by, now)
                    if device:
                        self._authority.unused(of, device)
                else:
                    self._authority.handable(wanted, within, by, now)
            except NotAllowed as e:
                if of:
                    raise
                raise NotAllowed(
                    e.message,
                    f"{e.recover}; with `grant` alone: `holdfast operator add NAME`, then `holdfast grant NAME --own-key`",
                    **e.facts,
                ) from e
            if (there := self._all.get(id)) is not None:
                if (there.verifier, there.by) == (verifier, by):
                    return self.describe(there, now)
                raise Refused("this id is taken", "try again: another one is drawn", taken=True)
            if sum(other.at(now) == "open" for other in self._all.values()) >= INVITATIONS_OPEN_MAX:
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

        return await self._serially.do(work())

    def _old(self, now: float) -> list[str]:
        ended = sorted(
            (o for o in self._all.values() if o.at(now) != "open"),
            key=lambda o: o.ended or o.expires,
        )
        late = [o.id for o in ended if (o.ended or o.expires) < now - INVITATION_KEPT_S]
        return (
            late
            + [o.id for o in ended if o.id not in late][
                : max(0, len(ended) - len(late) - INVITATIONS_KEPT)
            ]
        )

    def knows(self, id: str) -> bool:
        return id in self._all

    def passes(self) -> list[bytes]:
        """Of those that are open: who has the code can make the pass, and comes through a relay with it. Who was just let in is still on that line."""
        now = time.time()
        return [
            joincode.pass_of(one.verifier)
            for one in self._all.values()
            if one.at(now) == "open" or self._used_at.get(one.id, 0.0) + LEAVES_S > now
        ]

    def awaited(self) -> list[str]:
        """Ids that somebody may still come with, or has just come with."""
        now = time.time()
        return [
            one.id
            for one in self._all.values()
            if one.at(now) == "open" or self._used_at.get(one.id, 0.0) + LEAVES_S > now
        ]

    def listed(self, by: bytes, now: float) -> list[dict[str, Any]]:
        """One's own, or all for who may manage the machine; never the codes, which nobody here knows."""
        return [
            self.describe(one, now) for one in self._all.values() if self._concerns(one, by, now)
        ]

    async def revoke(self, id: str, by: bytes, now: float) -> dict[str, Any]:
        return await self._end(
            self._of(id, by, now).id, "revoked", f"by {self._authority.name_of(by)}", now
        )

    async def decide(
        self, id: str, key: bytes, accept: bool, by: bytes, now: float
    ) -> dict[str, Any]:
        """Lets in who waits, or sends it away."""
        one = self._of(id, by, now)
        id, asking = one.id, self._asking.get(one.id)
        if asking is None or asking.key != key:
            if one.joiner == key and accept:  # decided before, and the answer was lost
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

    async def wait(self, id: str, seen: str | None, by: bytes) -> dict[str, Any]:
        """Returns when something is different from what the caller has seen."""
        while True:
            shown = self.describe(one := self._of(id, by, now := time.time()), now)
            if shown["seen"] != seen or one.at(now) != "open":
                return shown
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), max(0.01, one.expires - now))

    def describe(self, one: Invitation, now: float) -> dict[str, Any]:
        asking, state, name = self._asking.get(one.id), one.at(now), self._authority.name_of
        return {
            "id": one.id,
            "state": state,
            "by": name(one.by),
            "kind": one.kind,
            "rights": sorted(one.rights),
            "scope": one.scope.show(),
            "confirm": one.confirm,
            "made": one.made,
            "expires": one.expires,
            "guesses": one.guesses,
            "why": one.why,
            "joined": None if one.joiner is None else name(one.joiner),
            "asks": asking.show() if asking else None,
            "of": one.of or None,
            "device": self._called(one),
            "seen": f"{state}/{signing.show(asking.key) if asking else ''}",
        }

    def _called(self, one: Invitation) -> str | None:
        """The device that came, or how it is to be called."""
        return (
            (self._authority.device_of(one.joiner) if one.joiner else one.device or None)
            if one.of
            else None
        )

    def _of(self, id: str, by: bytes, now: float) -> Invitation:
        one = self._all.get(joincode.read_id(id))
        if one is None or not self._concerns(one, by, now):
            raise NotFound(
                f"no invitation {id[:40]!a} of yours is known here",
                "`holdfast invite ls` lists them",
            )
        return one

    def _concerns(self, one: Invitation, by: bytes, now: float) -> bool:
        return self._authority.name_of(one.by) == self._authority.who(
            by
        ).name or "manage" in self._authority.rights_of(by, None, now)

    # ------------------------------------------------------------ the joiner

    async def join(
        self, name: str, key: bytes, statement: bytes, presented: Any, waits: Callable[..., None]
    ) -> dict[str, Any]:
        """Lets in whoever proves the code on its connection, perhaps after the inviter was asked (then `waits` is called); NotAllowed otherwise."""
        id, proof, now = (
            joincode.read_id(str(presented["id"])),
            bytes.fromhex(str(presented["proof"])),
            time.time(),
        )
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
            found, key, joincode.holds(found.verifier, statement, proof), now
        )
        if isinstance(outcome, Wrong):
            rate.take([self._wrong], now)
            await self._guessed(one, found, now)
            raise NotAllowed(
                "that is not the code"
                + (
                    f"; {outcome.left} more wrong {'one' if outcome.left == 1 else 'ones'} and the invitation is void"
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
            return {**self._joined(one, key), "again": True}
        suggested = presented.get("device") if isinstance(presented.get("device"), str) else ""
        if one.of and name != one.of:
            raise Refused(
                f"this code makes another device of {one.of}, not an operator {name}",
                f"join as {one.of}: `holdfast join CODE --as {one.of}`",
            )
        if not one.of and self._authority.name_of(one.by) == name:
            raise Refused(
                f"{name} made this invitation",
                f"join under another name: `holdfast join --as NAME`; for another device of {name}: `holdfast device add`",
            )
        if isinstance(outcome, Ask):
            self._handable(one, now)
            kind = (
                self._authority.fits(name, key, one.by, now)
                if one.of
                else self._authority.newcomer(name, one.kind, key, one.by, now)[0]
            ).kind
            return await self._asked(
                one,
                Asking(name, kind, key, asyncio.get_running_loop().create_future(), suggested),
                waits,
                now,
            )
        return await self._let_in(id, name, key, now, suggested)

    async def _asked(
        self, one: Invitation, asking: Asking, waits: Callable[..., None], now: float
    ) -> dict[str, Any]:
        before = self._asking.get(one.id)
        if before is not None and before.key != asking.key:
            raise Refused("somebody else has used this code and waits to be let in", ASK_AGAIN)
        if before is not None and not before.answer.done():
            before.answer.set_exception(Refused("the same key asks again on another connection"))
        self._asking[one.id] = asking
        waits(
            by=self._authority.name_of(one.by),
            fingerprint=asking.show()["fingerprint"],
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

    async def _let_in(
        self, id: str, name: str, key: bytes, now: float, suggested: str = ""
    ) -> dict[str, Any]:
        async def work() -> dict[str, Any]:
            one = self._all[id]
            if one.at(now) != "open":  # somebody was quicker
                if one.state == "used" and one.joiner == key:
                    return {**self._joined(one, key), "again": True}
                raise NotAllowed(f"the invitation {ENDED[one.at(now)]}", ASK_AGAIN)
            self._handable(one, now)
            used = invitation.enter(one, key, now)
            if one.of:
                await self._authority.add_key(
                    one.of, key, one.by, now, one.device, suggested, _save(used), invitation=id
                )
            else:
                await self._authority.join(
                    name,
                    one.kind,
                    key,
                    one.rights,
                    one.scope,
                    one.by,
                    now,
                    _save(used),
                    suggested,
                    invitation=id,
                )
            probe("host.join.admitted")
            self._all[id], self._used_at = (
                used,
                {
                    id: now,
                    **{other: at for other, at in self._used_at.items() if at + LEAVES_S > now},
                },
            )
            self._change()
            return {**self._joined(used, key), "again": False}

        return await self._serially.do(work())

    def _handable(self, one: Invitation, now: float) -> None:
        """Void from now on if its inviter may not hand on any more what it gives."""
        try:
            if one.of:
                self._authority.may_add_device(one.of, one.by, now)
            else:
                self._authority.handable(one.rights, one.scope, one.by, now, spend=False)
        except (NotAllowed, Refused) as e:
            why = f"{self._authority.name_of(one.by)} may not hand on what it gives any more ({e.message})"
            self._serially.beside(
                self._end(one.id, "void", why, now)
            )  # nobody waits for that: it bites, and is written when the disk takes it
            raise NotAllowed(f"the invitation is void: {why}", ASK_AGAIN) from e

    def _recheck(self) -> None:
        """Rights have changed: what cannot be handed on any more is void now, and who waits for it is told."""
        now = time.time()
        for one in [one for one in self._all.values() if one.at(now) == "open"]:
            with contextlib.suppress(NotAllowed):
                self._handable(one, now)

    def _joined(self, one: Invitation, key: bytes) -> dict[str, Any]:
        operator, device = self._authority.who(key), self._authority.device_of(key)
        gives, within = one.rights, one.scope
        if one.of:
            valid = [
                held.chain.last
                for held in self._authority.envelopes(key)
                if self._authority.state_of(held, time.time()) == "valid"
            ]
            gives, within = (
                frozenset().union(*(link.rights for link in valid)),
                valid[0].scope if len(valid) == 1 else Scope(),
            )
        return {
            "name": operator.name,
            "kind": operator.kind,
            "by": self._authority.name_of(one.by),
            "rights": sorted(gives),
            "scope": within.show(),
            "device": device,
            "of": one.of or None,
        }

    async def _guessed(self, one: Invitation, before: Invitation, now: float) -> None:
        if one is before:
            return
        self._all[one.id] = (
            one  # it counts at once, and also if it cannot be written, as long as this host lives
        )

        async def work() -> None:
            latest = self._all[
                one.id
            ]  # which may have been used or ended meanwhile: that must not be undone
            await self._save(
                latest, now, "invitation.guessed", state=latest.state, guesses=latest.guesses
            )

        with contextlib.suppress(Unavailable):
            await self._serially.do(work())

    # ------------------------------------------------------------ keeping

    async def _end(self, id: str, state: invitation.State, why: str, now: float) -> dict[str, Any]:
        async def work() -> dict[str, Any]:
            one = invitation.end(self._all[id], state, why, now)
            if one is not self._all[id]:
                self._all[id] = one  # before it is written: it bites on a full disk, too
                asking = self._asking.get(id)
                if asking is not None and not asking.answer.done():
                    asking.answer.set_exception(
                        NotAllowed(f"the invitation {ENDED[state]}: {why}", ASK_AGAIN)
                    )
                await self._save(one, now, "invitation.ended", state=state, why=why)
            return self.describe(one, now)

        return await self._serially.do(work())

    async def _save(
        self, one: Invitation, now: float, event: str, gone: list[str] | None = None, **facts: Any
    ) -> None:
        note = store.event(
            now, "", event, {"invitation": one.id, "by": self._authority.name_of(one.by), **facts}
        )

        def job(db: apsw.Connection) -> None:
            for other in gone or ():
                db.execute("DELETE FROM invitations WHERE id = ?", (other,))
            _save(one)(db)
            note(db)

        self._change()
        try:
            await self._store.write(job)
        except Unavailable as e:
            if one.id not in self._all:  # a new one: there is none
                raise
            self._store.post(job)  # it bites already, and is tried again until it is written
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


# ------------------------------------------------------------ operations


async def invite(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    session = ops.engine.find_any(q["session"]).id if q["session"] else None
    if not all(type(right) is str for right in q["rights"]):
        raise Usage("rights are names")
    try:
        verifier = signing.read(q["verifier"])
    except ValueError as e:
        raise Usage("the verifier of an invitation is a key", "it looks like ed25519:...") from e
    try:
        password = bytes.fromhex(q["meeting"]) if q["meeting"] is not None else None
    except ValueError as e:
        raise Usage("what a code is made into is hexadecimal") from e
    of, device = (q["of"] or conn.operator, q["device"]) if q["device"] is not None else ("", "")
    if q["of"] is not None and not of:
        raise Usage(
            "of whom is for devices only",
            "name the device, or leave it empty: `holdfast invite --device`",
        )
    details = {
        **({"of": of, "device": device} if of else {}),
        "rights": ",".join(q["rights"]),
        "session": session or "",
        "kind": q["kind"],
        "id": q["id"],
        "verifier": q["verifier"],
        "expires": str(q["expires"] or ""),
        "confirm": str(q["confirm"]),
        "lasts": str(q["lasts"]),
    }
    await ops.engine.door.clear(
        q["act!"], number, "invite", details=details, wait_s=q["hold"] or 0.0
    )
    await q["act!"].intend()
    before = ops.engine.invitations.knows(joincode.read_id(q["id"]))
    made = await ops.engine.invitations.make(
        joincode.read_id(q["id"]),
        verifier,
        frozenset(q["rights"]),
        Scope(session=session, expires=q["expires"]),
        q["kind"],
        q["confirm"],
        q["lasts"],
        conn.key,
        time.time(),
        of,
        device,
    )
    if (
        password is not None and not before
    ):  # asked again: it may have been tried meanwhile, and is not offered a second time
        ops.engine.uplinks.meet(made["id"], password)
    return {**made, "elsewhere": ops.engine.uplinks.elsewhere()}


async def invite_ls(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    return {"invitations": ops.engine.invitations.listed(conn.key, time.time())}


async def invite_revoke(
    ops: Ops, conn: Connection, number: int, q: dict[str, Any]
) -> dict[str, Any]:
    ended = await ops.engine.invitations.revoke(q["id"], conn.key, time.time())
    q["act!"].happened(id=ended["id"], ended=ended["state"])
    return ended


async def invite_decide(
    ops: Ops, conn: Connection, number: int, q: dict[str, Any]
) -> dict[str, Any]:
    try:
        key = signing.read(q["key"])
    except ValueError as e:
        raise Usage(f"{q['key'][:60]!a} is not a key", "a key looks like ed25519:...") from e
    if q["accept"]:
        await q["act!"].intend()
    decided = await ops.engine.invitations.decide(q["id"], key, q["accept"], conn.key, time.time())
    if not q["accept"]:
        q["act!"].happened(id=decided["id"], ended=decided["state"])
    return decided


async def invite_wait(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    return await ops.engine.invitations.wait(q["id"], q["seen"], conn.key)


OPS: dict[
    str, tuple[Any, dict[str, Any]]
] = {  # as in ops.py: the handler, and its fields with type and default
    "invite": (
        invite,
        {
            "id": (str,),
            "verifier": (str,),
            "rights": (list,),
            "session": (str, None),
            "expires": (int, None),
            "kind": (str, "human"),
            "confirm": (bool, False),
            "lasts": (int, INVITATION_S),
            "meeting": (str, None),
            "device": (str, None),
            "of": (str, None),
        },
    ),
    "invite.ls": (invite_ls, {}),
    "invite.revoke": (invite_revoke, {"id": (str,)}),
    "invite.decide": (invite_decide, {"id": (str,), "key": (str,), "accept": (bool,)}),
    "invite.wait": (invite_wait, {"id": (str,), "seen": (str, None)}),
}


def _save(one: Invitation) -> Job:
    """On disk, too, what is not open stays as it is and no guess is forgiven: a write that was owed may come after a later one."""
    row = (one.id, json.dumps(invitation.write(one)))

    def job(db: apsw.Connection) -> None:
        db.execute(
            "INSERT INTO invitations VALUES (?,?) ON CONFLICT DO UPDATE SET body = excluded.body "
            "WHERE body ->> 'state' = 'open' AND body ->> 'guesses' <= excluded.body ->> 'guesses'",
            row,
        )

    return job
