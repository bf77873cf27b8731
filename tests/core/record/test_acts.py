"""Signed bytes of requests: two different requests never have the same bytes (P1)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.contract.table import OPERATIONS
from holdfast.core.record import acts
from holdfast.core.record.record import _SPOKEN, _TYPED

TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from('\0\r\n<>\x1b{}"'), max_size=12)
SENDS = st.fixed_dictionaries(
    {
        "text": TEXT,
        "keys": st.lists(st.sampled_from(["Enter", "Up", "C-c", "x"]), max_size=3),
        "paste": st.booleans(),
    }
)


def typed(fields: dict[str, Any]) -> tuple[str, tuple[str, ...], bool]:
    """The bytes of a request to type: a final Enter is a carriage return, in either spelling."""
    text, keys = fields["text"], tuple(fields["keys"])
    return (
        (text + "\r", (), fields["paste"]) if keys == ("Enter",) else (text, keys, fields["paste"])
    )


@given(SENDS, SENDS)
def test_p1_typed_text_has_one_content(one: dict[str, Any], other: dict[str, Any]) -> None:
    same = (acts.kind("send", one), acts.content("send", one)) == (
        acts.kind("send", other),
        acts.content("send", other),
    )
    assert same == (typed(one) == typed(other))


@given(TEXT)
def test_p1_a_command_is_its_own_bytes(text: str) -> None:
    assert acts.content("run", {"text": text}) == text.encode()


def test_p1_bytes_that_are_no_text_are_signed_as_they_are() -> None:
    assert acts.content("run", {"text": "a\udcff"}) == b"a\xff"
    with pytest.raises(ValueError):
        acts.content("run", {"text": "\ud800"})


@given(
    st.sampled_from(["request", "hand", "grant"]),
    st.none() | TEXT,
    st.sampled_from(["request", "hand", "grant"]),
    st.none() | TEXT,
)
def test_p1_moving_the_turn_names_the_recipient(
    act: str, to: str | None, other: str, whom: str | None
) -> None:
    assert (
        acts.content("turn", {"act": act, "to": to})
        == acts.content("turn", {"act": other, "to": whom})
    ) == ((act, to) == (other, whom))


def test_showing_the_turn_is_no_act_and_every_act_has_a_kind_that_the_record_knows() -> None:
    assert (
        not acts.is_act("turn", {"act": "show"})
        and not acts.is_act("turn", {})
        and acts.is_act("turn", {"act": "release"})
    )
    assert not acts.is_act("view", {})
    assert {
        acts.kind(op, {"paste": paste}) for op in acts.KINDS for paste in (True, False)
    } <= _SPOKEN | _TYPED
    assert (
        set(acts.ON_MACHINE.values()) <= _SPOKEN and not acts.ON_MACHINE.keys() & acts.KINDS.keys()
    )


class Spy(dict[str, Any]):
    """The fields of a request, and which of them were read."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


UNSIGNED = {
    "run": {"timeout", "resume", "for_terminal", "prompt"},
    "send": {"prompt"},
    "turn": {"wait"},
    "end": {"again"},
    "files.ls": {"after", "limit"},
    "files.get": {"from_", "version"},
    "files.search": {"limit"},
}  # as the module's text says


@pytest.mark.parametrize("op", sorted(acts.KINDS))
def test_p1_every_act_on_a_session_signs_all_fields_but_those_that_are_named(op: str) -> None:
    known = {"text": "", "name": "x", "pid": 1, "signal": "TERM", "port": 1, "choice": "end"}
    spy = Spy({**known, "checkpoint": "cp-1", "machine": "box"})
    acts.kind(op, spy)
    acts.content(op, spy)
    names = {field.name for field in fields(OPERATIONS[op].request)}
    in_the_statement = {"session", "seq", "signed", "once"}
    assert names - spy.read - in_the_statement - {"hold", "intent", "expects"} == UNSIGNED.get(
        op, set()
    )


def test_p1_an_act_without_an_entry_is_not_signed() -> None:
    assert acts.CONTENTS.keys() == acts.KINDS.keys()
    assert acts.KINDS.keys() | acts.ON_MACHINE.keys() == {
        one.name for one in OPERATIONS.values() if one.act
    }
    for op in ("view", "fly"):
        with pytest.raises(LookupError, match="needs an entry"):
            acts.content(op, {"session": "lab"})


SURROGATES = st.text(
    st.characters(codec="utf-8") | st.sampled_from("\udc80\udcff\ud800"), max_size=6
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(0, 9)
    | SURROGATES
    | st.lists(SURROGATES | st.integers(0, 3), max_size=3)
)
REQUESTS = st.tuples(
    st.sampled_from(sorted(acts.ON_MACHINE)),
    st.dictionaries(
        st.sampled_from(["name", "rights", "argv", "session", "expires", "key", "seq", "hold"]),
        VALUES,
        max_size=4,
    ),
    st.dictionaries(SURROGATES, SURROGATES, max_size=2),
)


def meant(request: tuple[str, dict[str, Any], dict[str, str]]) -> tuple[Any, ...]:
    op, fields, env = request
    return (
        op,
        sorted(
            (name, repr(value))
            for name, value in fields.items()
            if value is not None and name not in ("seq", "hold")
        ),
        sorted(env.items()),
    )


@given(REQUESTS, REQUESTS)
def test_p1_a_request_to_the_machine_has_one_content(
    one: tuple[str, dict[str, Any], dict[str, str]],
    other: tuple[str, dict[str, Any], dict[str, str]],
) -> None:
    contents = [acts.content(op, {**fields, "env": env}) for op, fields, env in (one, other)]
    assert (contents[0] == contents[1]) == (meant(one) == meant(other))
    assert acts.content(one[0], {**one[1], "env": one[2]}) == contents[0]


def test_p1_the_environment_is_not_recorded() -> None:
    assert b"hunter2" not in acts.content("new", {"argv": ["sh"], "env": {"TOKEN": "hunter2"}})
