"""A typed code through a relay, with restarted hosts: an unused code still counts (T2, S4).

A wrong guess counts as a guess.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.people import join_code
from holdfast.core.sealed import meeting, route
from holdfast.model import signing
from holdfast.transport import websocket
from holdfast.transport.websocket import WebSocket
from holdfast.wire import outer
from tests.support.commands.results import the_error
from tests.support.commands.through_relay import connect
from tests.support.installation import DEADLINE_S, Installation, eventually, installation
from tests.support.peers.hostile_client import crash
from tests.support.simulation.crooked_carrier import Crooked


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, relay: Crooked) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("there")) as made:
        made.new("work", "--", "cat")
        connect(made, relay)
        yield made


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("here")) as made:
        yield made


def invited(there: Installation) -> dict[str, Any]:
    made: dict[str, Any] = there.ok("invite", "--rights", "read", "--no-wait", "--json").records[0]
    return made


def kept(there: Installation, made: dict[str, Any]) -> Path:
    return there.home / "run" / f"{made['id']}.code"


def restarted(there: Installation) -> None:
    crash(there)
    eventually(
        lambda: there.ok("host", "ls", "--json").json["relays"][0]["state"] == "registered",
        "the line",
    )


def join(here: Installation, relay: Crooked, code: str, name: str) -> Any:
    """The host may still be on its way to the meeting place."""
    end = time.monotonic() + DEADLINE_S
    while (
        found := here.attempt("join", code, "--relay", relay.url, "--as", name, "--json")
    ).rc == 5 and time.monotonic() < end:
        select.select([], [], [], 0.05)
    return found


def wrong(code: str) -> str:
    right, _ = join_code.read(code)
    return join_code.Code(right.id, "0000000" if right.secret != "0000000" else "0000001").show()


def opened(relay: Crooked, id: str) -> WebSocket | None:
    """A stream to the host that waits for that code; None as long as no host waits there."""
    ws = websocket.dial(relay.url, None, None, DEADLINE_S)
    ws.send(outer.encode(outer.Hello(outer.LOWEST, outer.VERSION, outer.CLIENT, "test")))
    assert isinstance(next_frame(ws), outer.Welcome)
    ws.send(
        outer.encode(
            outer.Open(1, route.route(signing.public(meeting.route_key(id))), meeting.pass_(id))
        )
    )
    answer = next_frame(ws)
    if isinstance(answer, outer.Close):
        ws.close()
        return None
    assert isinstance(answer, outer.Accept)
    return ws


def next_frame(ws: WebSocket) -> outer.Frame:
    while True:
        ready, _, _ = select.select([ws.fileno()], [], [], DEADLINE_S)
        assert ready
        for message in ws.receive():
            frame = outer.decode(message, outer.TO_CLIENT)
            if not isinstance(frame, outer.Credit | outer.Ping):
                return frame


def test_s4_a_typed_code_outlives_the_host(
    here: Installation, there: Installation, relay: Crooked
) -> None:
    made = invited(there)
    assert kept(there, made).exists()
    restarted(there)
    joined = join(here, relay, made["code"], "ann")
    assert joined.rc == 0, joined
    assert not kept(there, made).exists()
    assert here.attempt(
        "join", made["code"], "--relay", relay.url, "--as", "other", "--json"
    ).rc in (4, 5), "once"


def test_t2_a_guess_is_a_guess_over_a_restart(
    here: Installation, there: Installation, relay: Crooked
) -> None:
    made = invited(there)
    assert (
        "another code" in the_error(join(here, relay, wrong(made["code"]), "mallory"), 4)["message"]
    )
    assert not kept(there, made).exists()
    restarted(there)
    assert here.attempt("join", made["code"], "--relay", relay.url, "--as", "bob", "--json").rc in (
        4,
        5,
    )
    assert here.ok("join", made["url"], "--as", "bob").rc == 0, "the link still counts"


def test_t2_a_guess_counts_before_it_is_answered(
    here: Installation, there: Installation, relay: Crooked
) -> None:
    made = invited(there)
    ws = eventually(lambda: opened(relay, made["id"]), "the meeting place")
    assert kept(there, made).exists(), "a connection alone is no guess"
    guess = meeting.Meeting(
        True,
        route.route(signing.public(meeting.route_key(made["id"]))),
        signing.generate(),
        b"g" * 32,
        0.0,
    )
    ws.send(outer.encode(outer.Data(1, guess.start().send[0])))
    assert isinstance(next_frame(ws), outer.Data)
    assert not kept(there, made).exists()
    restarted(there)  # the answer was given; the operators do not know whether it was right
    ws.close()
    assert here.attempt(
        "join", made["code"], "--relay", relay.url, "--as", "carl", "--json"
    ).rc in (4, 5)


def test_t2_an_ended_invitation_leaves_no_code_behind(there: Installation) -> None:
    made, other = invited(there), invited(there)
    there.ok("invite", "revoke", made["id"])
    eventually(lambda: not kept(there, made).exists(), "the end of the first")
    assert kept(there, other).exists()


def test_t1_a_relay_that_is_connected_later_is_one_where_the_code_is_waited_for(
    here: Installation, there: Installation, relay: Crooked
) -> None:
    there.ok("host", "disconnect", relay.url)
    made = invited(there)
    connect(there, relay)
    assert join(here, relay, made["code"], "dora").rc == 0
