"""The relay's own socket, by which `holdfast relay token` reaches a running relay.

Only one process has the database open, so changes go through the relay. A request and the answer
are a JSON line each. The socket lies in the relay's private directory, and the kernel's credentials
must name this user or root. Changes take effect at once: when the answer arrives, the connections
of a revoked token are closed.

Root asks the relay of another account as that account, because files in that directory belong to
the account, and a link there must not lead root elsewhere. Root therefore needs a running relay and
does not open its database.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from holdfast.model.errors import HoldfastError, NotAllowed, PeerFault, Unavailable, from_wire
from holdfast.model.limits import RELAY_CONTROL_BYTES, REPLY_WAIT_S
from holdfast.relay import admin, events
from holdfast.relay.hub import Hub
from holdfast.relay.store import Store
from holdfast.transport import unix

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

STATUS_S = 3.0  # for a relay to answer


def socket_of(data: str) -> str:
    return f"{data}/relay.sock"


def database_of(data: str) -> str:
    return f"{data}/relay.db"


# ------------------------------------------------------------ the relay's side


class Control:
    def __init__(self, hub: Hub, path: str, facts: admin.Answer) -> None:
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
        answer: dict[str, object]
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

    async def _act(self, request: admin.Request) -> object:
        if request["act"] == "status":
            return self._facts
        now, hub = int(time.time()), self._hub
        answer, tokens = await hub.store.run(
            lambda db: (admin.act(db, request, now), admin.tokens(db))
        )
        hub.doorkeeper.learn(tokens)
        if isinstance(answer, dict) and request["act"] == "token.revoke":
            hub.operator(events.Revoked(str(answer["id"])))
        elif isinstance(answer, dict) and request["act"] == "admit":
            hub.operator(events.Enrolled(admin.enrolled(answer)))
        return answer


# ------------------------------------------------------------ the caller's side


def ask(data: str, request: admin.Request) -> Any:
    """Ask the relay that runs there, or its database if none runs."""
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
    """Return the account (user, group) whose relay root asks, or None for our own."""
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


def _as(owner: tuple[int, int], data: str, request: admin.Request) -> object:
    """Ask in a child process of that account.

    The child enters the directory before dropping root, because only root may pass the path.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: dict[str, object] = {
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


def status(data: str) -> Json | None:
    """Return {pid, release, urls, by} of the relay that runs there, or None."""
    try:
        sock = unix.connect(socket_of(data), blocking=False)
    except OSError:
        return None
    with closing(sock):
        said: Json = _over(sock, {"act": "status"}, STATUS_S)
    return said


def _over(sock: socket.socket, request: admin.Request, wait_s: float = REPLY_WAIT_S) -> Any:
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


def _directly(data: str, request: admin.Request) -> object:
    store = Store(database_of(data))
    try:
        now = int(time.time())
        return store.at_once(lambda db: admin.act(db, request, now))
    finally:
        store.close()
