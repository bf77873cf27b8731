"""The relay's own socket: how `holdfast relay token` speaks to a relay that runs, since only one process has the database open.

One JSON line, one answer. The socket lies in the relay's directory, which nobody else may enter, and the kernel says who calls: this user or root. What
is changed bites at once: a revoked token's connections are gone when the answer comes.

Root asks the relay of another account as that account: what lies in its directory is that account's doing, and a link there must not lead root anywhere. So root
needs a relay that runs; it does not open its database.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import time
from contextlib import closing, suppress
from typing import Any

from holdfast.model.errors import HoldfastError, NotAllowed, PeerFault, Unavailable, from_wire
from holdfast.model.limits import RELAY_CONTROL_BYTES, REPLY_WAIT_S
from holdfast.relay import events, office
from holdfast.relay.hub import Hub
from holdfast.relay.store import Store
from holdfast.transport import unix

STATUS_S = 3.0  # for a relay to say that it is there


def socket_of(data: str) -> str:
    return f"{data}/relay.sock"


def database_of(data: str) -> str:
    return f"{data}/relay.db"


# ------------------------------------------------------------ the relay's side


class Control:
    def __init__(self, hub: Hub, path: str, facts: dict[str, Any]) -> None:
        self._hub, self._path, self._facts = hub, path, facts
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(
            self._serve, sock=unix.listen(self._path), limit=RELAY_CONTROL_BYTES
        )

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        with suppress(OSError):
            os.unlink(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer: Any
        try:
            _, uid = unix.peer(writer.get_extra_info("socket"))
            if uid not in (os.geteuid(), 0):
                raise NotAllowed("only who runs the relay may do that")
            request = json.loads(await asyncio.wait_for(reader.readline(), REPLY_WAIT_S))
            answer = {"ok": await self._act(request)}
        except HoldfastError as e:
            answer = {"error": e.to_wire()}
        except (ValueError, TypeError, OSError) as e:
            answer = {"error": PeerFault(f"not a request: {type(e).__name__}").to_wire()}
        with suppress(OSError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _act(self, request: dict[str, Any]) -> Any:
        if request["act"] == "status":
            return self._facts
        now, hub = int(time.time()), self._hub
        answer, tokens = await hub.store.write(
            lambda db: (office.act(db, request, now), office.tokens(db))
        )
        hub.doorkeeper.learn(tokens)
        if request["act"] == "token.revoke":
            hub.operator(events.Revoked(answer["id"]))
        elif request["act"] == "admit":
            hub.operator(events.Enrolled(office.enrolled(answer)))
        return answer


# ------------------------------------------------------------ the other side


def ask(data: str, request: dict[str, Any]) -> Any:
    """Of the relay that runs there; of its database if none does."""
    if (owner := acted_for(data)) is not None:
        return _as(owner, data, request)
    try:
        sock = unix.connect(socket_of(data))
    except (FileNotFoundError, ConnectionRefusedError):
        return _directly(data, request)
    except OSError as e:
        raise Unavailable(f"cannot reach the relay of {data}: {e}", "who runs it may") from e
    with closing(sock):
        return _over(sock, request)


def acted_for(data: str) -> tuple[int, int] | None:
    """The account (user, group) whose relay root asks; None if it is one's own."""
    try:
        found = os.stat(data)
    except OSError:
        return None
    return (
        (found.st_uid, found.st_gid)
        if os.geteuid() == 0
        and found.st_uid != 0
        and stat.S_ISDIR(found.st_mode)
        and not found.st_mode & 0o077
        else None
    )


def _as(owner: tuple[int, int], data: str, request: dict[str, Any]) -> Any:
    """In a process of that account, which enters the directory before it is one: nobody else may pass on the way there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: dict[str, Any] = {
            "error": Unavailable("the relay cannot be asked", "try again").to_wire()
        }
        try:
            os.chdir(data)
            os.setgroups([])
            os.setresgid(owner[1], owner[1], owner[1])
            os.setresuid(owner[0], owner[0], owner[0])
            with closing(unix.connect(os.path.basename(socket_of(data)))) as sock:
                answer = (
                    {"ok": _over(sock, request)}
                    if unix.peer(sock)[1] == owner[0]
                    else {"error": NotAllowed("somebody else answers there").to_wire()}
                )
        except HoldfastError as e:
            answer = {"error": e.to_wire()}
        except OSError as e:
            answer = {
                "error": Unavailable(
                    f"the relay of {data} does not run: {e.strerror}", "start it; then again"
                ).to_wire()
            }
        finally:
            with suppress(OSError):
                os.write(writing, json.dumps(answer).encode())
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    value = json.loads(said)
    if "error" in value:
        raise from_wire(value["error"])
    return value["ok"]


def status(data: str) -> dict[str, Any] | None:
    """What the relay that runs there says of itself: {pid, release, urls, by}; None if none does."""
    try:
        sock = unix.connect(socket_of(data), blocking=False)
    except OSError:
        return None
    with closing(sock):
        said: dict[str, Any] = _over(sock, {"act": "status"}, STATUS_S)
    return said


def _over(sock: socket.socket, request: dict[str, Any], wait_s: float = REPLY_WAIT_S) -> Any:
    sock.settimeout(wait_s)
    try:
        sock.sendall(json.dumps(request).encode() + b"\n")
        with sock.makefile("rb") as lines:
            answer = json.loads(lines.readline())
    except (OSError, ValueError) as e:
        raise Unavailable("the relay did not answer", "try again") from e
    if "error" in answer:
        raise from_wire(answer["error"])
    return answer["ok"]


def _directly(data: str, request: dict[str, Any]) -> Any:
    store = Store(database_of(data))
    try:
        now = int(time.time())
        return store.at_once(lambda db: office.act(db, request, now))
    finally:
        store.close()
