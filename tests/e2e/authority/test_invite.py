"""One-time codes: used by people at two terminals, by scripts, and by intruders."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.identity import identity
from holdfast.core.people import join_code
from holdfast.core.people.join_code import Code
from holdfast.home import keys
from holdfast.model import signing
from holdfast.model.limits import HELLO_WAIT_S, INVITATION_GUESSES
from holdfast.wire import frames, hello
from tests.support.commands.results import the_error
from tests.support.installation import DEADLINE_S, Installation, Terminal, eventually, installation
from tests.support.ordinary_user import ordinary_user
from tests.support.peers.introduction import Introduction
from tests.support.peers.raw_client import Raw


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.new("work", "--", "cat")
        yield made
        assert "Traceback" not in (made.home / "host.log").read_text()


def invited(hf: Installation, *args: str) -> dict[str, Any]:
    made: dict[str, Any] = hf.ok("invite", "--json", "--no-wait", *args).json
    return made


def wrong(code: str) -> str:
    """A code with the same id that no check finds odd."""
    right = join_code.read(code)[0]
    return Code(right.id, right.secret[:-1] + ("0" if right.secret[-1] != "0" else "1")).show()


def local(hf: Installation) -> list[str]:
    return [one.name for one in keys.listing(homes.resolve(hf.env))]


def state(hf: Installation, id: str) -> dict[str, Any]:
    return next(one for one in hf.ok("invite", "ls", "--json").json if one["id"] == id)


def terminal(hf: Installation, *args: str) -> Terminal:
    return hf.spawn([str(word) for word in hf.argv(args)], size=(120, 24))


# ---------------------------------------------------------------- use by people and scripts


def test_a5_a_joiner_with_the_code_has_the_rights_of_the_invitation(hf: Installation) -> None:
    made = invited(
        *(hf, "--rights", "observe,input,plain", "--session", "work"),
        *("--kind", "agent", "--expires", "1h"),
    )
    assert (
        {"code", "url", "expires"} <= made.keys()
        and made["url"].endswith("/join#" + made["code"])
        and "?" not in made["url"]
    )
    joined = hf.ok("join", made["code"], "--as", "builder", "--json").json
    assert (joined["name"], joined["kind"], joined["by"], joined["rights"], joined["again"]) == (
        "builder",
        "agent",
        "tester",
        ["input", "observe", "plain"],
        False,
    )
    path = hf.home / "keys" / "builder.key"
    assert path.stat().st_mode & 0o777 == 0o600 and json.loads(path.read_text())["kind"] == "agent"
    hf.ok("--as", "builder", "send", "work", "hello", "--enter")
    the_error(hf.attempt("--as", "builder", "halt", "work", "--json"), 4)
    shown = hf.ok("operator", "show", "builder", "--json").json
    assert (shown["kind"], shown["added_by"], shown["envelopes"][0]["given_by"]) == (
        "agent",
        "tester",
        "tester",
    )
    assert shown["envelopes"][0]["scope"] == {
        "session": hf.get("work")["id"],
        "expires": made["scope"]["expires"],
    }
    event = next(e for e in hf.ok("events", "--json").records if e["event"] == "operator.joined")
    assert (event["operator"], event["by"], event["invitation"]) == (
        "builder",
        "tester",
        made["id"],
    )
    recorded = hf.ok("log", "machine", "--limit", "1000", "--json").records
    assert [(e["actor"], e["kind"]) for e in recorded if made["id"] in json.dumps(e)] == [
        ("tester", "invite"),
        ("builder", "join"),
    ]


@pytest.mark.parametrize("how", ["url", "stdin", "lower"])
def test_a_code_is_accepted_from_stdin_as_a_link_and_in_lower_case(
    hf: Installation, how: str
) -> None:
    made = invited(hf)
    if how == "stdin":
        assert hf.ok("join", "--as", "by-stdin", stdin=f"{made['code']}\n".encode()).out.startswith(
            "by-stdin is in"
        )
    else:
        assert hf.ok(
            "join",
            made["url"] if how == "url" else made["code"].lower().replace("-", ""),
            "--as",
            f"by-{how}",
        ).out.startswith(f"by-{how} is in")
    assert hf.ok("--as", f"by-{how}", "ls").rc == 0


def test_the_code_is_nowhere_afterwards(hf: Installation) -> None:
    """Not in the database, its journal, the log, a key, an event or a listing."""
    made = invited(hf)
    hf.cli("join", wrong(made["code"]), "--as", "quiet")
    hf.ok("join", made["code"], "--as", "quiet")
    secret = join_code.read(made["code"])[0].secret
    for path in hf.home.rglob("*"):
        if path.is_file():
            data = path.read_bytes().upper()
            assert secret.encode() not in data and made["code"].encode() not in data, path
    shown = (
        hf.ok("invite", "ls", "--json").out
        + hf.ok("invite", "ls").out
        + hf.ok("events", "--limit", "1000").out
    )
    assert made["id"] in shown and secret not in shown


def test_two_people_at_two_terminals(hf: Installation) -> None:
    inviter = terminal(hf, "invite", "--rights", "execute", "--session", "work", "--confirm")
    inviter.see("waiting for the newcomer")
    found = re.search(rb"holdfast join ([0-9A-Z-]+) --as NAME", inviter.output)
    assert found is not None and "execute on work" in "".join(inviter.rows())
    joiner = terminal(hf, "join", "--as", "dora")
    joiner.see("code:")
    joiner.send(found[1] + b"\r")
    joiner.see("waiting for tester to admit dora")
    inviter.see("dora (human) asks to join")
    same = re.search(rb"fingerprint of your key: ([0-9A-Z-]+)", joiner.output)
    assert same is not None and same[1] in inviter.output
    inviter.see("admit? [y/n]")
    inviter.send("perhaps\r")
    inviter.see("y or n?")
    assert joiner.process.poll() is None
    inviter.send("y\r")
    inviter.see("dora has joined")
    assert inviter.wait() == 0
    joiner.see("dora is in: a human on")
    assert joiner.wait() == 0 and "holdfast --as dora attach work" in "".join(joiner.rows())


def test_a_refused_joiner_is_told_and_the_code_is_void(hf: Installation) -> None:
    inviter = terminal(hf, "invite", "--confirm")
    inviter.see("waiting for the newcomer")
    code = re.findall(rb"join ([0-9A-Z-]+) --as", inviter.output)[0].decode()
    joiner = hf.start("join", code, "--as", "uninvited", "--json")
    inviter.see("admit? [y/n]")
    inviter.send("n\r")
    assert inviter.wait() == 4 and "was refused" in "".join(inviter.rows())
    _, said = joiner.communicate(timeout=DEADLINE_S)
    assert joiner.returncode == 4 and "was refused" in json.loads(said)["error"]["message"]
    assert "uninvited" not in local(hf), "a key that was not let in is not left behind"
    assert (
        "was refused"
        in the_error(hf.attempt("join", code, "--as", "uninvited", "--json"), 4)["message"]
    )


def test_the_inviters_terminal_names_the_joiner(hf: Installation) -> None:
    inviter = terminal(hf, "invite")
    inviter.see("waiting for the newcomer")
    hf.ok(
        "join", re.findall(rb"join ([0-9A-Z-]+) --as", inviter.output)[0].decode(), "--as", "emil"
    )
    inviter.see("emil has joined")
    assert inviter.wait() == 0


def test_a_script_answers_by_lines(hf: Installation) -> None:
    inviter = hf.start("invite", "--confirm", "--json", stdin=subprocess.PIPE)
    assert inviter.stdout is not None and inviter.stdin is not None
    made = json.loads(inviter.stdout.readline())
    joiner = hf.start("join", made["code"], "--as", "scripted", "--json")
    asks = json.loads(inviter.stdout.readline())
    assert (asks["event"], asks["name"], asks["kind"]) == ("asks", "scripted", "human") and asks[
        "key"
    ].startswith("ed25519:")
    inviter.stdin.write(b"y\n")
    inviter.stdin.flush()
    assert (
        json.loads(inviter.stdout.readline())["event"] == "used"
        and inviter.wait(timeout=DEADLINE_S) == 0
    )
    assert joiner.wait(timeout=DEADLINE_S) == 0


def test_a_newcomer_may_put_its_key_under_a_passphrase(hf: Installation) -> None:
    made = invited(hf, "--kind", "service")
    joiner = terminal(hf, "join", made["code"], "--as", "sealed", "--passphrase")
    at = 0
    for _ in range(2):
        at = joiner.expect("passphrase of sealed: ", at)
        joiner.send("correct horse\r")
    joiner.see("sealed is in: a service on")
    assert joiner.wait() == 0
    kept = json.loads((hf.home / "keys" / "sealed.key").read_text())
    assert kept["kind"] == "service" and "private" not in kept
    user = terminal(hf, "--as", "sealed", "ls")
    user.see("passphrase of sealed:")
    user.send("correct horse\r")
    user.see("work")
    assert user.wait() == 0


def test_the_key_of_a_joiner_is_stored_even_if_its_file_was_removed(hf: Installation) -> None:
    """Another `join` under the same name, refused, may have removed the key."""
    made = invited(hf, "--confirm", "--kind", "agent")
    joiner = hf.start("join", made["code"], "--as", "twice", "--json")
    eventually(lambda: state(hf, made["id"])["asks"], "it asks")
    keys.remove(homes.resolve(hf.env), "twice")
    hf.ok("invite", "accept", made["id"])
    assert joiner.wait(timeout=DEADLINE_S) == 0
    hf.ok("--as", "twice", "ls")


def test_without_a_host_nothing_is_left_behind(fresh: Installation) -> None:
    made = invited(fresh)
    fresh.ok("down")
    the_error(fresh.attempt("join", made["code"], "--as", "early", "--json"), 5)
    assert local(fresh) == ["tester"]
    fresh.ok("up", "--detach")
    fresh.ok("join", made["code"], "--as", "early")


def test_a_decision_can_be_made_elsewhere_and_later_than_an_introduction_may_take(
    hf: Installation,
) -> None:
    accepted, refused = invited(hf, "--confirm"), invited(hf, "--confirm")
    error = the_error(hf.attempt("invite", "accept", accepted["id"], "--json"), 4)
    assert "no newcomer waits" in error["message"]
    one, two = (
        hf.start("join", accepted["code"], "--as", "first-in", "--json"),
        hf.start("join", refused["code"], "--as", "not-in", "--json"),
    )
    eventually(
        lambda: state(hf, accepted["id"])["asks"] and state(hf, refused["id"])["asks"], "both ask"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(timeout=HELLO_WAIT_S + 0.5)
    assert "first-in asks" in hf.ok("invite", "ls").out
    assert hf.ok("invite", "accept", accepted["id"]).out == "first-in has joined\n"
    hf.ok("invite", "refuse", refused["id"])
    assert one.wait(timeout=DEADLINE_S) == 0 and two.wait(timeout=DEADLINE_S) == 4


def test_invitations_are_listed_and_taken_back(hf: Installation) -> None:
    made = invited(hf, "--rights", "execute", "--session", "work")
    assert re.search(rf"{made['id']} +open +tester +execute on work", hf.ok("invite", "ls").out)
    assert (
        hf.ok("invite", "revoke", made["id"].lower()).out
        == f"invitation {made['id']} was revoked\n"
    )
    hf.ok("invite", "revoke", made["id"])
    assert (
        "withdrawn"
        in the_error(hf.attempt("join", made["code"], "--as", "late", "--json"), 4)["message"]
    )
    the_error(hf.attempt("invite", "revoke", "0000", "--json"), 3)
    the_error(hf.attempt("invite", "revoke", "what", "--json"), 3)
    the_error(hf.attempt("invite", "revoke", "?", "--json"), 2)
    for args in (
        ("revoke",),
        ("ls", "AAAA"),
        ("--within", "8d"),
        ("--within", "soon"),
        ("--rights", "everything"),
        ("--kind", "ghost"),
    ):
        the_error(hf.attempt("invite", *args, "--json"), 2)
    used = invited(hf)
    hf.ok("join", used["code"], "--as", "in-time")
    assert (
        "operator revoke"
        in the_error(hf.attempt("invite", "revoke", used["id"], "--json"), 4)["recover"]
    )


def test_a_joiner_is_reported_at_once_to_followers_of_events(hf: Installation) -> None:
    follower = hf.start("events", "--follow", "--json", "--limit", "1")
    assert follower.stdout is not None and follower.stdout.readline()
    made = invited(hf)
    hf.ok("join", made["code"], "--as", "seen")
    told = [json.loads(follower.stdout.readline()) for _ in range(2)]
    assert [e["event"] for e in told] == ["invitation.made", "operator.joined"] and told[1][
        "operator"
    ] == "seen"


def test_names_and_keys_that_are_there(hf: Installation) -> None:
    """A known name with its key gains the rights; with another key it is refused."""
    hf.people("known", rights="read")
    made = invited(hf, "--rights", "observe,input", "--session", "work")
    assert "another name" in the_error(hf.attempt("join", made["code"], "--json"), 4)["recover"], (
        "oneself"
    )
    aside = hf.home / "keys" / "known.key"
    aside.rename(aside.with_name("kept"))
    assert (
        "--as OTHER"
        in the_error(hf.attempt("join", made["code"], "--as", "known", "--json"), 4)["recover"]
    )
    assert "known" not in local(hf)
    aside.with_name("kept").rename(aside)
    hf.ok("join", made["code"], "--as", "known")
    hf.ok("--as", "known", "send", "work", "x", "--enter")
    hf.ok("--as", "known", "events")


# ---------------------------------------------------------------- intruders


def test_a_mistyped_character_costs_no_guess_and_wrong_codes_void_the_invitation(
    fresh: Installation,
) -> None:
    made = invited(fresh)
    typo = made["code"][:-1] + ("A" if made["code"][-1] != "A" else "B")
    for _ in range(INVITATION_GUESSES + 1):
        the_error(fresh.attempt("join", typo, "--as", "eve", "--json"), 2)
    for left in range(INVITATION_GUESSES - 1, -1, -1):
        error = the_error(fresh.attempt("join", wrong(made["code"]), "--as", "eve", "--json"), 4)
        assert (f"{left} more" if left else "has ended") in error["message"]
    assert (
        "void: 3 wrong codes"
        in the_error(fresh.attempt("join", made["code"], "--as", "bob", "--json"), 4)["message"]
    )
    assert state(fresh, made["id"])["state"] == "void" and local(fresh) == ["tester"]


def test_an_expired_code_and_one_whose_rights_have_ended(hf: Installation) -> None:
    for option, lasts in (
        ("--within", "1s"),
        ("--expires", "5s"),
    ):  # the second begins before the host is asked
        made = invited(hf, option, lasts)
        eventually(lambda: state(hf, made["id"])["state"] == "expired", "it expires")
        assert (
            "expired"
            in the_error(hf.attempt("join", made["code"], "--as", "slow", "--json"), 4)["message"]
        )
    assert "slow" not in local(hf)


def test_a5_an_invitation_of_a_revoked_operator_is_void(hf: Installation) -> None:
    hf.people("lead", rights="admin")
    made = invited(hf, "--as", "lead")
    waiting = invited(hf, "--as", "lead", "--confirm")
    joiner = hf.start("join", waiting["code"], "--as", "hopeful", "--json")
    eventually(lambda: state(hf, waiting["id"])["asks"], "it asks")
    hf.ok("operator", "revoke", "lead")
    assert (
        "lead was revoked"
        in the_error(hf.attempt("join", made["code"], "--as", "hopeful2", "--json"), 4)["message"]
    )
    assert joiner.wait(timeout=DEADLINE_S) == 4, "the joiner is told without a decision"
    assert state(hf, waiting["id"])["state"] == "void"
    assert not {"hopeful", "hopeful2"} & set(local(hf))


def test_a5_an_invitation_gives_no_more_than_its_inviter_has(hf: Installation) -> None:
    hf.people("clerk", rights="execute,manage,grant")
    hf.people("reader2", rights="read")
    assert (
        "halt"
        in the_error(hf.attempt("invite", "--as", "clerk", "--rights", "halt", "--json"), 4)[
            "message"
        ]
    )
    the_error(hf.attempt("invite", "--as", "clerk", "--rights", "admin", "--json"), 4)
    the_error(hf.attempt("invite", "--as", "reader2", "--json"), 4)
    assert hf.ok("--as", "reader2", "invite", "ls", "--json").json == []


def test_of_many_processes_with_one_code_one_gets_in(hf: Installation) -> None:
    made = invited(hf)
    before = {o["name"] for o in hf.ok("operator", "ls", "--json").json}
    joiners = {
        name: hf.start("join", made["code"], "--as", name)
        for name in ("race-1", "race-2", "race-3", "race-4")
    }
    codes = {name: joiner.wait(timeout=DEADLINE_S) for name, joiner in joiners.items()}
    assert sorted(codes.values()) == [0, 4, 4, 4]
    [winner] = [name for name, code in codes.items() if code == 0]
    assert {o["name"] for o in hf.ok("operator", "ls", "--json").json} - before == {winner}
    assert set(codes) & set(local(hf)) == {winner}


class Joiner:
    """Speaks the wire itself, with a key and a code of its own."""

    def __init__(self, hf: Installation, code: str, name: str) -> None:
        self.home = homes.resolve(hf.env)
        if name not in local(hf):
            keys.make(self.home, name, "human", 0)
        self.code, self.introduction = join_code.read(code)[0], Introduction(self.home, 4711, name)
        self.raw = Raw(hf, hello=False).send(self.introduction.hello)
        kind, self.challenge = self.raw.frame()
        assert kind == frames.CHALLENGE
        self.machine = signing.read(frames.read_json(self.challenge)["machine"])

    @property
    def statement(self) -> bytes:
        return hello.statement(self.introduction.words, frames.read_json(self.challenge))

    def proof(self, **odd: Any) -> dict[str, Any]:
        name = str(self.introduction.words["operator"])
        return {
            "signature": signing.sign(
                identity(self.home, name).secret(), hello.DOMAIN, self.statement
            ).hex(),
            "invitation": {
                "id": self.code.id,
                "proof": join_code.prove(self.code, self.machine, self.statement).hex(),
                **odd,
            },
        }

    def say(self, proof: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.raw.send(frames.pack_json(frames.PROOF, proof))
        kind, payload = self.raw.frame()
        self.raw.close()
        return kind, frames.read_json(payload)


def test_a_proof_is_worth_nothing_on_another_connection_or_for_another_key(
    fresh: Installation,
) -> None:
    made = invited(fresh)
    seen = Joiner(fresh, made["code"], "bob").proof()
    for name in ("bob", "eve"):
        thief = Joiner(fresh, made["code"], name)
        kind, body = thief.say({**thief.proof(), "invitation": seen["invitation"]})
        assert (
            kind == frames.BYE
            and body["reason"] == "admission"
            and "not the code" in body["message"]
        )
    assert [o["name"] for o in fresh.ok("operator", "ls", "--json").json] == ["tester"]
    assert state(fresh, made["id"])["guesses"] == 2
    kind, body = Joiner(fresh, made["code"], "bob").say(Joiner(fresh, made["code"], "bob").proof())
    assert kind == frames.BYE, "nor is the proof of the key"
    bob = Joiner(fresh, made["code"], "bob")
    kind, body = bob.say(bob.proof())
    assert (
        kind == frames.WELCOME and body["joined"]["name"] == "bob" and not body["joined"]["again"]
    )
    again = Joiner(fresh, made["code"], "bob")
    assert again.say(again.proof())[1]["joined"]["again"]


@pytest.mark.parametrize(
    "invitation",
    [
        7,
        [],
        {},
        {"id": 3},
        {"id": "AAAA"},
        {"id": "AAAA", "proof": 5},
        {"id": "AAAA", "proof": "xyz"},
        {"id": None, "proof": None},
        "code",
        True,
    ],
    ids=str,
)
def test_a_malformed_invitation_is_shown_the_door(hf: Installation, invitation: Any) -> None:
    joiner = Joiner(hf, Code("AAAA", "AAAAAAA").show(), "odd")
    kind, body = joiner.say({**joiner.proof(), "invitation": invitation})
    assert kind == frames.BYE and body["reason"] in ("protocol", "admission"), body


def test_the_signature_of_the_own_key_is_still_asked_for(hf: Installation) -> None:
    made = invited(hf)
    joiner = Joiner(hf, made["code"], "odd")
    kind, _ = joiner.say({**joiner.proof(), "signature": bytes(64).hex()})
    assert kind == frames.BYE and state(hf, made["id"])["state"] == "open"


def test_a_code_is_for_its_machine_and_an_empty_home_has_no_host_to_join(
    hf: Installation, tmp_path: Path
) -> None:
    made = invited(hf)
    other = "holdfast://" + join_code.fingerprint(bytes(32)) + "/join#" + made["code"]
    assert (
        "another machine"
        in the_error(hf.attempt("join", other, "--as", "lost", "--json"), 4)["message"]
    )
    assert state(hf, made["id"])["guesses"] == 0 and "lost" not in local(hf)
    empty = tmp_path / "empty"
    error = the_error(
        hf.attempt(
            "join", made["code"], "--as", "lost", "--json", env={"HOLDFAST_HOME": str(empty)}
        ),
        3,
    )
    assert (
        "no host ever ran" in error["message"]
        and "--relay" in error["recover"]
        and not empty.exists()
    )


def test_s4_a_host_that_dies_after_letting_in_knows_the_key_when_it_comes_again(
    fresh: Installation,
) -> None:
    made = invited(fresh)
    os.kill(fresh.host_pid, signal.SIGKILL)
    log = fresh.base / "passed"
    joined = fresh.ok(
        "join",
        made["code"],
        "--as",
        "bob",
        "--json",
        env={"HOLDFAST_PROBE": f"log:{log},kill@host.join.admitted"},
    ).json
    assert log.read_text().split().count("host.join.admitted") == 1, (
        "one host died there, the next one knew"
    )
    assert joined["again"] and joined["name"] == "bob"
    shown = fresh.ok("operator", "show", "bob", "--json").json
    assert len(shown["envelopes"]) == 1 and len(shown["keys"]) == 1
    assert (
        len([e for e in fresh.ok("events", "--json").records if e["event"] == "operator.joined"])
        == 1
    )
    assert state(fresh, made["id"])["state"] == "used"


def test_s4_open_invitations_and_waiting_joiners_survive_a_restart_of_the_host(
    fresh: Installation,
) -> None:
    made = invited(fresh, "--confirm")
    joiner = fresh.start("join", made["code"], "--as", "patient", "--json")
    inviter = fresh.start("invite", "--confirm", "--json", stdin=subprocess.PIPE)
    eventually(lambda: state(fresh, made["id"])["asks"], "it asks")
    os.kill(fresh.host_pid, signal.SIGKILL)
    eventually(lambda: fresh.cli("invite", "accept", made["id"]).rc == 0, "it asks the next host")
    assert joiner.wait(timeout=DEADLINE_S) == 0
    assert inviter.poll() is None, "a wait for another joiner continues"


# ---------------------------------------------------------------- accounts


def test_t4_another_account_of_the_machine_cannot_join_here(hf: Installation) -> None:
    """The kernel keeps the account out, with or without a code; the error says so."""
    made = invited(hf)
    with ordinary_user() as user:
        python = user.python("cryptography")
        script = (
            f"import os, sys; os.environ['HOLDFAST_HOME'] = {str(hf.home)!r}; "
            "from holdfast.faces.cli.main import main; main()"
        )
        done = user.run([python, "-c", script, "join", made["code"], "--as", "neighbour"])
        assert done is not None and done.returncode == 4 and "another account" in done.stderr, done
    assert state(hf, made["id"])["state"] == "open"
