"""A key that may only read tries every operation of the host's table and every kind of frame.

The lists are made from the table itself, so a new operation is tried automatically. If it answers a
reader, this test fails until the operation is listed here with the reason why that is harmless.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.contract.codec import request_fields
from holdfast.core.contract.table import OPERATIONS
from holdfast.host.requests.turn_and_halt import TURN_ACTS_TO
from holdfast.model.errors import HoldfastError, NotAllowed, PeerFault, Refused
from holdfast.model.rights import READ
from holdfast.wire import frames
from tests.support.installation import SOON_S, Installation, eventually, installation
from tests.support.peers.hostile_client import Lines, Wire
from tests.support.peers.sound_requests import OTHERS_KEY, fields_of

HARMLESS = {
    "ping": "that the host is there",
    "stats": "counters, no content and no names",
    "metrics": "the same, for who may look at the whole machine",
    "ls": "only sessions that it may see",
    "machines.trusted": "names and keys of machines are no secrets, as those of operators",
    "checkpoints": "only of sessions that it may see",
    "reaper": "only sessions that it may see",
    "branches": "only of sessions that it may see",
    "lease": "which machine has a session it may see",
    "get": "what there is to see of a session it may see",
    "who": "who is there is part of seeing it",
    "resolve": "asks for the right of the session that the reference names",
    "view": "the screen",
    "read": "the output",
    "graph": "what runs there is part of seeing it",
    "wait": "changes nothing",
    "attention": "only of sessions that it may see",
    "events": "what happened to what it may see",
    "attach": "to observe: what it types is refused, its size changes nothing",
    "detach": "ends its own attachment",
    "send_away": "its own clients; those of other operators need `turn.seize`",
    "refresh": "paints its own screen anew",
    "turn": "shows it; each act on it needs its own right, but for giving back what one has",
    "operator.ls": "names, keys and rights are no secrets: any operator must know whom to ask",
    "operator.show": "the same of one",
    "operator.revoke": "oneself: whoever lost a key must be able to say so; others need `manage`",
    "device.ls": "its own; others' need `manage`",
    "device.add": "of its own, with its rights; to others, `manage` and all rights it would give",
    "device.rename": "its own; others' need `manage`",
    "device.revoke": "its own; others' need `manage`",
    "envelopes": "its own",
    "ways": "how it comes here itself from elsewhere",
    "place": "which incarnation of a session it may see this is",
    "log": "the record of what it may see",
    "log.export": "the same, to verify it",
    "cover": "a signature over its own keys, of which it has none",
    "approvals": "only what it may decide, or asked itself",
    "approve": "an open question needs `approve`: tests/e2e/authority/test_approvals.py",
    "deny": "the same",
    "withdraw": "its own question; of others there is none: tests/host/acts/test_approvals.py",
    "invite.ls": "its own invitations, or all for who may manage",
    "invite.wait": "of its own invitations",
    "invite.revoke": "its own; others need `manage`",
    "invite.decide": "its own",
    "grant": "of an envelope that proves itself; anything else needs `manage` and `grant`",
}
"""Operations that answer a reader in one way or another, and why that may be."""


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("reader", rights="read")
        made.people("ann")
        made.people("outsider", rights="")
        yield made


@pytest.fixture(scope="module")
def room(hf: Installation) -> Lines:
    return Lines(hf, "target")


@pytest.fixture
def untouched(hf: Installation, room: Lines) -> Iterator[None]:
    """After every attempt the session and the machine are unchanged."""

    def facts() -> tuple[Any, ...]:
        session = hf.get("target")
        people = [
            (o["name"], o["revoked"], len(o["envelopes"]))
            for o in hf.ask("operator.ls")["operators"]
        ]
        return (
            session["id"],
            session["name"],
            session["state"],
            session["size"],
            session["turn"],
            [s["id"] for s in hf.ls("--all")],
            people,
            hf.host_pid,
        )

    before = facts()
    yield
    assert facts() == before
    assert room.lines == []


def test_the_list_of_harmless_operations_names_only_existing_ones() -> None:
    assert set(HARMLESS) <= set(OPERATIONS)
    needs_more = {name for name, op in OPERATIONS.items() if op.right and op.right not in READ}
    assert not needs_more & set(HARMLESS)


@pytest.mark.parametrize("op", sorted(set(OPERATIONS) - set(HARMLESS)))
def test_a5_every_operation_that_does_something_is_refused_by_the_right_it_needs(
    hf: Installation, untouched: None, op: str
) -> None:
    reader = Wire(hf, "reader", 70)
    with pytest.raises(NotAllowed) as refused:
        reader.request(op, **fields_of(op, seq=reader.next_sequence()))
    lacking = refused.value.facts["right"]
    assert lacking not in READ and refused.value.facts["operator"] == "reader", refused.value.facts
    assert not OPERATIONS[op].right or lacking == OPERATIONS[op].right
    assert refused.value.recover
    reader.close()


@pytest.mark.parametrize("act", ["request", *TURN_ACTS_TO])
def test_a5_every_act_on_the_turn_is_refused(hf: Installation, untouched: None, act: str) -> None:
    reader = Wire(hf, "reader", 71)
    with pytest.raises(NotAllowed):
        reader.request("turn", session="target", act=act, to="ann" if act in TURN_ACTS_TO else None)
    reader.request("turn", session="target", act="release")  # holds no turn: no effect
    reader.close()


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("operator.revoke", {"name": "ann"}),
        ("operator.revoke", {"name": "tester", "force": True}),
        ("device.ls", {"operator": "ann"}),
        ("device.add", {"operator": "ann", "device": "mine", "key": OTHERS_KEY}),
        ("device.rename", {"operator": "ann", "device": OTHERS_KEY, "to": "x"}),
        ("device.revoke", {"operator": "ann", "device": OTHERS_KEY, "force": True}),
        ("grant", {"name": "reader", "rights": ["input"]}),
        ("grant", {"name": "reader", "rights": ["observe"]}),
        ("grant", {"name": "outsider", "rights": ["observe"]}),
        ("grant", {"envelope": "hfe1.AAAA.AAAA"}),
    ],
)
def test_a5_the_harmful_side_of_a_harmless_operation_is_refused(
    hf: Installation, untouched: None, op: str, fields: dict[str, Any]
) -> None:
    reader = Wire(hf, "reader", 72)
    with pytest.raises(Refused):
        reader.request(op, **fields)
    reader.close()


def test_a5_an_attached_reader_types_resizes_and_holds_nothing(
    hf: Installation, room: Lines, untouched: None
) -> None:
    """Every kind of frame that a client may send, from an attached reader."""
    reader = Wire(hf, "reader", 73)
    said = reader.attach("target", cols=33, rows=7)
    assert said["observe"] is True and said["size"] == {"cols": 80, "rows": 24}
    tried = {
        frames.INPUT: [
            frames.input_(1, b"EVIL\n", frames.INPUT_ACK),
            frames.input_(1 << 60, b"EVIL\n"),
            frames.input_(2, b"EVIL\n", 0xFF),
        ],
        frames.RESIZE: [
            frames.resize(1, 40, 10),
            frames.resize(1 << 63, 65535, 65535),
            frames.resize(0, 0, 0),
        ],
        frames.CANCEL: [frames.cancel(1), frames.cancel(0xFFFFFFFF)],
        frames.SEEN: [frames.seen(0), frames.seen((1 << 64) - 1)],
        frames.STDIN: [frames.stdin(1, 0, b"EVIL\n"), frames.stdin(9, 1 << 63, b"")],
        frames.CREDIT: [frames.credit(1, 0), frames.credit(9, (1 << 64) - 1)],
        frames.REQUEST: [
            frames.request(9, {"op": "send", "session": "target", "text": "EVIL\n", "seq": 1})
        ],
    }
    for kind in sorted(frames.FROM_CLIENT - {frames.HELLO, frames.PROOF}):  # HELLO and PROOF: below
        for frame in tried[kind]:
            reader.say(frame)
    for number in (1, 1 << 60, 2):
        assert reader.until("refused", number=number)["name"] in ("refused", "not_allowed")
    reader.request("refresh")
    reader.close()
    eventually(lambda: not hf.get("target")["operators"], "the reader to be gone")


@pytest.mark.parametrize("kind", sorted(frames.FROM_CLIENT & {frames.HELLO, frames.PROOF}))
def test_a5_a_second_introduction_does_not_change_the_operator(
    hf: Installation, untouched: None, kind: int
) -> None:
    reader = Wire(hf, "reader", 74)
    reader.say(
        frames.pack_json(
            kind,
            {
                "version": frames.VERSION,
                "lowest": frames.LOWEST,
                "client": 74,
                "operator": "ann",
                "modality": "test",
                "key": OTHERS_KEY,
                "signature": "00",
            },
        )
    )
    assert isinstance(reader.dropped(), PeerFault)


def test_a5_a_reader_does_not_bring_its_ssh_agent(
    hf: Installation, untouched: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The owner of a session's agent socket is asked for every signature made in the session."""
    path = str(tmp_path_factory.mktemp("agent") / "sock")
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(path)
        link = next((hf.home / "run").rglob(f"*{hf.get('target')['id']}*/agent.sock"), None)
        before = os.readlink(link) if link is not None else None
        reader = Wire(hf, "reader", 75)
        reader.attach("target", agent=path)
        links = [os.readlink(one) for one in hf.home.rglob("agent.sock") if one.is_symlink()]
        assert path not in links and (before is None or before in links)
        reader.close()
        ann = Wire(hf, "ann", 76)
        ann.attach("target", agent=path)
        assert path in [
            os.readlink(one) for one in hf.home.rglob("agent.sock") if one.is_symlink()
        ]  # the agent is at the expected place
        ann.close()
    eventually(lambda: not hf.get("target")["operators"], "both to be gone")


def test_a5_an_operator_without_rights_sees_no_session(hf: Installation, room: Lines) -> None:
    outsider = Wire(hf, "outsider", 77)
    for op in sorted(OPERATIONS):
        if op == "approvals":
            assert outsider.request(op, session="target") == {"approvals": []}
        elif "session" in request_fields(OPERATIONS[op].request) and op != "grant":
            with pytest.raises(Refused if op == "cover" else NotAllowed):
                outsider.request(op, **fields_of(op))
    with pytest.raises(NotAllowed):
        outsider.request("resolve", ref=f"hf:{hf.get('target')['id']}")
    with pytest.raises(NotAllowed):
        outsider.request("events")
    assert outsider.request("ls", all=True) == {"sessions": []}
    outsider.close()


@pytest.mark.parametrize("how", ["attach", "read", "events", "wait"])
def test_a5_a_viewer_is_dropped_when_its_right_ends(
    hf: Installation, room: Lines, how: str
) -> None:
    """An expired right also ends running output, not only the next request."""
    name = f"guest-{how}"
    hf.people(name, rights="")
    hf.quick("grant", name, "--rights", "observe", "--session", "target", "--expires", "5s")
    guest = Wire(hf, name, 78)
    if how == "attach":
        guest.attach("target")
        assert isinstance(guest.dropped(), NotAllowed)
        return
    lasting: dict[str, dict[str, Any]] = {
        "read": {"follow": True},
        "events": {"follow": True},
        "wait": {"for": "exit"},
    }
    begun = time.monotonic()
    with pytest.raises(HoldfastError) as ended:
        guest.request(how, session="target", **lasting[how])
    assert isinstance(ended.value, NotAllowed) and time.monotonic() - begun < SOON_S
    guest.close()
