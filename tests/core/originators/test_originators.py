"""P3: the originators of an act in words, and the conditions of rules about them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.originators.originators import (
    KINDS,
    SHAPED_MAX,
    UNKNOWN,
    Shaped,
    bounded,
    foreign,
    names,
)
from holdfast.core.policy import policy, policy_file
from holdfast.core.policy.conditions import Actor, Request

ACTORS = ("ann", "bob", "eve", UNKNOWN)
ITEMS = st.lists(
    st.builds(
        Shaped,
        st.sampled_from(KINDS),
        st.sampled_from(("a", "b")),
        st.sampled_from(ACTORS),
        st.none() | st.integers(1, 9),
        st.booleans(),
    ),
    max_size=200,
)


@given(ITEMS, st.sampled_from(ACTORS[:3]))
def test_p3_all_originators_are_named_except_the_trigger(items: list[Shaped], actor: str) -> None:
    found = names(items, actor)
    assert set(found) == {one.actor for one in items} - {actor} and len(set(found)) == len(found)
    assert UNKNOWN not in found[:-1]
    kept = bounded(items, actor)
    assert len(kept) <= SHAPED_MAX and len(set(kept)) == len(kept)
    assert set(kept) == set(items) or UNKNOWN in names(kept, actor)
    shown = min(len({one for one in foreign(items, actor) if one.actor != UNKNOWN}), SHAPED_MAX - 1)
    assert len([one for one in foreign(kept, actor) if one.actor != UNKNOWN]) >= shown


def _rules(verdict: str, when: str) -> policy.Policy:
    return policy_file.parse(
        f"""version = 1
[[rule]]
name = "meant"
verdict = "{verdict}"
because = "it is another's"
when = {{ {when} }}
[[rule]]
name = "else"
verdict = "allow"
because = "it is not"
""",
        "test",
    )


@pytest.mark.parametrize(
    ("verdict", "shaped", "expected"),
    [
        ("refuse", Shaped("alias", "ls", "eve"), "refuse"),
        (
            "refuse",
            Shaped("alias", "ls", "eve", sure=False),
            "allow",
        ),  # a guess is no reason to refuse
        ("ask", Shaped("alias", "ls", "eve", sure=False), "ask"),
        ("ask", Shaped("shell", "", UNKNOWN), "ask"),  # perhaps an alias
        ("refuse", Shaped("alias", "ls", "ann"), "allow"),  # one's own
        ("refuse", Shaped("cwd", "/tmp", "eve"), "allow"),  # a different kind
    ],
)
def test_p3_a_rule_may_ask_about_kinds_of_foreign_state(
    verdict: str, shaped: Shaped, expected: str
) -> None:
    request = Request("end", Actor("ann"), shaped=(shaped,))
    assert _rules(verdict, 'shaped = ["alias"]').decide(request, None).verdict == expected


@pytest.mark.parametrize(
    ("by", "expected"), [("others", "refuse"), ("eve", "refuse"), ("bob", "allow")]
)
def test_p3_a_rule_may_ask_about_the_author(by: str, expected: str) -> None:
    request = Request(
        "end",
        Actor("ann"),
        shaped=(Shaped("alias", "ls", "eve"), Shaped("path", "/tmp/bin", "ann")),
    )
    assert _rules("refuse", f'shaped_by = ["{by}"]').decide(request, None).verdict == expected


def test_a_kind_that_does_not_exist_is_said() -> None:
    with pytest.raises(policy_file.BadPolicy, match="is none of alias, function"):
        _rules("ask", 'shaped = ["aliases"]')


def test_p3_a_rule_may_ask_only_about_state_with_a_known_author() -> None:
    """A shell that reports no state is no reason to ask about every line."""
    rules = _rules("ask", 'shaped_known = ["alias", "file"]')
    for items, expected in [
        ((), False),
        ((Shaped("alias", "ls", "eve"),), True),
        ((Shaped("alias", "ls", "eve", sure=False),), True),
        ((Shaped("alias", "ls", "bob"),), False),
        ((Shaped("alias", "ls", UNKNOWN),), False),
        ((Shaped("file", "/x", "eve", sure=False),), False),
        ((Shaped("file", "/x", "eve"),), True),
        ((Shaped("cwd", "/", "eve"),), False),
    ]:
        decision = rules.decide(Request("run", Actor("bob"), shaped=items), None)
        assert (decision.verdict is policy.Verdict.ASK) is expected, items
