"""The cases for a host: frames and requests of a client, and the answers that the host owes.

The suite makes a new session on the installation, and ends the session afterwards. Other sessions,
operators and settings are not touched; the record and the events of the machine name the suite's
session.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast import home as homes
from holdfast.client.identity import operator_name
from holdfast.client.link import Link
from holdfast.core.contract.message import Acknowledgement
from holdfast.core.contract.table import OPERATIONS
from holdfast.model import signing
from holdfast.testing.conformance.conforms import breaches
from holdfast.testing.conformance.peer import Answer, Peer
from holdfast.testing.conformance.report import Case, Result, expect, judged, same
from holdfast.wire import frames

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

ROLLED: Final = 4 << 20  # bytes of output at a time, until the session keeps no more
ROLLS_MAX: Final = 32
INPUT: Final = 700_000  # bytes of input, more than a window
CREDITED: Final = 300_000  # bytes of output, more than a frame
AT_ONCE: Final = 64  # requests


class Stage:
    """An operator of the installation, and a new session."""

    def __init__(self, home: str | None, operator: str | None) -> None:
        environ = {**os.environ, **({"HOLDFAST_HOME": home} if home else {})}
        found = homes.resolve(environ)
        link = Link(found, operator_name(operator, environ), "conformance")
        link.host_environ = environ
        link.connect()  # starts the host if none runs
        link.close()
        assert link.identity is not None
        self.path, self.identity = found.host_socket, link.identity
        self._folder = tempfile.TemporaryDirectory(prefix="hf-conform-")
        self.folder = Path(self._folder.name)
        (self.folder / ".bashrc").write_text("PS1='$ '\n")
        self._peers: list[Peer] = []
        peer = self.peer()
        made = peer.act(
            "new",
            name=f"conformance-{os.urandom(4).hex()}",
            argv=["/bin/bash"],
            cwd=self._folder.name,
            env={
                "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
                "HOME": self._folder.name,
                "TERM": "xterm-256color",
            },
        )
        self.session = str(made.result()["id"])
        peer.ask("wait", session=self.session, **{"for": "idle", "timeout": 60.0}).result()

    def stranger(self) -> Peer:
        """A connection without an introduction."""
        made = Peer(self.path, self.identity)
        self._peers.append(made)
        return made

    def peer(self, client: int | None = None) -> Peer:
        made = Peer(self.path, self.identity, client)
        self._peers.append(made)
        return made.introduce()

    def close(self) -> None:
        peer = self.peer()
        peer.act("end", session=self.session)
        peer.ask("wait", session=self.session, **{"for": "exit", "timeout": 60.0})
        peer.act("forget", session=self.session)
        for one in self._peers:
            one.close()
        with contextlib.suppress(OSError):
            self._folder.cleanup()


def run(home: str | None, operator: str | None, cases: Sequence[Case[Stage]]) -> list[Result]:
    stage = Stage(home, operator)
    try:
        return [judged(case, lambda case=case: case.run(stage)) for case in cases]  # type: ignore[misc]
    finally:
        stage.close()


# ------------------------------------------------------------ introduction and frames


def welcomed(stage: Stage) -> None:
    welcome = stage.peer().welcome
    for name, kind in {
        "version": int,
        "host": str,
        "home": str,
        "pid": int,
        "release": str,
    }.items():
        expect(type(welcome.get(name)) is kind, f"WELCOME needs {name}: {welcome}")


def wrong_proof(stage: Stage) -> None:
    peer = stage.stranger()
    peer.prove(peer.greet(), lambda signature: signature[:-1] + bytes([signature[-1] ^ 1]))
    same(peer.parting(), "admission", "the reason")


def other_name(stage: Stage) -> None:
    peer = stage.stranger()
    peer.prove(peer.greet(operator="not-the-name-of-this-key"))
    same(peer.parting(), "admission", "the reason")


def other_version(stage: Stage) -> None:
    peer = stage.stranger()
    peer.greet(version=99, lowest=90)
    same(peer.parting(), "version", "the reason")


def later_version(stage: Stage) -> None:
    peer = stage.stranger()
    peer.prove(peer.greet(version=99))
    kind, payload = peer.next()
    same(kind, frames.WELCOME, "the answer to a client that also speaks this version")
    same(frames.read_json(payload)["version"], frames.VERSION, "the version")


def not_introduced(stage: Stage) -> None:
    peer = stage.stranger()
    peer.begin("ls")
    same(peer.parting(), "protocol", "the reason")


def unknown_kind(stage: Stage) -> None:
    peer = stage.peer()
    peer.send(frames.frame(0x7E, b"{}"))
    same(peer.parting(), "protocol", "the reason")


def malformed(stage: Stage) -> None:
    peer = stage.peer()
    peer.ask("of-a-later-release").refused("usage")
    peer.ask("ls", of_a_later_release=1).refused("usage")
    peer.ask("view").refused("usage")
    peer.ask("view", session=7).refused("usage")
    peer.ask("view", session="no-such-session").refused("not_found")


def number_in_use(stage: Stage) -> None:
    peer = stage.peer()
    body = {"op": "wait", "session": stage.session, "for": "text:never-on-the-screen"}
    peer.send(frames.request(9, body) + frames.request(9, body))
    same(peer.parting(), "protocol", "the reason")


def many_at_once(stage: Stage) -> None:
    peer = stage.peer()
    numbers = [peer.begin("ping") for _ in range(AT_ONCE)]
    waiting = set(numbers)
    while waiting:
        kind, payload = peer.next()
        if kind == frames.REPLY:
            number, ok, _ = frames.read_reply(payload)
            expect(ok and number in waiting, f"an answer to {number}")
            waiting.discard(number)


def answers(stage: Stage) -> None:
    peer, named = stage.peer(), {"session": stage.session}
    asked: list[tuple[str, Json]] = [
        ("ping", {}),
        ("stats", {}),
        ("ls", {"all": True}),
        ("get", named),
        ("who", named),
        ("place", named),
        ("view", {**named, "history": 3}),
        ("graph", named),
        ("log", named),
        ("turn", named),
        ("read", named),
        ("operator.ls", {}),
        ("approvals", {}),
        ("attention", {}),
    ]
    for op, fields in asked:
        found = breaches(OPERATIONS[op].reply, peer.ask(op, **fields).result())
        expect(not found, f"the answer to {op}: {'; '.join(found[:3])}")


# ------------------------------------------------------------ acts


def run_command(stage: Stage) -> None:
    answer = stage.peer().act("run", session=stage.session, text="printf 'a\\nb\\n'; (exit 7)")
    body = answer.result()
    same(body["exit_code"], 7, "the exit code")
    same(answer.data, b"a\nb\n", "the output")
    _contiguous(answer, body["output"]["start"], body["output"]["end"])
    expect(
        any(one["event"] == "began" and one["ref"] == body["ref"] for one in answer.events),
        "the event `began` carries the reference",
    )
    more: Json = {name: body.pop(name) for name in ("recorded", "shaped") if name in body}
    found = breaches(OPERATIONS["run"].reply, body) + breaches(Acknowledgement, more)
    expect(not found, f"the answer to run: {'; '.join(found[:3])}")


def receipt(stage: Stage) -> None:
    peer = stage.peer()
    recorded = peer.act("run", session=stage.session, text="true").result()["recorded"]
    ack, signature = str(recorded["ack"]), bytes.fromhex(recorded["signature"])
    key = signing.read(peer.machine)
    expect(signing.verify(key, "ack/1", ack.encode(), signature), "the machine signs the receipt")
    same(json.loads(ack)["hash"], recorded["hash"], "the hash in the receipt")
    same(json.loads(ack)["number"], peer.sequence, "the number in the receipt")


def unsigned(stage: Stage) -> None:
    effect = stage.folder / "unsigned"
    peer = stage.peer()
    answer = peer.ask("run", session=stage.session, seq=1, text=f"touch {effect}")
    expect(not answer.ok, "an act without a signature is refused")
    fields = peer.signed("run", session=stage.session, text="true")
    answer = peer.ask("run", **{**fields, "text": f"touch {effect}"})
    expect(not answer.ok, "another text than the signed one is refused")
    fields = peer.signed("run", session=stage.session, text=f"touch {effect}")
    answer = stage.peer(peer.client).ask("run", **fields)
    expect(not answer.ok, "a signature of another connection is refused")
    peer.act("run", session=stage.session, text="true").result()
    expect(not effect.exists(), "a refused act has no effect")


def stale(stage: Stage) -> None:
    peer = stage.peer()
    target = peer.acting.learn(stage.session, peer.ask("place", session=stage.session).result())
    target.seen = os.urandom(32).hex()
    fields: Json = {"session": stage.session, "text": "true", "seq": 1}
    peer.acting.sign("run", fields, target)
    peer.ask("run", **fields).refused("stale")


def repeated(stage: Stage) -> None:
    effect = stage.folder / "repeated"
    text = f"echo once >>{effect}; echo told; (exit 5)"
    first = stage.peer()
    body = first.act("run", session=stage.session, text=text).result()
    second = stage.peer(first.client)
    answer = second.act("run", seq=first.sequence, session=stage.session, text=text)
    same(answer.result()["exit_code"], 5, "the exit code of the repeat")
    same(answer.data, b"told\n", "the output of the repeat")
    same(answer.body["output"], body["output"], "the range of output of the repeat")
    same(effect.read_text(), "once\n", "the effect")


def once(stage: Stage) -> None:
    effect, key = stage.folder / "keyed", f"conformance-{os.urandom(6).hex()}"
    text = f"echo once >>{effect}; (exit 6)"
    body = stage.peer().act("run", session=stage.session, text=text, once=key).result()
    answer = stage.peer().act("run", session=stage.session, text=text, once=key)
    same(answer.result()["exit_code"], 6, "the exit code of the retry")
    same(answer.body["ref"], body["ref"], "the reference of the retry")
    same(effect.read_text(), "once\n", "the effect")
    other = stage.peer().act("run", session=stage.session, text="true", once=key)
    other.refused("once_used")


def typed(stage: Stage) -> None:
    effect = stage.folder / "typed"
    peer, text = stage.peer(), f"echo typed >>{effect}"
    fields: Json = {"session": stage.session, "text": text, "keys": ["Enter"]}
    peer.act("send", **fields).result()
    again = stage.peer(peer.client).act("send", seq=peer.sequence, **fields)
    expect("offset" not in again.result(), "the answer to a repeat has no offset")
    peer.ask("wait", session=stage.session, **{"for": "idle", "timeout": 60.0}).result()
    peer.act("run", session=stage.session, text="true").result()
    same(effect.read_text(), "typed\n", "the effect")


# ------------------------------------------------------------ streams


def offsets(stage: Stage) -> None:
    peer = stage.peer()
    for _ in range(ROLLS_MAX):
        peer.act("run", session=stage.session, text=f"head -c {ROLLED} /dev/zero | tr '\\0' x")
        if peer.ask("get", session=stage.session).result()["output"]["start"] > 0:
            break
    answer = peer.ask("read", session=stage.session, **{"from": 0})
    body = answer.result()
    _contiguous(answer, body["start"], body["end"])
    gone = sum(end - start for start, end, data in answer.parts if data is None)
    expect(gone > 0 and gone == body["lost"], f"gaps of {gone} bytes, `lost` is {body['lost']}")
    kept = peer.ask("get", session=stage.session).result()["output"]
    expect(gone >= kept["start"] > 0, f"gaps of {gone} bytes, output is kept from {kept['start']}")
    peer.ask("read", session=stage.session, strict=True, **{"from": 0}).refused("lost")


def goes_on(stage: Stage) -> None:
    peer = stage.peer()
    done = peer.act("run", session=stage.session, text="echo 0123456789").result()["output"]
    part = peer.ask("read", session=stage.session, **{"from": done["start"] + 4}).data
    expect(part.startswith(b"456789"), f"output from offset 4 on is {part[:20]!r}")


def input_window(stage: Stage) -> None:
    peer = stage.peer()
    expect("stdin" in peer.welcome.get("takes", ()), "WELCOME says that `run` takes input")
    fields = peer.signed("run", session=stage.session, text="wc -c", stdin=True)
    number, sent, over = peer.begin("run", **fields), 0, False

    def feed(event: Json) -> None:
        nonlocal sent, over
        if event["event"] == "stdin" and not event.get("done"):
            size = min(event["until"], INPUT) - sent
            peer.send(frames.stdin(number, sent, b"x" * size) if size else b"")
            sent += size
            if sent == INPUT and not over:
                over = True
                peer.send(frames.stdin(number, sent, b""))

    answer = peer.answer(number, feed)
    same(answer.result()["exit_code"], 0, "the exit code")
    same(answer.data.strip(), str(INPUT).encode(), "the bytes that the command read")
    windows = [
        one["until"] for one in answer.events if one["event"] == "stdin" and "done" not in one
    ]
    expect(len(windows) > 2 and windows == sorted(windows), f"the windows are {windows}")


def input_beyond(stage: Stage) -> None:
    peer = stage.peer()
    fields = peer.signed("run", session=stage.session, text="wc -c", stdin=True)
    number = peer.begin("run", **fields)
    while True:
        kind, payload = peer.next()
        if kind == frames.EVENT and frames.read_json(payload)["event"] == "stdin":
            break
    peer.send(frames.stdin(number, 7, b"not at the next offset"))
    same(peer.parting(), "protocol", "the reason")
    stage.peer().ask("wait", session=stage.session, **{"for": "idle", "timeout": 60.0}).result()


def credit(stage: Stage) -> None:
    first = stage.peer()
    expect("credit" in first.welcome.get("takes", ()), "WELCOME says that the host takes credit")
    text = f"head -c {CREDITED} /dev/zero | tr '\\0' y"
    output = first.act("run", session=stage.session, text=text).result()["output"]
    peer = stage.stranger()
    peer.prove(peer.greet(credit=1))
    same(peer.next()[0], frames.WELCOME, "the answer to PROOF")
    number, got, over = (
        peer.begin("read", session=stage.session, **{"from": output["start"]}),
        0,
        False,
    )
    while not over:
        kind, payload = peer.next()
        same(kind, frames.DATA, "the frame of a read")
        got += len(frames.read_data(memoryview(payload))[3])
        ping, answered = peer.begin("ping"), False
        while not answered:  # meanwhile, and without further DATA
            kind, payload = peer.next()
            same(kind, frames.REPLY, "the frame after all credit is used")
            of = frames.read_reply(payload)[0]
            over, answered = over or of == number, of == ping
        peer.send(frames.credit(number, got + 1))


def cancelled(stage: Stage) -> None:
    peer = stage.peer()
    body = {"session": stage.session, "for": "text:never-on-the-screen"}
    number = peer.begin("wait", **body)
    peer.send(frames.cancel(number))
    peer.answer(number).refused("refused")
    peer.ask("ping").result()


def _contiguous(answer: Answer, start: int, end: int) -> None:
    at = start
    for begin, until, _ in answer.parts:
        same(begin, at, "the offset of the next part")
        at = until
    same(at, end, "the end of the last part")


CASES: Final[tuple[Case[Any], ...]] = (
    Case("welcome", "T6", "admits a known key and says what it is", welcomed),
    Case("wrong-proof", "T4", "refuses a proof that does not verify", wrong_proof),
    Case("other-name", "T4", "refuses a key under another name", other_name),
    Case("version", "T6", "refuses versions that it does not speak", other_version),
    Case("later-version", "T6", "chooses the highest common version", later_version),
    Case("not-introduced", "T4", "refuses a request before the introduction", not_introduced),
    Case("unknown-kind", "T6", "refuses a frame of an unknown kind", unknown_kind),
    Case("malformed", "T6", "names the wrong field of a request", malformed),
    Case("number-in-use", "T6", "refuses a request number that is in use", number_in_use),
    Case("many", "T6", f"answers {AT_ONCE} requests at once", many_at_once),
    Case("answers", "T6", "answers with the fields and types of the contract", answers),
    Case("run", "P1", "runs a signed command; output and exit code are exact", run_command),
    Case("receipt", "P2", "signs a receipt for each act", receipt),
    Case("unsigned", "P1", "refuses unsigned, changed and moved acts", unsigned),
    Case("stale", "P1", "refuses an act that names an unknown entry", stale),
    Case("repeated", "S4", "applies a repeated run once, and tells its result", repeated),
    Case("once", "A9", "applies an act with an idempotency key once", once),
    Case("typed", "S4", "types a repeated input once", typed),
    Case("offsets", "S5", "reports exactly the output that rolled off", offsets),
    Case("goes-on", "S5", "gives output from any kept offset", goes_on),
    Case("input-window", "T6", "allows input in windows, and takes all of it", input_window),
    Case("input-beyond", "T6", "refuses input at a wrong offset", input_beyond),
    Case("credit", "T6", "sends no more of an answer than the client has credited", credit),
    Case("cancel", "T6", "ends a request that is cancelled", cancelled),
)
