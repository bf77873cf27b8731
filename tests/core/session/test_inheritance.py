"""The state that passes with the turn: the operator that sees this state, and the words."""

from __future__ import annotations

import pytest

from holdfast.core.session.graph import File, Graph, Lock, Process
from holdfast.core.session.inheritance import (
    Credential,
    Facts,
    Inheritance,
    OpenFile,
    credentials,
    files,
    in_a_line,
    names_a_secret,
)


def job(actor: str, command: str = "sleep 9") -> Facts:
    return {"jobs": [{"pid": 7, "command": command, "actor": actor, "act": None}]}


def process(pid: int, ppid: int, comm: str, uid: int) -> Process:
    return Process(pid, ppid, 1, 0.0, (), comm, "sleeping", "/", None, uid, 1, 1, True, 1, 0.0, 0)


def test_a6_a_look_is_owed_to_every_new_holder_until_a_client_got_it() -> None:
    state = Inheritance()
    assert state.taken("ann"), "the host is new and does not know the last writer"
    state.shown("ann", None)
    assert not state.taken("ann"), "the same operator continues"
    assert state.taken("bob") and state.owed == "bob"
    assert not state.taken("ann"), "bob was away all the time: ann knows the state"
    assert state.owed is None
    assert state.taken("bob")
    state.shown("eve", None)
    assert state.owed == "bob"
    state.shown("bob", None)
    assert state.known == "bob" and state.taken("ann")


def test_a6_only_state_of_other_operators_is_news_and_only_once() -> None:
    state = Inheritance()
    state.taken("bob")
    assert state.news("bob", job("bob")) is None
    assert state.news("bob", job("shell")) is None
    assert state.news("bob", job("unknown")) is None, "alone, an operator inherits nothing"
    news = state.news("bob", job("ann"))
    assert news == job("ann")
    state.shown("bob", news)
    state.taken("ann")
    state.shown("ann", None)
    state.taken("bob")
    assert state.news("bob", job("ann")) is None, "bob has seen this"
    assert state.news("bob", job("unknown")) is not None
    assert state.news("bob", job("ann", "make")) == job("ann", "make")
    typed: Facts = {"staged": [{"operator": "bob", "text": "ls"}]}
    assert state.news("bob", typed) is None


@pytest.mark.parametrize(
    "name", ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "API_KEY", "PGPASSWORD", "MYSQL_PWD", "TOKEN"]
)
def test_a6_names_of_keys_and_tokens_are_recognised(name: str) -> None:
    assert names_a_secret(name)


@pytest.mark.parametrize(
    "name",
    ["PATH", "PWD", "OLDPWD", "KEYTIMEOUT", "SSH_AUTH_SOCK", "MONKEY", "HOLDFAST_TOKEN_FILE"],
)
def test_a6_names_of_other_variables_are_not(name: str) -> None:
    assert not names_a_secret(name)


def test_a6_root_shells_agents_and_secret_files_are_open_credentials() -> None:
    graph = Graph(
        0.0,
        "tree",
        (
            process(1, 0, "bash", 1000),
            process(2, 1, "sudo", 0),
            process(3, 2, "bash", 0),
            process(4, 1, "ssh-agent", 1000),
        ),
        files=(
            File(1, 5, "/home/ann/.ssh/id_ed25519", "file", "r", 0),
            File(1, 6, "/home/ann/ssh/notes", "file", "r", 0),
        ),
    )
    assert set(credentials(graph, root=1)) == {
        Credential("root", "sudo", 2),
        Credential("agent", "ssh-agent", 4),
        Credential("file", "/home/ann/.ssh/id_ed25519", 1),
    }
    as_root = Graph(0.0, "tree", (process(1, 0, "bash", 0), process(2, 1, "cat", 0)))
    assert not list(credentials(as_root, root=1)), "root did not become root here"


def test_a6_files_of_interest_are_written_or_locked() -> None:
    graph = Graph(
        0.0,
        "tree",
        (),
        files=(
            File(1, 3, "/w/log", "file", "wa", 0),
            File(1, 4, "/w/log", "file", "r", 0, locks=(Lock("flock", True, 0, None),)),
            File(1, 5, "/w/read", "file", "r", 0),
            File(1, 6, "/own/state", "file", "w", 0),
            File(1, 7, "/dev/pts/3", "terminal", "rw", 0),
        ),
    )
    assert list(files(graph, ("/own",))) == [OpenFile("/w/log", 1, True, True)]


def test_a6_the_inherited_state_is_told_in_one_printable_line() -> None:
    facts: Facts = {
        **job("ann"),
        "credentials": [
            {"kind": "variable", "name": "DEPLOY_\x1b[2JTOKEN", "pid": 1, "actor": "ann"},
            {"kind": "root", "name": "bash", "pid": 1, "actor": "unknown"},
        ],
        "files": [{"path": "/w/log", "pid": 1, "write": True, "lock": True, "actor": "ann"}],
    }
    assert in_a_line(facts, "bob") == (
        r"; open credentials: ann's variable DEPLOY_\x1b[2JTOKEN, bash as root"
        "; runs: 'sleep 9' by ann"
        "; files: ann's /w/log (written, locked)"
    )
    assert in_a_line({}) == ""
