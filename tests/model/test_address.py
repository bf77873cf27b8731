"""Addresses of relays: door, name, and invalid addresses (T4)."""

from __future__ import annotations

import pytest

from holdfast.model import address
from holdfast.model.errors import Usage


@pytest.mark.parametrize(
    ("url", "place", "name"),
    (
        ("wss://relay.example", ("relay.example", 443), "relay.example"),
        ("grpcs://Relay.Example", ("relay.example", 443), "relay.example"),
        ("grpcs://relay.example:8411/", ("relay.example", 8411), "relay.example:8411"),
        ("wss://relay.example:443/there", ("relay.example", 443), "relay.example"),
        ("ws://127.0.0.1:8410", ("127.0.0.1", 8410), "127.0.0.1:8410"),
        ("grpc://[::1]:8411", ("::1", 8411), "[::1]:8411"),
        ("grpc://localhost", ("localhost", 80), "localhost"),
        ("grpc://127.8.9.1:80", ("127.8.9.1", 80), "127.8.9.1"),
        ("grpcs://[2001:db8::1]", ("2001:db8::1", 443), "[2001:db8::1]"),
    ),
)
def test_the_same_place_has_one_name_by_whichever_door(
    url: str, place: tuple[str, int], name: str
) -> None:
    assert (
        address.host_and_port(url) == place
        and address.name(url) == name
        and address.secure(url) == (url.partition(":")[0][-1] == "s" and not url.startswith("ws:"))
    )


@pytest.mark.parametrize(
    "url",
    (
        "",
        "relay.example",
        "http://relay.example",
        "https://relay.example",
        "dns:///relay.example",
        "unix:/tmp/x",
        "grpc",
        "grpcs://",
        "grpcs://:8411",
        "grpcs://relay.example:0",
        "grpcs://relay.example:99999",
        "grpcs://relay.example:x",
        "grpcs://relay.example/path",
        "grpcs://relay.example?token=x",
        "grpcs://relay.example#x",
        "grpcs://me@relay.example",
        "wss://me:secret@relay.example",
        "grpcs://a b",
        "grpcs://a,b",
        "grpcs://relay.example\n",
        "grpcs://r\u00e9lay.example",
        "grpcs://" + "x" * 300,
        "ws://relay.example",
        "grpc://relay.example",
        "grpc://10.0.0.1",
        "ws://[2001:db8::1]",
        "grpc://localhost.example",
        "grpc://127.0.0.1.example",
    ),
)
def test_invalid_relay_addresses_are_refused(url: str) -> None:
    with pytest.raises(Usage) as caught:
        address.parsed(url)
    assert "secret" not in caught.value.message and caught.value.recover
