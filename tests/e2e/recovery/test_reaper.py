"""Idle sessions leave the memory and come back with the next attach or command (R8).

All tests need CRIU (scripts/criu). The limits of the configuration are a second, so that a session
is due soon; nothing here depends on how much later it is evicted.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.installation import Installation, Terminal, eventually, installation
from tests.support.keeper import gone
from tests.support.ordinary_user import needs
from tests.support.recovery.checkpoint import criu, unsavable

CONFIG = '[reaper]\nidle = "1s"\nwarn = "1s"\n'
BUSY = {
    "cpu": "while :; do :; done",
    "prints": "while sleep 0.2; do echo tick; done",
    "front": "sleep 12345",
}


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("home"), CONFIG) as made:
        yield made


def shell(hf: Installation, name: str, *args: str) -> dict[str, Any]:
    made = hf.ready(name, "--contained", *args)
    hf.quick("run", name, "--", "X=kept")
    return made


def evicted(hf: Installation, name: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        row = hf.get(name)
        return row if row["state"] == "checkpointed" else None

    return eventually(found, f"{name} to be evicted")


def events(hf: Installation, session: str, name: str) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in hf.quick("events", session, "--json").splitlines()]
    return [one for one in told if one["event"] == name]


def reaper(hf: Installation, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hf.quick("reap", "--json"))
    return next((one for one in found["sessions"] if one["name"] == name), {})


def becomes(hf: Installation, name: str, key: str, text: str) -> None:
    """Wait until the reaper says this of the session."""
    eventually(lambda: text in reaper(hf, name).get(key, "") or None, f"{key} of {name}: {text}")


def says(hf: Installation, name: str, command: str) -> str:
    return hf.ok("run", name, "--", command).out


def comes_back(hf: Installation, name: str) -> None:
    """The next host may find a session that is about to end, saved."""

    def kept() -> bool:
        return hf.cli("run", name, "--", "echo $X").out == "kept\n"

    eventually(lambda: kept() or None, f"{name} with its memory")


# ---------------------------------------------------------------- out of the memory, and back


def test_r8_an_idle_session_is_warned_evicted_and_restored_by_the_next_attach(
    hf: Installation,
) -> None:
    made = hf.get(shell(hf, "idle")["id"])
    row = evicted(hf, "idle")
    eventually(lambda: (gone(made["pid"]) and gone(made["keeper"])) or None, "its processes to end")
    assert row["on_disk"]["by"] == "host" and row["on_disk"]["bytes"] > 100_000
    left = eventually(lambda: events(hf, made["id"], "session.evicted"), "the event")[0]
    warned = events(hf, made["id"], "session.reap_warned")[0]
    assert warned["number"] < left["number"] and warned["because"].startswith("idle for")
    assert "ago)" in hf.quick("ls") and "checkpointed" in hf.quick("ls")
    terminal: Terminal = hf.attach("idle")
    terminal.see("restoring idle from the disk")
    terminal.send("echo again $X\r")
    terminal.see("again kept")
    becomes(hf, "idle", "safe", "a client is attached")
    assert hf.get("idle")["epoch"] > 1
    assert terminal.leave() == 0
    kinds = [(one["kind"], one["actor"]) for one in hf.ok("log", made["id"], "--json").records]
    assert ("save", "host") in kinds and ("restore", "host") in kinds
    assert hf.ok("log", "verify", made["id"]).rc == 0


@pytest.mark.parametrize("way", ["run", "send", "wait", "new -A"])
def test_r8_commands_bring_an_evicted_session_back(hf: Installation, way: str) -> None:
    name = f"by-{way.split()[0]}"
    made = shell(hf, name)
    evicted(hf, name)
    if way == "run":
        assert says(hf, name, "echo $X") == "kept\n"
    elif way == "send":
        hf.ok("send", name, "echo $X >sent; cat", "--enter")
    elif way == "wait":
        hf.ok("wait", name, "--for", "idle")
    else:
        assert hf.cli("new", name).rc == 4, "its name is taken"
        assert hf.ok("new", "-A", name, "--json").json["id"] == made["id"]
    assert hf.get(made["id"])["epoch"] > made["epoch"]


def test_r8_a_look_does_not_bring_it_back(hf: Installation) -> None:
    shell(hf, "looked")
    evicted(hf, "looked")
    assert "X=kept" in hf.quick("view", "looked")
    hf.quick("ls", "--cost")
    assert hf.get("looked")["state"] == "checkpointed"


def test_r8_two_clients_at_once_cause_one_restore(hf: Installation) -> None:
    made = shell(hf, "twice")
    evicted(hf, "twice")
    clients = [hf.start("wait", "twice", "--for", "idle") for _ in range(3)]
    assert [one.wait() for one in clients] == [0, 0, 0]
    restored = len(events(hf, made["id"], "session.restored"))
    assert restored == hf.get(made["id"])["epoch"] - 1


def test_r8_a_session_that_an_operator_stopped_waits_for_restore(hf: Installation) -> None:
    shell(hf, "stopped")
    hf.quick("checkpoint", "stopped", "--stop")
    refused = hf.cli("run", "stopped", "--", "true")
    assert "holdfast restore" in refused.err and hf.get("stopped")["state"] == "checkpointed"


def test_r8_a_failed_restore_says_so(hf: Installation) -> None:
    file = hf.user / "read"
    file.write_text("one")
    shell(hf, "fails")
    hf.quick("run", "fails", "--", f"exec 7<{file}")
    evicted(hf, "fails")
    file.write_text("another size")
    terminal: Terminal = hf.attach("fails", size=(200, 24))
    terminal.see("restoring fails")
    terminal.see("has changed since the checkpoint")
    terminal.wait()
    file.write_text("one")
    assert says(hf, "fails", "read Y <&7; echo $X $Y") == "kept one\n"


# ---------------------------------------------------------------- what stays


def test_r8_busy_attached_and_kept_sessions_stay(hf: Installation) -> None:
    """All of them are seen by the same looks that evict two idle sessions."""
    for name, command in BUSY.items():
        shell(hf, name)
        hf.quick("send", name, command, "--enter")
    shell(hf, "kept", "--reap", "never")
    shell(hf, "watched")
    terminal: Terminal = hf.attach("watched", "--observe")
    for name in ("first", "second"):
        shell(hf, name)
        evicted(hf, name)
    becomes(hf, "cpu", "safe", "use")
    becomes(hf, "prints", "safe", "")
    becomes(hf, "front", "safe", "sleep 12345 runs in the foreground")
    becomes(hf, "kept", "safe", "an operator keeps it")
    becomes(hf, "watched", "safe", "a client is attached")
    for name in (*BUSY, "kept", "watched"):
        assert hf.get(name)["state"] in ("detached", "live"), name
    assert hf.get("kept")["reap"] == "never"
    assert terminal.leave() == 0
    hf.quick("reap", "kept", "default")
    evicted(hf, "kept")
    evicted(hf, "watched")
    hf.end(*BUSY)


@pytest.mark.parametrize("network", ["host", "own"])
def test_r8_a_session_with_traffic_stays(hf: Installation, network: str) -> None:
    """The programs use too little of the processor to count as busy."""
    name = f"net-{network}"
    hf.ready(name, "--contained", "--net", network)
    code = (
        "import socket, threading\n"
        "a = socket.create_server(('127.0.0.1', 0))\n"
        "b = socket.create_connection(a.getsockname())\n"
        "c = a.accept()[0]\n"
        "while not threading.Event().wait(0.1): b.send(b'x'); c.recv(1)\n"
    )
    (hf.user / f"{name}.py").write_text(code)
    hf.quick("run", name, "--", f"/usr/bin/python3 {name}.py </dev/null >/dev/null 2>&1 &")
    becomes(hf, name, "safe", "its connections move data")
    shell(hf, f"beside-{name}")
    evicted(hf, f"beside-{name}")
    assert hf.get(name)["state"] == "detached"
    hf.end(name)


def test_r8_an_editor_with_unsaved_text_is_saved_and_never_ended(hf: Installation) -> None:
    needs("vim")
    shell(hf, "vim", "--reap", "end")
    hf.quick("send", "vim", "vim -u NONE unsaved", "--enter")
    hf.wait("vim", "text:New")
    hf.quick("send", "vim", "iunsaved words")
    hf.wait("vim", "text:unsaved words")
    evicted(hf, "vim")
    hf.ok("send", "vim", "--key", "Escape")
    hf.ok("send", "vim", ":wq", "--enter")
    hf.wait("vim", "idle")
    assert (hf.user / "unsaved").read_text() == "unsaved words\n"


def test_r8_a_plain_session_is_left_or_ended_by_choice(hf: Installation) -> None:
    made = hf.ready("plain", "--plain")
    unsavable(hf.get(made["id"])["keeper"])
    becomes(hf, "plain", "left", "it is a plain session")
    [left] = events(hf, made["id"], "session.reap_left")
    assert "plain" in left["cannot"] and hf.get("plain")["state"] == "detached"
    hf.quick("reap", "plain", "end")
    hf.quick("send", "plain", "cat", "--enter")
    becomes(hf, "plain", "left", "cat waits for a person")
    hf.quick("send", "plain", "--key", "C-d")
    eventually(lambda: hf.get(made["id"])["state"] == "reaped" or None, "the end of the session")
    row = hf.get(made["id"])
    assert row["reason"].startswith("reaped: idle for") and gone(row["pid"])
    [reaped] = events(hf, made["id"], "session.reaped")
    assert reaped["after"] == "reaped" and "plain" in reaped["cannot"]


# ---------------------------------------------------------------- hosts that die


@pytest.mark.parametrize("step", ["begun", "stored", "done"])
def test_r8_nothing_is_lost_if_the_host_dies_while_it_evicts(
    fresh: Installation, step: str
) -> None:
    criu()
    fresh.configure(CONFIG)
    fresh.quick("up", "--detach", env={"HOLDFAST_PROBE": f"kill@host.evict.{step}"})
    host = fresh.host_pid
    made = shell(fresh, "work")
    eventually(lambda: gone(host) or None, "the host to die")
    fresh.ok("up", "--detach")
    comes_back(fresh, "work")
    assert fresh.get(made["id"])["id"] == made["id"]
    evicted(fresh, "work")
    comes_back(fresh, "work")


def test_r8_nothing_is_lost_if_the_host_dies_while_it_brings_a_session_back(
    fresh: Installation,
) -> None:
    criu()
    fresh.configure(CONFIG)
    fresh.quick("up", "--detach", env={"HOLDFAST_PROBE": "kill@host.wake.begun"})
    host = fresh.host_pid
    shell(fresh, "work")
    evicted(fresh, "work")
    fresh.cli("run", "work", "--", "true")
    eventually(lambda: gone(host) or None, "the host to die")
    fresh.ok("up", "--detach")
    comes_back(fresh, "work")


def test_r8_an_evicted_session_comes_back_on_the_next_host(fresh: Installation) -> None:
    criu()
    fresh.configure(CONFIG)
    shell(fresh, "work")
    evicted(fresh, "work")
    os.kill(fresh.host_pid, signal.SIGKILL)
    fresh.ok("up", "--detach")
    comes_back(fresh, "work")


# ---------------------------------------------------------------- cost


def test_r8_the_cost_of_each_session_is_shown(hf: Installation) -> None:
    hf.people("builder")
    hf.quick("--as", "builder", "new", "heavy", "--contained", "--reap", "never", "--json")
    hf.wait("heavy", "idle")
    grown = "x=$(head -c 50000000 /dev/zero | tr '\\0' x)"
    hf.quick("run", "heavy", "--", grown)
    [cost] = [one["cost"] for one in hf.ok("ls", "--cost", "--json").json if one["name"] == "heavy"]

    def measured() -> dict[str, Any] | None:
        for one in hf.ok("ls", "--cost", "--json").json:
            if one["name"] == "heavy" and one["cost"]["memory"] > 50_000_000:
                return dict(one["cost"])
        return None

    cost = eventually(measured, "the memory of the session")
    assert cost["maker"] == "builder" and cost["cpu_s"] > 0 and cost["disk"] > 0
    assert abs(cost["since"] - hf.get("heavy")["created"]) < 60
    shown = hf.ok("ls", "--cost").out
    assert "MAKER" in shown and "sessions pin" in shown
    assert "cost" not in hf.ls()[0]


def test_r8_operators_without_the_right_cannot_choose(hf: Installation) -> None:
    shell(hf, "theirs", "--reap", "never")
    hf.people("worker", rights="execute")
    assert hf.cli("--as", "worker", "reap", "theirs", "end").rc == 4
    assert hf.cli("reap", "theirs", "sometimes").rc == 2
    assert hf.get("theirs")["reap"] == "never"


def test_r8_the_reaper_is_off_by_default(fresh: Installation) -> None:
    fresh.ready("work", "--contained")
    found = json.loads(fresh.quick("reap", "--json"))
    assert found["on"] is False and "the reaper is off" in fresh.quick("reap")
