"""service: units for systemd, so that host or relay start at boot, and an upgrade keeps sessions (core/units.py has their text and the reasons).

Written is nothing unless the manager answers: half an installation helps nobody. A file that somebody edited is left alone, always.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import __version__
from holdfast import home as homes
from holdfast.client import start
from holdfast.core import units
from holdfast.faces.cli import nearby
from holdfast.faces.cli.output import clean, put_json, table
from holdfast.model.errors import Impossible, NotFound, Refused, Unavailable, Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from holdfast.core.units import Manager, Place
    from holdfast.home import Home

ASK_S = 30.0
UNIT_BYTES = 65536
SYSTEM_DIRECTORY = "/etc/systemd/system"
BOOTED = "/run/systemd/system"  # exists where systemd is process 1
LINGER = "/var/lib/systemd/linger"
_CARRIED = (
    "HOLDFAST_HOME",
    "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
    "PYTHONPATH",
)  # what makes this command find its home and its code


class Unit(NamedTuple):
    name: str
    path: str
    text: str
    state: units.State
    found: str | None


class Setup(NamedTuple):
    manager: Manager
    account: str
    uid: int
    home: Home
    place: Place
    units: list[Unit]


def service_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "act",
        choices=("install", "uninstall", "status"),
        help="write and start the units, stop and remove them, or show how they stand",
    )
    p.add_argument(
        "command",
        nargs="*",
        metavar="-- OPTIONS",
        help="install --relay: for `holdfast relay serve`, like --listen 0.0.0.0:443 --tls-cert F --tls-key F",
    )
    which = p.add_mutually_exclusive_group()
    which.add_argument("--user", action="store_true", help="units of your own account (default)")
    which.add_argument("--system", action="store_true", help="units of the machine; needs root")
    p.add_argument(
        "--account",
        metavar="NAME",
        help="with --system: the account whose host it is (default: the one that runs this)",
    )
    p.add_argument("--relay", action="store_true", help="the relay, instead of host and nursery")
    p.add_argument(
        "--dry-run", action="store_true", help="print the units and what would be done, do nothing"
    )
    p.add_argument("--json", action="store_true")
    p.description = "starts the host (or a relay) at boot, by systemd. Sessions keep running while it is\nstopped, restarted or upgraded, and are not hardened with it."


def service(args: Namespace) -> int:
    if args.account and (not args.system or args.relay):
        raise Usage("--account belongs to --system, without --relay")
    if args.command and not (args.relay and args.act == "install"):
        raise Usage("options after -- are for `service install --relay`")
    setup = _setup(args)
    return {"install": _install, "uninstall": _uninstall, "status": _status}[args.act](args, setup)


# ---------------------------------------------------------------- what it is about


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
        environ["HOLDFAST_HOME"] = home.state  # as it was given it may be relative
    if "PYTHONPATH" in environ:
        environ["PYTHONPATH"] = os.pathsep.join(
            map(os.path.abspath, environ["PYTHONPATH"].split(os.pathsep))
        )
    interpreter = _interpreter()
    at_home = any(
        path.startswith(("/home/", "/root/", "/run/user/")) for path in _read_by_it(interpreter)
    )
    if args.relay and manager == "system":
        environ = {
            name: value for name, value in environ.items() if name == "PYTHONPATH"
        }  # it has a directory of its own
    place = units.Place(
        manager, who.pw_name, interpreter, home.state, __version__, tuple(environ.items()), at_home
    )
    config = os.environ.get("XDG_CONFIG_HOME") or f"{os.environ.get('HOME') or who.pw_dir}/.config"
    directory = SYSTEM_DIRECTORY if manager == "system" else f"{config}/systemd/user"
    texts = (
        {units.RELAY: units.relay(place, args.command)}
        if args.relay
        else {units.NURSERY: units.nursery(place), units.HOST: units.host(place)}
    )
    made = []
    for name, text in texts.items():
        found = _read(f"{directory}/{name}")
        state = units.compare(found, text)
        if args.relay and args.act != "install" and state == "outdated":
            state = "current"  # its options are not known here
        made.append(Unit(name, f"{directory}/{name}", text, state, found))
    return Setup(manager, who.pw_name, who.pw_uid, home, place, made)


def _interpreter() -> str:
    if not sys.executable:
        raise Impossible(
            "this interpreter does not know where it is", "run holdfast from where it is installed"
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
    """Why nothing can be installed here, and what helps; None if it can."""
    if not os.path.isdir(BOOTED):
        return (
            "systemd does not run this machine (it is not process 1)",
            "`holdfast up --detach` starts the host without it; --dry-run prints the units",
        )
    if manager == "system" and os.geteuid() != 0:
        return (
            "units of the machine are root's",
            "as root, with --account NAME for the host of an account; or without --system",
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
            f"lingering is off for {setup.account}: at its last logout systemd ends all of this, sessions included. Turn it on: loginctl enable-linger {setup.account}"
        )
    if relay and setup.manager == "system" and (closed := _closed(setup.place.interpreter)):
        said.append(
            f"the relay runs as an account of its own, which cannot enter {closed}: install Holdfast where all may read it, like /opt"
        )
    return said


def _read_by_it(interpreter: str) -> tuple[str, ...]:
    return interpreter, os.path.realpath(interpreter), os.path.realpath(homes.__file__)


def _closed(interpreter: str) -> str | None:
    """A directory above what it reads that others may not enter."""
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
    for unit in setup.units:
        other = (
            units.home_of(unit.found)
            if unit.found is not None and unit.state == "outdated"
            else None
        )
        if (
            other is not None
            and other != setup.home.state
            and not (args.relay and setup.manager == "system")
        ):
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
            did.append(
                f"left {unit.path}, which is {'as it should be' if unit.state == 'current' else 'edited by somebody'}"
            )
    changed = any(unit.state in ("missing", "outdated") for unit in setup.units)
    if changed:
        _must(setup.manager, did, "daemon-reload")
    main = units.RELAY if args.relay else units.HOST
    _must(setup.manager, did, "enable", main)
    if not args.relay:
        _take_over(setup, did)
    elif setup.manager == "user":
        _take_over_relay(setup, did)
    if changed and _ask(setup.manager, "is-active", main)[0] == 0:
        _must(setup.manager, did, "restart", main)
    else:
        _must(setup.manager, did, "start", main)
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
            f"look at `{_journal(manager, words[-1])}`, then again: `holdfast service install`",
        )
    did.append(shown)


def _journal(manager: Manager, unit: str) -> str:
    return f"journalctl {'--user ' if manager == 'user' else ''}-u {unit if unit.startswith('holdfast') else units.HOST}"


def _take_over(setup: Setup, did: list[str]) -> None:
    """A host that was started by hand has the home; so has a nursery."""
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
            f"a {' and a '.join(by_hand)} of {setup.account} run already, started by hand",
            f"as {setup.account}: `holdfast down`; then again",
        )
    start.take_over(setup.home, setup.manager, list(by_hand.values()))
    did += [
        f"ended the {name} that was started by hand (process {pid}); the service takes its place"
        for name, pid in by_hand.items()
    ]


def _take_over_relay(setup: Setup, did: list[str]) -> None:
    """The one that `up` started has the directory; from now on `up` asks the manager."""
    nearby.mark_managed(setup.home, True)
    running, ended = nearby.down(setup.home)
    if running is not None and ended:
        did.append(
            f"ended the relay that `up` had started (process {running.pid}); the service takes its place"
        )


def _next(setup: Setup, relay: bool) -> list[str]:
    said = _warnings(setup, relay)
    if relay and setup.manager == "system":
        said.append("a token for hosts, as root: holdfast relay token")
    elif relay:
        said.append("a token for hosts: holdfast relay token")
    else:
        said.append("after an upgrade: `holdfast service install` again; sessions keep running")
    return said


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
            {
                "manager": setup.manager,
                "account": setup.account,
                "home": setup.home.state,
                "possible": impossible is None,
                "why": impossible[0] if impossible else "",
                "units": [
                    {"name": u.name, "path": u.path, "state": u.state, "text": u.text}
                    for u in setup.units
                ],
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
        put_json(
            {
                "manager": setup.manager,
                "account": setup.account,
                "home": setup.home.state,
                "did": did,
                "next": after,
                "units": [{"name": u.name, "path": u.path, "state": u.state} for u in setup.units],
            }
        )
        return 0
    for line in did:
        print(clean(line))
    for line in after:
        print(f"! {clean(line)}")
    return 0


# ---------------------------------------------------------------- uninstall


def _uninstall(args: Namespace, setup: Setup) -> int:
    there = [unit for unit in setup.units if unit.found is not None]
    ours = [unit for unit in there if unit.state != "edited"]
    for unit in ours:
        other = units.home_of(unit.found or "")
        if other != setup.home.state and not (args.relay and setup.manager == "system"):
            raise Refused(
                f"{unit.path} serves another home: {other}", f"with HOLDFAST_HOME={other}"
            )
    kept = [
        f"left {unit.path}, which is edited by somebody: remove it yourself"
        for unit in there
        if unit.state == "edited"
    ]
    if args.dry_run:
        return _report(
            args,
            setup,
            [f"would stop, disable and remove {unit.name}" for unit in reversed(ours)] + kept,
            [],
        )
    if not there:
        return _report(args, setup, ["nothing is installed"], [])
    impossible = why_not(setup.manager)
    if impossible is not None:
        raise Impossible(*impossible)
    did: list[str] = []
    for unit in reversed(ours):  # the host before the nursery
        if unit.name != units.NURSERY:
            _must(setup.manager, did, "disable", "--now", unit.name)
        else:
            _must(setup.manager, did, "stop", unit.name)
    for unit in ours:
        try:
            os.unlink(unit.path)
        except OSError as e:
            raise Unavailable(f"cannot remove {unit.path}: {e.strerror}") from e
        did.append(f"removed {unit.path}")
    _must(setup.manager, did, "daemon-reload")
    if args.relay and setup.manager == "user":
        nearby.mark_managed(setup.home, False)
    if not args.relay:
        for path in (setup.home.service, setup.home.stopped):
            try:
                os.unlink(path)
            except OSError:
                pass
    return _report(
        args,
        setup,
        did + kept,
        [] if args.relay else ["sessions keep running; `holdfast up` starts a host for them"],
    )


# ---------------------------------------------------------------- status


def _status(args: Namespace, setup: Setup) -> int:
    impossible = why_not(setup.manager) if setup.manager == "user" or os.geteuid() == 0 else None
    if not os.path.isdir(BOOTED):
        impossible = why_not(setup.manager)
    shown: list[dict[str, Any]] = []
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
            f"the host that serves (process {running}) was started by hand: `holdfast service install` puts the service in its place"
        )
    if any(u["file"] == "outdated" for u in shown):
        notes.append(
            "a unit is of another release or interpreter: `holdfast service install` brings it up to date; sessions keep running"
        )
    if args.json:
        put_json(
            {
                "manager": setup.manager,
                "account": setup.account,
                "home": setup.home.state,
                "units": shown,
                "lingering": lingering,
                "host": running,
                "by_unit": by_unit,
                "notes": notes,
            }
        )
        return 0
    print(
        table(
            ("UNIT", "FILE", "ACTIVE", "ENABLED", "PID"),
            [
                (u["name"], u["file"], u["active"], u["enabled"], str(u["pid"] or "-"))
                for u in shown
            ],
        )
    )
    for note in notes:
        print(f"! {clean(note)}")
    return 0


def _main_pid(manager: Manager, unit: str) -> str:
    return _facts(manager, unit).get("MainPID", "0")


def _facts(manager: Manager, name: str) -> dict[str, str]:
    code, said = _ask(manager, "show", "-p", "ActiveState,UnitFileState,MainPID,NRestarts", name)
    return (
        dict(line.split("=", 1) for line in said.splitlines() if "=" in line) if code == 0 else {}
    )
