"""R1: the newest output of each session is on disk, sealed, soon after it was printed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast import home as homes
from holdfast.home import keys
from holdfast.host.storage import spool as spools
from holdfast.host.storage.spool import Spool, Spooled
from holdfast.model.limits import MiB
from tests.support.installation import Installation, alive, eventually

LINE = 16  # of `seq -f %014.0f`, with CR and LF: the offset tells the line
FLOOD = ["seq", "-f", "%014.0f", "0", "99999999999"]
PASS, DURABLE, FAILED = "host.spool.pass", "host.spool.durable", "host.spool.failed"


class Spools:
    """The spools of an installation, and what its hosts have said about them."""

    def __init__(self, hf: Installation) -> None:
        self.hf, self.log = hf, hf.base / "probes"
        self.home = homes.resolve(hf.env)
        self.up()

    def up(self) -> None:
        self.hf.ok("up", "--detach", env={"HOLDFAST_PROBE": f"log:{self.log}"})

    def of(self, session: str) -> Spool:
        key = keys.spool_key(keys.load_machine(self.home))
        return Spool(self.home.spool, session, 1, key)

    def passed(self, name: str) -> int:
        return self.log.read_text().split().count(name)

    def durable(self, session: str, end: int) -> Spooled:
        """What is stored, once it has all output up to `end`."""

        def found() -> Spooled | None:
            found = self.of(session).load()
            return found if found.end >= end and self.passed(DURABLE) else None

        return eventually(found, f"the output of {session} up to {end} on disk")

    def metric(self, name: str) -> int:
        for line in self.hf.quick("metrics").splitlines():
            if line.startswith(f"holdfast_{name} "):
                return int(line.split()[1])
        raise AssertionError(name)


@pytest.fixture
def spool(fresh: Installation) -> Spools:
    return Spools(fresh)


def lines(start: int, count: int) -> bytes:
    """The output of FLOOD from an offset on."""
    first = start // LINE
    text = b"".join(b"%014d\r\n" % n for n in range(first, (start + count) // LINE + 1))
    return text[start - first * LINE :][:count]


def check_flood(found: Spooled) -> None:
    assert found.pieces and found.damaged == ""
    for offset, data in found.pieces:
        assert data == lines(offset, len(data))


def test_r1_the_stored_output_is_what_read_shows(spool: Spools) -> None:
    hf = spool.hf
    made = hf.new("work", "--", "sh", "-c", "echo secret-output; seq 2000; exec sleep 1000")
    size = len(b"secret-output\r\n") + sum(len(b"%d\r\n" % n) for n in range(1, 2001))
    found = spool.durable(made["id"], size)
    shown = hf.ok("read", "work").raw
    assert found.pieces == ((0, shown),) and len(shown) == size
    [segment] = Path(spool.of(made["id"]).directory).iterdir()
    assert b"secret" not in segment.read_bytes()
    assert spool.metric("spool_bytes_total") == size and spool.metric("spool_failing") == 0
    hf.end("work")
    eventually(lambda: not spools.sessions(spool.home.spool), "the spool to be removed")


def test_r1_a_host_that_leaves_stores_what_is_pending(spool: Spools) -> None:
    hf = spool.hf
    made = hf.new("work", "--", "sh", "-c", "echo first; read line; seq 5000; exec sleep 1000")
    spool.durable(made["id"], len(b"first\r\n"))
    hf.ok("send", "work", "go", "--enter")
    hf.ok("wait", "work", "--for", "text:^5000")
    shown = hf.ok("read", "work").raw
    hf.ok("down")
    assert spool.of(made["id"]).load().pieces == ((0, shown),)
    spool.up()


def test_r1_the_host_killed_in_a_flood_leaves_right_bytes_and_the_next_goes_on(
    spool: Spools,
) -> None:
    hf = spool.hf
    made = hf.new("flood", "--", *FLOOD)
    eventually(lambda: spool.passed(DURABLE) >= 2, "two passes")
    os.kill(hf.host_pid, signal.SIGKILL)
    found = spool.of(made["id"]).load()
    check_flood(found)
    spool.up()
    again = spool.durable(made["id"], found.end + MiB)
    check_flood(again)
    assert again.pieces[0] == found.pieces[0], "the output of the killed host is still there"
    disk = sum(file.stat().st_size for file in Path(spool.of(made["id"]).directory).iterdir())
    assert disk <= 2 * MiB
    hf.end("flood")


def test_r1_everything_killed_at_once_in_a_flood_leaves_right_bytes(spool: Spools) -> None:
    hf = spool.hf
    made = hf.new("flood", "--", *FLOOD)
    eventually(lambda: spool.passed(DURABLE) >= 2, "two passes")
    keeper = hf.peer(f"{made['id']}.keeper")
    assert keeper is not None
    pids = {keeper, hf.host_pid, *hf.processes()}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # one ends with another
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(map(alive, pids)), "the end of all processes")
    found = spool.of(made["id"]).load()
    check_flood(found)
    spool.up()
    assert hf.get("flood")["epoch"] == 2
    shown = hf.ok("read", "flood").raw
    assert found.pieces[-1][1] in shown and b"new incarnation" in shown
    hf.end("flood")
    eventually(lambda: not spools.sessions(spool.home.spool), "the spool to be removed")


def test_r1_a_killed_keeper_leaves_the_last_output_too(spool: Spools) -> None:
    hf = spool.hf
    made = hf.new("work", "--", "sh", "-c", "seq 3000; read line; echo last; exec sleep 1000")
    hf.ok("wait", "work", "--for", "text:^3000")
    hf.ok("send", "work", "go", "--enter")
    hf.ok("wait", "work", "--for", "text:^last")
    shown = hf.ok("read", "work").raw
    [keeper] = hf.keepers()
    os.kill(keeper, signal.SIGKILL)
    assert spool.durable(made["id"], len(shown)).pieces == ((0, shown),)
    eventually(lambda: hf.get("work")["epoch"] == 2 or None, "the next incarnation")


def test_spools_of_sessions_that_are_unknown_are_removed_at_the_start(spool: Spools) -> None:
    hf = spool.hf
    made = hf.new("work", "--", "sh", "-c", "echo kept; exec sleep 1000")
    spool.durable(made["id"], 6)
    spool.of("0123456789ab").append(0, b"of nobody")
    hf.ok("down")
    spool.up()
    eventually(lambda: spools.sessions(spool.home.spool) == [made["id"]], "only the known one")
    hf.ok("down")
    hf.configure("[relay]\nstart = false\n[session]\nspool_bytes = 0\n")
    spool.up()
    eventually(lambda: not spool.of(made["id"]).load().pieces, "no output with the spool off")


def test_r1_a_full_disk_is_told_once_delays_no_session_and_is_tried_again(
    fresh: Installation,
) -> None:
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root to mount a small tmpfs")
    disk = fresh.home / "spool"
    disk.mkdir(mode=0o700, parents=True)
    fresh.home.chmod(0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        spool = Spools(fresh)
        flood = fresh.new("flood", "--", "sh", "-c", "seq 50000; exec sleep 1000")
        shell = fresh.ready("shell")
        eventually(lambda: spool.passed(FAILED) >= 1, "a refused pass")
        assert fresh.ok("run", "shell", "--", "echo lives").out == "lives\n"
        assert spool.metric("spool_failing") == 1 and spool.metric("spool_failures_total") >= 1
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        end = fresh.get("flood")["output"]["end"]
        assert spool.durable(flood["id"], end).end == end
        eventually(lambda: spool.metric("spool_failing") == 0, "all sessions stored")
        events = map(json.loads, fresh.ok("events", "--json").out.splitlines())
        told = [one for one in events if one["event"] == "spool.failed"]
        assert len(told) == 1 and "No space left" in told[0]["detail"]
        assert spool.durable(shell["id"], 1).damaged == ""
        fresh.end("flood", "shell")
        fresh.ok("down")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_the_host_makes_no_pass_while_no_program_prints(spool: Spools) -> None:
    made = spool.hf.new("work", "--", "sh", "-c", "echo idle; exec sleep 1000")
    spool.durable(made["id"], 6)
    passes = spool.passed(PASS)
    select.select([], [], [], 3.0)  # time itself is tested: longer than two passes
    assert spool.passed(PASS) == passes > 0
