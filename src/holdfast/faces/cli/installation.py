"""up, down, doctor, config."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from holdfast import __version__
from holdfast import home as homes
from holdfast.faces.cli.connect import link
from holdfast.faces.cli.output import color, put_json
from holdfast.model.printable import printable

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from holdfast.host.doctor import Finding


# ---------------------------------------------------------------- up


def up_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "--detach", action="store_true", help="do not make or attach to a session, only start"
    )
    p.add_argument("--json", action="store_true")


def up(args: Namespace) -> int:
    """Idempotent. A host of another release is replaced in place; sessions do not notice."""
    from holdfast.client import start
    from holdfast.faces.cli import nearby

    def say(text: str) -> None:
        if not args.json:
            print(text, flush=True)

    connection = link(args)
    begun = time.monotonic()
    start.mark_stopped(connection.home, False)
    running = _running(args)
    if running is None:
        say("starting the host ...")
    relay = nearby.launch(connection.home)
    try:
        connection.connect()
    except BaseException:
        if relay is not None:
            relay.abandon()
        raise
    state = connection.request("ping")
    if state["release"] != __version__:
        say(
            f"replacing the host of release {state['release']} by {__version__}; sessions keep running ..."
        )
        connection.request("down", restart=True)
        connection.close()
        _await_release(connection, __version__)
        state = connection.request("ping")
    became = nearby.up(connection, relay)
    sessions = connection.request("ls")["sessions"]
    if args.json:
        put_json(
            {
                "pid": state["pid"],
                "release": state["release"],
                "home": connection.home.state,
                "started": running is None,
                "sessions": sessions,
                "policy": _policy(connection.home),
                "relay": became,
            }
        )
        return 0
    took = f" (started in {time.monotonic() - begun:.1f} s)" if running is None else ""
    print(f"holdfast {state['release']} is up{took}; its state is in {connection.home.state}")
    if became is not None:
        print(_of_relay(became))
    if broken := _policy(connection.home):
        print(
            f"\nWARNING: the policy cannot be used, so everything is refused but seizing, halting and looking:\n  {printable(broken)}\n"
            "  `holdfast policy check` says when it is right"
        )
    return _what_next(args, sessions)


def _of_relay(relay: dict[str, Any]) -> str:
    """One line, whatever became of it."""
    if relay["url"] is None:
        return f"its relay is not: {printable(relay['why'])}"
    stands = {
        "registered": ", and this machine is registered there",
        "unknown": "",
    }  # unknown: to who may not ask
    return f"its relay is at {relay['url']}" + stands.get(
        relay["state"], f"; this machine is not registered there: {printable(relay['why'])}"
    )


def _policy(home: homes.Home) -> str | None:
    """What is wrong with the policy file; None if nothing is."""
    file = os.path.join(os.path.dirname(home.config), "policy.toml")
    if not os.path.lexists(file):
        return None
    from holdfast.host.gate import load

    return load(file).broken or None


def _await_release(connection: object, release: str) -> None:
    from holdfast.client.link import Link
    from holdfast.model.errors import Unavailable

    assert isinstance(connection, Link)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if connection.request("ping")["release"] == release:
                return
        except Unavailable:
            pass
        connection.close()
        time.sleep(0.05)
    raise Unavailable("the new host does not come up", f"look at {connection.home.log}")


def _running(args: Namespace) -> int | None:
    from holdfast.model.errors import HoldfastError

    try:
        probe = link(args, autostart=False)
        probe.connect()
        pid = int(probe.welcome["pid"])
        probe.close()
        return pid
    except HoldfastError:
        return None


def _what_next(args: Namespace, sessions: list[dict[str, object]]) -> int:
    from holdfast import home as homes
    from holdfast.faces.cli.sessions import listing
    from holdfast.home import config

    making = not sessions and not args.detach and sys.stdin.isatty() and sys.stdout.isatty()
    if sessions:
        print(f"\n{listing(sessions)}\n\nattach:       holdfast attach {sessions[-1]['name']}")
    else:
        print(
            f"\nno sessions yet{'; the first one, main, is made now' if making else ''}\n\n{'one more:   ' if making else 'make one:   '}  holdfast new work"
        )
    prefix = next(
        v.value for v in config.load(homes.resolve(os.environ).config) if v.key == "attach.prefix"
    )
    print(
        f"detach:       {prefix} d   (it keeps running)\nrun in it:    holdfast run SESSION -- COMMAND\nhelp:         holdfast --help"
    )
    if not making:
        return 0
    from holdfast.faces.cli.main import dispatch

    print()
    return dispatch(["new", "main"])


# ---------------------------------------------------------------- down


def down_parser(p: ArgumentParser) -> None:
    p.add_argument("--json", action="store_true")


def down(args: Namespace) -> int:
    from holdfast.client import start
    from holdfast.faces.cli import nearby
    from holdfast.model.errors import Unavailable

    connection = link(args, autostart=False)
    start.mark_stopped(
        connection.home, True
    )  # before: a client that loses its host now must not start the next one
    try:
        result = connection.request("down")
        _wait_gone(int(result["pid"]))
    except Unavailable:
        result = {"pid": None, "sessions": None}
    relay, ended = nearby.down(connection.home)
    if args.json:
        put_json(
            {**result, "relay": None if relay is None else {**relay.shown(), "stopped": ended}}
        )
        return 0
    if result["pid"] is None:
        print("the host does not run")
    else:
        n = result["sessions"]
        print(
            f"the host is stopped; {n} session{'s keep' if n != 1 else ' keeps'} running. `holdfast up` brings them back into reach."
        )
    if relay is not None:
        print(
            "its relay is stopped, too"
            if ended
            else f"the relay at {relay.url} was not started by `up` and goes on (process {relay.pid})"
            if relay.by != "up"
            else f"its relay (process {relay.pid}) does not end"
        )
    return 0


def _wait_gone(pid: int) -> None:
    import select

    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(5000)
    finally:
        os.close(handle)


# ---------------------------------------------------------------- doctor


def doctor_parser(p: ArgumentParser) -> None:
    p.add_argument("--json", action="store_true")


def doctor(args: Namespace) -> int:
    """Runs here, not in the host: it must work when the host does not."""
    from pathlib import Path

    from holdfast.host import doctor as findings_of

    home = homes.resolve(os.environ)
    findings = [
        *findings_of.run_doctor(Path(home.state)),
        _judged(home),
        _relayed(home),
        _told(home),
    ]
    if args.json:
        put_json(findings_of.to_json(findings))
    else:
        print(findings_of.format_findings(findings, color()))
    return 0


def _judged(home: homes.Home) -> Finding:
    from holdfast.host.doctor import Finding

    broken, title, why = (
        _policy(home),
        "the policy can be used",
        "every act of an operator; while it cannot be used, all but seizing, halting and looking is refused",
    )
    if broken:
        return Finding(
            "policy",
            title,
            False,
            broken,
            "correct the file until `holdfast policy check` takes it, or move it away: then the built-in policy is in force",
            why,
        )
    file = os.path.join(os.path.dirname(home.config), "policy.toml")
    return Finding(
        "policy",
        title,
        True,
        f"{file} is in force" if os.path.lexists(file) else "the built-in one is in force",
        "",
        why,
    )


def _relayed(home: homes.Home) -> Finding:
    from holdfast.faces.cli import nearby
    from holdfast.home import config as configuration
    from holdfast.host.doctor import Finding
    from holdfast.model.errors import HoldfastError

    title, why = (
        "the relay of this installation",
        "reaching this machine from another account or, through a tunnel, from elsewhere",
    )
    try:
        wanted = configuration.value(home, "relay.start")
    except HoldfastError as e:
        return Finding("relay", title, None, e.message, e.recover, why)
    running = nearby.found(home)
    if running is not None:
        return Finding(
            "relay",
            title,
            True,
            f"runs at {running.url} (process {running.pid}{', started by hand or by a unit' if running.by != 'up' else ''})",
            "",
            why,
        )
    if not wanted:
        return Finding(
            "relay", title, True, "is turned off in the configuration (relay.start)", "", why
        )
    if missing := nearby.missing():
        return Finding(
            "relay",
            title,
            False,
            f"cannot run: {missing} is not installed",
            "install holdfast with all it needs",
            why,
        )
    return Finding(
        "relay",
        title,
        None,
        "does not run",
        f"`holdfast up` starts it; {home.relay_log} has what it said",
        why,
    )


def _told(home: homes.Home) -> Finding:
    from importlib.util import find_spec

    from holdfast.home import config as configuration
    from holdfast.host.doctor import Finding
    from holdfast.model.errors import HoldfastError

    title, why = "metrics and traces", "watching this host with Prometheus or OpenTelemetry"
    try:
        metrics, otlp = (
            configuration.value(home, "telemetry.metrics"),
            configuration.value(home, "telemetry.otlp"),
        )
    except HoldfastError as e:
        return Finding("telemetry", title, None, e.message, e.recover, why)
    if not metrics and not otlp:
        return Finding(
            "telemetry",
            title,
            True,
            "are off; `holdfast metrics` prints the numbers all the same",
            "",
            why,
        )
    if otlp and find_spec("opentelemetry") is None:
        return Finding(
            "telemetry",
            title,
            False,
            "traces are configured, but OpenTelemetry is not installed",
            "install holdfast[otel], then restart the host",
            why,
        )
    if metrics and not _answers(metrics):
        return Finding(
            "telemetry",
            title,
            None,
            f"no metrics at {metrics}",
            f"is the host up, and the port free? `holdfast up`; {home.log} says why not",
            why,
        )
    said = [
        *([f"metrics at http://{metrics}/metrics"] if metrics else ()),
        *([f"traces to {otlp}"] if otlp else ()),
    ]
    return Finding("telemetry", title, True, ", ".join(said), "", why)


def _answers(place: str) -> bool:
    from http.client import HTTPConnection, HTTPException

    from holdfast.model import address

    connection = HTTPConnection(*address.endpoint(place), timeout=2)
    try:
        connection.request("GET", "/metrics")
        return b"holdfast_build_info" in connection.getresponse().read()
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


# ---------------------------------------------------------------- config


def config_parser(p: ArgumentParser) -> None:
    p.add_argument("act", choices=("show",), help="print the effective configuration")
    p.add_argument("--json", action="store_true")


def config(args: Namespace) -> int:
    from holdfast.home import config as configuration

    home = homes.resolve(os.environ)
    values = configuration.load(home.config)
    if args.json:
        put_json([{"key": v.key, "value": v.value, "source": v.source} for v in values])
        return 0
    print(
        f"# {home.config}" + ("" if os.path.exists(home.config) else " (does not exist: defaults)")
    )
    for v in values:
        option = configuration.BY_KEY[v.key]
        print(
            f"{v.key} = {_toml(v.value)}    # {option.help} ({'default' if v.source == 'default' else 'from the file'})"
        )
    return 0


def _toml(value: object) -> str:
    import json

    return json.dumps(value) if not isinstance(value, float) else f"{value:g}"
