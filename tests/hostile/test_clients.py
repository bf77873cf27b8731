"""Client ids are neither secret nor owned: an operator gains nothing by using a foreign id.

A client numbers its inputs under an id of its own choice, and a repeated number is the same input.
An operator may introduce itself with the id of a foreign client. The foreign client's input must
not count as repeated, and its answers must not go to that operator.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.model import signing
from holdfast.model.errors import NotAllowed, Refused, Unfinished, Usage
from holdfast.model.limits import ORIGINS_KEPT
from holdfast.wire import frames
from tests.support.installation import Installation, installation
from tests.support.peers.hostile_client import Lines, Wire, crash

NO_PARTS = (None, None, None)  # of an answer

SHARED = 424242  # the id that all operators use


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("ann", "bob")
        yield made


def test_p1_a_number_that_another_used_is_not_used(hf: Installation) -> None:
    room = Lines(hf, "numbers")
    ann, bob = Wire(hf, "ann", SHARED), Wire(hf, "bob", SHARED)
    bob.request(
        "send", session="numbers", text="bob 1\n", seq=1 << 40
    )  # each number below would repeat a number of bob
    room.free(bob)
    ann.request("send", session="numbers", text="ann 1\n", seq=1)
    ann.request("send", session="numbers", text="ann 2\n", seq=2)
    room.free(ann)
    bob.request("send", session="numbers", text="bob 2\n", seq=(1 << 40) + 1)
    room.become("bob 1", "ann 1", "ann 2", "bob 2")
    crash(hf)  # the keeper remembers the two apart, too
    ann, bob = Wire(hf, "ann", SHARED), Wire(hf, "bob", SHARED)
    ann.request("send", session="numbers", text="ann 2\n", seq=2)
    ann.request("send", session="numbers", text="ann 3\n", seq=3)
    room.free(ann)
    bob.request("send", session="numbers", text="bob 2\n", seq=(1 << 40) + 1)
    bob.request("send", session="numbers", text="bob 3\n", seq=(1 << 40) + 2)
    room.become("bob 1", "ann 1", "ann 2", "bob 2", "ann 3", "bob 3")


def test_p1_keys_of_one_are_not_acknowledged_to_another(hf: Installation) -> None:
    room = Lines(hf, "keys")
    ann, bob = Wire(hf, "ann", SHARED), Wire(hf, "bob", SHARED)
    ann.attach("keys")
    ann.say(frames.input_(7, b"ann\n", frames.INPUT_ACK))
    ann.taken(7)
    room.free(ann)
    assert bob.attach("keys")["acked"] == 0
    bob.say(frames.input_(7, b"bob\n", frames.INPUT_ACK))
    bob.taken(7)
    room.become("ann", "bob")
    ann.close()
    bob.close()


def test_p1_a_run_is_answered_only_to_its_caller(hf: Installation) -> None:
    hf.ready("shell", "--", "sh")
    ann, bob = Wire(hf, "ann", SHARED), Wire(hf, "bob", SHARED)
    ran = ann.request(
        "run", session="shell", text="echo secret; exit_code() { return 7; }; exit_code", seq=1
    )
    assert ran["exit_code"] == 7
    ann.request("turn", session="shell", act="release")
    other = bob.request("run", session="shell", text="true", seq=1)
    assert other["exit_code"] == 0 and other["output"] != ran["output"]
    bob.request("turn", session="shell", act="release")
    again = ann.request(
        "run", session="shell", text="echo secret; exit_code() { return 7; }; exit_code", seq=1
    )
    assert again["exit_code"] == 7 and again["output"]["end"] == ran["output"]["end"]
    hf.end("shell")


def test_p1_the_first_input_of_each_number_counts(hf: Installation) -> None:
    """Replayed, changed under a known number, and out of order: the first of each counts."""
    room = Lines(hf, "again")
    ann = Wire(hf, "ann", 51)
    ann.request("send", session="again", text="first\n", seq=3)
    for text, seq in (("first\n", 3), ("changed\n", 3), ("late\n", 2)):
        ann.request("send", session="again", text=text, seq=seq)
    ann.attach("again")
    for number, data in (
        (3, b"first\n"),
        (1, b"older\n"),
        (4, b"second\n"),
        (4, b"altered\n"),
        (3, b"x\n"),
    ):
        ann.say(frames.input_(number, data, frames.INPUT_ACK))
    ann.taken(4)
    ann.request("send", session="again", text="third\n", seq=5)
    room.become("first", "second", "third")
    ann.close()


def test_p1_an_answer_that_was_lost_names_the_act_it_was(hf: Installation) -> None:
    """Asked again, also of another host: the same act, not the newest act."""
    Lines(hf, "acts")
    ann = Wire(hf, "ann", 52)
    first = ann.request("send", session="acts", text="one\n", seq=1)
    other = Wire(hf, "ann", 53).request("send", session="acts", text="two\n", seq=1)
    assert other["act"] > first["act"]
    assert ann.request("send", session="acts", text="one\n", seq=1)["ref"] == first["ref"]
    crash(hf)
    assert (
        Wire(hf, "ann", 52).request("send", session="acts", text="one\n", seq=1)["ref"]
        == first["ref"]
    )


def test_p1_numbers_of_one_session_do_not_count_in_another(hf: Installation) -> None:
    one, two = Lines(hf, "splice-1"), Lines(hf, "splice-2")
    ann = Wire(hf, "ann", 54)
    ann.request("send", session="splice-1", text="here\n", seq=9)
    ann.request("send", session="splice-2", text="there\n", seq=9)
    one.become("here")
    two.become("there")


def test_t4_a_token_of_another_operators_request_reveals_nothing(hf: Installation) -> None:
    """`new` may be repeated after a crash, only by the caller."""
    hf.people("carl", rights="new")
    ann, carl = Wire(hf, "ann", 55), Wire(hf, "carl", 55)
    asked: dict[str, Any] = {"argv": ["cat"], "cwd": "/", "env": {}, "token": "37-1"}
    made = ann.request("new", name="private", **asked)
    assert ann.request("new", name="private", **asked)["id"] == made["id"]
    with pytest.raises(NotAllowed):
        carl.request("get", session="private")
    assert carl.request("new", name="other", **asked)["id"] != made["id"]


def test_p1_a_request_to_the_machine_counts_once_as_signed_and_on_its_channel(
    hf: Installation,
) -> None:
    """Another name, operation, number or channel, or the same again: none of it counts."""
    ann, again = Wire(hf, "ann", 56), Wire(hf, "ann", 56)
    place = ann.acting.learn("machine", ann.request("place", session="machine"))
    key = signing.show(signing.public(os.urandom(32)))
    fields: dict[str, Any] = {
        "name": "signed-for",
        "kind": "agent",
        "key": key,
        "seq": ann.next_sequence(),
    }
    ann.acting.sign("operator.add", fields, place)

    def said(who: Wire, op: str = "operator.add", **other: Any) -> dict[str, Any]:
        return who.ask(op, NO_PARTS, {**fields, **other})

    for who, op, other in (
        (ann, "operator.add", {"name": "another"}),
        (ann, "operator.add", {"kind": "human"}),
        (ann, "operator.add", {"seq": fields["seq"] + 1}),
        (again, "operator.add", {}),
        (ann, "operator.add", {"signed": {**fields["signed"], "salt": "00" * 16}}),
    ):
        with pytest.raises(NotAllowed, match="signed"):
            said(who, op, **other)
    with pytest.raises(NotAllowed, match="signed"):
        ann.ask(
            "operator.revoke",
            NO_PARTS,
            {"name": "signed-for", "seq": fields["seq"], "signed": fields["signed"]},
        )
    assert said(ann)["name"] == "signed-for"
    with pytest.raises(Refused, match="used already"):
        said(ann)
    crash(hf)
    back = Wire(hf, "ann", 56)
    back.sequence = int(fields["seq"]) - 1
    with pytest.raises(Refused, match="used already"):
        back.request("operator.add", name="again", kind="agent", key=key, seq=fields["seq"])


def test_p1_devices_are_added_renamed_and_revoked_as_it_was_signed_and_once(
    hf: Installation,
) -> None:
    ann, again, bob = Wire(hf, "ann", 90), Wire(hf, "ann", 90), Wire(hf, "bob", 90)
    key, other = (signing.show(signing.public(os.urandom(32))) for _ in range(2))
    for op, asked, changed in (
        (
            "device.add",
            {"device": "phone", "key": key},
            ({"key": other}, {"device": "tablet"}, {"operator": "bob"}),
        ),
        (
            "device.rename",
            {"device": "phone", "to": "slate"},
            ({"to": "vm"}, {"device": key}, {"operator": "bob"}),
        ),
        (
            "device.revoke",
            {"device": "slate"},
            ({"device": key}, {"force": True}, {"grants": True}, {"operator": "ann"}),
        ),
    ):
        fields: dict[str, Any] = {**asked, "seq": ann.next_sequence()}
        ann.acting.sign(
            op, fields, ann.acting.learn("machine", ann.request("place", session="machine"))
        )

        def said(who: Wire, op: str, fields: dict[str, Any]) -> dict[str, Any]:
            return who.ask(op, NO_PARTS, fields)

        for who, odd in (
            (again, {}),
            (bob, {}),
            (ann, {"seq": fields["seq"] + 1}),
            (ann, {"signed": {**fields["signed"], "salt": "00" * 16}}),
            *((ann, one) for one in changed),
        ):
            with pytest.raises(NotAllowed, match="signed"):
                said(who, op, {**fields, **odd})
        with pytest.raises(Usage, match="needs the field 'signed'"):
            said(ann, op, {name: value for name, value in fields.items() if name != "signed"})
        assert said(ann, op, fields)["key"] == key
        with pytest.raises(Refused, match="used already"):
            said(ann, op, fields)
    assert [one["revoked"] is not None for one in ann.request("device.ls")["devices"]] == [
        False,
        True,
    ]
    hf.people("reader", rights="read")
    reader = Wire(hf, "reader", 91)
    with pytest.raises(NotAllowed, match="`manage`"):
        reader.request(
            "device.revoke", operator="ann", device=ann.request("device.ls")["devices"][0]["key"]
        )
    for one in (ann, again, bob, reader):
        one.close()


def test_p1_no_operator_uses_up_the_memory_for_the_acts_of_another(hf: Installation) -> None:
    """Ann's answer was lost with a host.

    Before she asks again, bob came with more clients than a keeper remembers.
    """
    room = Lines(hf, "memory")
    Wire(hf, "ann", 56).request("send", session="memory", text="once\n", seq=1)
    Wire(hf, "ann", 57).request("turn", session="memory", act="release")
    for n in range(ORIGINS_KEPT + 1):
        bob = Wire(hf, "bob", 10_000 + n)
        bob.request("send", session="memory", text=f"{n}\n", seq=1)
        bob.close()
    crash(hf)
    bob = Wire(hf, "bob", 9_999)
    bob.request("turn", session="memory", act="release")
    Wire(hf, "ann", 56).request("send", session="memory", text="once\n", seq=1)
    bob.request("seize", session="memory")
    bob.request("send", session="memory", text="last\n")
    room.become("once", *map(str, range(ORIGINS_KEPT + 1)), "last")


def test_a7_an_unfinished_line_blocks_others_also_at_the_next_host(hf: Installation) -> None:
    room = Lines(hf, "half")
    Wire(hf, "ann", 58).request("send", session="half", text="rm -rf pre", seq=1)
    crash(hf)
    bob = Wire(hf, "bob", 59)
    with pytest.raises(Unfinished):
        bob.request("send", session="half", text="mine\n", seq=1)
    Wire(hf, "ann", 58).request("send", session="half", text="cious\n", seq=2)
    room.become("rm -rf precious")
