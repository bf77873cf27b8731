"""A session bus with a service that takes notifications, like a desktop has."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SERVICE = "org.freedesktop.Notifications"


class Desktop:
    """Keeps what is shown. `jeepney` is a second implementation of D-Bus beside ours."""

    def __init__(self, address: str) -> None:
        from jeepney.bus_messages import message_bus
        from jeepney.io.blocking import open_dbus_connection

        self.address = address
        self.shown: list[tuple[str, str]] = []  # title and text
        self.calls: list[tuple[Any, ...]] = []
        self._connection = open_dbus_connection(address)
        self._connection.send_and_get_reply(message_bus.RequestName(SERVICE))
        self._ended = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        from jeepney import HeaderFields, MessageType, new_method_return

        while not self._ended:
            try:
                message = self._connection.receive(timeout=0.1)
            except TimeoutError:
                continue
            if message.header.message_type is not MessageType.method_call:
                continue
            if message.header.fields[HeaderFields.member] == "GetCapabilities":
                answer: tuple[str, tuple[Any, ...]] = ("as", (["body", "body-markup"],))
            else:
                self.calls.append(message.body)
                self.shown.append((message.body[3], message.body[4]))
                answer = ("u", (len(self.shown),))
            self._connection.send(new_method_return(message, *answer))

    def close(self) -> None:
        self._ended = True
        self._thread.join()
        self._connection.close()


@contextmanager
def session_bus(place: Path) -> Iterator[str]:
    """The address of a session bus."""
    if shutil.which("dbus-daemon") is None:
        pytest.skip("dbus-daemon is not installed")
    address = f"unix:path={place}/bus"
    words = ["dbus-daemon", "--session", "--nofork", "--nopidfile", "--print-address=1"]
    bus = subprocess.Popen([*words, f"--address={address}"], stdout=subprocess.PIPE)
    try:
        assert bus.stdout is not None and bus.stdout.readline(), "the bus listens"
        yield address
    finally:
        bus.terminate()
        bus.wait()


@pytest.fixture
def desktop(short_path: Path) -> Iterator[Desktop]:
    pytest.importorskip("jeepney", reason="the second implementation of D-Bus is not installed")
    with session_bus(short_path) as address:
        made = Desktop(address)
        yield made
        made.close()
