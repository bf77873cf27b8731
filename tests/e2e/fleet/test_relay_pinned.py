"""A relay without a certificate of an authority: its key is pinned in every address (T1, T2).

The relay has a name that is not a loopback name, as a relay for other machines has.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.model import address
from holdfast.model.errors import Unavailable, WrongPin
from holdfast.transport import carriers
from tests.support.commands.results import the_error
from tests.support.installation import Installation, installation
from tests.support.relays import WAIT_S, RelayProcess

OTHER = os.urandom(32)
DOORS = ("websocket", "grpc")


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """As on a public address: any address of this machine, and no certificate given."""
    place = tmp_path_factory.mktemp("relay")
    with RelayProcess(
        str(place / "data"),
        "--name",
        socket.gethostname(),
        "--grpc",
        "0.0.0.0:0",
        address="0.0.0.0",
    ) as made:
        yield made


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, relay: RelayProcess) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("there")) as made:
        for door in DOORS:
            made.new(f"work-{door}", "--", "bash")
        token = Path(made.user, "token")
        token.write_text(relay.token())
        token.chmod(0o600)
        yield made


def printed(relay: RelayProcess, door: str) -> str:
    """The address of that door, as the relay printed it."""
    return relay.reached[DOORS.index(door)]


def test_t2_the_printed_addresses_pin_one_key_that_stays(relay: RelayProcess) -> None:
    pins = {address.pin(url) for url in relay.reached}
    assert len(pins) == 1 and None not in pins
    assert [address.bare(url).partition(":")[0] for url in relay.reached] == ["wss", "grpcs"]
    key = Path(relay.data, "tls.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    relay.restart()
    assert {address.pin(url) for url in relay.reached} == pins


@pytest.mark.parametrize("door", DOORS)
def test_t2_a_wrong_pin_is_an_error_of_its_own(relay: RelayProcess, door: str) -> None:
    wrong = address.pinned(address.bare(printed(relay, door)), OTHER)
    with pytest.raises(WrongPin, match="does not have the key that its address pins"):
        carriers.dial(wrong, "a token that must not be sent", None, WAIT_S)


def test_t2_without_the_pin_the_certificate_is_not_trusted(relay: RelayProcess) -> None:
    with pytest.raises(Unavailable, match="no certificate that is trusted here") as caught:
        carriers.dial(address.bare(printed(relay, "websocket")), None, None, WAIT_S)
    assert "pin" in caught.value.recover


@pytest.mark.parametrize("door", DOORS)
def test_t1_a_machine_is_reached_through_a_relay_without_a_certificate(
    relay: RelayProcess,
    there: Installation,
    door: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    url = printed(relay, door)
    there.ok("host", "connect", url, "--token", f"@{there.user}/token")
    invited = there.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0]
    assert invited["relays"] == [url]
    with installation(tmp_path_factory.mktemp("here")) as here:
        name = here.ok("join", invited["url"], "--as", f"ann-{door}", "--json").json["as"]
        result = here.cli("run", f"{name}/work-{door}", "--", "echo on the machine; (exit 7)")
        assert (result.rc, result.out) == (7, "on the machine\n"), result.err
        assert [m["relays"] for m in here.ok("machines", "--json").json] == [[url]]

        kept = here.home / "machines.json"
        pin = url.partition("#")[2]
        kept.write_text(kept.read_text().replace(pin, address.pinned("", OTHER)[1:]))
        error = the_error(here.attempt("ls", f"{name}/", "--json"), 5)
        assert error["name"] == "wrong_pin" and error["retry_safe"] is False
    there.ok("host", "disconnect", address.bare(url))
    assert there.ok("host", "ls", "--json").json["relays"] == []


def test_t2_a_host_refuses_a_relay_with_another_key(
    relay: RelayProcess, there: Installation
) -> None:
    wrong = address.pinned(address.bare(printed(relay, "websocket")), OTHER)
    error = the_error(
        there.attempt("host", "connect", wrong, "--token", f"@{there.user}/token", "--json"), 5
    )
    assert "does not have the key that its address pins" in error["message"]
    there.ok("host", "disconnect", wrong)


def test_t1_an_address_with_a_damaged_pin_is_refused(there: Installation) -> None:
    for url in (
        "wss://relay.example#sha256-short",
        "wss://relay.example#",
        "wss://relay.example#token",
        address.pinned("ws://127.0.0.1:8410", OTHER),
    ):
        the_error(there.attempt("host", "connect", url, "--json"), 2)


# ---------------------------------------------------------------- the texts of invitations


def test_t1_without_a_relay_an_invitation_says_so(there: Installation) -> None:
    said = there.ok("invite", "--no-wait").out
    assert "no other machine can reach this one: it has no relay" in said
    assert "holdfast host connect RELAY_URL" in said and "holdfast device add" in said
    said = there.ok("device", "add", "phone", "--no-wait").out
    assert "no other machine can reach this one: it has no relay" in said
    assert there.ok("invite", "--no-wait", "--json").json["reachable"] is False


def test_t1_an_invitation_names_the_relay_that_other_machines_reach(
    relay: RelayProcess, there: Installation, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Even right after a start of the host, and beside a relay on loopback that came first."""
    url = printed(relay, "websocket")
    with RelayProcess(str(tmp_path_factory.mktemp("near") / "data")) as near:
        (there.user / "near").write_text(near.token())
        there.ok("host", "connect", near.url, "--token", f"@{there.user}/near")
        said = there.ok("device", "add", "phone", "--no-wait").out
        assert f"its relay {near.url} is on loopback" in said
        there.ok("host", "connect", url, "--token", f"@{there.user}/token")
        there.ok("down")
        there.ok("up", "--detach")
        made = there.ok("invite", "--no-wait", "--json").json
        assert (made["relays"], made["reachable"]) == ([url], True)
        for command in (("invite",), ("device", "add", "phone")):
            said = there.ok(*command, "--no-wait").out
            assert f"--relay '{url}' --as" in said and near.url not in said
            assert "no other machine" not in said
        there.ok("host", "disconnect", near.url)
    there.ok("host", "disconnect", url)
