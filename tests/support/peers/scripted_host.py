"""A host that answers clients by a script."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.client.link import Link
from holdfast.home import Home
from holdfast.model import signing
from holdfast.model.limits import REQUEST_BYTES
from holdfast.wire import frames, hello

WELCOME = {"version": frames.VERSION, "host": "h", "home": "/h", "pid": 1, "release": "0"}


class Peer:
    """An accepted connection on the host's side."""

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
    """A host that plays one part per connection; the last part serves all further ones."""
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
