"""Devices of operators against a model (A5, T4).

All devices have the operator's rights and names of their own, and adding a device gives no operator
more rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import apsw
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core.contract.devices import DeviceConnection
from holdfast.core.people.envelope import Scope
from holdfast.home.keys import Identity
from holdfast.host.people.authority import Authority
from holdfast.host.people.devices import SEEN_EVERY_S, Devices
from holdfast.host.runtime.connection import Connection
from holdfast.host.storage.store import Store
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, NotAllowed, Refused
from holdfast.model.limits import OPERATOR_KEYS_MAX
from holdfast.model.rights import ADMIN, EXECUTE, READ
from tests.support.examples import examples

MACHINE = Identity("machine", "machine", signing.public(b"m" * 32), 0, b"m" * 32, False, "")
KEYS = [signing.public(bytes([n + 1]) * 32) for n in range(8)]
PEOPLE = ("ann", "bob", "eve")
SOME = ("observe", "input", "grant", "manage")
S, T = "0123456789ab", "zzzzzzzzzzzz"
NOW = 1_000_000.0
WHO = st.sampled_from([*KEYS[:3], *KEYS[:3], *KEYS])  # mostly known keys


def run(path: Path, *lives: Callable[[Authority, Store], Coroutine[Any, Any, Any]]) -> None:
    """Runs several lives of a host on the same database."""
    for work in lives:

        async def live(work: Callable[[Authority, Store], Coroutine[Any, Any, Any]] = work) -> None:
            opened = Store(str(path / "state.db"))
            authority = Authority(opened, MACHINE)
            if authority.needs_first:
                opened.start()
                await authority.first_identity("ann", "human", KEYS[0], NOW, "laptop.lan")
            else:
                opened.start()
            try:
                await work(authority, opened)
            finally:
                opened.close()

        asyncio.run(live())


def names(a: Authority, who: str = "ann") -> list[str]:
    return [one.name for one in a.devices(who)]


# ------------------------------------------------------------ names


def test_names_are_kept_and_given_to_devices_that_are_older_than_names(tmp_path: Path) -> None:
    async def first(a: Authority, opened: Store) -> None:
        await a.add_key("ann", KEYS[1], KEYS[0], NOW, suggested="laptop")
        await a.add_key("ann", KEYS[2], KEYS[0], NOW, "phone")
        await a.rename_device("ann", "laptop-2", "desk", KEYS[2], NOW)
        assert names(a) == ["laptop", "desk", "phone"]

    async def older(a: Authority, opened: Store) -> None:
        assert names(a) == ["laptop", "desk", "phone"]
        await opened.run(
            lambda db: db.execute("DELETE FROM devices WHERE name != 'phone'") and None
        )

    async def after(a: Authority, opened: Store) -> None:
        assert names(a) == ["device", "device-2", "phone"]
        with pytest.raises(Refused, match="has or had a device"):
            await a.rename_device("ann", "phone", "device-2", KEYS[0], NOW)
        await a.rename_device("ann", "device", "laptop", KEYS[0], NOW)

    async def last(a: Authority, opened: Store) -> None:
        assert names(a) == ["laptop", "device-2", "phone"]

    run(tmp_path, first, older, after, last)


def test_there_is_room_for_so_many_and_no_more(tmp_path: Path) -> None:
    async def work(a: Authority, opened: Store) -> None:
        for n in range(OPERATOR_KEYS_MAX - 1):
            await a.add_key("ann", signing.public(bytes([120 + n]) * 32), KEYS[0], NOW)
        with pytest.raises(Refused, match="no room for more"):
            await a.add_key("ann", KEYS[1], KEYS[0], NOW)

    run(tmp_path, work)


def test_a_lost_device_does_not_get_the_rights_of_the_recovered_device(tmp_path: Path) -> None:
    async def work(a: Authority, opened: Store) -> None:
        await a.add_operator("bob", "human", KEYS[1], KEYS[0], NOW)
        await a.issue(KEYS[1], READ, Scope(session=S), KEYS[0], NOW)
        await a.add_key("bob", KEYS[2], KEYS[1], NOW)
        await a.issue(KEYS[2], ADMIN, Scope(), KEYS[0], NOW)  # that device alone
        await a.add_key("bob", KEYS[3], KEYS[1], NOW)
        assert a.rights_of(KEYS[3], S, NOW) == READ and a.rights_of(KEYS[3], T, NOW) == frozenset()

    run(tmp_path, work)


def test_a_grant_is_one_for_all_devices_its_rate_and_its_end_included(tmp_path: Path) -> None:
    async def work(a: Authority, opened: Store) -> None:
        await a.add_operator("bob", "human", KEYS[1], KEYS[0], NOW)
        await a.issue_to("bob", EXECUTE, Scope(session=S, rate=(3, 1000)), KEYS[0], NOW)
        await a.add_key("bob", KEYS[2], KEYS[1], NOW)
        for key in (KEYS[1], KEYS[2], KEYS[1]):
            a.require(key, "input", S, NOW)
        for key in (KEYS[1], KEYS[2]):
            with pytest.raises(NotAllowed, match="as often as it may"):
                a.require(key, "input", S, NOW)
        [held] = a.envelopes(KEYS[1])
        await a.revoke_link(held.id, KEYS[0], NOW)
        assert a.rights_of(KEYS[1], S, NOW) == a.rights_of(KEYS[2], S, NOW) == frozenset()

    run(tmp_path, work)


def test_a_device_is_added_whole_or_not_at_all(tmp_path: Path) -> None:
    async def work(a: Authority, opened: Store) -> None:
        def full(db: Any) -> None:
            raise apsw.FullError("no room")

        with pytest.raises(HoldfastError):
            await a.add_key("ann", KEYS[1], KEYS[0], NOW, also=full)
        assert names(a) == ["laptop"] and a.rights_of(KEYS[1], None, NOW) == frozenset()
        await a.add_key("ann", KEYS[1], KEYS[0], NOW)

    async def after(a: Authority, opened: Store) -> None:
        assert a.rights_of(KEYS[1], None, NOW) == ADMIN

    run(tmp_path, work, after)


# ------------------------------------------------------------ seen


class Coming:
    """As much of a connection as is looked at."""

    def __init__(self, key: bytes, channel: str = "") -> None:
        self.key, self.channel, self.modality = key, channel, "cli"


def test_when_a_device_was_seen_is_kept_and_seldom_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [NOW]
    monkeypatch.setattr(time, "time", lambda: clock[0])

    async def work(a: Authority, opened: Store) -> None:
        written: list[Any] = []
        monkeypatch.setattr(opened, "post", written.append)
        known = Devices(opened, a)
        [mine] = a.devices("ann")
        assert (known.describe(mine, b"").seen, known.describe(mine, mine.key).this) == (
            None,
            True,
        )
        for _ in range(20):
            one = cast(Connection, Coming(KEYS[0]))
            known.came(one)
            assert known.describe(mine, b"").connected == (
                DeviceConnection(way="local", modality="cli", since=clock[0]),
            )
            known.left(one)
        assert len(written) == 1 and known.describe(mine, b"").connected == ()
        clock[0] += SEEN_EVERY_S
        one, away = cast(Connection, Coming(KEYS[0])), cast(Connection, Coming(KEYS[0], "hash"))
        known.came(one)
        known.came(away)
        assert len(written) == 3 and [c.way for c in known.describe(mine, b"").connected] == [
            "local",
            "relay",
        ]
        known.left(cast(Connection, Coming(KEYS[0])))  # a connection that never came has no effect
        known.left(one)
        known.left(away)
        clock[0] += 5
        known.flush()
        for job in written:
            await opened.run(job)

    run(tmp_path, work)
    again = Store(str(tmp_path / "state.db"))
    shown = Devices(again, authority := Authority(again, MACHINE)).describe(
        authority.devices("ann")[0], b""
    )
    assert (shown.seen, shown.way, shown.connected) == (
        int(NOW) + SEEN_EVERY_S,
        "relay",
        (),
    )
    again._db.close()


# ------------------------------------------------------------ against a model


@dataclass
class Grant:
    to: str
    rights: frozenset[str]
    session: str | None
    end: float
    dead: bool = False


@dataclass
class One:
    """A device in the model."""

    of: str
    name: str
    grants: list[Grant] = field(default_factory=list)
    dead: bool = False


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.known: dict[bytes, One] = {}
        self.gone: set[str] = set()
        self.links: dict[bytes, Grant] = {}

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.runner.__enter__()
        self.open()
        self.do(self.a.first_identity("ann", "human", KEYS[0], self.now, "laptop"))
        first = Grant("ann", ADMIN, None, float("inf"))
        self.known[KEYS[0]] = One("ann", "laptop", [first])
        self.learn(KEYS[0])
        for name, key, rights in (
            ("bob", KEYS[1], READ),
            ("eve", KEYS[2], frozenset(("manage", "observe"))),
        ):  # where most that could go wrong begins
            self.add_operator(name, key, KEYS[0])
            self.grant(name, rights, None, None, KEYS[0])

    def open(self) -> None:
        self.store = Store(self.folder.name + "/state.db")
        self.store._db.execute("PRAGMA synchronous=OFF")
        self.a = Authority(self.store, MACHINE)
        self.store.start()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self.runner.run(work)
        except HoldfastError as e:
            return e

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.store.close()
            self.runner.__exit__(None, None, None)
            self.folder.cleanup()

    def learn(self, key: bytes) -> None:
        """Assigns links to grants, in the order in which the grants were given."""
        new = [held.id for held in self.a.envelopes(key) if held.id not in self.links]
        for id, grant in zip(new, self.known[key].grants[-len(new) :] if new else (), strict=True):
            self.links[id] = grant

    def alive(self, key: bytes) -> bool:
        return (
            key in self.known and not self.known[key].dead and self.known[key].of not in self.gone
        )

    def allowed(self, key: bytes, right: str, session: str | None) -> bool:
        return self.alive(key) and any(
            self.counts(g)
            and right in g.rights
            and (g.session is None or (g.session == session and right != "manage"))
            for g in self.known[key].grants
        )

    def counts(self, grant: Grant) -> bool:
        return not grant.dead and self.now < grant.end

    @rule(name=st.sampled_from(PEOPLE), key=st.sampled_from(KEYS), by=WHO)
    def add_operator(self, name: str, key: bytes, by: bytes) -> None:
        got = self.do(self.a.add_operator(name, "human", key, by, self.now, "laptop"))
        if not isinstance(got, HoldfastError):
            assert self.allowed(by, "manage", None) or self.allowed(by, "grant", None)
            self.known[key] = One(name, "laptop")

    @rule(
        name=st.sampled_from(PEOPLE),
        rights=st.sampled_from([READ, EXECUTE, ADMIN, frozenset(("observe", "manage"))]),
        session=st.sampled_from([None, S]),
        last=st.none() | st.integers(1, 20),
        by=WHO,
    )
    def grant(
        self, name: str, rights: frozenset[str], session: str | None, last: int | None, by: bytes
    ) -> None:
        got = self.do(
            self.a.issue_to(
                name,
                rights,
                Scope(session=session, expires=None if last is None else int(self.now) + last),
                by,
                self.now,
            )
        )
        if isinstance(got, HoldfastError):
            return
        made = Grant(
            name,
            rights,
            session,
            float("inf") if got.chain.last.scope.expires is None else got.chain.last.scope.expires,
        )
        for key, one in self.known.items():
            if one.of == name and self.alive(key):
                one.grants.append(made)
                self.learn(key)

    @rule(
        name=st.sampled_from(PEOPLE),
        key=st.sampled_from(KEYS[3:]),
        by=WHO,
        device=st.sampled_from(["", "phone", "desk"]),
    )
    def add(self, name: str, key: bytes, by: bytes, device: str) -> None:
        got = self.do(self.a.add_key(name, key, by, self.now, device, "tablet"))
        mine = [one for one in self.known.values() if one.of == name]
        own = self.alive(by) and self.known[by].of == name
        if isinstance(got, HoldfastError):
            fits = key not in self.known and device not in [one.name for one in mine]
            assert not (own and fits and mine), "one's own device is always added"
            return
        assert key not in self.known and mine and name not in self.gone
        assert own or self.allowed(by, "manage", None)
        assert got.name not in [one.name for one in mine] and (not device or got.name == device)
        source = (
            [self.known[by]]
            if own
            else [one for k, one in self.known.items() if one.of == name and self.alive(k)]
        )
        grants: list[Grant] = []
        for one in source:
            grants += [g for g in one.grants if self.counts(g) and g not in grants]
        if not own:
            for g in grants:  # the adder could have given all these rights
                assert all(
                    self.allowed(by, right, g.session) or (right == "manage" and g.session)
                    for right in g.rights
                )
                assert self.allowed(by, "grant", None)
        self.known[key] = One(name, got.name, grants)
        if not own:  # the grant may end earlier, with the adder's own
            ends = {
                held.chain.last.nonce: held.chain.last.scope.expires
                for held in self.a.envelopes(key)
            }
            assert len(ends) == len(grants)
            self.known[key].grants = [
                Grant(
                    name,
                    held.chain.last.rights,
                    held.chain.last.scope.session,
                    float("inf")
                    if held.chain.last.scope.expires is None
                    else held.chain.last.scope.expires,
                )
                for held in self.a.envelopes(key)
            ]
            for made, was in zip(self.known[key].grants, grants, strict=True):
                assert (
                    made.rights == was.rights
                    and made.session in (was.session, S)
                    and made.end <= was.end
                )
        self.learn(key)

    @rule(
        name=st.sampled_from(PEOPLE),
        key=st.sampled_from(KEYS),
        new=st.sampled_from(["phone", "desk", "sofa", "laptop"]),
        by=WHO,
    )
    def rename(self, name: str, key: bytes, new: str, by: bytes) -> None:
        got = self.do(self.a.rename_device(name, signing.show(key), new, by, self.now))
        if not isinstance(got, HoldfastError):
            assert (
                self.alive(by)
                and (self.known[by].of == name or self.allowed(by, "manage", None))
                and self.known[key].of == name
                and not self.known[key].dead
            )
            self.known[key].name = new

    @rule(key=st.sampled_from(KEYS), by=WHO, force=st.booleans())
    def revoke(self, key: bytes, by: bytes, force: bool) -> None:
        got = self.do(self.a.revoke_key(key, by, self.now, force))
        if isinstance(got, HoldfastError):
            own = self.alive(by) and key in self.known and self.known[by].of == self.known[key].of
            assert not (force and own), got
        elif key in self.known:
            self.known[key].dead = True
        else:
            self.known[key] = One("nobody", f"never-{len(self.known)}", dead=True)

    @precondition(lambda self: self.links)
    @rule(data=st.data(), by=WHO)
    def revoke_link(self, data: st.DataObject, by: bytes) -> None:
        link = list(self.links)[data.draw(st.integers(0, len(self.links) - 1))]
        if not isinstance(self.do(self.a.revoke_link(link, by, self.now, True)), HoldfastError):
            nonce = {held.id: held.chain.last.nonce for held in self.a.all_held()}
            for other, grant in self.links.items():
                if nonce[other] == nonce[link]:
                    grant.dead = True

    @rule(seconds=st.integers(0, 8))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.open()

    @invariant()
    def the_same_answers(self) -> None:
        if not hasattr(self, "a"):
            return
        for key in KEYS:
            for right in SOME:
                for session in (S, T, None):
                    try:
                        self.a.require(key, right, session, self.now)
                        yes = True
                    except NotAllowed:
                        yes = False
                    assert yes == self.allowed(key, right, session), (
                        KEYS.index(key),
                        right,
                        session,
                    )

    @invariant()
    def names_are_their_own(self) -> None:
        if hasattr(self, "a"):
            for name in PEOPLE:
                assert sorted(names(self.a, name)) == sorted(
                    one.name for one in self.known.values() if one.of == name
                )
                assert len(set(names(self.a, name))) == len(names(self.a, name))


Model.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestAgainstTheModel = Model.TestCase


# ---------------------------------------------------------- revoked while something is written down


def during_the_write(
    a: Authority, monkeypatch: pytest.MonkeyPatch, what: Callable[[], Coroutine[Any, Any, Any]]
) -> None:
    """Runs after the database has the row and before the caller knows that."""
    real, left = a._write, [what]

    async def write(*args: Any, **facts: Any) -> None:
        await real(*args, **facts)
        if left:
            await left.pop()()

    monkeypatch.setattr(a, "_write", write)


@pytest.mark.parametrize("grants", [False, True])
def test_a5_a_device_that_is_revoked_while_it_adds_another_has_added_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grants: bool
) -> None:
    async def first(a: Authority, opened: Store) -> None:
        await a.add_key("ann", KEYS[1], KEYS[0], NOW, "stolen")
        during_the_write(
            a, monkeypatch, lambda: a.revoke_key(KEYS[1], KEYS[0], NOW, with_grants=grants)
        )
        with pytest.raises(NotAllowed):
            await a.add_key("ann", KEYS[2], KEYS[1], NOW, "thiefs")
        assert a.dead(KEYS[2]) and not a.rights_of(KEYS[2], S, NOW)

    async def second(a: Authority, opened: Store) -> None:
        assert a.dead(KEYS[2]) and not a.rights_of(KEYS[2], S, NOW)

    run(tmp_path, first, second)


def test_a5_a_grant_that_is_revoked_while_a_device_is_added_is_not_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(a: Authority, opened: Store) -> None:
        await a.add_operator("bob", "human", KEYS[3], KEYS[0], NOW)
        held = await a.issue_to("bob", READ, Scope(), KEYS[0], NOW)
        during_the_write(a, monkeypatch, lambda: a.revoke_link(held.id, KEYS[0], NOW))
        await a.add_key("bob", KEYS[4], KEYS[3], NOW, "phone")
        assert not a.rights_of(KEYS[3], S, NOW) and not a.rights_of(KEYS[4], S, NOW)

    async def second(a: Authority, opened: Store) -> None:
        assert not a.rights_of(KEYS[4], S, NOW) and not a.dead(KEYS[4])

    run(tmp_path, first, second)


def test_a5_a_grant_by_a_key_that_is_revoked_meanwhile_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(a: Authority, opened: Store) -> None:
        await a.add_operator("bob", "human", KEYS[3], KEYS[0], NOW)
        for n, thief in enumerate(KEYS[4:7]):
            await a.add_key("ann", thief, KEYS[0], NOW)
            with monkeypatch.context() as patch, contextlib.suppress(NotAllowed):
                during_the_write(
                    a, patch, partial(a.revoke_key, thief, KEYS[0], NOW, with_grants=True)
                )
                if n == 0:
                    await a.issue_to("bob", ADMIN, Scope(), thief, NOW)
                elif n == 1:
                    await a.issue(KEYS[3], ADMIN, Scope(), thief, NOW)
                else:
                    await a.join(
                        "eve", "human", KEYS[7], ADMIN, Scope(), thief, NOW, lambda db: None
                    )
            assert (
                a.dead(thief)
                and not a.rights_of(KEYS[3], S, NOW)
                and not a.rights_of(KEYS[7], S, NOW)
            )

    run(tmp_path, first)
