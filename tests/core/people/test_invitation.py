"""An invitation admits a single key, once, while open, and never reopens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.core.people import invitation
from holdfast.core.people.invitation import Again, Ask, Closed, Enter, Invitation, Outcome, Wrong
from holdfast.core.people.scope import Scope
from holdfast.model import rights, signing
from holdfast.model.ids import OPERATOR_KINDS
from holdfast.model.limits import INVITATION_GUESSES

KEYS = [signing.public(bytes([n]) * 32) for n in range(1, 5)]
NOW = 1_000_000


def fresh(confirm: bool = False, **more: Any) -> Invitation:
    fields: dict[str, Any] = {
        "id": "4KQ7",
        "verifier": KEYS[0],
        "by": KEYS[1],
        "rights": rights.READ,
        "scope": Scope(),
        "kind": "human",
        "confirm": confirm,
        "made": NOW,
        "expires": NOW + 600,
        **more,
    }
    return Invitation(**fields)


def test_it_lets_one_key_in_and_that_key_may_come_again() -> None:
    one, outcome = invitation.knock(fresh(), KEYS[2], True, NOW)
    assert outcome == Enter()
    used = invitation.enter(one, KEYS[2], NOW)
    assert invitation.knock(used, KEYS[2], True, NOW + 10_000)[1] == Again()
    assert invitation.knock(used, KEYS[3], True, NOW)[1] == Closed("used", "")
    assert invitation.knock(used, KEYS[2], False, NOW) == (used, Wrong(0))


def test_an_invitation_with_confirmation_asks() -> None:
    assert invitation.knock(fresh(True), KEYS[2], True, NOW)[1] == Ask()


def test_guesses_are_counted_and_the_last_guess_voids_the_invitation() -> None:
    one = fresh()
    for left in range(INVITATION_GUESSES - 1, 0, -1):
        one, outcome = invitation.knock(one, KEYS[2], False, NOW)
        assert outcome == Wrong(left) and one.state == "open"
    one, outcome = invitation.knock(one, KEYS[2], False, NOW)
    assert outcome == Wrong(0) and one.state == "void" and "wrong" in one.why
    assert invitation.knock(one, KEYS[2], True, NOW)[1] == Closed("void", one.why)


@pytest.mark.parametrize("late", [0, 1, 1e9])
def test_an_invitation_expires_at_its_time(late: float) -> None:
    one = fresh()
    assert invitation.knock(one, KEYS[2], True, one.expires - 0.001)[1] == Enter()
    assert invitation.knock(one, KEYS[2], True, one.expires + late)[1] == Closed("expired", "")
    assert invitation.knock(one, KEYS[2], False, one.expires + late) == (one, Wrong(0))
    with pytest.raises(ValueError):
        invitation.enter(one, KEYS[2], one.expires + late)
    assert invitation.end(one, "revoked", "", one.expires + late) is one


class Life(RuleBasedStateMachine):
    """Any order of any steps, against the few sentences that must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.now, self.wrong = fresh(), float(NOW), 0
        self.let_in: list[bytes] = []
        self.ended: str | None = None

    @rule(key=st.sampled_from(KEYS), proved=st.booleans(), confirm=st.booleans())
    def a_key_comes(self, key: bytes, proved: bool, confirm: bool) -> None:
        before = self.one
        self.one, outcome = invitation.knock(self.one, key, proved, self.now)
        self._check(outcome, key, proved, before)
        if isinstance(outcome, Enter):
            self.one = invitation.enter(self.one, key, self.now)
            self.let_in.append(key)
            self.ended = "used"

    def _check(self, outcome: Outcome, key: bytes, proved: bool, before: Invitation) -> None:
        open_ = self.ended is None and self.now < self.one.expires
        assert isinstance(outcome, Wrong) == (not proved)
        if not proved:
            self.wrong += open_
            if open_ and self.wrong == INVITATION_GUESSES:
                self.ended = "void"
            elif not open_:
                assert self.one is before, "a joiner without the code changes no ended invitation"
        elif open_:
            assert outcome == Enter()
        else:
            assert outcome == (
                Again() if self.let_in == [key] else Closed(self.ended or "expired", self.one.why)  # type: ignore[arg-type]
            )

    @rule(how=st.sampled_from(["revoked", "refused", "void"]))
    def it_is_ended(self, how: Any) -> None:
        before, open_ = self.one, self.ended is None and self.now < self.one.expires
        self.one = invitation.end(self.one, how, "because", self.now)
        if open_:
            self.ended = how
        else:
            assert self.one is before

    @rule(seconds=st.sampled_from([0.5, 30.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def it_is_stored_and_read(self) -> None:
        self.one = invitation.read(json.loads(json.dumps(invitation.write(self.one))))

    @invariant()
    def one_key_at_most(self) -> None:
        assert len(self.let_in) <= 1
        assert (self.one.joiner is not None) == bool(self.let_in) == (self.one.state == "used")
        assert self.one.guesses <= INVITATION_GUESSES
        assert self.one.at(self.now) == (
            self.ended or ("expired" if self.now >= self.one.expires else "open")
        )


TestLife = Life.TestCase


@given(
    st.sampled_from(sorted(invitation.write(fresh()))),
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.lists(st.text(max_size=3), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
)
def test_a_damaged_row_is_no_invitation_or_a_sound_one(field: str, value: Any) -> None:
    row = {**invitation.write(fresh()), field: value}
    try:
        one = invitation.read(row)
    except ValueError:
        return
    assert (
        one.kind in OPERATOR_KINDS and one.rights <= rights.ADMIN and one.state in invitation.STORED
    )
    with pytest.raises(ValueError):
        invitation.read({k: v for k, v in row.items() if k != field})


def test_an_invitation_for_a_device_is_stored_and_unreadable_for_older_releases() -> None:
    one = fresh(rights=frozenset(), of="ann", device="phone")
    stored = json.loads(json.dumps(invitation.write(one)))
    assert invitation.read(stored) == one and stored["v"] == 2, (
        "a host of before must not take it for an invitation of an operator"
    )
    for odd in ({"v": 1}, {"of": ""}, {"of": 7}, {"device": None}, {"rights": ["observe"]}):
        with pytest.raises(ValueError):
            invitation.read({**stored, **odd})
    with pytest.raises(ValueError):
        invitation.read({**invitation.write(fresh()), "v": 2, "of": "ann", "device": ""})
