"""Replies of a live host have exactly the fields and types of the contract (T6)."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.contract.message import Acknowledgement
from holdfast.core.contract.table import OPERATIONS
from holdfast.model.errors import HoldfastError
from holdfast.testing.conformance.conforms import breaches
from holdfast.wire import frames
from tests.support.installation import Installation, installation
from tests.support.peers.hostile_client import Wire

KEY = "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("ping", {}),
    ("stats", {}),
    ("metrics", {}),
    ("metrics", {"families": True}),
    ("events", {}),
    ("ls", {"all": True}),
    ("checkpoints", {}),
    ("machines.trusted", {}),
    ("branches", {}),
    ("reap", {"session": "work", "choice": "never"}),
    ("reaper", {}),
    ("ls", {"all": True, "cost": True}),
    ("send_away", {"session": "work"}),
    ("get", {"session": "work"}),
    ("get", {"session": "gone"}),
    ("who", {"session": "work"}),
    ("place", {"session": "work"}),
    ("place", {"session": "machine"}),
    ("send", {"session": "work", "text": "true", "keys": ["Enter"]}),
    ("log", {"session": "work"}),
    ("wait", {"session": "work", "for": "idle"}),
    ("wait", {"session": "gone", "for": "exit"}),
    ("run", {"session": "work", "text": "echo hello"}),
    ("resolve", {"ref": "GONE"}),
    ("resolve", {"ref": "WORK"}),
    ("resolve", {"ref": "WORK#1"}),
    ("resolve", {"ref": "WORK:0-1"}),
    ("resolve", {"ref": "hf:aaaaaaaaaaaa"}),
    ("attention", {}),
    ("view", {"session": "work", "ansi": True, "history": 5}),
    ("view", {"session": "gone"}),
    ("graph", {"session": "work"}),
    ("graph", {"session": "work", "wrote": ["/etc/passwd"]}),
    ("read", {"session": "work"}),
    ("files.ls", {"session": "work", "path": "/"}),
    ("files.stat", {"session": "work", "path": "/"}),
    ("files.get", {"session": "work", "path": "/etc/passwd"}),
    ("files.search", {"session": "work", "pattern": "passwd", "path": "/etc"}),
    ("turn", {"session": "work"}),
    ("turn", {"session": "work", "act": "request"}),
    ("turn", {"session": "work", "act": "release"}),
    ("seize", {"session": "work"}),
    ("halt", {"session": "work"}),
    ("resume", {"session": "work"}),
    ("rename", {"session": "work", "name": "job"}),
    ("rename", {"session": "job", "name": "work"}),
    ("operator.ls", {}),
    ("operator.show", {"name": "tester"}),
    ("operator.add", {"name": "new", "kind": "agent", "key": KEY}),
    ("grant", {"name": "new", "rights": ["observe"], "rate": [5, 60]}),
    ("envelopes", {}),
    ("device.ls", {"operator": "new"}),
    ("device.rename", {"operator": "new", "device": "device", "to": "phone"}),
    ("device.revoke", {"operator": "new", "device": "phone"}),
    ("operator.revoke", {"name": "new"}),
    ("recovery.off", {}),
    ("invite", {"id": "ABCD", "verifier": KEY, "rights": ["observe"], "confirm": True}),
    ("invite.ls", {}),
    ("invite.wait", {"id": "ABCD"}),
    ("invite.revoke", {"id": "ABCD"}),
    ("approvals", {}),
    ("ways", {}),
    ("relays", {}),
    ("relays.changed", {}),
    ("new", {"argv": ["sleep", "60"], "cwd": "/", "env": {}, "name": "third", "size": [90, 30]}),
    ("end", {"session": "third"}),
    ("forget", {"session": "third"}),
    ("log.export", {"session": "machine"}),
    ("log.redact", {"record": "machine", "seqs": [1]}),
    ("detach", {}),
]
SCHEMA = Path(__file__).parents[3] / "docs/reference/contract.schema.json"
# Operations whose answers the schemas are tested with, beside the acts below.
SHOWN = {
    "ping",
    "stats",
    "events",
    "ls",
    "get",
    "who",
    "place",
    "log",
    "wait",
    "view",
    "graph",
    "read",
    "operator.ls",
    "envelopes",
    "approvals",
    "ways",
    "relays",
    "attention",
    "turn",
}


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.ok("new", "work", "--no-attach")
        made.ok("new", "gone", "--no-attach", "--", "true")
        made.ok("wait", "gone", "--for", "exit")
        yield made


def test_t6_every_reply_has_the_form_of_the_contract(hf: Installation) -> None:
    wire = Wire(hf, "tester", 40)
    refs = {name.upper(): hf.get(name)["ref"] for name in ("work", "gone")}
    for op, fields in ASKED:
        if "ref" in fields:
            word, *rest = re.split("(?=[#:])", fields["ref"])
            fields = {"ref": "".join((str(refs.get(str(word), word)), *map(str, rest)))}
        body = wire.request(op, **fields)
        row = OPERATIONS[op]
        extra: dict[str, Any] = {}
        for name in ("recorded", "shaped") if row.act else ():
            if name in body:
                extra[name] = body.pop(name)
        assert not (found := breaches(row.reply, body)), (op, found)
        assert not (found := breaches(Acknowledgement, extra)), (op, found)
    wire.close()


class Watched(Wire):
    """A client that keeps all requests that it sends, and all answers."""

    def __init__(self, hf: Installation, operator: str, client: int) -> None:
        self.asked: dict[int, dict[str, Any]] = {}
        self.answered: list[tuple[str, bool, dict[str, Any]]] = []
        super().__init__(hf, operator, client)

    def send(self, frame: bytes) -> None:
        if frame[4] == frames.REQUEST:
            number, body = frames.read_request(frame[frames.HEADER.size :])
            self.asked[number] = body
        super().send(frame)

    def receive(self, timeout: float | None) -> tuple[int, bytes]:
        kind, payload = super().receive(timeout)
        if kind == frames.REPLY:
            number, ok, body = frames.read_reply(payload)
            self.answered.append((self.asked[number]["op"], ok, body))
        return kind, payload


def test_t6_traffic_is_valid_by_the_published_schemas(hf: Installation) -> None:
    schemas = json.loads(SCHEMA.read_text())
    jsonschema = pytest.importorskip("jsonschema")

    def check(part: dict[str, Any], body: object) -> None:
        whole = {**schemas, **part}
        found = [one.message for one in jsonschema.Draft202012Validator(whole).iter_errors(body)]
        assert not found, (found, body)

    wire = Watched(hf, "tester", 41)
    for op, fields in (
        *((op, fields) for op, fields in ASKED if op in SHOWN),
        ("run", {"session": "work", "text": "echo schema", "once": "schema-1"}),
        ("send", {"session": "work", "text": "true", "keys": ["Enter"]}),
        ("turn", {"session": "work", "act": "release"}),
        ("view", {"session": "no-such-session"}),
        ("view", {"session": "work", "of_a_later_release": 1}),
        ("run", {"session": "gone", "text": "true"}),
        ("run", {"session": "work", "text": "echo other", "once": "schema-1"}),
        ("send", {"session": "work", "text": ""}),
    ):
        with contextlib.suppress(HoldfastError):
            wire.request(op, **fields)
    wire.close()
    refused = {body["name"] for _, ok, body in wire.answered if not ok}
    assert refused >= {"not_found", "usage", "once_used"}
    for body in wire.asked.values():
        if "of_a_later_release" not in body:
            asked = {name: value for name, value in body.items() if name != "op"}
            check(schemas["operations"][body["op"]]["request"], asked)
    for op, ok, body in wire.answered:
        check(schemas["operations"][op]["reply"] if ok else schemas["errors"][body["name"]], body)
    [events] = [body["events"] for op, _, body in wire.answered if op == "events"]
    assert {"session.started", "session.exited"} <= {event["event"] for event in events}
    for event in events:
        check(schemas["events"][event["event"]], event)


def test_every_operation_is_asked_or_has_a_reason() -> None:
    elsewhere = {
        "down": "ends the host",
        "checkpoint": "needs CRIU: tests/e2e/recovery/test_checkpoint.py",
        "restore": "the same",
        "checkpoint.remove": "the same",
        "checkpoint.every": "needs another machine: tests/e2e/recovery/test_copies.py",
        "machines.trust": "the same",
        "copies.check": "the same",
        "copies.offer": "the same",
        "copies.missing": "the same",
        "copies.put": "the same",
        "copies.commit": "the same",
        "copies.taken": "the same",
        "move": "needs another machine: tests/e2e/recovery/test_move.py",
        "copies.take": "the same",
        "copies.withdraw": "the same",
        "fork": "needs CRIU: tests/e2e/recovery/test_fork.py",
        "discard": "the same",
        "diff": "needs a branch: tests/e2e/recovery/test_keep.py",
        "keep": "the same",
        "drain": "ends every session: tests/e2e/recovery/test_drain.py",
        "rehome": "needs a store: tests/e2e/recovery/test_fencing.py",
        "lease": "the same",
        "lease.invalidate": "the same",
        "signal": "needs a process: tests/e2e/record/test_signal.py",
        "files.put": "needs the bytes: tests/e2e/files/test_change.py",
        "files.rm": "changes files: the same",
        "files.mv": "the same",
        "cover": "needs typed keys: tests/e2e/record/test_record.py",
        "attach": "its reply comes with frames: tests/e2e/sessions/test_attach.py",
        "refresh": "needs an attached client",
        "device.add": "needs the operator's own key: tests/e2e/authority/test_devices.py",
        "invite.decide": "needs a joiner: tests/e2e/authority/test_invite.py",
        "approve": "needs a question: tests/e2e/authority/test_approvals.py",
        "deny": "the same",
        "forward": "lasts until the session ends: tests/e2e/sdk/test_forward.py",
        "forward.connect": "the same",
        "withdraw": "the same",
    }
    assert {op for op, _ in ASKED} | elsewhere.keys() == OPERATIONS.keys()
