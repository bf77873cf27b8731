"""What a client may ask, one function per operation, and the exact fields each request has.

Requests are checked against OPS before anything happens: an unknown operation, a missing, unknown or mistyped field is refused
with its name. The answers are the JSON that the command line prints with --json: stable keys.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from holdfast import __version__
from holdfast.core import acts
from holdfast.core.scope import STARTS_PROGRAMS
from holdfast.host import (
    attaching,
    deciding,
    devices,
    invitations,
    looking,
    metrics,
    noticing,
    people,
    references,
    signalling,
    steering,
    uplinks,
)
from holdfast.host.connection import Connection
from holdfast.host.engine import Engine
from holdfast.host.following import Looks
from holdfast.host.lapsing import warn
from holdfast.host.standing import FOREVER
from holdfast.host.store import Record
from holdfast.host.viewer import Viewer
from holdfast.model.errors import NotAllowed, Usage

SECONDS_MAX = 1e9
RECHECK_MAX_S = 3600.0  # a clock that is set must not make a right outlive its end by more


class Field(NamedTuple):
    kind: type | tuple[type, ...]
    default: Any = ...  # ...: required


class Op(NamedTuple):
    handler: Callable[[Any, Connection, int, dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]
    fields: dict[str, Field]
    right: str = ""  # needed on the session it names, or on the machine; "": who is known may, or the handler asks
    act: bool = False  # it changes the session: signed, recorded, through the door


class Ops:
    def __init__(self, engine: Engine, stop: Callable[[str], None]) -> None:
        self.engine = engine
        self.stop = stop
        self.viewers: dict[Connection, Viewer] = {}
        self.following = Looks()
        self.noticing = noticing.Noticing(engine)
        self.under_way: Counter[str] = Counter()  # requests being answered, by operation
        self._looking: dict[
            asyncio.Task[Any], tuple[Connection, str | None]
        ] = {}  # requests that show something, and of which session
        self._denied: dict[asyncio.Task[Any], NotAllowed] = {}
        self._timer: asyncio.TimerHandle | None = None
        engine.authority.on_change.append(self.recheck)

    async def handle(self, conn: Connection, number: int, body: dict[str, Any]) -> dict[str, Any]:
        op = OPS.get(str(body.get("op")))
        if op is None:
            raise Usage(
                f"unknown operation {str(body.get('op'))[:40]!a}",
                "this host may be older than the client",
            )
        fields = check(op.fields, body)
        session = (
            self.engine.find_any(fields["session"])
            if fields.get("session") and (op.right or op.act)
            else None
        )
        if op.right:
            try:
                self.may(conn, op.right, session.id if session is not None else None)
            except NotAllowed as e:
                if op.right not in STARTS_PROGRAMS or not self._by_command(
                    e, conn, op.right, session.id if session is not None else None
                ):
                    raise
                fields["limited!"] = True
        self.under_way[op.handler.__name__] += 1
        task = asyncio.current_task()
        assert task is not None
        if op.right == "observe":
            self.looks(conn, session.id if session is not None else None)
        where = self.engine.door.here if body["op"] in acts.ON_MACHINE else session
        try:
            if where is None or not acts.is_act(body["op"], fields):
                return await op.handler(self, conn, number, fields)
            if body["op"] in acts.ON_MACHINE:
                fields["asked!"] = body  # as it was sent: what is signed has no defaults
            fields["act!"] = act = self.engine.door.act(conn, where, body["op"], fields)
            return await self.engine.door.through(
                act, lambda: op.handler(self, conn, number, fields)
            )
        except asyncio.CancelledError:
            if (denied := self._denied.pop(task, None)) is not None:
                raise denied from None
            raise
        finally:
            self._looking.pop(task, None)
            self.under_way[op.handler.__name__] -= 1

    async def place(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        """What an act on that session is to be signed for."""
        return self.place_of(conn, q["session"])

    def place_of(self, conn: Connection, name: str) -> dict[str, Any]:
        if name == acts.MACHINE:
            return {
                "id": name,
                "epoch": self.engine.door.here.epoch,
                "seen": self.engine.journal.seen(name),
            }
        found = self.engine.find_any(name)
        if not self.engine.authority.rights_of(conn.key, found.id, time.time()):
            self.may(conn, "observe", found.id)
        return {
            "id": found.id,
            "epoch": found.epoch if isinstance(found, Record) else found.record.epoch,
            "seen": self.engine.journal.seen(found.id),
        }

    def may(self, conn: Connection, right: str, session: str | None) -> None:
        """Returns if its envelopes allow it there now; else says which right is missing, and who could give it (A5)."""
        self.engine.authority.may(conn.key, right, session, time.time())

    def _by_command(
        self, refusal: NotAllowed, conn: Connection, right: str, session: str | None
    ) -> bool:
        """Whether it depends on the command, which the handler will look at."""
        return "retry_in_s" not in refusal.facts and right in self.engine.authority.rights_of(
            conn.key, session, time.time()
        )

    def recheck(self) -> None:
        """Rights have changed, or some have run out: who may not even watch any more is told so and dropped, whatever it is doing."""
        now, again = time.time(), FOREVER
        authority = self.engine.authority
        for session in self.engine.sessions.values():
            session.keyboard.again()
            session.turn.lose(
                lambda key: not authority.dead(key),
                lambda name: bool(authority.devices(name, all=False)),
            )
        for conn, viewer in list(self.viewers.items()):
            try:
                self.may(conn, "observe", viewer.session.id)
            except NotAllowed as e:
                conn.bye("admission", e.message, e.recover)
                continue
            viewer.observe = viewer.observe or "input" not in authority.rights_of(
                conn.key, viewer.session.id, now
            )
            again = min(again, warn(authority, viewer, now))
        for task, (conn, looked_at) in list(self._looking.items()):
            try:
                self.may(conn, "observe", looked_at)
            except NotAllowed as e:
                self._denied[task] = e
                task.cancel()
                continue
            again = min(again, authority.until(conn.key, "observe", looked_at, now))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._look_again(again, now)

    def watches(self, viewer: Viewer) -> None:
        """Somebody attached: they are told if that is not for long."""
        self._look_again(warn(self.engine.authority, viewer, now := time.time()), now)

    def _look_again(self, at: float, now: float) -> None:
        """At that moment at the latest."""
        loop = asyncio.get_running_loop()
        if at < FOREVER and (self._timer is None or self._timer.when() - loop.time() > at - now):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(min(max(0.01, at - now), RECHECK_MAX_S), self.recheck)

    def looks(self, conn: Connection, session: str | None) -> None:
        """The request under way shows something: it is asked about again when what its sender may changes or runs out."""
        task, now = asyncio.current_task(), time.time()
        assert task is not None
        self._looking[task] = conn, session
        self._look_again(self.engine.authority.until(conn.key, "observe", session, now), now)

    # ------------------------------------------------------------ the host itself

    async def ping(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "release": __version__,
            "sessions": len(self.engine.sessions),
            "term": self.engine.term,
        }

    async def down(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        q["act!"].happened(restart=q["restart"])
        asyncio.get_running_loop().call_soon(self.stop, "restart" if q["restart"] else "down")
        return {"pid": os.getpid(), "sessions": len(self.engine.sessions)}

    async def stats(self, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
        e = self.engine
        return {
            "events": dict(sorted(e.events.counters.items())),
            "store": {"failures": e.store.failures, "last": e.store.last_failure},
            "under_way": dict(+self.under_way),
            "viewers": sum(len(s.viewers) for s in e.sessions.values()),
            "sessions": len(e.sessions),
            "term": e.term,
            "skips": sum(v.skips for s in e.sessions.values() for v in s.viewers),
        }

    def leave(self, conn: Connection, how: str) -> None:
        viewer = self.viewers.pop(conn, None)
        if viewer is not None:
            viewer.session.remove_viewer(viewer, how)


def check(fields: dict[str, Field], body: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    unknown = sorted(set(body) - set(fields) - {"op"})
    if unknown:
        raise Usage(
            f"unknown field {unknown[0]!a} in {body['op']}",
            "this host may be older than the client",
        )
    for name, field in fields.items():
        value = body.get(name, field.default)
        if value is ...:
            raise Usage(f"{body['op']} needs the field {name!a}")
        kinds = field.kind if isinstance(field.kind, tuple) else (field.kind,)
        if float in kinds and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not (value is None and field.default is None) and (type(value) not in kinds):
            raise Usage(f"the field {name!a} of {body['op']} has the wrong type")
        if (type(value) is int and not 0 <= value < 1 << 63) or (
            type(value) is float and not 0 <= value < SECONDS_MAX
        ):
            raise Usage(f"the field {name!a} of {body['op']} is out of range")
        out[name] = value
    return out


_S = Field(str)
_ON_MACHINE = {"seq": Field(int), "signed": Field(dict), "hold": Field(float, None)}
_ACT = {"session": _S, **_ON_MACHINE}
OPS: dict[str, Op] = {
    "ping": Op(Ops.ping, {}),
    "down": Op(Ops.down, {**_ON_MACHINE, "restart": Field(bool, False)}, "manage", act=True),
    "stats": Op(Ops.stats, {}),
    "metrics": Op(metrics.metrics, {"families": Field(bool, False)}, "observe"),
    "events": Op(
        looking.events,
        {
            "session": Field(str, None),
            "after": Field(int, 0),
            "limit": Field(int, 100),
            "follow": Field(bool, False),
        },
        "observe",
    ),
    "new": Op(
        steering.new,
        {
            **_ON_MACHINE,
            "name": Field(str, None),
            "argv": Field(list),
            "cwd": _S,
            "env": Field(dict),
            "size": Field(list, None),
            "umask": Field(int, 0o077),
            "existing": Field(bool, False),
            "agent": Field(str, None),
            "token": Field(str, None),
            "contained": Field(bool, None),
            "given": Field(list, []),
            "gate": Field(str, None),
        },
        "new",
        act=True,
    ),
    "ls": Op(looking.ls, {"all": Field(bool, False)}),
    "get": Op(looking.get, {"session": _S}, "observe"),
    "rename": Op(steering.rename, {**_ACT, "name": _S}, "end", act=True),
    "end": Op(steering.end, {**_ACT, "again": Field(bool, False)}, "end", act=True),
    "signal": Op(
        signalling.signal,
        {**_ACT, "pid": Field(int), "signal": _S, "tree": Field(bool, False)},
        "signal",
        act=True,
    ),
    "forget": Op(steering.forget, {**_ON_MACHINE, "session": _S}, "end", act=True),
    "who": Op(looking.who, {"session": _S}, "observe"),
    "resolve": Op(references.resolve, {"ref": _S}),
    "place": Op(Ops.place, {"session": _S}),
    "send": Op(
        steering.send,
        {**_ACT, "text": _S, "keys": Field(list, []), "paste": Field(bool, False)},
        "input",
        act=True,
    ),
    "run": Op(
        steering.run,
        {
            **_ACT,
            "text": _S,
            "timeout": Field(float, 0.0),
            "resume": Field(int, None),
            "for_terminal": Field(bool, False),
        },
        "run",
        act=True,
    ),
    "cover": Op(attaching.cover, {"session": _S, "signed": Field(dict)}),
    "log": Op(
        looking.log,
        {
            "session": _S,
            "after": Field(int, None),
            "limit": Field(int, 100),
            "follow": Field(bool, False),
        },
    ),
    "log.export": Op(looking.log_export, {"session": _S}),
    "wait": Op(
        looking.wait,
        {"session": _S, "for": Field((str, list)), "timeout": Field(float, 0.0)},
        "observe",
    ),
    "attention": Op(
        noticing.attention, {"sessions": Field(list, []), "follow": Field(bool, False)}
    ),
    "view": Op(
        looking.view,
        {"session": _S, "ansi": Field(bool, False), "history": Field(int, 0)},
        "observe",
    ),
    "graph": Op(
        looking.graph,
        {"session": _S, "follow": Field(bool, False), "wrote": Field(list, [])},
        "observe",
    ),
    "read": Op(
        looking.read,
        {
            "session": _S,
            "from": Field(int, None),
            "follow": Field(bool, False),
            "strict": Field(bool, False),
            "for_terminal": Field(bool, False),
        },
        "observe",
    ),
    "attach": Op(
        attaching.attach,
        {
            "session": _S,
            "cols": Field(int),
            "rows": Field(int),
            "observe": Field(bool, False),
            "scrollback": Field(int, None),
            "resume": Field(int, None),
            "agent": Field(str, None),
            "direct": Field(bool, False),
        },
        "observe",
    ),
    "detach": Op(attaching.detach, {}),
    "refresh": Op(attaching.refresh, {}),
    "halt": Op(people.halt, _ACT, "halt", act=True),
    "resume": Op(people.resume, _ACT, "halt", act=True),
    "operator.add": Op(
        people.add,
        {**_ON_MACHINE, "name": _S, "kind": _S, "key": _S, "device": Field(str, "")},
        act=True,
    ),
    "operator.ls": Op(people.listed, {}),
    "operator.show": Op(people.show, {"name": _S}),
    "operator.revoke": Op(
        people.revoke,
        {**_ON_MACHINE, "name": _S, "force": Field(bool, False), "grants": Field(bool, False)},
        act=True,
    ),
    "envelopes": Op(people.mine, {}),
    "grant": Op(
        people.grant,
        {
            **_ON_MACHINE,
            "name": Field(str, None),
            "rights": Field(list, []),
            "session": Field(str, None),
            "expires": Field(int, None),
            "rate": Field(list, None),
            "envelope": Field(str, None),
            "commands": Field(list, None),
        },
        act=True,
    ),
    "approvals": Op(
        deciding.approvals,
        {"session": Field(str, None), "id": Field(str, None), "follow": Field(bool, False)},
    ),
    "ways": Op(uplinks.ways, {}),
    "relays": Op(uplinks.lines, {}, "manage"),
    "relays.changed": Op(uplinks.relays_changed, dict(_ON_MACHINE), "manage", act=True),
    **{
        answer: Op(getattr(deciding, answer), {"id": _S, "binding": _S, "signature": _S})
        for answer in ("approve", "deny", "withdraw")
    },
    **{
        name: Op(
            act,
            {
                **(_ON_MACHINE if name in acts.ON_MACHINE else {}),
                **{key: Field(*kind) for key, kind in fields.items()},
            },
            act=name in acts.ON_MACHINE,
        )
        for name, (act, fields) in {**invitations.OPS, **devices.OPS}.items()
    },
    "seize": Op(people.seize, _ACT, "turn.seize", act=True),
    "turn": Op(
        people.turn,
        {
            "session": _S,
            "seq": Field(int, 0),
            "signed": Field(dict, None),
            "hold": Field(float, None),
            "act": Field(str, "show"),
            "to": Field(str, None),
            "wait": Field(float, 0.0),
        },
        act=True,
    ),
}
