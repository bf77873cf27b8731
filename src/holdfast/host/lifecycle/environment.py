"""The environment of a new session: the caller's, without what belongs to the caller's own terminal; and its agent socket, kept fresh."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import pwd
import re
import secrets
import stat

from holdfast.core.interpreters import SHELLS
from holdfast.home import Home
from holdfast.host.threads import Threads

AGENT_S = 5.0  # for the socket's file system to answer

# What must not leak from the caller into a session: the session has its own terminal and is not the caller's.
DROPPED_ENV = frozenset(
    (
        "TMUX",
        "TMUX_PANE",
        "STY",
        "WINDOW",
        "HOLDFAST_SESSION",
        "TERMCAP",
        "COLUMNS",
        "LINES",
        "NOTIFY_SOCKET",
        "LISTEN_FDS",
        "LISTEN_PID",
        "LISTEN_FDNAMES",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "HOLDFAST_PROBE",
        "_",
        "OLDPWD",
        "SSH_TTY",
        "GPG_TTY",
        "TERM_PROGRAM",
        "TERM_PROGRAM_VERSION",
        "TERM_SESSION_ID",
        "VTE_VERSION",
        "WINDOWID",
        "KITTY_WINDOW_ID",
        "ITERM_SESSION_ID",
    )
)


# What makes a program run something else than it says: not taken from whoever may be asked about what they run.
_SHAPING = re.compile(
    r"BASH_ENV|ENV|PROMPT_COMMAND|PS[0-4]|SHELLOPTS|BASHOPTS|BASH_FUNC_.*|IFS|CDPATH|GLOBIGNORE|ZDOTDIR|FPATH|INPUTRC|LD_.*|GCONV_PATH|LOCPATH|TERMINFO.*|.*PAGER|"
    r"GIT_(?!AUTHOR_|COMMITTER_).*|EDITOR|VISUAL|BROWSER|LESSOPEN|LESSCLOSE|LESSKEY.*|MANOPT|PYTHON(STARTUP|PATH|HOME|INSPECT|BREAKPOINT|USERBASE)|PERL.*|RUBY(OPT|LIB)|"
    r"NODE_(OPTIONS|PATH)|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|MAKEFLAGS|GNUMAKEFLAGS|TAR_OPTIONS|RSYNC_RSH|SUDO_.*|SSH_ASKPASS.*|DOCKER_HOST|KUBECONFIG"
)
_PLAIN = re.compile(r"TERM|COLORTERM|LANG|LANGUAGE|LC_.*|TZ|HOME|USER|LOGNAME")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = ("/bin", "/usr/bin", "/usr/local/bin")


def of_stranger(given: dict[str, str], limited: bool) -> dict[str, str]:
    """What is taken of the environment of an agent or a service; `limited`: of who may start certain programs only, by their names."""
    if limited:
        return {k: v for k, v in given.items() if _PLAIN.fullmatch(k)} | {"PATH": _PATH}
    kept = {k: v for k, v in given.items() if not _SHAPING.fullmatch(k)}
    directory, shell = os.path.split(kept.get("SHELL", ""))
    if directory not in _PROGRAMS or shell not in SHELLS:
        kept.pop("SHELL", None)
    return kept


LOGIN_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # a login shell says more
)


def of_account() -> dict[str, str]:
    """As a login gives it, of the account that the host runs as: for who comes from another machine."""
    me = pwd.getpwuid(os.getuid())
    return {
        "HOME": me.pw_dir,
        "USER": me.pw_name,
        "LOGNAME": me.pw_name,
        "SHELL": me.pw_shell or "/bin/sh",
        "PATH": LOGIN_PATH,
    }


def digest(env: dict[str, str]) -> str:
    """For an approval to be bound to."""
    return f"{len(env)} variables, {hashlib.blake2b(repr(sorted(env.items())).encode('utf-8', 'replace'), digest_size=16).hexdigest()}"


def of_session(
    given: dict[str, str], home: Home, session_id: str, directory: str
) -> dict[str, str]:
    env = {k: v for k, v in given.items() if k not in DROPPED_ENV}
    env["TERM"] = "xterm-256color"
    env.setdefault("COLORTERM", "truecolor")
    env["HOLDFAST_SESSION"] = session_id
    if home.explicit:
        env["HOLDFAST_HOME"] = home.state
    env["SSH_AUTH_SOCK"] = (
        f"{directory}/agent.sock"  # a link, kept pointing at the newest client's agent
    )
    return env


async def refresh_agent(threads: Threads, session_id: str, directory: str, target: str) -> None:
    """Points the session's agent socket at the newest client's, so that ssh inside keeps working after a reconnect. Where it points to is the
    client's to say: a file system that does not answer holds up nobody else."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(threads.of(session_id, _point, directory, target), AGENT_S)


def _point(directory: str, target: str) -> None:
    link = f"{directory}/agent.sock"
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
