"""The calls of one server: what a token may ask, and the answer of the host as JSON.

Each token has connections of its own, with the modality `http.NAME`: the record shows the token
behind every act, beside the service operator that signed the act.
"""

from __future__ import annotations

import binascii
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, NamedTuple

from holdfast.client.engine.engine import Engine
from holdfast.client.engine.parts import Data, Event, Gap, Part, Reply
from holdfast.client.link import Link
from holdfast.core.contract.table import Operation
from holdfast.faces.http.recovery import TOKENS
from holdfast.faces.http.routes import NARROWED, Fields, needed
from holdfast.faces.http.tokens import Token
from holdfast.home import Home
from holdfast.model.errors import HoldfastError, NotAllowed, OutcomeUnknown, TimedOut, Usage
from holdfast.model.limits import REPLY_WAIT_S
from holdfast.model.references import parse_ref
from holdfast.model.rights import MACHINE_WIDE

ANSWER_S: Final = 60.0  # for a `run` or `wait` without `timeout`, before the answer comes anyway
ANSWER_MOST_S: Final = 300.0  # proxies close longer requests; streams have no such limit
OUTPUT_BYTES: Final = 1 << 20  # of one answer; `read` goes on at the offset that the answer names
PATIENT: Final = frozenset(("wait", "turn", "end"))  # the answer may take longer than REPLY_WAIT_S


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]
    location: str | None = None


class Calls:
    """`environ`: the environment of the server, for new sessions and for a host that it starts."""

    def __init__(self, home: Home, operator: str, environ: Mapping[str, str]) -> None:
        self._home, self._operator, self._environ = home, operator, dict(environ)
        self._engines: dict[str, Engine] = {}  # by the token's modality

    def engine(self, modality: str) -> Engine:
        if modality not in self._engines:
            self._engines[modality] = self.connection(modality)
        return self._engines[modality]

    def connection(self, modality: str) -> Engine:
        """A connection of its own: a slow reader of a stream delays no other request."""
        return Engine(lambda: self.link(modality))

    def link(self, modality: str) -> Link:
        link = Link(self._home, self._operator, modality)
        if self._home.explicit:
            link.host_environ = {**self._environ, "HOLDFAST_HOME": self._home.state}
        return link

    async def close(self) -> None:
        engines, self._engines = list(self._engines.values()), {}
        for engine in engines:
            await engine.close()

    # ------------------------------------------------------------ what a token may

    async def permit(self, token: Token, row: Operation, fields: Fields) -> None:
        """Refuses what the token does not allow, and narrows the fields to the token's session."""
        right = needed(row, fields)
        if right and right not in token.rights:
            raise NotAllowed(
                f"the token {token.name} does not have the right {right}",
                TOKENS,
            )
        if token.session is None:
            return
        if right in MACHINE_WIDE:
            raise _other_session(token)
        if row.name == "attention":
            fields["sessions"] = [token.session]
        elif row.name == "resolve":
            if parse_ref(fields["ref"]).session != token.session:
                raise _other_session(token)
        elif "session" in row_fields(row):
            given = fields.get("session")
            if given is not None and given != token.session:
                await self._same_session(token, given)
            fields["session"] = token.session
        elif row.name not in NARROWED:
            raise _other_session(token)

    async def _same_session(self, token: Token, given: str) -> None:
        """Refuses the name of another session; says the same of a session that does not exist."""
        try:
            found = await self.engine(token.modality).ask("get", session=given)
        except HoldfastError as e:
            if e.retry_safe:
                raise
            raise _other_session(token) from e
        if found.get("id") != token.session:
            raise _other_session(token)

    # ------------------------------------------------------------ answers

    async def answer(self, token: Token, row: Operation, fields: Fields) -> Answer:
        """The whole answer to a request."""
        engine = self.engine(token.modality)
        if row.act:
            fields.setdefault("hold", 0.0)
        if "timeout" in row_fields(row):
            limit = fields.get("timeout") or ANSWER_S
            fields["timeout"] = min(limit, ANSWER_MOST_S)
        if row.name == "run":
            return await self._run(engine, fields)
        if row.name == "read":
            return Answer(200, await self._read(engine, fields))
        if row.name == "new":
            _prepare_new(fields, self._environ)
        wait_s = None if row.name in PATIENT else REPLY_WAIT_S
        if row.name == "turn":
            fields["wait"] = min(fields.get("wait", 0.0), ANSWER_MOST_S)
        body = await engine.ask(row.name, wait_s, **fields)
        if row.name == "ls" and token.session is not None:
            body = {"sessions": [one for one in body["sessions"] if one["id"] == token.session]}
        return Answer(201 if row.name == "new" else 200, body)

    async def _run(self, engine: Engine, fields: Fields) -> Answer:
        """The result of a command; a command that takes too long goes on, and has a reference."""
        data, ref, cut = bytearray(), None, False
        parts = engine.stream("run", **{**fields, "resume": None})
        try:
            async with contextlib.aclosing(parts):
                async for part in parts:
                    if isinstance(part, Event) and part.name == "began":
                        ref = part.body.get("ref")
                    elif isinstance(part, Data):
                        cut = cut or len(data) + len(part.data) > OUTPUT_BYTES
                        data += b"" if cut else part.data
                    elif isinstance(part, Reply):
                        text = data.decode("utf-8", "replace")
                        state = "ended" if part.body.get("ended") else "done"
                        return Answer(
                            200, {**part.body, "state": state, "text": text, "truncated": cut}
                        )
        except TimedOut as e:
            if isinstance(e, OutcomeUnknown) or ref is None:
                raise
        text = data.decode("utf-8", "replace")
        running = {"state": "running", "ref": ref, "text": text, "truncated": cut}
        return Answer(202, running, None if ref is None else poll("resolve", ref=ref))

    async def _read(self, engine: Engine, fields: Fields) -> dict[str, Any]:
        """Output up to a number of bytes; `next` is the offset at which the next request goes on.

        Output that rolled off is reported as the gap before a piece.
        """
        pieces: list[dict[str, Any]] = []
        size, gap = 0, None
        async with contextlib.aclosing(engine.stream("read", **fields)) as parts:
            async for part in parts:
                if isinstance(part, Gap):
                    gap = {"start": part.start, "end": part.end}
                elif isinstance(part, Data):
                    pieces.append({**piece(part), "gap": gap})
                    size, gap = size + len(part.data), None
                    if size >= OUTPUT_BYTES:
                        return {"pieces": pieces, "next": part.end, "more": True}
                elif isinstance(part, Reply):
                    return {**part.body, "pieces": pieces, "next": part.body["end"], "more": False}
        return {"pieces": pieces, "next": None, "more": False}

    async def follow(
        self, engine: Engine, row: Operation, fields: Fields
    ) -> AsyncGenerator[Part, None]:
        """The parts of an answer as they come, over every loss of the host."""
        if row.name == "run":
            fields.setdefault("hold", 0.0)
        else:
            fields["follow"] = True
        async with contextlib.aclosing(
            engine.stream(row.name, patient=row.harmless, **fields)
        ) as parts:
            async for part in parts:
                yield part


def row_fields(row: Operation) -> frozenset[str]:
    from holdfast.core.contract.codec import request_fields

    return frozenset(request_fields(row.request))


def piece(part: Data) -> dict[str, Any]:
    """Output as `read --json` shows it."""
    return {
        "offset": part.start,
        "end": part.end,
        "data": binascii.b2a_base64(part.data, newline=False).decode(),
        "text": part.data.decode("utf-8", "replace"),
    }


def poll(op: str, **query: str) -> str:
    """The address where a client learns more later."""
    from urllib.parse import urlencode

    return f"/v1/{op}?{urlencode(query)}"


def _prepare_new(fields: Fields, environ: dict[str, str]) -> None:
    """The environment of the server, cleaned by the host, and what the request adds."""
    given = dict(fields["env"])
    fields["env"], fields["given"] = {**environ, **given}, sorted(given)
    cwd = fields["cwd"] or os.getcwd()
    if not os.path.isabs(cwd):
        raise Usage("the field cwd of new is not an absolute path")
    fields["cwd"] = cwd
    if "once" not in fields:
        fields["token"] = os.urandom(16).hex()


def _other_session(token: Token) -> NotAllowed:
    return NotAllowed(
        f"the token {token.name} is for another session",
        "the administrator of this server can make a token for that session",
    )
