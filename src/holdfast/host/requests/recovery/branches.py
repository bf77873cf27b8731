"""Operations on branches of live sessions (host/branches)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.branch.changes import Entry
from holdfast.core.checkpoint.preflight import Preflight
from holdfast.core.contract.branches import (
    Branch,
    Branches,
    BranchesReply,
    Clash,
    Diff,
    DiffReply,
    Discard,
    Discarded,
    FileChange,
    FileState,
    Fork,
    ForkReply,
    Keep,
    Kept,
    Left,
    NewBranch,
    Program,
    Remaining,
)
from holdfast.core.contract.checkpoints import Checked, LostConnection
from holdfast.core.contract.message import ABSENT
from holdfast.core.session import connections
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.branches.branches import KeepWish, Outcome
from holdfast.host.branches.difference import Changed
from holdfast.host.branches.store import Branch as One
from holdfast.host.branches.store import Fork as Stored
from holdfast.host.requests.host import Context, Host
from holdfast.host.runtime.progress import giving_up
from holdfast.host.runtime.tasks import to_the_end
from holdfast.model import references
from holdfast.model.errors import HoldfastError, Refused, Usage
from holdfast.model.ids import check_name


async def fork(host: Host, ctx: Context, q: Fork) -> ForkReply:
    engine, session = host.engine, host.engine.find(q.session)
    name = q.name if isinstance(q.name, str) else ""
    if name:
        check_name(name)
    if q.check:
        found = await engine.branches.examine(session, q.n)
        return ForkReply(
            id=session.id,
            name=session.name,
            fork="",
            found=_checked(found),
            branches=(),
            frozen_ms=0.0,
            closed=(),
            losses=found.losses,
        )
    if q.n < 1:
        raise Usage(f"{q.n} is not a number of branches", "at least 1")
    details = {"n": str(q.n)}
    await engine.door.enter(ctx.act, ProposedAct("fork", details=details, wait_s=q.hold))

    with giving_up(f"no branch is made, and {session.name} goes on as it was"):
        forking = engine.branches.fork(session, q.n, name, ctx.conn.operator, ctx.progress())
        made = await forking
    ids = [one.id for one in made.fork.branches]
    session.event(
        "session.forked",
        operator=ctx.conn.operator,
        fork=made.fork.id,
        branches=ids,
        frozen_ms=made.fork.frozen_ms,
    )
    ctx.act.outcome = {"fork": made.fork.id, "branches": ids}
    return ForkReply(
        id=session.id,
        name=session.name,
        fork=made.fork.id,
        found=None,
        branches=tuple(NewBranch(id=one.id, name=one.name) for one in made.fork.branches),
        frozen_ms=made.fork.frozen_ms,
        closed=_lost(made.fork.closed),
        losses=made.losses,
    )


def _checked(found: Preflight) -> Checked:
    return Checked(**found._asdict(), possible=found.possible)


async def branches(host: Host, ctx: Context, q: Branches) -> BranchesReply:
    """Only branches that the caller may observe."""
    engine = host.engine
    about = ""
    if isinstance(q.session, str):
        found = engine.find_any(q.session)
        about = found.id
        host.require(ctx.conn, "observe", about)
    shown = [
        _shown(host, fork, one.id)
        for fork in engine.branches.all()
        for one in fork.branches
        if not one.gone
        and host.may_observe(ctx.conn, one.id)
        and (not about or about in _family(host, fork))
    ]
    return BranchesReply(branches=tuple(shown))


def _family(host: Host, fork: Stored) -> set[str]:
    """A fork's branches, its parent, and the sessions above the parent."""
    found = {one.id for one in fork.branches}
    above: Stored | None = fork
    while above is not None:
        found.add(above.parent)
        above = host.engine.branches.forks.of_branch(above.parent)
    return found


def _shown(host: Host, fork: Stored, session: str) -> Branch:
    engine, one = host.engine, fork.branch(session)
    living, ended = engine.sessions.get(session), engine.ended.get(session)
    state = living.state if living is not None else ended.state if ended is not None else "ended"
    return Branch(
        id=one.id,
        name=living.name if living is not None else one.name,
        state=state,
        fork=fork.id,
        parent=fork.parent,
        parent_name=fork.parent_name,
        ref=references.entry(fork.parent, fork.epoch, fork.seq),
        at=fork.at,
        by=fork.by,
        frozen_ms=fork.frozen_ms,
        kept=one.kept or None,
        exit_code=ended.exit_code if ended is not None and living is None else None,
    )


async def diff(host: Host, ctx: Context, q: Diff) -> DiffReply:
    engine, found = host.engine, host.engine.find_any(q.session)
    host.require(ctx.conn, "observe", found.id)  # it shows processes too
    host.shows(ctx.conn, found.id, "files")
    fork = engine.branches.of_branch(found.id, found.name)
    path = q.path if isinstance(q.path, str) else ""
    made = await engine.branches.difference(fork, found.id, path, q.every, q.texts)
    living = engine.sessions.get(found.id)
    now = await engine.branches.present(living) if living is not None else None
    processes, ports = now or ({}, [])
    before = fork.processes
    return DiffReply(
        id=found.id,
        name=found.name,
        parent=fork.parent,
        state=found.state,
        exit_code=engine.ended[found.id].exit_code if found.id in engine.ended else None,
        files=tuple(map(_file_change, made.files)),
        private=made.private,
        more=made.more,
        began=tuple(_program(p, n) for p, n in processes.items() if before.get(p) != n),
        ended=tuple(_program(p, n) for p, n in before.items() if processes.get(p) != n),
        opened=tuple(port for port in ports if port not in fork.ports),
        closed=tuple(port for port in fork.ports if port not in ports),
    )


def _program(pid: str, name: str) -> Program:
    return Program(pid=int(pid), name=name)


def _file_change(one: Changed) -> FileChange:
    change = one.change
    above = one.path.removesuffix(change.path)
    return FileChange(
        path=one.path,
        what=change.what,
        source=f"{above}{change.source}" if change.source else ABSENT,
        before=_file_state(change.before),
        after=_file_state(change.after),
        text=one.text,
        why=one.why,
    )


def _file_state(entry: Entry | None) -> FileState | None:
    if entry is None:
        return None
    return FileState(kind=entry.kind, mode=entry.mode, size=entry.size, link=entry.text)


async def keep(host: Host, ctx: Context, q: Keep) -> Kept:
    engine, found = host.engine, host.engine.find_any(q.session)
    fork = engine.branches.of_branch(found.id, found.name)
    wish = KeepWish(q.take, q.leave, q.check)
    others = [] if q.others else [one for one in fork.branches if one.id != found.id]

    def allowed() -> None:
        """The parent gets the files, and the other branches are discarded."""
        for touched in (found.id, fork.parent, *(one.id for one in others if not one.gone)):
            host.require(ctx.conn, "fork", touched)
        for read_or_written in (found.id, fork.parent):
            host.require(ctx.conn, "files", read_or_written)

    allowed()
    if not q.check:
        await engine.door.enter(ctx.act, ProposedAct("keep", wait_s=q.hold))
    progress = ctx.progress()

    async def kept() -> Kept:
        made = await engine.branches.keep(fork, found.id, wish, allowed, progress)
        return await _kept(host, ctx, q, fork, others, made)

    with giving_up("nothing is written, and the branches are as they were"):
        return await to_the_end(kept(), lambda: progress.stops)


async def _kept(
    host: Host, ctx: Context, q: Keep, fork: Stored, others: Sequence[One], made: Outcome
) -> Kept:
    """Discard the other branches, if the files are written."""
    engine, found = host.engine, host.engine.find_any(q.session)
    discarded, remaining = list[Left](), list[Remaining]()
    if made.done:
        facts = {"operator": ctx.conn.operator, "steps": made.steps}
        engine.events.note(found.id, "session.kept", facts)
        clashes = [one.path for one in made.conflicts]
        ctx.act.outcome = {"steps": made.steps, "left": [*made.left, *clashes]}
        for other in others if not made.conflicts else ():
            if other.gone:
                continue
            try:
                host.require(ctx.conn, "fork", other.id)
                discarded.append(await _discarded(host, ctx, fork, other.id, other.name))
            except HoldfastError as e:  # the files are written, whatever becomes of this branch
                remaining.append(Remaining(id=other.id, name=other.name, why=e.message))
        ctx.act.outcome["discarded"] = {one.id: _said(one) for one in discarded}
    elif not q.check:
        count = "1 conflict" if len(made.conflicts) == 1 else f"{len(made.conflicts)} conflicts"
        ctx.act.not_applied(Refused(f"{count}: nothing was written"))
    return Kept(
        id=found.id,
        name=found.name,
        done=made.done,
        steps=made.steps,
        conflicts=tuple(Clash(path=one.path, why=one.why) for one in made.conflicts),
        left=tuple(made.left),
        resumed=made.resumed,
        discarded=tuple(discarded),
        remaining=tuple(remaining),
    )


async def discard(host: Host, ctx: Context, q: Discard) -> Discarded:
    engine, found = host.engine, host.engine.find_any(q.session)
    fork = engine.branches.of_branch(found.id, found.name)
    await engine.door.enter(ctx.act, ProposedAct("discard", wait_s=q.hold), owed=True)
    work = _discarded(host, ctx, fork, found.id, found.name)
    left = await to_the_end(work, lambda: False)
    ctx.act.outcome = {"connections": _said(left)}
    return Discarded(id=found.id, name=found.name, left=left)


async def _discarded(host: Host, ctx: Context, fork: Stored, session: str, name: str) -> Left:
    operator = ctx.conn.operator
    left = await host.engine.branches.discard(
        session, name, operator, lambda: what_left(host, fork, session, name)
    )
    facts = {"operator": operator, "connections": _said(left)}
    host.engine.events.note(session, "session.discarded", facts)
    return left


def _said(left: Left) -> list[str]:
    found = (*left.connections, *left.earlier)
    return [f"{one.program} {one.local} -> {one.remote}" for one in found]


def _lost(rows: Iterable[Mapping[str, Any]]) -> tuple[LostConnection, ...]:
    return tuple(LostConnection(**connections.facts(one)) for one in connections.lost(rows))


async def what_left(host: Host, fork: Stored, session: str, name: str) -> Left:
    living, found = host.engine.sessions.get(session), tuple[dict[str, Any], ...]()
    if living is not None:
        with contextlib.suppress(HoldfastError):
            found = await host.engine.branches.connections(living)
    earlier = await host.engine.branches.earlier(session, found)
    return Left(
        id=session,
        name=name,
        connections=_lost(found),
        acts=await host.engine.journal.acts(session),
        closed=_lost(fork.closed),
        servers=tuple(fork.servers),
        earlier=_lost(earlier.rows),
        more=earlier.more,
    )
