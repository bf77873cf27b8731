"""Webhooks through a real relay: a provider's signed request reaches a service without a port."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.commands.afar import join_relay
from tests.support.commands.http_client import OPERATOR, Answer
from tests.support.installation import DEADLINE_S, Installation, eventually
from tests.support.peers.providers import SECRET, Signed, github
from tests.support.relays import RelayProcess


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    with RelayProcess(str(tmp_path / "relay")) as made:
        yield made


def post(url: str, signed: Signed) -> Answer:
    """A delivery, again while the session is busy or the service is not at the relay."""
    place = urlsplit(url)

    def once() -> Answer | None:
        assert place.hostname is not None
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=DEADLINE_S)
        try:
            connection.request("POST", place.path, *signed)
            found = connection.getresponse()
            answer = Answer(found.status, dict(found.getheaders()), found.read())
        except OSError:
            return None
        finally:
            connection.close()
        return None if answer.status in (404, 423, 503) else answer

    return eventually(once, "an answer")


def test_t3_a_signed_delivery_comes_through_a_relay(hf: Installation, relay: RelayProcess) -> None:
    hf.ready("ci")
    join_relay(hf, relay)
    hf.people(OPERATOR, rights="execute", kind="service")
    secret, got = hf.user / "secret", hf.user / "got"
    secret.write_text(SECRET)
    act = ("--session", "ci", "--json", "--run", f"cat > {got}.new; sha256sum {got}.new >> {got}")
    add = ("--as", OPERATOR, "http", "incoming", "add", "push", "--provider", "github")
    hf.quick(*add, "--secret-file", str(secret), *act)
    serve = ("--as", OPERATOR, "http", "--listen", "127.0.0.1:0", "--json", "--relay", relay.url)
    unknown = hf.attempt(*serve[:-1], "wss://relay.example")
    assert unknown.rc == 3 and "not connected to a relay" in unknown.err, unknown
    server = hf.start(*serve)
    assert server.stdout is not None
    hooks = json.loads(server.stdout.readline())["hooks"]
    assert hooks.startswith(relay.url.replace("ws", "http", 1) + "/hook/")

    def lines(count: int) -> list[str]:
        def whole() -> list[str] | None:
            found = got.read_text().splitlines() if got.exists() else []
            return found if len(found) >= count else None

        found = eventually(whole, f"{count} deliveries")
        hf.wait("ci", "idle")
        return [line.split()[0] for line in found]

    large = b'{"x": "' + b"y" * 900_000 + b'"}'
    sums = [hashlib.sha256(large).hexdigest()]
    answer = post(hooks + "push", github(large, "d-1"))
    assert answer.status == 202 and answer.json["ref"], answer
    assert lines(1) == sums, "larger than a window: the body came with credit, and whole"
    assert post(hooks + "push", github(large, "d-1")).json["ref"] == answer.json["ref"], "a replay"
    for name, signed in (
        ("push", github(b"{}", "d-2", "guessed")),
        ("push", (b"{ }", github(b"{}", "d-2")[1])),
        ("none", github(b"{}", "d-2")),
    ):
        assert post(hooks + name, signed).status == 401

    port = relay.port
    relay.stop()
    with RelayProcess(relay.data, port=port):
        assert post(hooks + "push", github(b"{}", "d-3")).status == 202
        sums.append(hashlib.sha256(b"{}").hexdigest())
        assert lines(2) == sums, "the service returned to the relay; the refused had no effect"
    entries = [json.loads(line) for line in hf.quick("log", "ci", "--json").splitlines()]
    assert "http.in.push" in {one["modality"] for one in entries if one["kind"] == "command"}
