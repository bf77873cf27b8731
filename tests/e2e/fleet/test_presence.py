"""An attach that waits for a machine waits at the relay, and is back when the machine is (T3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import home as homes
from holdfast.client import presence, remote
from holdfast.client.presence import Watching
from holdfast.home import keys, machines
from tests.support.installation import eventually, installation
from tests.support.relays import RelayProcess, watches


def test_t3_attach_waits_at_the_relay_and_comes_back(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        RelayProcess(str(tmp_path / "relay"), "--metrics", "127.0.0.1:0") as relay,
        installation(tmp_path_factory.mktemp("there")) as there,
        installation(tmp_path_factory.mktemp("here")) as here,
    ):
        there.new("work", "--", "bash")
        there.ok("host", "connect", relay.url, "--token", "-", stdin=relay.token().encode())
        joined = here.ok(
            "join",
            there.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0]["url"],
            "--as",
            "ann",
            "--json",
        ).json
        terminal = here.attach(f"{joined['as']}/work")
        terminal.see("$")
        there.ok("host", "disconnect", relay.url)
        eventually(lambda: watches(relay) == 1, "it waits at the relay")
        assert here.attempt("view", f"{joined['as']}/work").rc == 5, (
            "a request of now is answered now"
        )
        there.ok("host", "connect", relay.url)
        terminal.send("echo back $((1+1))\r")
        terminal.see("back 2")
        assert watches(relay) == 0
        terminal.leave()

        home = homes.resolve(here.env)
        monkeypatch.setattr(remote, "Watching", lambda machine: Watching(machine, 3600.0))
        there.ok("host", "disconnect", relay.url)
        dialling = remote.Dialling(
            machines.listing(home)[0], keys.static(keys.load(home, "ann")), patient=True
        )
        eventually(lambda: watches(relay) == 1, "it waits at the relay")
        assert dialling.busy
        there.ok("host", "connect", relay.url)
        sock, _, _ = dialling.line()
        sock.close()
        assert presence.WATCH_LOOK_S < 3600.0, "so it was by the relay's word"
