"""The cases for a client: a command to the client program, the host's part, the client's answer."""

from __future__ import annotations

import select
import struct
import tempfile
from collections.abc import Sequence
from typing import Final

from holdfast.model.limits import FRAME_BYTES
from holdfast.testing.conformance.program import Program
from holdfast.testing.conformance.report import (
    WAIT_S,
    Case,
    Failed,
    Result,
    Skipped,
    expect,
    judged,
    same,
)
from holdfast.testing.conformance.scripted_host import (
    EPOCH,
    MODALITY,
    NAME,
    OPERATOR,
    SESSION,
    Asked,
    Conversation,
    ScriptedHost,
)
from holdfast.wire import frames

PATIENCE_S: Final = 2  # for which the client tries to reach a lost host again
QUIET_S: Final = 0.3  # in which a client that breaks the window would send
INPUT: Final = bytes(range(256)) * 400  # of a `run`: more than each window of the case
CREDIT_PIECE: Final = 64 << 10  # of a DATA frame
UNKNOWN: Final = {"of_a_later_release": {"is": ["ignored", None, 1.5]}}


class Stage:
    """A client program and a scripted host."""

    def __init__(self, argv: Sequence[str], folder: str) -> None:
        self.host = ScriptedHost(folder)
        self.client = Program(argv)

    def close(self) -> None:
        self.host.close()
        self.client.close()

    def connect(self) -> None:
        """Tells the client where the host is; the client connects now or with the first request."""
        self.client.do(
            "connect",
            socket=self.host.path,
            operator=OPERATOR,
            modality=MODALITY,
            private=self.host.private.hex(),
            patience=PATIENCE_S,
        )
        self.client.answer().result()

    def begin(self, command: str, **fields: object) -> Conversation:
        """Connects, and gives the first command."""
        self.connect()
        self.client.do(command, **fields)
        both = [self.host.fileno(), self.client.fileno()]
        if self.client.fileno() in select.select(both, [], [], WAIT_S)[0]:
            self.client.answer().result()  # Skipped, if the client does not offer the command
            raise Failed("the client answers without asking the host")
        return self.host.meet()


def run(argv: Sequence[str], cases: Sequence[Case[Stage]]) -> list[Result]:
    return [judged(case, lambda case=case: _on_a_stage(argv, case)) for case in cases]  # type: ignore[misc]


def _on_a_stage(argv: Sequence[str], case: Case[Stage]) -> None:
    with tempfile.TemporaryDirectory(prefix="hf-conform-") as folder:
        stage = Stage(argv, folder)
        try:
            case.run(stage)
        finally:
            stage.close()


# ------------------------------------------------------------ introduction


def hello(stage: Stage) -> None:
    talk = stage.begin("list")
    talk.reply(talk.request("ls").number, stage.host.listed())
    sessions = stage.client.answer().result().get("sessions")
    same(sessions, [{"id": SESSION, "name": NAME, "state": "detached"}], "the list")


def refused_version(stage: Stage) -> None:
    stage.connect()
    stage.client.do("list")
    talk = stage.host.accept()
    talk.read_hello()
    talk.bye("version", "this host speaks versions 7 to 9 of the wire")
    same(stage.client.answer().failure()["name"], "peer_fault", "the error's name")


def refused_admission(stage: Stage) -> None:
    stage.connect()
    stage.client.do("list")
    talk = stage.host.accept()
    talk.read_hello()
    talk.challenge()
    talk.bye("admission", "this key is unknown here")
    error = stage.client.answer().failure()
    same(error["name"], "not_allowed", "the error's name")
    same(error.get("message"), "this key is unknown here", "the error's message")


def nothing_there(stage: Stage) -> None:
    stage.connect()
    stage.host.leave()
    stage.client.do("run", session=NAME, text="true")
    error = stage.client.answer().failure()
    same(error["name"], "unavailable", "the error's name, as nothing was sent,")
    same(error.get("retry_safe"), True, "retry_safe")


# ------------------------------------------------------------ frames


def unknown_fields(stage: Stage) -> None:
    stage.connect()
    stage.client.do("list")
    talk = stage.host.accept()
    talk.read_hello()
    talk.challenge(**UNKNOWN)
    talk.welcome(**UNKNOWN)
    asked = talk.request("ls")
    talk.event("of_a_later_release", request=asked.number, **UNKNOWN)
    talk.event("of_a_later_release", **UNKNOWN)
    body = stage.host.listed()
    body["sessions"] = [{**one, **UNKNOWN} for one in body["sessions"]]
    talk.reply(asked.number, {**body, **UNKNOWN})
    sessions = stage.client.answer().result().get("sessions")
    same(sessions, [{"id": SESSION, "name": NAME, "state": "detached"}], "the list")


def cut_frames(stage: Stage) -> None:
    talk = stage.begin("read", session=NAME, **{"from": 0})
    number = talk.request("read").number
    parts = frames.data_header(number, 0, 5, 5) + b"hello" + frames.gap(number, 5, 9)
    parts += frames.reply(number, {"id": SESSION, "start": 0, "end": 9, "lost": 4})
    for at in range(len(parts)):
        talk.send(parts[at : at + 1])
    _read(stage, b"hello", [[5, 9]])


def foreign_answers(stage: Stage) -> None:
    talk = stage.begin("read", session=NAME, **{"from": 0})
    number = talk.request("read").number
    talk.data(number + 1000, 0, b"not for this request")
    talk.gap(number + 1000, 20, 30)
    talk.reply(number + 1000, {"id": "else", "start": 0, "end": 0, "lost": 0})
    talk.data(number, 0, b"for this request")
    talk.reply(number, {"id": SESSION, "start": 0, "end": 16, "lost": 0})
    _read(stage, b"for this request", [])


def unknown_kind(stage: Stage) -> None:
    talk = stage.begin("list")
    talk.request("ls")
    talk.send(frames.frame(0xEE, b"{}"))
    same(stage.client.answer().failure()["name"], "peer_fault", "the error's name")


def oversize(stage: Stage) -> None:
    talk = stage.begin("list")
    talk.request("ls")
    talk.send(struct.pack("<IB", FRAME_BYTES + 1, frames.REPLY))
    same(stage.client.answer().failure()["name"], "peer_fault", "the error's name")


# ------------------------------------------------------------ errors


def error_answer(stage: Stage) -> None:
    talk = stage.begin("view", session=NAME)
    asked = talk.request("view")
    talk.fail(
        asked.number,
        name="turn_held",
        code=4,
        message="bob holds the turn",
        recover="wait",
        retry_safe=True,
        facts={"by": "bob"},
    )
    error = stage.client.answer().failure()
    found = {name: error.get(name) for name in ("name", "code", "message", "retry_safe")}
    wanted = {"name": "turn_held", "code": 4, "message": "bob holds the turn", "retry_safe": True}
    same(found, wanted, "the error")


def error_of_a_later_release(stage: Stage) -> None:
    talk = stage.begin("view", session=NAME)
    asked = talk.request("view")
    talk.fail(asked.number, name="moon_full", code=4, message="no", recover="", retry_safe=False)
    error = stage.client.answer().failure()
    same(error.get("code"), 4, "the code of an error whose name is unknown")
    same(error.get("retry_safe"), False, "retry_safe")


# ------------------------------------------------------------ acts


def run_is_signed(stage: Stage) -> None:
    talk = stage.begin("run", session=NAME, text="echo hällo")
    asked = talk.act("run", text="echo hällo")
    talk.event("began", request=asked.number, act=7, ref=f"hf:{SESSION}@{EPOCH}#7")
    talk.data(asked.number, 10, b"out\n")
    talk.ran(asked, 10, 14, code=3)
    _ran(stage, b"out\n", 3)


def send_is_signed(stage: Stage) -> None:
    for text, keys in (("ls", ["Enter"]), ("", ["C-c", "Up"]), ("plain", [])):
        stage.client.do("send", session=NAME, text=text, keys=keys) if text != "ls" else None
        if text == "ls":
            talk = stage.begin("send", session=NAME, text=text, keys=keys)
        asked = talk.act("send", text=text)
        same(asked.body.get("keys", []), keys, "the keys of send")
        ref = f"hf:{SESSION}@{EPOCH}#7"
        talk.acknowledge(asked, id=SESSION, bytes=3, act=7, ref=ref, offset=0)
        same(stage.client.answer().result().get("ref"), ref, "the reference")


def acts_are_numbered(stage: Stage) -> None:
    talk = stage.begin("run", session=NAME, text="one")
    first = talk.act("run")
    talk.ran(first, 0, 0)
    stage.client.answer().result()
    stage.client.do("run", session=NAME, text="two")
    second = talk.act("run")  # names the entry of the first act as seen
    expect(second.body["seq"] > first.body["seq"], "a later act has a higher number")
    talk.ran(second, 0, 0)
    stage.client.answer().result()


def stale(stage: Stage) -> None:
    talk = stage.begin("run", session=NAME, text="true")
    asked = talk.act("run")
    stage.host.recorded("other", 1)  # another operator acts meanwhile
    talk.fail(asked.number, name="stale", code=4, message="look again", retry_safe=True)
    again = talk.act("run", text="true")
    expect(again.body["seq"] > asked.body["seq"], "the number of a refused run is used")
    talk.ran(again, 0, 0)
    _ran(stage, b"", 0)


def held(stage: Stage) -> None:
    talk = stage.begin("run", session=NAME, text="deploy")
    asked = talk.act("run")
    talk.event("held", request=asked.number, id="q1", because="a person decides", expires=1)
    expect(talk.quiet(QUIET_S), "a client waits for the answer of a held act")
    talk.ran(asked, 0, 0)
    _ran(stage, b"", 0)


# ------------------------------------------------------------ streams


def gaps(stage: Stage) -> None:
    talk = stage.begin("read", session=NAME, **{"from": 0})
    asked = talk.request("read")
    same(asked.body.get("from"), 0, "the field from")
    talk.gap(asked.number, 0, 100)
    talk.data(asked.number, 100, b"abc")
    talk.gap(asked.number, 103, 200)
    talk.data(asked.number, 200, b"\xff\x00")
    talk.reply(asked.number, {"id": SESSION, "start": 0, "end": 202, "lost": 197})
    _read(stage, b"abc\xff\x00", [[0, 100], [103, 200]])


def filtered(stage: Stage) -> None:
    talk = stage.begin("read", session=NAME, **{"from": 0})
    number = talk.request("read").number
    talk.send(frames.data_header(number, 0, 50, 4) + b"less")  # 50 offsets, 4 bytes
    talk.close()
    talk = stage.host.meet()
    asked = talk.request("read")
    same(asked.body.get("from"), 50, "from, after a part that ends at 50,")
    talk.reply(asked.number, {"id": SESSION, "start": 50, "end": 50, "lost": 0})
    _read(stage, b"less", [])


def input_window(stage: Stage) -> None:
    talk = stage.begin("run", session=NAME, text="cat >f", stdin=INPUT.hex())
    asked = talk.act("run", stdin=True)
    expect(talk.quiet(QUIET_S), "a client sends no input before the host allows it")
    got = b""
    for until in (10, 1000, 1000, len(INPUT) // 2, len(INPUT) + 5000):
        talk.event("stdin", request=asked.number, until=until)
        while len(got) < min(until, len(INPUT)):
            got += _input(talk, asked, len(got), until)
    same(_input(talk, asked, len(got), len(got)), b"", "the end of the input")
    same(got, INPUT, "the input")
    talk.event("stdin", request=asked.number, until=len(got), done=True)
    talk.ran(asked, 0, 0)
    _ran(stage, b"", 0)


def credit(stage: Stage) -> None:
    talk = stage.begin("read", session=NAME, **{"from": 0})
    if (window := talk.hello.get("credit")) is None:
        talk.close()
        raise Skipped("the client announces no credit")
    asked, sent, allowed = talk.request("read"), 0, window
    while sent < 3 * window:
        while sent >= allowed:
            kind, payload = talk.next()
            same(kind, frames.CREDIT, "the frame where credit was expected")
            number, allowed = frames.read_credit(payload)
            same(number, asked.number, "the request that gets credit")
        talk.data(asked.number, sent, piece := b"x" * min(CREDIT_PIECE, allowed - sent))
        sent += len(piece)
    talk.reply(asked.number, {"id": SESSION, "start": 0, "end": sent, "lost": 0})
    _read(stage, b"x" * sent, [])


def _input(talk: Conversation, asked: Asked, at: int, until: int) -> bytes:
    kind, payload = talk.next()
    same(kind, frames.STDIN, "the frame where input was expected")
    number, start, data = frames.read_stdin(payload)
    same((number, start), (asked.number, at), "request and offset of the input")
    expect(start + len(data) <= until, f"input up to {start + len(data)}, allowed is {until}")
    return data


# ------------------------------------------------------------ lost connections


def reconnects(stage: Stage) -> None:
    talk = stage.begin("list")
    talk.request("ls")
    before = talk.hello["client"]
    talk.close()
    talk = stage.host.meet()
    same(talk.hello["client"], before, "the client id after a lost connection")
    talk.reply(talk.request("ls").number, stage.host.listed())
    stage.client.answer().result()


def read_goes_on(stage: Stage) -> None:
    talk = stage.begin("read", session=NAME, **{"from": 5})
    asked = talk.request("read")
    talk.data(asked.number, 5, b"first ")
    talk.send(frames.data_header(asked.number, 11, 20, 9) + b"cut")  # and no more
    talk.close()
    talk = stage.host.meet()
    asked = talk.request("read")
    same(asked.body.get("from"), 11, "from, after the parts that came whole,")
    talk.data(asked.number, 11, b"second")
    talk.reply(asked.number, {"id": SESSION, "start": 11, "end": 17, "lost": 0})
    _read(stage, b"first second", [])


def run_is_repeated(stage: Stage) -> None:
    talk = stage.begin("run", session=NAME, text="make", once="build-7")
    first = talk.act("run", once="build-7")
    talk.data(first.number, 40, b"one ")
    client = talk.hello["client"]
    talk.close()
    talk = stage.host.meet()
    same(talk.hello["client"], client, "the client id after a lost connection")
    again = talk.act("run", text="make", once="build-7")
    same(again.body["seq"], first.body["seq"], "the number of the repeated act")
    same(again.body.get("resume"), 44, "resume")
    talk.data(again.number, 44, b"two")
    talk.ran(again, 44, 47, code=2)
    _ran(stage, b"one two", 2)


def outcome_unknown(stage: Stage) -> None:
    talk = stage.begin("run", session=NAME, text="rm -r build")
    talk.act("run")
    stage.host.leave()
    talk.close()
    error = stage.client.answer().failure()
    same(error["name"], "outcome_unknown", "the error of an act that was sent and not answered")
    same(error.get("retry_safe"), False, "retry_safe")


def look_is_not_unknown(stage: Stage) -> None:
    talk = stage.begin("list")
    talk.request("ls")
    stage.host.leave()
    talk.close()
    same(stage.client.answer().failure()["name"], "unavailable", "the error of a mere look")


def _ran(stage: Stage, output: bytes, code: int) -> None:
    body = stage.client.answer().result()
    same(body.get("exit_code"), code, "the exit code")
    same(bytes.fromhex(str(body.get("output"))), output, "the output")


def _read(stage: Stage, output: bytes, gaps: list[list[int]]) -> None:
    body = stage.client.answer().result()
    same(bytes.fromhex(str(body.get("output"))), output, "the output")
    same(body.get("gaps"), gaps, "the gaps")


CASES: Final[tuple[Case[Stage], ...]] = (
    Case("hello", "T6", "introduces itself and proves its key", hello),
    Case("version", "T6", "says that the versions do not fit", refused_version),
    Case("admission", "T4", "passes on why it was not admitted", refused_admission),
    Case("unknown-fields", "T6", "ignores fields and events of a later release", unknown_fields),
    Case("cut-frames", "T6", "joins frames that arrive in pieces", cut_frames),
    Case("foreign-answers", "T6", "keeps answers of other requests apart", foreign_answers),
    Case("unknown-kind", "T6", "refuses a frame of an unknown kind", unknown_kind),
    Case("oversize", "T6", "refuses a frame that is too long", oversize),
    Case("error", "A9", "gives the host's error with its facts", error_answer),
    Case("later-error", "A9", "goes by the code of an unknown error", error_of_a_later_release),
    Case("run", "P1", "signs a command; gives output and exit code", run_is_signed),
    Case("send", "P1", "signs typed text and keys", send_is_signed),
    Case("numbers", "P1", "numbers acts upwards; names the last entry seen", acts_are_numbered),
    Case("stale", "P1", "reads the state again and signs again", stale),
    Case("held", "P4", "waits while an approver decides", held),
    Case("gaps", "S5", "reports output that rolled off", gaps),
    Case("offsets", "S5", "counts offsets, not bytes", filtered),
    Case("input-window", "T6", "sends input only as far as the host allows", input_window),
    Case("credit", "T6", "gives the host credit for what it has read", credit),
    Case("reconnect", "S3", "connects again as the same client", reconnects),
    Case("read-goes-on", "S4", "continues a read where the last part ended", read_goes_on),
    Case("run-repeated", "A9", "repeats a run under the same number and key", run_is_repeated),
    Case("unknown", "A9", "says when an outcome is unknown", outcome_unknown),
    Case("not-unknown", "A9", "calls a lost look unavailable", look_is_not_unknown),
    Case("unavailable", "A9", "says when nothing was sent", nothing_there),
)
