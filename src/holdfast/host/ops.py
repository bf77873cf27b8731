"""What a client may ask, one function per operation, and the exact fields each request has.

Requests are checked against OPS before anything happens: an unknown operation, a missing, unknown or mistyped field is refused
with its name. The answers are the JSON that the command line prints with --json: stable keys.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from holdfast import __version__
from holdfast.core.keys import encode, paste
from holdfast.host import people, process, references, store, waiting
from holdfast.host import run as running
from holdfast.host.connection import Connection
from holdfast.host.engine import Engine
from holdfast.host.environment import refresh_agent
from holdfast.host.halt import execution
from holdfast.host.session import Session
from holdfast.host.store import Record
from holdfast.host.stream import Stream
from holdfast.host.viewer import Viewer
from holdfast.model.errors import Impossible, Lost, Nested, NotAllowed, NotFound, Refused, Unavailable, Usage
from holdfast.model.limits import CANON_LINE_BYTES, INPUT_CHUNK_BYTES, RUN_PACE_WINDOW_S, RUN_TEXT_BYTES, SCROLLBACK_LINES
from holdfast.model.probe import probe
from holdfast.wire import frames

MACHINE = os.uname().nodename
EVENTS_AT_ONCE = 200
ARGV_SHOWN_CHARS = 512           # of a session's arguments in a listing
HISTORY_BYTES = 3 << 20          # of scrollback in one answer: with the screen beside it, it must fit into FRAME_BYTES
SECONDS_MAX = 1e9



class Field(NamedTuple):
    kind: type | tuple[type, ...]
    default: Any = ...          # ...: required


class Op(NamedTuple):
    handler: Callable[[Any, Connection, int, dict[str, Any]], Awaitable[dict[str, Any]]]
    fields: dict[str, Field]
    right: str = ""             # needed on the session it names, or on the machine; "": who is known may, or the handler asks


class Ops:
    def __init__(self, engine: Engine, stop: Callable[[str], None]) -> None:
        self.engine = engine
        self.stop = stop
        self.viewers: dict[Connection, Viewer] = {}
        self.under_way: Counter[str] = Counter()       # requests being answered, by operation
        engine.authority.on_change.append(self._recheck)

    async def handle(self, conn: Connection, number: int, body: dict[str, Any]) -> dict[str, Any]:
        op = OPS.get(str(body.get("op")))
        if op is None:
            raise Usage(f"unknown operation {str(body.get('op'))[:40]!a}", "this host may be older than the client")
        fields = check(op.fields, body)
        if op.right:
            session = self.engine.find_any(fields["session"]).id if fields.get("session") else None
            self.may(conn, op.right, session)
        self.under_way[op.handler.__name__] += 1
        try:
            return await op.handler(self, conn, number, fields)
        finally:
            self.under_way[op.handler.__name__] -= 1

    def may(self, conn: Connection, right: str, session: str | None) -> None:
        """Returns if its envelopes allow it there now; else says which right is missing, and who could give it (A5)."""
        self.engine.authority.may(conn.key, right, session, time.time())

    def _recheck(self) -> None:
        """Rights have changed: who may not even watch any more is told so and dropped, whatever it is doing."""
        for conn, viewer in list(self.viewers.items()):
            try:
                self.may(conn, "observe", viewer.session.id)
            except NotAllowed as e:
                conn.bye("admission", e.message, e.recover)
            else:
                viewer.observe = viewer.observe or "input" not in self.engine.authority.rights_of(conn.key, viewer.session.id, time.time())

    # ------------------------------------------------------------ the host itself

    async def ping(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        return {"pid": os.getpid(), "release": __version__, "sessions": len(self.engine.sessions), "term": self.engine.term}

    async def down(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        asyncio.get_running_loop().call_soon(self.stop, "restart" if q["restart"] else "down")
        return {"pid": os.getpid(), "sessions": len(self.engine.sessions)}

    async def stats(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        e = self.engine
        return {"events": dict(sorted(e.counters.items())), "store": {"failures": e.store.failures, "last": e.store.last_failure},
                "under_way": dict(+self.under_way), "viewers": sum(len(s.viewers) for s in e.sessions.values()), "sessions": len(e.sessions), "term": e.term,
                "skips": sum(v.skips for s in e.sessions.values() for v in s.viewers)}

    async def events(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        session = self.engine.find_any(q["session"]) if q["session"] else None
        only = session.id if session is not None else None
        if q["follow"]:
            await self._follow_events(conn, number, only, q["after"])
        return {"events": await self.engine.store.write(store.events_of(only, q["after"], min(q["limit"], store.EVENTS_KEPT)))}

    async def _follow_events(self, conn: Connection, number: int, only: str | None, after: int) -> None:
        """From the store, in its order and with its numbers: whoever follows sees each event once, also across a restart. That
        something happened only wakes this up."""
        woken = asyncio.Event()

        def listener(event: dict[str, Any]) -> None:
            woken.set()

        self.engine.listen(listener)
        try:
            while True:
                try:
                    events = await self.engine.store.write(store.events_after(only, after, EVENTS_AT_ONCE))
                except Unavailable:
                    events = []                     # a full disk: what happens now is told when it could be written
                for event in events:
                    conn.event("happened", request=number, body=event)
                    after = event["number"]
                if len(events) < EVENTS_AT_ONCE:
                    await woken.wait()
                    woken.clear()
        finally:
            self.engine.unlisten(listener)

    # ------------------------------------------------------------ sessions

    async def new(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        if not os.path.isabs(q["cwd"]):
            raise Usage(f"--cwd {q['cwd']!a} is not absolute")
        if q["size"] is not None and (len(q["size"]) != 2 or not all(type(n) is int and 2 <= n <= 1000 for n in q["size"])):
            raise Usage("a size is COLSxROWS, each from 2 to 1000")
        if not all(isinstance(a, str) and a.find("\0") < 0 and _is_bytes(a) for a in (*q["argv"], q["cwd"])):
            raise Usage("arguments must be text without NUL")
        if q["argv"] and not q["argv"][0]:
            raise Usage("the program's name is empty")
        if not all(isinstance(v, str) and k and "=" not in k and "\0" not in k + v and _is_bytes(k + v) for k, v in q["env"].items()):
            raise Usage("the environment must be NAME=VALUE without NUL")
        if q["umask"] > 0o777:
            raise Usage("a umask is at most 0777")
        if (repeated := self.engine.made_for(q["token"])) is not None:
            return {**self.describe(repeated), "existed": False}
        if q["existing"] and q["name"] and (existing := await self.engine.named(q["name"])) is not None:
            self.may(conn, "observe", existing.id)
            return {**self.describe(existing), "existed": True}
        if q["contained"] is None:
            q["contained"] = conn.kind == "agent"             # code that an agent starts is not to reach keys, host and other sessions
        session = await self.engine.create(q, conn.operator)
        return {**self.describe(session), "existed": False}

    async def ls(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        e = self.engine
        seen = [s for s in e.sessions.values() if "observe" in e.authority.rights_of(conn.key, s.id, time.time())]
        out = [self.describe(s) for s in sorted(seen, key=lambda s: s.record.created)]
        out += [unreachable(i, e.unreached[i].name if i in e.unreached else "", why) for i, why in e.unreachable.items()]
        if q["all"]:
            e.forget_old()
            ended = [r for r in e.ended.values() if "observe" in e.authority.rights_of(conn.key, r.id, time.time())]
            out += [describe_ended(r) for r in sorted(ended, key=lambda r: r.ended or 0)]
        return {"sessions": out}

    async def get(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        found = self.engine.find_any(q["session"])
        return describe_ended(found) if isinstance(found, Record) else self.describe(found)

    def describe(self, s: Session) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "id": s.id, "name": s.name, "machine": MACHINE, "state": s.state,
            "liveness": {"process": "ended" if s.ending else "alive" if s.answers else "unknown", "host": "here", "relay": "none"},
            "epoch": s.record.epoch, "created": s.record.created, "idle_s": round(now - s.last_activity, 3),
            "size": {"cols": s.size[0], "rows": s.size[1]}, "operators": operators(s),
            "turn": s.turn.facts(),
            "output": {"start": s.ring.start, "end": s.ring.head}, "argv": _short(s.record.argv), "cwd": s.record.cwd,
            "pid": s.record.root_pid, "started": s.record.root_start, "boot": s.record.boot, "keeper": s.keeper_pid,
            "shell": s.commands.kind, **s.layout, "exit_code": s.record.exit_code, "ref": f"hf:{s.id}@{s.record.epoch}"}

    async def rename(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        session = self.engine.find(q["session"])
        self.engine.rename(session, q["name"])
        return {"id": session.id, "name": session.name}

    async def end(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        found = self.engine.find_any(q["session"]) if q["again"] else self.engine.find(q["session"])
        if isinstance(found, Record):                # asked before, and the answer was lost with a host
            return {"id": found.id, "name": found.name, "signal": "", "exit_code": found.exit_code, "reason": found.reason}
        if found.state == "halted":                          # what is frozen hears no signal but this
            await self.engine.halter.end(execution(found))
        by, r = await found.end(conn.operator), found.record
        return {"id": r.id, "name": r.name, "signal": by, "exit_code": r.exit_code, "reason": r.reason}

    async def forget(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        found = self.engine.find_any(q["session"])
        if not isinstance(found, Record):
            raise Refused(f"session {found.name} still runs", f"end it first: `holdfast end {found.name}`")
        self.engine.forget(found)
        return {"id": found.id, "name": found.name}

    async def who(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        s = self.engine.find(q["session"])
        d = self.describe(s)
        return {"id": s.id, "name": s.name, "operators": d["operators"], "turn": d["turn"]}

    # ------------------------------------------------------------ steering

    async def send(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        session = self.engine.find(q["session"])
        data = _bytes(q["text"])
        if not all(isinstance(key, str) for key in q["keys"]):
            raise Usage("keys are names")
        if q["paste"] or q["keys"]:
            modes = (await session.view.look(lambda s: s.modes()))[1]
            if q["paste"]:
                data = paste(data, modes.get("bracketed_paste", False))
            data += b"".join(encode(key, modes.get("application_cursor", False)) for key in q["keys"])
        if not data:
            raise Usage("nothing to send", "give TEXT, --enter or --key NAME")
        await refuse_long_line(session, data)
        sequence = 0
        for i, at in enumerate(range(0, len(data), INPUT_CHUNK_BYTES)):
            sequence = await session.type(conn.operator, conn.client, q["seq"] + i, data[at:at + INPUT_CHUNK_BYTES])
        return {"id": session.id, "bytes": len(data), "act": sequence, "ref": f"hf:{session.id}@{session.record.epoch}#{sequence}"}

    async def run(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        if len(_bytes(q["text"])) > RUN_TEXT_BYTES:
            raise Usage(f"a command may have {RUN_TEXT_BYTES} bytes", "put it into a file and run that")
        if not q["text"].strip() or "\0" in q["text"]:
            raise Usage("nothing to run" if not q["text"].strip() else "a command cannot contain NUL")
        return await running.run(self.engine.find(q["session"]), conn, number, q)

    async def wait(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        found = self.engine.find_any(q["session"])
        if isinstance(found, Record):
            if q["for"] == "exit":
                return {"for": "exit", "seen": found.reason, "exit_code": found.exit_code, "id": found.id}
            raise NotFound(f"session {found.name} has ended: {found.reason}", "`holdfast ls --all` shows how")
        return {"id": found.id, **await waiting.wait(found, q["for"], q["timeout"])}

    # ------------------------------------------------------------ looking

    async def view(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        found = self.engine.find_any(q["session"])
        if isinstance(found, Record):
            return {"id": found.id, "name": found.name, "state": found.state, "size": {"cols": found.cols, "rows": found.rows},
                    "lines": found.screen, "ansi": found.ansi, "cursor": None, "alternate": False, "title": "", "modes": {},
                    "offset": found.output_end, "exit_code": found.exit_code, "reason": found.reason, "waiting": None}
        session = found

        def look(s: Any) -> dict[str, Any]:
            x, y, visible = s.cursor
            body = {"lines": s.text(), "cursor": {"x": x, "y": y, "visible": visible}, "alternate": s.alternate, "title": s.title,
                    "modes": s.modes()}
            if q["ansi"]:
                body["ansi"] = s.ansi().decode("utf-8", "replace")
            if q["history"]:
                body["history"] = _newest(s.history_text(min(q["history"], SCROLLBACK_LINES)))
            return body

        offset, body = await session.view.look(look)
        kind, why, foreground = await session.attention()
        return {"id": session.id, "name": session.name, "state": session.state, "offset": offset,
                "size": {"cols": session.size[0], "rows": session.size[1]}, **body, "exit_code": None,
                "waiting": {"for": kind, "why": why, "foreground": foreground}}

    async def read(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        session = self.engine.find(q["session"])
        ring = session.ring
        start = ring.start if q["from"] is None else q["from"]
        if start > ring.head:
            raise Usage(f"offset {start} is beyond the end {ring.head}", "offsets are absolute; see `holdfast ls --json`")
        if start < ring.start and q["strict"]:
            raise Lost(f"output {start} to {ring.start} has rolled off", range=[ring.start, ring.head])
        stream = Stream(session, conn, number, start, None if q["follow"] else ring.head, RUN_PACE_WINDOW_S, raw=not q["for_terminal"])
        try:
            stream.pump()
            if q["follow"]:
                await session.or_end(stream.done)
                stream.until(ring.head)
            await stream.done
        finally:
            stream.close()
        return {"id": session.id, "start": start, "end": stream.offset, "lost": stream.lost}

    # ------------------------------------------------------------ attaching

    async def attach(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        session = self.engine.find(q["session"])
        if conn in self.viewers:
            self.leave(conn, "switched")
        if q["take"]:
            self.may(conn, "turn.seize", session.id)
        observe = q["observe"] or "input" not in self.engine.authority.rights_of(conn.key, session.id, time.time())
        viewer = Viewer(conn, session, q["cols"], q["rows"], observe, q["scrollback"])
        viewer.resizes = "resize" in self.engine.authority.rights_of(conn.key, session.id, time.time())
        viewer.inside = self._inside(conn.pid)
        self._refuse_nesting(session, viewer.inside)
        if q["agent"]:
            refresh_agent(session.directory, q["agent"])
        if not observe and q["take"]:
            await session.seize(conn.operator)
        self.viewers[conn] = viewer
        conn.on_drain = viewer.pump
        session.add_viewer(viewer)
        answer = {**self.describe(session), "acked": viewer.acked, "resume": q["resume"], "observe": observe}
        bell = session.let_read(viewer) if q["direct"] and not conn.blocked else -1
        if bell >= 0:
            conn.send_with(frames.reply(number, {**answer, "direct": True}), [session.link.ring_fd, bell])
            os.close(bell)
        else:
            conn.answer(number, {**answer, "direct": False})
        probe("host.attach.answered")
        await viewer.begin(q["resume"])
        return {}

    def _inside(self, pid: int) -> str | None:
        """The session whose tree this client runs in, from the kernel: a process cannot hide it by cleaning its environment."""
        keepers = {s.keeper_pid: s.id for s in self.engine.sessions.values()}
        for _ in range(64):
            if pid in keepers:
                return keepers[pid]
            stat = process.read_stat(pid)
            if stat is None or stat.ppid <= 1:
                return None
            pid = stat.ppid
        return None

    def _refuse_nesting(self, target: Session, inside: str | None) -> None:
        """Showing a session inside itself, directly or through others, would feed its own output back for ever."""
        seen: set[str] = set()
        while inside is not None and inside not in seen:
            if inside == target.id:
                raise Nested(f"this terminal is inside session {target.name} itself")
            seen.add(inside)
            inside = next((v.inside for v in self.viewers.values() if v.session.id == inside and v.inside is not None), None)

    async def refresh(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        viewer = self.viewers.get(conn)
        if viewer is None:
            raise Refused("not attached", "attach first")
        await viewer.refresh(frames.SCREEN_RESUME)
        return {}

    async def detach(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        self.leave(conn, "detached")
        return {}

    def leave(self, conn: Connection, how: str) -> None:
        viewer = self.viewers.pop(conn, None)
        if viewer is not None:
            viewer.session.remove_viewer(viewer, how)


async def refuse_long_line(session: Session, data: bytes) -> None:
    """In canonical mode the terminal would silently drop the rest of such a line."""
    longest = max(len(line) for line in data.replace(b"\r", b"\n").split(b"\n"))
    if longest > CANON_LINE_BYTES:
        import termios

        if (await session.terminal()).lflag & termios.ICANON:
            raise Impossible(f"a line of {longest} bytes: the terminal is in line mode and drops all beyond {CANON_LINE_BYTES}",
                             "split the line, or use `holdfast run`, which passes its text beside the terminal")


def _bytes(text: str) -> bytes:
    """As the client had it: bytes that are no UTF-8 travel as lone surrogates."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise Usage("the text has characters that no bytes stand for", "send UTF-8") from e


def _is_bytes(text: str) -> bool:
    return not any("\ud800" <= c <= "\udc7f" or "\udd00" <= c <= "\udfff" for c in text)


def _short(argv: list[str]) -> list[str]:
    """A listing of thousands of sessions must fit into a frame, whatever their arguments are."""
    if sum(map(len, argv)) <= ARGV_SHOWN_CHARS:
        return argv
    return [*(a[:ARGV_SHOWN_CHARS // 8] for a in argv[:8]), "..."]


def _newest(lines: list[str]) -> list[str]:
    """The last lines that fit into an answer."""
    left = HISTORY_BYTES
    for n, line in enumerate(reversed(lines)):
        left -= 2 * len(line.encode("utf-8", "replace")) if '"' in line or "\\" in line else len(line.encode("utf-8", "replace")) + 4
        if left < 0:
            return lines[len(lines) - n:]
    return lines


def operators(s: Session) -> list[dict[str, Any]]:
    return [{"operator": v.conn.operator, "modality": v.conn.modality, "observe": v.observe, "pid": v.conn.pid,
             "size": {"cols": v.size[0], "rows": v.size[1]}, "lagging": v.lagging} for v in s.viewers]


def describe_ended(r: Record) -> dict[str, Any]:
    return {"id": r.id, "name": r.name, "machine": MACHINE, "state": r.state,
            "liveness": {"process": "ended", "host": "here", "relay": "none"}, "epoch": r.epoch, "created": r.created,
            "idle_s": max(0.0, time.time() - (r.ended or r.created)), "size": {"cols": r.cols, "rows": r.rows}, "operators": [],
            "turn": None, "output": {"start": r.output_start, "end": r.output_end}, "argv": _short(r.argv), "cwd": r.cwd,
            "pid": r.root_pid, "started": r.root_start, "boot": r.boot, "keeper": None, "shell": None, "exit_code": r.exit_code,
            "reason": r.reason, "ended": r.ended, "survivors": r.survivors, "ref": f"hf:{r.id}@{r.epoch}"}


def unreachable(session_id: str, name: str, why: str) -> dict[str, Any]:
    """A keeper that exists and does not answer: nothing about it is known now, and that is what is said."""
    return {"id": session_id, "name": name, "machine": MACHINE, "state": "unknown",
            "liveness": {"process": "unknown", "host": "here", "relay": "none"}, "epoch": None, "created": None, "idle_s": None,
            "size": None, "operators": [], "turn": None, "output": None, "reason": why, "exit_code": None}


def check(fields: dict[str, Field], body: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    unknown = sorted(set(body) - set(fields) - {"op"})
    if unknown:
        raise Usage(f"unknown field {unknown[0]!a} in {body['op']}", "this host may be older than the client")
    for name, field in fields.items():
        value = body.get(name, field.default)
        if value is ...:
            raise Usage(f"{body['op']} needs the field {name!a}")
        kinds = field.kind if isinstance(field.kind, tuple) else (field.kind,)
        if float in kinds and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not (value is None and field.default is None) and (type(value) not in kinds):
            raise Usage(f"the field {name!a} of {body['op']} has the wrong type")
        if (type(value) is int and not 0 <= value < 1 << 63) or (type(value) is float and not 0 <= value < SECONDS_MAX):
            raise Usage(f"the field {name!a} of {body['op']} is out of range")
        out[name] = value
    return out


_S = Field(str)
OPS: dict[str, Op] = {
    "ping": Op(Ops.ping, {}),
    "down": Op(Ops.down, {"restart": Field(bool, False)}, "manage"),
    "stats": Op(Ops.stats, {}),
    "events": Op(Ops.events, {"session": Field(str, None), "after": Field(int, 0), "limit": Field(int, 100), "follow": Field(bool, False)}, "observe"),
    "new": Op(Ops.new, {"name": Field(str, None), "argv": Field(list), "cwd": _S, "env": Field(dict), "size": Field(list, None),
                        "umask": Field(int, 0o077), "existing": Field(bool, False), "agent": Field(str, None), "token": Field(str, None), "contained": Field(bool, None)}, "new"),
    "ls": Op(Ops.ls, {"all": Field(bool, False)}),
    "get": Op(Ops.get, {"session": _S}, "observe"),
    "rename": Op(Ops.rename, {"session": _S, "name": _S}, "end"),
    "end": Op(Ops.end, {"session": _S, "again": Field(bool, False)}, "end"),
    "forget": Op(Ops.forget, {"session": _S}, "end"),
    "who": Op(Ops.who, {"session": _S}, "observe"),
    "resolve": Op(references.resolve, {"ref": _S}),
    "send": Op(Ops.send, {"session": _S, "text": _S, "keys": Field(list, []), "seq": Field(int), "paste": Field(bool, False)}, "input"),
    "run": Op(Ops.run, {"session": _S, "text": _S, "seq": Field(int), "timeout": Field(float, 0.0), "resume": Field(int, None),
                        "for_terminal": Field(bool, False)}, "run"),
    "wait": Op(Ops.wait, {"session": _S, "for": _S, "timeout": Field(float, 0.0)}, "observe"),
    "view": Op(Ops.view, {"session": _S, "ansi": Field(bool, False), "history": Field(int, 0)}, "observe"),
    "read": Op(Ops.read, {"session": _S, "from": Field(int, None), "follow": Field(bool, False), "strict": Field(bool, False),
                          "for_terminal": Field(bool, False)}, "observe"),
    "attach": Op(Ops.attach, {"session": _S, "cols": Field(int), "rows": Field(int), "observe": Field(bool, False),
                              "take": Field(bool, False), "scrollback": Field(int, None), "resume": Field(int, None),
                              "agent": Field(str, None), "direct": Field(bool, False)}, "observe"),
    "detach": Op(Ops.detach, {}),
    "refresh": Op(Ops.refresh, {}),
    "halt": Op(people.halt, {"session": _S}, "halt"),
    "resume": Op(people.resume, {"session": _S}, "halt"),
    "operator.add": Op(people.add, {"name": _S, "kind": _S, "key": _S}),
    "operator.ls": Op(people.listed, {}),
    "operator.show": Op(people.show, {"name": _S}),
    "operator.revoke": Op(people.revoke, {"name": _S, "force": Field(bool, False), "grants": Field(bool, False)}),
    "envelopes": Op(people.mine, {}),
    "grant": Op(people.grant, {"name": Field(str, None), "rights": Field(list, []), "session": Field(str, None), "expires": Field(int, None),
                               "rate": Field(list, None), "envelope": Field(str, None)}),
    "seize": Op(people.seize, {"session": _S}, "turn.seize"),
    "turn": Op(people.turn, {"session": _S, "act": Field(str, "show"), "to": Field(str, None), "wait": Field(float, 0.0)}),
}
