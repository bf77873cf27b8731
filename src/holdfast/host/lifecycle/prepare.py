"""What a new session is made of, before anything of it runs: its private files, its environment, its shell with our hooks, and the request to the nursery for a keeper."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.host import environment, execgate, layouts
from holdfast.host.shell import launch
from holdfast.host.store import Record
from holdfast.model.errors import Unavailable
from holdfast.model.limits import COLS_DEFAULT, LABEL_BYTES, ROWS_DEFAULT
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.home import Home
    from holdfast.host.engine import Engine

KEEPER_SUFFIX: Final = ".keeper"
SHARED, MEMORY = "s", "memory"  # directories for sessions
PATH_CHARS: Final = 256
TOKEN_CHARS: Final = 64
GIVEN_MAX: Final = 32


def directory(home: Home, session_id: str) -> str:
    """Private files of one session: shell integration, side channel, agent link. Its programs can read and write there, contained or not."""
    return _made(f"{home.run}/{SHARED}/{session_id}")


def memory(home: Home, session_id: str) -> str:
    """What one host writes down of it for the next. Programs of a contained session do not get there: they could have the next host believe anything, or have this one write through a link."""
    return _made(f"{home.run}/{MEMORY}/{session_id}")


def remove(home: Home, session_id: str) -> None:
    for each in (SHARED, MEMORY):
        shutil.rmtree(f"{home.run}/{each}/{session_id}", ignore_errors=True)


def _made(path: str) -> str:
    for one in (os.path.dirname(path), path):  # makedirs gives the mode to the last of them only
        os.makedirs(one, mode=0o700, exist_ok=True)
    return path


def token(given: str | None) -> str:
    """By which a request is known again."""
    return (given or "")[:TOKEN_CHARS]


async def prepare(
    engine: Engine, session_id: str, name: str, request: dict[str, Any], operator: str
) -> tuple[Record, dict[str, Any], wire.Spawn]:
    """What the store, the keeper and the nursery are told of it."""
    home, settings = engine.home, engine.settings
    nonce, contained = secrets.token_hex(16), bool(request.get("contained"))
    try:
        own = directory(home, session_id)
        env = environment.of_session(request["env"], home, session_id, own) | (
            layouts.environment(own) if contained else {}
        )
        if request.get("agent"):
            await environment.refresh_agent(engine.threads, session_id, own, request["agent"])
        argv = request["argv"] or [settings.shell or env.get("SHELL") or "/bin/sh"]
        launched = launch.prepare(argv, Path(own), nonce, env, login=settings.login_shell)
    except OSError as e:
        raise Unavailable(
            f"cannot write {home.run}: {e.strerror}",
            "free disk space or make the directory writable",
        ) from e
    cols, rows = request["size"] or (COLS_DEFAULT, ROWS_DEFAULT)
    label = {
        "name": name,
        "argv": argv,
        "cwd": request["cwd"],
        "shell": launched.kind,
        "nonce": nonce,
        "by": operator,
        "token": token(request.get("token")),
    }
    gate, gated = execgate.mode(request.get("gate"), settings.gate, contained)
    label |= gated
    if len(json.dumps(label)) > LABEL_BYTES // 2:  # the store has all of it
        label["argv"] = [argv[0][:PATH_CHARS], "..."]
    label["given"] = request.get("given", [])[
        :GIVEN_MAX
    ]  # variables that its maker set for it: theirs, not the machine's
    record = Record(
        session_id, name, "creating", 1, time.time(), argv, request["cwd"], engine.boot, cols, rows
    )
    spawn = wire.Spawn(
        session_id,
        1,
        session_id + KEEPER_SUFFIX,
        cols,
        rows,
        settings.ring_bytes,
        int(settings.host_away_s * 1000),
        json.dumps(label).encode(),
        tuple(os.fsencode(a) for a in launched.argv),
        tuple(os.fsencode(f"{k}={v}") for k, v in launched.env.items()),
        os.fsencode(request["cwd"]),
        request["umask"],
        containment=layouts.containment(home, own) if contained else None,
        gate=gate,
    )
    return record, label, spawn
