"""The record, the list and the event name the operator whose act ended a session (S7, P3)."""

from __future__ import annotations

from typing import Any

from tests.support.installation import Installation, eventually


def ended(hf: Installation, name: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = [s for s in hf.ok("ls", "--all", "--json").json if s["name"] == name]
        return found[0] if found[0]["state"] == "ended" else None

    return eventually(look, f"the end of {name}")


def facts(hf: Installation, session: str) -> tuple[Any, ...]:
    (event,) = [e for e in hf.ok("events", session, "--json").records if "ended_by" in e]
    return event["event"], event["ended_by"], event["perhaps"]


def entry(hf: Installation, session: str) -> dict[str, Any]:
    def look() -> list[dict[str, Any]]:
        return [e for e in hf.ok("log", session, "--json").records if e["kind"] == "ended"]

    (found,) = eventually(look, "the entry about the end")
    return found


def test_s7_the_end_of_a_session_names_the_operator_whose_act_ended_it(hf: Installation) -> None:
    hf.people("bob", rights="read,input,run,turn.request")
    for name in ("order", "input", "killed", "asked", "itself"):
        hf.ok("new", name, "--no-attach", *(["--", "true"] if name == "itself" else []))
    # By a command, without the right `end`.
    assert hf.cli("--as", "bob", "end", "order").rc == 4
    hf.wait("order", "idle")
    hf.cli("--as", "bob", "run", "order", "--", "exit 3")
    found = ended(hf, "order")
    assert (found["exit_code"], found["ended_by"]) == (3, "bob")
    assert facts(hf, found["id"]) == ("session.exited", "bob", [])
    recorded = entry(hf, found["id"])
    assert (recorded["actor"], recorded["originators"]) == ("bob", [])
    assert recorded["facts"] == {"exit_code": 3, "reason": "exited"}
    assert "bob (host) ended" in hf.ok("log", found["id"]).out
    # By the end of input.
    hf.wait("input", "idle")
    hf.ok("--as", "bob", "send", "input", "--key", "C-d")
    assert ended(hf, "input")["ended_by"] == "bob"
    # By a signal from inside: the sender is not known, the operator of the command perhaps.
    hf.wait("killed", "idle")
    hf.cli("--as", "bob", "run", "killed", "--", "kill -9 $$")
    found = ended(hf, "killed")
    assert found["ended_by"] == "unknown"
    assert entry(hf, found["id"])["originators"] == ["bob", "unknown"]
    # By `end`: the act itself is the record.
    hf.ok("end", "asked")
    found = ended(hf, "asked")
    assert found["ended_by"] == "tester"
    assert not [e for e in hf.ok("log", found["id"], "--json").records if e["kind"] == "ended"]
    # By itself.
    assert ended(hf, "itself")["ended_by"] == "tester"
