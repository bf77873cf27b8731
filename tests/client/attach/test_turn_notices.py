"""The notices of attach about other operators of a session."""

from __future__ import annotations

from holdfast.client.attach.turn_notices import TurnNotices


def test_a6_a_new_holder_gets_one_line_about_foreign_shell_state() -> None:
    company = TurnNotices("bob", "C-a")
    changed = [
        {"kind": "alias", "name": "ls", "actor": "eve"},
        {"kind": "variable", "name": "X", "actor": "bob"},
        {"kind": "shell", "name": "?", "actor": "unknown"},
        *({"kind": "function", "name": f"f{n}", "actor": "eve", "sure": False} for n in range(4)),
    ]
    event = {"event": "inherits", "staged": [], "jobs": [], "changed": changed}
    assert (
        company.words(event)
        == "you have the turn; changed: eve's alias ls, perhaps eve's function f0, "
        "perhaps eve's function f1 and 2 more"
    )
    assert company.words({**event, "changed": []}) == "you have the turn"
    assert str(
        company.words({**event, "changed": [{"kind": "alias", "name": "\x1b[2J", "actor": "eve"}]})
    ).isprintable()


def test_p4_why_a_program_was_not_started_is_told_escaped() -> None:
    event = {
        "event": "not_started",
        "operator": "eve",
        "program": "/tmp/\x1b[2Jnc",
        "because": "it is not used here",
    }
    assert (
        TurnNotices("bob", "C-a").words(event)
        == r"/tmp/\x1b[2Jnc (eve) was not started: it is not used here"
    )
    assert (
        TurnNotices("eve", "C-a").words({**event, "program": "/usr/bin/nc"})
        == "/usr/bin/nc was not started: it is not used here"
    )


def test_t4_limits_are_told_in_one_line_each() -> None:
    notices = TurnNotices("bob", "C-a")
    halted = {"event": "halted", "operator": "host", "how": "x", "because": "its limit is 16"}
    assert notices.words(halted) == "halted: its limit is 16; C-a R resumes"
    near = {"event": "limit_near", "resource": "disk", "used": 85, "limit": 100}
    assert notices.words(near) == "85% of this session's disk limit are used"
    killed = {"event": "killed_for_memory", "program": "\x1b[2J", "pid": 7, "limit": None}
    assert str(notices.words(killed)).isprintable()
    unknown = {**killed, "program": "", "pid": None}
    assert notices.words(unknown) == "out of memory: a process (unknown) was killed"


def test_t4_a_lost_network_is_told() -> None:
    said = TurnNotices("bob", "C-a").words({"event": "network_lost"})
    assert said is not None and "lost its network" in said
