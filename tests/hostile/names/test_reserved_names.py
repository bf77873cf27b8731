"""No operator takes the name of a pseudo actor (P3): every way in is tried.

An agent that is called `shell` would be read as the shell itself in records and policies.
"""

from __future__ import annotations

import contextlib
from typing import Any

import apsw
import pytest

from holdfast.core.originators.lineage import SHELL, UNKNOWN, Cause
from holdfast.host.exec_gate.gate import pseudo
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, Usage
from holdfast.model.reserved_names import RESERVED, check_new_operator, is_reserved
from tests.support.installation import Installation
from tests.support.peers.hostile_client import Wire


def test_p3_pseudo_actors_are_in_the_table() -> None:
    assert {SHELL.actor, UNKNOWN.actor, "others", "host", "machine"} <= RESERVED.keys()
    for name in (*RESERVED, "Shell", "UNKNOWN"):
        with pytest.raises(Usage, match="cannot be named"):
            check_new_operator(name)
    assert check_new_operator("shell-1") == "shell-1" and not is_reserved("root")


def test_p3_the_command_line_makes_no_key_of_that_name(fresh: Installation) -> None:
    fresh.ok("ls")
    for argv in (
        ("operator", "add", "shell", "--kind", "agent"),
        ("--as", "unknown", "join", fresh.ok("invite", "--no-wait", "--json").json["code"]),
    ):
        done = fresh.cli(*argv)
        assert done.rc == 2 and "cannot be named" in done.err, done
    assert not [p for p in (fresh.home / "keys").iterdir() if is_reserved(p.stem) and p.suffix]
    wire = Wire(fresh, "tester", 7)
    with pytest.raises(HoldfastError, match="cannot be named"):
        key = signing.show(signing.public(bytes([9]) * 32))
        wire.request("operator.add", name="others", kind="agent", key=key)
    wire.close()


def test_p3_an_account_of_such_a_name_gets_another_one(fresh: Installation) -> None:
    env = {"USER": "shell", "HOLDFAST_AS": ""}
    found = fresh.ok("operator", "ls", "--json", env=env).json
    assert [one["name"] for one in found] == ["shell-1"]
    fresh.ok("down", env=env)


def test_p3_a_pseudo_actor_is_not_the_operator_of_its_name() -> None:
    """An exec of the shell itself has no act, and never the kind of an operator."""
    assert pseudo(SHELL) and pseudo(UNKNOWN) and not pseudo(Cause("shell", 3))


def test_p3_doctor_reports_an_operator_of_an_earlier_build(fresh: Installation) -> None:
    fresh.ok("ls")

    def finding() -> dict[str, Any]:
        return next(f for f in fresh.ok("doctor", "--json").json if f["id"] == "operator-names")

    assert finding()["ok"] is True
    fresh.ok("down")
    with contextlib.closing(apsw.Connection(str(fresh.home / "state.db"))) as database:
        for table, column in ("operators", "name"), ("operator_keys", "operator"):
            database.execute(f"UPDATE {table} SET {column} = 'shell'")
    (fresh.home / "keys/tester.key").rename(fresh.home / "keys/shell.key")
    fresh.ok("--as", "shell", "new", "room", "--no-attach", "--", "cat")  # works as before
    found = finding()
    assert found["ok"] is False and "shell" in found["detail"]
    fresh.ok("--as", "shell", "end", "room")
    fresh.ok("--as", "shell", "down")
