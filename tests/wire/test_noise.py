"""Noise: the same bytes as other implementations, and our stricter rules.

`tests/vectors/noise.json` was made by `noiseprotocol` 0.3.1, an implementation that shares no code
with ours, from keys counted up (`python -m tests.wire.test_noise` makes it again). The public
vectors of cacophony and snow are not part of this repository: a directory with such files
(`{"vectors": [...]}`, the format of the Noise wiki) can be named in NOISE_VECTORS, and every case
of our two handshakes there is then run as well.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noise.connection import Keypair, NoiseConnection

from holdfast.model import agreement
from holdfast.model.errors import PeerFault
from holdfast.wire import noise
from holdfast.wire.noise import IK, XXPSK3, Cipher, Exhausted, Handshake
from tests.support.examples import examples

VECTORS = Path(__file__).parents[1] / "vectors" / "noise.json"
NAMES = {f"Noise_{pattern}_25519_AESGCM_SHA256": pattern for pattern in (IK, XXPSK3)}
KEYS = st.binary(min_size=32, max_size=32)
# The points of low order on the curve and its twist, and their other spellings.
LOW_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def pair(
    pattern: str,
    first: bytes = b"\x01" * 32,
    second: bytes = b"\x02" * 32,
    psk: bytes = b"\x03" * 32,
    prologue: bytes = b"p",
    ephemerals: tuple[bytes | None, bytes | None] = (None, None),
) -> tuple[Handshake, Handshake]:
    key = psk if pattern == XXPSK3 else None
    return (
        Handshake(
            pattern,
            True,
            prologue,
            first,
            agreement.public(second) if pattern == IK else None,
            key,
            ephemerals[0],
        ),
        Handshake(pattern, False, prologue, second, None, key, ephemerals[1]),
    )


def shaken(pattern: str) -> tuple[Handshake, Handshake]:
    one, other = writer, reader = pair(pattern)
    while not one.done:
        reader.read(writer.write())
        writer, reader = reader, writer
    return one, other


# ------------------------------------------------------------ vectors


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    paths = [
        VECTORS,
        *(
            sorted(Path(os.environ["NOISE_VECTORS"]).iterdir())
            if "NOISE_VECTORS" in os.environ
            else ()
        ),
    ]
    for path in paths:
        for number, case in enumerate(json.loads(path.read_text())["vectors"]):
            if case.get("protocol_name") in NAMES and not case.get("fallback"):
                yield f"{path.stem}-{number}-{NAMES[case['protocol_name']]}", case


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases()])
def test_vectors(case: dict[str, Any]) -> None:
    def get(name: str) -> bytes | None:
        return bytes.fromhex(case[name]) if name in case else None

    pattern = NAMES[case["protocol_name"]]
    psks = [bytes.fromhex(p) for p in case.get("init_psks", [])]
    psk = psks[0] if psks else None
    static, remote = get("init_static"), get("resp_static")
    assert static and remote
    assert case.get("resp_psks", []) == case.get("init_psks", [])
    one = Handshake(
        pattern,
        True,
        get("init_prologue") or b"",
        static,
        get("init_remote_static"),
        psk,
        get("init_ephemeral"),
    )
    other = Handshake(
        pattern, False, get("resp_prologue") or b"", remote, None, psk, get("resp_ephemeral")
    )
    messages = [
        (bytes.fromhex(m["payload"]), m["ciphertext"], m.get("rekey")) for m in case["messages"]
    ]
    writer, reader = one, other
    while not one.done:
        payload, expected, _ = messages.pop(0)
        message = writer.write(payload)
        assert message.hex() == expected
        assert reader.read(message) == payload
        writer, reader = reader, writer
    assert one.hash == other.hash
    assert case.get("handshake_hash", one.hash.hex()) == one.hash.hex()
    assert (one.remote_static, other.remote_static) == (
        agreement.public(remote),
        agreement.public(static),
    )
    ours, theirs = one.ciphers(), other.ciphers()
    assert messages, "a vector without transport messages"
    handshake = len(case["messages"]) - len(messages)
    for number, (payload, expected, rekey) in enumerate(messages, handshake):
        out, into = (ours[0], theirs[1]) if number % 2 == 0 else (theirs[0], ours[1])
        if rekey:
            out.rekey()
            into.rekey()
        sealed = out.seal(payload)
        assert sealed.hex() == expected
        assert into.open(sealed) == payload


def theirs(
    pattern: str,
    initiator: bool,
    static: bytes,
    remote_static: bytes | None,
    psk: bytes,
    prologue: bytes,
    ephemeral: bytes | None = None,
) -> Any:
    """The same side by the other implementation."""
    found = NoiseConnection.from_name(f"Noise_{pattern}_25519_AESGCM_SHA256".encode())
    (found.set_as_initiator if initiator else found.set_as_responder)()
    found.set_prologue(prologue)
    found.set_keypair_from_private_bytes(Keypair.STATIC, static)
    if ephemeral is not None:
        found.set_keypair_from_private_bytes(Keypair.EPHEMERAL, ephemeral)
    if remote_static is not None:
        found.set_keypair_from_public_bytes(Keypair.REMOTE_STATIC, remote_static)
    if pattern == XXPSK3:
        found.set_psks(psk)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a given ephemeral key is for tests only: this is a test
        found.start_handshake()
    return found


# ------------------------------------------------------------ against another implementation


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([IK, XXPSK3]),
    st.booleans(),
    KEYS,
    KEYS,
    KEYS,
    st.binary(max_size=100),
    st.lists(st.binary(max_size=200), min_size=3, max_size=3),
    st.lists(
        st.tuples(
            st.booleans(), st.sampled_from(["data", "data", "rekey"]), st.binary(max_size=300)
        ),
        max_size=12,
    ),
)
def test_talks_to_another_implementation(
    pattern: str,
    initiating: bool,
    first: bytes,
    second: bytes,
    psk: bytes,
    prologue: bytes,
    payloads: list[bytes],
    traffic: list[tuple[bool, str, bytes]],
) -> None:
    one, other = pair(pattern, first, second, psk, prologue)
    remote = agreement.public(second) if pattern == IK else None
    mine = one if initiating else other
    its = theirs(
        pattern,
        not initiating,
        second if initiating else first,
        None if initiating else remote,
        psk,
        prologue,
    )
    turn = initiating
    for payload in payloads:
        if mine.done:
            break
        if turn:
            assert its.read_message(mine.write(payload)) == payload
        else:
            assert mine.read(bytes(its.write_message(payload))) == payload
        turn = not turn
    assert mine.done and its.handshake_finished
    assert mine.hash == its.get_handshake_hash()
    out, into = mine.ciphers()
    for outward, what, data in traffic:
        if what == "rekey" and outward:
            out.rekey()
            its.rekey_inbound_cipher()
        elif what == "rekey":
            into.rekey()
            its.rekey_outbound_cipher()
        elif outward:
            assert its.decrypt(out.seal(data)) == data
        else:
            assert into.open(bytes(its.encrypt(data))) == data


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from([IK, XXPSK3]), KEYS, KEYS, KEYS, KEYS, KEYS, st.binary(max_size=50))
def test_makes_the_same_bytes_as_another_implementation(
    pattern: str, first: bytes, second: bytes, e1: bytes, e2: bytes, psk: bytes, prologue: bytes
) -> None:
    ours = pair(pattern, first, second, psk, prologue, (e1, e2))
    remote = agreement.public(second) if pattern == IK else None
    others = (
        theirs(pattern, True, first, remote, psk, prologue, e1),
        theirs(pattern, False, second, None, psk, prologue, e2),
    )
    turn = 0
    while not ours[0].done:
        message = ours[turn].write(b"same")
        assert message == bytes(others[turn].write_message(b"same"))
        ours[1 - turn].read(message)
        others[1 - turn].read_message(message)
        turn = 1 - turn


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize("pattern", [IK, XXPSK3])
def test_any_flipped_bit_of_a_handshake_is_noticed(pattern: str) -> None:
    for number in range(2 if pattern == IK else 3):
        for bit in range(0, 8 * 100, 7):
            one, other = pair(pattern)
            writer, reader = one, other
            with pytest.raises(PeerFault):
                at = 0
                while True:
                    message = bytearray(writer.write())
                    if at == number:
                        message[bit // 8 % len(message)] ^= 1 << bit % 8
                    reader.read(bytes(message))
                    if writer.done:
                        raise AssertionError(f"bit {bit} of message {number} changed nothing")
                    writer, reader = reader, writer
                    at += 1


def forged(pattern: str, ephemeral: bytes, one: Handshake) -> bytes:
    """A first message with another ephemeral key. XXpsk3 seals its own with no secret yet."""
    if pattern == IK:
        return ephemeral + one.write()[32:]
    state = noise._Symmetric(b"Noise_XXpsk3_25519_AESGCM_SHA256")
    state.mix_hash(b"p")
    state.mix_hash(ephemeral)
    state.mix_key(ephemeral)
    return ephemeral + state.seal(b"")


@pytest.mark.parametrize("pattern", [IK, XXPSK3])
@pytest.mark.parametrize("point", LOW_ORDER)
def test_keys_of_low_order_are_refused(pattern: str, point: str) -> None:
    key = bytes.fromhex(point)
    with pytest.raises(agreement.LowOrder):
        agreement.agree(agreement.load(b"\x05" * 32), key)
    one, other = pair(pattern)
    with pytest.raises(PeerFault, match="low order"):  # as ephemeral key
        other.read(forged(pattern, key, one))
        other.write()
    assert other.dead
    if pattern == IK:  # as the static key that was pinned
        with pytest.raises(PeerFault, match="low order"):
            Handshake(IK, True, b"", b"\x01" * 32, key).write()


@pytest.mark.parametrize(
    "pattern, change", [(IK, "prologue"), (IK, "static"), (XXPSK3, "prologue"), (XXPSK3, "psk")]
)
def test_different_keys_psk_or_prologue_end_the_handshake(pattern: str, change: str) -> None:
    one = pair(pattern)[0]
    other = pair(
        pattern,
        second=b"\x09" * 32 if change == "static" else b"\x02" * 32,
        psk=b"\x09" * 32 if change == "psk" else b"\x03" * 32,
        prologue=b"q" if change == "prologue" else b"p",
    )[1]
    writer, reader = one, other
    with pytest.raises(PeerFault):
        while not writer.done:
            reader.read(writer.write())
            writer, reader = reader, writer
    assert reader.dead and not (one.done and other.done)


def test_a_broken_handshake_stays_broken() -> None:
    one, other = pair(IK)
    message = one.write()
    with pytest.raises(PeerFault):
        other.read(message[:-1] + bytes((message[-1] ^ 1,)))
    with pytest.raises(PeerFault, match="broken"):
        other.read(message)
    with pytest.raises(PeerFault, match="broken"):
        other.write()
    with pytest.raises(ValueError):
        other.ciphers()


@pytest.mark.parametrize("length", [*range(97), 65_536, 100_000])
def test_handshake_messages_of_impossible_length_are_refused(length: int) -> None:
    for pattern in (IK, XXPSK3):
        other = pair(pattern)[1]
        with pytest.raises(PeerFault):
            other.read(b"\x09" * length)
        assert other.dead


def test_turns_are_kept() -> None:
    one, other = pair(IK)
    with pytest.raises(ValueError, match="turn"):
        other.write()
    with pytest.raises(ValueError, match="turn"):
        one.read(b"")
    with pytest.raises(ValueError, match="complete"):
        one.ciphers()
    with pytest.raises(ValueError, match="complete"):
        _ = one.hash
    one, other = shaken(IK)
    with pytest.raises(ValueError):
        one.write()
    one.ciphers()
    with pytest.raises(ValueError):
        one.ciphers()
    assert one.hash == other.hash


@pytest.mark.parametrize(
    "keys",
    [
        {"pattern": IK, "initiator": True},
        {"pattern": IK, "initiator": False, "remote_static": b"\x01" * 32},
        {"pattern": IK, "initiator": False, "psk": b"\x01" * 32},
        {"pattern": XXPSK3, "initiator": True},
        {"pattern": XXPSK3, "initiator": True, "psk": b"short"},
        {"pattern": XXPSK3, "initiator": False, "psk": b"x" * 33},
    ],
)
def test_a_handshake_has_exactly_its_keys(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Handshake(**{"prologue": b"", "static": b"\x01" * 32, **keys})


def test_a_failed_message_ends_the_handshake_without_advancing_it() -> None:
    one, other = shaken(IK)
    out, into = one.ciphers()[0], other.ciphers()[1]
    first, second = out.seal(b"first"), out.seal(b"second")
    assert into.open(first) == b"first"
    with pytest.raises(PeerFault):
        into.open(first)  # again
    assert into.nonce == 1 and into.dead
    with pytest.raises(PeerFault, match="broken"):
        into.open(second)  # the correct message
    with pytest.raises(PeerFault, match="broken"):
        into.seal(b"")


@pytest.mark.parametrize("length", [0, 1, 15, 65_536])
def test_sealed_messages_of_impossible_length_are_refused(length: int) -> None:
    cipher = Cipher(b"k" * 32)
    with pytest.raises(PeerFault):
        cipher.open(bytes(length))
    assert cipher.dead and cipher.nonce == 0


def test_the_longest_message() -> None:
    a, b = Cipher(b"k" * 32), Cipher(b"k" * 32)
    sealed = a.seal(b"x" * noise.PLAIN_BYTES)
    assert len(sealed) == 65_535 and b.open(sealed) == b"x" * noise.PLAIN_BYTES
    with pytest.raises(ValueError):
        a.seal(b"x" * (noise.PLAIN_BYTES + 1))
    assert a.nonce == 1


def test_the_last_nonce_is_never_used() -> None:
    a, b = Cipher(b"k" * 32, 2**64 - 2), Cipher(b"k" * 32, 2**64 - 2)
    assert b.open(a.seal(b"last")) == b"last"
    with pytest.raises(Exhausted):
        a.seal(b"")
    with pytest.raises(Exhausted):
        b.open(bytes(16))
    a.rekey()
    with pytest.raises(Exhausted):
        a.seal(b"")


def test_rekeying_keeps_the_number_and_forgets_the_key() -> None:
    a, b = Cipher(b"k" * 32), Cipher(b"k" * 32)
    b.open(a.seal(b"1"))
    a.rekey()
    sealed = a.seal(b"2")
    assert a.nonce == 2
    old = Cipher(b"k" * 32, 1)
    with pytest.raises(PeerFault):
        old.open(sealed)
    b.rekey()
    assert b.open(sealed) == b"2"


def make() -> dict[str, Any]:
    """Vectors by the other implementation."""

    def key(number: int) -> bytes:
        return bytes((number + i) % 256 for i in range(32))

    out = []
    for pattern in (IK, XXPSK3):
        for number, prologue in enumerate((b"", b"holdfast")):
            keys = [key(16 * number + 40 * i) for i in range(5)]
            remote = agreement.public(keys[1]) if pattern == IK else None
            sides = (
                theirs(pattern, True, keys[0], remote, keys[4], prologue, keys[2]),
                theirs(pattern, False, keys[1], None, keys[4], prologue, keys[3]),
            )
            messages: list[dict[str, Any]] = []
            for at in range(9):
                writer, reader = (sides[0], sides[1]) if at % 2 == 0 else (sides[1], sides[0])
                payload = f"message {at}".encode() if at != 5 else b""
                if not writer.handshake_finished:
                    data = bytes(writer.write_message(payload))
                    assert reader.read_message(data) == payload
                    messages.append({"payload": payload.hex(), "ciphertext": data.hex()})
                    continue
                if at >= 7:
                    writer.rekey_outbound_cipher()
                    reader.rekey_inbound_cipher()
                data = bytes(writer.encrypt(payload))
                assert reader.decrypt(data) == payload
                messages.append(
                    {
                        "payload": payload.hex(),
                        "ciphertext": data.hex(),
                        **({"rekey": True} if at >= 7 else {}),
                    }
                )
            case: dict[str, Any] = {
                "protocol_name": f"Noise_{pattern}_25519_AESGCM_SHA256",
                "init_prologue": prologue.hex(),
                "init_static": keys[0].hex(),
                "init_ephemeral": keys[2].hex(),
                "resp_prologue": prologue.hex(),
                "resp_static": keys[1].hex(),
                "resp_ephemeral": keys[3].hex(),
            }
            if remote:
                case["init_remote_static"] = remote.hex()
            else:
                case["init_psks"] = case["resp_psks"] = [keys[4].hex()]
            out.append(
                {
                    **case,
                    "handshake_hash": sides[0].get_handshake_hash().hex(),
                    "messages": messages,
                }
            )
    return {
        "origin": (
            "made with noiseprotocol 0.3.1 by `python -m tests.wire.test_noise`; "
            "`rekey`: both sides of that direction rekey before this message"
        ),
        "vectors": out,
    }


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(make(), indent=1) + "\n")
