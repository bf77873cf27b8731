"""The units by which systemd runs an installation: their text, and whose hand a text on disk is from.

Three programs, two kinds of treatment:

- `holdfast-host.service` and `holdfast-relay.service` are hardened. They decide and route; nothing that a person starts runs in them.
- `holdfast-nursery.service` is not, on purpose: sessions are its children, and what a unit forbids is inherited and never given back. A session under
  NoNewPrivileges has no sudo, one under ProtectSystem cannot install anything, one under a system call filter cannot debug.

Why sessions live through a stop of everything: the nursery's unit has KillMode=process, so that a stop ends the nursery itself, of which a running session needs
nothing; keepers and programs stay in the unit's group. It is PartOf the host's unit, so that a restart after an upgrade gives new sessions new keepers. It has
a delegated group (halt is a freeze there for any account, host/groups.py), OOMPolicy=continue (or one greedy program would end the unit), and no bound on
tasks but the machine's.

What is not used, and why:
- For an account's own manager, whatever needs a mount namespace (ProtectSystem and its like): there it comes with a user namespace, and from inside of one
  the kernel lets nobody look at processes outside; the host would not see what its sessions wait for. It stays with what a filter can forbid.
- MemoryDenyWriteExecute for the host: the terminal emulator calls back through cffi, which makes such pages (tried: MemoryError at the first screen).
- PrivateTmp for the host: agents' sockets, which it keeps sessions pointed at, are in /tmp.
- RestrictRealtime for the host: seize and halt run before all others for a moment (host/hurry.py).
- WatchdogSec: a host that does nothing wakes nobody up, and clients notice one that does not answer.

A generated file begins with a mark and the digest of what follows. If the digest is right, the text is ours and may be replaced by a newer one; else
somebody edited it, and it is left alone. (`systemctl edit` is the better way: a drop-in survives both.)
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
RELAY: Final = "holdfast-relay.service"
RELAY_STATE: Final = "holdfast-relay"  # below /var/lib
OTHER_SERVES: Final = (
    3  # exit code of a host or nursery that finds another one in charge of its home
)
HOPELESS: Final = (2, OTHER_SERVES, 7)  # exit codes that a second try does not change
PRIVILEGED_PORTS: Final = 1024

_MARK: Final = "# Written by `holdfast service install`. To change it: `systemctl edit` (a drop-in); an edited file is never overwritten."
_DIGEST: Final = re.compile(r"# holdfast-unit-digest: ([0-9a-f]{64})")
_HOME: Final = "# holdfast-home: "
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./=:@+-]+")
_UNSAFE_PROGRAM: Final = re.compile(r"[\x00-\x1f\x7f\"'\\]")
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f]")

# Without a mount namespace: filters and flags, which every manager can set.
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
    "ProtectSystem=strict",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
)
_NEVER_NEEDED: Final = (
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_BOOT",
    "CAP_SYS_TIME",
    "CAP_SYS_PACCT",
    "CAP_MKNOD",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_MAC_ADMIN",
    "CAP_MAC_OVERRIDE",
    "CAP_AUDIT_CONTROL",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BPF",
    "CAP_PERFMON",
)


@dataclass(frozen=True, slots=True)
class Place:
    """What the units are written for."""

    manager: Manager
    account: str
    interpreter: str  # as it was started: in a virtual environment the link, not what it leads to
    state: str  # the home's directory
    release: str  # of Holdfast: after an upgrade the units are outdated, and installing them again restarts what runs
    environment: tuple[tuple[str, str], ...] = ()
    at_home: bool = False  # whether the interpreter or the code lies in somebody's home directory


# ---------------------------------------------------------------- words


def argument(text: str) -> str:
    """One argument of a command line: neither split, nor a specifier, nor a variable."""
    return _word(text).replace("$", "$$")


def command(program: str, *arguments: str) -> str:
    """A command line. The program's path is taken literally by systemd, its name for itself (argv[0]) is not: then both are given."""
    if _UNSAFE_PROGRAM.search(program):
        raise Impossible(
            f"systemd starts no program whose path has quotes, backslashes or control characters: {program!a}",
            "install Holdfast into another directory",
        )
    first = _word(program)
    words = [first] if "$" not in program else ["@" + first, argument(program)]
    return " ".join([*words, *map(argument, arguments)])


def setting(name: str, value: str) -> str:
    """For Environment=."""
    return _word(f"{name}={value}")


def path(text: str) -> str:
    """For a list of paths."""
    return _word(text)


def _word(text: str) -> str:
    if _UNSAFE.search(text):
        raise Impossible(
            f"no unit can name {text!a}: it has control characters", "use another directory"
        )
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise Impossible(
            f"no unit can name {text!a}: it is not UTF-8", "use another directory"
        ) from e
    doubled = text.replace("%", "%%")
    if _PLAIN.fullmatch(doubled):
        return doubled
    return '"' + doubled.replace("\\", "\\\\").replace('"', '\\"') + '"'


# ---------------------------------------------------------------- units


def nursery(place: Place) -> str:
    return _unit(
        place,
        "Holdfast nursery: starts sessions, apart from the host",
        (f"PartOf={HOST}", "StartLimitIntervalSec=0"),
        (
            "# Not hardened: sessions are its children and would inherit it. A stop ends the nursery, not the sessions.",
            *_starts(
                place,
                command(place.interpreter, "-m", "holdfast.keeper.nursery", f"{place.state}/run"),
            ),
            "KillMode=process",
            "Delegate=yes",
            "OOMPolicy=continue",
            "TasksMax=infinity",
            "Restart=always",
            "RestartSec=1",
            f"RestartPreventExitStatus={OTHER_SERVES}",
            "UMask=0077",
        ),
    )


def host(place: Place) -> str:
    protected: tuple[str, ...] = ()
    if place.manager == "system":
        protected = (
            *_NAMESPACED,
            f"ReadWritePaths={path(place.state)}",
            f"CapabilityBoundingSet=~{' '.join(_NEVER_NEEDED)}",
        )
    return _unit(
        place,
        "Holdfast host",
        (
            f"Wants={NURSERY}",
            f"After={NURSERY}",
            *(("After=network.target",) if place.manager == "system" else ()),
            "StartLimitIntervalSec=0",
        ),
        (
            *_starts(
                place,
                command(place.interpreter, "-m", "holdfast.host.main"),
                ("HOLDFAST_SERVICE", place.manager),
            ),
            "ExecReload=/bin/kill -HUP $MAINPID",
            "KillMode=mixed",  # the end is the host's to prepare: it asks the manager what follows (host/service.py), by a process of its own
            "Restart=on-failure",
            "RestartSec=500ms",
            f"RestartPreventExitStatus={' '.join(map(str, HOPELESS))}",
            *_FILTERED,
            "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
            *protected,
        ),
        wanted=True,
    )


def relay(place: Place, options: Sequence[str] = ()) -> str:
    """`options` go to `holdfast relay serve`. Files of a certificate are handed over by the manager: the relay's own account cannot read them."""
    if place.manager == "user":
        given = ("--data", f"{place.state}/relay", *options)
        how: tuple[str, ...] = _starts(
            place, command(place.interpreter, "-m", "holdfast", "relay", "serve", *given)
        )
    else:
        taken, credentials = _credentials(options)
        line = command(
            place.interpreter,
            "-m",
            "holdfast",
            "relay",
            "serve",
            "--data",
            f"/var/lib/{RELAY_STATE}",
        )
        low = any(_port(one) for one in _values(options, ("--listen", "--grpc", "--metrics")))
        how = (
            *_starts(place, " ".join([line, *taken])),
            *credentials,
            "DynamicUser=yes",
            f"StateDirectory={RELAY_STATE}",
            "StateDirectoryMode=0700",
            *_NAMESPACED,
            f"ProtectHome={'read-only' if place.at_home else 'yes'}",
            "ProtectControlGroups=yes",
            "ProtectProc=invisible",
            "PrivateTmp=yes",
            "PrivateDevices=yes",
            *(
                (
                    "AmbientCapabilities=CAP_NET_BIND_SERVICE",
                    "CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
                )
                if low
                else ("CapabilityBoundingSet=",)
            ),
        )
    return _unit(
        place,
        "Holdfast relay",
        (
            *(
                ("Wants=network-online.target", "After=network-online.target")
                if place.manager == "system"
                else ()
            ),
            "StartLimitIntervalSec=0",
        ),
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


def _starts(place: Place, line: str, *more: tuple[str, str]) -> tuple[str, ...]:
    return (
        "Type=notify",
        "NotifyAccess=main",
        f"ExecStart={line}",
        "WorkingDirectory=/",
        *(f"Environment={setting(name, value)}" for name, value in (*place.environment, *more)),
    )


def _unit(
    place: Place,
    description: str,
    unit: Sequence[str],
    service: Sequence[str],
    wanted: bool = False,
) -> str:
    dynamic = "DynamicUser=yes" in service
    user = () if place.manager == "user" or dynamic else (f"User={place.account}",)
    target = "default.target" if place.manager == "user" else "multi-user.target"
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
    return marked("\n".join(lines) + "\n", place.state, place.release)


def _values(options: Sequence[str], names: Sequence[str]) -> list[str]:
    pairs = [
        *zip(options, options[1:], strict=False),
        *(tuple(one.split("=", 1)) for one in options if "=" in one),
    ]
    return [value for name, value in pairs if name in names]


def _port(place: str) -> bool:
    """Whether only the privileged may listen there."""
    port = place.rpartition(":")[2]
    return port.isdigit() and 0 < int(port) < PRIVILEGED_PORTS


def _credentials(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options as words of the unit, and the lines that hand files over."""
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


# ---------------------------------------------------------------- whose text it is


def marked(body: str, home: str, release: str) -> str:
    rest = f"{_HOME}{home}\n# holdfast-release: {release}\n{body}"
    return f"{_MARK}\n# holdfast-unit-digest: {_digest(rest)}\n{rest}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def home_of(text: str) -> str | None:
    """The home that a generated unit serves."""
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
