"""Clients inside a session (A7): a key that lies about is not its owner."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.installation import Installation, eventually, installation
from tests.support.kernel import silent_about_processes

needs_forks = pytest.mark.skipif(bool(silent_about_processes()), reason=silent_about_processes())


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("ann", "bob")
        made.ok("new", "target", "--no-attach")
        yield made


def client(hf: Installation, *args: str) -> str:
    """A line of the shell that runs the command line inside the session."""
    return shlex.join(["env", *(f"{k}={v}" for k, v in hf.env.items()), *map(str, hf.argv(args))])


def run(hf: Installation, session: str, who: str, text: str) -> Any:
    hf.ok("--as", who, "seize", session)
    return hf.cli("--as", who, "run", session, "--", text)


def entries(hf: Installation, session: str, kind: str) -> list[dict[str, Any]]:
    found = hf.ok("log", session, "--json").records
    return [e for e in found if e["kind"] == kind and e["phase"] != "outcome"]


@needs_forks
def test_a7_an_act_from_inside_in_the_name_of_another_operator_is_refused(
    house: Installation,
) -> None:
    house.ok("--as", "ann", "new", "shared", "--no-attach")
    done = run(house, "shared", "bob", client(house, "--as", "ann", "send", "target", "X"))
    assert done.rc == 4
    assert "runs inside a session" in done.out and "bob" in done.out
    (entry,) = entries(house, "target", "line")
    assert (entry["actor"], entry["verdict"]) == ("ann", "refuse")
    assert entry["originators"][0] == "bob"
    assert entry["facts"]["inside"]["operators"] == ["bob"]
    assert "started by bob" in house.ok("log", "target").out
    # Reading in another name is refused too, and so is an order to stop.
    for words in (("log", "target"), ("halt", "target")):
        assert run(house, "shared", "bob", client(house, "--as", "ann", *words)).rc == 4


@needs_forks
def test_a7_an_act_from_inside_in_ones_own_name_is_marked(house: Installation) -> None:
    house.ok("--as", "ann", "new", "own", "--no-attach")
    done = run(house, "own", "ann", client(house, "--as", "ann", "rename", "target", "target2"))
    assert done.rc == 0, done
    run(house, "own", "bob", client(house, "--as", "bob", "rename", "target2", "target"))
    first, second = entries(house, "target", "rename")
    assert first["facts"]["inside"]["operators"] == ["ann"]
    assert second["facts"]["inside"]["operators"] == ["bob"]
    assert first["originators"] == second["originators"] == []
    assert "[from inside " in house.ok("log", "target").out


@needs_forks
def test_a7_keys_of_an_attached_client_inside_are_refused_once_another_operator_types(
    house: Installation,
) -> None:
    house.ok("--as", "ann", "new", "outer", "--no-attach")
    house.ok("--as", "ann", "new", "inner", "--no-attach")
    house.ok(
        "--as", "ann", "send", "outer", client(house, "--as", "ann", "attach", "inner"), "--enter"
    )
    eventually(lambda: house.get("inner")["operators"], "the attached client")
    house.ok("--as", "ann", "send", "outer", "echo on$((1+1))e", "--enter")
    eventually(lambda: "on2e" in house.ok("view", "inner").out, "ann's line")
    house.ok("seize", "outer")
    house.ok("send", "outer", "echo tw$((1+1))o", "--enter")
    eventually(lambda: "inside a session" in house.ok("view", "outer").out, "the refusal")
    assert "tw2o" not in house.ok("view", "inner").out
    (attach,) = entries(house, "inner", "attach")
    assert attach["facts"]["inside"]["operators"] == ["ann"]


def test_a7_a_person_may_allow_acts_from_inside(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = '[session]\ninside = "allow"\n[turn]\nidle_s = 600\n'
    with installation(tmp_path_factory.mktemp("home"), config) as made:
        made.people("ann", "bob")
        for name in ("target", "shared"):
            made.ok("--as", "ann", "new", name, "--no-attach")
        made.ok("--as", "ann", "run", "shared", "--", "true")
        done = run(made, "shared", "bob", client(made, "--as", "ann", "rename", "target", "other"))
        assert done.rc == 0, done
        (entry,) = entries(made, "other", "rename")
        assert entry["actor"] == "ann"
        assert entry["originators"] == (["unknown"] if silent_about_processes() else ["bob"])
