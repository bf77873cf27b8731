"""Rights on a machine (A5, S7): checked at each act, revoked with effect on the next act.

The machine never becomes closed to all operators.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core.people import envelope, recovery
from holdfast.core.people.envelope import Scope
from holdfast.home.keys import Identity
from holdfast.host.people import authority as authorities
from holdfast.host.people import key_passes
from holdfast.host.people.authority import Authority
from holdfast.host.storage import store
from holdfast.host.storage.store import Store
from holdfast.model import signing
from holdfast.model.errors import NotAllowed, NotFound, Refused, Unavailable, Usage
from holdfast.model.limits import DECISIONS_KEPT, REVOKED_TOLD_S
from holdfast.model.reserved_names import RESERVED
from holdfast.model.rights import ADMIN, EXECUTE, READ
from tests.support.examples import examples

PRIVATE = {
    name: bytes([n + 1]) * 32
    for n, name in enumerate(["machine", "ann", "bob", "agent", "eve", "tablet", "dave"])
}
KEY = {name: signing.public(private) for name, private in PRIVATE.items()}
MACHINE = Identity("machine", "machine", KEY["machine"], 0, PRIVATE["machine"], False, "")
S, T = "0123456789ab", "zzzzzzzzzzzz"
NOW = 1_000_000.0
Work = Callable[[Authority], Coroutine[Any, Any, Any]]


def with_authority(path: Path, work: Work, machine: Identity = MACHINE) -> Any:
    async def go() -> Any:
        opened = Store(str(path / "state.db"))
        authority = Authority(opened, machine)
        opened.start()
        try:
            return await work(authority)
        finally:
            for task in list(authority._serially._tasks):
                task.cancel()
            opened.close()

    return asyncio.run(go())


def may(
    authority: Authority,
    name: str,
    right: str,
    session: str | None = S,
    now: float = NOW,
    **more: Any,
) -> bool:
    try:
        authority.require(KEY[name], right, session, now, **more)
    except NotAllowed:
        return False
    return True


async def people(authority: Authority) -> None:
    """Ann has all rights, bob is known."""
    await authority.first_identity("ann", "human", KEY["ann"], NOW)
    await authority.add_operator("bob", "human", KEY["bob"], KEY["ann"], NOW)


async def hand_on(
    authority: Authority, giver: str, holder: str, rights: Any, scope: Scope = Scope(), at: int = 0
) -> str:
    """An envelope as the giver's own client makes it, offline."""
    chain = envelope.decode(authority.envelopes(KEY[giver])[at].text)
    return envelope.encode(
        envelope.delegate(PRIVATE[giver], chain, KEY[holder], rights, scope, os.urandom(16))
    )


# ------------------------------------------------------------ the first operator, and admissions


@pytest.mark.parametrize("name", RESERVED)
def test_p3_no_way_in_takes_a_reserved_name(tmp_path: Path, name: str) -> None:
    async def work(a: Authority) -> None:
        with pytest.raises(Usage):
            await a.first_identity(name, "human", KEY["ann"], NOW)
        await people(a)
        with pytest.raises(Usage):
            await a.add_operator(name, "agent", KEY["eve"], KEY["ann"], NOW)
        with pytest.raises(Usage):  # an invited key
            a.newcomer(name, "agent", KEY["eve"], KEY["ann"], NOW)
        chain = envelope.decode(a.envelopes(KEY["ann"])[0].text)
        made = envelope.delegate(
            PRIVATE["ann"], chain, KEY["eve"], ("observe",), envelope.Scope(), os.urandom(16)
        )
        with pytest.raises(Usage):  # the holder of an envelope that was signed elsewhere
            await a.admit(name, "agent", envelope.encode(made), KEY["eve"], NOW)
        wish = recovery.sign(PRIVATE["machine"], name, "human", KEY["eve"], int(NOW), bytes(16))
        with pytest.raises(Usage):
            await a.recover(*wish, NOW)
        assert a.names() == ["ann", "bob"]

    with_authority(tmp_path, work)


def test_the_first_identity_has_admin_and_there_is_one_first(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        assert a.needs_first
        with pytest.raises(NotAllowed, match="nobody who is known"):
            a.require(KEY["ann"], "observe", S, NOW)
        both = await asyncio.gather(
            a.first_identity("ann", "human", KEY["ann"], NOW),
            a.first_identity("eve", "human", KEY["eve"], NOW),
            return_exceptions=True,
        )
        assert isinstance(both[1], Refused) and not a.needs_first
        assert all(may(a, "ann", right, session) for right in ADMIN for session in (S, T, None))
        assert not may(a, "eve", "observe")
        assert (
            a.rights_of(KEY["ann"], S, NOW) == ADMIN
            and a.rights_of(KEY["eve"], S, NOW) == frozenset()
        )
        assert a.who(KEY["ann"]).kind == "human" and a.describe("ann", NOW).added_by == "machine"

    with_authority(tmp_path, work)


def test_a_new_operator_has_no_rights_until_they_are_granted(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        assert a.rights_of(KEY["bob"], S, NOW) == frozenset() and not may(a, "bob", "observe")
        await a.issue(KEY["bob"], READ, Scope(session=S), KEY["ann"], NOW)
        assert (
            may(a, "bob", "observe")
            and not may(a, "bob", "observe", T)
            and not may(a, "bob", "input")
        )

    with_authority(tmp_path, work)


def test_a_refusal_names_the_operator_the_right_and_a_possible_giver(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(KEY["bob"], READ, Scope(session=T, expires=int(NOW) + 10), KEY["ann"], NOW)
        with pytest.raises(
            NotAllowed,
            match=(
                f"bob lacks the right `observe` in session {S}: the envelope is for another session"
            ),
        ) as refused:
            a.require(KEY["bob"], "observe", S, NOW)
        assert (
            refused.value.exit_code == 4
            and refused.value.name == "not_allowed"
            and "ann can grant it" in refused.value.recover
        )
        assert refused.value.facts == {
            "operator": "bob",
            "right": "observe",
            "session": S,
            "grantors": ["ann"],
        }
        for after, words in (
            (10, "ended 0 s ago"),
            (100, "ended 90 s ago"),
            (10 + 5 * 60, "ended 5 minutes ago"),
            (10 + 3 * 86400, "ended 3 days ago"),
        ):
            with pytest.raises(NotAllowed, match=words):
                a.require(KEY["bob"], "observe", T, NOW + after)
        with pytest.raises(NotAllowed, match="no right `input`"):
            a.require(KEY["bob"], "input", T, NOW)
        await a.add_operator("eve", "human", KEY["eve"], KEY["ann"], NOW)
        await a.issue(KEY["eve"], ADMIN, Scope(session=T), KEY["ann"], NOW)
        assert a.grantors("input", T, NOW) == ["ann", "eve"] and a.grantors(
            "input", S, NOW
        ) == a.grantors("new", T, NOW) == ["ann"]
        await a.revoke_operator("eve", KEY["ann"], NOW)
        await a.revoke_operator("ann", KEY["ann"], NOW, force=True)
        with pytest.raises(NotAllowed) as refused:
            a.require(KEY["bob"], "input", T, NOW)
        assert "operator recover" in refused.value.recover

    with_authority(tmp_path, work)


def test_names_and_keys_are_one_operator_s_for_ever(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.revoke_operator("bob", KEY["ann"], NOW)
        for name, kind, key, error in (
            ("ann", "human", KEY["eve"], Refused),
            ("bob", "human", KEY["eve"], Refused),
            ("eve", "human", KEY["ann"], Refused),
            ("eve", "human", KEY["bob"], Refused),
            ("eve", "robot", KEY["eve"], Usage),
            ("-eve", "human", KEY["eve"], Usage),
            ("machine", "human", KEY["eve"], Usage),
            ("eve", "human", KEY["machine"], Usage),
            ("eve", "human", b"x", Usage),
        ):
            with pytest.raises(error):
                await a.add_operator(name, kind, key, KEY["ann"], NOW)
        with pytest.raises(Refused, match="revoked"):
            await a.add_key("bob", KEY["tablet"], KEY["ann"], NOW)
        with pytest.raises(NotFound):
            await a.add_key("nobody", KEY["tablet"], KEY["ann"], NOW)

    with_authority(tmp_path, work)


def test_a_second_device_is_the_same_operator_with_the_same_rights(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.add_key("ann", KEY["tablet"], KEY["ann"], NOW)
        assert a.who(KEY["tablet"]).name == "ann" and all(
            may(a, "tablet", right) for right in ADMIN
        )
        with pytest.raises(NotAllowed):
            await a.add_key("ann", KEY["eve"], KEY["bob"], NOW)
        await a.revoke_key(KEY["tablet"], KEY["ann"], NOW)
        assert not may(a, "tablet", "input") and may(a, "ann", "input")
        with pytest.raises(NotAllowed, match="the device device-2 of ann was revoked"):
            a.who(KEY["tablet"])

    with_authority(tmp_path, work)


def test_an_operator_that_may_grant_may_also_admit(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(KEY["bob"], EXECUTE | {"grant"}, Scope(session=S), KEY["ann"], NOW)
        text = await hand_on(a, "bob", "agent", READ)
        with pytest.raises(NotAllowed, match="known"):
            await a.give(text, NOW)
        with pytest.raises(NotAllowed, match="another key"):
            await a.admit("ceo", "human", text, KEY["eve"], NOW)
        await a.admit("scout", "agent", text, KEY["agent"], NOW)
        assert (
            may(a, "agent", "observe")
            and not may(a, "agent", "input")
            and not may(a, "agent", "observe", T)
        )
        shown = a.describe("scout", NOW)
        assert (
            shown.added_by == "bob"
            and shown.envelopes[0].through == ("machine", "bob")
            and shown.envelopes[0].given_by == "bob"
        )

    with_authority(tmp_path, work)


# ------------------------------------------------------------ giving


def test_a5_an_issued_envelope_is_no_wider_than_the_givers(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(
            KEY["bob"],
            {"manage", "grant", "observe"},
            Scope(expires=int(NOW) + 100),
            KEY["ann"],
            NOW,
        )
        await a.add_operator("eve", "human", KEY["eve"], KEY["bob"], NOW)
        for rights, scope in (({"input"}, Scope()), ({"observe"}, Scope(expires=int(NOW) + 101))):
            with pytest.raises(NotAllowed, match="not granted"):
                await a.issue(KEY["eve"], rights, scope, KEY["bob"], NOW)
        held = await a.issue(KEY["eve"], {"observe"}, Scope(), KEY["bob"], NOW)
        assert held.chain.last.scope.expires == int(NOW) + 100  # inherited by default
        with pytest.raises(NotAllowed):
            await a.issue(KEY["bob"], {"observe"}, Scope(), KEY["eve"], NOW)
        with pytest.raises(NotAllowed):
            await a.issue(KEY["eve"], {"observe"}, Scope(), KEY["bob"], NOW + 100)

    with_authority(tmp_path, work)


def test_the_machine_signs_only_for_operators_that_manage_it(tmp_path: Path) -> None:
    """An operator with `grant` alone uses its own key: the machine's grant would outlive it."""

    async def work(a: Authority) -> None:
        await people(a)
        await a.add_operator("eve", "human", KEY["eve"], KEY["ann"], NOW)
        await a.issue(KEY["bob"], ADMIN - {"manage"}, Scope(), KEY["ann"], NOW)
        with pytest.raises(NotAllowed, match="bob lacks the right `manage`"):
            await a.issue(KEY["eve"], {"observe"}, Scope(), KEY["bob"], NOW)
        await a.issue(KEY["bob"], {"manage"}, Scope(), KEY["ann"], NOW)
        await a.issue(KEY["eve"], {"observe"}, Scope(), KEY["bob"], NOW)
        with pytest.raises(NotAllowed, match="you lack `manage`"):
            await a.issue(
                KEY["eve"], {"manage"}, Scope(), KEY["bob"], NOW
            )  # no envelope has both this right and `grant`

    with_authority(tmp_path, work)


def test_a_presented_envelope_is_verified(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(KEY["bob"], READ | {"grant"}, Scope(), KEY["ann"], NOW)
        good = await hand_on(a, "ann", "bob", {"input"}, Scope(expires=int(NOW) + 5))
        own = envelope.encode(
            envelope.delegate(PRIVATE["eve"], (), KEY["bob"], ADMIN, Scope(), bytes(16))
        )
        forgotten = envelope.encode(
            envelope.delegate(PRIVATE["machine"], (), KEY["bob"], ADMIN, Scope(), bytes(16))
        )
        ended = await hand_on(a, "ann", "bob", {"run"}, Scope(session=S, expires=int(NOW) + 5))
        for text, now in (
            (ended, NOW + 5),
            ("", NOW),
            ("hfe1.x", NOW),
            (good[:-3] + "AAA", NOW),
            (own, NOW),
            (forgotten, NOW),
            (good, NOW + 5),
        ):
            with pytest.raises(NotAllowed, match="not accepted"):
                await a.give(text, now)
        held = await a.give(good, NOW)
        assert may(a, "bob", "input") and not may(a, "bob", "input", now=NOW + 5)
        await a.revoke_link(held.id, KEY["ann"], NOW)
        with pytest.raises(NotAllowed, match="revoked"):
            await a.give(good, NOW)
        await a.give(await hand_on(a, "ann", "bob", {"halt"}, Scope(not_before=int(NOW) + 5)), NOW)
        assert not may(a, "bob", "halt") and may(a, "bob", "halt", now=NOW + 5)

    with_authority(tmp_path, work)


def test_expired_envelopes_give_way_and_valid_envelopes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorities, "ENVELOPES_MAX", 3)

    async def work(a: Authority) -> None:
        await people(a)
        for expires in (10, 20, 1000):
            await a.issue(
                KEY["bob"], {"observe"}, Scope(expires=int(NOW) + expires), KEY["ann"], NOW
            )
        with pytest.raises(Refused, match="3 envelopes"):
            await a.issue(KEY["bob"], {"input"}, Scope(), KEY["ann"], NOW)
        await a.issue(KEY["bob"], {"input"}, Scope(), KEY["ann"], NOW + 20)
        assert [one.chain.last.scope.expires for one in a.envelopes(KEY["bob"])] == [
            int(NOW) + 1000,
            None,
        ]

    with_authority(tmp_path, work)
    with_authority(tmp_path, expect(lambda a: len(a.envelopes(KEY["bob"])) == 2))


def expect(true: Callable[[Authority], bool]) -> Work:
    async def work(a: Authority) -> None:
        assert true(a)

    return work


# ------------------------------------------------------------ time, commands, rates


def test_a_kept_decision_follows_the_clock_both_ways(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(
            KEY["bob"],
            {"observe"},
            Scope(not_before=int(NOW), expires=int(NOW) + 10),
            KEY["ann"],
            NOW,
        )
        await a.issue(
            KEY["bob"],
            {"observe"},
            Scope(not_before=int(NOW) + 8, expires=int(NOW) + 20),
            KEY["ann"],
            NOW,
        )
        wanted = {-1: False, 0: True, 9: True, 10: True, 19: True, 20: False}
        for after in (0, 9, 10, 19, 20, -1, 0, 19, -1, 20, 9):
            assert may(a, "bob", "observe", now=NOW + after) == wanted[after]
        assert (
            a.until(KEY["bob"], "observe", S, NOW) == NOW + 10
            and a.until(KEY["bob"], "observe", S, NOW + 9) == NOW + 20
        )
        assert a.until(KEY["bob"], "input", S, NOW) == NOW and a.until(
            KEY["ann"], "input", S, NOW
        ) == float("inf")

    with_authority(tmp_path, work)


def test_kept_decisions_are_bounded(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        for n in range(DECISIONS_KEPT + 10):
            a.require(KEY["ann"], "observe", str(n), NOW)
        assert len(a._yes) <= DECISIONS_KEPT

    with_authority(tmp_path, work)


def test_commands_are_asked_each_time(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(
            KEY["bob"], EXECUTE, Scope(commands=frozenset(["git", "read-only"])), KEY["ann"], NOW
        )
        git, shell = (frozenset(["git"]),), (frozenset(["git"]), frozenset(["sh"]))
        for _ in range(2):
            assert (
                may(a, "bob", "run", command=git)
                and not may(a, "bob", "run", command=shell)
                and not may(a, "bob", "run")
            )
        assert (
            not may(a, "bob", "input")
            and may(a, "bob", "observe")
            and "run" in a.rights_of(KEY["bob"], S, NOW)
        )
        await a.issue(KEY["bob"], {"run"}, Scope(session=T), KEY["ann"], NOW)
        assert may(a, "bob", "run", T) and not may(a, "bob", "run", command=shell)

    with_authority(tmp_path, work)


def test_a_rate_is_shared_with_the_holders_it_is_handed_to(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(KEY["bob"], EXECUTE | {"grant", "halt"}, Scope(rate=(3, 30)), KEY["ann"], NOW)
        await a.admit(
            "scout",
            "agent",
            await hand_on(a, "bob", "agent", EXECUTE, Scope(rate=(2, 30))),
            KEY["agent"],
            NOW,
        )
        assert may(a, "agent", "run") and may(a, "agent", "run") and not may(a, "agent", "run")
        assert all(may(a, "agent", "run", spend=False) for _ in range(5)), (
            "asked again for the same act"
        )
        assert may(a, "bob", "run") and not may(a, "bob", "run")
        assert all(may(a, "bob", right) for right in ("halt", "observe", "log") for _ in range(5))
        with pytest.raises(NotAllowed, match="as often as it may") as refused:
            a.require(KEY["bob"], "run", S, NOW)
        assert (
            refused.value.facts["retry_in_s"] == 10.0
            and not may(a, "bob", "run", now=NOW + 9)
            and may(a, "bob", "run", now=NOW + 10.1)
        )

    with_authority(tmp_path, work)


# ------------------------------------------------------------ revoking


def test_a5_revocation_bites_on_the_next_call(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        told: list[int] = []
        a.on_change.append(lambda: told.append(a.version))
        held = await a.issue(KEY["bob"], EXECUTE, Scope(), KEY["ann"], NOW)
        assert may(a, "bob", "input") and len(told) == 1
        writing = asyncio.ensure_future(a.revoke_link(held.id, KEY["ann"], NOW))
        await asyncio.sleep(0)
        assert not writing.done() and not may(a, "bob", "input") and len(told) == 2, (
            "it did not bite before it was durable"
        )
        await writing
        assert a.describe("bob", NOW).envelopes[0].state == "revoked"

    with_authority(tmp_path, work)


def test_s7_the_spawner_or_giver_can_leave_and_the_others_continue(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(KEY["bob"], ADMIN, Scope(), KEY["ann"], NOW)
        await a.revoke_operator("ann", KEY["bob"], NOW)
        assert not any(may(a, "ann", right) for right in ADMIN)
        assert all(may(a, "bob", right, session) for right in ADMIN for session in (S, T, None))
        await a.add_operator("eve", "human", KEY["eve"], KEY["bob"], NOW)
        await a.issue(KEY["eve"], ADMIN, Scope(), KEY["bob"], NOW)
        assert may(a, "eve", "end")

    with_authority(tmp_path, work)


def test_a5_envelopes_handed_on_with_a_key_end_with_the_key(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(KEY["bob"], EXECUTE | {"grant"}, Scope(), KEY["ann"], NOW)
        await a.admit(
            "scout",
            "agent",
            await hand_on(a, "bob", "agent", EXECUTE | {"grant"}),
            KEY["agent"],
            NOW,
        )
        await a.admit("eve", "agent", await hand_on(a, "agent", "eve", EXECUTE), KEY["eve"], NOW)
        assert may(a, "agent", "run") and may(a, "eve", "run")
        await a.revoke_operator("bob", KEY["ann"], NOW)
        assert not may(a, "agent", "run") and not may(a, "eve", "run") and may(a, "ann", "run")
        with pytest.raises(NotAllowed, match="a key that the envelope comes from was revoked"):
            a.require(KEY["eve"], "run", S, NOW)

    with_authority(tmp_path, work)


def test_a_stolen_key_that_is_revoked_with_its_grants_leaves_no_right(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(KEY["bob"], ADMIN, Scope(), KEY["ann"], NOW)
        await a.add_operator("eve", "human", KEY["eve"], KEY["bob"], NOW)
        await a.issue(KEY["eve"], ADMIN, Scope(), KEY["bob"], NOW)
        await a.revoke_key(KEY["bob"], KEY["ann"], NOW)
        assert may(a, "eve", "run") and not may(a, "bob", "run")
        await a.revoke_operator("bob", KEY["ann"], NOW, with_grants=True)
        assert not may(a, "eve", "run") and may(a, "ann", "run")

    with_authority(tmp_path, work)


def test_a_key_that_was_never_seen_can_be_revoked(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(KEY["bob"], EXECUTE | {"grant"}, Scope(), KEY["ann"], NOW)
        text = await hand_on(a, "bob", "agent", EXECUTE)
        await a.revoke_key(KEY["agent"], KEY["ann"], NOW)
        for work_ in (
            a.admit("scout", "agent", text, KEY["agent"], NOW),
            a.add_operator("scout", "agent", KEY["agent"], KEY["ann"], NOW),
        ):
            with pytest.raises(Refused):
                await work_

    with_authority(tmp_path, work)


def test_a5_a_key_that_lost_its_rights_is_told_the_reason_for_a_bounded_time(
    tmp_path: Path,
) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        assert key_passes.ended(a, NOW) == [], "bob never had a right"
        await a.issue(KEY["bob"], READ, Scope(expires=int(NOW) + 10), KEY["ann"], NOW)
        await a.add_operator("eve", "human", KEY["eve"], KEY["ann"], NOW)
        await a.revoke_operator("eve", KEY["ann"], NOW)
        assert key_passes.ended(a, NOW) == [KEY["eve"]]
        assert key_passes.ended(a, NOW + 10) == [KEY["bob"], KEY["eve"]], "the newest loss first"
        assert key_passes.ended(a, NOW + REVOKED_TOLD_S + 1) == [KEY["bob"]]
        assert key_passes.ended(a, NOW + REVOKED_TOLD_S + 11) == []

    with_authority(tmp_path, work)


def test_without_manage_an_operator_revokes_only_its_own_and_given_envelopes(
    tmp_path: Path,
) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        mine = await a.issue(KEY["bob"], EXECUTE | {"grant"}, Scope(), KEY["ann"], NOW)
        for name in ("agent", "eve"):
            await a.admit(
                name, "agent", await hand_on(a, "bob", name, READ | {"grant"}), KEY[name], NOW
            )
        [eve] = a.envelopes(KEY["eve"])
        [agent] = a.envelopes(KEY["agent"])
        for attempt in (
            a.revoke_link(eve.id, KEY["agent"], NOW),
            a.revoke_link(mine.id, KEY["agent"], NOW),
            a.revoke_operator("bob", KEY["agent"], NOW),
            a.revoke_operator("ann", KEY["bob"], NOW),
            a.revoke_key(KEY["ann"], KEY["bob"], NOW),
            a.revoke_key(KEY["dave"], KEY["bob"], NOW),
            a.revoke_link(b"x" * 32, KEY["bob"], NOW),
            a.revoke_operator("eve", KEY["agent"], NOW),
            a.add_operator("x", "human", KEY["dave"], KEY["dave"], NOW),
            a.revoke_link(a.envelopes(KEY["ann"])[0].id, KEY["bob"], NOW),
        ):
            with pytest.raises(NotAllowed):
                await attempt
        await a.revoke_link(eve.id, KEY["bob"], NOW)  # the issuer
        assert not may(a, "eve", "observe")
        await a.revoke_link(agent.id, KEY["agent"], NOW)  # the holder
        assert not may(a, "agent", "observe") and may(a, "bob", "input")
        await a.revoke_operator("agent", KEY["bob"], NOW)  # the operator that let the agent in
        await a.revoke_operator("bob", KEY["bob"], NOW)  # the operator itself
        with pytest.raises(NotAllowed, match="bob was revoked"):
            await a.revoke_operator("eve", KEY["bob"], NOW)
        with pytest.raises(Usage):
            await a.revoke_key(KEY["machine"], KEY["ann"], NOW, force=True)

    with_authority(tmp_path, work)


# ------------------------------------------------------------ the orphan rule


def recover(
    name: str, key: str, at: float = NOW, nonce: bytes = b"n" * 16, machine: str = "machine"
) -> tuple[bytes, bytes]:
    return recovery.sign(PRIVATE[machine], name, "human", KEY[key], int(at), nonce)


def test_s7_the_last_manager_leaves_only_by_force_and_recovery_is_possible(
    tmp_path: Path,
) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        await a.issue(
            KEY["bob"], {"manage", "grant", "input"}, Scope(expires=int(NOW) + 100), KEY["ann"], NOW
        )
        root = a.envelopes(KEY["ann"])[0].id
        for attempt in (
            a.revoke_operator("ann", KEY["ann"], NOW),
            a.revoke_key(KEY["ann"], KEY["bob"], NOW),
            a.revoke_link(root, KEY["bob"], NOW),
        ):
            with pytest.raises(Refused, match="last who can let others in") as refused:
                await attempt
            assert "operator recover" in refused.value.recover
        assert may(a, "ann", "manage"), "a refused revocation has no effect"
        await a.revoke_operator("ann", KEY["bob"], NOW, force=True)
        with pytest.raises(Refused, match="last who can"):
            await a.revoke_operator("bob", KEY["bob"], NOW)  # for a time, but the last
        assert not a.grantors("manage", None, NOW + 100), "bob's has ended: no manager is left"

        with pytest.raises(NotAllowed, match="not recovered"):
            await a.recover(*recover("eve", "eve", machine="eve"), NOW + 100)
        await a.recover(*recover("eve", "eve", NOW + 100), NOW + 100)
        assert all(
            may(a, "eve", right, session, NOW + 100) for right in ADMIN for session in (S, None)
        )
        await a.issue(KEY["bob"], ADMIN, Scope(), KEY["eve"], NOW + 100)
        assert may(a, "bob", "end", now=NOW + 200)

    with_authority(tmp_path, work)


def test_a_recovery_works_once_and_not_for_the_revoked(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        # a new key for an operator that lost the old one
        await a.recover(*recover("bob", "tablet"), NOW)
        assert (
            a.who(KEY["tablet"]).name == "bob"
            and may(a, "tablet", "manage")
            and not may(a, "bob", "observe")
        )
        with pytest.raises(NotAllowed, match="used already"):
            await a.recover(*recover("bob", "tablet"), NOW)
        held = a.envelopes(KEY["tablet"])[0]
        await a.revoke_link(held.id, KEY["ann"], NOW)
        with pytest.raises(NotAllowed, match="used already"):
            await a.recover(*recover("bob", "tablet"), NOW)
        await a.recover(*recover("bob", "tablet", nonce=b"m" * 16), NOW)
        await a.revoke_key(KEY["tablet"], KEY["ann"], NOW)
        for wish in (
            recover("bob", "tablet", nonce=b"o" * 16),
            recover("eve", "tablet", nonce=b"o" * 16),
            recover("eve", "ann", nonce=b"o" * 16),
            recover("bob", "ann", nonce=b"o" * 16),
        ):
            with pytest.raises(Refused):
                await a.recover(*wish, NOW)
        await a.revoke_operator("bob", KEY["ann"], NOW)
        with pytest.raises(Refused, match="revoked"):
            await a.recover(*recover("bob", "eve", nonce=b"o" * 16), NOW)

    with_authority(tmp_path, work)
    with_authority(tmp_path, lambda a: refused(a.recover(*recover("bob", "tablet"), NOW)))


async def refused(work: Coroutine[Any, Any, Any]) -> None:
    with pytest.raises(Refused):
        await work


def test_a_lost_database_loses_authority_but_no_revocation(tmp_path: Path) -> None:
    texts: dict[str, str] = {}

    async def before(a: Authority) -> None:
        await people(a)
        texts["bob"] = (await a.issue(KEY["bob"], ADMIN, Scope(), KEY["ann"], NOW)).text
        await a.revoke_operator("bob", KEY["ann"], NOW)

    async def after(a: Authority) -> None:
        assert not a.needs_first and not may(a, "ann", "observe")
        with pytest.raises(Refused, match="lost") as why:
            await a.first_identity("eve", "human", KEY["eve"], NOW)
        assert "operator recover" in why.value.recover
        with pytest.raises(NotAllowed, match="does not remember"):
            await a.admit("bob", "human", texts["bob"], KEY["bob"], NOW)

    async def back(a: Authority) -> None:
        await a.recover(*recover("ann", "ann"), NOW)
        with pytest.raises(NotAllowed, match="does not remember"):
            await a.admit("bob", "human", texts["bob"], KEY["bob"], NOW)
        assert may(a, "ann", "manage")

    with_authority(tmp_path, before)
    (tmp_path / "state.db").write_bytes(os.urandom(8192))
    for work in (after, after, back):
        with_authority(tmp_path, work)


def test_another_machine_key_voids_the_envelopes_of_the_old_key(tmp_path: Path) -> None:
    with_authority(tmp_path, people)
    other = Identity("machine", "machine", KEY["dave"], 0, PRIVATE["dave"], False, "")

    async def work(a: Authority) -> None:
        assert a._roster.unreadable == 1 and not may(a, "ann", "observe") and not a.needs_first
        await a.recover(*recover("ann", "ann", machine="dave"), NOW)
        assert may(a, "ann", "observe")

    with_authority(tmp_path, work, other)


# ------------------------------------------------------------ the disk


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async def before(a: Authority) -> tuple[Any, Any]:
        await people(a)
        await a.add_key("bob", KEY["tablet"], KEY["bob"], NOW)
        await a.issue(KEY["bob"], EXECUTE | {"grant"}, Scope(session=S), KEY["ann"], NOW)
        await a.admit("scout", "agent", await hand_on(a, "bob", "agent", READ), KEY["agent"], NOW)
        await a.issue(KEY["tablet"], READ, Scope(expires=int(NOW) + 9), KEY["ann"], NOW)
        await a.revoke_key(KEY["tablet"], KEY["bob"], NOW)
        return a.operators(NOW), [
            (n, r, s, may(a, n, r, s)) for n in PRIVATE for r in ADMIN for s in (S, T, None)
        ]

    async def after(a: Authority) -> tuple[Any, Any]:
        events = [e["event"] for e in await a._store.run(store.events_of(None, 0, 100))]
        assert events == [
            "operator.first",
            "operator.added",
            "operator.key_added",
            "envelope.given",
            "operator.admitted",
            "envelope.given",
            "revoked",
        ]
        return a.operators(NOW), [
            (n, r, s, may(a, n, r, s)) for n in PRIVATE for r in ADMIN for s in (S, T, None)
        ]

    assert with_authority(tmp_path, before) == with_authority(tmp_path, after)


def in_the_store(s: Store, work: Callable[[apsw.Connection], None]) -> None:
    done = threading.Event()

    def job(db: apsw.Connection) -> None:
        work(db)
        done.set()

    s.post(job)
    assert done.wait(120)


def fill(db: apsw.Connection) -> None:
    """Lets no further row into the table of revocations, like a full disk."""
    db.execute("COMMIT")  # a full disk takes back the whole transaction
    db.execute("PRAGMA max_page_count=1")
    for size in (900, 100, 10, 1):
        with contextlib.suppress(apsw.FullError):
            while True:
                db.execute(
                    "INSERT INTO revocations VALUES ('filler', ?, 0, ?)",
                    (os.urandom(8), bytes(size)),
                )
    db.execute("BEGIN")


def pragma(text: str) -> Callable[[Store], None]:
    return lambda s: in_the_store(s, lambda db: (db.execute(f"PRAGMA {text}"), None)[1])


# how to spoil and how to mend the row
DISKS: dict[str, tuple[Callable[[Store], None], Callable[[Store], None]]] = {
    "full": (lambda s: in_the_store(s, fill), pragma("max_page_count=1000000")),
    "read-only": (pragma("query_only=1"), pragma("query_only=0")),
}


@pytest.mark.parametrize("disk", DISKS)
def test_a5_a_revocation_that_cannot_be_written_is_told_and_bites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: str
) -> None:
    monkeypatch.setattr(store, "RETRY_S", 0.02)
    spoil, mend = DISKS[disk]

    async def work(a: Authority) -> None:
        await people(a)
        held = await a.issue(KEY["bob"], EXECUTE, Scope(), KEY["ann"], NOW)
        assert may(a, "bob", "input")
        spoil(a._store)
        with pytest.raises(
            Unavailable, match="is revoked from now on, but that could not be written down"
        ) as told:
            await a.revoke_link(held.id, KEY["ann"], NOW)
        assert "restart" in told.value.recover and a.owed == 1 and not may(a, "bob", "input")
        with pytest.raises(Unavailable):
            await a.revoke_operator("bob", KEY["ann"], NOW)
        with pytest.raises(NotAllowed, match="bob was revoked"):
            a.who(KEY["bob"])
        mend(a._store)
        async with asyncio.timeout(120):
            while a.owed:
                await asyncio.sleep(0)
        assert not may(a, "bob", "input")

    with_authority(tmp_path, work)
    with_authority(
        tmp_path,
        expect(lambda a: not may(a, "bob", "input") and a.describe("bob", NOW).revoked == NOW),
    )


def test_an_envelope_that_cannot_be_stored_is_not_granted(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        version = a.version
        DISKS["read-only"][0](a._store)
        for attempt in (
            a.issue(KEY["bob"], READ, Scope(), KEY["ann"], NOW),
            a.add_operator("eve", "human", KEY["eve"], KEY["ann"], NOW),
            a.add_key("bob", KEY["tablet"], KEY["bob"], NOW),
            a.recover(*recover("eve", "eve"), NOW),
        ):
            with pytest.raises(Unavailable):
                await attempt
        assert (
            a.version == version and not may(a, "bob", "observe") and not may(a, "eve", "observe")
        )
        DISKS["read-only"][1](a._store)
        await a.issue(KEY["bob"], READ, Scope(), KEY["ann"], NOW)
        assert may(a, "bob", "observe")

    with_authority(tmp_path, work)


def test_a_cancelled_caller_does_not_leave_memory_behind_the_disk(tmp_path: Path) -> None:
    async def work(a: Authority) -> None:
        await people(a)
        waiting = asyncio.ensure_future(a.add_operator("eve", "human", KEY["eve"], KEY["ann"], NOW))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.gather(*a._serially._tasks)
        assert a.who(KEY["eve"]).name == "eve"

    with_authority(tmp_path, work)


# ------------------------------------------------------------ against a naive model

HOLDERS = ["ann", "bob", "agent", "eve", "tablet", "dave"]
SOME = ["observe", "input", "grant", "manage", "halt"]


class Rules(RuleBasedStateMachine):
    """The model: links as plain tuples, results computed anew each time, no cache, no disk."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.owner: dict[str, str] = {}
        self.chains: list[
            list[tuple[bytes, str, str, frozenset[str], str | None, float]]
        ] = []  # id, issuer, holder, rights, session, end
        self.dead_links: set[bytes] = set()
        self.dead_keys: set[str] = set()
        self.gone: set[str] = set()

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.runner.__enter__()
        self.open()
        self.do(self.a.first_identity("ann", "human", KEY["ann"], self.now))
        self.owner["ann"] = "ann"
        self.learn("ann")

    def open(self) -> None:
        self.store = Store(self.folder.name + "/state.db")
        self.store._db.execute(
            "PRAGMA synchronous=OFF"
        )  # the test is about the written rows, not about the time of the write
        self.a = Authority(self.store, MACHINE)
        self.store.start()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self.runner.run(work)
        except (NotAllowed, Refused, NotFound) as e:
            return e

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.store.close()
            self.runner.__exit__(None, None, None)
            self.folder.cleanup()

    def learn(self, holder: str) -> None:
        """Adds a new envelope to the model."""
        names = {key: name for name, key in KEY.items()}
        links = self.a.envelopes(KEY[holder])[-1].chain.links
        self.chains.append(
            [
                (
                    one.id,
                    names[one.issuer],
                    names[one.holder],
                    one.rights,
                    one.scope.session,
                    float("inf") if one.scope.expires is None else one.scope.expires,
                )
                for one in links
            ]
        )

    def allowed(self, key: str, right: str, session: str | None) -> bool:
        if key not in self.owner or key in self.dead_keys or self.owner[key] in self.gone:
            return False
        return any(
            chain[-1][2] == key
            and all(
                link not in self.dead_links
                and issuer not in self.dead_keys
                and holder not in self.dead_keys
                and right in rights
                and self.now < end
                and (where is None or (where == session and right != "manage"))
                for link, issuer, holder, rights, where, end in chain
            )
            for chain in self.chains
        )

    @rule(name=st.sampled_from(HOLDERS), by=st.sampled_from(HOLDERS))
    def add(self, name: str, by: str) -> None:
        got = self.do(self.a.add_operator(name, "human", KEY[name], KEY[by], self.now))
        expected = (
            (self.allowed(by, "manage", None) or self.allowed(by, "grant", None))
            and name not in self.owner
            and name not in self.dead_keys
            and name not in self.owner.values()
        )
        assert isinstance(got, Exception) == (not expected), got
        if expected:
            self.owner[name] = name

    @rule(
        holder=st.sampled_from(HOLDERS),
        by=st.sampled_from(HOLDERS),
        rights=st.frozensets(st.sampled_from(SOME), min_size=1) | st.just(ADMIN),
        session=st.sampled_from([None, S]),
        last=st.none() | st.integers(1, 20),
        offline=st.booleans(),
    )
    def grant(
        self,
        holder: str,
        by: str,
        rights: frozenset[str],
        session: str | None,
        last: int | None,
        offline: bool,
    ) -> None:
        scope = Scope(session=session, expires=None if last is None else int(self.now) + last)
        if offline:
            mine = self.a.envelopes(KEY[by])
            if not mine:
                return
            try:
                text = envelope.encode(
                    envelope.delegate(
                        PRIVATE[by],
                        envelope.decode(mine[-1].text),
                        KEY[holder],
                        rights,
                        scope,
                        os.urandom(16),
                    )
                )
            except NotAllowed:
                return
            got = self.do(self.a.give(text, self.now))
        else:
            got = self.do(self.a.issue(KEY[holder], rights, scope, KEY[by], self.now))
            if not isinstance(got, Exception):
                assert self.allowed(by, "manage", None) and self.allowed(by, "grant", None)
                assert all(
                    self.allowed(by, right, session) or (right == "manage" and session)
                    for right in rights
                )
        if not isinstance(got, Exception):
            assert holder in self.owner and holder not in self.dead_keys
            self.learn(holder)

    @precondition(lambda self: self.chains)
    @rule(data=st.data(), by=st.sampled_from(HOLDERS), force=st.booleans())
    def revoke_link(self, data: st.DataObject, by: str, force: bool) -> None:
        chain = data.draw(st.sampled_from(self.chains))
        link = data.draw(st.sampled_from(chain))[0]
        if not isinstance(self.do(self.a.revoke_link(link, KEY[by], self.now, force)), Exception):
            self.dead_links.add(link)

    @rule(
        name=st.sampled_from(HOLDERS),
        by=st.sampled_from(HOLDERS),
        force=st.booleans(),
        whole=st.booleans(),
    )
    def revoke(self, name: str, by: str, force: bool, whole: bool) -> None:
        work = (
            self.a.revoke_operator(name, KEY[by], self.now, force)
            if whole
            else self.a.revoke_key(KEY[name], KEY[by], self.now, force)
        )
        managed = self.allowed(by, "manage", None)
        got = self.do(work)
        if not isinstance(got, Exception):
            assert managed or by == name or by in self.owner
            if whole:
                self.gone.add(name)
                self.dead_keys |= {key for key, owner in self.owner.items() if owner == name}
            else:
                self.dead_keys.add(name)
        elif force and managed and by in self.owner:
            assert isinstance(got, NotFound) and name not in self.owner, got

    @rule(seconds=st.integers(-3, 8))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.open()

    @rule(key=st.sampled_from(HOLDERS), nonce=st.binary(min_size=16, max_size=16))
    def recovered(self, key: str, nonce: bytes) -> None:
        statement = recovery.sign(PRIVATE["machine"], key, "human", KEY[key], int(self.now), nonce)
        got = self.do(self.a.recover(*statement, self.now))
        if not isinstance(got, Exception):
            assert key not in self.dead_keys and key not in self.gone
            self.owner.setdefault(key, key)
            self.learn(key)

    @invariant()
    def the_same_answers(self) -> None:
        if hasattr(self, "a"):
            for key in HOLDERS:
                for right in SOME:
                    for session in (S, T, None):
                        assert may(self.a, key, right, session, self.now) == self.allowed(
                            key, right, session
                        ), (key, right, session)


Rules.TestCase.settings = settings(
    max_examples=examples(25),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestAgainstTheModel = Rules.TestCase
