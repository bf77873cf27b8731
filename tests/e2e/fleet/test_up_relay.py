"""`up` also starts one relay of this installation, as a separate process at a permanent address.

`down` stops the relay. No fault of the relay keeps the host down.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands.source_copy import copy_source
from tests.support.installation import Installation, alive, eventually, installation
from tests.support.relays import RelayProcess


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def config(port: int, more: str = "") -> str:
    return f'[relay]\nlisten = "127.0.0.1:{port}"\n{more}'


def up(hf: Installation, *words: str) -> dict[str, Any]:
    body: dict[str, Any] = hf.ok("up", "--detach", "--json", *words).json
    return body


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def hf(tmp_path: Path, port: int) -> Iterator[Installation]:
    with installation(tmp_path, config(port), relay=True) as made:
        yield made


def relays(hf: Installation) -> list[int]:
    return [
        pid
        for pid, words in hf.processes().items()
        if "holdfast.relay" in words or "relay serve" in words
    ]


def test_up_starts_the_relay_once_registers_the_host_and_down_stops_both(
    hf: Installation, port: int, tmp_path: Path
) -> None:
    first = up(hf)
    relay = first["relay"]
    assert (relay["url"], relay["started"], relay["state"], relay["by"]) == (
        f"ws://127.0.0.1:{port}",
        True,
        "registered",
        "up",
    )
    assert relays(hf) == [relay["pid"]]
    assert os.getsid(relay["pid"]) == relay["pid"], "apart from the terminal"
    second = up(hf)
    assert (second["pid"], second["relay"]["pid"], second["relay"]["started"]) == (
        first["pid"],
        relay["pid"],
        False,
    )
    said = hf.ok("up", "--detach").out
    assert f"its relay is at ws://127.0.0.1:{port}, and this machine is registered there\n" in said
    [line] = hf.ok("host", "ls", "--json").json["relays"]
    assert (line["url"], line["state"], line["own"]) == (relay["url"], "registered", True)
    assert relay["url"] in hf.ok("machines").out
    [finding] = [one for one in hf.ok("doctor", "--json").json if one["id"] == "relay"]
    assert finding["ok"] is True and relay["url"] in finding["detail"]
    hf.new("work", "--", "bash")
    assert hf.get("work")["liveness"]["relay"] == "registered"
    for file in ("relay.log", "relay/relay.db", "relay/listen", "relay/relay.sock", "relays.json"):
        assert (hf.home / file).lstat().st_mode & 0o077 == 0, file
    keeper = hf.keepers()
    stopped = hf.ok("down", "--json").json
    assert stopped["relay"]["stopped"] is True and stopped["sessions"] == 1
    assert not alive(relay["pid"]) and hf.keepers() == keeper, "sessions go on"
    again = up(hf)
    assert (
        again["relay"]["url"] == relay["url"]
        and again["relay"]["state"] == "registered"
        and again["relay"]["pid"] != relay["pid"]
    )
    assert "its relay is stopped too" in hf.ok("down").out
    assert hf.ok("down", "--json").json == {"pid": None, "sessions": None, "relay": None}


def test_another_home_reaches_the_machine_through_the_relay(
    hf: Installation, tmp_path_factory: pytest.TempPathFactory
) -> None:
    up(hf)
    hf.new("work", "--", "bash")
    shown = hf.ok("invite", "--rights", "admin", "--no-wait").out
    assert shown.startswith("from another account of this machine")
    made = hf.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0]
    with installation(tmp_path_factory.mktemp("elsewhere")) as here:
        joined = here.ok("join", made["url"], "--as", "ann", "--json").json
        assert here.ok("run", f"{joined['as']}/work", "--", "echo through it").out == "through it\n"
        typed = hf.ok("invite", "--rights", "read", "--no-wait", "--json").records[0]
        assert here.ok("join", made["url"], "--as", "ann", env={"HOLDFAST_AS": ""}).out.endswith(
            f"\n  holdfast attach {joined['as']}/\n"
        ), "the identity is unambiguous"
        eventually(
            lambda: (
                here.cli("join", typed["code"], "--relay", typed["relays"][0], "--as", "bob").rc
                == 0
            ),
            "the host waits there for the user of the code",
        )
        hf.ok("down")
        assert here.attempt("ls", f"{joined['as']}/").rc == 5
        up(hf)
        assert here.ok("run", f"{joined['as']}/work", "--", "echo again").out == "again\n", (
            "the address stayed"
        )


def test_a_token_that_the_relay_no_longer_knows_is_replaced(hf: Installation) -> None:
    up(hf)
    [token] = hf.ok("relay", "token", "ls", "--json").json
    hf.ok("relay", "token", "revoke", token["id"])
    assert up(hf)["relay"]["state"] == "registered"
    hf.ok("down")
    (hf.home / "relay" / "relay.db").unlink()
    assert up(hf)["relay"]["state"] == "registered"
    assert up(hf)["relay"]["state"] == "registered"
    assert [one["state"] for one in hf.ok("relay", "token", "ls", "--json").json] == ["valid"], (
        "no more than one at a time"
    )


def test_a_relay_that_was_killed_is_started_again_where_it_was(hf: Installation) -> None:
    before = up(hf)["relay"]
    os.kill(before["pid"], signal.SIGKILL)
    eventually(lambda: not alive(before["pid"]), "its end")
    after = up(hf)["relay"]
    assert after["url"] == before["url"] and after["started"] and after["state"] == "registered"
    assert relays(hf) == [after["pid"]]


def test_a_host_that_is_not_started_by_up_starts_no_relay(hf: Installation) -> None:
    hf.ls()
    assert not relays(hf)
    relay = up(hf)["relay"]
    hf.ok("down")
    hf.new("work", "--", "cat")
    assert not relays(hf), "only `up` does"
    assert up(hf)["relay"]["url"] == relay["url"]


def test_many_up_at_once_start_one(hf: Installation) -> None:
    many = [hf.start("up", "--detach", "--json") for _ in range(4)]
    said = [json.loads(one.communicate(timeout=120)[0]) for one in many]
    told = [one["relay"] for one in said]
    assert {one["state"] for one in told} == {"registered"}, told
    assert len({one["pid"] for one in told}) == 1, told
    eventually(lambda: relays(hf) == [said[0]["relay"]["pid"]], "one relay")


def test_a_taken_port_is_passed_over_and_the_one_taken_instead_is_remembered(
    hf: Installation, port: int
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        first = up(hf)["relay"]
        assert first["url"] != f"ws://127.0.0.1:{port}" and first["state"] == "registered"
        hf.ok("down")
    second = up(hf)["relay"]
    assert second["url"] == first["url"], (
        "also when the other port is free again: paired clients have this address"
    )
    hf.ok("down")
    moved = free_port()
    hf.configure(config(moved))
    third = up(hf)["relay"]
    assert third["url"] == f"ws://127.0.0.1:{moved}", "unless the configuration says another"
    assert [one["url"] for one in hf.ok("host", "ls", "--json").json["relays"]] == [third["url"]], (
        "and the old one is not dialled any more"
    )


def test_turned_off_in_the_configuration(hf: Installation, port: int) -> None:
    before = up(hf)["relay"]
    hf.configure(config(port, "start = false\n"))
    assert up(hf)["relay"] is None
    assert not alive(before["pid"]) and not hf.ok("host", "ls", "--json").json["relays"]
    assert "relay" not in hf.ok("up", "--detach").out
    [finding] = [one for one in hf.ok("doctor", "--json").json if one["id"] == "relay"]
    assert finding["ok"] is True and "turned off" in finding["detail"]


@pytest.mark.parametrize("broken", ["listen", "directory", "library"])
def test_a_relay_that_does_not_start_does_not_keep_the_host_down(
    hf: Installation, broken: str, tmp_path: Path
) -> None:
    env = None
    if broken == "listen":
        hf.configure('[relay]\nlisten = "0.0.0.0:8410"\n')
    elif broken == "directory":
        (hf.home / "relay").mkdir(mode=0o755, parents=True)
        (hf.home / "relay").chmod(0o755)
        hf.home.chmod(0o700)
    else:
        (tmp_path / "broken" / "websockets").mkdir(parents=True)
        (tmp_path / "broken" / "websockets" / "__init__.py").write_text(
            "raise ImportError('a broken installation of websockets')\n"
        )
        env = {"PYTHONPATH": f"{tmp_path / 'broken'}:{hf.env['PYTHONPATH']}"}
    done = hf.cli("up", "--detach", env=env)
    assert done.rc == 0 and " is up" in done.out, done
    [line] = [line for line in done.out.splitlines() if line.startswith("its relay is not up: ")]
    assert {"listen": "loopback", "directory": "other users can reach", "library": "websockets"}[
        broken
    ] in line
    body = hf.cli("up", "--detach", "--json", env=env).json
    assert body["relay"]["url"] is None and body["relay"]["why"] and body["pid"]
    assert hf.ok("ls").rc == 0 and not relays(hf)


def test_up_by_a_reader_starts_the_relay_and_reports_its_state_as_unknown(
    hf: Installation,
) -> None:
    hf.ls()
    hf.ok("operator", "add", "bob")
    hf.ok("grant", "bob", "--rights", "read")
    found = hf.ok("--as", "bob", "up", "--detach", "--json").json["relay"]
    assert found["url"] and found["state"] == "unknown" and found["why"]
    assert f"its relay is at {found['url']}\n" in hf.ok("--as", "bob", "up", "--detach").out
    assert not hf.ok("host", "ls", "--json").json["relays"], "that needs the right"
    assert up(hf)["relay"]["state"] == "registered"


def test_without_a_host_there_is_no_relay_either(hf: Installation) -> None:
    hf.home.chmod(0o700)
    (hf.home / "state.db").mkdir()
    assert hf.cli("up", "--detach").rc == 5
    eventually(lambda: not relays(hf), "no relay")
    (hf.home / "state.db").rmdir()
    assert up(hf)["relay"]["state"] == "registered"


def test_one_that_was_started_otherwise_is_used_and_left_alone(hf: Installation) -> None:
    hf.ls()
    with RelayProcess(str(hf.home / "relay")) as relay:
        found = up(hf)["relay"]
        assert (found["url"], found["started"], found["by"], found["state"]) == (
            relay.url,
            False,
            "hand",
            "registered",
        )
        said = hf.ok("down").out
        assert "keeps running" in said and relay.process.poll() is None
    (hf.home / "relay.log").unlink(missing_ok=True)


def test_an_upgrade_replaces_the_relay_with_the_host(hf: Installation, tmp_path: Path) -> None:
    """In place, as an installer does: the release is in one file."""
    code = copy_source(tmp_path / "code")
    hf.env["PYTHONPATH"] = str(code)
    before = up(hf)
    file = code / "holdfast" / "__init__.py"
    file.write_text(file.read_text().replace(before["release"], "99.0.0"))
    after = up(hf)
    assert (after["release"], after["relay"]["release"]) == ("99.0.0", "99.0.0")
    assert (
        after["relay"]["url"] == before["relay"]["url"]
        and after["relay"]["state"] == "registered"
        and after["relay"]["pid"] != before["relay"]["pid"]
    )
