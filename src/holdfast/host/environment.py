"""The environment of a new session: the caller's, without what belongs to the caller's own terminal; and its agent socket, kept fresh."""

from __future__ import annotations

import os
import secrets
import stat

from holdfast.home import Home

# What must not leak from the caller into a session: the session has its own terminal and is not the caller's.
DROPPED_ENV = frozenset(("TMUX", "TMUX_PANE", "STY", "WINDOW", "HOLDFAST_SESSION", "TERMCAP", "COLUMNS", "LINES", "NOTIFY_SOCKET",
                         "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "INVOCATION_ID", "JOURNAL_STREAM", "HOLDFAST_PROBE", "_",
                         "OLDPWD", "SSH_TTY", "GPG_TTY", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID",
                         "VTE_VERSION", "WINDOWID", "KITTY_WINDOW_ID", "ITERM_SESSION_ID"))


def of_session(given: dict[str, str], home: Home, session_id: str, directory: str) -> dict[str, str]:
    env = {k: v for k, v in given.items() if k not in DROPPED_ENV}
    env["TERM"] = "xterm-256color"
    env.setdefault("COLORTERM", "truecolor")
    env["HOLDFAST_SESSION"] = session_id
    if home.explicit:
        env["HOLDFAST_HOME"] = home.state
    env["SSH_AUTH_SOCK"] = f"{directory}/agent.sock"    # a link, kept pointing at the newest client's agent
    return env


def refresh_agent(directory: str, target: str) -> None:
    """Points the session's agent socket at the newest client's, so that ssh inside keeps working after a reconnect."""
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
