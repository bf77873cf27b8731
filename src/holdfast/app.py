"""For programs that run inside a session: the fencing token, and keys for idempotent operations.

    from holdfast import app

    token = app.token()                       # session and epoch, read from the host's file
    key = app.idempotency_key("invoice 17")   # the same in every incarnation and every branch

A restore puts the memory of a program back to the moment of a checkpoint, and a fork makes two
programs of one. Connections to other machines do not survive either, and effects on other systems
are not undone. So the other system must recognise a write of an older incarnation (by the epoch,
which only rises) and a write that was already made (by the key). docs/reference/remote-half.md has
the rules and examples/postgres a worked example.

This file uses the standard library alone (Python 3.9 or later) and imports nothing of Holdfast, so
that a program can also carry a copy of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import traceback
from collections.abc import Callable
from typing import NamedTuple

TOKEN_FILE = "HOLDFAST_TOKEN_FILE"
FORMAT = 1  # the highest format of the file that this library reads
FILE_BYTES = 1 << 16
LOOK_S = 1.0  # between two looks of `on_new_incarnation`
KEY_BYTES = 16


class AppError(RuntimeError):
    """`message`: what failed. `recover`: what to do."""

    def __init__(self, message: str, recover: str) -> None:
        super().__init__(f"{message}; {recover}")
        self.message, self.recover = message, recover


class OutsideSession(AppError):
    """The program does not run in a session of Holdfast."""


class TokenUnreadable(AppError):
    """The token cannot be read. The program must not write to other systems now."""


class Token(NamedTuple):
    """`epoch`: the incarnation, which only rises. `since`: its beginning, in seconds since 1970.

    `parent`: the session that this branch was made from, or None. `base`: the session at the
    beginning of the history; of a session that is no branch, the session itself.
    """

    session: str
    epoch: int
    since: float
    parent: str | None
    base: str


def inside() -> bool:
    """Whether the program runs in a session that has a token."""
    return bool(os.environ.get(TOKEN_FILE))


def token() -> Token:
    """The token of the present incarnation. Every call reads the file.

    Raises OutsideSession or TokenUnreadable.
    """
    path = os.environ.get(TOKEN_FILE, "")
    if not path:
        raise OutsideSession(
            f"{TOKEN_FILE} is not set, so this program does not run in a session of Holdfast",
            "start it in a session (`holdfast new`), or ask `inside()` first",
        )
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES)
    except OSError as e:
        raise TokenUnreadable(
            f"{path} cannot be read ({e.strerror})",
            "programs of the session's own account can read it; do not write to other systems",
        ) from e
    return decode(data)


def decode(data: bytes) -> Token:
    """The token in the content of the file; TokenUnreadable if it is not one."""
    try:
        facts = json.loads(data)
        if facts["format"] > FORMAT:
            raise TokenUnreadable(
                f"the token has format {facts['format']}, and this library reads up to {FORMAT}",
                "use the library of the installed release",
            )
        parent = facts["parent"]
        return Token(
            str(facts["session"]),
            int(facts["epoch"]),
            float(facts["since"]),
            None if parent is None else str(parent),
            str(facts["base"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as e:
        raise TokenUnreadable(
            f"the token is damaged ({type(e).__name__}: {e})",
            f"look at the file that {TOKEN_FILE} names",
        ) from e


def changed_since(earlier: Token) -> bool:
    """Whether another incarnation than that of `earlier` runs now, or another branch."""
    now = token()
    return (now.session, now.epoch) != (earlier.session, earlier.epoch)


def idempotency_key(name: str, begun: Token | None = None) -> str:
    """A key for one operation on another system: 32 hexadecimal digits, from `name` and a session.

    Without `begun`, the session is the base of the history. Then a name has the same key in every
    incarnation, in the base and in all its branches, whenever the operation began: the other system
    takes the operation from one of them. So put into the name what makes this operation this one.

    With `begun`, the token that the program read when the operation began, the session is that of
    the token. An operation that began before a fork has the same key in the base and in its
    branches, because each inherited the token. An operation that began after the fork has a key of
    its own in each. In later incarnations of a session the key stays the same in both cases.
    """
    session = token().base if begun is None else begun.session
    text = f"holdfast/idempotency/1\0{session}\0{name}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[: 2 * KEY_BYTES]


class Watch:
    """Looks for a new incarnation in a thread, until `close`."""

    def __init__(self, callback: Callable[[Token, Token], None], every_s: float = LOOK_S) -> None:
        self._callback, self._every_s, self._last = callback, every_s, token()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="holdfast.app", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; no call of the callback begins after this one returns."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                now = token()
            except TokenUnreadable:
                continue
            before = self._last
            if (now.session, now.epoch) != (before.session, before.epoch):
                self._last = now
                try:
                    self._callback(before, now)
                except Exception:  # the next incarnation must be told too
                    traceback.print_exc()


def on_new_incarnation(callback: Callable[[Token, Token], None], every_s: float = LOOK_S) -> Watch:
    """Call `callback(before, now)` in a thread, soon after a restore, a move or a fork.

    The callback comes after the fact: the program has run for up to `every_s` seconds by then. It
    is right for reconnecting and for reading state again. It does not protect a write; only the
    other system can, by the token that comes with the write.
    """
    return Watch(callback, every_s)
