"""A client's connection against a host that misbehaves in every way: typed errors, repeats only where that is safe."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import link as links
from holdfast.client.link import HostGone, Link
from holdfast.home import Home
from holdfast.model import signing
from holdfast.model.errors import Busy, Lost, PeerFault, TimedOut, Unavailable, Usage
from holdfast.model.limits import REQUEST_BYTES
from holdfast.wire import frames, hello

WELCOME = {"version": frames.VERSION, "host": "h", "home": "/h", "pid": 1, "release": "0"}
FIELDS: dict[str, dict[str, Any]] = {  # of acts, which are signed over them
    "run": {"session": "s", "text": "ls"},
    "send": {"session": "s", "text": "ls"},
    "end": {"session": "s"},
    "seize": {"session": "s"},
    "rename": {"session": "s", "name": "n"},
}


class Peer:
    """One accepted connection on the host's side."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.splitter = frames.Splitter(frames.FROM_CLIENT, REQUEST_BYTES)
        self.ready: list[tuple[int, bytes]] = []

    def next(self) -> tuple[int, bytes]:
        while not self.ready:
            data = self.sock.recv(1 << 16)
            if not data:
                raise EOFError
            self.ready.extend(self.splitter.feed(data))
        return self.ready.pop(0)

    def welcome(self) -> None:
        kind, payload = self.next()
        words = frames.read_json(payload)
        assert kind == frames.HELLO and words["operator"] == "ann"
        challenge = {"version": frames.VERSION, "machine": "m", "nonce": "n"}
        self.sock.sendall(frames.pack_json(frames.CHALLENGE, challenge))
        kind, payload = self.next()
        signature = bytes.fromhex(frames.read_json(payload)["signature"])
        assert kind == frames.PROOF and signing.verify(
            signing.read(words["key"]), hello.DOMAIN, hello.statement(words, challenge), signature
        )
        place = {"place": {"id": "s", "epoch": 1, "seen": None}} if "about" in words else {}
        self.sock.sendall(frames.pack_json(frames.WELCOME, {**WELCOME, **place}))

    def request(self) -> tuple[int, dict[str, Any]]:
        kind, payload = self.next()
        assert kind == frames.REQUEST
        return frames.read_request(payload)


@contextmanager
def host(tmp_path: Path, *plays: Callable[[Peer], None]) -> Iterator[Link]:
    """A host that plays its parts, one per connection; the last one stays for all further connections."""
    home = Home(str(tmp_path), str(tmp_path / "config.toml"), True)
    os.chmod(tmp_path, 0o700)
    os.makedirs(home.run, mode=0o700, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(home.host_socket)
    listener.listen(64)
    failures: list[BaseException] = []
    kept: list[socket.socket] = []

    def serve() -> None:
        number = 0
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            play = plays[min(number, len(plays) - 1)]
            number += 1
            try:
                play(Peer(sock))
                sock.close()
            except (EOFError, ConnectionError):
                sock.close()
            except BaseException as e:
                failures.append(e)
                sock.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    link = Link(home, "ann", autostart=False)
    try:
        yield link
    finally:
        link.close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(120)
        for sock in kept:
            sock.close()
    assert not failures, failures


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


@pytest.mark.parametrize("op", sorted(links.REPEATABLE))
def test_s4_what_is_safe_is_asked_again(tmp_path: Path, op: str) -> None:
    with host(tmp_path, dies_after_request, dies_after_request, answer({"again": True})) as link:
        assert link.request(op, **FIELDS.get(op, {})) == {"again": True}


def test_what_is_not_safe_to_repeat_is_lost_and_says_so(tmp_path: Path) -> None:
    with host(tmp_path, dies_after_request) as link, pytest.raises(Lost, match="not known") as lost:
        link.request("forget", session="x")
    assert lost.value.retry_safe is False


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
