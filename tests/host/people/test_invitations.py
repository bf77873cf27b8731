"""Invitations: one key gets in, with the rights that the inviter may hand on then (A5)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.contract.codec import encode
from holdfast.core.contract.invitations import Invitation, Joined, Joiner
from holdfast.core.people import invitation, join_code
from holdfast.core.people.join_code import Code
from holdfast.core.people.scope import Scope
from holdfast.home.keys import Identity
from holdfast.host.people.authority import Authority
from holdfast.host.people.invitations import Invitations, _save
from holdfast.host.storage import store
from holdfast.host.storage.store import Store
from holdfast.model import rights as rightsets
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, NotAllowed, NotFound, Refused, Unavailable, Usage
from holdfast.model.limits import (
    INVITATION_GUESSES,
    INVITATION_KEPT_S,
    INVITATION_S_MAX,
    INVITATIONS_KEPT,
    INVITATIONS_OPEN_MAX,
    WRONG_CODES,
)
from holdfast.model.rights import ADMIN, EXECUTE, READ

PRIVATE = {
    name: bytes([n + 1]) * 32
    for n, name in enumerate(["machine", "ann", "bob", "carl", "eve", "lead"])
}
KEY = {name: signing.public(private) for name, private in PRIVATE.items()}
MACHINE = Identity("machine", "machine", KEY["machine"], 0, PRIVATE["machine"], False, "")
SESSION = "0123456789ab"


class Door:
    """A machine with ann as first operator, and the codes that ann gave out."""

    def __init__(self, path: Path) -> None:
        self.store = Store(str(path / "state.db"))
        self.authority = Authority(self.store, MACHINE)
        self.invitations = Invitations(self.store, self.authority, lambda: None)
        self.store.start()

    async def invite(
        self,
        id: str = "AAAA",
        wanted: frozenset[str] = READ,
        by: str = "ann",
        confirm: bool = False,
        lasts: int = 600,
        kind: str = "human",
        scope: Scope = Scope(),
        ago: float = 0,
    ) -> Invitation:
        return await self.invitations.make(
            id,
            signing.public(secret(id)),
            wanted,
            scope,
            kind,
            confirm,
            lasts,
            KEY[by],
            time.time() - ago,
        )

    async def come(
        self,
        name: str,
        id: str = "AAAA",
        right: bool = True,
        key: bytes | None = None,
        waits: Callable[..., None] = lambda **_: None,
    ) -> Joined:
        statement = os.urandom(32)
        proof = signing.sign(secret(id if right else "ZZZZ"), join_code.DOMAIN, statement)
        return await self.invitations.join(
            name, key or KEY[name], statement, {"id": id, "proof": proof.hex()}, waits
        )

    async def asking(self, id: str = "AAAA") -> Joiner:
        """The key that waits for the inviter."""
        shown = await self.invitations.wait(id, None, KEY["ann"])
        while shown.asks is None:
            shown = await self.invitations.wait(id, shown.seen, KEY["ann"])
        return shown.asks

    def state(self, id: str = "AAAA") -> str:
        return next(
            one.state for one in self.invitations.listed(KEY["ann"], time.time()) if one.id == id
        )

    async def events(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.store.run(store.events_of(None, 0, 1000))
        return [event for event in found if event["event"] == name]

    def may(self, name: str, right: str, session: str | None = SESSION) -> bool:
        return right in self.authority.rights_of(KEY[name], session, time.time())


@cache
def secret(id: str) -> bytes:
    """The key of a code; scrypt is tested elsewhere."""
    return signing.public(id.encode().ljust(32, b"."))


def run(path: Path, *lives: Callable[[Door], Coroutine[Any, Any, Any]]) -> None:
    """Runs several lives of a host on the same database."""

    async def live(work: Callable[[Door], Coroutine[Any, Any, Any]]) -> None:
        door = Door(path)
        try:
            if door.authority.needs_first:
                await door.authority.first_identity("ann", "human", KEY["ann"], time.time())
            await work(door)
        finally:
            door.store.close()

    for work in lives:
        asyncio.run(live(work))


async def outcomes(*comings: Coroutine[Any, Any, Any]) -> tuple[list[Any], list[BaseException]]:
    found = await asyncio.gather(*comings, return_exceptions=True)
    return [one for one in found if not isinstance(one, BaseException)], [
        one for one in found if isinstance(one, BaseException)
    ]


# ------------------------------------------------------------ once


def test_a_newcomer_gets_the_rights_of_the_invitation_and_no_more(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.invite(kind="agent", scope=Scope(session=SESSION))
        joined = await door.come("bob")
        assert encode(joined) == {
            "name": "bob",
            "kind": "agent",
            "by": "ann",
            "rights": sorted(READ),
            "scope": {"session": SESSION},
            "again": False,
            "device": "device",
            "of": None,
        }
        assert (
            door.may("bob", "observe")
            and not door.may("bob", "input")
            and not door.may("bob", "observe", "zzzzzzzzzzzz")
        )
        [event] = await door.events("operator.joined")
        assert (event["operator"], event["by"], event["invitation"]) == ("bob", "ann", "AAAA")
        assert door.authority.describe("bob", time.time()).envelopes[0].given_by == "ann"

    run(tmp_path, work)


def test_of_many_simultaneous_joiners_one_gets_in(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.invite()
        names = [f"n{n}" for n in range(20)]
        inside, outside = await outcomes(
            *(door.come(name, key=signing.public(name.encode().ljust(32))) for name in names)
        )
        assert len(inside) == 1 and len(outside) == 19
        assert all(
            isinstance(e, NotAllowed) and "used by somebody else" in e.message for e in outside
        )
        assert [o.name for o in door.authority.operators(time.time())] == [
            "ann",
            inside[0].name,
        ]

    async def later(door: Door) -> None:
        assert door.state() == "used" and len(door.authority.operators(time.time())) == 2
        with pytest.raises(NotAllowed, match="used by somebody else"):
            await door.come("eve")

    run(tmp_path, work, later)


def test_the_same_key_may_come_again_and_gets_nothing_more(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.invite()
        inside, outside = await outcomes(*(door.come("bob") for _ in range(10)))
        assert not outside and sorted(one.again for one in inside) == [False, *[True] * 9]
        assert len(door.authority.envelopes(KEY["bob"])) == 1

    async def later(door: Door) -> None:
        assert (await door.come("bob")).again
        assert (
            len(door.authority.envelopes(KEY["bob"])) == 1
            and len(await door.events("operator.joined")) == 1
        )

    run(tmp_path, work, later)


def test_a_simultaneous_guess_does_not_reopen_a_used_invitation(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.invite()
        inside, outside = await outcomes(
            door.come("bob"), door.come("eve", right=False), door.come("carl", right=False)
        )
        assert len(inside) == 1 and len(outside) == 2
        assert door.state() == "used"

    async def later(door: Door) -> None:
        assert door.state() == "used"
        with pytest.raises(NotAllowed):
            await door.come("eve")

    run(tmp_path, work, later)


def test_a_joiner_that_disconnects_is_in_or_not_and_memory_and_disk_agree(tmp_path: Path) -> None:
    said: list[tuple[str, str, bool]] = []

    async def work(door: Door) -> None:
        for n, id in enumerate(["AAAA", "BBBB", "CCCC", "DDDD"]):
            await door.invite(id)
            name = f"n{n}"
            task = asyncio.ensure_future(
                door.come(name, id, key=signing.public(name.encode().ljust(32)))
            )
            for _ in range(n):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await asyncio.gather(*door.invitations._serially._tasks, return_exceptions=True)
            said.append(
                (
                    id,
                    door.state(id),
                    name in [o.name for o in door.authority.operators(time.time())],
                )
            )

    async def later(door: Door) -> None:
        names = [o.name for o in door.authority.operators(time.time())]
        assert said == [(id, door.state(id), f"n{n}" in names) for n, (id, _, _) in enumerate(said)]
        assert all((state == "used") == known for _, state, known in said)

    run(tmp_path, work, later)


# ------------------------------------------------------------ guessing


def test_wrong_codes_are_counted_over_restarts_until_the_invitation_is_void(tmp_path: Path) -> None:
    async def guess(door: Door) -> None:
        with pytest.raises(NotAllowed, match="that is not the code"):
            await door.come("eve", right=False)

    async def first(door: Door) -> None:
        await door.invite()
        await guess(door)

    async def last(door: Door) -> None:
        assert door.state() == "void"
        with pytest.raises(NotAllowed, match="void: 3 wrong codes"):
            await door.come("bob")
        assert len(await door.events("invitation.guessed")) == INVITATION_GUESSES
        assert [o.name for o in door.authority.operators(time.time())] == ["ann"]

    run(tmp_path, first, *[guess] * (INVITATION_GUESSES - 1), last)


def test_guesses_at_the_same_moment_are_counted_one_by_one(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.invite()
        inside, outside = await outcomes(
            *(door.come("eve", right=False) for _ in range(50)), door.come("eve")
        )
        assert not inside and door.state() == "void"
        said = [e.message for e in outside if isinstance(e, NotAllowed)]
        assert (
            sum("not the code" in one for one in said) == WRONG_CODES
            and sum("too many" in one for one in said) == 41
        )
        assert door.invitations.listed(KEY["ann"], time.time())[0].guesses == INVITATION_GUESSES

    run(tmp_path, work)


def test_the_machine_takes_only_so_many_wrong_codes_in_a_minute(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.invite()
        for n in range(WRONG_CODES):
            with pytest.raises(NotAllowed, match="knows no such code"):
                await door.come("eve", id=f"{n:04}")
        for name in ("eve", "bob"):
            with pytest.raises(NotAllowed, match="too many wrong codes") as caught:
                await door.come(name)
            assert "again in" in caught.value.recover
        assert door.state() == "open"

    run(tmp_path, work)


@pytest.mark.parametrize(
    "presented",
    [
        {},
        {"id": "AAAA"},
        {"id": "AAAA", "proof": "zz"},
        {"id": 7, "proof": ""},
        [],
        None,
        {"id": "AAAA", "proof": None},
        {"id": "x" * 100_000, "proof": ""},
    ],
)
def test_a_malformed_proof_is_refused_and_costs_nothing(tmp_path: Path, presented: Any) -> None:
    async def work(door: Door) -> None:
        await door.invite()
        with pytest.raises((KeyError, TypeError, ValueError, Usage)):
            await door.invitations.join("eve", KEY["eve"], b"x", presented, lambda **_: None)
        assert (await door.come("bob")).name == "bob"

    run(tmp_path, work)


# ------------------------------------------------------------ the given rights


def test_an_invitation_gives_no_more_than_its_inviter_may_hand_on(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        now = time.time()
        for name, given, scope in (
            ("lead", EXECUTE | {"manage", "grant"}, Scope()),
            ("bob", EXECUTE | {"grant"}, Scope()),
            ("carl", READ, Scope()),
        ):
            await door.authority.add_operator(name, "human", KEY[name], KEY["ann"], now)
            await door.authority.issue(KEY[name], given, scope, KEY["ann"], now)
        await door.invite("AAAA", EXECUTE, "lead")
        with pytest.raises(NotAllowed, match="halt"):
            await door.invite("BBBB", EXECUTE | {"halt"}, "lead")
        for name in ("bob", "carl"):
            with pytest.raises(NotAllowed, match="manage"):
                await door.invite("CCCC", READ, name)
        with pytest.raises(Usage):
            await door.invite("DDDD", frozenset({"everything"}))
        assert len(door.invitations.listed(KEY["ann"], now)) == 1

    run(tmp_path, work)


def test_an_invitation_is_void_when_its_inviter_is_revoked_before_its_use(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        now = time.time()
        await door.authority.add_operator("lead", "human", KEY["lead"], KEY["ann"], now)
        await door.authority.issue(KEY["lead"], rightsets.ADMIN, Scope(), KEY["ann"], now)
        for id in ("AAAA", "BBBB"):
            await door.invite(id, by="lead", confirm=id == "BBBB")
        await door.authority.revoke_operator("lead", KEY["ann"], now)
        await asyncio.gather(*door.invitations._serially._tasks)
        assert door.state("AAAA") == door.state("BBBB") == "void", (
            "at once, not at the next attempt"
        )

    async def later(door: Door) -> None:
        for id in ("AAAA", "BBBB"):
            with pytest.raises(NotAllowed, match="lead was revoked"):
                await door.come("bob", id)
        assert "bob" not in [o.name for o in door.authority.operators(time.time())]

    run(tmp_path, work, later)


def test_an_invitation_is_void_when_its_inviter_has_fewer_rights(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        now = time.time()
        await door.authority.add_operator("lead", "human", KEY["lead"], KEY["ann"], now)
        held = await door.authority.issue(KEY["lead"], rightsets.ADMIN, Scope(), KEY["ann"], now)
        await door.authority.issue(
            KEY["lead"], READ | {"manage", "grant"}, Scope(), KEY["ann"], now
        )
        await door.invite("AAAA", EXECUTE, "lead")
        await door.invite("BBBB", READ, "lead")
        await door.authority.revoke_link(held.id, KEY["ann"], now)
        with pytest.raises(NotAllowed, match="you lack"):
            await door.come("bob", "AAAA")
        assert (await door.come("bob", "BBBB")).rights == tuple(sorted(READ))

    run(tmp_path, work)


def test_the_rights_of_the_inviter_are_checked_when_the_invitation_is_used(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        now = time.time()
        await door.authority.add_operator("lead", "human", KEY["lead"], KEY["ann"], now)
        await door.authority.issue(
            KEY["lead"], rightsets.ADMIN, Scope(expires=int(now) - 60), KEY["ann"], now
        )
        await door.invite(by="lead", ago=120)
        with pytest.raises(NotAllowed, match="envelope ended"):
            await door.come("bob")

    run(tmp_path, work)


def test_a_rate_of_its_inviter_counts_the_invitation_and_not_the_joining(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        now = time.time()
        await door.authority.add_operator("lead", "human", KEY["lead"], KEY["ann"], now)
        await door.authority.issue(
            KEY["lead"], rightsets.ADMIN, Scope(rate=(2, 100_000)), KEY["ann"], now
        )
        await door.invite(by="lead")
        with pytest.raises(NotAllowed, match="as often as it may"):
            await door.invite("BBBB", by="lead")
        assert (await door.come("bob")).name == "bob"
        assert door.authority.envelopes(KEY["bob"])[0].chain.last.scope.rate == (2, 100_000), (
            "and is handed on"
        )

    run(tmp_path, work)


def test_given_rights_stay_when_the_inviter_leaves_and_go_with_its_grants(
    tmp_path: Path,
) -> None:
    async def work(door: Door) -> None:
        now = time.time()
        for name, grants in (("lead", False), ("carl", True)):
            await door.authority.add_operator(name, "human", KEY[name], KEY["ann"], now)
            await door.authority.issue(KEY[name], rightsets.ADMIN, Scope(), KEY["ann"], now)
            guest = "eve" if grants else "bob"
            await door.invite("BBBB" if grants else "AAAA", by=name)
            await door.come(guest, "BBBB" if grants else "AAAA")
            await door.authority.revoke_operator(name, KEY["ann"], now, with_grants=grants)
            assert door.may(guest, "observe") != grants

    run(tmp_path, work)


def test_an_invitation_expires_also_with_its_rights(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        now = time.time()
        await door.invite("AAAA", lasts=60, ago=61)
        made = await door.invite("BBBB", scope=Scope(expires=int(now) - 50), ago=100)
        assert made.expires == int(now) - 50
        for id in ("AAAA", "BBBB"):
            with pytest.raises(NotAllowed, match="expired"):
                await door.come("bob", id)
            assert door.state(id) == "expired"
        with pytest.raises(Usage):
            await door.invite("CCCC", scope=Scope(expires=int(now) - 1))
        for lasts in (0, INVITATION_S_MAX + 1):
            with pytest.raises(Usage):
                await door.invite("CCCC", lasts=lasts)

    run(tmp_path, work)


# ------------------------------------------------------------ names


def test_a_name_belongs_to_its_key(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.authority.add_operator("bob", "human", KEY["bob"], KEY["ann"], time.time())
        await door.invite("AAAA", EXECUTE, kind="agent")
        await door.invite("BBBB", confirm=True)
        for id in ("AAAA", "BBBB"):
            with pytest.raises(Refused, match="known here with another key") as caught:
                await door.come("bob", id, key=KEY["eve"])
            assert "--as OTHER" in caught.value.recover
            with pytest.raises(Refused, match="this key is bob's"):
                await door.come("eve", id, key=KEY["bob"])
            with pytest.raises(Refused, match="ann made this invitation"):
                await door.come("ann", id)
            for name in ("machine", "-x", "a b", "0123456789ab"):
                with pytest.raises(HoldfastError):
                    await door.come(name, id, key=KEY["eve"])
            assert door.state(id) == "open"
        assert (await door.come("bob")).kind == "human", "a known operator keeps its kind"
        assert door.may("bob", "input")

    run(tmp_path, work)


def test_a_revoked_key_does_not_return_by_an_invitation(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.authority.add_operator("bob", "human", KEY["bob"], KEY["ann"], time.time())
        await door.authority.revoke_operator("bob", KEY["ann"], time.time())
        await door.invite()
        with pytest.raises(NotAllowed, match="revoked"):
            await door.come("bob")
        with pytest.raises(Refused):
            await door.come("robert", key=KEY["bob"])
        assert door.state() == "open"

    run(tmp_path, work)


# ------------------------------------------------------------ asking first


def test_the_inviter_lets_in_or_sends_away(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        waits: list[dict[str, Any]] = []
        for id, accept in (("AAAA", True), ("BBBB", False)):
            await door.invite(id, confirm=True)
            coming = asyncio.ensure_future(
                door.come("bob" if accept else "eve", id, waits=lambda **facts: waits.append(facts))
            )
            asks = await door.asking(id)
            assert (
                asks.name == ("bob" if accept else "eve")
                and asks.fingerprint == waits[-1]["fingerprint"]
                and waits[-1]["by"] == "ann"
            )
            assert not coming.done()
            with pytest.raises(Refused, match="not waiting"):
                await door.invitations.decide(id, KEY["carl"], True, KEY["ann"], time.time())
            after = await door.invitations.decide(
                id, signing.read(asks.key), accept, KEY["ann"], time.time()
            )
            if accept:
                assert (
                    (await coming).again is False
                    and after.state == "used"
                    and after.joined == "bob"
                )
                again = await door.invitations.decide(id, KEY["bob"], True, KEY["ann"], time.time())
                assert again.state == "used", "an answer that was lost is given again"
            else:
                with pytest.raises(NotAllowed, match="was refused"):
                    await coming
                assert after.state == "refused"
                with pytest.raises(NotAllowed, match="was refused"):
                    await door.come("bob", id)
        assert [o.name for o in door.authority.operators(time.time())] == ["ann", "bob"]

    run(tmp_path, work)


def test_a_waiting_joiner_is_told_of_the_end_and_an_absent_joiner_is_not_admitted(
    tmp_path: Path,
) -> None:
    async def work(door: Door) -> None:
        await door.invite("AAAA", confirm=True)
        coming = asyncio.ensure_future(door.come("bob"))
        asks = await door.asking()
        with pytest.raises(Refused, match="somebody else"):
            await door.come("eve")
        second = asyncio.ensure_future(door.come("bob"))  # the same key on a second connection
        with pytest.raises(Refused, match="asks again"):
            await coming
        second.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await second
        with pytest.raises(Refused, match="not waiting"):
            await door.invitations.decide(
                "AAAA", signing.read(asks.key), True, KEY["ann"], time.time()
            )
        third = asyncio.ensure_future(door.come("bob"))
        await door.asking()
        await door.invitations.revoke("AAAA", KEY["ann"], time.time())
        with pytest.raises(NotAllowed, match="withdrawn"):
            await third
        made = await door.invite("BBBB", confirm=True, lasts=1)
        with pytest.raises(NotAllowed, match="expired"):
            await door.come("bob", "BBBB")
        assert (await door.invitations.wait("BBBB", made.seen, KEY["ann"])).state == "expired"

    run(tmp_path, work)


def test_between_asking_and_accepting_the_inviter_may_lose_the_right(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        now = time.time()
        await door.authority.add_operator("lead", "human", KEY["lead"], KEY["ann"], now)
        await door.authority.issue(KEY["lead"], rightsets.ADMIN, Scope(), KEY["ann"], now)
        await door.invite(by="lead", confirm=True)
        coming = asyncio.ensure_future(door.come("bob"))
        await door.asking()
        await door.authority.revoke_operator("lead", KEY["ann"], now)
        with pytest.raises(NotAllowed, match="void"):
            await coming
        with pytest.raises(Refused, match="not waiting"):
            await door.invitations.decide("AAAA", KEY["bob"], True, KEY["ann"], time.time())
        assert door.state() == "void"

    run(tmp_path, work)


def test_an_invitation_is_visible_to_its_inviter_and_to_managers(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        now = time.time()
        await door.authority.add_operator("bob", "human", KEY["bob"], KEY["ann"], now)
        await door.authority.issue(KEY["bob"], EXECUTE | {"grant"}, Scope(), KEY["ann"], now)
        await door.invite()
        assert door.invitations.listed(KEY["bob"], now) == []
        for act in (
            door.invitations.revoke("AAAA", KEY["bob"], now),
            door.invitations.decide("AAAA", KEY["eve"], True, KEY["bob"], now),
            door.invitations.wait("AAAA", None, KEY["bob"]),
        ):
            with pytest.raises(NotFound):
                await act
        with pytest.raises(NotAllowed):
            door.invitations.listed(KEY["eve"], now)

    run(tmp_path, work)


# ------------------------------------------------------------ bounds, and a full disk


def test_there_are_only_so_many(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        for n in range(INVITATIONS_OPEN_MAX):
            await door.invite(f"A{n:03}")
        with pytest.raises(Refused, match="open already"):
            await door.invite("BBBB")
        assert (
            await door.invitations.revoke("a-00o ", KEY["ann"], time.time())
        ).state == "revoked", "as people write it"
        await door.invite("BBBB")
        assert (await door.invite("BBBB")).state == "open", "the same one again is the same one"
        with pytest.raises(Refused) as caught:
            await door.invitations.make(
                "BBBB",
                signing.public(secret("CCCC")),
                READ,
                Scope(),
                "human",
                False,
                60,
                KEY["ann"],
                time.time(),
            )
        assert caught.value.facts == {"taken": True}

    run(tmp_path, work)


def test_ended_invitations_are_forgotten_in_time(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.invite("ZZZ0", ago=INVITATION_KEPT_S + 1000)
        for n in range(INVITATIONS_KEPT + 5):
            await door.invite(f"B{n:03}", lasts=1, ago=1000 - n)
        await door.invite("CCCC")
        ids = [one.id for one in door.invitations.listed(KEY["ann"], time.time())]
        assert (
            len(ids) == INVITATIONS_KEPT + 1
            and "ZZZ0" not in ids
            and "B000" not in ids
            and ids[-1] == "CCCC"
        )

    async def later(door: Door) -> None:
        assert len(door.invitations.listed(KEY["ann"], time.time())) == INVITATIONS_KEPT + 1

    run(tmp_path, work, later)


def test_a_full_disk_admits_no_key_and_forgives_no_guess(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.invite()
        await door.invite("BBBB")
        await door.store.run(lambda db: db.execute("PRAGMA query_only=ON"))
        with pytest.raises(Unavailable):
            await door.come("bob")
        assert door.state() == "open"
        for _ in range(INVITATION_GUESSES):
            with pytest.raises(NotAllowed, match="not the code"):
                await door.come("eve", right=False)
        assert door.state() == "void"
        with pytest.raises(Unavailable):
            await door.invitations.revoke("BBBB", KEY["ann"], time.time())
        assert door.state("BBBB") == "revoked", "it bites all the same"
        await door.store.run(lambda db: db.execute("PRAGMA query_only=OFF"))
        assert [o.name for o in door.authority.operators(time.time())] == ["ann"]

    async def later(door: Door) -> None:
        assert (door.state(), door.state("BBBB")) == ("void", "revoked"), (
            "it was written when the disk took it again"
        )

    run(tmp_path, work, later)


def test_a_write_that_comes_late_undoes_nothing(tmp_path: Path) -> None:
    """A write that the disk refused is tried again, perhaps after a later write."""

    async def work(door: Door) -> None:
        await door.invite()
        late = _save(door.invitations._all["AAAA"])
        with pytest.raises(NotAllowed):
            await door.come("eve", right=False)
        guessed = _save(door.invitations._all["AAAA"])
        await door.store.run(late)
        [[body]] = await door.store.run(
            lambda db: db.execute("SELECT body FROM invitations").fetchall()
        )
        assert invitation.read(json.loads(body)).guesses == 1
        await door.come("bob")
        for job in (late, guessed):
            await door.store.run(job)

    async def later(door: Door) -> None:
        assert door.state() == "used" and door.invitations._all["AAAA"].joiner == KEY["bob"]

    run(tmp_path, work, later)


@pytest.mark.parametrize("seed", range(25))
def test_any_interleaving_ends_with_one_key_in_at_most_and_survives_a_restart(
    tmp_path: Path, seed: int
) -> None:
    """Many people, codes, guesses and decisions at once; some go away in the middle."""
    rng = random.Random(seed)
    people = {f"p{n}": signing.public(f"p{n}".encode().ljust(32)) for n in range(6)}
    ids, seen = ("AAAA", "BBBB", "CCCC"), dict[str, Any]()

    async def act(door: Door) -> None:
        id, name, now = rng.choice(ids), rng.choice(sorted(people)), time.time()
        choice = rng.random()
        if choice < 0.5:
            await door.come(name, id, key=people[name])
        elif choice < 0.6:
            await door.come(name, id, right=False, key=people[name])
        elif choice < 0.65:
            await door.invitations.revoke(id, KEY["ann"], now)
        elif choice < 0.7:
            await door.authority.revoke_operator("lead", KEY["ann"], now)
        else:
            await door.invitations.decide(id, people[name], rng.random() < 0.8, KEY["ann"], now)

    async def some(door: Door) -> None:
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        task = asyncio.ensure_future(act(door))
        if rng.random() < 0.3:
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            task.cancel()
        with contextlib.suppress(HoldfastError, asyncio.CancelledError):
            await task

    def picture(door: Door) -> dict[str, Any]:
        return {
            "open": {
                one.id: (one.state, one.guesses, one.joined)
                for one in door.invitations.listed(KEY["ann"], time.time())
            },
            "in": {o.name: len(o.envelopes) for o in door.authority.operators(time.time())},
        }

    async def work(door: Door) -> None:
        now = time.time()
        await door.authority.add_operator("lead", "human", KEY["lead"], KEY["ann"], now)
        await door.authority.issue(KEY["lead"], rightsets.ADMIN, Scope(), KEY["ann"], now)
        for id in ids:
            await door.invite(id, by=rng.choice(("ann", "lead")), confirm=id == "CCCC")
        doing = {asyncio.ensure_future(some(door)) for _ in range(40)}
        while len(doing) > 1:  # a joiner may wait for a decision that never comes
            _, doing = await asyncio.wait(doing, return_when=asyncio.FIRST_COMPLETED)
        for one in doing:
            one.cancel()
        await asyncio.gather(*doing, return_exceptions=True)
        while door.invitations._serially._tasks:
            await asyncio.gather(*door.invitations._serially._tasks, return_exceptions=True)
        seen.update(picture(door))
        joined = await door.events("operator.joined")
        by_invitation = [event["invitation"] for event in joined]
        assert len(by_invitation) == len(set(by_invitation)), "one key for each"
        assert {id: state[2] for id, state in seen["open"].items() if state[0] == "used"} == {
            event["invitation"]: event["operator"] for event in joined
        }
        assert sum(seen["in"].get(name, 0) for name in people) == len(joined), (
            "one envelope for each"
        )

    async def later(door: Door) -> None:
        assert picture(door) == seen

    run(tmp_path, work, later)


def test_the_stored_form_of_an_invitation_admits_no_key(tmp_path: Path) -> None:
    """The database has the public half of the code's key, and not a character of the code."""
    code = Code("4KQ7", "M2XD9TR")

    async def work(door: Door) -> None:
        verifier = signing.public(join_code.private(code, KEY["machine"]))
        await door.invitations.make(
            code.id, verifier, READ, Scope(), "human", False, 60, KEY["ann"], time.time()
        )
        with pytest.raises(NotAllowed):
            await door.invitations.join(
                "eve",
                KEY["eve"],
                b"x",
                {"id": code.id, "proof": signing.sign(verifier, join_code.DOMAIN, b"x").hex()},
                lambda **_: None,
            )
        joined = await door.invitations.join(
            "bob",
            KEY["bob"],
            b"y",
            {"id": code.id, "proof": join_code.prove(code, KEY["machine"], b"y").hex()},
            lambda **_: None,
        )
        assert joined.name == "bob"

    run(tmp_path, work)
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert (
        code.id.encode() in stored
        and code.secret.encode() not in stored
        and code.show().encode() not in stored
    )


# ------------------------------------------------------------ another device


async def device(
    door: Door,
    id: str = "AAAA",
    by: str = "ann",
    of: str = "ann",
    name: str = "",
    confirm: bool = False,
) -> Invitation:
    return await door.invitations.make(
        id,
        signing.public(secret(id)),
        frozenset(),
        Scope(),
        "human",
        confirm,
        600,
        KEY[by],
        time.time(),
        of,
        name,
    )


def test_a_code_makes_another_device_of_its_operator(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        made = await device(door, name="phone")
        assert (made.of, made.device, made.rights) == ("ann", "phone", ())
        with pytest.raises(Refused, match="another device of ann, not an operator bob"):
            await door.come("bob")
        with pytest.raises(Refused, match="is the device device of ann already"):
            await door.come("ann")
        assert door.state() == "open", "neither has used it up"
        joined = await door.come("ann", key=KEY["bob"])
        assert encode(joined) == {
            "name": "ann",
            "kind": "human",
            "by": "ann",
            "rights": sorted(ADMIN),
            "scope": {},
            "device": "phone",
            "of": "ann",
            "again": False,
        }
        assert (await door.come("ann", key=KEY["bob"])).again and door.state() == "used"
        with pytest.raises(NotAllowed, match="was used by somebody else"):
            await door.come("ann", key=KEY["carl"])
        [event] = await door.events("operator.key_added")
        assert (event["operator"], event["device"], event["by"], event["invitation"]) == (
            "ann",
            "phone",
            "ann",
            "AAAA",
        )

    async def after(door: Door) -> None:
        assert (await door.come("ann", key=KEY["bob"])).again and door.may("bob", "manage", None)

    run(tmp_path, work, after)


def test_of_many_devices_that_come_with_one_code_one_is_added(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await device(door)
        joined, refused = await outcomes(
            *(door.come("ann", key=signing.public(bytes([60 + n]) * 32)) for n in range(8))
        )
        assert (
            len(joined) == 1
            and all(isinstance(e, NotAllowed) for e in refused)
            and len(door.authority.devices("ann")) == 2
        )

    run(tmp_path, work)


def test_a_device_that_is_asked_about_first(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await device(door, confirm=True)
        coming = asyncio.ensure_future(door.come("ann", key=KEY["bob"]))
        shown = await door.asking()
        assert shown.key == signing.show(KEY["bob"]) and len(door.authority.devices("ann")) == 1
        await door.invitations.decide("AAAA", KEY["bob"], True, KEY["ann"], time.time())
        assert (await coming).of == "ann" and len(door.authority.devices("ann")) == 2

    run(tmp_path, work)


def test_the_invitation_of_a_device_ends_with_the_inviting_device(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.authority.add_key("ann", KEY["bob"], KEY["ann"], time.time(), "phone")
        await device(door, "AAAA", by="bob")
        await device(door, "BBBB", by="ann")
        await door.authority.revoke_key(KEY["bob"], KEY["ann"], time.time())
        assert (door.state("AAAA"), door.state("BBBB")) == ("void", "open")
        with pytest.raises(NotAllowed):
            await door.come("ann", key=KEY["carl"])

    run(tmp_path, work)


def test_a_code_for_a_device_needs_the_right_to_add_it(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await door.authority.add_operator("bob", "human", KEY["bob"], KEY["ann"], time.time())
        await door.authority.issue(
            KEY["bob"], frozenset(("manage",)), Scope(), KEY["ann"], time.time()
        )
        with pytest.raises(NotAllowed):
            await device(door, by="bob")
        with pytest.raises(Refused, match="has or had a device"):
            await device(door, name="device")
        with pytest.raises(Usage):
            await door.invitations.make(
                "AAAA",
                signing.public(secret("AAAA")),
                READ,
                Scope(),
                "human",
                False,
                600,
                KEY["ann"],
                time.time(),
                "ann",
                "",
            )
        assert (await device(door, by="bob", of="bob")).of == "bob", "one's own is always one's own"

    run(tmp_path, work)
