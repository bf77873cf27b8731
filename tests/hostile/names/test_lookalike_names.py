"""No name is taken that a reader could mistake for another session or operator (P3)."""

from __future__ import annotations

import re

import pytest

from holdfast.host.lifecycle import names
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, Usage
from holdfast.model.ids import ID_PREFIX_CHARS
from holdfast.model.reserved_names import check_new_operator, lookalike
from tests.support.installation import Installation
from tests.support.peers.hostile_client import Wire

KNOWN = {"ffj0bpd4p9de": "work", "ffj1bpd4p9de": "other"}


def test_p3_a_reference_with_two_meanings_is_refused_and_both_are_named() -> None:
    both = {**KNOWN, "zzzzbpd4p9de": "ffj0"}
    with pytest.raises(Usage, match="ffj0bpd4p9de") as raised:
        names.match("ffj0", both)
    assert "zzzzbpd4p9de" in str(raised.value)
    assert names.match("zzzz", both) == "zzzzbpd4p9de"
    assert names.match("ffj0b", both) == "ffj0bpd4p9de"
    with pytest.raises(Usage, match=r"ffj0bpd4p9de.*ffj1bpd4p9de"):
        names.match("ffj", KNOWN | {"ffj2bpd4p9de": "ffj0"}, prefix_chars=3)


def test_p3_fewer_characters_than_four_are_a_name_and_never_an_id() -> None:
    assert ID_PREFIX_CHARS == 4
    for text in ("", "f", "ffj"):
        assert names.match(text, KNOWN) is None
    assert names.match("ffj", {**KNOWN, "zzzzbpd4p9de": "ffj"}) == "zzzzbpd4p9de"


def test_p3_no_session_has_the_beginning_of_an_id_as_its_name(fresh: Installation) -> None:
    victim = fresh.new("work", "--", "cat")["id"]
    ended = fresh.new("over", "--", "true")["id"]
    fresh.cli("wait", "over", "--for", "exit")
    fresh.new("mine", "--", "cat")
    for id in (victim, ended):
        for text in (id[:4], id[:11]):
            for argv in (("new", text, "--no-attach", "--", "cat"), ("rename", "mine", text)):
                done = fresh.cli(*argv)
                assert done.rc != 0 and id in done.err, done
    assert fresh.ok("who", victim[:4], "--json").json["id"] == victim
    fresh.new(victim[:3], "--", "cat")
    fresh.end("work", "mine", victim[:3])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("root", "ROOT"),
        ("root", "root."),
        ("root", "ro-ot"),
        ("root", "_r.o.o.t_"),
        ("root", "r00t"),
        ("alice", "aIice"),
        ("Ivan", "ivan"),
        ("tom", "torn"),
        ("walter", "vvalter"),
        ("lena", "1ena"),
        ("bot-1", "bot1"),
    ],
)
def test_p3_names_that_look_alike(one: str, other: str) -> None:
    assert lookalike(other, ["ann", one]) == one and lookalike(one, [other]) == other
    assert lookalike(one, [one]) is None, "the same name is another question"
    assert lookalike(one, [f"{one}-2", f"x{one}"]) is None


def test_p3_reserved_names_are_not_taken_with_punctuation() -> None:
    for name in ("shell.", "un-known", "H0ST", "_all", "sheII", "rnachine"):
        with pytest.raises(Usage, match="cannot be named"):
            check_new_operator(name)


def test_p3_no_operator_takes_a_name_that_looks_like_anothers(fresh: Installation) -> None:
    fresh.people("ann")
    code = fresh.ok("invite", "--no-wait", "--json").json["code"]
    for argv in (
        ("operator", "add", "ANN", "--kind", "agent"),
        ("operator", "add", "an-n.", "--kind", "agent"),
        ("--as", "Tester", "join", code),
    ):
        done = fresh.cli(*argv)
        assert done.rc == 4 and re.search("looks like (ann|tester)", done.err), done
    assert {p.stem for p in (fresh.home / "keys").glob("*.key")} <= {"ann", "tester"}
    wire = Wire(fresh, "tester", 7)
    with pytest.raises(HoldfastError, match="looks like ann"):
        key = signing.show(signing.public(bytes([9]) * 32))
        wire.request("operator.add", name="a.n.n", kind="agent", key=key)
    wire.close()
    assert [one["name"] for one in fresh.ok("operator", "ls", "--json").json] == ["tester", "ann"]
