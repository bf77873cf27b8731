"""Prepares a new session before any of its programs run.

The host makes the private files, the environment, the shell with our hooks, and the request to the
nursery.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.core.containment.tree import RUNTIME
from holdfast.core.session.shell_marks import TAGGED
from holdfast.host.exec_gate import gate as execgate
from holdfast.host.lifecycle import environment
from holdfast.host.lifecycle.contained import own_directories, plan, tool_files
from holdfast.host.lifecycle.contained.plan import Decision
from holdfast.host.lifecycle.limits import NO_LIMITS, Wanted
from holdfast.host.shell import SessionDirectories, launch
from holdfast.host.storage.store import SessionRow
from holdfast.model.contained import OWN as OWN_NETWORK
from holdfast.model.errors import Refused, Unavailable
from holdfast.model.limits import COLS_DEFAULT, LABEL_BYTES, ROWS_DEFAULT
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.home import Home
    from holdfast.home.settings import Settings
    from holdfast.host.runtime.threads import Threads
    from holdfast.host.session.session import Session

KEEPER_SUFFIX: Final = ".keeper"
# Directories below home.run; each has a directory for every session.
DIRECTORIES = SESSION_READABLE, SESSION_WRITABLE, HOST_ONLY = "r", "s", "memory"
# Where the host's files for a shell are, as in the session's label. A shell keeps the paths that it
# was started with. TOGETHER: in the writable directory, as in builds that wrote no such label.
# APART: in the readable directory. MOUNTED: likewise, but programs see both at fixed paths.
TOGETHER, APART, MOUNTED = "together", "apart", "mounted"
READABLE_INSIDE: Final = Path(RUNTIME)  # a read-only mount, if MOUNTED
OWN: Final = "own"  # the writable directory is mounted there, below the readable one
PATH_CHARS: Final = 256
TOKEN_CHARS: Final = 64
GIVEN_MAX: Final = 32
SEES_CHARS: Final = 1024
HOOKS_WRITABLE: Final = "writable"  # in the session's label
PLAIN_SESSION: Final = (
    "this is a plain session: an agent here could read the files and keys of the account"
)
WRITABLE_SESSION: Final = (
    "the git hooks of this session can be written: an agent here could leave a program that your "
    "git executes later"
)
DECIDE_S: Final = 10.0  # for the file systems of a request to answer


@dataclass(frozen=True, slots=True)
class NewSession:
    """A checked request for a session. `given`: variables that the creator set on purpose.

    `decision`: about the file tree of a contained session; without one it gets no workspace that
    would be refused.
    """

    argv: Sequence[str]
    cwd: str
    env: dict[str, str]
    name: str | None = None
    size: Sequence[int] | None = None
    umask: int = 0o077
    agent: str | None = None
    token: str | None = None
    contained: bool = False
    given: Sequence[str] = ()
    gate: str | None = None
    limits: Wanted = NO_LIMITS
    decision: Decision | None = None
    maker_kind: str = "human"
    clipboard: bool = False


class FileAuthors(Protocol):
    """The record of who wrote which file."""

    async def provided(self, paths: Sequence[str]) -> None: ...

    def forget_acts(self, session: str) -> None: ...


class Maker(Protocol):
    """The parts of a host that every new session needs."""

    @property
    def home(self) -> Home: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def threads(self) -> Threads: ...

    @property
    def boot(self) -> str: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def sessions(self) -> Mapping[str, Session]: ...

    @property
    def writers(self) -> FileAuthors: ...


def session_directories(home: Home, session_id: str, place: str) -> SessionDirectories:
    """The directories of a session, made if missing. `place`: from the label."""
    writable = session_writable_directory(home, session_id)
    if place == TOGETHER:
        return SessionDirectories.as_outside(writable, writable)
    readable = session_readable_directory(home, session_id)
    if place == APART:
        return SessionDirectories.as_outside(readable, writable)
    return SessionDirectories(readable, writable, READABLE_INSIDE, READABLE_INSIDE / OWN)


def place_of_files(contained: bool) -> str:
    """Where a new session gets the host's files."""
    return MOUNTED if contained else APART


def session_readable_directory(home: Home, session_id: str) -> Path:
    """The directory of shell integration and of the text of a `run`: only the host writes there.

    In a plain session this is an agreement, because its programs have the host's account.
    """
    made = _made(f"{home.run}/{SESSION_READABLE}/{session_id}")
    os.makedirs(f"{made}/{OWN}", mode=0o700, exist_ok=True)
    return Path(made)


def session_writable_directory(home: Home, session_id: str) -> Path:
    """The directory of the shell's snapshots and of the agent link.

    Programs of the session, contained or not, can read and write there.
    """
    return Path(_made(f"{home.run}/{SESSION_WRITABLE}/{session_id}"))


def session_places(home: Home, session_id: str) -> list[str]:
    """The paths of all directories of a session that belong to one incarnation."""
    return [f"{home.run}/{one}/{session_id}" for one in DIRECTORIES]


def host_only_directory(home: Home, session_id: str) -> str:
    """The directory of files that a host writes for the next host.

    Programs of a contained session cannot reach this directory. Otherwise they could deceive the
    next host, or make this host write through a link.
    """
    return _made(f"{home.run}/{HOST_ONLY}/{session_id}")


def _made(path: str) -> str:
    # makedirs applies the mode to the last directory only.
    for one in (os.path.dirname(path), path):
        os.makedirs(one, mode=0o700, exist_ok=True)
    return path


def token(given: str | None) -> str:
    """The token by which the host recognises a repeated request, cut to its bound."""
    return (given or "")[:TOKEN_CHARS]


def made_for(given: str | None, sessions: Iterable[Session]) -> Session | None:
    """The session that an earlier try of the same request created.

    The keeper remembers the token, even if the host that sent the token died.
    """
    found = (one for one in sessions if one.label.get("token") == token(given))
    return next(found, None) if given else None


async def _built(
    maker: Maker,
    session_id: str,
    name: str,
    request: NewSession,
    operator: str,
    directories: SessionDirectories,
) -> plan.Built | None:
    """The file tree of a contained session; None for a plain one."""
    if not request.contained:
        return None
    decision = request.decision or await decide(
        maker, plan.Wanted(request.cwd, request.env, True, chosen=False)
    )
    keep_as = own_directories.kept_name(operator, name)
    built = await maker.threads.of(
        session_id, plan.build, _machine(maker), decision, session_id, keep_as, directories
    )
    await maker.writers.provided(built.provided)
    if built.watched:
        others = [f"{maker.home.run}/{HOST_ONLY}/{one}" for one in maker.sessions]
        before = await maker.threads.of(session_id, tool_files.oldest, built.watched, others)
        tool_files.save(host_only_directory(maker.home, session_id), before)
    return built


def closed_to_agents(sessions: Mapping[str, Session]) -> Callable[[str, str], str]:
    """A function: why an agent needs the right `plain` to act in a session, or "".

    A plain session of an agent was approved by a person or by the policy.
    """

    def why(session_id: str, operator: str) -> str:
        session = sessions.get(session_id)
        if session is None or session.label.get("by") == operator:
            return ""
        if session.layout.get("layout") != "contained":
            return PLAIN_SESSION
        return WRITABLE_SESSION if session.label.get("hooks") == HOOKS_WRITABLE else ""

    return why


def sees(label: Mapping[str, Any]) -> dict[str, str]:
    """The part of a session's layout that says what a contained session sees and writes."""
    return {"sees": str(label["sees"])} if "sees" in label else {}


def check_kept_home(maker: Maker, request: NewSession, name: str, operator: str) -> None:
    """Refuse a kept home that a session has already; that session may have another name now."""
    if request.decision is None or not request.decision.terms.keep_home:
        return
    wanted = own_directories.kept_home(maker.home, operator, name)
    if any(session.label.get("kept") == wanted for session in maker.sessions.values()):
        raise Refused(
            f"the kept home of {name} is in use by a session with another name",
            "end that session, or choose another name",
        )


def _machine(maker: Maker) -> plan.Machine:
    return plan.Machine(maker.home, maker.environment)


async def decide(maker: Maker, wanted: plan.Wanted) -> Decision:
    """What a contained session gets. A directory that does not answer is given up."""
    try:
        return await asyncio.wait_for(
            maker.threads.of("contained", plan.decide, _machine(maker), maker.settings, wanted),
            DECIDE_S,
        )
    except TimeoutError:
        raise Unavailable(
            f"the file system of {wanted.cwd} does not answer", "choose another --cwd"
        ) from None


def row_of(
    session_id: str, label: Mapping[str, Any], welcome: wire.Welcome, boot: str
) -> SessionRow:
    """The row of a session that the store has lost, by what its keeper says."""
    return SessionRow(
        session_id,
        str(label.get("name", session_id)),
        "detached",
        welcome.epoch,
        welcome.created_ns / 1e9,
        list(label.get("argv", [])),
        str(label.get("cwd", "")),
        boot,
    )


def packed(label: Mapping[str, Any]) -> bytes:
    """The label as the keeper holds it."""
    return json.dumps(label).encode()


async def prepare(
    maker: Maker, session_id: str, name: str, request: NewSession, operator: str
) -> tuple[SessionRow, dict[str, Any], wire.Spawn]:
    """The record for the store, the label for the keeper, and the request to the nursery."""
    home, settings = maker.home, maker.settings
    nonce, contained = secrets.token_hex(16), request.contained
    try:
        place = place_of_files(contained)
        directories = session_directories(home, session_id, place)
        built = await _built(maker, session_id, name, request, operator, directories)
        env = environment.of_session(
            built.env if built else request.env, home, session_id, directories
        )
        if built:
            env = environment.of_contained(env, built.env)
        elif request.agent and request.maker_kind == "human":
            await environment.refresh_agent(
                maker.threads, session_id, str(directories.writable), request.agent
            )
        argv = list(request.argv) or [settings.shell or env.get("SHELL") or "/bin/sh"]
        launched = launch.prepare(argv, directories, nonce, env, login=settings.login_shell)
    except OSError as e:
        raise Unavailable(
            f"cannot write {home.run}: {e.strerror}",
            "free disk space or make the directory writable",
        ) from e
    cols, rows = request.size or (COLS_DEFAULT, ROWS_DEFAULT)
    label: dict[str, Any] = {
        "name": name,
        "argv": argv,
        "cwd": request.cwd,
        "shell": launched.kind,
        "nonce": nonce,
        "by": operator,
        "token": token(request.token),
    }
    if request.maker_kind != "human":
        label["maker"] = request.maker_kind
    if request.clipboard:
        label["clipboard"] = True
    if built:
        label["sees"] = "; ".join((built.says, *built.notes))[:SEES_CHARS]
        if built.connect:
            label["net"] = OWN_NETWORK
        if built.kept:
            label["kept"] = built.kept
        if built.bounds:
            label["bounds"] = built.bounds
        if not built.hooks_fixed:
            label["hooks"] = HOOKS_WRITABLE
    if launched.kind is not None:
        label |= {"files": place, "marks": TAGGED}
    gate, gated = execgate.mode(request.gate, settings.gate, contained)
    label |= gated
    if len(json.dumps(label)) > LABEL_BYTES // 2:  # the store has the whole command
        label["argv"] = [argv[0][:PATH_CHARS], "..."]
    # variables that the creator set on purpose belong to the creator, not to the machine
    label["given"] = list(request.given[:GIVEN_MAX])
    record = SessionRow(
        session_id, name, "creating", 1, time.time(), argv, request.cwd, maker.boot, cols, rows
    )
    spawn = wire.Spawn(
        session_id,
        1,
        session_id + KEEPER_SUFFIX,
        cols,
        rows,
        settings.ring_bytes,
        int(settings.host_away_s * 1000),
        packed(label),
        tuple(os.fsencode(a) for a in launched.argv),
        tuple(os.fsencode(f"{k}={v}") for k, v in launched.env.items()),
        os.fsencode(built.cwd if built else request.cwd),
        request.umask,
        containment=built.containment if built else None,
        gate=gate,
        connect=built.connect if built else (),
    )
    return record, label, spawn
