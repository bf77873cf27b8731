"""The systemd units of an installation: their text, and whether a file on disk was edited.

There are four units and three kinds of treatment:

- `holdfast-host.service` and `holdfast-relay.service` are hardened. They decide and route; no
  program of a user runs in them.
- `holdfast-nursery.service` is not hardened, on purpose. Sessions are its children, and they
  inherit every restriction of a unit for ever. A session under NoNewPrivileges has no sudo, a
  session under ProtectSystem cannot install programs, a session under a system call filter cannot
  debug. It also starts the host's workers, which trace sessions and enter their namespaces
  (host/runtime/worker_programs.py).

- `holdfast-drain.service` runs no process. When the machine shuts down, its stop command saves the
  sessions (`holdfast drain`). It is ordered after the other two: systemd stops it first and waits
  for it. A stop of this unit alone does nothing: the command asks the manager whether everything
  stops.

Sessions survive a stop of all units. The nursery's unit has KillMode=process, so a stop ends only
the nursery itself, which a running session does not need; keepers and programs stay in the unit's
group. The unit is PartOf the host's unit, so that a restart after an upgrade gives new sessions new
keepers. It has a delegated group (where halt is a freeze for any account,
host/processes/cgroups.py), OOMPolicy=continue (or one greedy program would end the unit), and no
limit on tasks but the machine's. DelegateSubgroup (systemd 254; older ones ignore it) leaves the
group of the unit without processes: only then can the kernel limit the sessions below.

Not used, for these reasons:
- In a user's own manager, all options that need a mount namespace (ProtectSystem and similar).
  These come with a user namespace, and inside a user namespace the kernel hides outside processes:
  the host could not see the waits of sessions. Only filters are used there.
- MemoryDenyWriteExecute for the host: the terminal emulator calls back through cffi, which makes
  such pages (tried: MemoryError at the first screen).
- PrivateTmp for the host: agents' sockets, to which it points sessions, are in /tmp.
- RestrictRealtime for the host: seize and halt run with priority for a moment
  (host/runtime/priority.py).
- WatchdogSec: an idle host wakes no process, and clients notice a host that does not answer.

A generated file begins with a mark and the digest of its rest. If the digest is right, the text was
generated and may be replaced by a newer text. Otherwise it was edited, and stays. (`systemctl edit`
is the better way: a drop-in survives both.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from holdfast.model.errors import Impossible

Manager = Literal["user", "system"]
State = Literal["missing", "current", "outdated", "edited"]

NURSERY: Final = "holdfast-nursery.service"
HOST: Final = "holdfast-host.service"
DRAIN: Final = "holdfast-drain.service"
RELAY: Final = "holdfast-relay.service"
KEEPERS: Final = "keepers"  # group of nursery and keepers, below the group of the unit
DRAIN_NOTICE_S: Final = 75  # below the 90 s that systemd gives a unit to stop, by default
DRAIN_STOP_S: Final = 90
RELAY_STATE: Final = "holdfast-relay"  # below /var/lib
OTHER_SERVES: Final = 3  # exit code of a host or nursery if the home is served already
HOPELESS: Final = (2, OTHER_SERVES, 7)  # exit codes for which a restart is useless
PRIVILEGED_PORTS: Final = 1024

_MARK: Final = (
    "# Written by `holdfast service install`. To change it: `systemctl edit` (a drop-in); "
    "an edited file is never overwritten."
)
_DIGEST: Final = re.compile(r"# holdfast-unit-digest: ([0-9a-f]{64})")
_HOME: Final = "# holdfast-home: "
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./=:@+-]+")
_UNSAFE_PROGRAM: Final = re.compile(r"[\x00-\x1f\x7f\"'\\]")
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f]")

# Filters and flags without a mount namespace: every manager can set them.
_FILTERED: Final = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictNamespaces=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
    "UMask=0077",
)
_NAMESPACED: Final = (
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
)
_NEVER_NEEDED: Final = (
    "CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_BOOT CAP_SYS_TIME CAP_SYS_PACCT CAP_MKNOD CAP_NET_ADMIN "
    "CAP_NET_RAW CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_AUDIT_CONTROL CAP_SYSLOG CAP_WAKE_ALARM "
    "CAP_BPF CAP_PERFMON"
)


@dataclass(frozen=True, slots=True)
class Installation:
    """The installation that the units are written for."""

    manager: Manager
    account: str
    interpreter: str  # as it was started: in a virtual environment the link, not its target
    state: str  # the home's directory
    # Of Holdfast: after an upgrade the units are outdated, and a new installation restarts them.
    release: str
    environment: tuple[tuple[str, str], ...] = ()
    at_home: bool = False  # the interpreter or the code lies in a home directory


# ---------------------------------------------------------------- words


def argument(text: str) -> str:
    """Quote one argument of a command line: not split, no specifier, no variable."""
    return _word(text).replace("$", "$$")


def command(program: str, *arguments: str) -> str:
    """Return a command line.

    systemd takes the path of the program literally but expands argv[0], so a path with `$` is given
    twice.
    """
    if _UNSAFE_PROGRAM.search(program):
        raise Impossible(
            "systemd cannot start a program whose path has quotes, backslashes or control "
            f"characters: {program!a}",
            "install Holdfast into another directory",
        )
    first = _word(program)
    words = [first] if "$" not in program else ["@" + first, argument(program)]
    return " ".join([*words, *map(argument, arguments)])


def setting(name: str, value: str) -> str:
    """Quote a variable for Environment=."""
    return _word(f"{name}={value}")


def path(text: str) -> str:
    """Quote an entry of a list of paths."""
    return _word(text)


def _word(text: str) -> str:
    if _UNSAFE.search(text):
        raise Impossible(
            f"a unit cannot name {text!a}: it has control characters", "use another directory"
        )
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise Impossible(
            f"a unit cannot name {text!a}: it is not UTF-8", "use another directory"
        ) from e
    doubled = text.replace("%", "%%")
    if _PLAIN.fullmatch(doubled):
        return doubled
    return '"' + doubled.replace("\\", "\\\\").replace('"', '\\"') + '"'


# ---------------------------------------------------------------- units


def nursery(installation: Installation) -> str:
    line = command(
        installation.interpreter, "-m", "holdfast.keeper.nursery", f"{installation.state}/run"
    )
    return _unit(
        installation,
        "Holdfast nursery: starts sessions, apart from the host",
        (f"PartOf={HOST}", "StartLimitIntervalSec=0"),
        (
            "# Not hardened: sessions are its children and would inherit it. "
            "A stop ends the nursery, not the sessions.",
            *_starts(installation, line),
            "KillMode=process",
            "Delegate=yes",
            f"DelegateSubgroup={KEEPERS}",
            *_survives(installation),
            "OOMPolicy=continue",
            "TasksMax=infinity",
            "Restart=always",
            "RestartSec=1",
            f"RestartPreventExitStatus={OTHER_SERVES}",
            "UMask=0077",
        ),
    )


def host(installation: Installation) -> str:
    protected: tuple[str, ...] = ()
    if installation.manager == "system":
        protected = (
            "ProtectSystem=full",  # not strict: `keep` writes into the directories of sessions
            *_NAMESPACED,
            f"ReadWritePaths={path(installation.state)}",
            f"CapabilityBoundingSet=~{_NEVER_NEEDED}",
            "SystemCallFilter=bpf",  # the filter of host/processes/pid_filter.py
        )
    line = command(installation.interpreter, "-m", "holdfast.host.main")
    return _unit(
        installation,
        "Holdfast host",
        (
            f"Wants={NURSERY}",
            f"Wants={DRAIN}",
            f"After={NURSERY}",
            *(("After=network.target",) if installation.manager == "system" else ()),
            "StartLimitIntervalSec=0",
        ),
        (
            *_starts(installation, line, ("HOLDFAST_SERVICE", installation.manager)),
            "ExecReload=/bin/kill -HUP $MAINPID",
            # the host itself prepares its end: it asks the manager by a process (host/service.py)
            "KillMode=mixed",
            *_survives(installation),
            "Restart=on-failure",
            "RestartSec=500ms",
            f"RestartPreventExitStatus={' '.join(map(str, HOPELESS))}",
            *_FILTERED,
            "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
            *protected,
        ),
        wanted=True,
    )


def drain(installation: Installation) -> str:
    """Return the unit that saves the sessions when the machine shuts down."""
    stop = command(
        installation.interpreter,
        *("-m", "holdfast", "drain", "--on-shutdown", installation.manager),
        *("--notice", f"{DRAIN_NOTICE_S}s"),
    )
    return _unit(
        installation,
        "Holdfast: save the sessions when the machine shuts down",
        (f"After={HOST}", f"After={NURSERY}"),
        (
            "Type=oneshot",
            "RemainAfterExit=yes",
            "ExecStart=/bin/true",
            f"ExecStop={stop}",
            f"TimeoutStopSec={DRAIN_STOP_S}",
            "WorkingDirectory=/",
            *(f"Environment={setting(name, value)}" for name, value in installation.environment),
        ),
    )


def relay(installation: Installation, options: Sequence[str] = ()) -> str:
    """Return the relay's unit; `options` go to `holdfast relay serve`.

    The service manager hands over the certificate files: the relay's account cannot read them.
    """
    serve = ("-m", "holdfast", "relay", "serve", "--data")
    if installation.manager == "user":
        line = command(installation.interpreter, *serve, f"{installation.state}/relay", *options)
        how: tuple[str, ...] = _starts(installation, line)
    else:
        taken, credentials = _credentials(options)
        line = command(installation.interpreter, *serve, f"/var/lib/{RELAY_STATE}")
        low = any(_port(one) for one in _values(options, ("--listen", "--grpc", "--metrics")))
        how = (
            *_starts(installation, " ".join([line, *taken])),
            *credentials,
            "DynamicUser=yes",
            f"StateDirectory={RELAY_STATE}",
            "StateDirectoryMode=0700",
            "ProtectSystem=strict",
            *_NAMESPACED,
            f"ProtectHome={'read-only' if installation.at_home else 'yes'}",
            "ProtectControlGroups=yes",
            "ProtectProc=invisible",
            "PrivateTmp=yes",
            "PrivateDevices=yes",
            *(("AmbientCapabilities=CAP_NET_BIND_SERVICE",) if low else ()),
            f"CapabilityBoundingSet={'CAP_NET_BIND_SERVICE' if low else ''}",
        )
    online = ("Wants=network-online.target", "After=network-online.target")
    return _unit(
        installation,
        "Holdfast relay",
        (*(online if installation.manager == "system" else ()), "StartLimitIntervalSec=0"),
        (
            *how,
            "ExecReload=/bin/kill -HUP $MAINPID",
            "Restart=on-failure",
            "RestartSec=1",
            f"RestartPreventExitStatus={' '.join(map(str, HOPELESS))}",
            "LimitNOFILE=524288",
            *_FILTERED,
            "SystemCallFilter=~@privileged",
            "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
            "RestrictRealtime=yes",
            "MemoryDenyWriteExecute=yes",
        ),
        wanted=True,
    )


def _starts(installation: Installation, line: str, *more: tuple[str, str]) -> tuple[str, ...]:
    return (
        "Type=notify",
        "NotifyAccess=main",
        f"ExecStart={line}",
        "WorkingDirectory=/",
        *(
            f"Environment={setting(name, value)}"
            for name, value in (*installation.environment, *more)
        ),
    )


def _survives(installation: Installation) -> tuple[str, ...]:
    """The OOM killer takes this unit last; the manager of a user may not say so."""
    return ("OOMScoreAdjust=-900",) if installation.manager == "system" else ()


def _unit(
    installation: Installation,
    description: str,
    unit: Sequence[str],
    service: Sequence[str],
    wanted: bool = False,
) -> str:
    dynamic = "DynamicUser=yes" in service
    user = () if installation.manager == "user" or dynamic else (f"User={installation.account}",)
    target = "default.target" if installation.manager == "user" else "multi-user.target"
    lines = [
        "[Unit]",
        f"Description={description}",
        *unit,
        "",
        "[Service]",
        *user,
        *service,
        *(["", "[Install]", f"WantedBy={target}"] if wanted else []),
    ]
    return marked("\n".join(lines) + "\n", installation.state, installation.release)


def _values(options: Sequence[str], names: Sequence[str]) -> list[str]:
    pairs = [
        *zip(options, options[1:], strict=False),
        *(tuple(one.split("=", 1)) for one in options if "=" in one),
    ]
    return [value for name, value in pairs if name in names]


def _port(endpoint: str) -> bool:
    """Say whether listening on this address needs a privilege."""
    port = endpoint.rpartition(":")[2]
    return port.isdigit() and 0 < int(port) < PRIVILEGED_PORTS


def _credentials(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options as words of the unit, and the lines that pass files."""
    words: list[str] = []
    lines: list[str] = []
    before = ""
    for one in options:
        name, _, value = one.partition("=") if one.startswith("--tls-") else (before, "", one)
        if name in ("--tls-cert", "--tls-key") and value:
            if _UNSAFE.search(value) or not value.startswith("/"):
                raise Impossible(f"{name} needs an absolute path in a unit, not {value!a}")
            lines.append(f"LoadCredential={name[2:]}:{value.replace('%', '%%')}")
            words += [*([name] if before != name else []), "${CREDENTIALS_DIRECTORY}/" + name[2:]]
        else:
            words.append(argument(one))
        before = one
    return words, lines


# ---------------------------------------------------------------- generated or edited


def marked(body: str, home: str, release: str) -> str:
    rest = f"{_HOME}{home}\n# holdfast-release: {release}\n{body}"
    return f"{_MARK}\n# holdfast-unit-digest: {_digest(rest)}\n{rest}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def home_of(text: str) -> str | None:
    """Return the home that a generated unit serves."""
    return next(
        (line.removeprefix(_HOME) for line in text.splitlines()[:3] if line.startswith(_HOME)), None
    )


def compare(found: str | None, wanted: str) -> State:
    if found is None:
        return "missing"
    if found == wanted:
        return "current"
    lines = found.split("\n", 2)
    said = _DIGEST.fullmatch(lines[1]) if len(lines) == 3 else None
    return "outdated" if said is not None and said[1] == _digest(lines[2]) else "edited"
