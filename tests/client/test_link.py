"""A client's connection to a misbehaving host: typed errors, repeats only where they are safe."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import link as links
from holdfast.client.gone import HostGone
from holdfast.client.link import Link
from holdfast.core.contract.table import OPERATIONS
from holdfast.home import Home
from holdfast.model.errors import Busy, OutcomeUnknown, PeerFault, TimedOut, Unavailable, Usage
from holdfast.model.limits import REQUEST_BYTES
from holdfast.wire import frames
from tests.support.peers.scripted_host import Peer, host

FIELDS: dict[str, dict[str, Any]] = {  # of acts, which are signed over them
    "run": {"session": "s", "text": "ls"},
    "send": {"session": "s", "text": "ls"},
    "end": {"session": "s"},
    "seize": {"session": "s"},
    "rename": {"session": "s", "name": "n"},
    "signal": {"session": "s", "pid": 1, "signal": "TERM"},
    "forward": {"session": "s", "port": 3000},
    "checkpoint.remove": {"session": "s", "checkpoint": "cp-1"},
    "reap": {"session": "s", "choice": "never"},
    "rehome": {"session": "s", "on": True},
    "move": {"session": "s", "machine": "box"},
    "files.ls": {"session": "x"},
    "files.stat": {"session": "x", "path": "a"},
    "files.get": {"session": "x", "path": "a"},
    "files.search": {"session": "x", "pattern": "*"},
    "files.put": {"session": "x", "path": "a"},
    "files.rm": {"session": "x", "path": "a"},
    "files.mv": {"session": "x", "path": "a", "to": "b"},
}


def answer(body: dict[str, Any], ok: bool = True) -> Callable[[Peer], None]:
    def play(peer: Peer) -> None:
        peer.welcome()
        number, _ = peer.request()
        peer.sock.sendall(frames.reply(number, body, ok))

    return play


def dies_after_request(peer: Peer) -> None:
    peer.welcome()
    peer.request()


def test_an_answer_is_returned_and_an_error_is_raised_as_its_class(tmp_path: Path) -> None:
    with host(tmp_path, answer({"x": 1})) as link:
        assert link.request("ping") == {"x": 1}
    os.unlink(tmp_path / "run/host.sock")
    with (
        host(
            tmp_path, answer({"name": "busy", "message": "vim", "recover": "wait"}, ok=False)
        ) as link,
        pytest.raises(Busy, match="vim"),
    ):
        link.request("run", **FIELDS["run"])


def test_no_host_is_unavailable(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    os.makedirs(tmp_path / "run", mode=0o700)
    with pytest.raises(Unavailable) as refused:
        Link(Home(str(tmp_path), "", True), "ann", autostart=False).request("ping")
    assert "holdfast up" in refused.value.recover


@pytest.mark.parametrize("op", sorted(row.name for row in OPERATIONS.values() if row.repeatable))
def test_s4_requests_that_are_safe_to_repeat_are_repeated(tmp_path: Path, op: str) -> None:
    with host(tmp_path, dies_after_request, dies_after_request, answer({"again": True})) as link:
        assert link.request(op, **FIELDS.get(op, {})) == {"again": True}


CHANGES = sorted(
    row.name for row in OPERATIONS.values() if not row.harmless and row.name not in ("down", "turn")
)


@pytest.mark.parametrize("op", CHANGES)
def test_a9_an_act_that_was_sent_and_not_answered_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    monkeypatch.setattr(links, "CONNECT_WAIT_S", 0.2)
    with host(tmp_path, dies_after_request) as link, pytest.raises(OutcomeUnknown) as unknown:
        link.request(op, **FIELDS.get(op, {"session": "x"}))
    error = unknown.value
    assert (error.name, error.exit_code, error.retry_safe) == ("outcome_unknown", 8, False)
    assert "look first" in error.recover and "same --once KEY" in error.recover


def test_a9_an_act_is_unknown_also_if_the_host_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host died right after it got the act, and does not return in time."""
    monkeypatch.setattr(links, "CONNECT_WAIT_S", 0.2)

    def last(peer: Peer) -> None:
        peer.welcome()
        peer.request()
        os.unlink(tmp_path / "run/host.sock")

    with host(tmp_path, last) as link, pytest.raises(OutcomeUnknown, match="not running"):
        link.request("send", **FIELDS["send"])


@pytest.mark.parametrize("reason", ["admission", "protocol", "gone"])
def test_a9_a_farewell_is_no_answer_to_an_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(links, "CONNECT_WAIT_S", 0.2)

    def play(peer: Peer) -> None:
        peer.welcome()
        peer.request()
        peer.sock.sendall(frames.pack_json(frames.BYE, {"reason": reason, "message": "because"}))

    with host(tmp_path, play) as link, pytest.raises(OutcomeUnknown, match="because"):
        link.request("send", **FIELDS["send"])


def test_a9_an_act_that_is_not_answered_in_time_is_unknown(tmp_path: Path) -> None:
    release = threading.Event()

    def play(peer: Peer) -> None:
        peer.welcome()
        peer.request()
        release.wait(120)

    with host(tmp_path, play) as link:
        with pytest.raises(OutcomeUnknown):
            link.request("send", wait_s=0.2, **FIELDS["send"])
        release.set()


@pytest.mark.parametrize("op", ["send", "forget", "approve"])
def test_a9_an_act_that_was_never_sent_is_safe_to_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    monkeypatch.setattr(links, "CONNECT_WAIT_S", 0.2)
    with host(tmp_path, lambda peer: None) as link, pytest.raises(HostGone) as gone:
        link.request(op, **FIELDS.get(op, {"session": "x"}))
    assert gone.value.retry_safe is True


def test_a9_an_act_that_found_the_connection_dead_is_sent_again(tmp_path: Path) -> None:
    """The host died between two requests: nothing was sent, so nothing is unknown."""
    with host(tmp_path, answer({}), answer({"done": 1})) as link:
        link.request("ping")
        link.sock.shutdown(2)  # type: ignore[union-attr]
        assert link.request("forget", session="x") == {"done": 1}


def test_a9_each_act_of_a_command_has_its_own_key_by_place(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def play(peer: Peer) -> None:
        peer.welcome()
        while True:
            number, body = peer.request()
            asked.append(body)
            reply = {"id": "s", "epoch": 1, "seen": None} if body["op"] == "place" else {}
            peer.sock.sendall(frames.reply(number, reply))

    with host(tmp_path, play) as link:
        link.once = "k"
        for op, fields in (
            ("send", FIELDS["send"]),
            ("ls", {}),
            ("forget", {"session": "x"}),
            ("forget", {"session": "y"}),
            ("new", {"name": "x"}),
        ):
            link.request(op, **fields)
    keyed = [(a["op"], a.get("once")) for a in asked if a["op"] not in ("place", "ls")]
    assert keyed == [("send", "k"), ("forget", "k"), ("forget", "k/2"), ("new", "k/3")]
    assert all("once" not in a for a in asked if a["op"] in ("place", "ls"))
    assert "token" not in asked[-1]  # another process must be able to repeat it
    said = json.loads(asked[0]["signed"]["statement"])
    assert said["once"] == "k"


@pytest.mark.parametrize(
    "op", [*sorted(row.name for row in OPERATIONS.values() if row.harmless), "turn"]
)
def test_a9_a_read_is_never_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    monkeypatch.setattr(links, "CONNECT_WAIT_S", 0.2)
    with host(tmp_path, dies_after_request) as link, pytest.raises(HostGone) as gone:
        link.request(op, **FIELDS.get(op, {}))
    assert gone.value.retry_safe is True


def test_a_host_that_dies_before_the_request_costs_nothing(tmp_path: Path) -> None:
    with host(tmp_path, lambda peer: None, lambda peer: None, answer({"made": 1})) as link:
        assert link.request("forget", session="x") == {"made": 1}


def test_s4_a_repeated_run_goes_on_where_the_output_had_come_to(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def first(peer: Peer) -> None:
        peer.welcome()
        number, body = peer.request()
        asked.append(body)
        peer.sock.sendall(
            frames.data_header(number, 100, 103, 3)
            + b"abc"
            + frames.data_header(number + 9, 0, 9, 1)
            + b"?"
        )

    def second(peer: Peer) -> None:
        peer.welcome()
        number, body = peer.request()
        asked.append(body)
        peer.sock.sendall(
            frames.data_header(number, 103, 105, 2)
            + b"de"
            + frames.gap(number, 105, 200)
            + frames.reply(number, {"exit_code": 0})
        )

    got: list[bytes] = []
    gaps: list[tuple[int, int]] = []
    with host(tmp_path, first, second) as link:
        link.request(
            "run",
            wait_s=120,
            on_data=lambda a, b, d: got.append(d),
            on_gap=lambda a, b: gaps.append((a, b)),
            session="s",
            text="ls",
            seq=1,
            resume=None,
        )
    assert b"".join(got) == b"abcde" and gaps == [(105, 200)]
    assert [a["resume"] for a in asked] == [None, 103] and {a["seq"] for a in asked} == {1}


def test_a_repeated_wait_has_less_time_left_and_a_repeated_new_the_same_token(
    tmp_path: Path,
) -> None:
    asked: list[dict[str, Any]] = []

    def note(peer: Peer) -> None:
        peer.welcome()
        asked.append(peer.request()[1])

    def done(peer: Peer) -> None:
        peer.welcome()
        number, body = peer.request()
        asked.append(body)
        peer.sock.sendall(frames.reply(number, {}))

    with host(tmp_path, note, done) as link:
        link.request("wait", timeout=10.0)
        assert 0 < asked[1]["timeout"] < 10.0
    os.unlink(tmp_path / "run/host.sock")
    asked.clear()
    with host(tmp_path, note, done) as link:
        link.request("new", name="x")
        assert asked[0]["token"] == asked[1]["token"] and len(asked[0]["token"]) > 10


def test_a_host_in_a_crash_loop_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "CONNECT_WAIT_S", 0.5)
    with host(tmp_path, dies_after_request) as link, pytest.raises(HostGone):
        link.request("ls")


@pytest.mark.parametrize(
    ("reason", "error"), [("down", HostGone), ("protocol", PeerFault), ("version", PeerFault)]
)
def test_a_farewell_says_why(tmp_path: Path, reason: str, error: type[Exception]) -> None:
    def play(peer: Peer) -> None:
        peer.welcome()
        peer.request()
        peer.sock.sendall(frames.pack_json(frames.BYE, {"reason": reason, "message": "because"}))

    with host(tmp_path, play) as link, pytest.raises(error, match="because"):
        link.request("ls")


@pytest.mark.parametrize(
    "noise",
    [
        b"\0" * 20,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frames.frame(frames.REPLY, b""),
        frames.frame(frames.REPLY, b"\1\0\0\0\1{"),
        frames.frame(frames.BYE, b"[]"),
        frames.frame(frames.EVENT, b"x"),
        frames.frame(frames.INPUT, b""),
    ],
    ids=lambda b: repr(b[:10]),
)
def test_a_host_that_talks_nonsense_is_a_peer_fault(tmp_path: Path, noise: bytes) -> None:
    def play(peer: Peer) -> None:
        peer.welcome()
        peer.request()
        peer.sock.sendall(noise)

    with host(tmp_path, play) as link, pytest.raises(PeerFault):
        link.request("ls", wait_s=120, on_event=lambda e: None)


def test_a_host_that_does_not_welcome_is_a_peer_fault(tmp_path: Path) -> None:
    def play(peer: Peer) -> None:
        peer.next()
        peer.sock.sendall(frames.reply(1, {}))

    with host(tmp_path, play) as link, pytest.raises(PeerFault):
        link.request("ls")


def test_a_host_that_says_nothing_is_a_timeout(tmp_path: Path) -> None:
    release = threading.Event()

    def play(peer: Peer) -> None:
        peer.welcome()
        peer.request()
        release.wait(120)

    with host(tmp_path, play) as link:
        with pytest.raises(TimedOut):
            link.request("ls", wait_s=0.2)
        release.set()


def test_a_request_too_large_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    with (
        host(tmp_path, lambda peer: peer.welcome()) as link,
        pytest.raises(Usage, match=str(REQUEST_BYTES)),
    ):
        link.request("send", session="s", text="x" * REQUEST_BYTES)


def test_sequences_are_handed_out_once(tmp_path: Path) -> None:
    link = Link(Home(str(tmp_path), "", True), "ann")
    assert [link.next_sequence(), link.next_sequence(3), link.next_sequence()] == [1, 2, 5]
    assert Link(Home(str(tmp_path), "", True), "ann").client != link.client
