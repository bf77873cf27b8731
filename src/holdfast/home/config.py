"""The TOML configuration file: a table of all options, each with a default and a description.

`config show` prints the effective values and the source of each. For an unknown option or a wrong
type the error names the line and the remedy. A file that cannot be read stops the start: Holdfast
never silently falls back to the defaults.
"""

from __future__ import annotations

from holdfast.home import Home
from holdfast.model.contained import AUTO, DOORS, NETWORKS, TOOL_FILE_MODES, port
from holdfast.model.errors import Usage
from holdfast.model.limits import (
    CHECKPOINT_BYTES,
    CHECKPOINT_BYTES_MAX,
    CHECKPOINTS_KEPT,
    CHECKPOINTS_KEPT_MAX,
    CONNECTION_SILENT_S,
    COPIES_BYTES,
    ENDED_KEPT_S,
    HOST_AWAY_S,
    LEASE_DRIFT,
    LEASE_DRIFT_MIN,
    LEASE_TERM_MAX_S,
    LEASE_TERM_MIN_S,
    LEASE_TERM_S,
    PACE_WINDOW_S,
    RING_BYTES,
    RING_BYTES_MAX,
    RING_BYTES_MIN,
    SCROLLBACK_PAINTED,
    SPOOL_BYTES,
    SPOOL_BYTES_MAX,
    SPOOL_BYTES_MIN,
    TURN_GONE_S,
    TURN_IDLE_S,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.model.jsontext import Json

LIMIT_MEMORY, LIMIT_PROCESSES, LIMIT_CPU, LIMIT_DISK = "50%", 4096, 50, "25%"
RELAY_LISTEN = "127.0.0.1:8410"


class Option:
    """A row of the table. `check` returns the fault of a value, or ""."""

    __slots__ = ("check", "choices", "default", "help", "high", "key", "low")

    def __init__(
        self,
        key: str,
        default: Any,
        help: str,
        low: float | None = None,
        high: float | None = None,
        choices: tuple[str, ...] = (),
        check: Callable[[Any], str] | None = None,
    ) -> None:
        self.key, self.default, self.help, self.low, self.high = key, default, help, low, high
        self.choices, self.check = choices, check


def _loopback(text: str) -> str:
    from holdfast.model import address

    try:
        return (
            ""
            if not text or address.loopback(address.endpoint(text)[0])
            else "takes a loopback address: only this machine may read the metrics"
        )
    except Usage as e:
        return f"is wrong: {e.message}"


def _size(text: str) -> str:
    from holdfast.model import sizes

    try:
        sizes.read(text, 1 << 40)
    except ValueError as e:
        return "" if text == "none" else f"is wrong: {e}, or none"
    return ""


def _length(text: str) -> str:
    from holdfast.model import durations

    try:
        durations.read(text)
    except ValueError as e:
        return "" if text == "never" else f"is wrong: {e}, or never"
    return ""


def _collector(text: str) -> str:
    from urllib.parse import urlsplit

    from holdfast.model import address

    if text in ("", "environment"):
        return ""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "is no URL"
    if (
        parts.scheme not in ("http", "https")
        or not host
        or parts.username is not None
        or parts.query
        or parts.fragment
    ):
        return (
            "is http://HOST:PORT or https://HOST, or the word environment; "
            "tokens belong into OTEL_EXPORTER_OTLP_HEADERS"
        )
    return (
        ""
        if parts.scheme == "https" or address.loopback(host)
        else "must be https:// for another machine"
    )


def _paths(texts: list[str]) -> str:
    if all(text.startswith(("/", "~/")) and "\0" not in text for text in texts):
        return ""
    return "takes absolute paths, or paths that begin with ~/"


def _doors(names: list[str]) -> str:
    unknown = [name for name in names if name not in DOORS]
    return f"has no door {unknown[0][:40]!a}; doors are {', '.join(DOORS)}" if unknown else ""


def _ports(text: str) -> str:
    fine = all(map(port, text.replace(",", " ").split()))
    return "" if fine else "takes ports from 1 to 65535, such as 3000, 8000"


TURN_POLICIES = ("queue", "humans-first", "drop")
TURN_PLUGIN = "plugin:"  # before the name of a plug-in


def _turn_policy(text: str) -> str:
    fine = text in TURN_POLICIES or text.removeprefix(TURN_PLUGIN) not in ("", text)
    return "" if fine else f"is one of {', '.join(TURN_POLICIES)}, {TURN_PLUGIN}NAME"


OPTIONS = (
    Option("session.shell", "", "program of a new session; empty: $SHELL"),
    Option("session.login_shell", False, "start it as a login shell"),
    Option(
        "session.gate",
        "auto",
        "what the policy judges: exec (every program that starts), input (every command and line), "
        "auto (exec where it costs nothing)",
        choices=("auto", "exec", "input"),
    ),
    Option(
        "session.inside",
        "refuse",
        "an act of a client that runs inside a session, if another operator may have started that "
        "client: refuse, or allow (the record names both)",
        choices=("refuse", "allow"),
    ),
    Option(
        "session.agent_env",
        "",
        "variables that agents and services may set for new sessions (`new --env`), beside locale "
        "and colours: names separated by commas, * matches",
    ),
    Option(
        "session.clipboard",
        False,
        "programs of new sessions may write to the clipboard of viewers that allow it",
    ),
    Option(
        "session.ring_bytes", RING_BYTES, "output kept per session", RING_BYTES_MIN, RING_BYTES_MAX
    ),
    Option(
        "session.spool_bytes",
        SPOOL_BYTES,
        "newest output of a session that is kept on disk for a cold start; 0: none",
        0,
        SPOOL_BYTES_MAX,
        check=lambda size: (
            "" if not size or size >= SPOOL_BYTES_MIN else f"is 0 or at least {SPOOL_BYTES_MIN}"
        ),
    ),
    Option(
        "checkpoint.keep",
        CHECKPOINTS_KEPT,
        "newest checkpoints of a session that are kept",
        1,
        CHECKPOINTS_KEPT_MAX,
    ),
    Option(
        "checkpoint.disk_bytes",
        CHECKPOINT_BYTES,
        "most bytes of all checkpoints on the disk; the newest of each session is kept in any case",
        0,
        CHECKPOINT_BYTES_MAX,
    ),
    Option(
        "recovery.copies_bytes",
        COPIES_BYTES,
        "what copies of sessions of other machines may take on the disk in all; 0: none is kept",
        0,
        1 << 50,
    ),
    Option(
        "session.pace_s",
        PACE_WINDOW_S,
        "how long a program waits for a slow viewer before that viewer skips output",
        0.05,
        3600,
    ),
    Option(
        "session.keep_ended_s",
        ENDED_KEPT_S,
        "how long ended sessions stay listed",
        0,
        10 * 365 * 86400,
    ),
    # Half the memory leaves room for the host and a second session. A browser, a language server
    # and a parallel build together have some hundred threads.
    Option(
        "limits.memory",
        LIMIT_MEMORY,
        "most memory of a contained session: a size, a share of the machine's, or none",
        check=_size,
    ),
    Option(
        "limits.processes",
        LIMIT_PROCESSES,
        "most processes and threads of a contained session; 0: no limit",
        0,
        1 << 22,
        check=lambda count: "" if not count or count >= 16 else "is 0 or at least 16",
    ),
    Option(
        "limits.cpu",
        LIMIT_CPU,
        "processor weight of a contained session beside 100 of others; 0: as others",
        0,
        10_000,
    ),
    Option(
        "limits.disk",
        LIMIT_DISK,
        "most disk space of a contained session's own directories: a size, a share of the file "
        "system, or none",
        check=_size,
    ),
    Option(
        "contain.workspaces",
        [],
        "directories in which agents may have the workspace of a contained session",
        check=_paths,
    ),
    Option(
        "contain.share",
        [],
        "further paths that contained sessions see; PATH:rw for writing",
        check=_paths,
    ),
    Option(
        "contain.doors",
        [],
        "doors of every contained session: ssh-agent (never for agents), dbus, docker, display, "
        "gpu",
        check=_doors,
    ),
    Option(
        "contain.net",
        AUTO,
        "network of a contained session: host (the machine's), own, none, or auto (own where this "
        "machine can connect one, else host)",
        choices=(AUTO, *NETWORKS),
    ),
    Option(
        "contain.publish",
        "",
        "ports that agents may publish with --publish, such as 3000, 8000",
        check=_ports,
    ),
    Option(
        "contain.tool_files",
        "list",
        "files that your tools execute later, such as .git/config and .envrc, in sessions of "
        "agents: list (changes are named at the end) or read-only",
        choices=TOOL_FILE_MODES,
    ),
    Option("contain.keep_home", False, "agents may use --keep-home"),
    Option(
        "reaper.idle",
        "never",
        "a session that was idle for so long is saved to disk and leaves the memory, like 8h",
        check=_length,
    ),
    Option(
        "reaper.memory",
        "none",
        "most memory of all sessions together: beyond it, idle ones leave; a size or a share",
        check=_size,
    ),
    Option(
        "reaper.count",
        0,
        "most sessions in memory: beyond it, idle ones leave; 0: no limit",
        0,
        100_000,
    ),
    Option(
        "reaper.warn",
        "5m",
        "how long before an event warns; at most half of reaper.idle",
        check=_length,
    ),
    Option(
        "reaper.action",
        "evict",
        "what happens to an idle session that cannot be saved: evict (it stays) or end",
        choices=("evict", "end"),
    ),
    Option("record.keep_days", 365, "how long records of acts are kept; 0: for ever", 0, 36500),
    Option("host.away_s", HOST_AWAY_S, "how long a full ring waits for an absent host", 0.1, 3600),
    Option(
        "connections.silent_s",
        CONNECTION_SILENT_S,
        "a peer that has acknowledged nothing for this long is reported as silent",
        1,
        86400,
    ),
    Option(
        "turn.idle_s", TURN_IDLE_S, "the turn is free after this long without a key", 0.1, 86400
    ),
    Option(
        "turn.gone_s",
        TURN_GONE_S,
        "a seized turn is free when its holder has had no client connected for this long",
        0.1,
        30 * 86400,
    ),
    Option(
        "turn.policy",
        "queue",
        "what happens to requests for a held turn: queue, humans-first, drop or plugin:NAME",
        check=_turn_policy,
    ),
    Option("relay.start", True, "`up` also starts a relay of this installation on loopback"),
    Option(
        "relay.listen",
        RELAY_LISTEN,
        "loopback address of that relay; if the port is taken, the next free one",
    ),
    Option(
        "telemetry.metrics",
        "",
        "ADDR:PORT on loopback where Prometheus reads the host's metrics, for example "
        "127.0.0.1:9464; empty: nowhere",
        check=_loopback,
    ),
    Option(
        "telemetry.otlp",
        "",
        "where traces of acts are sent (OTLP over HTTP), for example http://127.0.0.1:4318; "
        "`environment`: as OTEL_* says; empty: nowhere",
        check=_collector,
    ),
    Option(
        "telemetry.names",
        False,
        "traces name operators and sessions, and metrics name sessions by id",
    ),
    Option(
        "telemetry.commands",
        False,
        "traces of agents and services have the command, its purpose and prompt, and the names of "
        "programs, files and ports",
    ),
    Option(
        "lease.store",
        "sqlite",
        "where leases of re-homable sessions are: sqlite (one machine), etcd (a fleet)",
        choices=("sqlite", "etcd"),
    ),
    Option("lease.path", "", "the SQLite file; several homes may share it; empty: in the home"),
    Option(
        "lease.term_s",
        LEASE_TERM_S,
        "after this time without a renewal, re-homable sessions freeze",
        LEASE_TERM_MIN_S,
        LEASE_TERM_MAX_S,
    ),
    Option(
        "lease.drift",
        LEASE_DRIFT,
        "by this part of the term another machine waits longer, for clocks of unequal speed",
        LEASE_DRIFT_MIN,
        1,
    ),
    Option("lease.etcd_endpoints", [], "members of etcd, such as https://10.0.0.1:2379"),
    Option("lease.etcd_prefix", "holdfast/", "before every key in etcd"),
    Option("lease.etcd_ca", "", "file with the authorities that sign etcd's certificates"),
    Option("lease.etcd_certificate", "", "file with this machine's certificate for etcd"),
    Option("lease.etcd_key", "", "file with the key of that certificate"),
    Option("lease.etcd_password_file", "", "file with one line NAME:PASSWORD for etcd"),
    Option("attach.prefix", "C-\\", "the key that starts a command while attached"),
    Option("attach.scrollback", SCROLLBACK_PAINTED, "lines of history shown on attach", 0, 100_000),
    Option(
        "attach.clipboard",
        False,
        "programs may write to your clipboard, in sessions that were made with --clipboard",
    ),
    Option("attach.title", True, "name the session and the writing operator in the title"),
    Option(
        "attach.others",
        "approval",
        "waits of other sessions that an attached terminal is told of: none, approval, or all "
        "(approval, input and secret)",
        choices=("none", "approval", "all"),
    ),
    Option("attach.status", True, "print a line on attach and on detach"),
)
BY_KEY = {o.key: o for o in OPTIONS}


class Value:
    """The effective value of an option, and the source: a path, or "default"."""

    __slots__ = ("key", "source", "value")

    def __init__(self, key: str, value: Any, source: str) -> None:
        self.key, self.value, self.source = key, value, source


def load(path: str) -> list[Value]:
    """All options with their effective values: from the file if it sets them, else the default."""
    table = _read(path)
    flat: Json = {}
    for section, body in table.items():
        if not isinstance(body, dict):
            raise Usage(
                f"{path}: `{section}` is not inside a section",
                f"known options: {', '.join(BY_KEY)}",
            )
        flat |= {f"{section}.{key}": value for key, value in body.items()}
    unknown = [key for key in flat if key not in BY_KEY]
    if unknown:
        raise Usage(f"{path}: unknown option {unknown[0]}", f"known options: {', '.join(BY_KEY)}")
    return [_value(o, flat, path) for o in OPTIONS]


def _read(path: str) -> Json:
    try:
        with open(path, "rb") as f:
            data = f.read()
    except FileNotFoundError:
        return {}
    except OSError as e:
        raise Usage(f"cannot read {path}: {e.strerror}", "repair or remove the file") from e
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise Usage(f"{path}: {e}", "repair or remove the file") from e


def _value(option: Option, flat: Json, path: str) -> Value:
    if option.key not in flat:
        return Value(option.key, option.default, "default")
    value = flat[option.key]
    wanted = type(option.default)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not wanted:
        raise Usage(
            f"{path}: {option.key} must be {wanted.__name__}, not {type(value).__name__}",
            option.help,
        )
    if wanted is list and not all(type(one) is str for one in value):
        raise Usage(f"{path}: {option.key} must be a list of texts", option.help)
    if (
        option.low is not None
        and option.high is not None
        and not option.low <= value <= option.high
    ):
        raise Usage(
            f"{path}: {option.key} must be between {option.low:g} and {option.high:g}", option.help
        )
    if option.choices and value not in option.choices:
        raise Usage(f"{path}: {option.key} must be one of {', '.join(option.choices)}", option.help)
    if option.check is not None and (wrong := option.check(value)):
        raise Usage(f"{path}: {option.key} {wrong}", option.help)
    return Value(option.key, value, path)


def value(home: Home, key: str) -> Any:
    """The effective value of an option in this home."""
    return next(one.value for one in load(home.config) if one.key == key)
