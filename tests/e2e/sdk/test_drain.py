"""The Python API drains a machine, and chooses what the reaper may do (R8, R9)."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import sync
from tests.support.installation import Installation
from tests.support.recovery.checkpoint import criu, unsavable


def test_r9_a_program_drains_the_machine_and_goes_on(fresh: Installation) -> None:
    criu()
    fresh.ready("work", "--contained")
    unsavable(fresh.get(fresh.ready("plain", "--plain")["id"])["keeper"])
    with sync.connect(operator="tester", home=str(fresh.home)) as client:
        session = client.sessions.get("work")
        session.run("X=kept")
        session.reap("never")
        assert fresh.get("work")["reap"] == "never"
        found = client.machines.drain(machine="", notice=100)
        assert (found.saved, found.left, found.draining) == (1, 1, True)
        by_name = {one.name: one for one in found.sessions}
        assert by_name["work"].checkpoint and "plain session" in by_name["plain"].why
        with pytest.raises(holdfast.Saved):
            session.run("true")
        client.machines.cancel_drain(machine="")
        assert session.run("echo $X").output == "kept\n"
