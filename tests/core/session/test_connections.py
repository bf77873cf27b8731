"""Connections that a session held, and those that do not survive (R4)."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.session.connections import (
    KEPT_MAX,
    Connection,
    facts,
    inner,
    line,
    lost,
    plain,
    rows,
    words,
)

ONE = Connection("tcp", "10.0.0.1:5", "10.0.0.2:5432", 7, "psql", "ann", "hf:a@1#2", 17)
CONNECTIONS = st.builds(
    Connection,
    st.sampled_from(["tcp", "tcp6"]),
    st.from_regex(r"10\.0\.0\.[0-9]:[0-9]{1,4}", fullmatch=True),
    st.from_regex(r"10\.0\.1\.[0-9]:[0-9]{1,4}", fullmatch=True),
    st.integers(1, 1 << 22),
    st.text(max_size=15),
    st.text(max_size=20),
    st.none() | st.text(max_size=20),
    st.integers(0, 1 << 32),
    st.booleans(),
)


@given(st.lists(CONNECTIONS, max_size=300))
def test_r4_the_rows_of_a_manifest_tell_all_that_do_not_survive(found: list[Connection]) -> None:
    kept = json.loads(json.dumps(rows(found)))
    told = lost(kept)
    wanted = [one for one in found if not one.survives]
    assert len(kept) == min(len(found), KEPT_MAX)
    assert sorted(told, key=repr) == sorted(wanted, key=repr) or len(found) > KEPT_MAX
    assert not any(one.survives for one in told)
    if len(found) <= KEPT_MAX:
        assert sum(one.unacked for one in told) == sum(one.unacked for one in wanted)


@given(st.lists(st.recursive(st.none() | st.text(), lambda s: st.dictionaries(st.text(), s))))
def test_damaged_rows_are_left_out(found: list[Any]) -> None:
    assert lost(found) == ()
    assert lost([*found, facts(ONE) | {"survives": False}][-KEPT_MAX:]) == (ONE,)


def test_r4_the_other_end_may_be_written_as_ipv6() -> None:
    ends = [("127.0.0.1:5", "127.0.0.1:80"), ("[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:5")]
    assert inner([*ends, ("127.0.0.1:6", "127.0.0.1:80")]) == set(ends)
    assert plain("[::1]:80") == "[::1]:80" and plain("[::ffff:7f00]:1") == "[::ffff:7f00]:1"


def test_r4_words_for_people() -> None:
    assert line(facts(ONE)) == (
        "10.0.0.1:5 -> 10.0.0.2:5432 (psql 7 of ann, 17 bytes not acknowledged)"
    )
    quiet = facts(ONE._replace(actor="unknown", unacked=0))
    assert line(quiet) == "10.0.0.1:5 -> 10.0.0.2:5432 (psql 7)"
    assert words([quiet] * 7).endswith("; and 2 more") and words([quiet], 3).endswith("and 3 more")
