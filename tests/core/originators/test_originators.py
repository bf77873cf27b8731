"""P3: who shaped what an act runs on: the words, and what a rule may ask of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import policy
from holdfast.core.conditions import Actor, Request
from holdfast.core.originators import KINDS, SHAPED_MAX, UNKNOWN, Shaped, bounded, foreign, names

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
def test_p3_nobody_is_left_out_and_the_trigger_is_not_its_own_originator(
    items: list[Shaped], actor: str
) -> None:
    found = names(items, actor)
    assert set(found) == {one.actor for one in items} - {actor} and len(set(found)) == len(found)
    assert UNKNOWN not in found[:-1]
    kept = bounded(items, actor)
    assert len(kept) <= SHAPED_MAX and len(set(kept)) == len(kept)
    assert set(kept) == set(items) or UNKNOWN in names(kept, actor)
    shown = min(len({one for one in foreign(items, actor) if one.actor != UNKNOWN}), SHAPED_MAX - 1)
    assert len([one for one in foreign(kept, actor) if one.actor != UNKNOWN]) >= shown


def _rules(verdict: str, when: str) -> policy.Policy:
    return policy.parse(
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
        ),  # nobody is refused on a guess
        ("ask", Shaped("alias", "ls", "eve", sure=False), "ask"),
        ("ask", Shaped("shell", "", UNKNOWN), "ask"),  # it may be an alias
        ("refuse", Shaped("alias", "ls", "ann"), "allow"),  # one's own
        ("refuse", Shaped("cwd", "/tmp", "eve"), "allow"),  # of another kind
    ],
)
def test_p3_a_rule_may_ask_what_of_it_others_shaped(
    verdict: str, shaped: Shaped, expected: str
) -> None:
    request = Request("end", Actor("ann"), shaped=(shaped,))
    assert _rules(verdict, 'shaped = ["alias"]').decide(request, None).verdict == expected


@pytest.mark.parametrize(
    ("by", "expected"), [("others", "refuse"), ("eve", "refuse"), ("bob", "allow")]
)
def test_p3_a_rule_may_ask_whose_it_is(by: str, expected: str) -> None:
    request = Request(
        "end",
        Actor("ann"),
        shaped=(Shaped("alias", "ls", "eve"), Shaped("path", "/tmp/bin", "ann")),
    )
    assert _rules("refuse", f'shaped_by = ["{by}"]').decide(request, None).verdict == expected


def test_a_kind_that_does_not_exist_is_said() -> None:
    with pytest.raises(policy.BadPolicy, match="is none of alias, function"):
        _rules("ask", 'shaped = ["aliases"]')


def test_p3_a_rule_may_ask_only_of_what_is_known_whose_it_is() -> None:
    """A shell that says nothing of itself is no reason to ask about every line of it."""
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
