"""Hosts, clients and the operator of a relay act in any order.

No frame reaches a peer except the other end of its own stream, quotas hold, and no state remains
when all peers have gone. The oracle knows only the answers it saw, none of the registry's own
state.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.sealed import route as routes
from holdfast.model import signing
from holdfast.relay import events
from holdfast.relay.events import Drop, Effect, Forget, Pause, Save, Send, Token
from holdfast.relay.registry import Registry
from holdfast.relay.tenants import Quotas
from holdfast.wire import outer
from tests.support.examples import examples

NAME = "relay.example"
SECRETS = [bytes([n]) * 32 for n in (1, 2, 3)]
KEYS = [signing.public(s) for s in SECRETS]
ROUTES = [routes.route(k) for k in KEYS]
PASSES = [bytes([n]) * 32 for n in (65, 66, 67)]
DIGESTS = [routes.digest(p) for p in PASSES]
TOKENS = [
    Token("a1", "a"),
    Token("a2", "a"),
    Token("b1", "b"),
    Token("a1", "a", expired=True),
    None,
    None,
]
QUOTAS = Quotas(
    tenant_routes=1,
    tenant_known=2,
    tenant_streams=4,
    tenant_connections=8,
    tenant_bytes_s=10_000,
    tenant_burst=50_000,
    host_streams=2,
    client_streams=3,
    watches=2,
    window=100,
    strange_frames=8,
    wrong_passes=5,
)
index = st.integers(0, 7)
SIGNED: dict[tuple[int, bytes, int], bytes] = {}


def signed(key: int, nonce: bytes, generation: int) -> bytes:
    return SIGNED.setdefault(
        (key, nonce, generation), routes.sign(SECRETS[key], NAME, nonce, generation)
    )


class Relay(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry(quotas=QUOTAS)
        self.now = 0.0
        self.number = 0
        self.role: dict[int, int] = {}  # living connections
        self.token: dict[int, Token | None] = {}
        self.nonce: dict[int, bytes] = {}
        self.route: dict[int, int] = {}  # connection of a host -> which key
        self.listed: dict[int, set[bytes]] = {}  # key -> digests
        self.tenant: dict[int, str] = {}  # key -> tenant
        self.ends: dict[
            tuple[int, int], tuple[int, int]
        ] = {}  # (connection, stream) <-> (connection, stream)
        self.credit: dict[tuple[int, int], int] = {}  # bytes that may be sent from there
        self.passed: dict[tuple[int, int], bytes] = {}  # a host's end -> the pass of its client
        self.opened: dict[int, int] = {}  # connection -> highest stream number seen there
        self.payloads = 0
        self.a_client(None)
        for key in (0, 2):
            self.a_host(key)
            self.a_client(TOKENS[key])

    # ------------------------------------------------------------ the oracle

    def handle(self, event: events.Event) -> list[Effect]:
        effects = self.registry.handle(event, self.now)
        for effect in effects:
            if isinstance(effect, Send):
                assert effect.connection in self.role, f"{effect} to somebody who has gone"
                outer.encode(effect.frame)  # each could be sent
                if isinstance(effect.frame, outer.Close):
                    self.unlink((effect.connection, effect.frame.stream))
            elif isinstance(effect, Drop):
                self.leave(effect.connection)
            elif isinstance(effect, Pause):
                assert effect.seconds > 0
        return effects

    def leave(self, connection: int) -> None:
        assert connection in self.role
        del self.role[connection]
        self.route.pop(connection, None)
        for end in [e for e in self.ends if e[0] == connection]:
            self.unlink(end)

    def unlink(self, end: tuple[int, int]) -> None:
        other = self.ends.pop(end, None)
        if other is not None:
            self.ends.pop(other, None)

    def pick(self, number: int, role: int | None = None) -> int | None:
        living = [c for c, r in self.role.items() if role is None or r == role]
        return living[number % len(living)] if living else None

    # ------------------------------------------------------------ rules

    @rule(token=st.sampled_from(TOKENS))
    def connect(self, token: Token | None) -> None:
        self.number += 1
        self.role[self.number], self.token[self.number], self.nonce[self.number] = (
            0,
            token,
            self.number.to_bytes(32, "big"),
        )
        self.handle(events.Connected(self.number, (NAME,), self.nonce[self.number], token))

    @rule(who=index, role=st.sampled_from((outer.HOST, outer.CLIENT)))
    def hello(self, who: int, role: int) -> None:
        connection = self.pick(who, 0)
        if connection is None:
            return
        [*_, sent] = self.handle(events.Received(connection, outer.Hello(1, 1, role, ""), 10))
        if connection in self.role:
            assert (
                isinstance(sent, Send)
                and isinstance(sent.frame, outer.Welcome)
                and sent.frame.nonce == self.nonce[connection]
            )
            self.role[connection] = role

    @rule(
        who=index,
        key=st.integers(0, 2),
        generation=st.integers(1, 4),
        passes=st.sets(st.sampled_from(DIGESTS)),
        forged=st.booleans(),
    )
    def register(
        self, who: int, key: int, generation: int, passes: set[bytes], forged: bool
    ) -> None:
        connection = self.pick(who, outer.HOST)
        if connection is None:
            return
        signature = signed(key, self.nonce[connection] if not forged else b"x" * 32, generation)
        before = [c for c, k in self.route.items() if k == key]
        effects = self.handle(
            events.Received(
                connection,
                outer.Register(KEYS[key], generation, signature, tuple(sorted(passes))),
                200,
            )
        )
        if Send(connection, outer.Registered(ROUTES[key])) not in effects:
            assert connection not in self.role
            return
        assert not forged
        assert not any(c in self.role for c in before), "two hosts on one route"
        token = self.token[connection]
        assert token is not None or key in self.tenant, "admitted with nothing to show"
        if token is not None and not token.expired:
            self.tenant[key] = token.tenant
        [saved] = [
            e.known
            for e in effects
            if isinstance(e, Save)
            and e.known.generation == generation
            and e.known.passes == tuple(sorted(passes))
        ][-1:]
        assert saved.tenant == self.tenant[key]
        self.route[connection], self.listed[key] = key, passes

    # The short ways: random moves alone seldom get as far as a stream.

    @rule(key=st.integers(0, 2))
    def a_host(self, key: int) -> None:
        self.connect(TOKENS[2] if key == 2 else TOKENS[0])
        if self.number in self.role:
            self.handle(events.Received(self.number, outer.Hello(1, 1, outer.HOST, ""), 10))
            self.role[self.number] = outer.HOST
            self.register(
                [c for c, r in self.role.items() if r == outer.HOST].index(self.number),
                key,
                4,
                set(DIGESTS[:2]),
                False,
            )

    @rule(token=st.sampled_from((None, TOKENS[0], TOKENS[2])))
    def a_client(self, token: Token | None) -> None:
        self.connect(token)
        if self.number not in self.role:
            return
        self.handle(events.Received(self.number, outer.Hello(1, 1, outer.CLIENT, ""), 10))
        self.role[self.number] = outer.CLIENT

    @precondition(lambda self: self.route)
    @rule(who=index, host=index)
    def a_stream(self, who: int, host: int) -> None:
        key = list(self.route.values())[host % len(self.route)]
        for pass_ in range(3):
            if DIGESTS[pass_] in self.listed[key]:
                before = set(self.ends)
                self.open(who, key, pass_, 1)
                for connection, stream in set(self.ends) - before:
                    if self.role[connection] == outer.HOST:
                        self.accept(
                            [c for c, r in self.role.items() if r == outer.HOST].index(connection),
                            stream,
                        )
                return

    @precondition(lambda self: self.route)
    @rule(who=index, host=index)
    def a_watch(self, who: int, host: int) -> None:
        self.watch(who, list(self.route.values())[host % len(self.route)], host % 3)

    @precondition(lambda self: self.ends)
    @rule(who=index, passes=st.sets(st.sampled_from(DIGESTS)))
    def passes(self, who: int, passes: set[bytes]) -> None:
        hosts = [c for c in self.route if c in self.role and any(e[0] == c for e in self.ends)]
        if hosts:
            connection = hosts[who % len(hosts)]
            key = self.route[connection]
            self.listed[key] = passes
            self.handle(events.Received(connection, outer.Passes(tuple(sorted(passes))), 100))
            assert all(self.passed[end] in passes for end in self.ends if end[0] == connection), (
                "a pass was withdrawn, and its stream lives on"
            )

    @rule(who=index, key=st.integers(0, 2), pass_=st.integers(0, 2), step=st.integers(0, 2))
    def open(self, who: int, key: int, pass_: int, step: int) -> None:
        connection = self.pick(who, outer.CLIENT)
        if connection is None:
            return
        number = self.opened.get(connection, 10) + step  # other numbers than the relay's
        step = step if connection in self.opened else 1
        self.opened[connection] = number
        effects = self.handle(
            events.Received(connection, outer.Open(number, ROUTES[key], PASSES[pass_]), 60)
        )
        incoming = [
            e for e in effects if isinstance(e, Send) and isinstance(e.frame, outer.Incoming)
        ]
        if step == 0:
            assert connection not in self.role and not incoming
        for sent in incoming:
            assert isinstance(sent.frame, outer.Incoming) and len(incoming) == 1
            assert self.route[sent.connection] == key and DIGESTS[pass_] in self.listed[key]
            token = self.token[connection]
            assert token is None or token.tenant == self.tenant[key]
            assert sent.frame.stream > self.opened.get(sent.connection, 0), "a stream number twice"
            self.opened[sent.connection] = sent.frame.stream
            here, there = (connection, number), (sent.connection, sent.frame.stream)
            self.ends[here], self.ends[there] = there, here
            self.passed[there] = DIGESTS[pass_]
            self.credit[here] = self.credit[there] = -1  # not accepted

    @rule(who=index, stream=st.integers(1, 6))
    def accept(self, who: int, stream: int) -> None:
        connection = self.pick(who, outer.HOST)
        if connection is None:
            return
        there = self.ends.get((connection, stream))
        fresh = there is not None and self.credit[connection, stream] < 0
        effects = self.handle(events.Received(connection, outer.Accept(stream), 8))
        accepted = [e for e in effects if isinstance(e, Send) and isinstance(e.frame, outer.Accept)]
        assert accepted == ([Send(there[0], outer.Accept(there[1]))] if fresh and there else [])
        if fresh and there:
            self.credit[connection, stream] = self.credit[there] = QUOTAS.window

    @rule(who=index, stream=st.integers(1, 6), size=st.sampled_from((1, 40, 100, 101)))
    def data(self, who: int, stream: int, size: int) -> None:
        self.send(who, stream, size)

    @precondition(lambda self: self.ends)
    @rule(who=index, size=st.integers(1, 101))
    def data_on_a_stream(self, who: int, size: int) -> None:
        connection, stream = sorted(self.ends)[who % len(self.ends)]
        self.send(None, stream, size, connection)

    def send(self, who: int | None, stream: int, size: int, connection: int | None = None) -> None:
        connection = self.pick(who) if who is not None else connection
        if connection is None:
            return
        self.payloads += 1
        payload = self.payloads.to_bytes(4, "big").rjust(size, b".") if size >= 4 else b"." * size
        here, there = (connection, stream), self.ends.get((connection, stream))
        left = self.credit.get(here, -1) if there else -1
        effects = self.handle(events.Received(connection, outer.Data(stream, payload), size + 8))
        carried = [e for e in effects if isinstance(e, Send) and isinstance(e.frame, outer.Data)]
        if there is not None and left >= size:
            assert carried == [Send(there[0], outer.Data(there[1], payload))]
            self.credit[here] -= size
        else:
            assert carried == []
            assert here not in self.ends, "beyond its credit, and still open"

    @precondition(lambda self: self.ends)
    @rule(who=index, amount=st.integers(1, 60))
    def grant(self, who: int, amount: int) -> None:
        here = sorted(self.ends)[who % len(self.ends)]
        there = self.ends[here]
        effects = self.handle(events.Received(here[0], outer.Credit(here[1], amount), 8))
        carried = [e for e in effects if isinstance(e, Send) and isinstance(e.frame, outer.Credit)]
        if 0 <= self.credit[there] <= QUOTAS.window - amount:
            assert carried == [Send(there[0], outer.Credit(there[1], amount))]
            self.credit[there] += amount
        else:
            assert carried == [] and here not in self.ends

    @precondition(lambda self: self.ends)
    @rule(who=index)
    def close(self, who: int) -> None:
        here = sorted(self.ends)[who % len(self.ends)]
        there = self.ends[here]
        effects = self.handle(events.Received(here[0], outer.Close(here[1], outer.DONE, "x"), 8))
        assert [e for e in effects if isinstance(e, Send)] == [
            Send(there[0], outer.Close(there[1], outer.DONE, "x"))
        ]
        self.unlink(here)

    @rule(who=index, key=st.integers(0, 2), pass_=st.integers(0, 2))
    def watch(self, who: int, key: int, pass_: int) -> None:
        connection = self.pick(who, outer.CLIENT)
        if connection is None:
            return
        effects = self.handle(
            events.Received(connection, outer.Watch(ROUTES[key], PASSES[pass_]), 60)
        )
        for sent in effects:
            if (
                isinstance(sent, Send)
                and isinstance(sent.frame, outer.Presence)
                and sent.frame.online
            ):
                assert (
                    sent.connection == connection
                    and DIGESTS[pass_] in self.listed[key]
                    and key in self.route.values()
                )

    @rule(
        who=index,
        frame=st.sampled_from(
            (
                outer.Ping(b"8" * 8),
                outer.Pong(b"8" * 8),
                outer.Ping(b"9" * 8),
                outer.Pong(b"9" * 8),
                outer.Close(0, outer.DONE),
                outer.Incoming(1),
                outer.Registered(ROUTES[0]),
            )
        ),
    )
    def other(self, who: int, frame: Any) -> None:
        connection = self.pick(who)
        if connection is not None:
            self.handle(events.Received(connection, frame, 10))

    @rule(who=index)
    def gone(self, who: int) -> None:
        connection = self.pick(who)
        if connection is not None:
            self.leave(connection)
            for end in [e for e in self.ends if e[0] == connection]:
                self.unlink(end)
            self.handle(events.Gone(connection))

    @rule(seconds=st.sampled_from((0.1, 0.5, 1.0, 2.0, 4.0, 21.0)))
    def time(self, seconds: float) -> None:
        self.now += seconds
        self.handle(events.Tick())

    @rule(token=st.sampled_from(("a1", "b1", "c1", "c2", "c3")))
    def revoke(self, token: str) -> None:
        effects = self.handle(events.Revoked(token))
        forgotten = {e.key for e in effects if isinstance(e, Forget)}
        for key in (k for k in range(3) if KEYS[k] in forgotten):
            assert key not in [k for c, k in self.route.items() if c in self.role]
        assert not [c for c in self.role if (t := self.token[c]) is not None and t.id == token]

    # ------------------------------------------------------------ always

    @invariant()
    def quotas_hold(self) -> None:
        of_tenant: dict[str, int] = {}
        streams: dict[str, int] = {}
        for connection, role in self.role.items():
            mine = len([e for e in self.ends if e[0] == connection])
            assert mine <= (QUOTAS.host_streams if role == outer.HOST else QUOTAS.client_streams)
            if connection in self.route:
                tenant = self.tenant[self.route[connection]]
                of_tenant[tenant] = of_tenant.get(tenant, 0) + 1
                streams[tenant] = streams.get(tenant, 0) + mine
        assert all(n <= QUOTAS.tenant_routes for n in of_tenant.values())
        assert all(n <= QUOTAS.tenant_streams for n in streams.values())

    @invariant()
    def registry_and_model_have_the_same_connections(self) -> None:
        assert set(self.registry.connections) == set(self.role)
        assert sum(len(c.streams) for c in self.registry.connections.values()) == len(self.ends)

    def teardown(self) -> None:
        for connection in list(self.role):
            self.leave(connection)
            self.handle(events.Gone(connection))
        assert (
            not self.registry.connections
            and not self.registry.opening
            and not self.registry.tenants
        )
        for route in self.registry.route_table.routes.values():
            assert route.connection is None and not route.watchers
        for tenant in ("a", "b"):
            assert (
                len(
                    [
                        r
                        for r in self.registry.route_table.routes.values()
                        if r.known.tenant == tenant
                    ]
                )
                <= QUOTAS.tenant_known
            )


TestRelay = Relay.TestCase
TestRelay.settings = settings(max_examples=examples(150), stateful_step_count=80, deadline=None)
