"""Envelopes (A5): chains only narrow, forgeries and edits give no rights, revocation is final."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.core.people import envelope, scope
from holdfast.core.people.envelope import Allowed, Denied, Facts, Link, Malformed, Revoked, Scope
from holdfast.model import base64url, canonical, signing
from holdfast.model.errors import NotAllowed, Usage
from holdfast.model.rights import ADMIN, RIGHTS
from tests.support.examples import examples

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "envelopes.json").read_text())
PRIVATE = [bytes([n]) * 32 for n in range(1, 12)]
KEYS = [signing.public(private) for private in PRIVATE]
ROOT = KEYS[0]
SESSIONS = ["0123456789ab", "zzzzzzzzzzzz"]
NOW = 1_000_000
NAMES = ["git", "ls", "read-only"]

RIGHT = st.sampled_from(sorted(RIGHTS))
SCOPES = st.builds(
    Scope,
    machine=st.sampled_from([None, None, ROOT, KEYS[9]]),
    session=st.sampled_from([None, None, *SESSIONS]),
    commands=st.none() | st.frozensets(st.sampled_from(NAMES), min_size=1),
    not_before=st.none() | st.integers(NOW - 20, NOW + 5),
    expires=st.none() | st.integers(NOW + 6, NOW + 30),
    rate=st.none() | st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
FACTS = st.builds(
    Facts,
    st.sampled_from([ROOT, KEYS[9]]),
    st.sampled_from([None, *SESSIONS]),
    st.none() | st.lists(st.frozensets(st.sampled_from([*NAMES, "rm"])), max_size=2).map(tuple),
)
TIMES = st.integers(NOW - 25, NOW + 35)


def link(number: int, rights: Any, within: Scope, above: Link | None, **changes: Any) -> Link:
    """A link with any content, signed by hand."""
    fields = {
        "v": 1,
        "issuer": signing.show(KEYS[number]),
        "holder": signing.show(KEYS[number + 1]),
        "rights": sorted(rights),
        "scope": within.show(),
        "nonce": base64url.encode(bytes(16)),
    }
    if above is not None:
        fields["parent"] = base64url.encode(envelope.link_id(above.body))
    body = canonical.encode({**fields, **changes})
    return Link(body, signing.sign(PRIVATE[number], "envelope/1", body))


def by_hand(steps: list[tuple[frozenset[str], Scope]]) -> tuple[Link, ...]:
    chain: list[Link] = []
    for number, (rights, within) in enumerate(steps):
        chain.append(link(number, rights, within, chain[-1] if chain else None))
    return tuple(chain)


@st.composite
def chains(draw: st.DrawFn, least: int = 1, most: int = 4) -> tuple[Link, ...]:
    """Valid envelopes, made by delegation."""
    chain: tuple[Link, ...] = ()
    rights: frozenset[str] = ADMIN
    for number in range(draw(st.integers(least, most))):
        rights = draw(st.frozensets(st.sampled_from(sorted(rights)), min_size=1)) | {"grant"}
        wanted = draw(SCOPES)
        if chain:
            above = envelope.read(chain[-1].body).scope
            fits = {
                name: limit
                for name, limit in wanted._asdict().items()
                if scope.widening(above, scope.inherit(above, Scope(**{name: limit}))) is None
            }
            wanted = Scope(**fits)
            whole = scope.inherit(above, wanted)
            assume(
                whole.not_before is None
                or whole.expires is None
                or whole.not_before < whole.expires
            )
        chain = envelope.delegate(
            PRIVATE[number], chain, KEYS[number + 1], rights, wanted, bytes([number]) * 16
        )
    return chain


def holder(chain: tuple[Link, ...]) -> bytes:
    return KEYS[len(chain)]


def check(
    chain: Sequence[Link],
    roots: Collection[bytes],
    holder: bytes,
    right: str,
    facts: Facts,
    now: float,
    revoked: Revoked = Revoked(),
) -> Allowed | Denied:
    """Verify an envelope as it was sent, and decide at once."""
    try:
        verified = envelope.verify(chain, roots)
    except envelope.Malformed as e:
        return Denied(e.code, str(e))
    return envelope.judge(verified, holder, right, facts, now, revoked)


def allows(
    chain: tuple[Link, ...], right: str, facts: Facts, now: float, revoked: Revoked = Revoked()
) -> bool:
    return isinstance(check(chain, [ROOT], holder(chain), right, facts, now, revoked), Allowed)


# ------------------------------------------------------------ narrowing


@settings(deadline=None)
@given(chains(least=2), RIGHT, FACTS, TIMES)
def test_a5_no_chain_allows_an_act_that_a_prefix_of_it_refuses(
    chain: tuple[Link, ...], right: str, facts: Facts, now: int
) -> None:
    for length in range(1, len(chain)):
        if allows(chain, right, facts, now):
            assert allows(chain[:length], right, facts, now)


@settings(deadline=None)
@given(chains())
def test_a5_no_link_outlives_its_parent(chain: tuple[Link, ...]) -> None:
    terms = envelope.verify(chain, [ROOT]).links
    for above, below in zip(terms, terms[1:], strict=False):
        assert above.scope.expires is None or (
            below.scope.expires is not None and below.scope.expires <= above.scope.expires
        )
        assert above.scope.not_before is None or (
            below.scope.not_before is not None and below.scope.not_before >= above.scope.not_before
        )
        assert below.rights <= above.rights


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.frozensets(RIGHT, min_size=1), SCOPES), min_size=2, max_size=4),
    RIGHT,
    FACTS,
    TIMES,
)
def test_a5_signed_by_hand_it_still_only_narrows(
    steps: list[tuple[frozenset[str], Scope]], right: str, facts: Facts, now: int
) -> None:
    """For any signed chain: every part allows what the whole allows, and each giver has `grant`."""
    chain = by_hand(steps)
    if allows(chain, right, facts, now):
        assert all(allows(chain[:length], right, facts, now) for length in range(1, len(chain)))
        assert all("grant" in rights for rights, _ in steps[:-1])


@settings(deadline=None)
@given(SCOPES, SCOPES, RIGHT, FACTS, TIMES)
def test_a_scope_that_is_not_wider_refuses_all_that_the_other_refuses(
    outer: Scope, inner: Scope, right: str, facts: Facts, now: int
) -> None:
    if scope.widening(outer, inner) is None and scope.outside(outer, right, facts, now) is not None:
        assert scope.outside(inner, right, facts, now) is not None


WIDER = {
    "rights": ({"observe", "grant", "halt"}, Scope()),
    "machine": ({"observe"}, Scope(machine=KEYS[9])),
    "session": ({"observe"}, Scope(session=SESSIONS[1])),
    "commands": ({"observe"}, Scope(commands=frozenset(["git", "rm"]))),
    "not_before": ({"observe"}, Scope(not_before=NOW - 11)),
    "expires": ({"observe"}, Scope(expires=NOW + 11)),
    "burst": ({"observe"}, Scope(rate=(11, 100))),
    "refill": ({"observe"}, Scope(rate=(10, 59))),
}
NARROW = Scope(ROOT, SESSIONS[0], frozenset(["git", "ls"]), NOW - 10, NOW + 10, (10, 60))


@pytest.mark.parametrize("what", WIDER)
def test_a5_widening_is_refused_when_made_and_when_forged(what: str) -> None:
    first = envelope.delegate(PRIVATE[0], (), KEYS[1], ["observe", "grant"], NARROW, bytes(16))
    rights, wanted = WIDER[what]
    with pytest.raises(NotAllowed):
        envelope.delegate(PRIVATE[1], first, KEYS[2], rights, wanted, bytes(16))
    forged = link(1, rights, scope.inherit(NARROW, wanted), first[0])
    denied = check((*first, forged), [ROOT], KEYS[2], "observe", Facts(ROOT, SESSIONS[0]), NOW)
    assert isinstance(denied, Denied) and denied.code == "widens"


@pytest.mark.parametrize("name", Scope._fields)
def test_a5_a_limit_cannot_be_dropped(name: str) -> None:
    first = by_hand([(frozenset(["observe", "grant"]), NARROW)])
    forged = link(1, ["observe"], NARROW._replace(**{name: None}), first[0])
    denied = check((*first, forged), [ROOT], KEYS[2], "observe", Facts(ROOT, SESSIONS[0]), NOW)
    assert isinstance(denied, Denied) and denied.code == "widens" and name in denied.reason
    handed = envelope.delegate(PRIVATE[1], first, KEYS[2], ["observe"], Scope(), bytes(16))
    last = envelope.verify(handed, [ROOT]).last
    assert (last.rights, last.scope) == (frozenset(["observe"]), NARROW)


def test_only_a_holder_with_grant_hands_on() -> None:
    first = by_hand([(frozenset(["observe"]), Scope())])
    with pytest.raises(NotAllowed, match="grant"):
        envelope.delegate(PRIVATE[1], first, KEYS[2], ["observe"], Scope(), bytes(16))
    denied = check(
        (*first, link(1, ["observe"], Scope(), first[0])),
        [ROOT],
        KEYS[2],
        "observe",
        Facts(ROOT),
        NOW,
    )
    assert isinstance(denied, Denied) and denied.code == "no_grant"


def test_only_the_holder_hands_on() -> None:
    first = by_hand([(ADMIN, Scope())])
    with pytest.raises(NotAllowed, match="another key"):
        envelope.delegate(PRIVATE[5], first, KEYS[2], ["observe"], Scope(), bytes(16))


def test_a_chain_has_a_bounded_length() -> None:
    chain: tuple[Link, ...] = ()
    for number in range(envelope.LINKS_MAX):
        chain = envelope.delegate(
            PRIVATE[number], chain, KEYS[number + 1], ADMIN, Scope(), bytes(16)
        )
    assert allows(chain, "end", Facts(ROOT), NOW)
    with pytest.raises(NotAllowed, match="at most"):
        envelope.delegate(PRIVATE[8], chain, KEYS[9], ADMIN, Scope(), bytes(16))
    longer = (*chain, link(8, ADMIN, Scope(), chain[-1]))
    assert not allows(longer, "end", Facts(ROOT), NOW)
    with pytest.raises(Malformed):
        envelope.decode(envelope.encode(longer))


# ------------------------------------------------------------ forging


@settings(deadline=None, max_examples=examples(60))
@given(chains(), st.data())
def test_a5_any_flipped_bit_is_refused(chain: tuple[Link, ...], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(chain) - 1))
    part = data.draw(st.sampled_from(["body", "signature"]))
    changed = bytearray(getattr(chain[at], part))
    bit = data.draw(st.integers(0, 8 * len(changed) - 1))
    changed[bit // 8] ^= 1 << bit % 8
    broken = (*chain[:at], chain[at]._replace(**{part: bytes(changed)}), *chain[at + 1 :])
    with pytest.raises(Malformed):
        envelope.verify(broken, [ROOT])


@settings(deadline=None, max_examples=examples(60))
@given(chains(), st.data())
def test_a5_any_flipped_bit_of_the_text_is_refused(
    chain: tuple[Link, ...], data: st.DataObject
) -> None:
    raw = bytearray(envelope.encode(chain).encode())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Malformed):
        envelope.verify(envelope.decode(raw.decode("latin-1")), [ROOT])


def test_a_signature_that_was_checked_is_not_checked_again_and_no_other_passes_for_it() -> None:
    chain = by_hand([(ADMIN, Scope()), (ADMIN, Scope())])
    seen: set[Link] = set()
    envelope.verify(chain, [ROOT], seen)
    assert seen == set(chain)
    for broken in (
        chain[1]._replace(signature=bytes(64)),
        chain[0]._replace(signature=chain[1].signature),
    ):
        with pytest.raises(Malformed):
            envelope.verify((chain[0], broken), [ROOT], seen)
    assert seen == set(chain)


@settings(deadline=None, max_examples=examples(60))
@given(chains(least=2), st.data())
def test_a5_links_have_one_order_and_none_can_be_left_out(
    chain: tuple[Link, ...], data: st.DataObject
) -> None:
    other = tuple(data.draw(st.permutations(chain)))
    shorter = tuple(
        one for one in chain if one is not chain[data.draw(st.integers(0, len(chain) - 2))]
    )
    for changed in (other, shorter, (*chain, chain[-1])):
        if changed != chain:
            with pytest.raises(Malformed):
                envelope.verify(changed, [ROOT])


def test_a5_a_link_cannot_be_moved_to_another_envelope_of_its_issuer() -> None:
    narrow = by_hand([(frozenset(["observe", "grant"]), Scope())])
    wide = by_hand([(ADMIN, Scope())])
    handed = envelope.delegate(PRIVATE[1], narrow, KEYS[2], ["observe"], Scope(), bytes(16))
    assert allows(handed, "observe", Facts(ROOT), NOW)
    denied = check((wide[0], handed[1]), [ROOT], KEYS[2], "observe", Facts(ROOT), NOW)
    assert isinstance(denied, Denied) and denied.code == "broken"


def test_a5_a_stranger_cannot_continue_an_envelope() -> None:
    """Eve knows the text and so the parent; the signature of Eve is valid."""
    first = by_hand([(ADMIN, Scope())])
    hers = link(5, ADMIN, Scope(), first[0])
    denied = check((*first, hers), [ROOT], KEYS[6], "observe", Facts(ROOT), NOW)
    assert isinstance(denied, Denied) and denied.code == "broken"


def test_an_envelope_begins_at_a_trusted_key_and_serves_its_holder_alone() -> None:
    chain = by_hand([(ADMIN, Scope()), (ADMIN, Scope())])
    for roots, key, code in (
        ([KEYS[5]], KEYS[2], "root"),
        ([], KEYS[2], "root"),
        ([ROOT], KEYS[1], "holder"),
        ([KEYS[1]], KEYS[2], "root"),
    ):
        denied = check(chain, roots, key, "observe", Facts(ROOT), NOW)
        assert isinstance(denied, Denied) and denied.code == code
    tail = check(chain[1:], [KEYS[1]], KEYS[2], "observe", Facts(ROOT), NOW)
    assert isinstance(tail, Denied) and tail.code == "broken"


@settings(deadline=None)
@given(chains(), RIGHT, FACTS, TIMES, st.data())
def test_a5_revoking_any_link_or_key_of_a_chain_kills_it(
    chain: tuple[Link, ...], right: str, facts: Facts, now: int, data: st.DataObject
) -> None:
    verified = envelope.verify(chain, [ROOT])
    gone = data.draw(st.sampled_from(verified.links)).id
    key = data.draw(st.sampled_from(verified.keys))
    other = Revoked({b"x" * 32}, {KEYS[10]})
    assert allows(chain, right, facts, now) == allows(chain, right, facts, now, other)
    for revoked in (Revoked(links={gone}), Revoked(keys={key})):
        denied = envelope.judge(verified, holder(chain), right, facts, now, revoked)
        assert isinstance(denied, Denied) and denied.code == "revoked"


# ------------------------------------------------------------ content of a link

GOOD = {
    "v": 1,
    "issuer": signing.show(KEYS[0]),
    "holder": signing.show(KEYS[1]),
    "rights": ["log", "observe"],
    "scope": {},
    "nonce": base64url.encode(bytes(16)),
}
ODD: list[dict[str, Any]] = [
    {"v": 2},
    {"v": True},
    {"v": "1"},
    {"extra": 1},
    {"issuer": None},
    {"issuer": [signing.show(KEYS[0])]},
    {"holder": "ed25519:short"},
    {"rights": []},
    {"rights": "observe"},
    {"rights": ["observe", "log"]},
    {"rights": ["log", "log"]},
    {"rights": ["everything"]},
    {"rights": [1]},
    {"rights": {"observe": 1}},
    {"nonce": ""},
    {"nonce": base64url.encode(bytes(15))},
    {"nonce": 7},
    {"parent": ""},
    {"parent": None},
    {"scope": None},
    {"scope": []},
    {"scope": {"until": 5}},
    {"scope": {"expires": True}},
    {"scope": {"expires": -1}},
    {"scope": {"expires": "5"}},
    {"scope": {"expires": 1 << 54}},
    {"scope": {"expires": None}},
    {"scope": {"not_before": 5, "expires": 5}},
    {"scope": {"session": "../x"}},
    {"scope": {"session": ["0123456789ab"]}},
    {"scope": {"machine": "here"}},
    {"scope": {"commands": []}},
    {"scope": {"commands": "ls"}},
    {"scope": {"commands": ["ls", "git"]}},
    {"scope": {"commands": ["rm -rf"]}},
    {"scope": {"commands": ["-rf"]}},
    {"scope": {"commands": [["ls"]]}},
    {"scope": {"commands": [f"c{n:03}" for n in range(33)]}},
    {"scope": {"rate": [1]}},
    {"scope": {"rate": [0, 1]}},
    {"scope": {"rate": [1, 0]}},
    {"scope": {"rate": [True, 1]}},
    {"scope": {"rate": {"count": 1}}},
    {"scope": {"rate": [1, 1, 1]}},
    {"scope": {"session": {"a": {"b": {"c": 1}}}}},
]


@pytest.mark.parametrize("change", ODD, ids=str)
def test_a_malformed_link_is_refused(change: dict[str, Any]) -> None:
    envelope.read(canonical.encode(GOOD))
    with pytest.raises(Malformed):
        envelope.read(canonical.encode({**GOOD, **change}))


@pytest.mark.parametrize("field", sorted(GOOD))
def test_a_missing_field_is_refused(field: str) -> None:
    with pytest.raises(Malformed):
        envelope.read(canonical.encode({k: v for k, v in GOOD.items() if k != field}))


def test_the_largest_link_fits_and_a_larger_one_is_refused() -> None:
    names = frozenset("c" * 62 + f"{n:02}" for n in range(scope.COMMANDS_MAX))
    chain = by_hand(
        [
            (
                ADMIN,
                Scope(
                    ROOT,
                    SESSIONS[0],
                    names,
                    0,
                    scope.TIME_MAX,
                    (scope.RATE_COUNT_MAX, scope.RATE_SECONDS_MAX),
                ),
            )
        ]
    )
    assert envelope.decode(envelope.encode(chain)) == chain
    with pytest.raises(Malformed, match="longer"):
        envelope.read(b" " * (envelope.LINK_BYTES + 1))
    with pytest.raises(Malformed, match="longer"):
        envelope.decode("hfe1." + "A" * envelope.TEXT_CHARS)


def test_delegating_nonsense_is_a_usage_error() -> None:
    for rights, within, nonce in (
        (["everything"], Scope(), bytes(16)),
        ([], Scope(), bytes(16)),
        (["log"], Scope(session="x"), bytes(16)),
        (["log"], Scope(), b"short"),
    ):
        with pytest.raises(Usage):
            envelope.delegate(PRIVATE[0], (), KEYS[1], rights, within, nonce)
    with pytest.raises(Usage):
        envelope.delegate(
            PRIVATE[0], (Link(b"{}", bytes(64)),), KEYS[1], ["log"], Scope(), bytes(16)
        )


# ------------------------------------------------------------ commands, times, rates


def test_limited_to_commands_means_those_and_no_typing() -> None:
    chain = by_hand([(ADMIN, Scope(commands=frozenset(["git", "read-only"])))])

    def may(right: str, *programs: set[str]) -> bool:
        return allows(chain, right, Facts(ROOT, SESSIONS[0], tuple(map(frozenset, programs))), NOW)

    assert may("run", {"git"}) and may("run", {"ls", "read-only"}, {"git"}) and may("new", {"git"})
    assert (
        not may("run", {"git"}, {"rm"})
        and not may("run", {"rm"})
        and not may("run", set())
        and not may("run")
        and not may("new", {"sh"})
    )
    assert not may("input") and not allows(chain, "run", Facts(ROOT, SESSIONS[0]), NOW)
    assert may("observe") and may("halt")


def test_an_envelope_begins_and_ends_on_the_second() -> None:
    chain = by_hand([(ADMIN, Scope(not_before=NOW, expires=NOW + 10))])
    assert [
        allows(chain, "log", Facts(ROOT), t) for t in (NOW - 0.001, NOW, NOW + 9.999, NOW + 10)
    ] == [False, True, True, False]


def test_an_envelope_for_one_session_does_not_cover_the_machine() -> None:
    chain = by_hand([(ADMIN, Scope(session=SESSIONS[0]))])
    assert allows(chain, "end", Facts(ROOT, SESSIONS[0]), NOW)
    for right, session in (
        ("end", SESSIONS[1]),
        ("end", None),
        ("new", SESSIONS[0]),
        ("manage", SESSIONS[0]),
        ("manage", None),
    ):
        assert not allows(chain, right, Facts(ROOT, session), NOW)


def test_every_link_s_rate_counts_and_stopping_is_never_counted() -> None:
    chain = by_hand([(ADMIN, Scope(rate=(10, 60))), (ADMIN, Scope(rate=(5, 60)))])
    got = check(chain, [ROOT], KEYS[2], "run", Facts(ROOT), NOW)
    ids = [one.id for one in envelope.verify(chain, [ROOT]).links]
    assert got == Allowed(0, None, ((ids[0], 10, 60), (ids[1], 5, 60)))
    for right in ("observe", "log", "halt", "turn.seize"):
        assert check(chain, [ROOT], KEYS[2], right, Facts(ROOT), NOW) == Allowed(0, None)


# ------------------------------------------------------------ text


@settings(deadline=None)
@given(chains())
def test_the_text_is_one_line_with_one_spelling(chain: tuple[Link, ...]) -> None:
    text = envelope.encode(chain)
    assert (
        envelope.decode(text) == chain
        and text.isascii()
        and "\n" not in text
        and text.startswith("hfe1.")
    )
    for other in (
        text + "=",
        text + ".",
        text + "\n",
        " " + text,
        text.replace("hfe1", "HFE1"),
        text.replace("hfe1.", "hfe1.."),
        text[5:],
        text + ".AA",
        text[:-1],
        text.replace("-", "+").replace("_", "/"),
    ):
        if other != text:
            with pytest.raises(Malformed):
                envelope.decode(other)


@settings(deadline=None)
@given(
    st.text(max_size=300)
    | st.text("hfe1.ABab01-_=", max_size=300).map(lambda t: "hfe1." + t)
    | st.lists(st.binary(max_size=80), max_size=20).map(
        lambda parts: ".".join(["hfe1", *map(base64url.encode, parts)])
    )
)
def test_any_text_is_an_envelope_or_malformed(text: str) -> None:
    try:
        chain = envelope.decode(text)
    except Malformed:
        return
    assert envelope.encode(chain) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 60) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*GOOD, "parent", *Scope._fields]), inner, max_size=6)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from([*GOOD, "parent", "other"]), JSON, max_size=7), st.booleans()
)
def test_any_body_is_terms_or_malformed(fields: dict[str, Any], mostly_good: bool) -> None:
    body = canonical.encode({**GOOD, **dict(list(fields.items())[:1])} if mostly_good else fields)
    for data in (body, body[:-1], b"[" + body + b"]"):
        try:
            envelope.read(data)
        except Malformed:
            continue


# ------------------------------------------------------------ vectors


def keys_of_the_vectors() -> dict[str, bytes]:
    return {name: bytes.fromhex(private) for name, private in VECTORS["keys"].items()}


def case_facts(case: dict[str, Any]) -> tuple[bytes, str, Facts, int, Revoked]:
    public = {name: signing.public(private) for name, private in keys_of_the_vectors().items()}
    ask = case["ask"]
    command = (
        None if ask.get("command") is None else tuple(frozenset(names) for names in ask["command"])
    )
    revoked = Revoked(
        {bytes.fromhex(one) for one in ask.get("revoked_links", [])},
        {public[name] for name in ask.get("revoked_keys", [])},
    )
    return (
        public[ask["key"]],
        ask["right"],
        Facts(public["machine"], ask.get("session"), command),
        ask["now"],
        revoked,
    )


@pytest.mark.parametrize("case", VECTORS["made"], ids=lambda case: case["name"])
def test_links_are_made_byte_for_byte_as_in_the_vectors(case: dict[str, Any]) -> None:
    keys = keys_of_the_vectors()
    chain: tuple[Link, ...] = ()
    for step in case["links"]:
        chain = envelope.delegate(
            keys[step["issuer"]],
            chain,
            signing.public(keys[step["holder"]]),
            step["rights"],
            scope.read(step["scope"]),
            bytes.fromhex(step["nonce"]),
        )
        assert (
            chain[-1].body.decode() == step["body"]
            and chain[-1].signature.hex() == step["signature"]
        )
        assert envelope.link_id(chain[-1].body).hex() == step["id"]
    assert envelope.encode(chain) == case["text"]


@pytest.mark.parametrize("case", VECTORS["checks"], ids=lambda case: case["name"])
def test_the_vectors_are_judged_as_they_say(case: dict[str, Any]) -> None:
    key, right, facts, now, revoked = case_facts(case)
    roots = [signing.public(keys_of_the_vectors()["machine"])]
    try:
        verdict: Allowed | Denied = check(
            envelope.decode(case["text"]), roots, key, right, facts, now, revoked
        )
    except Malformed as e:
        verdict = Denied(e.code, str(e))
    if case["verdict"] == "allowed":
        assert isinstance(verdict, Allowed), verdict
    else:
        assert (
            isinstance(verdict, Denied)
            and verdict.code == case["verdict"]
            and verdict.reason == case["reason"]
        )


def test_the_vectors_have_every_reason() -> None:
    assert {case["verdict"] for case in VECTORS["checks"]} == {
        "allowed",
        "malformed",
        "too_long",
        "root",
        "broken",
        "no_grant",
        "widens",
        "signature",
        "holder",
        "revoked",
        "right",
        "machine",
        "session",
        "early",
        "expired",
        "command",
    }
