"""The ways of `notify`: bytes for terminals, addresses of desktops and receivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.client.engine.engine import Engine
from holdfast.core.session.waits import Wait
from holdfast.faces.notify.desktop import Desktop, socket_of
from holdfast.faces.notify.following import TEXT_CHARS, Watched, short
from holdfast.faces.notify.terminal import sequence
from holdfast.faces.notify.webhook import Webhook
from holdfast.model.errors import Impossible, Refused, Usage


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM": "xterm-256color"}, b"\x1b]9;a;b: c\a\a"),
        ({"TERM": "foot"}, b"\x1b]777;notify;a,b;c\a\a"),
        ({"TERM": "rxvt-unicode-256color"}, b"\x1b]777;notify;a,b;c\a\a"),
        ({"TERM": "linux"}, b"\a"),
        ({"TERM": "dumb"}, b"\a"),
        ({}, b"\a"),
        ({"TERM": "tmux-256color", "TMUX": "/x"}, b"\x1bPtmux;\x1b\x1b]9;a;b: c\a\x1b\\\a"),
        ({"TERM": "screen"}, b"\x1bP\x1b]9;a;b: c\a\x1b\\\a"),
    ],
)
def test_a_terminal_gets_the_sequence_that_it_knows(
    environ: dict[str, str], expected: bytes
) -> None:
    assert sequence("a;b", "c", environ) == expected


def test_a_long_act_is_cut_and_names_the_command_that_shows_it() -> None:
    wait = Wait("approval", "s", "work", 0.0, "x" * 1000, "bot", "it deletes", "q1", "box")
    found = short(wait)
    assert found.startswith("x" * (TEXT_CHARS - 3) + "...") and "holdfast approve box/q1" in found
    assert short(wait._replace(kind="secret", text="sudo true")) == "sudo true"


def test_no_text_of_a_machine_reaches_the_terminal_as_a_sequence() -> None:
    found: list[Wait] = []
    engine = Engine.__new__(Engine)  # is not asked
    watched = Watched(engine, "box", frozenset(("approval",)), (), found.append, lambda text: None)
    hostile = "x\a\x1b]52;c;eA==\a\ud800"
    names = ("id", "session", "name", "operator", "text", "because")
    watched._event(
        {"event": "approvals", "approvals": [dict.fromkeys(names, hostile) | {"asked": 1}]}
    )
    data = sequence(found[0].title, short(found[0]), {"TERM": "xterm"})
    assert data.count(b"\x1b") == 1 and data.count(b"\a") == 2 and b"box/x" in data


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/a%20b,guid=1"}, "/run/a b"),
        ({"DBUS_SESSION_BUS_ADDRESS": "tcp:host=x;unix:abstract=/tmp/x"}, "\0/tmp/x"),
        ({"XDG_RUNTIME_DIR": "/run/user/9"}, "/run/user/9/bus"),
    ],
)
def test_the_socket_of_the_session_bus(environ: dict[str, str], expected: str) -> None:
    assert socket_of(environ) == expected


@pytest.mark.parametrize("address", ["", "tcp:host=localhost,port=1", "unix:path=/nowhere/bus"])
def test_without_a_desktop_the_way_says_so(address: str, tmp_path: Path) -> None:
    environ = {"DBUS_SESSION_BUS_ADDRESS": address, "XDG_RUNTIME_DIR": str(tmp_path)}
    with pytest.raises(Impossible, match="no desktop takes notifications here"):
        Desktop(environ)


def test_the_address_of_a_receiver_may_be_in_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "receiver"
    file.write_text("http://127.0.0.1:9/in/token\nwhsec_c2VjcmV0\n")
    file.chmod(0o644)
    with pytest.raises(Refused, match="not private"):
        Webhook(f"@{file}")
    file.chmod(0o600)
    made = Webhook(f"@{file}")
    assert made.name == "webhook 127.0.0.1" and made._hook.secret == "whsec_c2VjcmV0"
    for text in ("", "http://127.0.0.1:9 nonsense"):
        file.write_text(text)
        with pytest.raises(Usage, match="has no receiver"):
            Webhook(f"@{file}")


def test_texts_of_acts_do_not_cross_the_public_network_in_plain() -> None:
    with pytest.raises(Usage, match="needs https"):
        Webhook("http://9.9.9.9/in")
    assert Webhook("http://127.0.0.1:9/in").name == "webhook 127.0.0.1"
