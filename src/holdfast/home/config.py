"""The one TOML configuration file: every option in one table, each with its default and meaning.

`config show` prints the effective values and where each comes from. Unknown options and wrong types are refused with the
place and the remedy; a file that cannot be read stops the start, it does not silently mean the defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.home import Home
from holdfast.model.errors import Usage
from holdfast.model.limits import (
    ENDED_KEPT_S,
    HOST_AWAY_S,
    PACE_WINDOW_S,
    RING_BYTES,
    RING_BYTES_MAX,
    RING_BYTES_MIN,
    SCROLLBACK_PAINTED,
    TURN_IDLE_S,
)

RELAY_LISTEN = "127.0.0.1:8410"


class Option(NamedTuple):
    key: str
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[str], str] | None = None  # what is wrong with a value; empty if nothing


def _loopback(text: str) -> str:
    from holdfast.model import address

    try:
        return (
            ""
            if not text or address.loopback(address.endpoint(text)[0])
            else "takes a loopback address: the numbers are for this machine"
        )
    except Usage as e:
        return f"is wrong: {e.message}"


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
        return "is http://HOST:PORT or https://HOST, or the word environment; tokens belong into OTEL_EXPORTER_OTLP_HEADERS"
    return (
        ""
        if parts.scheme == "https" or address.loopback(host)
        else "must be https:// for another machine"
    )


OPTIONS = (
    Option("session.shell", "", "program of a new session; empty: $SHELL"),
    Option("session.login_shell", False, "start it as a login shell"),
    Option(
        "session.gate",
        "auto",
        "how deep the policy sees: exec (every program that starts), input (what is typed and run), auto (exec where it costs nothing)",
        choices=("auto", "exec", "input"),
    ),
    Option(
        "session.ring_bytes", RING_BYTES, "output kept per session", RING_BYTES_MIN, RING_BYTES_MAX
    ),
    Option(
        "session.pace_s",
        PACE_WINDOW_S,
        "how long a program waits for a viewer that falls behind, before that one is shown less",
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
    Option(
        "record.keep_days",
        365,
        "how long the records of what was done are kept; 0: for ever",
        0,
        36500,
    ),
    Option(
        "host.away_s", HOST_AWAY_S, "how long a full ring waits for a host that is gone", 0.1, 3600
    ),
    Option(
        "turn.idle_s", TURN_IDLE_S, "after this long without a key, the turn is free", 0.1, 86400
    ),
    Option(
        "turn.policy",
        "queue",
        "who asks for a held turn: queue, humans-first or drop",
        choices=("queue", "humans-first", "drop"),
    ),
    Option("relay.start", True, "`up` starts a relay of this installation on loopback, too"),
    Option(
        "relay.listen",
        RELAY_LISTEN,
        "where it listens, a loopback address; the next free port if this one is taken",
    ),
    Option(
        "telemetry.metrics",
        "",
        "ADDR:PORT on loopback where Prometheus reads the host's numbers, for example 127.0.0.1:9464; empty: nowhere",
        check=_loopback,
    ),
    Option(
        "telemetry.otlp",
        "",
        "where traces of acts are sent (OTLP over HTTP), for example http://127.0.0.1:4318; `environment`: as OTEL_* says; empty: nowhere",
        check=_collector,
    ),
    Option("telemetry.names", False, "traces name operators and sessions"),
    Option("attach.prefix", "C-\\", "the key before a command while attached"),
    Option("attach.scrollback", SCROLLBACK_PAINTED, "lines of history shown on attach", 0, 100_000),
    Option("attach.status", True, "say on entry and exit what happens"),
)
BY_KEY = {o.key: o for o in OPTIONS}


class Value(NamedTuple):
    key: str
    value: Any
    source: str


def load(path: str) -> list[Value]:
    """All options with their effective values, from the file if there is one."""
    table = _read(path)
    flat: dict[str, Any] = {}
    for section, body in table.items():
        if not isinstance(body, dict):
            raise Usage(
                f"{path}: `{section}` is outside of a section",
                f"known options: {', '.join(BY_KEY)}",
            )
        flat |= {f"{section}.{key}": value for key, value in body.items()}
    unknown = [key for key in flat if key not in BY_KEY]
    if unknown:
        raise Usage(f"{path}: unknown option {unknown[0]}", f"known options: {', '.join(BY_KEY)}")
    return [_value(o, flat, path) for o in OPTIONS]


def _read(path: str) -> dict[str, Any]:
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


def _value(option: Option, flat: dict[str, Any], path: str) -> Value:
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
    """One of them, as it is in force in that home."""
    return next(one.value for one in load(home.config) if one.key == key)


class Settings(NamedTuple):
    """What the host uses of it."""

    shell: str
    login_shell: bool
    ring_bytes: int
    keep_ended_s: float
    host_away_s: float
    pace_s: float
    turn_idle_s: float
    turn_policy: str
    record_days: int
    metrics: str = ""
    otlp: str = ""
    trace_names: bool = False
    gate: str = "auto"


def settings(values: list[Value]) -> Settings:
    v = {x.key: x.value for x in values}
    return Settings(
        v["session.shell"],
        v["session.login_shell"],
        v["session.ring_bytes"],
        v["session.keep_ended_s"],
        v["host.away_s"],
        v["session.pace_s"],
        v["turn.idle_s"],
        v["turn.policy"],
        v["record.keep_days"],
        v["telemetry.metrics"],
        v["telemetry.otlp"],
        v["telemetry.names"],
        v["session.gate"],
    )
