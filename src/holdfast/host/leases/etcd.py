"""Leases in etcd 3.5.16 or later, through its JSON gateway: the store of a fleet.

Only the standard library is used. Endpoints are tried in turn, each for a part of the time, in a
thread of its own: a name that is not resolved, or an answer that comes byte by byte, has no limit
in the library. Reads are linearizable: etcd confirms its leader for each. A password is read from a
file for each login and never kept in a message.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from holdfast.core.lease.records import Commit, Stored
from holdfast.model.errors import Unavailable, Usage

ANSWER_BYTES_MAX: Final = 8 << 20
READS_PER_REQUEST: Final = 100  # etcd takes 128 operations in a transaction
ENDPOINTS_MAX: Final = 16
_UNAUTHENTICATED: Final = (16, 7)  # gRPC codes for a token that is missing or has expired
ADVICE: Final = "see the options lease.etcd_...; are its members running?"


class Access(NamedTuple):
    """`password_file`: one line NAME:PASSWORD. The others are paths of PEM files."""

    endpoints: tuple[str, ...]
    prefix: str = "holdfast/"
    ca: str = ""
    certificate: str = ""
    key: str = ""
    password_file: str = ""


class EtcdStore:
    shared = True

    def __init__(self, access: Access) -> None:
        self._access = access
        self._at = 0  # the endpoint that answered last
        self._token = ""
        self._lock = threading.Lock()  # never held during a request
        self._idle: dict[int, http.client.HTTPConnection] = {}  # by endpoint
        self._hanging: dict[int, Future[dict[str, Any]]] = {}  # endpoints whose time was over
        for url in access.endpoints:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise Usage(f"{url[:80]!a} is no endpoint of etcd", "like https://10.0.0.1:2379")
        if not 0 < len(access.endpoints) <= ENDPOINTS_MAX:
            raise Usage("lease.etcd_endpoints is empty or too long", "name the members of etcd")

    def read(self, keys: Sequence[str], within_s: float) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        until = time.monotonic() + within_s
        for start in range(0, len(keys), READS_PER_REQUEST):
            part = keys[start : start + READS_PER_REQUEST]
            asked = {"success": [{"requestRange": {"key": self._key(key)}} for key in part]}
            answer = self._ask("/v3/kv/txn", asked, until)
            for key, one in zip(part, answer.get("responses", ()), strict=True):
                kvs = one["response_range"].get("kvs", ())
                value = base64.b64decode(kvs[0].get("value", "")) if kvs else b""
                found[key] = Stored(value, int(kvs[0]["mod_revision"]) if kvs else 0)
        return found

    def commit(self, wanted: Commit, within_s: float) -> int:
        asked = {
            "compare": [
                {"key": self._key(key), "target": "MOD", "result": "EQUAL", "mod_revision": rev}
                for key, rev in wanted.expect
            ],
            "success": [
                {"requestPut": {"key": self._key(key), "value": _text(value)}}
                for key, value in wanted.puts
            ],
        }
        answer = self._ask("/v3/kv/txn", asked, time.monotonic() + within_s)
        return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    def version(self, within_s: float) -> str:
        """The version of the member that answers."""
        until = time.monotonic() + within_s
        return str(self._ask("/v3/maintenance/status", {}, until).get("version", ""))

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.popitem()[1].close()

    # ------------------------------------------------------------ requests

    def _key(self, key: str) -> str:
        return _text((self._access.prefix + key).encode())

    def _ask(self, path: str, body: dict[str, Any], until: float) -> dict[str, Any]:
        """The answer of the first endpoint that gives one in its part of the time."""
        why, at, count = "no time is left", self._at, len(self._access.endpoints)
        for turn in range(count):
            left = until - time.monotonic()
            if left <= 0:
                break
            try:
                answer = self._within(left / (count - turn), at, path, body)
                self._at = at
                return answer
            except _Denied as e:
                why, self._token = str(e), ""
            except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
                why = f"{type(e).__name__}: {e}" if not isinstance(e, OSError) else str(e)
                at = (at + 1) % count
        raise Unavailable(f"etcd does not answer: {why[:300]}", ADVICE)

    def _within(self, limit_s: float, at: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask one endpoint. After its time it is not asked again while that request hangs."""
        if (earlier := self._hanging.get(at)) is not None and not earlier.done():
            raise TimeoutError("an earlier request to it hangs")
        with self._lock:
            connection = self._idle.pop(at, None) or self._connection(at)
        answer = _in_thread(lambda: self._exchange(connection, limit_s, path, body))
        try:
            found = answer.result(limit_s)
        except BaseException:
            if not answer.done():
                self._hanging[at] = answer
            _cut(connection)
            raise
        with self._lock:
            if self._idle.setdefault(at, connection) is not connection:
                connection.close()
        return found

    def _exchange(
        self, connection: http.client.HTTPConnection, within_s: float, path: str, body: Any
    ) -> dict[str, Any]:
        connection.timeout = within_s
        if connection.sock is not None:
            connection.sock.settimeout(within_s)
        if self._access.password_file and not self._token:
            self._token = self._login(connection)
        return self._post(connection, path, body)

    def _login(self, connection: http.client.HTTPConnection) -> str:
        with open(self._access.password_file, encoding="utf-8") as f:
            name, colon, password = f.readline().rstrip("\n").partition(":")
        if not colon:
            raise ValueError(f"{self._access.password_file} has no line NAME:PASSWORD")
        asked = {"name": name, "password": password}
        return str(self._post(connection, "/v3/auth/authenticate", asked)["token"])

    def _post(
        self, connection: http.client.HTTPConnection, path: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read(ANSWER_BYTES_MAX)
        found = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError("the answer is no object")
        if answer.status != 200:
            said = str(found.get("message") or found.get("error"))[:200]
            raise _Denied(said) if found.get("code") in _UNAUTHENTICATED else ValueError(said)
        return found

    def _connection(self, at: int) -> http.client.HTTPConnection:
        place = urlsplit(self._access.endpoints[at])
        assert place.hostname is not None
        if place.scheme == "http":
            return http.client.HTTPConnection(place.hostname, place.port or 2379)
        context = ssl.create_default_context(cafile=self._access.ca or None)
        if self._access.certificate:
            context.load_cert_chain(self._access.certificate, self._access.key or None)
        return http.client.HTTPSConnection(place.hostname, place.port or 2379, context=context)


def _in_thread(work: Callable[[], dict[str, Any]]) -> Future[dict[str, Any]]:
    """The thread may hang: it does not keep the process from its end."""
    answer = Future[dict[str, Any]]()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as e:
            answer.set_exception(e)

    threading.Thread(target=run, name="etcd", daemon=True).start()
    return answer


def _cut(connection: http.client.HTTPConnection) -> None:
    """Close the connection, and wake the thread that still waits for its answer."""
    if (sock := connection.sock) is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
    connection.close()


class _Denied(ValueError):
    """The token is missing or has expired."""


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
