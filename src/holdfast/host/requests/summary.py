"""What is said of a session, for `ls`, `who` and every other answer that shows one: stable keys (SURFACE)."""

from __future__ import annotations

import os
import time
from typing import Any

from holdfast.host.session import Session
from holdfast.host.store import Record
from holdfast.model import signing

MACHINE = os.uname().nodename
ARGV_SHOWN_CHARS = 512  # of a session's arguments in a listing


def describe(s: Session, relay: str = "none") -> dict[str, Any]:
    """`relay`: how this machine is registered where it can be reached from elsewhere."""
    now = time.monotonic()
    return {
        "id": s.id,
        "name": s.name,
        "machine": MACHINE,
        "state": s.state,
        "liveness": {
            "process": "ended" if s.ending else "alive" if s.answers else "unknown",
            "host": "here",
            "relay": relay,
        },
        "epoch": s.record.epoch,
        "created": s.record.created,
        "idle_s": round(now - s.last_activity, 3),
        "size": {"cols": s.size[0], "rows": s.size[1]},
        "operators": operators(s),
        "turn": s.turn.facts(),
        "output": {"start": s.ring.start, "end": s.ring.head},
        "argv": _short(s.record.argv),
        "cwd": s.record.cwd,
        "pid": s.record.root_pid,
        "started": s.record.root_start,
        "boot": s.record.boot,
        "keeper": s.keeper_pid,
        "shell": s.commands.kind,
        **s.layout,
        "exit_code": s.record.exit_code,
        "ref": s.ref,
    }


def operators(s: Session) -> list[dict[str, Any]]:
    return [
        {
            "operator": v.conn.operator,
            "key": signing.show(v.conn.key),
            "modality": v.conn.modality,
            "observe": v.observe,
            "pid": v.conn.pid,
            "size": {"cols": v.size[0], "rows": v.size[1]},
            "lagging": v.lagging,
        }
        for v in s.viewers
    ]


def describe_ended(r: Record, relay: str = "none") -> dict[str, Any]:
    return {
        "id": r.id,
        "name": r.name,
        "machine": MACHINE,
        "state": r.state,
        "liveness": {"process": "ended", "host": "here", "relay": relay},
        "epoch": r.epoch,
        "created": r.created,
        "idle_s": max(0.0, time.time() - (r.ended or r.created)),
        "size": {"cols": r.cols, "rows": r.rows},
        "operators": [],
        "turn": None,
        "output": {"start": r.output_start, "end": r.output_end},
        "argv": _short(r.argv),
        "cwd": r.cwd,
        "pid": r.root_pid,
        "started": r.root_start,
        "boot": r.boot,
        "keeper": None,
        "shell": None,
        "exit_code": r.exit_code,
        "reason": r.reason,
        "ended": r.ended,
        "survivors": r.survivors,
        "ref": f"hf:{r.id}@{r.epoch}",
    }


def unreachable(session_id: str, name: str, why: str, relay: str = "none") -> dict[str, Any]:
    """A keeper that exists and does not answer: nothing about it is known now, and that is what is said."""
    return {
        "id": session_id,
        "name": name,
        "machine": MACHINE,
        "state": "unknown",
        "liveness": {"process": "unknown", "host": "here", "relay": relay},
        "epoch": None,
        "created": None,
        "idle_s": None,
        "size": None,
        "operators": [],
        "turn": None,
        "output": None,
        "reason": why,
        "exit_code": None,
    }


def _short(argv: list[str]) -> list[str]:
    """A listing of thousands of sessions must fit into a frame, whatever their arguments are."""
    if sum(map(len, argv)) <= ARGV_SHOWN_CHARS:
        return argv
    return [*(a[: ARGV_SHOWN_CHARS // 8] for a in argv[:8]), "..."]
