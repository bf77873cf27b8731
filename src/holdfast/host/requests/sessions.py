"""Operations that make, change and end sessions: each an act through the door (host/door.py)."""

from __future__ import annotations

import os
import termios
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.core.conditions import Request
from holdfast.core.gate import programs
from holdfast.core.keys import encode, paste
from holdfast.core.record import HOST, UNSEEN, Draft, Terminal
from holdfast.core.scope import Command
from holdfast.host import environment
from holdfast.host import run as running
from holdfast.host.connection import Connection
from holdfast.host.describing import describe, describe_ended
from holdfast.host.door import SHOWN, Act
from holdfast.host.halt import execution
from holdfast.host.session import Commit, Session
from holdfast.host.situation import situation
from holdfast.host.store import Record
from holdfast.model import signing
from holdfast.model.errors import Impossible, Refused, Usage
from holdfast.model.limits import CANON_LINE_BYTES, INPUT_CHUNK_BYTES, RUN_TEXT_BYTES
from holdfast.wire.keeper import State

if TYPE_CHECKING:
    from holdfast.host.ops import Ops


async def new(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    if conn.channel:  # from another machine, where other directories and programs are
        q["env"] = {**environment.of_account(), **q["env"]}
        q["cwd"] = q["cwd"] or q["env"]["HOME"]
    if not os.path.isabs(q["cwd"]):
        raise Usage(f"--cwd {q['cwd']!a} is not absolute")
    if q["size"] is not None and (
        len(q["size"]) != 2 or not all(type(n) is int and 2 <= n <= 1000 for n in q["size"])
    ):
        raise Usage("a size is COLSxROWS, each from 2 to 1000")
    if not all(
        isinstance(a, str) and a.find("\0") < 0 and _is_bytes(a) for a in (*q["argv"], q["cwd"])
    ):
        raise Usage("arguments must be text without NUL")
    if q["argv"] and not q["argv"][0]:
        raise Usage("the program's name is empty")
    if not all(
        isinstance(v, str) and k and "=" not in k and "\0" not in k + v and _is_bytes(k + v)
        for k, v in q["env"].items()
    ):
        raise Usage("the environment must be NAME=VALUE without NUL")
    if not all(isinstance(name, str) and name in q["env"] for name in q["given"]):
        raise Usage("what was given is part of the environment")
    if q["gate"] not in (None, "exec", "input"):
        raise Usage("--gate is exec or input")
    if q["umask"] > 0o777:
        raise Usage("a umask is at most 0777")
    q["token"] = q["token"] and f"{conn.key.hex()[:16]}.{q['token']}"  # of one's own requests only
    if (repeated := ops.engine.made_for(q["token"])) is not None:
        return {**describe(repeated), "existed": False}
    if (existing := await _existing(ops, conn, q)) is not None:
        return {**describe(existing), "existed": True}
    if q["contained"] is None:
        q["contained"] = (
            conn.kind == "agent"
        )  # code that an agent starts is not to reach keys, host and other sessions
    if conn.kind != "human" or q.get("limited!"):
        q["env"] = environment.of_stranger(q["env"], bool(q.get("limited!")))
    program = q["argv"] or [ops.engine.settings.shell or q["env"].get("SHELL") or "/bin/sh"]
    details = {
        "contained": str(bool(q["contained"])),
        "cwd": q["cwd"],
        "environment": environment.digest(q["env"]),
        **({"gate": q["gate"]} if q["gate"] else {}),
        **({} if q["argv"] else {"shell": program[0]}),
    }

    async def observe() -> Request:
        asked = await situation(
            None, conn, "new", "\0".join(q["argv"]).encode("utf-8", "surrogateescape"), details
        )
        return replace(
            asked,
            name=q["name"] or "",
            cwd=q["cwd"],
            project=q["cwd"],
            home=q["env"].get("HOME"),
            contained=q["contained"],
        )

    command = await _only_its_commands(ops, conn, "new", None, q, await observe())
    act: Act = q["act!"]
    await ops.engine.door.judged(act, number, observe, q["hold"] or 0.0)
    await _commit(ops, conn, act, "new", command=command)()
    if (
        existing := await _existing(ops, conn, q)
    ) is not None:  # somebody was quicker, while this was judged and written down
        return {
            **describe(existing),
            "existed": True,
            "outcome": {"session": existing.id, "name": existing.name},
        }
    session = await ops.engine.create(q, conn.operator)
    made = (
        describe_ended(session.record) if session.ended.done() else describe(session)
    )  # it may be over already
    ops.engine.journal.post(
        Draft(
            session.id,
            session.record.epoch,
            "fact",
            "spawn",
            conn.operator,
            conn.modality,
            HOST,
            signing.show(conn.key),
            originators=(),
            facts={
                "argv": [a.encode("utf-8", "backslashreplace").decode() for a in made["argv"]],
                "layout": "contained" if q["contained"] else "plain",
                **({"asked": act.written.hash} if act.written is not None else {}),
            },
        )
    )
    return {**made, "existed": False, "outcome": {"session": session.id, "name": session.name}}


async def _existing(ops: Ops, conn: Connection, q: dict[str, Any]) -> Session | None:
    """For `new -A`: the session that is there already."""
    found = await ops.engine.named(q["name"]) if q["existing"] and q["name"] else None
    if found is not None:
        ops.may(conn, "observe", found.id)
    return found


async def rename(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    session = ops.engine.find(q["session"])
    await ops.engine.door.clear(
        q["act!"], number, "rename", details={"name": q["name"]}, wait_s=q["hold"]
    )
    await q["act!"].intend()
    ops.engine.rename(session, q["name"])
    return {"id": session.id, "name": session.name}


async def end(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    found = ops.engine.find_any(q["session"]) if q["again"] else ops.engine.find(q["session"])
    if isinstance(found, Record):  # asked before, and the answer was lost with a host
        return {
            "id": found.id,
            "name": found.name,
            "signal": "",
            "exit_code": found.exit_code,
            "reason": found.reason,
        }
    await ops.engine.door.clear(q["act!"], number, "end", wait_s=q["hold"])
    await q["act!"].intend(owed=True)
    if found.state == "halted":  # what is frozen hears no signal but this
        await ops.engine.halter.end(execution(found))
    by, r = (
        await found.end(conn.operator, lambda: ops.engine.halter.end(execution(found))),
        found.record,
    )
    return {"id": r.id, "name": r.name, "signal": by, "exit_code": r.exit_code, "reason": r.reason}


async def forget(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    found = ops.engine.find_any(q["session"])
    if not isinstance(found, Record):
        raise Refused(
            f"session {found.name} still runs", f"end it first: `holdfast end {found.name}`"
        )
    await ops.engine.door.clear(
        q["act!"],
        number,
        "forget",
        details={"session": found.id, "name": found.name},
        wait_s=q["hold"] or 0.0,
    )
    await _commit(ops, conn, q["act!"], "end", of=found.id)()
    ops.engine.forget(found)
    return {
        "outcome": {"session": found.id, "name": found.name},
        "id": found.id,
        "name": found.name,
    }


def _commit(
    ops: Ops,
    conn: Connection,
    act: Act,
    right: str,
    terminal: Terminal = UNSEEN,
    command: Command | None = None,
    of: str | None = None,
) -> Commit:
    """Writes the act down; then it is asked once more whether it may be done, for that took time."""

    async def commit() -> None:
        await act.intend(terminal)
        ops.engine.authority.may(
            conn.key,
            right,
            act.session.id if isinstance(act.session, Session) else of,
            time.time(),
            command,
            spend=False,
        )

    return commit


async def send(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    session = ops.engine.find(q["session"])
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
    act: Act = q["act!"]
    last = act.number + (len(data) - 1) // INPUT_CHUNK_BYTES
    if act.repeat != session.lane.known(conn.client, last):
        raise Refused(
            f"numbers {act.number} to {last} of this client were used in part",
            "number every act anew, one number for each piece",
        )
    terminal = await session.terminal()
    if not act.repeat:
        await session.look_and_ask(
            conn.operator, take=False
        )  # first: nobody is asked about what would be refused all the same
        hidden = shown_to(session, terminal) == (False, True)
        what = "paste" if q["paste"] else "line" if b"\r" in data or b"\n" in data else "keys"
        await ops.engine.door.clear(
            act, number, what, lambda: session.turn.begun() + data, wait_s=q["hold"], secret=hidden
        )
    refuse_long_line(data, bool(terminal.lflag & termios.ICANON))
    commit, sequence = _commit(ops, conn, act, "input", shown_to(session, terminal)), 0
    for i, at in enumerate(range(0, len(data), INPUT_CHUNK_BYTES)):
        sequence = await session.type(
            conn.operator,
            conn.client,
            q["seq"] + i,
            data[at : at + INPUT_CHUNK_BYTES],
            commit if not i else None,
            act.repeat,
            conn.key,
            act.writers,
        )
        act.taken, act.part = (
            sequence,
            {"bytes": min(len(data), at + INPUT_CHUNK_BYTES), "of": len(data)},
        )
    act.part = {}
    return {
        "id": session.id,
        "bytes": len(data),
        "act": sequence,
        "ref": f"{session.ref}#{sequence}",
    }


async def run(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    if len(_bytes(q["text"])) > RUN_TEXT_BYTES:
        raise Usage(f"a command may have {RUN_TEXT_BYTES} bytes", "put it into a file and run that")
    if not q["text"].strip() or "\0" in q["text"]:
        raise Usage("nothing to run" if not q["text"].strip() else "a command cannot contain NUL")
    session, act = ops.engine.find(q["session"]), q["act!"]
    command: Command | None = None
    if not act.repeat:
        await running.ready(session)  # first: a busy shell would use up an approval for nothing
        command = await _only_its_commands(
            ops,
            conn,
            "run",
            session.id,
            q,
            await situation(session, conn, "run", _bytes(q["text"])),
        )
        await ops.engine.door.clear(act, number, "run", lambda: _bytes(q["text"]), wait_s=q["hold"])
    return await running.run(
        session, conn, number, q, act, _commit(ops, conn, act, "run", command=command)
    )


async def _only_its_commands(
    ops: Ops, conn: Connection, right: str, session: str | None, q: dict[str, Any], request: Request
) -> Command | None:
    """For an envelope that is for certain commands: which programs this would start, and whether all of them are. Gives them."""
    if not q.get("limited!"):
        return None
    command = programs(await ops.engine.gate.facts_beside(request))
    ops.engine.authority.may(conn.key, right, session, time.time(), command)
    return command


def refuse_long_line(data: bytes, in_line_mode: bool) -> None:
    """In canonical mode the terminal would silently drop the rest of such a line."""
    longest = max(len(line) for line in data.replace(b"\r", b"\n").split(b"\n"))
    if in_line_mode and longest > CANON_LINE_BYTES:
        raise Impossible(
            f"a line of {longest} bytes: the terminal is in line mode and drops all beyond {CANON_LINE_BYTES}",
            "split the line, or use `holdfast run`, which passes its text beside the terminal",
        )


def shown_to(session: Session, terminal: State) -> Terminal:
    """Whether what is typed now is shown, as far as that is known: by the kernel's echo, or by a shell that says it is at its prompt and has
    the terminal. A POSIX shell does not say when it begins a command. Everything else may be a secret (docs/record.md)."""
    if (
        session.commands.kind in ("bash", "zsh")
        and session.commands.shell.at_prompt
        and terminal.foreground == session.record.root_pid
    ):
        return SHOWN
    return bool(terminal.lflag & termios.ECHO), bool(terminal.lflag & termios.ICANON)


def _bytes(text: str) -> bytes:
    """As the client had it: bytes that are no UTF-8 travel as lone surrogates."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise Usage("the text has characters that no bytes stand for", "send UTF-8") from e


def _is_bytes(text: str) -> bool:
    return not any("\ud800" <= c <= "\udc7f" or "\udd00" <= c <= "\udfff" for c in text)
