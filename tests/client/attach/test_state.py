"""The pure state machine of attach: events in, effects out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.client.attach import events as e
from holdfast.client.attach import overlay
from holdfast.client.attach.notices import Notices
from holdfast.client.attach.prefix import Prefix
from holdfast.client.attach.state import COVER, KINDS, LIST, STEER, AttachState
from holdfast.client.gone import HostGone
from holdfast.model.errors import NotFound, PeerFault, TimedOut, Unavailable
from holdfast.model.limits import INPUT_IN_FLIGHT_BYTES
from holdfast.wire import frames

PREFIX = b"\x1c"


def answer(**more: Any) -> dict[str, Any]:
    body = {"id": "s", "name": "work", "acked": 0, "resume": None, "epoch": 1, "seen": None}
    return {**body, **more}


def made(machine: str | None = None, observe: bool = False, **more: Any) -> AttachState:
    state = AttachState("s", "ann", Prefix(PREFIX, "C-\\"), observe, machine)
    state.size = (80, 24)
    state.handle(e.Attached(answer(**more), ring=False), 0.0)
    screen(state)
    return state


def screen(state: AttachState, acked: int = 0, now: float = 0.0) -> list[e.Effect]:
    payload = frames.screen(0, acked, frames.SCREEN_ATTACH, 80, 24, b"SCREEN")[frames.HEADER.size :]
    return state.handle(e.Frame(frames.SCREEN, payload), now)


def event(state: AttachState, now: float = 0.0, **body: Any) -> list[e.Effect]:
    payload = frames.pack_json(frames.EVENT, body)[frames.HEADER.size :]
    return state.handle(e.Frame(frames.EVENT, payload), now)


def reply(state: AttachState, number: int, body: dict[str, Any], ok: bool = True) -> list[e.Effect]:
    payload = frames.reply(number, body, ok)[frames.HEADER.size :]
    return state.handle(e.Frame(frames.REPLY, payload), 0.0)


def requests(effects: list[e.Effect]) -> list[tuple[int, dict[str, Any]]]:
    return [
        frames.read_request(one.frame[frames.HEADER.size :])
        for one in effects
        if isinstance(one, e.Send) and one.frame[4] == frames.REQUEST
    ]


def inputs(effects: list[e.Effect]) -> list[tuple[int, bytes]]:
    found = [
        frames.read_input(one.frame[frames.HEADER.size :])
        for one in effects
        if isinstance(one, e.Send) and one.frame[4] == frames.INPUT
    ]
    return [(sequence, data) for sequence, _, data in found]


def test_a_key_is_sent_at_once_and_signed_for_later() -> None:
    state = made()
    assert inputs(state.handle(e.Keys(b"k"), 10.0)) == [(1, b"k")]
    assert state.deadline() == 11.0
    state.handle(e.Keys(b"\r"), 10.5)
    assert state.deadline() == pytest.approx(10.52), "a line is signed for soon after its echo"
    [cover] = state.handle(e.Tick(), 10.6)
    assert isinstance(cover, e.SendCover) and (cover.keys.first, cover.keys.last) == (1, 2)
    assert cover.number % KINDS == COVER and state.deadline() is None


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            b"d",
            e.Finish(
                "[holdfast] detached from work; it keeps running. `holdfast attach work` comes "
                "back."
            ),
        ),
        (b"\x1a", e.Suspend()),
        (b"z", e.Notice("no such command; C-\\ ? shows help")),
        (b"g", e.Notice("nobody asks for the turn")),
        (
            b"y",
            e.Notice(
                "nothing waits for approval here; `holdfast approvals` lists all waiting acts"
            ),
        ),
    ],
    ids=["detach", "suspend", "unknown", "grant", "approvals"],
)
def test_a_prefix_command_has_its_effect(keys: bytes, expected: e.Effect) -> None:
    state = made()
    effects = state.handle(e.Keys(PREFIX + keys), 1.0)
    if requests(effects):  # the notice waits for the requested screen
        effects = screen(state, now=1.0)
    assert expected in effects


def test_keys_after_a_detach_are_not_sent() -> None:
    state = made()
    effects = state.handle(e.Keys(b"a" + PREFIX + b"dxyz"), 1.0)
    assert inputs(effects) == [(1, b"a")] and isinstance(effects[-1], e.Finish)


def test_the_prefix_twice_and_inside_a_paste_is_typed() -> None:
    state = made()
    assert inputs(state.handle(e.Keys(PREFIX * 2), 1.0)) == [(1, PREFIX)]
    paste = b"\x1b[200~" + PREFIX + b"d\x1b[201~"
    assert inputs(state.handle(e.Keys(paste), 1.0)) == [(2, paste)]


def test_an_observer_sends_no_keys() -> None:
    state = made(observe=True)
    effects = state.handle(e.Keys(b"k"), 1.0)
    assert effects == [e.Notice("you only observe; attach again without --observe to type")]


@pytest.mark.parametrize(
    ("epoch", "lost", "again"),
    [(1, 0, [(1, b"rm x\r")]), (2, 1, []), (3, 1, []), (2, 0, [(1, b"rm x\r")])],
    ids=["the same", "begun anew", "begun anew and restored", "restored from a checkpoint"],
)
def test_r6_input_for_a_lost_incarnation_is_not_typed_into_the_next(
    epoch: int, lost: int, again: list[tuple[int, bytes]]
) -> None:
    state = made()
    assert inputs(state.handle(e.Keys(b"rm x\r"), 1.0)) == [(1, b"rm x\r")]
    state.handle(e.Lost(HostGone("gone", reason="")), 2.0)
    effects = state.handle(e.Attached(answer(epoch=epoch, lost=lost), ring=False), 3.0)
    assert inputs(effects) == again
    assert inputs(state.handle(e.Keys(b"k"), 4.0)) == [(2, b"k")], "later input is typed"


def test_help_covers_the_screen_until_a_key() -> None:
    state = made()
    [page] = state.handle(e.Keys(PREFIX + b"?"), 1.0)
    assert isinstance(page, e.Draw) and state.covered
    output = frames.output_header(0, 3, 0, 3)[frames.HEADER.size :] + b"out"
    assert state.handle(e.Frame(frames.OUTPUT, output), 1.0) == [], "output waits behind the page"
    assert not any(isinstance(one, e.Write) for one in screen(state))
    [(_, body)] = requests(state.handle(e.Keys(b"q"), 1.0))
    assert body == {"op": "refresh"} and not state.covered
    assert e.Write(b"SCREEN") in screen(state)


def test_a6_a_notice_that_was_cut_can_be_read_whole() -> None:
    state, told = made(), "you have the turn; " + "eve's job, " * 30 + "the end"
    state.notices.say(told, 1.0, covered=False)
    cut = overlay.notice(told, 40, 24, " ... C-\\ m ")
    assert b" ... C-\\ m " in cut and b"the end" not in cut
    [page] = state.handle(e.Keys(PREFIX + b"m"), 1.0)
    assert isinstance(page, e.Draw) and f"  {told}" in page.lines
    drawn = overlay.page(page.lines, 40, 24)
    assert drawn.count(b"eve's") == 30 and b"the end" in drawn
    assert all(len(row) < 40 for row in drawn.partition(b"holdfast")[2].split(b"\r\n"))


def test_a4_attaching_to_a_halted_session_says_so() -> None:
    state = AttachState("s", "ann", Prefix(PREFIX, "C-\\"), False, None)
    state.size = (80, 24)
    state.handle(e.Attached(answer(state="halted"), ring=False), 0.0)
    assert e.Notice("work is halted; C-\\ R resumes it") in screen(state)
    assert not any(isinstance(one, e.Notice) for one in screen(made(state="live")))


def test_a4_a_notice_outlives_a_screen_that_comes_unasked() -> None:
    """The size of another terminal makes the host send a second screen at once."""
    state = AttachState("s", "ann", Prefix(PREFIX, "C-\\"), False, None)
    state.size = (80, 24)
    state.handle(e.Attached(answer(state="halted"), ring=False), 0.0)
    told = e.Notice("work is halted; C-\\ R resumes it")
    assert told in screen(state)
    assert told in screen(state), "the second screen has wiped it"


def test_a_screen_that_was_requested_replaces_the_notice() -> None:
    """As after the answer to a question: the notice about it is out of date."""
    notices = Notices()
    notices.came(None)
    assert notices.say("bot waits for approval", 0.0, False)
    notices.requested(reminds=False)
    assert notices.came(None) is None


def test_a_notice_waits_for_the_screen_that_would_wipe_it() -> None:
    state = made()
    state.handle(e.Redraw(), 1.0)
    assert event(state, event="halted", operator="bob", how="cgroup") == []
    shown = screen(state, now=2.0)
    assert e.Notice("bob halted everything (cgroup); C-\\ R resumes") in shown
    assert state.deadline() == 4.0
    assert [body for _, body in requests(state.handle(e.Tick(), 4.0))] == [{"op": "refresh"}]


def test_a_lost_host_is_tried_again_and_keys_are_sent_again_once() -> None:
    state = made()
    state.handle(e.Keys(b"a"), 1.0)
    state.handle(e.Keys(b"b"), 1.0)
    assert state.handle(e.Lost(HostGone("gone")), 2.0) == [e.Disconnect()] and not state.connected
    assert state.handle(e.Keys(b"c"), 2.0) == []
    at = state.deadline()
    assert at is not None and e.Connect() in state.handle(e.Tick(), at)
    assert e.Disconnect() in state.handle(e.AttachFailed(Unavailable("no")), at)
    effects = state.handle(e.Attached(answer(acked=1), ring=False), at + 1)
    assert inputs(effects) == [(2, b"b"), (3, b"c")], "the acknowledged key is not repeated"


def test_a_long_outage_is_shown_and_the_next_attach_asks_for_a_fresh_screen() -> None:
    state = made()
    assert state.resume_offset(None) == 0
    state.handle(e.Lost(HostGone("gone")), 2.0)
    effects = state.handle(e.AttachFailed(TimedOut("no")), 4.0)
    assert e.Notice("the host does not answer; the session keeps running; trying again") in effects
    assert state.resume_offset(7) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [(HostGone("bye", "down"), 5), (PeerFault("odd"), 5), (HostGone("no", "admission"), 4)],
)
def test_some_errors_end_attach(error: Any, code: int) -> None:
    *_, last = made().handle(e.Lost(error), 1.0)
    assert isinstance(last, e.Finish) and last.code == code


def test_a_session_that_vanished_during_an_outage_is_not_a_failure() -> None:
    state = made()
    state.handle(e.Lost(HostGone("gone")), 1.0)
    [last] = state.handle(e.AttachFailed(NotFound("it ended")), 2.0)
    assert isinstance(last, e.Finish) and last.code == 0 and "it ended" in last.message


def sessions(*ids: str) -> dict[str, Any]:
    return {"sessions": [{"id": i, "name": i, "state": "live", "idle_s": 0.0} for i in ids]}


def test_a_switch_takes_the_keys_typed_meanwhile_to_the_new_session() -> None:
    state = made()
    state.handle(e.Keys(b"old"), 1.0)
    effects = state.handle(e.Keys(PREFIX + b"nnew"), 1.0)
    [(number, body)] = requests(effects)
    assert body == {"op": "ls"} and number % KINDS == LIST and not inputs(effects)
    effects = reply(state, number, sessions("s", "t"))
    assert isinstance(effects[0], e.SendCover) and effects[1:] == [e.CloseRing(), e.Attach()]
    assert state.session == "t" and not inputs(effects)
    assert inputs(state.handle(e.Attached(answer(id="t", name="t"), False), 1.0)) == [(2, b"new")]
    [(number, _)] = requests(state.handle(e.Keys(PREFIX + b"l"), 2.0))
    assert e.Attach() in reply(state, number, sessions("s", "t")) and state.session == "s"


def test_a_switch_that_fails_returns_to_the_old_session() -> None:
    state = made()
    [(number, _)] = requests(state.handle(e.Keys(PREFIX + b"s"), 1.0))
    [page] = reply(state, number, sessions("s", "t"))
    assert isinstance(page, e.Draw) and state.covered
    assert e.Attach() in state.handle(e.Keys(b"2"), 1.0) and not state.covered
    assert state.handle(e.AttachFailed(NotFound("no t")), 1.0)[0] == e.Attach()
    assert state.session == "s"
    state.handle(e.Attached(answer(), False), 1.0)
    assert e.Notice("no t") in screen(state)


def test_a_refused_key_is_not_sent_again() -> None:
    state = made()
    state.handle(e.Keys(b"a"), 1.0)
    said = event(state, event="refused", number=1, name="turn_held", message="bob has the turn")
    assert said == [e.Notice("bob has the turn; C-\\ a asks for it, C-\\ t takes it")]
    state.handle(e.Lost(HostGone("gone")), 2.0)
    assert not inputs(state.handle(e.Attached(answer(), False), 3.0))


def test_a_turn_command_is_a_signed_act_with_a_number() -> None:
    state = made()
    [act] = state.handle(e.Keys(PREFIX + b"t"), 1.0)
    assert isinstance(act, e.SendAct) and (act.op, act.fields["seq"]) == ("seize", 1)
    assert act.number % KINDS == STEER and act.target.session == "s"


def test_a_stale_signature_is_made_again_for_the_new_place() -> None:
    state = made()
    state.handle(e.Keys(b"a\r"), 1.0)
    [first] = state.handle(e.Tick(), 2.0)
    assert isinstance(first, e.SendCover)
    [(number, body)] = requests(reply(state, first.number, {"name": "stale"}, ok=False))
    assert body == {"op": "place", "session": "s"}
    [again] = reply(state, number, {"seen": "h"})
    assert isinstance(again, e.SendCover)
    assert again.keys == first.keys and again.target.seen == "h"


def test_the_last_output_is_shown_before_the_end() -> None:
    state = made()
    assert event(state, event="ended", exit_code=3) == [e.Drain()]
    assert state.handle(e.Drained(), 1.0) == [e.Finish("[holdfast] work ended (exit code 3)")]


def test_output_that_rolled_off_after_the_end_is_not_waited_for() -> None:
    """The host has forgotten this client: a request for a screen would be refused."""
    state = made()
    event(state, event="ended", exit_code=3)
    [finish] = state.handle(e.Missed(), 1.0)
    assert isinstance(finish, e.Finish) and finish.code == 0
    assert finish.message.startswith("[holdfast] work ended (exit code 3); ")


def test_leaving_signs_the_last_keys_and_says_goodbye() -> None:
    state = made()
    state.handle(e.Keys(b"a"), 1.0)
    effects = state.handle(e.Leave(), 1.1)
    assert isinstance(effects[0], e.SendCover)
    assert requests(effects) == [(state.last_request, {"op": "detach"})]


class AnyOrder(RuleBasedStateMachine):
    """A host that dies, refuses nothing and acknowledges in order gets each key once, in order."""

    @initialize()
    def begin(self) -> None:
        self.state = made()
        self.now = 0.0
        self.typed = b""
        self.taken: dict[int, bytes] = {}  # by the host, by sequence: a repeat is recognised
        self.acked = 0

    def apply(self, event: e.Event) -> None:
        self.now += 0.01
        for sequence, data in inputs(self.state.handle(event, self.now)):
            assert self.state.connected, "a key was sent without a connection"
            assert self.taken.setdefault(sequence, data) == data, "a number was used twice"

    @rule(data=st.binary(min_size=1, max_size=40).map(lambda data: data.replace(PREFIX, b"x")))
    def types(self, data: bytes) -> None:
        if b"\x1b" in data:
            return
        self.typed += data
        self.apply(e.Keys(data))

    @rule()
    def pastes_much(self) -> None:
        data = b"p" * (INPUT_IN_FLIGHT_BYTES // 2)
        self.typed += data
        self.apply(e.Keys(data))

    @precondition(lambda self: self.state.connected)
    @rule(data=st.data())
    def acknowledges(self, data: st.DataObject) -> None:
        self.acked = data.draw(st.integers(self.acked, max(self.taken, default=0)))
        payload = frames.output_header(0, 0, self.acked, 0)[frames.HEADER.size :]
        self.apply(e.Frame(frames.OUTPUT, payload))

    @precondition(lambda self: self.state.connected)
    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        """Keys that were sent and not acknowledged may be lost with the host."""
        self.apply(e.Lost(HostGone("gone")))
        kept = data.draw(st.integers(self.acked, max(self.taken, default=0)))
        self.taken = {n: d for n, d in self.taken.items() if n <= kept}
        self.acked = kept

    @precondition(lambda self: not self.state.connected)
    @rule(works=st.booleans())
    def comes_back(self, works: bool) -> None:
        if works:
            self.apply(e.Attached(answer(acked=self.acked), ring=False))
        else:
            self.apply(e.AttachFailed(Unavailable("not yet")))

    @rule()
    def waits(self) -> None:
        if (at := self.state.deadline()) is not None:
            self.now = max(self.now, at)
            self.apply(e.Tick())

    @invariant()
    def keys_arrive_in_order_without_a_gap(self) -> None:
        if hasattr(self, "state"):
            assert sorted(self.taken) == list(range(1, len(self.taken) + 1))
            got = b"".join(self.taken[n] for n in sorted(self.taken))
            assert self.typed.startswith(got)
            if self.state.connected and not self.state.unacked.waiting:
                assert got == self.typed

    @invariant()
    def it_always_knows_when_to_act_next(self) -> None:
        if hasattr(self, "state") and not self.state.connected:
            assert self.state.deadline() is not None


TestAnyOrder = AnyOrder.TestCase


def test_s3_the_title_names_the_session_and_the_operator_that_writes() -> None:
    state = AttachState("s", "ann", Prefix(PREFIX, "C-\\"), machine="vm", titled=True)

    def titles(effects: list[e.Effect]) -> list[str]:
        return [one.text for one in effects if isinstance(one, e.Title)]

    state.handle(e.Attached(answer(turn={"holder": "bob"}), ring=False), 0.0)
    assert titles(screen(state)) == ["vm/work: bob writes"]
    assert titles(event(state, event="turn", holder=None, previous="bob", how="free")) == [
        "vm/work: the turn is free"
    ]
    assert titles(event(state, event="turn", holder="ann", how="write")) == ["vm/work: you write"]
    assert titles(event(state, event="turn", holder="ann", how="write")) == []
    assert titles(event(state, event="renamed", name="play")) == ["vm/play: you write"]
    assert titles(screen(state)) == ["vm/play: you write"], "a screen may bring another title"
    assert titles(screen(made(turn={"holder": "bob"}))) == [], "only if it is wanted"


def question(id: str, session: str, **more: Any) -> dict[str, Any]:
    facts = {"name": session, "text": "rm x", "operator": "bot", "because": "it deletes"}
    return {"id": id, "session": session, "asked": 1.0, "counts": True, **facts, **more}


def test_p4_a_connection_follows_the_waits_of_other_sessions_once() -> None:
    for others, ops in (
        ("none", []),
        ("approval", ["approvals"]),
        ("all", ["approvals", "attention"]),
    ):
        state = AttachState("s", "ann", Prefix(PREFIX, "C-\\"), others=others)
        state.size = (80, 24)
        attach = e.Attached(answer(), ring=False)
        assert [body["op"] for _, body in requests(state.handle(attach, 0.0))] == ops
        assert requests(state.handle(attach, 1.0)) == [], "another session, on this connection"
        state.handle(e.Lost(HostGone("gone")), 2.0)
        assert [body["op"] for _, body in requests(state.handle(attach, 3.0))] == ops


def test_p4_questions_of_other_sessions_are_told_once_and_can_be_shown() -> None:
    state = AttachState("s", "ann", Prefix(PREFIX, "C-\\"), others="approval")
    state.size = (80, 24)
    state.handle(e.Attached(answer(), ring=False), 0.0)
    screen(state)
    mine, own = question("q1", "s"), question("q2", "t", operator="ann")
    assert event(state, event="approvals", approvals=[mine, own]) == []
    other = question("q3", "t")
    [notice] = event(state, event="approvals", approvals=[mine, own, other])
    said = "t: bot waits for approval (C-\\ y to see and decide): it deletes"
    assert notice == e.Notice(said)
    assert event(state, event="approvals", approvals=[other]) == []
    [(_, body)] = requests(state.handle(e.Keys(PREFIX + b"y"), 1.0))
    assert body == {"op": "approvals", "id": "q3"}


def test_s2_waits_of_other_sessions_are_told_once() -> None:
    state = AttachState("s", "ann", Prefix(PREFIX, "C-\\"), others="all")
    state.size = (80, 24)
    state.handle(e.Attached(answer(), ring=False), 0.0)
    screen(state)
    facts = {"why": "", "pid": 1, "since": 1.0, "foreground": "sudo x", "exit_code": None}
    wait = {"session": "t", "name": "other", "kind": "secret", **facts}
    [notice] = event(state, event="attention", body=wait)
    assert notice == e.Notice("other: waits for a secret (sudo x); C-\\ s goes there")
    assert event(state, event="attention", body=wait) == []
    assert event(state, event="attention", body={**wait, "session": "s"}) == [], "it is attached"
