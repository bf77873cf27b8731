"""Who decides about a contained session: a human, by request or by configuration.

| | a human's request | a request of an agent or a service |
|---|---|---|
| workspace | the working directory | the same, if it lies in `contain.workspaces`; else none |
| PATH | of the request | of the host's own environment |
| share | added to `contain.share` | must lie in `contain.share` or `contain.workspaces` |
| door | added to `contain.doors` | must be in `contain.doors`; never the ssh agent |
| net | replaces `contain.net` | must be as strict as `contain.net` or stricter |
| publish | any port | must be in `contain.publish` |
| keep the home | yes | if `contain.keep_home` |

A human whose grant allows certain commands only counts like an agent.

Rejected: a limit `workspaces` in the envelope. There a missing limit does not limit, so every
existing grant of an agent would open the whole machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.containment.entries import within
from holdfast.model.contained import (
    DOORS,
    HOST,
    LIST,
    NETWORKS,
    OWN,
    PORTS_MAX,
    SHARES_MAX,
    SSH_AGENT,
)
from holdfast.model.errors import NotAllowed, Usage


class Share(NamedTuple):
    """A path of the machine that is shown in a session; without links."""

    path: str
    writable: bool = False

    def text(self) -> str:
        return f"{self.path}:rw" if self.writable else self.path


class Configured(NamedTuple):
    """The section [contain] of the configuration, with resolved paths."""

    share: Sequence[Share] = ()
    workspaces: Sequence[str] = ()
    doors: Sequence[str] = ()
    net: str = HOST
    tool_files: str = LIST
    keep_home: bool = False
    publish: Sequence[int] = ()


class Asked(NamedTuple):
    """The wishes in the request for a session, with resolved paths."""

    share: Sequence[Share] = ()
    doors: Sequence[str] = ()
    net: str | None = None
    keep_home: bool = False
    publish: Sequence[int] = ()


class Terms(NamedTuple):
    """Parts of the session beside the system, the tools and the workspace."""

    share: tuple[Share, ...]
    doors: tuple[str, ...]
    net: str
    keep_home: bool
    publish: tuple[int, ...] = ()


def parse_share(text: str) -> Share:
    """`PATH` or `PATH:rw`; the path is not resolved."""
    path, colon, mode = text.rpartition(":")
    if colon and mode in ("rw", "ro"):
        return Share(path, mode == "rw")
    return Share(text)


def check(asked: Asked) -> None:
    """Refuse words that no configuration could allow."""
    for door in asked.doors:
        if door not in DOORS:
            raise Usage(f"there is no door {door[:40]!a}", f"doors are {', '.join(DOORS)}")
    if asked.net is not None and asked.net not in NETWORKS:
        raise Usage(f"--net is {', '.join(NETWORKS)}")
    if not all(0 < port < 1 << 16 for port in asked.publish) or len(asked.publish) > PORTS_MAX:
        raise Usage(f"--publish takes a port from 1 to 65535, at most {PORTS_MAX} times")
    if len(asked.share) > SHARES_MAX:
        raise Usage(f"at most {SHARES_MAX} paths can be shared")


def agree(configured: Configured, asked: Asked, human: bool) -> Terms:
    """The terms of a session. For an agent, more than the configuration allows is refused."""
    check(asked)
    net = asked.net or configured.net
    ports = tuple(sorted(set(asked.publish)))
    if ports and net != OWN:
        raise Usage("--publish is for sessions with a network of their own", "add --net own")
    if human:
        doors = [*configured.doors, *asked.doors]
        return Terms(_shared(configured, asked), _once(doors), net, asked.keep_home, ports)
    if NETWORKS.index(net) < NETWORKS.index(configured.net):
        raise _refused(f"the network `{net}`", "contain.net")
    for share in asked.share:
        if not _covered(configured, share):
            raise _refused(f"sharing {share.text()}", "contain.share")
    open_to_agents = [door for door in configured.doors if door != SSH_AGENT]
    for door in asked.doors:
        if door == SSH_AGENT:
            raise NotAllowed(
                "a session of an agent never gets a human's ssh agent",
                "a human can make the session: `holdfast new --contained --door ssh-agent`",
            )
        if door not in open_to_agents:
            raise _refused(f"the door {door}", "contain.doors")
    if asked.keep_home and not configured.keep_home:
        raise _refused("--keep-home", "contain.keep_home")
    for port in ports:
        if port not in configured.publish:
            raise _refused(f"publishing port {port}", "contain.publish")
    doors = [door for door in open_to_agents if not asked.doors or door in asked.doors]
    return Terms(_shared(configured, asked), _once(doors), net, asked.keep_home, ports)


def workspace_for_agent(configured: Configured, directory: str) -> str:
    """The listed workspace that contains a directory (the longest), or ""."""
    found = [place for place in configured.workspaces if within(directory, place)]
    return max(found, key=len, default="")


def _covered(configured: Configured, share: Share) -> bool:
    writable = (Share(place, True) for place in configured.workspaces)
    return any(
        within(share.path, allowed.path) and (allowed.writable or not share.writable)
        for allowed in (*configured.share, *writable)
    )


def _shared(configured: Configured, asked: Asked) -> tuple[Share, ...]:
    """The request's entry counts if both have an entry for the same path."""
    found = {share.path: share for share in (*configured.share, *asked.share)}
    return tuple(found.values())


def _once(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _refused(what: str, option: str) -> NotAllowed:
    return NotAllowed(
        f"the configuration does not allow agents {what}",
        f"a human can allow it with `{option}` in the configuration, or make the session",
    )
