"""Named points in keepers: in the order of a session's life, not in the rehearsal.

A keeper is also killed or stopped at each (S4).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.wire import keeper as wire
from tests.support.keeper import RAW, Nursery, gone, state_of, until


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "passed@probes"  # the name contains a mark, as any path may


@pytest.fixture
def armed(tmp_path: Path, log: Path, request: pytest.FixtureRequest) -> Iterator[Nursery]:
    directory = tmp_path / "run"
    directory.mkdir()
    made = Nursery(
        directory,
        env={**os.environ, "HOLDFAST_PROBE": f"log:{log},{getattr(request, 'param', '')}"},
    )
    yield made
    made.close()


def test_the_probes_of_a_life(armed: Nursery, log: Path) -> None:
    assert not log.exists() or not log.read_text(), "the rehearsal passes no probe"
    link = armed.run("a", ["sh", "-c", RAW + "read x; exit 3"])
    link.wait_for(b"READY")
    link.type(b"x\n")
    link.packet(wire.EXITED)
    passed = log.read_text().split()
    assert passed[:2] == ["keeper.spawning", "keeper.spawned"]
    assert {
        "keeper.output.published",
        "keeper.input.accepted",
        "keeper.input.written",
        "keeper.root.exited",
    } <= set(passed)
    assert passed.index("keeper.input.accepted") < passed.index("keeper.input.written")


@pytest.mark.parametrize("armed", ["kill@keeper.input.accepted#2"], indirect=True)
def test_s4_a_keeper_that_dies_hangs_its_program_up_and_closes_to_its_host(armed: Nursery) -> None:
    link = armed.run("a", ["sh", "-c", RAW + "exec cat"])
    link.wait_for(b"READY")
    link.type(b"one")
    link.wait_for(b"one")
    link.type(b"two")
    until(link.closed, "the connection to end")
    until(lambda: gone(link.welcome.root_pid) and gone(armed.keepers["a"]), "both to be gone")
    assert link.all() == b"READY\none", "published output stays readable for holders of the ring"
    with pytest.raises(ConnectionRefusedError):
        armed.link("a")
    os.unlink(armed.path("a"))
    del armed.keepers["a"]


@pytest.mark.parametrize("armed", ["stop@keeper.input.accepted"], indirect=True)
def test_s4_an_act_is_taken_before_it_is_written(armed: Nursery) -> None:
    """Stopped in between: ACCEPTED says taken, WRITTEN not yet; the next host must not resend."""
    link = armed.run("a", ["sh", "-c", RAW + "exec cat"])
    link.wait_for(b"READY")
    link.type(b"once", origin=5, number=1)
    pid = armed.keepers["a"]
    until(lambda: state_of(pid) == "T", "the keeper to stop there")
    assert (link.ring.accepted, link.ring.written) == (1, 0)
    link.close()
    os.kill(pid, signal.SIGCONT)
    again = armed.link("a")
    assert again.welcome.origins == (wire.Origin(5, 1, 1),)
    again.type(b"once", origin=5, number=1)
    again.type(b";", origin=5, number=2)
    assert again.wait_for(b";") == b"READY\nonce;"
