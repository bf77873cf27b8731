"""The network of a session with `--net own`: programs that connect the network, and the resolver.

Both programs make a tap device in the session's network namespace and answer packets of the device
with ordinary sockets outside. Both get the same addresses, so a session looks the same with either.

1. pasta (package passt) comes first. pasta confines itself completely for any account, publishes
   ports on the machine's loopback, and supports IPv6. Older versions do not start on a machine
   without a route to the internet.
2. slirp4netns comes second. slirp4netns starts on such a machine too, but supports IPv4 only, and
   cannot publish a server that listens on 127.0.0.1 inside. So it publishes nothing here.

Neither reaches the machine's loopback: `--no-map-gw`, `-T none` and `-U none` of pasta,
`--disable-host-loopback` of slirp4netns. The resolver is the exception: both programs pass
questions for DNS_ADDRESS on to the machine's resolver, also if that listens on the loopback.

The addresses are from TEST-NET-2 (RFC 5737), so that they hide no machine of a real network. The
default of slirp4netns, 10.0.2.0/24, is an ordinary private network.

Rejected: pasta's `-t auto`, which forwards every port that code inside opens. pasta then listens on
all addresses of the machine, and code inside could take the port of a server that is not running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

PASTA, SLIRP = "pasta", "slirp4netns"
PROGRAMS: Final = (PASTA, SLIRP)
PACKAGES: Final = "passt (or slirp4netns)"
# Not PATH: code of a session might have written a program into a user's directory.
DIRECTORIES: Final = ("/usr/bin", "/usr/local/bin", "/bin", "/run/current-system/sw/bin")
TUN: Final = "/dev/net/tun"

NETWORK, ADDRESS, GATEWAY, DNS_ADDRESS = (
    "198.51.100.0/24",
    "198.51.100.100",
    "198.51.100.2",
    "198.51.100.3",
)
DNS_ADDRESS_6: Final = "2001:db8::3"
DEVICE: Final = "tap0"
RESOLV_CONF_BYTES: Final = 65536
_NAMESPACES: Final = ("/proc/{pid}/ns/user", "/proc/{pid}/ns/net")
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy")
_LOOPBACK: Final = ("localhost", "::1")


class Program(NamedTuple):
    """An installed program that can connect a network."""

    name: str
    path: str


def commands(
    programs: Sequence[Program], root: bool, publish: Sequence[int] = ()
) -> list[list[str]]:
    """The alternatives, best first; none if no program can do it."""
    found = {program.name: program.path for program in programs}
    made: list[list[str]] = []
    if PASTA in found:
        plain = [found[PASTA], *_pasta(root, publish)]
        # Since 2024 pasta publishes a server that listens on the loopback inside only with this
        # option; before, the option was unknown and the behaviour the same.
        made += [[*plain, "--host-lo-to-ns-lo"], plain] if publish else [plain]
    if SLIRP in found and not publish:
        made.append([found[SLIRP], *_slirp(root)])
    return made


def _pasta(root: bool, publish: Sequence[int]) -> list[str]:
    user, net = _NAMESPACES
    return [
        *("--foreground", "--quiet"),
        *("--userns", user, "--netns", net, "--no-netns-quit"),
        # By default, pasta of root changes to the user nobody, who may not enter root's namespace.
        *(("--runas", "0:0") if root else ()),
        *("--config-net", "--ns-ifname", DEVICE),
        *("--address", ADDRESS, "--netmask", "24", "--gateway", GATEWAY),
        *("--dns-forward", DNS_ADDRESS, "--dns-forward", DNS_ADDRESS_6),
        "--no-map-gw",
        *(word for port in publish for word in ("--tcp-ports", f"127.0.0.1/{port}")),
        *(() if publish else ("--tcp-ports", "none")),
        *("--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none"),
    ]


def _slirp(root: bool) -> list[str]:
    """The sandbox needs uid 0 in the session's user namespace, which only root's sessions have."""
    user, net = _NAMESPACES
    return [
        *("--configure", "--mtu=65520", f"--cidr={NETWORK}"),
        *("--disable-host-loopback", "--enable-seccomp"),
        *(("--enable-sandbox",) if root else ()),
        *(f"--userns-path={user}", "--netns-type=path", net, DEVICE),
    ]


def resolv_conf(machine: str) -> str:
    """The session's /etc/resolv.conf, from the machine's."""
    lines = [line.split() for line in machine.splitlines()]
    servers = [line[1] for line in lines if line[:1] == ["nameserver"] and len(line) > 1]
    only_6 = bool(servers) and all(":" in server for server in servers)
    kept = [" ".join(line) for line in lines if line[:1] in (["search"], ["domain"], ["options"])]
    return "\n".join([f"nameserver {DNS_ADDRESS_6 if only_6 else DNS_ADDRESS}", *kept, ""])


def has_default_route(table: str, table_6: str) -> bool:
    """Read /proc/net/route and /proc/net/ipv6_route."""
    # The kernel's own entry, which refuses, is on the loopback interface.
    return any(line.split()[1:2] == ["00000000"] for line in table.splitlines()[1:]) or any(
        line.startswith("0" * 32 + " 00 ") and not line.endswith(" lo")
        for line in table_6.splitlines()
    )


def proxy_on_loopback(environment: Mapping[str, str]) -> str:
    """The first proxy variable that leads to the machine's loopback, or ""."""
    for name, value in environment.items():
        if name.lower() in _PROXIES:
            text = value if "//" in value else f"//{value}"
            try:
                place = urlsplit(text).hostname or ""
            except ValueError:
                continue
            if place in _LOOPBACK or place.startswith("127."):
                return name
    return ""
