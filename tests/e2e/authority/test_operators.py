"""Who may what: a key that may only read tries everything; rights narrow, end, and are revoked while somebody types."""

from __future__ import annotations

import re

from tests.e2e.harness import DEADLINE_S, Installation, Terminal, eventually
from tests.e2e.test_attach import attached
from tests.e2e.test_bad_input import Raw
from tests.e2e.test_commands import the_error


def test_a5_nobody_is_let_in_with_anothers_name_or_key(hf: Installation) -> None:
    hf.people("mallory", rights="read")
    from tests.e2e.test_bad_input import HELLO

    from holdfast import home as homes
    from holdfast.client.identity import identity
    from holdfast.model import signing
    from holdfast.testing.introduction import Introduction
    from holdfast.wire import frames, hello

    home = homes.resolve(hf.env)
    mine, theirs = Introduction(home, 9, "mallory"), signing.show(identity(home, "tester").public)
    for words in (
        {**mine.words, "operator": "tester"},
        {**mine.words, "key": theirs},
        {**HELLO, "operator": "mallory"},
    ):
        raw = Raw(hf, hello=False).send(frames.pack_json(frames.HELLO, words))
        kind, challenge = raw.frame()
        assert kind == frames.CHALLENGE
        statement = hello.statement(words, frames.read_json(challenge))
        signature = signing.sign(identity(home, "mallory").secret(), hello.DOMAIN, statement)
        last = raw.send(frames.pack_json(frames.PROOF, {"signature": signature.hex()})).farewell()
        assert last is not None and last["reason"] == "admission", words


def test_a5_a_proof_is_worth_nothing_on_another_connection(hf: Installation) -> None:
    from holdfast import home as homes
    from holdfast.testing.introduction import Introduction
    from holdfast.wire import frames

    introduction = Introduction(homes.resolve(hf.env), 12)
    one, two = (
        Raw(hf, hello=False).send(introduction.hello),
        Raw(hf, hello=False).send(introduction.hello),
    )
    proof = introduction.proof(one.frame()[1])
    assert two.frame()[0] == frames.CHALLENGE
    last = two.send(proof).farewell()
    assert last is not None and last["reason"] == "admission"
    assert one.send(proof).frame()[0] == frames.WELCOME


def test_a5_revocation_bites_on_the_next_key_of_who_is_attached(fresh: Installation) -> None:
    fresh.people("ann", rights="execute")
    fresh.new("room", "--", "cat")
    terminal = attached(fresh, "room", "--as", "ann", see="")
    terminal.send("before\r")
    terminal.see("before")
    fresh.ok("operator", "revoke", "ann")
    terminal.send("after\r")
    assert terminal.wait() == 4
    assert "after" not in fresh.ok("view", "room").out
    assert b"revoked" in terminal.output and terminal.restored
    assert the_error(fresh.attempt("--as", "ann", "ls", "--json"), 4)["name"] == "not_allowed"


def test_a5_rights_are_for_a_session_for_a_time_and_never_more_than_the_givers(
    fresh: Installation,
) -> None:
    fresh.people("lead", rights="execute,grant,turn.seize")
    fresh.people("bot", rights="", kind="agent")
    fresh.new("one", "--", "cat")
    fresh.new("two", "--", "cat")
    fresh.ok(
        "--as", "lead", "grant", "bot", "--rights", "observe,input", "--session", "one", "--own-key"
    )
    fresh.ok("--as", "bot", "send", "one", "x", "--enter")
    assert [s["name"] for s in fresh.ok("--as", "bot", "ls", "--json").json] == ["one"]
    the_error(fresh.attempt("--as", "bot", "view", "two", "--json"), 4)
    error = the_error(
        fresh.attempt("--as", "lead", "grant", "bot", "--rights", "halt", "--own-key", "--json"), 4
    )
    assert "halt" in error["message"]
    fresh.quick("grant", "bot", "--rights", "read", "--session", "two", "--expires", "5s")
    fresh.quick("--as", "bot", "view", "two")
    eventually(lambda: fresh.cli("--as", "bot", "view", "two").rc == 4, "the envelope to expire")
    fresh.ok("operator", "revoke", "lead")
    the_error(fresh.attempt("--as", "bot", "send", "one", "y", "--json"), 4)


def test_s7_the_one_who_made_it_is_nobody_special(fresh: Installation) -> None:
    """The spawner is revoked; the session goes on and the others can do everything."""
    fresh.people("founder", "other")
    fresh.ok("--as", "founder", "new", "work", "--no-attach", "--", "cat")
    fresh.ok("--as", "other", "operator", "revoke", "founder")
    the_error(fresh.attempt("--as", "founder", "view", "work", "--json"), 4)
    fresh.ok("--as", "other", "send", "work", "still here", "--enter")
    fresh.wait("work", "text:still here")
    fresh.ok("--as", "other", "end", "work")


def test_s7_the_last_admin_is_not_lost_by_accident_and_the_machine_is_the_way_back(
    fresh: Installation,
) -> None:
    fresh.new("orphan", "--", "cat")
    error = the_error(fresh.attempt("operator", "revoke", "tester", "--json"), 4)
    assert "--force" in error["recover"]
    fresh.ok("operator", "revoke", "tester", "--force")
    the_error(fresh.attempt("ls", "--json"), 4)
    (fresh.home / "keys" / "tester.key").unlink()
    fresh.ok("operator", "recover", "again", "--as", "again")
    fresh.env["USER"] = "again"
    assert [s["name"] for s in fresh.ls()] == ["orphan"]


def test_a5_who_only_follows_is_dropped_with_its_rights_too(fresh: Installation) -> None:
    fresh.people("ann", rights="read")
    fresh.new("stream", "--", "sh", "-c", "echo first; exec cat")
    follower = fresh.start("--as", "ann", "read", "stream", "--follow")
    assert follower.stdout is not None and follower.stdout.readline() == b"first\r\n"
    fresh.ok("operator", "revoke", "ann")
    assert follower.wait(timeout=DEADLINE_S) == 4
    fresh.end("stream")


def test_a5_sessions_that_one_may_not_see_are_not_listed_when_they_have_ended_either(
    fresh: Installation,
) -> None:
    fresh.people("bot", rights="")
    fresh.new("secret", "--", "true")
    fresh.wait("secret", "exit")
    assert [s["name"] for s in fresh.ok("ls", "--all", "--json").json] == ["secret"]
    assert fresh.ok("--as", "bot", "ls", "--all", "--json").json == []


def test_a5_typing_is_not_resizing(fresh: Installation) -> None:
    fresh.people("typist", rights="observe,input")
    fresh.new("sized", "--size", "80x24", "--", "cat")
    terminal = attached(fresh, "sized", "--as", "typist", size=(60, 15), see="")
    terminal.send("typed\r")
    fresh.wait("sized", "text:typed")
    terminal.resize(70, 20)
    terminal.send("more\r")
    fresh.wait("sized", "text:more")
    assert fresh.get("sized")["size"] == {"cols": 80, "rows": 24}
    terminal.leave()


def test_a3_attaching_with_take_is_a_seizure_like_any_other(fresh: Installation) -> None:
    fresh.configure("[turn]\nidle_s = 600\n")
    fresh.people("ann", "bob")
    fresh.new("taken", "--", "cat")
    fresh.ok("--as", "ann", "send", "taken", "mine")
    terminal = attached(fresh, "taken", "--as", "bob", "--take", see="mine")
    turn = fresh.get("taken")["turn"]
    assert turn is not None and turn["holder"] == "bob"
    terminal.leave()


def test_a5_who_watches_or_types_for_a_time_is_told_before_it_is_over(hf: Installation) -> None:
    """And when it is: which right, whose envelope, who could give it again."""
    hf.people("guest", "typist", rights="")
    work = hf.ready("leased", "--", "bash")
    hf.quick(
        "grant", "guest", "--rights", "read", "--session", "leased", "--expires", "1s"
    )  # an older one, long over by the end
    hf.quick("grant", "guest", "--rights", "read", "--session", "leased", "--expires", "15s")
    hf.quick("grant", "typist", "--rights", "read", "--session", "leased")
    hf.quick("grant", "typist", "--rights", "execute", "--session", "leased", "--expires", "15s")
    watching, typing = (
        hf.attach("--as", "guest", "attach", "leased"),
        hf.attach("--as", "typist", "attach", "leased"),
    )
    watching.expect(r"you may watch here for \d+ s more; tester can grant more")
    typing.expect(r"you may type here for \d+ s more; tester can grant more")
    assert watching.wait() == 4
    envelope = [e["id"] for e in hf.ok("operator", "show", "guest", "--json").json["envelopes"]][-1]
    said = watching.output.decode().replace("\r\n", "\n")
    assert re.search(
        f"leased: guest lacks the right `observe` in session {work['id']}: the envelope ended .* s ago \\(it was from tester: {envelope[:12]}\\)",
        said,
    ), said
    assert (
        f"tester can grant it: `holdfast grant guest --rights observe --session {work['id']}`"
        in said
    ), said
    at = len(typing.output)
    typing.until(
        lambda: _shows_after(typing, b"x", b"typist lacks the right `input`", at), "the refusal"
    )
    assert typing.leave() == 0
    hf.end("leased")


def _shows_after(terminal: Terminal, key: bytes, text: bytes, since: int) -> bool:
    """Types once more if it was not refused yet: whose time is over depends on the clock."""
    if text in terminal.output[since:]:
        return True
    terminal.send(key)
    terminal.drain(0.2)
    return text in terminal.output[since:]
