"""A drained machine has its sessions on the disk, within the notice (R9).

All tests need CRIU (scripts/criu).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.core import systemd_units as units
from holdfast.model import durations
from holdfast.model.errors import HoldfastError
from tests.support.installation import DEADLINE_S, Installation, Terminal, eventually, installation
from tests.support.keeper import gone
from tests.support.recovery.checkpoint import criu, unsavable

NOTICE = "100s"
MANY = 20


@pytest.fixture
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


def shell(hf: Installation, name: str) -> None:
    hf.ready(name, "--contained")
    hf.quick("run", name, "--", "X=kept")


def says(hf: Installation, name: str) -> str:
    return hf.ok("run", name, "--", "echo $X").out


def comes_back(hf: Installation, name: str) -> None:
    def kept() -> bool:
        return hf.cli("run", name, "--", "echo $X").out == "kept\n"

    eventually(lambda: kept() or None, f"{name} with its memory")


def drained(hf: Installation, *args: str, rc: int = 0) -> dict[str, Any]:
    done = hf.cli("drain", "--notice", NOTICE, "--json", *args)
    assert done.rc == rc, done
    found: dict[str, Any] = done.json
    return found


def machine_events(hf: Installation, name: str) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in hf.quick("events", "--json").splitlines()]
    return [one for one in told if one["event"] == name]


def test_r9_twenty_sessions_are_saved_in_time_and_come_back(hf: Installation) -> None:
    for n in range(MANY):
        hf.new(
            f"s{n}",
            "--contained",
            "--",
            "bash",
            "-c",
            f"X={n}; echo UP; while read a; do echo $X; done",
        )
    for n in range(MANY):
        hf.wait(f"s{n}", "text:UP")
    found = drained(hf)
    assert found["saved"] == MANY and found["left"] == 0 and found["draining"]
    assert found["took_s"] < 100 and found["bytes"] > MANY * 100_000
    assert {one["state"] for one in hf.ls()} == {"checkpointed"}
    [ended] = machine_events(hf, "drain.ended")
    assert ended["saved"] == MANY and ended["left"] == []
    os.kill(hf.host_pid, signal.SIGKILL)
    hf.ok("up", "--detach")
    for n in (0, MANY - 1):
        hf.ok("send", f"s{n}", "say", "--enter")
        hf.wait(f"s{n}", f"text:^{n}")


def test_r9_sessions_that_cannot_be_saved_are_named(hf: Installation) -> None:
    shell(hf, "good")
    unsavable(hf.get(hf.ready("plain", "--plain")["id"])["keeper"])
    found = drained(hf, rc=7)
    assert (found["saved"], found["left"]) == (1, 1)
    by_name = {one["name"]: one for one in found["sessions"]}
    assert by_name["good"]["saved"] and by_name["good"]["checkpoint"].startswith("cp-")
    assert "plain session" in by_name["plain"]["why"] and "then" in by_name["plain"]
    assert hf.get("plain")["state"] == "detached"
    said = hf.cli("drain", "--notice", NOTICE)
    assert said.rc == 7 and "not saved: plain:" in said.out


def test_r9_new_sessions_are_refused_until_the_drain_is_cancelled(hf: Installation) -> None:
    shell(hf, "work")
    drained(hf)
    refused = hf.cli("new", "late", "--no-attach")
    assert refused.rc == 4 and "drains this machine" in refused.err
    assert "drain --cancel" in refused.err
    held = hf.cli("run", "work", "--", "true")
    assert "drains this machine" in held.err and hf.get("work")["state"] == "checkpointed"
    hf.ok("drain", "--cancel")
    assert says(hf, "work") == "kept\n"
    hf.ready("late", "--contained")
    assert hf.cli("drain", "--cancel").rc == 4
    assert len(machine_events(hf, "drain.cancelled")) == 1


def test_r9_attached_people_are_warned_and_follow(hf: Installation) -> None:
    shell(hf, "watched")
    terminal: Terminal = hf.attach("watched")
    eventually(lambda: hf.get("watched")["state"] == "live" or None, "the client to attach")
    drained(hf)
    terminal.see("drains this machine")
    hf.ok("drain", "--cancel")
    terminal.send("echo again $X\r")
    terminal.see("again kept")
    assert terminal.leave() == 0


def test_r9_a_cancelled_drain_leaves_the_rest_running(hf: Installation) -> None:
    """The drain is cancelled when the first session is saved."""
    for n in range(6):
        shell(hf, f"c{n}")
    link = Link(homes.resolve(hf.env), "tester", autostart=False)
    told: list[str] = []

    def cancel(event: Any) -> None:
        if event.get("step") == "done" and not told:
            told.append(event["name"])
            hf.quick("drain", "--cancel")

    try:
        found = link.request("drain", wait_s=DEADLINE_S, on_event=cancel, notice=100)
    finally:
        link.close()
    assert found["saved"] >= 1 and not found["draining"]
    left = [one for one in found["sessions"] if not one["saved"]]
    assert left and {one["why"] for one in left} == {"the drain was cancelled"}
    for one in found["sessions"]:
        assert says(hf, one["name"]) == "kept\n"


def test_r9_a_notice_that_is_too_short_ends_in_time_and_harms_nothing(hf: Installation) -> None:
    for n in range(4):
        shell(hf, f"t{n}")
    found = json.loads(hf.cli("drain", "--notice", "1s", "--json").out)
    assert len(found["sessions"]) == 4
    for one in found["sessions"]:
        assert one["saved"] or "time" in one["why"] or "drain" in one["why"], one
    hf.quick("drain", "--cancel")
    for n in range(4):
        assert says(hf, f"t{n}") == "kept\n"


@pytest.mark.parametrize(
    "probe",
    ["host.drain.began", "host.evict.begun#2", "host.evict.stored#2", "host.evict.done#2"],
)
def test_r9_a_host_that_dies_while_it_drains_loses_no_session(hf: Installation, probe: str) -> None:
    hf.quick("up", "--detach", env={"HOLDFAST_PROBE": f"kill@{probe}"})
    for n in range(3):
        shell(hf, f"d{n}")
    host = hf.host_pid
    assert hf.cli("drain", "--notice", NOTICE).rc != 0
    eventually(lambda: gone(host) or None, "the host to die")
    hf.ok("up", "--detach")
    for n in range(3):  # one of them may be about to end, saved, when the next host finds it
        comes_back(hf, f"d{n}")


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts a small disk")
def test_r9_a_full_disk_is_named_and_the_session_goes_on(hf: Installation) -> None:
    shell(hf, "small")
    hf.quick("run", "small", "--", "big=$(head -c 60000000 /dev/zero | tr '\\0' x)")
    disk = hf.home / "checkpoints"
    disk.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=30m,mode=700", "tmpfs", str(disk)], check=True
    )
    try:
        found = drained(hf, rc=7)
        [one] = found["sessions"]
        assert not one["saved"] and "disk" in one["why"]
        assert says(hf, "small") == "kept\n"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_r9_the_right_to_manage_is_needed(hf: Installation) -> None:
    hf.people("worker", rights="execute")
    refused = hf.cli("--as", "worker", "drain")
    assert refused.rc == 4 and "manage" in refused.err
    with pytest.raises(HoldfastError):
        hf.ask("drain", notice=0)
    refused = hf.cli("drain", "--to", "elsewhere")
    assert refused.rc == 3 and "no machine 'elsewhere' is known here" in refused.err
    assert "no drain is under way" in hf.cli("drain", "--cancel").err, "nothing has begun"


# ---------------------------------------------------------------- by itself

EXAMPLES = Path(__file__).parents[3] / "examples"
GRACE_S = 20  # of a pod beyond the notice: for the answer, and for the end of the container


class Metadata(BaseHTTPRequestHandler):
    """The metadata server of a provider: FALSE, then TRUE."""

    asked = 0
    refused = 0

    def do_GET(self) -> None:
        cls = type(self)
        if self.headers.get("Metadata-Flavor") != "Test":
            cls.refused += 1
            return self.send_error(403)
        cls.asked += 1
        body = b"TRUE" if cls.asked > 3 else b"FALSE"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_r9_a_notice_of_the_provider_drains_the_machine(hf: Installation) -> None:
    shell(hf, "spot")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = subprocess.run(
            [
                *(hf.python, str(EXAMPLES / "drain_on_notice.py")),
                f"http://127.0.0.1:{server.server_port}/preempted",
                *("--until", "TRUE", "--header", "Metadata-Flavor: Test"),
                *("--every", "0.05", "--notice", NOTICE),
            ],
            env=hf.env,
            cwd=hf.user,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done
    assert Metadata.asked == 4 and not Metadata.refused and "1 saved" in done.stdout
    assert hf.get("spot")["state"] == "checkpointed"


def test_r9_the_manifest_of_kubernetes_drains_within_its_grace_period(hf: Installation) -> None:
    yaml = pytest.importorskip("yaml")
    spec = yaml.safe_load((EXAMPLES / "kubernetes/pod.yaml").read_text())["spec"]
    [container] = spec["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    notice = durations.read(command[command.index("--notice") + 1])
    assert spec["terminationGracePeriodSeconds"] >= notice + GRACE_S
    shell(hf, "pod")
    assert command[0] == "python3"
    done = subprocess.run(
        [hf.python, *command[1:]],
        env=hf.env,
        cwd=hf.user,
        timeout=spec["terminationGracePeriodSeconds"],
        check=False,
    )
    assert done.returncode == 0 and hf.get("pod")["state"] == "checkpointed"


def test_r9_the_stop_command_of_the_unit_drains_at_a_shutdown(
    hf: Installation, tmp_path: Path
) -> None:
    """The unit's own line, with a systemctl that says what a manager says at that time."""
    shell(hf, "unit")
    unit = units.drain(units.Installation("user", "tester", hf.python, str(hf.home), "1"))
    line = next(one for one in unit.splitlines() if one.startswith("ExecStop="))
    command = shlex.split(line.removeprefix("ExecStop="))
    fake = tmp_path / "systemctl"

    def stop(state: str) -> int:
        fake.write_text(f"#!/bin/sh\necho {state}\n")
        fake.chmod(0o755)
        path = f"{tmp_path}:{hf.env['PATH']}"
        env = {**hf.env, "PATH": path}
        return subprocess.run(command, env=env, cwd="/", check=False).returncode

    assert stop("running") == 0 and hf.get("unit")["state"] == "detached"
    assert stop("stopping") == 0 and hf.get("unit")["state"] == "checkpointed"
    hf.ok("down")
    assert stop("stopping") == 5, "a host that was stopped is not started"
