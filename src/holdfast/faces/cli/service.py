"""service: systemd units, so that the host or a relay starts at boot and sessions survive upgrades.

core/systemd_units.py has the text of the units and the reasons. To avoid half an installation, no
file is written unless the service manager answers. A file that a person edited is never changed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from holdfast import __version__
from holdfast import home as homes
from holdfast.client import start
from holdfast.core import systemd_units as units
from holdfast.faces.cli import local_relay
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.output import clean, put, put_json, table
from holdfast.model.errors import Impossible, NotFound, Refused, Unavailable, Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from holdfast.core.systemd_units import Installation, Manager
    from holdfast.home import Home
    from holdfast.model.jsontext import Json

ASK_S = 30.0
UNIT_BYTES = 65536
SYSTEM_DIRECTORY = "/etc/systemd/system"
BOOTED = "/run/systemd/system"  # exists where systemd is process 1
LINGER = "/var/lib/systemd/linger"
# The variables that lead this command to the home and the code.
_CARRIED = ("HOLDFAST_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "PYTHONPATH")


class Unit(NamedTuple):
    name: str
    path: str
    text: str
    state: units.State
    found: str | None

    def shown(self) -> Json:
        return {"name": self.name, "path": self.path, "state": self.state}


class Setup(NamedTuple):
    manager: Manager
    account: str
    uid: int
    home: Home
    installation: Installation
    units: list[Unit]

    def shown(self) -> Json:
        return {"manager": self.manager, "account": self.account, "home": self.home.state}


def service_parser(p: ArgumentParser) -> None:
    usage("""
        start the host (or a relay) at boot, with systemd. Sessions keep running while it is
        stopped, restarted or upgraded. The hardening of its unit does not apply to them.

        act=install|uninstall|status  write and start the units, stop and remove them, or show their
            state
    """)(p)
    p.add_argument(
        "command",
        nargs="*",
        metavar="-- OPTIONS",
        help="install --relay: options of `holdfast relay serve`, "
        "like --listen 0.0.0.0:443 --tls-cert F --tls-key F",
    )
    which = p.add_mutually_exclusive_group()
    which.add_argument("--user", action="store_true", help="units of your own account (default)")
    which.add_argument("--system", action="store_true", help="units of the machine; needs root")
    usage("""
        --account NAME  with --system: the account of the host (default: yours)
        --relay  the relay instead of host and nursery
        --dry-run  print the units and the steps, do nothing
        --json
    """)(p)


def service(args: Namespace) -> int:
    if args.account and (not args.system or args.relay):
        raise Usage("--account needs --system, and does not apply to --relay")
    if args.command and not (args.relay and args.act == "install"):
        raise Usage("options after -- are for `service install --relay`")
    setup = _setup(args)
    return {"install": _install, "uninstall": _uninstall, "status": _status}[args.act](args, setup)


# ---------------------------------------------------------------- the setup of this machine


def _setup(args: Namespace) -> Setup:
    import pwd

    manager: Manager = "system" if args.system else "user"
    try:
        who = pwd.getpwnam(args.account) if args.account else pwd.getpwuid(os.geteuid())
    except KeyError as e:
        raise NotFound(f"there is no account {args.account or os.geteuid()!a}") from e
    foreign = who.pw_uid != os.geteuid()
    environ = {
        name: value
        for name in _CARRIED
        if (value := os.environ.get(name)) and not (foreign and name.startswith("XDG_"))
    }
    home = homes.resolve(
        {**environ, "HOME": who.pw_dir if foreign else os.environ.get("HOME") or who.pw_dir}
    )
    if home.explicit:
        environ["HOLDFAST_HOME"] = home.state  # the given path may be relative
    if "PYTHONPATH" in environ:
        environ["PYTHONPATH"] = os.pathsep.join(
            map(os.path.abspath, environ["PYTHONPATH"].split(os.pathsep))
        )
    interpreter = _interpreter()
    at_home = any(
        path.startswith(("/home/", "/root/", "/run/user/")) for path in _read_by_it(interpreter)
    )
    if args.relay and manager == "system":
        # The relay has a separate directory.
        environ = {name: value for name, value in environ.items() if name == "PYTHONPATH"}
    installation = units.Installation(
        manager, who.pw_name, interpreter, home.state, __version__, tuple(environ.items()), at_home
    )
    config = os.environ.get("XDG_CONFIG_HOME") or f"{os.environ.get('HOME') or who.pw_dir}/.config"
    directory = SYSTEM_DIRECTORY if manager == "system" else f"{config}/systemd/user"
    texts = (
        {units.RELAY: units.relay(installation, args.command)}
        if args.relay
        else {
            units.NURSERY: units.nursery(installation),
            units.HOST: units.host(installation),
            units.DRAIN: units.drain(installation),
        }
    )
    made = []
    for name, text in texts.items():
        found = _read(f"{directory}/{name}")
        state = units.compare(found, text)
        if args.relay and args.act != "install" and state == "outdated":
            state = "current"  # the relay's options are not known here
        made.append(Unit(name, f"{directory}/{name}", text, state, found))
    return Setup(manager, who.pw_name, who.pw_uid, home, installation, made)


def _interpreter() -> str:
    if not sys.executable:
        raise Impossible(
            "this interpreter does not know its own path", "run holdfast from its installation"
        )
    return os.path.abspath(sys.executable)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(UNIT_BYTES)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise Unavailable(
            f"cannot read {path}: {e.strerror}", "make it readable for this account"
        ) from e


def _ask(manager: str, *words: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            start.systemctl(manager, *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except FileNotFoundError:
        return 127, "there is no systemctl on this machine"
    except subprocess.TimeoutExpired:
        return 124, f"systemctl did not answer within {ASK_S:g} s"
    said = done.stdout if done.returncode == 0 else done.stderr or done.stdout
    return done.returncode, said.decode("utf-8", "replace").strip()


def why_not(manager: Manager) -> tuple[str, str] | None:
    """Why no unit can be installed here, and the remedy; None if installing is possible."""
    if not os.path.isdir(BOOTED):
        return (
            "systemd does not run this machine (it is not process 1)",
            "`holdfast up --detach` starts the host without it; --dry-run prints the units",
        )
    if manager == "system" and os.geteuid() != 0:
        return (
            "only root can install units of the machine",
            "run it as root, with --account NAME for the host of an account; or without --system",
        )
    code, said = _ask(manager, "show-environment")
    if code:
        reason = said.splitlines()[-1] if said else f"exit code {code}"
        return (
            f"the {manager} manager of systemd does not answer: {reason}",
            "log in as this account (not by su or sudo), or as root: loginctl enable-linger "
            + _name(),
        )
    return None


def _name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _lingers(account: str) -> bool:
    return os.path.exists(f"{LINGER}/{account}")


def _warnings(setup: Setup, relay: bool) -> list[str]:
    said: list[str] = []
    if setup.manager == "user" and not _lingers(setup.account):
        said.append(
            f"lingering is off for {setup.account}: at its last logout systemd ends everything, "
            f"sessions included. Turn it on: loginctl enable-linger {setup.account}"
        )
    if relay and setup.manager == "system" and (closed := _closed(setup.installation.interpreter)):
        said.append(
            f"the relay runs as its own account, which cannot enter {closed}: "
            "install Holdfast where all accounts may read it, like /opt"
        )
    return said


def _read_by_it(interpreter: str) -> tuple[str, ...]:
    return interpreter, os.path.realpath(interpreter), os.path.realpath(homes.__file__)


def _closed(interpreter: str) -> str | None:
    """A directory on the interpreter's path that other accounts may not enter."""
    for one in _read_by_it(interpreter):
        while (one := os.path.dirname(one)) != "/":
            try:
                if not os.stat(one).st_mode & 0o001:
                    return one
            except OSError:
                return one
    return None


# ---------------------------------------------------------------- install


def _install(args: Namespace, setup: Setup) -> int:
    for unit in setup.units if not (args.relay and setup.manager == "system") else ():
        other = units.home_of(unit.found) if unit.found and unit.state == "outdated" else None
        if other is not None and other != setup.home.state:
            raise Refused(
                f"{unit.path} serves another home: {other}",
                f"`holdfast service uninstall` with HOLDFAST_HOME={other} first",
            )
    impossible = why_not(setup.manager)
    if args.dry_run:
        return _dry(args, setup, impossible)
    if impossible is not None:
        raise Impossible(*impossible)
    did: list[str] = []
    for unit in setup.units:
        if unit.state in ("missing", "outdated"):
            _write(unit)
            did.append(f"wrote {unit.path}")
        else:
            state = "up to date" if unit.state == "current" else "edited by hand"
            did.append(f"left {unit.path}, which is {state}")
    changed = any(unit.state in ("missing", "outdated") for unit in setup.units)
    if changed:
        _must(setup.manager, did, "daemon-reload")
    main = units.RELAY if args.relay else units.HOST
    _must(setup.manager, did, "enable", main)
    if not args.relay:
        _take_over(setup, did)
    elif setup.manager == "user":
        _take_over_relay(setup, did)
    again = changed and _ask(setup.manager, "is-active", main)[0] == 0
    _must(setup.manager, did, "restart" if again else "start", main)
    return _report(args, setup, did, _next(setup, args.relay))


def _write(unit: Unit) -> None:
    directory = os.path.dirname(unit.path)
    fresh = f"{unit.path}.{os.getpid()}"
    try:
        os.makedirs(directory, exist_ok=True)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(unit.text)
                file.flush()
                os.fsync(file.fileno())
            os.rename(fresh, unit.path)
        except BaseException:
            os.unlink(fresh)
            raise
    except OSError as e:
        raise Unavailable(
            f"cannot write {unit.path}: {e.strerror}", f"make {directory} writable for this account"
        ) from e


def _must(manager: Manager, did: list[str], *words: str) -> None:
    code, said = _ask(manager, *words)
    shown = " ".join(("systemctl", *(("--user",) if manager == "user" else ()), *words))
    if code:
        raise Unavailable(
            f"`{shown}` failed: {said.splitlines()[0] if said else f'exit code {code}'}",
            f"look at `{_journal(manager, words[-1])}`, then repeat `holdfast service install`",
        )
    did.append(shown)


def _journal(manager: Manager, unit: str) -> str:
    name = unit if unit.startswith("holdfast") else units.HOST
    return f"journalctl {'--user ' if manager == 'user' else ''}-u {name}"


def _take_over(setup: Setup, did: list[str]) -> None:
    """End a host and a nursery that were started by hand, because these lock the home."""
    by_hand = {
        name: pid
        for name, pid in start.serving(setup.home).items()
        if str(pid)
        not in (_main_pid(setup.manager, units.HOST), _main_pid(setup.manager, units.NURSERY))
    }
    if not by_hand:
        return
    if setup.uid != os.geteuid():
        raise Refused(
            f"a {' and a '.join(by_hand)} of {setup.account} already run, started by hand",
            f"as {setup.account}: `holdfast down`; then repeat this",
        )
    start.take_over(setup.home, setup.manager, list(by_hand.values()))
    did += [
        f"ended the {name} that was started by hand (process {pid}); the service takes its place"
        for name, pid in by_hand.items()
    ]


def _take_over_relay(setup: Setup, did: list[str]) -> None:
    """End the relay that `up` started, which locks the directory; `up` will ask the manager."""
    local_relay.mark_managed(setup.home, True)
    running, ended = local_relay.down(setup.home)
    if running is not None and ended:
        did.append(
            f"ended the relay that `up` had started (process {running.pid}); "
            "the service takes its place"
        )


def _next(setup: Setup, relay: bool) -> list[str]:
    if not relay:
        then = "after an upgrade: repeat `holdfast service install`; sessions keep running"
    else:
        root = ", as root" if setup.manager == "system" else ""
        then = f"a token for hosts{root}: holdfast relay token"
    return [*_warnings(setup, relay), then]


def _dry(args: Namespace, setup: Setup, impossible: tuple[str, str] | None) -> int:
    would = [f"write {unit.path}" for unit in setup.units if unit.state in ("missing", "outdated")]
    would += [
        f"leave {unit.path} ({unit.state})"
        for unit in setup.units
        if unit.state in ("current", "edited")
    ]
    flag = "--user " if setup.manager == "user" else ""
    would += [
        f"systemctl {flag}daemon-reload",
        f"systemctl {flag}enable --now {units.RELAY if args.relay else units.HOST}",
    ]
    if args.json:
        put_json(
            setup.shown()
            | {
                "possible": impossible is None,
                "why": impossible[0] if impossible else "",
                "units": [u.shown() | {"text": u.text} for u in setup.units],
                "would": would,
                "next": _next(setup, args.relay),
            }
        )
        return 0
    for unit in setup.units:
        print(f"# ---- {unit.path} ({unit.state})\n{unit.text}")
    print("\n".join(f"# would {line}" for line in would))
    for line in _next(setup, args.relay):
        print(f"# {clean(line)}")
    if impossible is not None:
        print(f"# but not here: {clean(impossible[0])}")
    return 0


def _report(args: Namespace, setup: Setup, did: list[str], after: list[str]) -> int:
    if args.json:
        result = {"did": did, "next": after, "units": [u.shown() for u in setup.units]}
        put_json(setup.shown() | result)
        return 0
    for line in (*did, *(f"! {line}" for line in after)):
        print(clean(line))
    return 0


# ---------------------------------------------------------------- uninstall


def _uninstall(args: Namespace, setup: Setup) -> int:
    there = [unit for unit in setup.units if unit.found is not None]
    ours = [unit for unit in there if unit.state != "edited"]
    for unit in ours if not (args.relay and setup.manager == "system") else ():
        other = units.home_of(unit.found or "")
        if other != setup.home.state:
            raise Refused(
                f"{unit.path} serves another home: {other}", f"with HOLDFAST_HOME={other}"
            )
    kept = [
        f"left {unit.path}, which is edited by hand: remove it yourself"
        for unit in there
        if unit.state == "edited"
    ]
    if args.dry_run:
        would = [f"would stop, disable and remove {unit.name}" for unit in reversed(ours)]
        return _report(args, setup, would + kept, [])
    if not there:
        return _report(args, setup, ["nothing is installed"], [])
    impossible = why_not(setup.manager)
    if impossible is not None:
        raise Impossible(*impossible)
    did: list[str] = []
    for unit in reversed(ours):  # the host before the nursery
        wanted = unit.name in (units.HOST, units.RELAY)
        words = ("disable", "--now") if wanted else ("stop",)
        _must(setup.manager, did, *words, unit.name)
    for unit in ours:
        try:
            os.unlink(unit.path)
        except OSError as e:
            raise Unavailable(f"cannot remove {unit.path}: {e.strerror}") from e
        did.append(f"removed {unit.path}")
    _must(setup.manager, did, "daemon-reload")
    if args.relay and setup.manager == "user":
        local_relay.mark_managed(setup.home, False)
    if not args.relay:
        for path in (setup.home.service, setup.home.stopped):
            with contextlib.suppress(OSError):
                os.unlink(path)
    after = [] if args.relay else ["sessions keep running; `holdfast up` starts a host for them"]
    return _report(args, setup, did + kept, after)


# ---------------------------------------------------------------- status


def _status(args: Namespace, setup: Setup) -> int:
    impossible = why_not(setup.manager) if setup.manager == "user" or os.geteuid() == 0 else None
    if not os.path.isdir(BOOTED):
        impossible = why_not(setup.manager)
    shown: list[Json] = []
    for unit in setup.units:
        facts = _facts(setup.manager, unit.name) if impossible is None else {}
        shown.append(
            {
                "name": unit.name,
                "path": unit.path,
                "file": unit.state,
                "active": facts.get("ActiveState", "unknown"),
                "enabled": facts.get("UnitFileState", "unknown") or "no",
                "pid": int(facts.get("MainPID", "0")) or None,
                "restarts": int(facts.get("NRestarts", "0") or 0),
            }
        )
    lingering = _lingers(setup.account) if setup.manager == "user" else None
    running = None if args.relay else start.serving(setup.home).get("host")
    by_unit = running is not None and any(
        u["name"] == units.HOST and u["pid"] == running for u in shown
    )
    notes: list[str] = [impossible[0]] if impossible is not None else []
    if setup.manager == "user" and any(u["file"] != "missing" for u in shown):
        notes += _warnings(setup, args.relay)
    if running is not None and not by_unit and any(u["file"] != "missing" for u in shown):
        notes.append(
            f"the host that serves (process {running}) was started by hand: "
            "`holdfast service install` puts the service in its place"
        )
    if any(u["file"] == "outdated" for u in shown):
        notes.append(
            "a unit is of another release or interpreter: "
            "`holdfast service install` brings it up to date; sessions keep running"
        )
    state = {"lingering": lingering, "host": running, "by_unit": by_unit, "notes": notes}
    said = table(
        ("UNIT", "FILE", "ACTIVE", "ENABLED", "PID"),
        [(u["name"], u["file"], u["active"], u["enabled"], str(u["pid"] or "-")) for u in shown],
    )
    said += "".join(f"\n! {clean(note)}" for note in notes)
    return put(args, setup.shown() | {"units": shown} | state, said)


def _main_pid(manager: Manager, unit: str) -> str:
    return _facts(manager, unit).get("MainPID", "0")


def _facts(manager: Manager, name: str) -> dict[str, str]:
    code, said = _ask(manager, "show", "-p", "ActiveState,UnitFileState,MainPID,NRestarts", name)
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line and code == 0)
