"""Rights: a key that may only read tries every operation; rights narrow, end, and are revoked.

Revocation also happens while an operator types.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest

from holdfast import home as homes
from holdfast.client.identity import identity
from holdfast.client.link import Link
from holdfast.core.people import recovery
from holdfast.home import keys
from holdfast.model.errors import NotAllowed
from tests.support.commands.attached import attached
from tests.support.commands.results import the_error
from tests.support.installation import DEADLINE_S, Installation, Terminal, eventually
from tests.support.peers.raw_client import Raw


def test_a5_the_name_or_key_of_another_operator_is_refused(hf: Installation) -> None:
    hf.people("mallory", rights="read")
    from holdfast.model import signing
    from holdfast.wire import frames, hello
    from tests.support.peers.introduction import Introduction
    from tests.support.peers.raw_client import HELLO

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
    from holdfast.wire import frames
    from tests.support.peers.introduction import Introduction

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


def test_a5_revocation_takes_effect_with_the_next_key_of_an_attached_operator(
    fresh: Installation,
) -> None:
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
    fresh.people("bot", rights="")
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
    fresh.quick("grant", "bot", "--rights", "read", "--session", "one", "--expires", "1h")
    listed = [row.split() for row in fresh.quick("operator", "ls").splitlines()]
    assert listed[0][3:] == ["RIGHTS", "WHERE", "SINCE"]
    assert next(row[3:5] for row in listed if row[0] == "tester") == ["admin", "machine"]
    [at] = [n for n, row in enumerate(listed) if row[0] == "bot"]
    assert listed[at][3:6] == ["input,observe", "session", "one"]
    assert listed[at + 1][1:4] == ["session", "one,", "until"], "a second row, for another scope"
    fresh.quick("grant", "bot", "--rights", "read", "--session", "two", "--expires", "5s")
    fresh.quick("--as", "bot", "view", "two")
    eventually(lambda: fresh.cli("--as", "bot", "view", "two").rc == 4, "the envelope to expire")
    fresh.ok("operator", "revoke", "lead")
    the_error(fresh.attempt("--as", "bot", "send", "one", "y", "--json"), 4)


def test_s7_a_session_does_not_depend_on_its_spawner(fresh: Installation) -> None:
    """The spawner is revoked; the session continues and the others keep all rights."""
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


def test_s7_a_recovery_is_announced_to_every_operator_and_can_be_switched_off_for_good(
    fresh: Installation,
) -> None:
    fresh.people("ann", "bob", rights="read")
    fresh.new("shared", "--", "cat")
    terminal = attached(fresh, "shared", "--as", "ann", see="")
    fresh.ok("operator", "recover", "rescue", "--as", "rescue")
    terminal.see("rescue is an administrator of this machine now")
    assert "rescue is an administrator" in fresh.attempt("ls").err
    assert fresh.attempt("ls").err == "", "once"
    assert fresh.attempt("--as", "ann", "ls").err == "", "the attached client has shown it"
    os.kill(fresh.host_pid, signal.SIGKILL)
    told = json.loads(fresh.attempt("--as", "bob", "ls", "--json").err)
    assert told["recovered"]["operator"] == "rescue", "also after a restart of the host"

    refused = the_error(fresh.attempt("--as", "bob", "operator", "recover", "--never", "--json"), 4)
    assert "`manage`" in refused["message"]
    fresh.ok("operator", "recover", "--never")
    off = the_error(fresh.attempt("operator", "recover", "more", "--json"), 4)
    assert off["name"] == "not_allowed" and "for good" in off["message"]
    assert not (fresh.home / "keys" / "more.key").exists()
    assert "recovery.off" in [e["event"] for e in fresh.ok("events", "--json").records]
    acts = [e for e in fresh.ok("log", "machine", "--json").records if e["kind"] == "operator"]
    assert acts[-1]["actor"] == "tester"
    assert {e["attestation"] for e in acts if e["phase"] == "intent"} == {"actor-signed"}

    home = homes.resolve(fresh.env)
    link = Link(home, "rescue", autostart=False)
    rescue, at, nonce = identity(home, "rescue"), int(time.time()), bytes(recovery.NONCE_BYTES)
    secret = keys.load_machine(home).secret()
    link.recovery = recovery.sign(secret, "rescue", "human", rescue.public, at, nonce)
    with pytest.raises(NotAllowed, match="for good"):
        link.connect()


def test_a5_a_follower_is_dropped_with_its_rights_too(fresh: Installation) -> None:
    fresh.people("ann", rights="read")
    fresh.new("stream", "--", "sh", "-c", "echo first; exec cat")
    follower = fresh.start("--as", "ann", "read", "stream", "--follow")
    assert follower.stdout is not None and follower.stdout.readline() == b"first\r\n"
    fresh.ok("operator", "revoke", "ann")
    assert follower.wait(timeout=DEADLINE_S) == 4
    fresh.end("stream")


def test_a5_ended_sessions_are_listed_only_with_the_right_to_see_them(
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


def test_a5_the_holder_of_an_expiring_right_is_warned_before_its_end(hf: Installation) -> None:
    """At the end the notice names the right, the envelope and an operator that could renew it."""
    hf.people("guest", "typist", rights="")
    work = hf.ready("leased", "--", "bash")
    hf.quick(
        "grant", "guest", "--rights", "read", "--session", "leased", "--expires", "1s"
    )  # an older envelope, long over by the end
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
        f"leased: guest lacks the right `observe` in session {work['id']}: "
        f"the envelope ended .* s ago \\(it was from tester: {envelope[:12]}\\)",
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
    """Type once more if the key was not refused yet: the end of a right depends on the clock."""
    if text in terminal.output[since:]:
        return True
    terminal.send(key)
    terminal.drain(0.2)
    return text in terminal.output[since:]
