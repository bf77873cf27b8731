"""Names of devices, and the rights of a further device: never more than before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.people import devices, envelope
from holdfast.core.people.envelope import Scope
from holdfast.model import signing
from holdfast.model.errors import NotFound, Refused
from holdfast.model.ids import check_name, is_session_id
from holdfast.model.limits import NAME_CHARS
from holdfast.model.rights import ADMIN, READ

MACHINE, ANN, PHONE, BOB = (bytes([n]) * 32 for n in range(1, 5))
NAMES = st.from_regex(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,63}", fullmatch=True).filter(
    lambda name: not is_session_id(name)
)


@given(st.text(max_size=200))
def test_any_hostname_gives_a_device_name(text: str) -> None:
    assert check_name(devices.plain(text))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ann-laptop.lan.example", "ann-laptop"),
        ("Ann's phone", "Ann-s-phone"),
        ("", "device"),
        ("---", "device"),
        ("\x1b[2J", "2J"),
        ("0123456789ab", "device"),
    ],
)
def test_some_names(text: str, name: str) -> None:
    assert devices.plain(text) == name


@given(NAMES, st.sets(NAMES, max_size=8))
def test_a_free_name_is_free_and_a_name(wanted: str, taken: set[str]) -> None:
    for _ in range(12):
        found = devices.free(wanted, taken)
        assert found not in taken and check_name(found) and len(found) <= NAME_CHARS
        taken.add(found)
    assert wanted in taken


@given(st.lists(st.integers(), unique=True, max_size=8), st.data())
def test_every_device_has_a_name_of_its_own_and_keeps_the_one_it_has(
    keys: list[int], data: st.DataObject
) -> None:
    given_names = (
        data.draw(
            st.dictionaries(st.sampled_from(keys), NAMES, max_size=8).filter(
                lambda d: len(set(d.values())) == len(d)
            )
        )
        if keys
        else {}
    )
    found = devices.named(keys, given_names)
    assert list(found) == keys and len(set(found.values())) == len(keys)
    assert all(found[key] == name for key, name in given_names.items())
    assert devices.named(keys, found) == found, "written down and read again"


def held(
    private: bytes,
    holder: bytes,
    rights: frozenset[str],
    scope: Scope,
    nonce: bytes,
    chain: envelope.Chain = (),
) -> envelope.Chain:
    return envelope.delegate(private, chain, holder, rights, scope, nonce)


@given(
    st.lists(
        st.tuples(
            st.frozensets(st.sampled_from(sorted(ADMIN)), min_size=1),
            st.sampled_from([None, "0123456789ab"]),
            st.integers(0, 3),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_carried_envelopes_are_the_machines_each_once(
    grants: list[tuple[frozenset[str], str | None, int, bool]],
) -> None:
    root, holder = signing.public(MACHINE), signing.public(ANN)
    chains: list[tuple[envelope.Verified, int]] = []
    expected: dict[bytes, tuple[frozenset[str], str | None]] = {}
    for rights, session, number, delegated in grants:
        nonce, scope = bytes([number]) * 16, Scope(session=session)
        if delegated:  # through bob's own key: only bob can sign for a further device
            text = held(
                BOB,
                holder,
                rights,
                scope,
                nonce,
                held(MACHINE, signing.public(BOB), ADMIN, Scope(), b"b" * 16),
            )
        else:
            text = held(MACHINE, holder, rights, scope, nonce)
            expected.setdefault(nonce, (rights, session))
        chains.append((envelope.verify(text, [root]), len(chains)))
    found = devices.carried(chains, root)
    assert {link.nonce: (link.rights, link.scope.session) for link, _ in found.values()} == expected


def test_links_of_one_grant_share_issuer_and_nonce() -> None:
    one, two = (
        envelope.read(held(MACHINE, signing.public(key), READ, Scope(), b"n" * 16)[0].body)
        for key in (ANN, PHONE)
    )
    other = envelope.read(held(BOB, signing.public(ANN), READ, Scope(), b"n" * 16)[0].body)
    assert one.id != two.id and devices.grant(one) == devices.grant(two) != devices.grant(other)


def test_a_device_is_meant_by_its_name_or_its_key() -> None:
    names, shown = {1: "laptop", 2: "phone"}, {1: "ed25519:a", 2: "ed25519:b"}
    assert (
        devices.find("phone", names, shown, "ann")
        == devices.find("ed25519:b", names, shown, "ann")
        == 2
    )
    with pytest.raises(NotFound, match="ann has no device 'x'"):
        devices.find("x", names, shown, "ann")
    with pytest.raises(Refused):
        devices.unused("phone", "ann", names.values())
