"""A Holdfast client in one file, written from docs/reference/clients.md alone.

It imports nothing of Holdfast: the standard library, and `cryptography` for Ed25519.

    tiny_client.py list                         sessions of this account's host
    tiny_client.py run SESSION 'make test'      runs a command; exits with its exit code
    tiny_client.py send SESSION 'text'          types a line
    tiny_client.py view SESSION                 shows the screen
    tiny_client.py read SESSION                 writes the kept output
    tiny_client.py conformance                  the protocol of docs/reference/conformance.md
"""

from __future__ import annotations

import base64
import getpass
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

HELLO, REQUEST, PROOF, STDIN = 0x01, 0x02, 0x07, 0x08
WELCOME, REPLY, EVENT, DATA, GAP, BYE, CHALLENGE = 0x81, 0x82, 0x85, 0x86, 0x87, 0x88, 0x89
FROM_HOST = range(0x81, 0x8A)
FRAME_BYTES = 4 << 20
INPUT_BYTES = 32 << 10  # of one STDIN frame
KINDS = {"run": "command", "send": "line"}
AGAIN = {"ls", "get", "view", "read", "place", "run", "send"}  # all that this client asks for


class Problem(Exception):
    """An error of docs/reference/errors.md."""

    def __init__(
        self, name: str, code: int, message: str, retry_safe: bool = False, **more: Any
    ) -> None:
        super().__init__(message)
        self.body: dict[str, Any] = {
            "name": name,
            "code": code,
            "message": message,
            "retry_safe": retry_safe,
        }
        self.name = name


class Gone(Exception):
    """The connection is lost; another attempt may succeed."""


def canonical(value: object) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def content(op: str, fields: dict[str, Any]) -> bytes:
    """The bytes that the signature of an act commits to."""
    text: bytes = fields["text"].encode("utf-8", "surrogateescape")
    if op == "run":
        return text + (b"\0stdin" if fields.get("stdin") else b"")
    keys = fields["keys"]
    if keys == ["Enter"]:
        text, keys = text + b"\r", []
    if not keys and not text.startswith(b"\0"):
        return text
    return b"\0" + canonical({"keys": keys, "text": text.hex()})


class Client:
    def __init__(
        self, path: str, operator: str, private: bytes, modality: str = "tiny", patience: float = 5
    ) -> None:
        self._path, self._operator = path, operator
        self._modality, self._patience = modality, patience
        self._private = Ed25519PrivateKey.from_private_bytes(private)
        raw = self._private.public_key().public_bytes_raw()
        self._key = "ed25519:" + base64.urlsafe_b64encode(raw).decode().rstrip("=")
        self._client = int.from_bytes(os.urandom(8), "big") | 2
        self._seq = 0  # the number of the last act
        self._sock: socket.socket | None = None
        self._buffer, self._number = b"", 0
        self._machine = self._binding = ""
        self._places: dict[str, dict[str, Any]] = {}

    # ------------------------------------------------------------ frames

    def _send(self, kind: int, payload: bytes) -> None:
        assert self._sock is not None
        try:
            self._sock.sendall(struct.pack("<IB", len(payload), kind) + payload)
        except OSError as e:
            raise Gone(str(e)) from e

    def _receive(self) -> tuple[int, bytes]:
        assert self._sock is not None
        while True:
            if len(self._buffer) >= 5:
                length, kind = struct.unpack_from("<IB", self._buffer)
                if kind not in FROM_HOST or length > FRAME_BYTES:
                    raise Problem("peer_fault", 5, f"frame {kind:#x} of {length} bytes")
                if len(self._buffer) >= 5 + length:
                    payload = self._buffer[5 : 5 + length]
                    self._buffer = self._buffer[5 + length :]
                    if kind == BYE:
                        raise self._parting(json.loads(payload))
                    return kind, payload
            try:
                data = self._sock.recv(1 << 16)
            except OSError as e:
                raise Gone(str(e)) from e
            if not data:
                raise Gone("the connection ended")
            self._buffer += data

    def _parting(self, body: dict[str, Any]) -> Exception:
        reason, message = body.get("reason"), str(body.get("message"))
        if reason in ("version", "protocol"):
            return Problem("peer_fault", 5, message)
        if reason == "admission":
            return Problem("not_allowed", 4, message)
        return Problem("unavailable", 5, message, True) if reason == "down" else Gone(message)

    # ------------------------------------------------------------ introduction

    def _connect(self) -> None:
        self._sock, self._buffer, self._number = socket.socket(socket.AF_UNIX), b"", 0
        self._places.clear()
        try:
            self._sock.connect(self._path)
        except OSError as e:
            raise Gone(f"no host at {self._path}: {e.strerror}") from e
        hello = {
            "version": 2,
            "lowest": 2,
            "client": self._client,
            "operator": self._operator,
            "modality": self._modality,
            "key": self._key,
        }
        self._send(HELLO, json.dumps(hello).encode())
        kind, payload = self._receive()
        if kind != CHALLENGE:
            raise Problem("peer_fault", 5, "the host did not challenge")
        challenge = json.loads(payload)
        said = {name: challenge[name] for name in ("version", "machine", "nonce")}
        same = ("lowest", "client", "operator", "modality", "key")
        said |= {"offered": hello["version"], **{name: hello[name] for name in same}}
        statement = canonical(said)
        signature = self._private.sign(b"holdfast/hello/1\0" + statement)
        self._send(PROOF, json.dumps({"signature": signature.hex()}).encode())
        kind, payload = self._receive()
        if kind != WELCOME:
            raise Problem("peer_fault", 5, "the host did not welcome")
        bound = b"holdfast/binding/1\0" + signature + statement
        self._binding = blake2b(bound, digest_size=32).hexdigest()
        self._machine = challenge["machine"]
        mine = b"holdfast/origin/1\0" + self._client.to_bytes(8, "big") + self._key.encode()
        origin = int.from_bytes(blake2b(mine, digest_size=8).digest(), "big") | 2
        self._origin = f"{origin:016x}"

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    # ------------------------------------------------------------ requests

    def _parts(self, op: str, fields: dict[str, Any]) -> Iterator[tuple[int, Any]]:
        """Sends a request; gives the frames of its answer, the last being the result."""
        self._number += 1
        number = self._number
        body = json.dumps({"op": op, **fields}).encode("utf-8", "surrogatepass")
        self._send(REQUEST, struct.pack("<I", number) + body)
        while True:
            kind, payload = self._receive()
            if kind == EVENT:
                event = json.loads(payload)
                if event.get("request") == number:
                    yield EVENT, event
                continue
            if kind not in (REPLY, DATA, GAP) or struct.unpack_from("<I", payload)[0] != number:
                continue
            if kind != REPLY:
                start, end = struct.unpack_from("<QQ", payload, 4)
                yield kind, (start, end, payload[20:])
            elif payload[4]:
                yield REPLY, json.loads(payload[5:])
                return
            else:
                error = json.loads(payload[5:])
                raise Problem(**{"retry_safe": False, **error})

    def ask(
        self,
        op: str,
        fields: dict[str, Any],
        told: Callable[[int, Any], None] = lambda kind, part: None,
        source: bytes | None = None,
    ) -> dict[str, Any]:
        """The result of a request; after a lost connection the rest of it is asked for again."""
        act, sent, stale = op in KINDS, False, False
        began = time.monotonic()
        while True:
            try:
                if self._sock is None:
                    self._connect()
                    began = time.monotonic()
                if act:
                    self._sign(op, fields)
                sent = True
                fed = 0
                for kind, part in self._parts(op, fields):
                    if kind == REPLY:
                        if act:
                            self._places[fields["session"]]["seen"] = part["recorded"]["hash"]
                        return dict(part)
                    if kind in (DATA, GAP):
                        for name in ("from", "resume"):
                            if name in fields or (name == "resume" and op == "run"):
                                fields[name] = part[1]
                        told(kind, part)
                    elif part["event"] == "stdin" and source is not None and not part.get("done"):
                        fed = self._feed(source, fed, part["until"])
            except Gone as e:
                self.close()
                if time.monotonic() - began > self._patience:
                    if act and sent:
                        why = f"`{op}` was sent and not answered ({e})"
                        raise Problem("outcome_unknown", 8, why) from e
                    raise Problem("unavailable", 5, str(e), retry_safe=True) from e
                time.sleep(0.05)
            except Problem as e:
                if e.name in ("peer_fault", "not_allowed"):
                    self.close()
                if e.name != "stale" or stale:
                    raise
                stale = True
                self._places.clear()
                if op != "send":
                    del fields["seq"]

    def _sign(self, op: str, fields: dict[str, Any]) -> None:
        name = fields["session"]
        if name not in self._places:
            for kind, place in self._parts("place", {"session": name}):
                if kind == REPLY:
                    self._places[name] = self._places[place["id"]] = place
        place = self._places[name]
        if "seq" not in fields:
            self._seq += 1
            fields["seq"] = self._seq
            size = len(fields["text"].encode("utf-8", "surrogateescape"))
            self._seq += (size + 16 * len(fields.get("keys", ()))) // 65536 if op == "send" else 0
        salt = os.urandom(16)
        said = {
            "v": 1,
            "machine": self._machine,
            "session": place["id"],
            "epoch": place["epoch"],
            "client": self._origin,
            "number": fields["seq"],
            "kind": KINDS[op],
            "binding": self._binding,
            "seen": place["seen"],
            "commit": blake2b(salt + content(op, fields), digest_size=32).hexdigest(),
            **({"once": fields["once"]} if "once" in fields else {}),
        }
        statement = canonical(said)
        fields["session"] = place["id"]
        fields["signed"] = {
            "statement": statement.decode(),
            "signature": self._private.sign(b"holdfast/act/1\0" + statement).hex(),
            "salt": salt.hex(),
        }

    def _feed(self, source: bytes, at: int, until: int) -> int:
        """Sends input as far as the host allows; an empty frame is the end."""
        while at < min(until, len(source)):
            piece = source[at : min(until, at + INPUT_BYTES)]
            self._send(STDIN, struct.pack("<IQ", self._number, at) + piece)
            at += len(piece)
        if at == len(source) and at < until:
            self._send(STDIN, struct.pack("<IQ", self._number, at))
            return at + 1  # nothing more, whatever the host allows
        return at

    # ------------------------------------------------------------ operations

    def sessions(self) -> list[dict[str, Any]]:
        return list(self.ask("ls", {})["sessions"])

    def view(self, session: str) -> list[str]:
        return list(self.ask("view", {"session": session})["lines"])

    def send(self, session: str, text: str, keys: list[str], **more: Any) -> dict[str, Any]:
        return self.ask("send", {"session": session, "text": text, "keys": keys, **more})

    def run(
        self, session: str, text: str, source: bytes | None = None, **more: Any
    ) -> tuple[dict[str, Any], bytes]:
        output = bytearray()
        fields = {"session": session, "text": text, **more}
        if source is not None:
            fields["stdin"] = True
        keep = lambda kind, part: output.extend(part[2])  # noqa: E731
        return self.ask("run", fields, keep, source), bytes(output)

    def read(self, session: str, start: int | None = None) -> tuple[bytes, list[list[int]]]:
        output, gaps = bytearray(), list[list[int]]()

        def told(kind: int, part: tuple[int, int, bytes]) -> None:
            if kind == GAP:
                gaps.append([part[0], part[1]])
            output.extend(part[2])

        self.ask("read", {"session": session, "from": start}, told)
        return bytes(output), gaps


# ------------------------------------------------------------ the conformance suite's commands


def conformance() -> None:
    client: Client | None = None
    for line in sys.stdin:
        command = json.loads(line)
        number, do = command.pop("id"), command.pop("do")
        try:
            if do == "connect":
                client = Client(
                    command["socket"],
                    command["operator"],
                    bytes.fromhex(command["private"]),
                    command["modality"],
                    command["patience"],
                )
                answer: dict[str, Any] = {"ok": True}
            else:
                assert client is not None
                answer = {"ok": True, **_do(client, do, command)}
        except Problem as e:
            answer = {"ok": False, "error": e.body}
        print(json.dumps({"id": number, **answer}), flush=True)


def _do(client: Client, do: str, given: dict[str, Any]) -> dict[str, Any]:
    if do == "list":
        names = ("id", "name", "state")
        return {"sessions": [{name: one[name] for name in names} for one in client.sessions()]}
    session = given.pop("session")
    if do == "view":
        return {"lines": client.view(session)}
    if do == "read":
        output, gaps = client.read(session, given["from"])
        return {"output": output.hex(), "gaps": gaps}
    if do == "send":
        return {"ref": client.send(session, given.pop("text"), given.pop("keys"), **given)["ref"]}
    if do == "run":
        source = bytes.fromhex(given.pop("stdin")) if "stdin" in given else None
        body, output = client.run(session, given.pop("text"), source, **given)
        return {"exit_code": body["exit_code"], "output": output.hex()}
    return {"ok": False, "unsupported": True}


# ------------------------------------------------------------ the command line


def main(do: str, *words: str) -> int:
    if do == "conformance":
        conformance()
        return 0
    home = Path(os.environ.get("HOLDFAST_HOME") or Path.home() / ".local/state/holdfast")
    operator = os.environ.get("HOLDFAST_AS") or getpass.getuser()
    private = json.loads((home / f"keys/{operator}.key").read_text())["private"]
    seed = base64.urlsafe_b64decode(private + "=" * (-len(private) % 4))
    client = Client(str(home / "run/host.sock"), operator, seed)
    try:
        if do == "list":
            for one in client.sessions():
                print(one["id"], one["name"], one["state"])
        elif do == "view":
            print("\n".join(client.view(words[0])))
        elif do == "send":
            print(client.send(words[0], words[1], ["Enter"])["ref"])
        elif do == "read":
            sys.stdout.buffer.write(client.read(words[0])[0])
        elif do == "run":
            body, output = client.run(words[0], words[1])
            sys.stdout.buffer.write(output)
            return int(body["exit_code"])
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except Problem as e:
        print(f"{e.name}: {e}", file=sys.stderr)
        return int(e.body["code"])
    finally:
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or ["help"])))
