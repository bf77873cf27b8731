"""Commands of the connectors, the session's resolver, and who may publish a port."""

from __future__ import annotations

import pytest

from holdfast.core.containment import network, words
from holdfast.core.containment.network import PASTA, SLIRP, Program
from holdfast.core.containment.terms import Asked, Configured, agree
from holdfast.model import contained
from holdfast.model.errors import NotAllowed, Usage

BOTH = [Program(SLIRP, "/usr/bin/slirp4netns"), Program(PASTA, "/usr/bin/pasta")]
OWN = Configured(net="own", publish=(3000,))


def test_pasta_comes_first_and_slirp4netns_second() -> None:
    first, second = network.commands(BOTH, root=False)
    assert (first[0], second[0]) == ("/usr/bin/pasta", "/usr/bin/slirp4netns")
    assert network.commands([], root=False) == []


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("publish", [(), (3000, 8000)])
def test_t4_no_command_opens_the_machines_loopback(root: bool, publish: tuple[int, ...]) -> None:
    for command in network.commands(BOTH, root, publish):
        text = " ".join(command)
        if "pasta" in command[0]:
            assert "--no-map-gw" in command
            assert "--tcp-ns none --udp-ns none" in text and "--udp-ports none" in text
            assert "auto" not in text
            given = [command[n + 1] for n, word in enumerate(command) if word == "--tcp-ports"]
            assert given == ([f"127.0.0.1/{port}" for port in publish] or ["none"])
        else:
            assert "--disable-host-loopback" in command and "--enable-seccomp" in command
            assert ("--enable-sandbox" in command) is root and not publish


def test_a_published_server_may_listen_on_the_loopback_inside() -> None:
    newer, older = network.commands(BOTH, root=False, publish=(3000,))
    assert newer == [*older, "--host-lo-to-ns-lo"]
    assert network.commands(BOTH[:1], root=False, publish=(3000,)) == []


@pytest.mark.parametrize(
    ("machine", "wanted"),
    [
        ("", f"nameserver {network.DNS_ADDRESS}\n"),
        (
            "# stub\nnameserver 127.0.0.53\noptions edns0  trust-ad\nsearch a.test b.test\n",
            f"nameserver {network.DNS_ADDRESS}\noptions edns0 trust-ad\nsearch a.test b.test\n",
        ),
        ("nameserver fe80::1%eth0\n", f"nameserver {network.DNS_ADDRESS_6}\n"),
        ("nameserver ::1\nnameserver 10.0.0.1\n", f"nameserver {network.DNS_ADDRESS}\n"),
        ("nameserver\n;x\n", f"nameserver {network.DNS_ADDRESS}\n"),
    ],
)
def test_the_resolver_leads_to_the_machines(machine: str, wanted: str) -> None:
    assert network.resolv_conf(machine) == wanted


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("http://127.0.0.1:3128", True),
        ("localhost:3128", True),
        ("http://u:p@[::1]:1/", True),
        ("http://proxy.test:3128", False),
        ("http://[broken", False),
        ("", False),
    ],
)
def test_a_proxy_on_the_loopback_is_found(value: str, found: bool) -> None:
    assert network.proxy_on_loopback({"PATH": "127.0.0.1", "https_proxy": value}) == (
        "https_proxy" if found else ""
    )


def test_t4_agents_publish_listed_ports_only() -> None:
    assert agree(OWN, Asked(publish=(3000, 3000)), human=False).publish == (3000,)
    assert agree(OWN, Asked(publish=(9, 8)), human=True).publish == (8, 9)
    with pytest.raises(NotAllowed, match="port 3001"):
        agree(OWN, Asked(publish=(3001,)), human=False)
    assert agree(OWN, Asked(), human=False).publish == ()


def test_ports_that_make_no_sense_are_refused() -> None:
    for wrong in ((0,), (65536,), (-1,), tuple(range(1, contained.PORTS_MAX + 2))):
        with pytest.raises(Usage):
            agree(OWN, Asked(publish=wrong), human=True)
    for net in ("host", "none"):
        with pytest.raises(Usage, match="of their own"):
            agree(OWN, Asked(net=net, publish=(3000,)), human=True)
    assert [contained.port(text) for text in ("1", "65535", "65536", "x", "", "-1", "٣")] == [
        *(1, 65535),
        *(0,) * 5,
    ]


def test_the_line_names_published_ports() -> None:
    said = words.described("/home/u", (), (), (), "own", (3000, 8000))
    assert "network: its own" in said and said.endswith("on 127.0.0.1: port 3000, 8000")
