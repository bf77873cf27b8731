"""A session as `ls`, `get`, `who` and other replies show a session: stable keys (SURFACE)."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, TypedDict, cast

from holdfast.core.contract.checkpoints import LeaseState
from holdfast.core.contract.message import ABSENT, Size
from holdfast.core.contract.sessions import (
    Attached,
    Liveness,
    Range,
    StoppedOperator,
    Summary,
    TurnState,
)
from holdfast.core.record.statement import client_id
from holdfast.host.copies.copies import Present
from holdfast.host.lifecycle import limits
from holdfast.host.session.session import Session
from holdfast.host.session.stopped import Stop
from holdfast.host.storage.store import SessionRow
from holdfast.model import signing


class Layout(TypedDict, total=False):
    """How a session is laid out, can be halted, and is gated."""

    layout: str
    halt: str
    says: str
    sees: str
    gate: str
    gate_says: str
    limits: dict[str, Any]


MACHINE = os.uname().nodename
ARGV_SHOWN_CHARS = 512  # of a session's arguments in a listing


def describe(s: Session, relay: str = "none") -> Summary:
    """A running session. `relay`: whether this machine can be reached from elsewhere."""
    process = "ended" if s.ending else "alive" if s.answers else "unknown"
    return Summary(
        id=s.id,
        name=s.name,
        machine=MACHINE,
        state=s.state,
        liveness=Liveness(process=process, host="here", relay=relay),
        epoch=s.record.epoch,
        created=s.record.created,
        idle_s=round(time.monotonic() - s.last_activity, 3),
        size=Size(cols=s.size[0], rows=s.size[1]),
        operators=operators(s),
        turn=turn(s),
        stopped=stopped(s) or ABSENT,
        output=Range(start=s.ring.start, end=s.ring.head),
        argv=shortened(s.record.argv),
        cwd=s.record.cwd,
        pid=s.record.root_pid,
        started=s.record.root_start,
        boot=s.record.boot,
        keeper=s.keeper_pid,
        shell=s.commands.kind,
        **layout(s),
        lease=LeaseState(**known) if (known := s.lease()) is not None else ABSENT,
        exit_code=s.record.exit_code,
        ref=s.ref,
        reap=str(s.label["reap"]) if "reap" in s.label else ABSENT,
    )


def layout(s: Session) -> Layout:
    return cast(Layout, {**s.layout, "limits": limits.of_label(s.label)})


def turn(s: Session) -> TurnState | None:
    facts = s.turn.facts()
    return None if facts is None else TurnState(**facts)


def stopped(s: Session) -> tuple[StoppedOperator, ...]:
    return tuple(shown(one) for one in s.stopped)


def shown(one: Stop) -> StoppedOperator:
    return StoppedOperator(
        operator=one.operator,
        by=one.by,
        since=one.since,
        how=one.how,
        processes=tuple(pid for pid, _ in one.processes),
    )


def operators(s: Session) -> tuple[Attached, ...]:
    return tuple(
        Attached(
            operator=v.conn.operator,
            key=signing.show(v.conn.key),
            modality=v.conn.modality,
            observe=v.observe,
            pid=v.conn.pid,
            size=Size(cols=v.size[0], rows=v.size[1]),
            lagging=v.lagging,
            client=client_id(v.conn.client),
        )
        for v in s.viewers
    )


def describe_ended(r: SessionRow, relay: str = "none") -> Summary:
    return Summary(
        id=r.id,
        name=r.name,
        machine=MACHINE,
        state=r.state,
        liveness=Liveness(process="ended", host="here", relay=relay),
        epoch=r.epoch,
        created=r.created,
        idle_s=max(0.0, time.time() - (r.ended or r.created)),
        size=Size(cols=r.cols, rows=r.rows),
        output=Range(start=r.output_start, end=r.output_end),
        argv=shortened(r.argv),
        cwd=r.cwd,
        pid=r.root_pid,
        started=r.root_start,
        boot=r.boot,
        keeper=None,
        shell=None,
        exit_code=r.exit_code,
        reason=r.reason,
        ended=r.ended,
        survivors=r.survivors,
        ended_by=r.ended_by or "unknown",
        ref=f"hf:{r.id}@{r.epoch}",
    )


def as_now(shown: Summary, present: Present) -> Summary:
    """An ended session that is being restored or moved."""
    return replace(shown, state=present.state, reason=present.reason)


def unreachable(session_id: str, name: str, why: str, relay: str = "none") -> Summary:
    """A session with a keeper that does not answer: all facts are unknown."""
    return Summary(
        id=session_id,
        name=name,
        machine=MACHINE,
        state="unknown",
        liveness=Liveness(process="unknown", host="here", relay=relay),
        reason=why,
    )


def shortened(argv: list[str]) -> tuple[str, ...]:
    """Short arguments: a listing of thousands of sessions must fit into a frame."""
    if sum(map(len, argv)) <= ARGV_SHOWN_CHARS:
        return tuple(argv)
    return (*(a[: ARGV_SHOWN_CHARS // 8] for a in argv[:8]), "...")
