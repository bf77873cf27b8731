"""Leases in etcd 3.5.16 or later, through its JSON gateway: the store of a fleet.

Only the standard library is used. Endpoints are tried in turn, each for a part of the time, in a
thread of its own: a name that is not resolved, or an answer that comes byte by byte, has no limit
in the library. Reads are linearizable: etcd confirms its leader for each. A password is read from a
private file for each login and never kept in a message. Only a password proves a user to the
gateway: where etcd has users, the gateway refuses a client certificate with a common name.
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
from holdfast.home import private
from holdfast.host.leases.store import StoreDenied
from holdfast.model.errors import HoldfastError, Unavailable, Usage

ANSWER_BYTES_MAX: Final = 8 << 20
READS_PER_REQUEST: Final = 100  # etcd takes 128 operations in a transaction
ENDPOINTS_MAX: Final = 16
SECRET_BYTES_MAX: Final = 64 << 10
CHECKED: Final = "check"  # a key below the prefix that is never written
NO_REVISION: Final = (1 << 63) - 1
ADVICE: Final = "see the options lease.etcd_...; are its members running?"
# Texts in etcd's refusals, with the cause and the advice.
_EXPIRED: Final = ("invalid auth token", "revision of auth store is old")
_REFUSALS: Final = (
    ("permission denied", "permission", "grant it: `etcdctl role grant-permission --prefix`"),
    ("authentication failed", "password", "write NAME:PASSWORD to lease.etcd_password_file"),
    ("user name is empty", "password", "set lease.etcd_password_file"),
    ("authentication is not enabled", "password", "`etcdctl auth enable`, or remove the option"),
    ("CommonName of client", "client_certificate", "use a certificate without a common name"),
)


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
        self._name = ""  # of the user
        self._lock = threading.Lock()  # never held during a request
        self._idle: dict[int, http.client.HTTPConnection] = {}  # by endpoint
        self._hanging: dict[int, Future[dict[str, Any]]] = {}  # endpoints whose time was over
        for url in access.endpoints:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise Usage(f"{url[:80]!a} is no endpoint of etcd", "like https://10.0.0.1:2379")
            if access.password_file and not _confidential(url):
                raise Usage(f"{url[:80]!a} would get a password unencrypted", "use https")
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

    def check(self, within_s: float) -> None:
        """Try to read, and to write without a change: etcd asks for the rights of both."""
        self.read([CHECKED], within_s)
        self.commit(Commit(((CHECKED, NO_REVISION),), ((CHECKED, b""),)), within_s)

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
        denied: StoreDenied | None = None
        for turn in range(count):
            left = until - time.monotonic()
            if left <= 0:
                break
            try:
                answer = self._within(left / (count - turn), at, path, body)
                self._at = at
                return answer
            except StoreDenied as e:
                denied = e
            except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
                denied = _tls_refusal(e, self._access.endpoints[at]) or denied
                why = f"{type(e).__name__}: {e}" if not isinstance(e, OSError) else str(e)
            at = (at + 1) % count
        raise denied or Unavailable(f"etcd does not answer: {why[:300]}", ADVICE)

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
        try:
            return self._post(connection, path, body, self._token)
        except _Expired:
            if self._access.password_file:
                self._token = self._login(connection)
        try:
            return self._post(connection, path, body, self._token)
        except _Expired as e:
            self._token = ""
            recover = "look at etcd's option --auth-token; are the clocks of its members right?"
            raise StoreDenied("token", f"etcd does not accept its own token: {e}", recover) from e

    def _login(self, connection: http.client.HTTPConnection) -> str:
        path = self._access.password_file
        line = _private("password", path).decode("utf-8", "replace").partition("\n")[0]
        self._name, colon, password = line.rstrip("\r").partition(":")
        if not colon:
            advice = "write NAME:PASSWORD to it"
            raise StoreDenied("password", f"{path} has no line NAME:PASSWORD", advice)
        asked = {"name": self._name, "password": password}
        return str(self._post(connection, "/v3/auth/authenticate", asked)["token"])

    def _post(
        self,
        connection: http.client.HTTPConnection,
        path: str,
        body: dict[str, Any],
        token: str = "",
    ) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = token
        try:
            connection.request("POST", path, json.dumps(body), headers)
        except OSError:
            if isinstance(connection.sock, ssl.SSLSocket):
                connection.sock.recv(1)  # raises the member's refusal of our certificate, if any
            raise
        answer = connection.getresponse()
        data = answer.read(ANSWER_BYTES_MAX)
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._refusal(f"answer {answer.status}: {data[:200].decode('utf-8', 'replace')}")
        if answer.status != 200:
            raise self._refusal(str(found.get("message") or found.get("error"))[:200])
        return found

    def _refusal(self, said: str) -> Exception:
        if any(text in said for text in _EXPIRED):
            return _Expired(said)
        for text, cause, recover in _REFUSALS:
            if text in said:
                user = f"user {self._name!a}" if self._name else "a client without a user"
                if cause == "permission" and not self._name:
                    cause, recover = "password", "set lease.etcd_password_file"
                area = f", prefix {self._access.prefix!a}" if cause == "permission" else ""
                return StoreDenied(cause, f"etcd refuses {user}{area}: {said}", recover)
        return ValueError(said)

    def _connection(self, at: int) -> http.client.HTTPConnection:
        place = urlsplit(self._access.endpoints[at])
        assert place.hostname is not None
        if place.scheme == "http":
            return http.client.HTTPConnection(place.hostname, place.port or 2379)
        context = self._context()
        return http.client.HTTPSConnection(place.hostname, place.port or 2379, context=context)

    def _context(self) -> ssl.SSLContext:
        """Read the files anew: certificates are replaced while the host runs."""
        _, _, ca, certificate, key, _ = self._access
        try:
            context = ssl.create_default_context(cafile=ca or None)
        except OSError as e:
            said = f"{ca} is no file with certificates: {e.strerror or e}"
            raise StoreDenied("server_certificate", said, "see lease.etcd_ca") from e
        if certificate:
            _private("client_certificate", key or certificate)
            try:
                context.load_cert_chain(certificate, key or None, password="")
            except (OSError, ValueError) as e:
                said = f"{certificate} is no certificate with its key: {e}"
                advice = "see lease.etcd_certificate and lease.etcd_key; the key has no passphrase"
                raise StoreDenied("client_certificate", said, advice) from e
        return context


def _confidential(url: str) -> bool:
    place = urlsplit(url)
    return place.scheme == "https" or place.hostname in ("127.0.0.1", "::1", "localhost")


def _private(cause: str, path: str) -> bytes:
    """A file with a secret, which only this account may read."""
    try:
        data = private.read(path, SECRET_BYTES_MAX)
    except HoldfastError as e:
        raise StoreDenied(cause, e.message, e.recover) from e
    if data is None:
        raise StoreDenied(cause, f"{path} does not exist", "see the options lease.etcd_...")
    return data


def _tls_refusal(error: Exception, url: str) -> StoreDenied | None:
    """The refusal of a certificate, by this side or by the member."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = f"the certificate of {url} is not accepted: {error.verify_message}"
        advice = "name its authority in lease.etcd_ca, and the member as its certificate does"
        return StoreDenied("server_certificate", said, advice)
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        said = f"{url} does not accept this machine's certificate: {reason.lower()}"
        advice = "name one that etcd trusts in lease.etcd_certificate and lease.etcd_key"
        return StoreDenied("client_certificate", said, advice)
    return None


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


class _Expired(Exception):
    """The token has expired, or was lost with a restart of a member."""


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
