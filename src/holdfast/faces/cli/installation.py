"""up, down, doctor, drill, config."""

from __future__ import annotations

import os
import sys
import time

from holdfast import __version__
from holdfast import home as homes
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import link
from holdfast.faces.cli.output import color, put_json
from holdfast.model.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from holdfast.client.link import Link
    from holdfast.host.doctor.report import Finding
    from holdfast.model.jsontext import Json


# ---------------------------------------------------------------- up


up_parser = usage("""
    --detach  only start; make no session and do not attach
    --json
""")


def up(args: Namespace) -> int:
    """Start relay and host. Idempotent; replaces a host of a different release, sessions go on."""
    from holdfast.client import start
    from holdfast.faces.cli import local_relay

    def say(text: str) -> None:
        if not args.json:
            print(text, flush=True)

    connection = link(args)
    begun = time.monotonic()
    start.mark_stopped(connection.home, False)
    running = _running(args)
    if running is None:
        say("starting the host ...")
    relay = local_relay.launch(connection.home)
    try:
        connection.connect()
    except BaseException:
        if relay is not None:
            relay.abandon()
        raise
    state = connection.request("ping")
    if state["release"] != __version__:
        say(
            f"replacing the host of release {state['release']} by {__version__}; "
            "sessions keep running ..."
        )
        connection.request("down", restart=True)
        connection.close()
        _await_release(connection, __version__)
        state = connection.request("ping")
    became = local_relay.up(connection, relay)
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
            "\nWARNING: the policy cannot be used, so everything but seizing, halting and looking "
            f"is refused:\n  {printable(broken)}\n"
            "  correct the file until `holdfast policy check` accepts it"
        )
    return _what_next(args, sessions)


def _of_relay(relay: Json) -> str:
    """A line about the relay."""
    if relay["url"] is None:
        return f"its relay is not up: {printable(relay['why'])}"
    # The state is unknown to an operator that may not ask.
    stands = {"registered": ", and this machine is registered there", "unknown": ""}
    return f"its relay is at {relay['url']}" + stands.get(
        relay["state"], f"; this machine is not registered there: {printable(relay['why'])}"
    )


def _policy(home: homes.Home) -> str | None:
    """The fault of the policy file; None if there is none."""
    file = os.path.join(os.path.dirname(home.config), "policy.toml")
    if not os.path.lexists(file):
        return None
    from holdfast.host.policy.gate import load

    return load(file).broken or None


def _await_release(connection: Link, release: str) -> None:
    from holdfast.model.errors import Unavailable

    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if connection.request("ping")["release"] == release:
                return
        except Unavailable:
            pass
        connection.close()
        time.sleep(0.05)
    raise Unavailable("the new host does not answer", f"look at {connection.home.log}")


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
    from holdfast.faces.cli.recovery.residency import waits_for_restore, was_stopped
    from holdfast.faces.cli.sessions import listing
    from holdfast.home import config

    making = not sessions and not args.detach and sys.stdin.isatty() and sys.stdout.isatty()
    if sessions:
        print(f"\n{listing(sessions)}\n")
        if lost := [str(one["name"]) for one in sessions if waits_for_restore(one)]:
            was = "session was" if len(lost) == 1 else "sessions were"
            names = ", ".join(lost)
            print(f"{len(lost)} {was} lost and can be restored: {names} (`holdfast restore NAME`)")
        if stopped := [str(one["name"]) for one in sessions if was_stopped(one)]:
            print(f"on the disk:  {', '.join(stopped)} (`holdfast restore NAME`)")
        away = (waits_for_restore, was_stopped)
        if here := [one for one in sessions if not any(gone(one) for gone in away)]:
            print(f"attach:       holdfast attach {here[-1]['name']}")
    else:
        print(
            f"\nno sessions yet{'; the first one, main, is made now' if making else ''}\n\n"
            f"{'one more:   ' if making else 'make one:   '}  holdfast new work"
        )
    prefix = config.value(homes.resolve(os.environ), "attach.prefix")
    print(
        f"detach:       {prefix} d   (it keeps running)\n"
        "run in it:    holdfast run SESSION -- COMMAND\n"
        "help:         holdfast --help"
    )
    if not making:
        return 0
    from holdfast.faces.cli.main import dispatch

    print()
    return dispatch(["new", "main"])


# ---------------------------------------------------------------- down


down_parser = usage("--json")


def down(args: Namespace) -> int:
    from holdfast.client import start
    from holdfast.faces.cli import local_relay
    from holdfast.model.errors import Unavailable

    connection = link(args, autostart=False)
    # This comes first: a client that loses the host now must not start the next host.
    start.mark_stopped(connection.home, True)
    try:
        result = connection.request("down")
        start.await_end(int(result["pid"]))
    except Unavailable:
        result = {"pid": None, "sessions": None}
    relay, ended = local_relay.down(connection.home)
    if args.json:
        put_json(
            {**result, "relay": None if relay is None else {**relay.shown(), "stopped": ended}}
        )
        return 0
    if result["pid"] is None:
        print("the host is not running")
    else:
        n = result["sessions"]
        left = f"; {n} session{'s keep' if n != 1 else ' keeps'} running" if n else ""
        print(f"the host is stopped{left}. `holdfast up` starts it again.")
    if relay is not None:
        print(
            "its relay is stopped too"
            if ended
            else f"the relay at {relay.url} was not started by `up` "
            f"and keeps running (process {relay.pid})"
            if relay.by != "up"
            else f"its relay (process {relay.pid}) does not end"
        )
    return 0


# ---------------------------------------------------------------- doctor


doctor_parser = usage("--json")


def doctor(args: Namespace) -> int:
    """Runs in this process, not in the host: `doctor` must work without a host."""
    from pathlib import Path

    from holdfast.host.doctor import report as findings_of
    from holdfast.host.fleet import readiness

    home = homes.resolve(os.environ)
    named = os.environ.get("HOLDFAST_CRIU", "")
    findings = findings_of.run_doctor(
        Path(home.state), (*findings_of.CHECKS, *readiness.CHECKS), named, home.config
    )
    findings += [_judged(home), _relayed(home), _told(home)]
    if args.json:
        put_json(findings_of.to_json(findings))
    else:
        print(findings_of.format_findings(findings, color()))
    return 0


def _judged(home: homes.Home) -> Finding:
    found = _finding(
        "policy",
        "the policy can be used",
        "every act of an operator; without a usable policy all but seizing, halting and looking "
        "is refused",
    )
    if broken := _policy(home):
        return found(
            False,
            broken,
            "correct the file until `holdfast policy check` accepts it, "
            "or move it away to use the built-in policy",
        )
    file = os.path.join(os.path.dirname(home.config), "policy.toml")
    own = f"{file} is in force" if os.path.lexists(file) else "the built-in one is in force"
    return found(True, own)


def _relayed(home: homes.Home) -> Finding:
    from holdfast.faces.cli import local_relay
    from holdfast.home import config as configuration
    from holdfast.model.errors import HoldfastError

    found = _finding(
        "relay",
        "the relay of this installation",
        "reaching this machine from another account or, through a tunnel, from another machine",
    )
    try:
        wanted = configuration.value(home, "relay.start")
    except HoldfastError as e:
        return found(None, e.message, e.recover)
    running = local_relay.found(home)
    if running is not None:
        by = ", started by hand or by a unit" if running.by != "up" else ""
        return found(True, f"runs at {running.url} (process {running.pid}{by})")
    if not wanted:
        return found(True, "is turned off in the configuration (relay.start)")
    if missing := local_relay.missing():
        why = f"cannot run: {missing} is not installed"
        return found(False, why, "install holdfast with all its dependencies")
    return found(None, "does not run", f"`holdfast up` starts it; its log is {home.relay_log}")


def _told(home: homes.Home) -> Finding:
    from importlib.util import find_spec

    from holdfast.home import config as configuration
    from holdfast.model.errors import HoldfastError

    found = _finding(
        "telemetry",
        "metrics and traces",
        "watching this host with Prometheus or OpenTelemetry",
    )
    try:
        metrics = configuration.value(home, "telemetry.metrics")
        otlp = configuration.value(home, "telemetry.otlp")
    except HoldfastError as e:
        return found(None, e.message, e.recover)
    if not metrics and not otlp:
        return found(True, "are off; `holdfast metrics` prints the metrics anyway")
    if otlp and find_spec("opentelemetry") is None:
        why = "traces are configured, but OpenTelemetry is not installed"
        return found(False, why, "install holdfast[otel], then restart the host")
    if metrics and not _answers(metrics):
        fix = f"`holdfast up` starts the host; if the port is taken, {home.log} says so"
        return found(None, f"no metrics at {metrics}", fix)
    said = [f"metrics at http://{metrics}/metrics"] if metrics else []
    said += [f"traces to {otlp}"] if otlp else []
    return found(True, ", ".join(said))


def _finding(id: str, title: str, needed_for: str) -> Callable[..., Finding]:
    from holdfast.host.doctor.report import Finding

    def found(ok: bool | None, detail: str, fix: str = "") -> Finding:
        return Finding(id, title, ok, detail, fix, needed_for)

    return found


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


# ---------------------------------------------------------------- drill


drill_parser = usage("""
    provokes each failure mode on a throw-away home of this installation and reads its signature.
    Exits with 1 if a promise is broken.

    check=[CLAUSE...]  only these clauses, like S3 or A4
    --live  on your own installation: makes sessions there and ends them; leaves out
            checks that would kill the host, change operators or the policy
    --html FILE  write the table as a page too
    --json
""")


def drill(args: Namespace) -> int:
    import asyncio

    from holdfast.drill import report

    def told(one: report.Result) -> None:
        if not args.json:
            print(printable(report.line(one)), flush=True)

    try:
        results = asyncio.run(report.drill(args.check, told, args.live))
    except asyncio.CancelledError:  # by a signal
        raise KeyboardInterrupt from None
    if args.html:
        with open(args.html, "w") as file:
            file.write(report.as_html(results))
    if args.json:
        put_json(report.as_json(results))
    return int(any(one.verdict == "broken" for one in results))


# ---------------------------------------------------------------- config


config_parser = usage("""
    act=show  print the effective configuration
    --json
""")


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
        source = "default" if v.source == "default" else "from the file"
        print(f"{v.key} = {_toml(v.value)}    # {option.help} ({source})")
    return 0


def _toml(value: object) -> str:
    import json

    return json.dumps(value) if not isinstance(value, float) else f"{value:g}"
