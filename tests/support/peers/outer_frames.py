"""A valid outer frame of each kind."""

from __future__ import annotations

from holdfast.model import limits
from holdfast.wire import outer
from holdfast.wire.outer import (
    Accept,
    Close,
    Credit,
    Data,
    Hello,
    Incoming,
    Open,
    Passes,
    Ping,
    Pong,
    Presence,
    Register,
    Registered,
    Watch,
    Welcome,
)

ROUTE, PASS, NONCE, MARK = b"\x11" * 16, b"\x22" * 32, b"\x33" * 32, b"\x44" * 8


GOOD: dict[str, outer.Frame] = {
    "hello": Hello(1, 1, outer.HOST, "holdfast 0.1.0"),
    "welcome": Welcome(1, NONCE, limits.OUTER_BYTES, 256, 20, "holdfast-relay 0.1.0"),
    "register": Register(b"\x55" * 32, 7, b"\x66" * 64, (b"\x77" * 32, b"\x88" * 32)),
    "registered": Registered(ROUTE),
    "passes": Passes((b"\x77" * 32,)),
    "no passes": Passes(()),
    "open": Open(1, ROUTE, PASS),
    "incoming": Incoming(300),
    "accept": Accept(1),
    "data": Data(1, b"sealed"),
    "data of a late stream": Data(2**32 - 1, b"\x00" * 200),
    "credit": Credit(1, 65_535),
    "close": Close(5, outer.OFFLINE, "the machine is not connected"),
    "close all": Close(0, outer.AWAY, ""),
    "ping": Ping(MARK),
    "pong": Pong(MARK),
    "watch": Watch(ROUTE, PASS),
    "presence": Presence(ROUTE, True, 1_800_000_000),
    "absent": Presence(ROUTE, False, 0),
}
