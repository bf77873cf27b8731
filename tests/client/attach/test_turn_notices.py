"""What attach says of the others on a session."""

from __future__ import annotations

from holdfast.client.company import Company


def test_a6_who_takes_over_is_told_what_others_made_of_the_shell_in_one_line() -> None:
    company = Company("bob", "C-a")
    changed = [
        {"kind": "alias", "name": "ls", "actor": "eve"},
        {"kind": "variable", "name": "X", "actor": "bob"},
        {"kind": "shell", "name": "?", "actor": "unknown"},
        *({"kind": "function", "name": f"f{n}", "actor": "eve", "sure": False} for n in range(4)),
    ]
    event = {"event": "inherits", "staged": [], "jobs": [], "changed": changed}
    assert (
        company.words(event)
        == "you have the turn; changed: eve's alias ls, perhaps eve's function f0, perhaps eve's function f1 and 2 more"
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
        Company("bob", "C-a").words(event)
        == r"/tmp/\x1b[2Jnc (eve) was not started: it is not used here"
    )
    assert (
        Company("eve", "C-a").words({**event, "program": "/usr/bin/nc"})
        == "/usr/bin/nc was not started: it is not used here"
    )
