"""The environment of a new session: the caller's, without the variables of the caller's terminal.

This module also points the session's agent socket at the newest client.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import pwd
import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from holdfast.home import Home
from holdfast.host.runtime.threads import Threads
from holdfast.host.shell.directories import SessionDirectories

AGENT_LINK = "agent.sock"  # in the writable directory of a session
TOKEN_FILE = "HOLDFAST_TOKEN_FILE"  # names the file with the fencing token
AGENT_S = 5.0  # for the socket's file system to answer

# Variables of the caller's terminal and session, which a new session must not inherit.
DROPPED_ENV = frozenset(
    (
        *("TMUX", "TMUX_PANE", "STY", "WINDOW", "HOLDFAST_SESSION", "TERMCAP", "COLUMNS"),
        *("LINES", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
        *("INVOCATION_ID", "JOURNAL_STREAM", "HOLDFAST_PROBE", "_", "OLDPWD", "SSH_TTY"),
        *("GPG_TTY", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID", "VTE_VERSION"),
        *("WINDOWID", "KITTY_WINDOW_ID", "ITERM_SESSION_ID"),
    )
)


# The variables that the host takes from an agent or a service, beside those of the configuration.
# Any other variable may decide which files a program reads or which code it runs.
_PLAIN = re.compile(r"TERM|COLORTERM|LANG|LANGUAGE|LC_[A-Z]+|TZ|CI|NO_COLOR|FORCE_COLOR|CLICOLOR")
# Variables of the host's own environment for the sessions of agents and services.
_OF_HOST = re.compile(
    r"HOME|USER|LOGNAME|SHELL|PATH|LANG|LANGUAGE|LC_[A-Z]+|TZ|"
    r"(?i:https?_proxy|all_proxy|no_proxy)|SSL_CERT_(FILE|DIR)"
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def may_give(name: str, allowed: Sequence[str]) -> bool:
    """Whether an agent or a service may set this variable for a new session.

    `allowed`: further names or patterns, from the configuration.
    """
    return bool(_PLAIN.fullmatch(name)) or any(fnmatchcase(name, one) for one in allowed)


def of_stranger(
    given: dict[str, str], host: Mapping[str, str], allowed: Sequence[str], limited: bool
) -> dict[str, str]:
    """The environment for a session of an agent, a service or an operator with limited commands.

    The account, the shell and the programs are those of the host, not of the request. `host`: the
    host's own environment. `limited`: the operator may start certain programs only, named without a
    path.
    """
    own = {k: v for k, v in host.items() if _OF_HOST.fullmatch(k)}
    taken = {k: v for k, v in given.items() if may_give(k, allowed)}
    return of_account() | own | taken | ({"PATH": _PATH} if limited else {})


def of_account() -> dict[str, str]:
    """A login environment of the host's account, for operators from remote machines."""
    me = pwd.getpwuid(os.getuid())
    return {
        "HOME": me.pw_dir,
        "USER": me.pw_name,
        "LOGNAME": me.pw_name,
        "SHELL": me.pw_shell or "/bin/sh",
        "PATH": _PATH,  # a login shell adds to it
    }


def digest(env: dict[str, str]) -> str:
    """A digest of the environment, to which an approval is bound."""
    variables = repr(sorted(env.items())).encode("utf-8", "replace")
    return f"{len(env)} variables, {hashlib.blake2b(variables, digest_size=16).hexdigest()}"


def of_session(
    given: dict[str, str], home: Home, session_id: str, own: SessionDirectories
) -> dict[str, str]:
    env = {k: v for k, v in given.items() if k not in DROPPED_ENV}
    env["TERM"] = "xterm-256color"
    env.setdefault("COLORTERM", "truecolor")
    env["HOLDFAST_SESSION"] = session_id
    env[TOKEN_FILE] = str(own.token_inside)
    if home.explicit:
        env["HOLDFAST_HOME"] = home.state
    # A link, kept pointing at the newest client's agent.
    env["SSH_AUTH_SOCK"] = f"{own.writable_inside}/{AGENT_LINK}"
    return env


def of_contained(env: dict[str, str], inside: dict[str, str]) -> dict[str, str]:
    """The environment of a contained session: no way to the host, and an agent only by a door."""
    dropped = ("HOLDFAST_HOME", "SSH_AUTH_SOCK")
    kept = {name: value for name, value in env.items() if name not in dropped}
    return kept | {name: inside[name] for name in dropped[1:] if name in inside}


async def refresh_agent(threads: Threads, session_id: str, directory: str, target: str) -> None:
    """Points the session's agent socket at the newest client's, so that ssh survives a reconnect.

    The client chooses the target. If the file system of the target does not answer, only this
    session waits.
    """
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(threads.of(session_id, _point, directory, target), AGENT_S)


def _point(directory: str, target: str) -> None:
    link = f"{directory}/{AGENT_LINK}"
    if os.path.abspath(target) == link or not os.path.isabs(target):
        return
    try:
        if not stat.S_ISSOCK(os.stat(target).st_mode):
            return
        fresh = f"{link}.{secrets.token_hex(4)}"
        os.symlink(target, fresh)
        os.rename(fresh, link)
    except OSError:
        pass
