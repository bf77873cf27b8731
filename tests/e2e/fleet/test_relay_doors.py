"""Machine and client use either door of a relay, the same or different ones (T1, T3).

The bytes, the answers and the errors are the same.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import home as homes
from holdfast.home import relays
from holdfast.model import canonical
from tests.support.commands.certificates import certificate
from tests.support.commands.results import the_error
from tests.support.installation import Installation, eventually, installation
from tests.support.relays import RelayProcess

CROSSED = (
    ("grpc", "grpc"),
    ("grpc", "websocket"),
    ("websocket", "grpc"),
)  # both by WebSocket: test_relay.py


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """With TLS, by a certificate that only configured clients trust."""
    place = tmp_path_factory.mktemp("relay")
    chain, key = certificate(place, "localhost", 1)
    with RelayProcess(
        str(place / "data"),
        "--tls-cert",
        str(chain),
        "--tls-key",
        str(key),
        "--name",
        "localhost",
        "--grpc",
        "127.0.0.1:0",
    ) as made:
        made.urls = {
            "websocket": f"wss://localhost:{made.port_of('websocket')}",
            "grpc": f"grpcs://localhost:{made.port_of('grpc')}",
        }
        yield made


@pytest.fixture(scope="module")
def ca(relay: RelayProcess) -> str:
    return str(Path(relay.data).parent / "chain.pem")


@pytest.fixture(scope="module")
def there(
    tmp_path_factory: pytest.TempPathFactory, relay: RelayProcess, ca: str
) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("there"), "[turn]\nidle_s = 0.3\n") as made:
        made.new("work", "--", "bash")
        Path(made.user, "token").write_text(relay.token())
        yield made


@pytest.fixture(scope="module")
def doors(
    request: pytest.FixtureRequest, relay: RelayProcess, there: Installation, ca: str
) -> Iterator[tuple[str, str]]:
    """The doors of the machine and of the client; the machine is connected by its door only."""
    for one in there.ok("host", "ls", "--json").json["relays"]:
        there.ok("host", "disconnect", one["url"])
    there.ok(
        "host",
        "connect",
        relay.urls[request.param[0]],
        "--ca",
        os.path.relpath(ca, there.user),
        "--token",
        f"@{there.user}/token",
    )
    yield request.param


@pytest.fixture(scope="module")
def here(
    tmp_path_factory: pytest.TempPathFactory,
    doors: tuple[str, str],
    relay: RelayProcess,
    there: Installation,
    ca: str,
) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("here")) as made:
        invited = there.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0]
        assert invited["relays"] == [relay.urls[doors[0]]]
        name = made.ok(
            "join", invited["url"], "--as", "-".join(("ann", *doors)), "--ca", ca, "--json"
        ).json["as"]
        made.ok("machines", "rename", name, "box")
        kept = (
            made.home / "machines.json"
        )  # the relay is one: a route that was registered by one door is found by the other
        kept.write_text(kept.read_text().replace(relay.urls[doors[0]], relay.urls[doors[1]]))
        yield made


@pytest.mark.parametrize("doors", CROSSED, indirect=True, ids="-".join)
def test_t1_a_machine_is_steered_from_elsewhere(
    here: Installation, there: Installation, relay: RelayProcess, doors: tuple[str, str]
) -> None:
    result = here.cli("run", "box/work", "--", "echo on the machine; (exit 7)")
    assert (result.rc, result.out) == (7, "on the machine\n")
    assert [
        (m["name"], m["presence"], m["relays"]) for m in here.ok("machines", "--json").json
    ] == [("box", "online", [relay.urls[doors[1]]])]
    terminal = here.attach("box/work")
    terminal.send("echo $((40+2))\r")
    terminal.see("42")
    terminal.leave()


@pytest.mark.parametrize("doors", CROSSED, indirect=True, ids="-".join)
def test_t3_much_output_arrives_exactly(
    here: Installation, there: Installation, doors: tuple[str, str]
) -> None:
    there.new("much", "--", "sh", "-c", "stty raw -echo; read go; seq 1 400000; read end")
    reading = here.start("read", "box/much", "--follow", "--from", "0")
    there.ok("send", "much", "go\n")
    want = b"".join(b"%d\n" % n for n in range(1, 400_001))
    assert reading.stdout is not None
    out = b""
    while len(out) < len(want):
        out += (piece := os.read(reading.stdout.fileno(), 1 << 20))
        assert piece, reading.communicate()
    assert out == want
    there.end("much")
    assert reading.wait(60) == 0


@pytest.mark.parametrize("doors", CROSSED[:1], indirect=True, ids="-".join)
def test_t1_a_command_ends_when_it_is_done_and_when_it_is_interrupted(
    here: Installation, doors: tuple[str, str]
) -> None:
    """A separate process: leftovers of the library must neither block the exit nor print."""
    for _ in range(3):
        done = here.start("run", "box/work", "--", "echo ok")
        assert done.communicate(timeout=120) == (b"ok\n", b"") and done.returncode == 0
    following = here.start("read", "box/work", "--follow")
    assert following.stdout is not None and os.read(following.stdout.fileno(), 1)
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=120)
    assert following.returncode == 130 and b"Traceback" not in errors


@pytest.mark.parametrize("doors", CROSSED[:1], indirect=True, ids="-".join)
def test_a5_a_revoked_operator_is_out_and_a_code_counts_at_every_door(
    here: Installation, there: Installation, relay: RelayProcess, ca: str, doors: tuple[str, str]
) -> None:
    here.ok(
        "join",
        there.ok("invite", "--rights", "read", "--no-wait", "--json").records[0]["url"],
        "--as",
        "zoe",
        "--ca",
        ca,
    )
    here.ok("--as", "zoe", "view", "box/work")
    attached = here.attach("--as", "zoe", "attach", "box/work")
    attached.see("$")
    there.ok("operator", "revoke", "zoe")
    attached.see("zoe was revoked")
    assert attached.wait() == 4, "a client that is told the reason does not try again"
    for command, rc in (
        (("ls", "box/", "--json"), 4),
        (("run", "--json", "box/work", "true"), 255),
    ):
        error = the_error(here.attempt("--as", "zoe", *command), 4, rc)
        assert (error["name"], error["message"]) == ("not_allowed", "zoe was revoked")
    here.ok("operator", "add", "eve")
    kept = here.home / "machines.json"
    known = json.loads(kept.read_text())
    [way] = [one for one in known["machines"] if one["as"] == "zoe"]
    way["identity"] = "eve"
    kept.write_bytes(canonical.encode(known) + b"\n")
    error = the_error(here.attempt("--as", "zoe", "ls", "box/", "--json"), 4)
    assert "revoked" not in error["message"], "only the proved key learns that it was revoked"
    invited = there.ok("invite", "--rights", "read", "--no-wait", "--json").records[0]
    assert (
        here.ok(
            "join", invited["code"], "--relay", relay.urls["websocket"], "--ca", ca, "--as", "yan"
        ).rc
        == 0
    ), "by a code, at the other door of the same relay"


@pytest.mark.parametrize("doors", CROSSED[:1], indirect=True, ids="-".join)
def test_t3_offline_and_out(
    here: Installation, there: Installation, relay: RelayProcess, doors: tuple[str, str]
) -> None:
    """The relay's word for a machine that is away, and for a host whose token was revoked."""
    [token] = [t["id"] for t in relay.ask("token.ls") if t["state"] == "valid"]
    relay.ask("token.revoke", id=token)
    eventually(
        lambda: there.ok("host", "ls", "--json").json["relays"][0]["state"] == "refused",
        "the host is out",
    )
    assert (
        there.ok("host", "ls", "--json")
        .json["relays"][0]["detail"]
        .endswith(" does not let us in: this token does not admit anybody")
    )
    assert (
        the_error(here.attempt("view", "box/work", "--json"), 4)["message"]
        == "the relay does not know box, or your access was revoked"
    )
    Path(there.user, "token").write_text(relay.token())
    there.ok(
        "host",
        "connect",
        relay.urls[doors[0]],
        "--ca",
        str(Path(relay.data).parent / "chain.pem"),
        "--token",
        f"@{there.user}/token",
    )
    assert here.ok("view", "box/work").rc == 0
    there.ok("host", "disconnect", relay.urls[doors[0]])
    assert (
        "is not connected to the relay"
        in the_error(here.attempt("view", "box/work", "--json"), 5)["message"]
    )
    assert [
        m["presence"] for m in here.ok("machines", "--json").json if m["operator"].startswith("ann")
    ] == ["offline"]


def test_t4_addresses_that_are_none(there: Installation) -> None:
    for url in (
        "grpc://relay.example",
        "ws://relay.example",
        "ws://10.0.0.1:8410",
        "grpcs://relay.example/path",
        "grpcs://relay.example/?token=x",
        "grpcs://me:secret@relay.example",
        "grpcs://",
        "grpcs://:8411",
        "grpcs://a b",
        "grpc+unix:///tmp/x",
        "grpcs://relay.example:0",
        "grpcs://relay.example:99999",
        "unix:///tmp/x",
        "dns:///x",
    ):
        the_error(there.attempt("host", "connect", url, "--json"), 2)
    assert not [
        one for one in there.ok("host", "ls", "--json").json["relays"] if "example" in one["url"]
    ]


def test_t1_one_relay_by_another_door_takes_the_place_of_the_first(
    there: Installation, relay: RelayProcess, ca: str
) -> None:
    """A machine has one registration under one name: two lines would replace each other in turn.

    An invalid address does not keep the host from the other relays.
    """
    home, url = homes.resolve(there.env), relay.urls["grpc"]
    for one in relays.listing(home):
        relays.forget(home, one.url)
    for other in ("gopher://x", url.replace("grpcs", "wss")):
        relays.keep(home, relays.Relay(other))
    said = there.ok("host", "connect", url, "--ca", ca, "--token", f"@{there.user}/token")
    assert "replaces wss://" in said.err and [one.url for one in relays.listing(home)] == [
        "gopher://x",
        url,
    ]
    now = there.ok("host", "ls", "--json").json
    assert [(one["url"], one["state"]) for one in now["relays"]] == [
        (url, "registered")
    ] and "gopher" in now["trouble"]
