"""The second day of a user: cleared and seized lines, hints, frozen programs, tokens."""

from __future__ import annotations

from pathlib import Path

from tests.support.installation import Installation

HINT = "SESSION"


def test_a7_a_line_that_was_cleared_before_the_prompt_is_not_in_the_way(hf: Installation) -> None:
    hf.ready("ahead", "--", "bash")
    gate = hf.gate("until")
    hf.quick("send", "ahead", f"cat {gate} >/dev/null\r")
    hf.quick("send", "ahead", "x")
    hf.quick("send", "ahead", "--key", "C-u")
    gate.open()
    hf.wait("ahead", "idle")
    assert hf.attempt("run", "ahead", "--json", "--", "echo hi").rc == 0


def test_a7_a_long_line_is_cleared_by_one_key(hf: Installation) -> None:
    hf.ready("long", "--", "bash")
    hf.quick("send", "long", "x" * 2000)
    hf.quick("send", "long", "--key", "C-u")
    assert hf.attempt("run", "long", "--json", "--", "echo hi").rc == 0


def test_a6_a_seized_half_line_is_its_typists_in_the_error_of_run(hf: Installation) -> None:
    hf.people("ann", "bob")
    hf.ready("half", "--", "bash")
    hf.quick("--as", "ann", "send", "half", "rm -rf ")
    hf.quick("--as", "bob", "seize", "half")
    refused = hf.attempt("--as", "bob", "run", "half", "--", "echo hi")
    assert refused.rc == 255
    assert "ann has typed" in refused.err and "bob" not in refused.err
    assert "`holdfast send half --key C-u` clears the line" in refused.err
    hf.quick("--as", "bob", "send", "half", "--key", "C-u")
    assert hf.attempt("--as", "bob", "run", "half", "--json", "--", "echo hi").rc == 0
    hf.quick("--as", "bob", "turn", "half", "release")


def test_hints_name_the_session_as_the_user_typed_it(hf: Installation) -> None:
    hf.people("cat")
    hf.ready("hints", "--", "bash")
    hf.quick("seize", "hints")
    for refused in (
        hf.attempt("--as", "cat", "send", "hints", "x"),
        hf.attempt("--as", "cat", "run", "hints", "--", "true"),
        hf.attempt("--as", "cat", "send", "hints", "x", "--json"),
    ):
        assert "`holdfast seize hints`" in refused.err and HINT not in refused.err
    hf.people("bot", kind="agent", plain=False)
    told = hf.attempt("--as", "bot", "run", "hints", "--", "true").err
    assert "--rights plain --session hints`" in told and hf.get("hints")["id"] not in told
    hf.quick("turn", "hints", "release")


def test_a8_graph_shows_a_frozen_program_as_frozen(hf: Installation) -> None:
    hf.ready("cold", "--", "bash")
    how = hf.attempt("halt", "cold", "--json").json["how"]
    states = {p["state"] for p in hf.attempt("graph", "cold", "--json").json["processes"]}
    assert states == {"frozen" if how == "cgroup freeze" else "stopped"}
    hf.quick("resume", "cold")
    states = {p["state"] for p in hf.attempt("graph", "cold", "--json").json["processes"]}
    assert not states & {"frozen", "stopped"}


def test_t4_a_token_that_is_typed_is_not_shown(hf: Installation) -> None:
    words = hf.argv(("host", "connect", "ws://127.0.0.1:1", "--token", "-"))
    terminal = hf.spawn([str(word) for word in words])
    terminal.expect(r"token")
    terminal.send("hfr_secret\r")
    terminal.wait()
    assert b"hfr_secret" not in terminal.output


def test_relay_token_names_its_relay(hf: Installation, tmp_path: Path) -> None:
    made = hf.attempt("relay", "token", "--data", str(tmp_path / "second"))
    assert made.rc == 0 and made.out.startswith("hfr_") and len(made.out.split()) == 1
    assert f"a token for the relay of {tmp_path / 'second'}" in made.err


def test_detach_says_that_no_client_was_attached(hf: Installation) -> None:
    hf.ready("alone", "--", "bash")
    for options in ((), ("--others",)):
        done = hf.attempt("detach", "alone", *options)
        assert done.rc == 0
        assert done.out == "no such client is attached to alone: nothing was detached\n"
