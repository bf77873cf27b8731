"""Operations that make, rename, end and forget sessions: each is an act (host/acts/door.py)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from hashlib import blake2b

from holdfast.core.contract.message import Absent, extended
from holdfast.core.contract.sessions import (
    Created,
    End,
    Ended,
    Forget,
    Forgotten,
    Named,
    New,
    Rename,
)
from holdfast.core.reaper.reaper import CHOICES
from holdfast.host.acts.act_context import Program, ProposedAct
from holdfast.host.acts.door import testimony
from holdfast.host.exec_gate import gate
from holdfast.host.lifecycle import environment, limits, prepare
from holdfast.host.lifecycle.after_end import changed_tool_files
from holdfast.host.lifecycle.contained.plan import Decision, Wanted
from holdfast.host.lifecycle.prepare import NewSession
from holdfast.host.processes.halt import execution
from holdfast.host.requests.host import Context, Host
from holdfast.host.requests.summary import describe, describe_ended, shortened
from holdfast.host.session.session import Session
from holdfast.host.storage import store
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import NotAllowed, Refused, Unavailable, Usage

COLS_ROWS = range(2, 1001)


async def new(host: Host, ctx: Context, q: New) -> Created:
    engine, conn, act = host.engine, ctx.conn, ctx.act
    env, cwd = q.env, q.cwd
    if conn.channel:  # from another machine, which has other directories and programs
        env = {**environment.of_account(), **env}
        cwd = cwd or env["HOME"]
    _check(q, env, cwd)
    token = _token(ctx, q)
    if (repeated := prepare.made_for(token, engine.sessions.values())) is not None:
        return extended(Created, describe(repeated), existed=False)
    if (existing := await _existing(host, ctx, q)) is not None:
        return extended(Created, describe(existing), existed=True)
    # code that an agent or a service starts must not reach keys, the host and other sessions
    contained = conn.kind != "human" if q.contained is None else q.contained
    if conn.kind != "human":
        _refuse_given(q, engine.settings.agent_env)
        _refuse_lower_gate(q, engine.settings.gate, contained)
        if q.clipboard is True and not engine.settings.clipboard:
            raise NotAllowed(
                "only a person may let a session write to clipboards",
                "leave out --clipboard, or ask a person to set session.clipboard = true",
            )
    human = conn.kind == "human" and not ctx.limited
    if not human:
        env = environment.of_stranger(
            env, engine.environment, engine.settings.agent_env, ctx.limited
        )
    limit = q.limit if isinstance(q.limit, str) else ""
    limited = limits.wanted(
        engine.settings, engine.home.state, contained, limit, conn.kind == "human"
    )
    decision = await _decide_tree(host, ctx, q, cwd, env, human) if contained else None
    if not contained and any(
        not isinstance(asked, Absent) for asked in (q.share, q.doors, q.net, q.publish, q.keep_home)
    ):
        raise Usage("--share, --door, --net, --publish and --keep-home are for contained sessions")
    program = q.argv or (engine.settings.shell or env.get("SHELL") or "/bin/sh",)
    proposed = ProposedAct(
        "new",
        "\0".join(q.argv).encode("utf-8", "surrogateescape"),
        {
            "contained": str(bool(contained)),
            "cwd": cwd,
            "environment": environment.digest(env),
            **(decision.details() if decision is not None else {}),
            **({"gate": q.gate} if q.gate else {}),
            **({"limit": limit} if limit else {}),
            **({"clipboard": "True"} if q.clipboard is True else {}),
            **({"reap": q.reap} if isinstance(q.reap, str) else {}),
            **({} if q.argv else {"shell": program[0]}),
        },
        q.hold or 0.0,
        program=Program(q.name or "", cwd, env.get("HOME"), contained),
    )
    command = await host.permitted(ctx, "new", None, proposed)
    await engine.door.judge(act, proposed)
    await engine.door.commit(act, command=command)
    existing = await _existing(host, ctx, q)  # a parallel request may have made that session
    if existing is not None:
        act.outcome = {"session": existing.id, "name": existing.name}
        return extended(Created, describe(existing), existed=True)
    request = NewSession(
        q.argv,
        cwd,
        env,
        q.name,
        q.size,
        q.umask,
        q.agent if human else None,
        token,
        contained,
        [name for name in q.given if name in env],
        q.gate,
        limited,
        decision,
        conn.kind,
        q.clipboard is True or engine.settings.clipboard,
    )
    session = await engine.create(request, conn.operator)
    if isinstance(q.reap, str):
        engine.residency.reaping.choose(session, q.reap)
    made = describe_ended(session.record) if session.ended.done() else describe(session)
    _record_spawn(host, ctx, session, contained)
    act.outcome = {"session": session.id, "name": session.name}
    return extended(Created, made, existed=False)


def _token(ctx: Context, q: New) -> str | None:
    """The name under which a repeat of the request finds the session; of this caller only."""
    if ctx.act.once is None:
        return q.token and f"{ctx.conn.key.hex()[:16]}.{q.token}"
    named = f"{ctx.conn.operator}\0{ctx.act.once}".encode()
    return f"once.{blake2b(named, digest_size=16).hexdigest()}"


async def _decide_tree(
    host: Host, ctx: Context, q: New, cwd: str, env: dict[str, str], human: bool
) -> Decision:
    """The file tree that a contained session gets; refused if the caller may not have it."""
    wanted = Wanted(
        cwd,
        env,
        human,
        q.share if isinstance(q.share, tuple) else (),
        q.doors if isinstance(q.doors, tuple) else (),
        q.net if isinstance(q.net, str) else None,
        q.keep_home is True,
        q.agent if human and not ctx.conn.channel else None,
        bool(q.cwd),
        q.publish if isinstance(q.publish, tuple) else (),
    )
    return await prepare.decide(host.engine, wanted)


def _check(q: New, env: dict[str, str], cwd: str) -> None:
    """Refuses a request that no program can be started with."""
    if not os.path.isabs(cwd):
        raise Usage(f"--cwd {cwd!a} is not absolute")
    if q.size is not None and not all(n in COLS_ROWS for n in q.size):
        raise Usage("a size is COLSxROWS, each from 2 to 1000")
    if not all("\0" not in a and is_bytes(a) for a in (*q.argv, cwd)):
        raise Usage("arguments must be text without NUL")
    if q.argv and not q.argv[0]:
        raise Usage("the program's name is empty")
    if not all(
        k and "=" not in k and "\0" not in k + v and is_bytes(k + v) for k, v in env.items()
    ):
        raise Usage("the environment must be NAME=VALUE without NUL")
    if not all(name in env for name in q.given):
        raise Usage("what was given is part of the environment")
    if q.gate not in (None, "exec", "input"):
        raise Usage("--gate is exec or input")
    if q.umask > 0o777:
        raise Usage("a umask is at most 0777")
    if not isinstance(q.reap, Absent) and q.reap not in CHOICES:
        raise Usage(f"--reap is one of {', '.join(CHOICES)}")


def _refuse_given(q: New, allowed: Sequence[str]) -> None:
    """Refuses variables that only a person may set, if the maker set them on purpose."""
    barred = [name for name in q.given if not environment.may_give(name, allowed)]
    if barred:
        raise NotAllowed(
            f"you may not set {', '.join(barred)[:200]} for a new session: such variables decide "
            "which files and programs it uses",
            "set it in the session by a command, or ask a person to add the name to "
            "session.agent_env in the configuration",
        )


def _refuse_lower_gate(q: New, configured: str, contained: bool) -> None:
    """Refuses a gate that is less deep than the configuration, which is a person's word."""
    if q.gate == "input" and gate.mode(None, configured, contained)[1]["gate"] != "input":
        raise NotAllowed(
            "only a person may lower the gate of a session to input depth",
            "leave out --gate input, or ask a person to make the session or to set "
            'session.gate = "input" in the configuration',
        )


def _record_spawn(host: Host, ctx: Context, session: Session, contained: bool) -> None:
    """Writes the first entry of the session's record, with a link to the act on the machine."""
    conn, written = ctx.conn, ctx.act.written
    argv = shortened(session.record.argv)
    facts = {
        "argv": [a.encode("utf-8", "backslashreplace").decode() for a in argv],
        "layout": "contained" if contained else "plain",
        **({"sees": sees} if (sees := session.label.get("sees")) else {}),
        **({"tiocsti": "open"} if gate.types_past_host(session.layout) else {}),
        **({"asked": written.hash} if written is not None else {}),
    }
    draft = testimony(conn, session.id, session.record.epoch, "spawn", facts)
    host.engine.journal.post(draft)


async def _existing(host: Host, ctx: Context, q: New) -> Session | None:
    """For `new -A`: the session of that name, which may have to come back from the disk."""
    found = await host.engine.named(q.name) if q.existing and q.name else None
    if found is None and q.name:
        found = await _evicted(host, ctx, q.name, q.existing)
    if found is not None:
        host.require(ctx.conn, "observe", found.id)
    return found


async def _evicted(host: Host, ctx: Context, name: str, existing: bool) -> Session | None:
    """The session of that name that the host had evicted; Refused if a new one is wanted."""
    residency = host.engine.residency
    for row in [one for one in host.engine.ended.values() if one.name == name]:
        if not await residency.evictions.evicted(row):
            continue
        if not existing:
            raise Refused(
                f"a session named {name} is on the disk ({row.id})",
                f"`holdfast attach {name}` brings it back, or choose another name",
                taken=True,
            )
        host.require(ctx.conn, "observe", row.id)
        return await residency.wake(row, ctx.conn.operator, lambda facts: None)
    return None


async def rename(host: Host, ctx: Context, q: Rename) -> Named:
    session = host.engine.find(q.session)
    proposed = ProposedAct("rename", details={"name": q.name}, wait_s=q.hold)
    await host.engine.door.enter(ctx.act, proposed)
    host.engine.rename(session, q.name)
    return Named(id=session.id, name=session.name)


async def end(host: Host, ctx: Context, q: End) -> Ended:
    engine = host.engine
    again = q.again or ctx.act.first is not None
    found = engine.find_any(q.session) if again else engine.find(q.session)
    if isinstance(found, SessionRow):  # a repeat: the answer was lost with a host
        return _ended(found, "")
    await engine.door.enter(ctx.act, ProposedAct("end", wait_s=q.hold), owed=True)
    if found.state == "halted":  # a frozen process hears no other signal
        found.end_of.asked_for(ctx.conn.operator)
        await engine.halter.end(execution(found))
        if found.ended.done():  # its keeper is released, and cannot be asked any more
            await _durable(host, found)
            return _ended(found.record, "SIGKILL")
    signal = await found.end(ctx.conn.operator, lambda: engine.halter.end(execution(found)))
    await _durable(host, found)
    return _ended(
        found.record, signal, await changed_tool_files(engine.threads, engine.home, found.id)
    )


async def _durable(host: Host, ended: Session) -> None:
    """A power cut after the answer must not undo the end; a full disk does not delay it."""
    with contextlib.suppress(Unavailable):
        await host.engine.store.run(store.save(ended.record))


def _ended(r: SessionRow, signal: str, changed: Sequence[str] = ()) -> Ended:
    more = {"tool_files": tuple(changed)} if changed else {}
    return Ended(
        id=r.id, name=r.name, signal=signal, exit_code=r.exit_code, reason=r.reason, **more
    )


async def forget(host: Host, ctx: Context, q: Forget) -> Forgotten:
    engine, found = host.engine, host.engine.find_any(q.session)
    if not isinstance(found, SessionRow):
        raise Refused(
            f"session {found.name} still runs", f"end it first: `holdfast end {found.name}`"
        )
    if engine.branches.forks.of_branch(found.id) is not None:
        raise Refused(
            f"{found.name} is a branch with files", f"`holdfast discard {found.name}` removes them"
        )
    facts = {"session": found.id, "name": found.name}
    await engine.door.judge(ctx.act, ProposedAct("forget", details=facts, wait_s=q.hold or 0.0))
    await engine.door.commit(ctx.act)
    if found.id in engine.incarnations.checkpoints.busy or engine.ended.get(found.id) is not found:
        raise Refused(f"{found.name} is being restored", "`holdfast ls` shows what became of it")
    files = engine.forget(found)
    ctx.act.outcome = {**facts}
    return Forgotten(id=found.id, name=found.name, **({"files": files} if files else {}))


def is_bytes(text: str) -> bool:
    """Whether the text stands for bytes: lone surrogates only for bytes that are not UTF-8."""
    return not any("\ud800" <= c <= "\udc7f" or "\udd00" <= c <= "\udfff" for c in text)
