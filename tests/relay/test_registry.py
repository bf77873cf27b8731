"""The registry, move by move: admission, refusals, and which ends cause other ends."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.sealed import route as routes
from holdfast.model import signing
from holdfast.relay import events
from holdfast.relay.events import Drop, Effect, Forget, Known, Pause, Save, Send, Token
from holdfast.relay.registry import Registry
from holdfast.relay.tenants import Quotas
from holdfast.wire import outer

NAME = "relay.example"
SECRET = signing.generate()
KEY = signing.public(SECRET)
ROUTE = routes.route(KEY)
PASS, OTHER = b"p" * 32, b"q" * 32
ACME = Token("t1", "acme")
WINDOW = 1000


class Bench:
    """A registry and the shortest way to connect a peer."""

    def __init__(self, known: tuple[Known, ...] = (), **quotas: Any) -> None:
        self.registry = Registry(
            known, Quotas(**{"window": WINDOW, **quotas}), epoch=1_000_000.0, software="relay"
        )
        self.now = 1.0
        self.number = 0

    def __call__(self, event: events.Event) -> list[Effect]:
        return self.registry.handle(event, self.now)

    def frame(self, connection: int, frame: outer.Frame, size: int = 10) -> list[Effect]:
        return self(events.Received(connection, frame, size))

    def connect(self, role: int, token: Token | None = None) -> int:
        self.number += 1
        self(events.Connected(self.number, (NAME,), bytes([self.number]) * 32, token))
        self.frame(self.number, outer.Hello(1, 1, role, "test"))
        return self.number

    def register(
        self,
        connection: int,
        generation: int = 1,
        passes: tuple[bytes, ...] = (PASS,),
        secret: bytes = SECRET,
        name: str = NAME,
    ) -> list[Effect]:
        signature = routes.sign(secret, name, bytes([connection]) * 32, generation)
        return self.frame(
            connection,
            outer.Register(
                signing.public(secret),
                generation,
                signature,
                tuple(routes.digest(p) for p in passes),
            ),
        )

    def host(self, token: Token | None = ACME, **how: Any) -> int:
        connection = self.connect(outer.HOST, token)
        assert Send(
            connection, outer.Registered(routes.route(signing.public(how.get("secret", SECRET))))
        ) in self.register(connection, **how)
        return connection

    def client(self) -> int:
        return self.connect(outer.CLIENT)

    def stream(self, host: int, client: int, number: int = 1, pass_: bytes = PASS) -> int:
        [*_, sent] = self.frame(client, outer.Open(number, ROUTE, pass_))
        assert (
            isinstance(sent, Send)
            and sent.connection == host
            and isinstance(sent.frame, outer.Incoming)
        )
        assert self.frame(host, outer.Accept(sent.frame.stream)) == [
            Send(client, outer.Accept(number))
        ]
        return sent.frame.stream


def drop(effects: list[Effect]) -> Drop:
    [found] = [e for e in effects if isinstance(e, Drop)]
    return found


def frames(effects: list[Effect], connection: int) -> list[outer.Frame]:
    return [e.frame for e in effects if isinstance(e, Send) and e.connection == connection]


def test_a_stream_carries_both_ways_under_each_sides_own_number() -> None:
    bench = Bench()
    host, client = bench.host(), bench.client()
    for _ in range(3):  # so that the numbers differ
        bench.frame(
            host,
            outer.Close(
                bench.stream(host, client, bench.registry.connections[client].highest + 1),
                outer.DONE,
            ),
        )
    number = bench.stream(host, client, 9)
    assert number == 4
    assert bench.frame(client, outer.Data(9, b"in")) == [Send(host, outer.Data(4, b"in"))]
    assert bench.frame(host, outer.Data(4, b"out")) == [Send(client, outer.Data(9, b"out"))]
    assert bench.frame(client, outer.Credit(9, 3)) == [Send(host, outer.Credit(4, 3))]
    assert bench.frame(client, outer.Close(9, outer.DONE, "bye")) == [
        Send(host, outer.Close(4, outer.DONE, "bye"))
    ]
    assert bench.frame(host, outer.Data(4, b"late")) == []  # the host had not heard yet
    assert drop(bench.frame(host, outer.Data(5, b"never"))).code == outer.PROTOCOL


def test_the_pass_ends_at_the_relay() -> None:
    bench = Bench()
    host, client = bench.host(), bench.client()
    effects = bench.frame(client, outer.Open(1, ROUTE, PASS))
    assert frames(effects, host) == [outer.Incoming(1)]
    assert all(PASS not in e.known.passes for e in effects if isinstance(e, Save))


def test_unknown_route_and_wrong_pass_get_one_answer() -> None:
    bench = Bench()
    bench.host()
    client = bench.client()
    wrong = bench.frame(client, outer.Open(1, ROUTE, OTHER))
    unknown = bench.frame(client, outer.Open(2, b"?" * 16, PASS))
    assert [wrong, unknown] == [
        [Send(client, outer.Close(n, outer.REFUSED, "no such route, or not with this pass"))]
        for n in (1, 2)
    ]
    assert frames(bench.frame(client, outer.Watch(ROUTE, OTHER)), client) == [
        outer.Presence(ROUTE, False, 0)
    ]
    assert frames(bench.frame(client, outer.Watch(b"?" * 16, PASS)), client) == [
        outer.Presence(b"?" * 16, False, 0)
    ]


def test_a_client_that_guesses_passes_is_dropped() -> None:
    bench = Bench(wrong_passes=3)
    client = bench.client()
    for number in range(1, 4):
        assert not [
            e for e in bench.frame(client, outer.Open(number, ROUTE, OTHER)) if isinstance(e, Drop)
        ]
    assert drop(bench.frame(client, outer.Open(4, ROUTE, OTHER))).code == outer.LIMIT


def test_a_host_needs_a_token_or_a_known_key() -> None:
    bench = Bench()
    stranger = bench.connect(outer.HOST)
    assert drop(bench.register(stranger)).code == outer.UNAUTHORIZED
    expired = bench.connect(outer.HOST, Token("t1", "acme", expired=True))
    assert drop(bench.register(expired)) == Drop(
        expired, outer.UNAUTHORIZED, "the token has expired"
    )
    bench(events.Gone(bench.host()))
    bench(events.Gone(bench.host(token=None)))  # by its key: this host was here with a token
    bench(events.Gone(bench.host(token=Token("t1", "acme", expired=True))))
    elsewhere = bench.connect(outer.HOST, Token("t9", "rival", expired=True))
    assert drop(bench.register(elsewhere)).code == outer.UNAUTHORIZED


def test_a_key_admitted_beforehand_needs_no_token() -> None:
    bench = Bench()
    bench(events.Enrolled(Known(KEY, "acme", None, 0, (), 5)))
    bench.host(token=None)


def test_a_signature_for_another_relay_connection_or_generation_is_worth_nothing() -> None:
    bench = Bench()
    for how in ("name", "nonce", "generation", "key"):
        connection = bench.connect(outer.HOST, ACME)
        nonce = bytes([connection]) * 32 if how != "nonce" else b"\0" * 32
        signature = routes.sign(
            SECRET,
            "other.example" if how == "name" else NAME,
            nonce,
            2 if how == "generation" else 1,
        )
        key = signing.public(b"k" * 32) if how == "key" else KEY
        assert (
            drop(bench.frame(connection, outer.Register(key, 1, signature, ()))).code
            == outer.UNAUTHORIZED
        ), how


def test_any_of_the_relays_names_will_do_where_the_door_cannot_tell() -> None:
    bench = Bench()
    bench(events.Connected(7, ("a.example", NAME), bytes([7]) * 32, ACME))
    bench.frame(7, outer.Hello(1, 1, outer.HOST, ""))
    assert Send(7, outer.Registered(ROUTE)) in bench.register(7)


def test_a_newer_registration_replaces_the_older() -> None:
    bench = Bench()
    old, client, watcher = bench.host(generation=3), bench.client(), bench.client()
    bench.stream(old, client)
    bench.frame(watcher, outer.Watch(ROUTE, PASS))
    new = bench.connect(outer.HOST, ACME)
    effects = bench.register(new, generation=4)
    assert drop(effects) == Drop(old, outer.REPLACED, "a newer registration of this route")
    assert frames(effects, client) == [
        outer.Close(1, outer.REPLACED, "the host's connection has ended")
    ]
    assert frames(effects, watcher) == [outer.Presence(ROUTE, True, 1_000_001)]
    stale = bench.connect(outer.HOST, ACME)
    assert drop(bench.register(stale, generation=3)).code == outer.REPLACED
    assert bench.stream(new, client, 2) == 1
    again = bench.connect(outer.HOST, ACME)  # the same host, whose link broke without a word
    assert drop(bench.register(again, generation=4)).connection == new


def test_an_older_generation_stays_out_when_the_newer_is_gone() -> None:
    bench = Bench(known=(Known(KEY, "acme", "t1", 9, (), 1),))
    assert (
        drop(bench.register(bench.connect(outer.HOST, ACME), generation=8)).code == outer.REPLACED
    )


def test_presence() -> None:
    bench = Bench()
    host, client = bench.host(), bench.client()
    assert frames(bench.frame(client, outer.Watch(ROUTE, PASS)), client) == [
        outer.Presence(ROUTE, True, 1_000_001)
    ]
    bench.now = 5.0
    assert frames(bench(events.Gone(host)), client) == [outer.Presence(ROUTE, False, 1_000_005)]
    assert frames(bench.frame(client, outer.Open(1, ROUTE, PASS)), client) == [
        outer.Close(1, outer.OFFLINE, "the host is not connected")
    ]
    bench.now = 6.0
    back = bench.connect(outer.HOST, ACME)
    assert frames(bench.register(back), client) == [outer.Presence(ROUTE, True, 1_000_006)]
    bench(events.Gone(client))
    assert frames(bench(events.Gone(back)), client) == []


def test_passes_are_remembered_while_the_host_is_away() -> None:
    bench = Bench(known=(Known(KEY, "acme", "t1", 1, (routes.digest(PASS),), 77),))
    client = bench.client()
    effects = bench.frame(client, outer.Watch(ROUTE, PASS))
    assert (
        frames(effects, client) == [outer.Presence(ROUTE, False, 77)]
        and events.Admitted(client) in effects
    )


def test_withdrawn_passes_end_their_streams() -> None:
    bench = Bench()
    host, client, other = bench.host(passes=(PASS, OTHER)), bench.client(), bench.client()
    number = bench.stream(host, client)
    bench.frame(client, outer.Watch(ROUTE, PASS))
    kept = bench.stream(host, other, pass_=OTHER)
    effects = bench.frame(host, outer.Passes((routes.digest(OTHER),)))
    assert frames(effects, client) == [
        outer.Close(1, outer.REFUSED, "the pass was withdrawn"),
        outer.Presence(ROUTE, False, 0),
    ]
    assert frames(effects, host) == [outer.Close(number, outer.REFUSED, "the pass was withdrawn")]
    assert bench.frame(host, outer.Data(kept, b"x")) == [Send(other, outer.Data(1, b"x"))]
    bench.now += 11  # a stranger again, with the time limit of a stranger
    assert drop(bench(events.Tick())).connection == client


def test_credit() -> None:
    bench = Bench()
    host, client = bench.host(), bench.client()
    number = bench.stream(host, client)
    assert bench.frame(client, outer.Data(1, b"x" * WINDOW)) != []
    assert bench.frame(host, outer.Credit(number, 10)) == [Send(client, outer.Credit(1, 10))]
    effects = bench.frame(client, outer.Data(1, b"x" * 11))
    assert effects == [
        Send(client, outer.Close(1, outer.FLOW, "more DATA than credit")),
        Send(host, outer.Close(number, outer.FLOW, "more DATA than credit")),
    ]
    number = bench.stream(host, client, 2)
    assert frames(bench.frame(client, outer.Credit(2, 1)), client) == [
        outer.Close(2, outer.FLOW, "more credit than a window")
    ]


@pytest.mark.parametrize("frame", [outer.Data(1, b"x"), outer.Credit(1, 1)])
def test_nothing_flows_before_accept(frame: outer.Frame) -> None:
    bench = Bench()
    bench.host()
    client = bench.client()
    bench.frame(client, outer.Open(1, ROUTE, PASS))
    assert [f.code for f in frames(bench.frame(client, frame), client)] == [outer.PROTOCOL]  # type: ignore[union-attr]


def test_a_host_that_does_not_answer_an_incoming_stream() -> None:
    bench = Bench()
    host, client = bench.host(), bench.client()
    bench.frame(client, outer.Open(1, ROUTE, PASS))
    bench.now += 10.5
    bench.frame(host, outer.Pong(b"12345678"))
    assert frames(bench(events.Tick()), client) == [
        outer.Close(1, outer.TIMEOUT, "the host did not answer")
    ]


def test_strangers_have_a_few_frames_and_seconds() -> None:
    bench = Bench(strange_frames=3)
    one, two = bench.client(), bench.client()
    bench.frame(one, outer.Ping(b"12345678"))
    bench.frame(one, outer.Ping(b"12345678"))
    assert drop(bench.frame(one, outer.Ping(b"12345678"))).code == outer.LIMIT
    bench.now += 10.5
    assert drop(bench(events.Tick())) == Drop(
        two, outer.UNAUTHORIZED, "nothing was shown that admits"
    )
    bench(events.Connected(50, (NAME,), b"n" * 32))
    bench.now += 5.5
    assert drop(bench(events.Tick())) == Drop(50, outer.TIMEOUT, "no HELLO")


def test_silence_is_asked_about_once_and_then_means_death() -> None:
    bench = Bench()
    host = bench.host()
    bench.now += 20
    assert [type(e.frame) for e in bench(events.Tick()) if isinstance(e, Send)] == [outer.Ping]
    assert bench(events.Tick()) == []
    bench.frame(host, outer.Pong(b"12345678"))
    bench.now += 20
    assert [type(e.frame) for e in bench(events.Tick()) if isinstance(e, Send)] == [outer.Ping]
    bench.now += 20
    assert drop(bench(events.Tick())).code == outer.TIMEOUT


def test_every_frame_out_of_place_ends_the_connection() -> None:
    everything: list[outer.Frame] = [
        outer.Hello(1, 1, outer.HOST, ""),
        outer.Welcome(1, b"n" * 32, 65567, 1, 1, ""),
        outer.Registered(ROUTE),
        outer.Incoming(1),
        outer.Presence(ROUTE, True, 1),
    ]
    roles: list[tuple[int, list[outer.Frame]]] = [
        (outer.HOST, [outer.Open(1, ROUTE, PASS), outer.Watch(ROUTE, PASS), outer.Passes(())]),
        (outer.CLIENT, [outer.Register(KEY, 1, b"s" * 64, ()), outer.Passes(()), outer.Accept(1)]),
    ]
    for role, more in roles:
        for frame in [*everything, *more]:
            bench = Bench()
            assert drop(bench.frame(bench.connect(role, ACME), frame)).code == outer.PROTOCOL, (
                role,
                frame,
            )
    bench = Bench()
    for frame in (
        outer.Ping(b"12345678"),
        outer.Data(1, b"x"),
        outer.Open(1, ROUTE, PASS),
        outer.Close(0, outer.DONE),
    ):
        bench.number += 1
        bench(events.Connected(bench.number, (NAME,), b"n" * 32))
        assert drop(bench.frame(bench.number, frame)).code == outer.PROTOCOL


def test_no_version_in_common() -> None:
    bench = Bench()
    bench(events.Connected(1, (NAME,), b"n" * 32))
    assert drop(bench.frame(1, outer.Hello(7, 9, outer.HOST, ""))).code == outer.UNSPOKEN


def test_stream_numbers_only_grow() -> None:
    bench = Bench()
    host, client = bench.host(), bench.client()
    bench.stream(host, client, 5)
    assert drop(bench.frame(client, outer.Open(5, ROUTE, PASS))).code == outer.PROTOCOL


def test_quotas_of_streams_hosts_watches_connections() -> None:
    bench = Bench(client_streams=1, tenant_routes=1, watches=1, tenant_connections=4)
    host, client = bench.host(), bench.client()
    bench.stream(host, client)
    assert frames(bench.frame(client, outer.Open(2, ROUTE, PASS)), client) == [
        outer.Close(2, outer.LIMIT, "too many streams")
    ]
    other = bench.connect(outer.HOST, ACME)
    assert drop(bench.register(other, secret=b"s" * 32)).code == outer.LIMIT
    bench.frame(client, outer.Watch(ROUTE, PASS))
    assert drop(bench.frame(client, outer.Watch(b"?" * 16, PASS))).code == outer.LIMIT
    for _ in range(3):
        bench.frame(bench.client(), outer.Watch(ROUTE, PASS))
    assert drop(bench.frame(bench.client(), outer.Watch(ROUTE, PASS))).code == outer.LIMIT
    assert drop(bench(events.Connected(99, (NAME,), b"n" * 32, ACME))).code == outer.LIMIT


def test_a_tenant_over_its_rate_is_read_more_slowly_and_others_are_not() -> None:
    bench = Bench(tenant_bytes_s=1000, tenant_burst=2000)
    host, client = bench.host(), bench.client()
    number = bench.stream(host, client)
    effects = [e for _ in range(3) for e in bench.frame(host, outer.Data(number, b"x"), 1000)]
    [*_, pause] = [e for e in effects if isinstance(e, Pause)]
    assert pause.connection == host and pause.seconds > 0.9
    other = bench.host(token=Token("t2", "other"), secret=b"s" * 32)
    assert not [
        e for e in bench.frame(other, outer.Ping(b"12345678"), 1000) if isinstance(e, Pause)
    ]
    bench.now += 4
    assert not [e for e in bench.frame(host, outer.Ping(b"12345678"), 1000) if isinstance(e, Pause)]


def test_a_token_confines_to_its_tenant() -> None:
    bench = Bench()
    bench.host()
    rival = bench.connect(outer.CLIENT, Token("t2", "rival"))
    assert [
        type(e.frame) for e in bench.frame(rival, outer.Open(1, ROUTE, PASS)) if isinstance(e, Send)
    ] == [outer.Close]
    friend = bench.connect(outer.CLIENT, Token("t3", "acme"))
    assert frames(bench.frame(friend, outer.Open(1, ROUTE, PASS)), friend) == []


def test_a_route_moves_to_another_tenant_with_its_key_and_a_token_of_it() -> None:
    bench = Bench()
    old, watcher = bench.host(), bench.client()
    bench.frame(watcher, outer.Watch(ROUTE, PASS))
    new = bench.connect(outer.HOST, Token("t2", "other"))
    effects = bench.register(new)
    assert drop(effects).connection == old and Forget(KEY) in effects
    assert frames(effects, watcher) == [outer.Presence(ROUTE, False, 0)]
    assert (
        bench.registry.tenants["other"].routes == 1 and bench.registry.tenants["acme"].routes == 0
    )


def test_a_revoked_token_ends_and_forgets_its_hosts() -> None:
    bench = Bench()
    host, client = bench.host(), bench.client()
    bench.stream(host, client)
    effects = bench(events.Revoked("t1"))
    assert drop(effects).connection == host and Forget(KEY) in effects
    assert [type(f) for f in frames(effects, client)] == [outer.Close]
    assert drop(bench.register(bench.connect(outer.HOST))).code == outer.UNAUTHORIZED
    beforehand = Bench()
    beforehand(events.Enrolled(Known(KEY, "acme", None, 0, (), 5)))
    beforehand(events.Gone(beforehand.host()))  # with a token, though it needed none
    beforehand(events.Revoked("t1"))
    beforehand.host(token=None)


def test_the_route_that_was_away_for_longest_is_forgotten_first() -> None:
    bench = Bench(tenant_known=2)
    for index in range(3):
        bench.now = 10.0 * (index + 1)
        bench(events.Gone(bench.host(secret=bytes([index + 1]) * 32)))
    assert (
        routes.route(signing.public(b"\1" * 32)) not in bench.registry.route_table.routes
        and len(bench.registry.route_table.routes) == 2
    )


def test_all_peers_are_told_when_the_relay_goes_down() -> None:
    bench = Bench()
    host, client = bench.host(), bench.client()
    bench.stream(host, client)
    assert [(e.connection, e.code) for e in bench(events.Stopping()) if isinstance(e, Drop)] == [
        (host, outer.AWAY),
        (client, outer.AWAY),
    ]
    assert bench(events.Gone(host)) == [] and not bench.registry.connections
