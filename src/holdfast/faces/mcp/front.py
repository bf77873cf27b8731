"""Discovery of the MCP server without the MCP library, which takes half a second to load.

Agents send their first turn without the tools of a server that is slow to answer. So this module
answers `initialize`, `ping`, `server/discover` and `tools/list` of both eras from `tools.py` at
once, while the library loads in another thread. The library gets the same lines afterwards: the
answers that were sent already are dropped, and from then on it answers alone.

A client that got no answer to `server/discover` in time falls back to `initialize`. The library
then gets only the handshake: its first message decides about the era.

tests/faces/test_mcp.py compares the answers of both.
"""

from __future__ import annotations

import json
import threading

from holdfast.faces.mcp import tools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Final, Protocol

    from holdfast.model.jsontext import Json

    class Served(Protocol):
        """The server with the library."""

        def feed(self, line: str | None) -> None: ...
        def join(self) -> None: ...


# The versions of the protocol that begin with `initialize`, the newest last.
VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
NEWER: Final = "2026-07-28"  # the version without a handshake; each request names it
ENVELOPE: Final = "io.modelcontextprotocol/"  # the prefix of these fields
END: Final = ""  # among the lines that wait
CAPABILITIES: Final = {
    "tools": {"listChanged": False},
    "resources": {"subscribe": False, "listChanged": False},
}


def answer(message: object, version: str, listed: tuple[Json, ...] = tools.TOOLS) -> Json | None:
    """The answer to a request of discovery; None for everything else. `listed`: the tools."""
    if not isinstance(message, dict) or "id" not in message:
        return None
    params = message.get("params")
    method, params = message.get("method"), params if isinstance(params, dict) else {}
    if _newer(message):
        found = _newer_result(method, params, version, listed)
        return None if found is None else {"jsonrpc": "2.0", "id": message["id"], "result": found}
    if method == "initialize":
        wanted = params.get("protocolVersion")
        result: Json = {
            "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[-1],
            "capabilities": CAPABILITIES,
            "serverInfo": {"name": tools.NAME, "version": version},
            "instructions": tools.INSTRUCTIONS,
        }
    elif method == "ping":
        result = {}
    elif method == "tools/list" and not params.get("cursor"):
        result = {"tools": list(listed)}
    else:
        return None
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _newer(message: object) -> bool:
    """Whether the message is of the era without a handshake."""
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and f"{ENVELOPE}protocolVersion" in meta


def _newer_result(
    method: object, params: Json, version: str, listed: tuple[Json, ...]
) -> Json | None:
    meta = params["_meta"]
    if meta[f"{ENVELOPE}protocolVersion"] != NEWER or params.get("cursor"):
        return None
    if not isinstance(meta.get(f"{ENVELOPE}clientCapabilities"), dict):
        return None
    result: Json = {
        "cacheScope": "private",
        "ttlMs": 0,
        "resultType": "complete",
        "_meta": {f"{ENVELOPE}serverInfo": {"name": tools.NAME, "version": version}},
    }
    if method == "tools/list":
        return {**result, "tools": list(listed)}
    if method != "server/discover":
        return None
    return {
        **result,
        "capabilities": CAPABILITIES,
        "instructions": tools.INSTRUCTIONS,
        "supportedVersions": [NEWER],
    }


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # the library says what is wrong


class Front:
    """Answers lines until the server has loaded, and passes every line on to the server."""

    def __init__(
        self,
        version: str,
        load: Callable[[Callable[[str], None]], Served],
        write: Callable[[str], None],
        listed: tuple[Json, ...] = tools.TOOLS,
    ) -> None:
        """`load`: loads the library and starts the server, which writes with the given function."""
        self._version, self._load, self._write = version, load, write
        self._listed = listed
        self._answered: set[str] = set()  # ids, as JSON
        self._waiting: list[str] = []
        self._server: Served | None = None
        self._failed: BaseException | None = None
        self._lock = threading.Lock()
        self._output = threading.Lock()

    def serve(self, lines: Iterable[str]) -> None:
        """Until the client closes its end."""
        loading = threading.Thread(target=self._start, name="load", daemon=True)
        loading.start()
        for line in lines:
            if line.strip():
                self._take(line)
        with self._lock:
            self._waiting.append(END)
            server = self._server
        if server is not None:
            server.feed(None)
            server.join()
        loading.join()
        if self._failed is not None:
            raise self._failed

    def _take(self, line: str) -> None:
        with self._lock:
            server = self._server
            if server is None:
                message = _parsed(line)
                if isinstance(message, dict) and message.get("method") == "initialize":
                    self._fall_back()
                self._waiting.append(line)
                if (reply := answer(message, self._version, self._listed)) is not None:
                    self._answered.add(json.dumps(reply["id"]))
                    self._say(json.dumps(reply, ensure_ascii=False))
        if server is not None:
            server.feed(line)

    def _fall_back(self) -> None:
        """Forget the requests of the newer era: the client has given them up."""
        dropped = [line for line in self._waiting if _newer(_parsed(line))]
        self._waiting = [line for line in self._waiting if line not in dropped]
        self._answered -= {json.dumps(_parsed(line).get("id")) for line in dropped}

    def _start(self) -> None:
        try:
            server = self._load(self._written)
        except BaseException as e:
            self._failed = e
            return
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, []
                if not waiting:
                    self._server = server
                    return
            for line in waiting:
                server.feed(None if line == END else line)
                if line == END:
                    return server.join()

    def _written(self, line: str) -> None:
        """A line of the server, unless the client has this answer already."""
        if self._answered:
            id = json.dumps(json.loads(line).get("id"))
            if id in self._answered:
                return self._answered.discard(id)
        self._say(line)

    def _say(self, line: str) -> None:
        with self._output:
            self._write(line)
