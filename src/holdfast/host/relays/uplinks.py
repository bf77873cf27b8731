"""All lines of this host: which relays it dials, who may come through, and how an operator finds the way back here from elsewhere.

What a client needs to come back from anywhere (`ways`) follows from keys and is kept nowhere: the machine's static key, its route at a relay, and a pass of its own. A pass
follows from the machine's secret, the relay and the operator's key; the relay gets the hashes of those that count now. So a revoked key loses
its way to the line as well, at once, and a lost database loses nobody's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.core import route, static
from holdfast.home import codes, generation, keys, relays
from holdfast.host.process import boot_id
from holdfast.model import agreement, base64url, signing
from holdfast.model.address import GRPC, name, parsed
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import PASSES_MAX

if TYPE_CHECKING:
    from holdfast.core.channel import Channel
    from holdfast.home import Home
    from holdfast.home.keys import Identity
    from holdfast.host.authority import Authority
    from holdfast.host.connection import Connection
    from holdfast.host.ops import Ops
    from holdfast.host.server import Server
    from holdfast.host.uplink import Uplink

PASS: Final = b"pass/1\0"


class Uplinks:
    def __init__(
        self,
        home: Home,
        machine: Identity,
        authority: Authority,
        invited: Callable[[], list[bytes]],
        met: Callable[[], list[str]],
    ) -> None:
        """`invited` gives the passes of who may come with a code's link, `met` the codes that may still be used."""
        self._home, self._machine, self._authority, self._invited, self._met = (
            home,
            machine,
            authority,
            invited,
            met,
        )
        self._passwords: dict[str, bytes] = {}  # of codes that may still be typed
        self._meetings: dict[str, dict[str, Uplink]] = {}  # where they are waited for: id, address
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Server | None = None
        self._lines: dict[str, Uplink] = {}  # by address
        self.trouble = ""  # why the file with the relays cannot be used
        authority.on_change.append(self.changed)

    async def begin(self, server: Server) -> None:
        self._server = server
        awaited = set(self._met())
        for id, password in codes.listing(self._home, boot_id()).items():
            if id in awaited:
                self._passwords[id] = password
            else:
                codes.drop(self._home, id)
        await self.reload()

    async def reload(self) -> None:
        """Dials what the file says now, and nothing else. A file that cannot be read changes nothing."""
        assert self._server is not None
        try:
            wanted = {one.url: one for one in relays.listing(self._home)}
        except HoldfastError as e:
            self.trouble = e.message
            return
        self.trouble = ""
        for url in [url for url, line in self._lines.items() if wanted.get(url) != line.relay]:
            await self._lines.pop(url).close()
        for line in self._lines.values():
            line.again()
        if wanted.keys() - self._lines.keys():
            from holdfast.host.uplink import (
                Uplink,
            )  # brings what seals and frames: only who dials needs it

            for url, one in wanted.items():
                if url in self._lines:
                    continue
                try:
                    known_as = name(url)
                except (
                    HoldfastError
                ) as e:  # written there by hand: the others are dialled all the same
                    self.trouble = e.message
                    continue
                self._lines[url] = Uplink(
                    one,
                    self._server,
                    keys.route_key(self._machine, known_as),
                    partial(self._passes, known_as),
                    self._responder,
                    self._generation,
                )
        self._meet()

    def _generation(self) -> int:
        return generation.following(self._home, time.time_ns() // 1_000_000)

    def _responder(self, at: bytes) -> Channel:
        from holdfast.core import channel

        return channel.responder(at, keys.static(self._machine), time.monotonic())

    # ------------------------------------------------------------ meeting whoever has a code

    def meet(self, id: str, password: bytes) -> None:
        """Waits at every relay for who has this code, until the invitation is over or somebody came with another one; also those that are connected later, also after a
        restart, unless somebody has come with it by then."""
        if id not in self._passwords:
            codes.keep(self._home, id, password, boot_id())
            self._passwords[id] = password
            self._meet()

    def _meet(self) -> None:
        """Waits where there is a line now, and nowhere else."""
        for at in self._meetings.values():
            for url in [
                url
                for url, line in at.items()
                if url not in self._lines or self._lines[url].relay != line.relay
            ]:
                self._closing(at.pop(url))
        if not self._lines or not self._passwords or self._server is None:
            return
        from holdfast.core import meeting
        from holdfast.host.uplink import Uplink

        def channel(password: bytes, at: bytes) -> Channel:
            return meeting.Meeting(
                False, at, keys.static(self._machine), password, time.monotonic()
            )

        for id, password in self._passwords.items():
            passes = (route.digest(meeting.pass_(id)),)
            for url, line in self._lines.items():
                if url not in self._meetings.setdefault(id, {}):
                    self._meetings[id][url] = Uplink(
                        line.relay,
                        self._server,
                        meeting.route_key(id),
                        partial(_the_same, passes),
                        partial(channel, password),
                        self._generation,
                        partial(self._burnt, id),
                        partial(self._tried, id),
                    )

    def _tried(self, id: str) -> None:
        """Somebody comes with a code, right or wrong: a host after this one does not offer it again, whatever becomes of us before it is answered."""
        if not codes.drop(self._home, id):
            self._burnt(id)  # that cannot be made sure of: then nobody is answered

    def _burnt(self, id: str) -> None:
        """Somebody had another code: this one is not offered any more. The link still counts: it has more in it than a code."""
        if self._passwords.pop(id, None) is not None:
            codes.drop(self._home, id)
        for line in self._meetings.pop(id, {}).values():
            line.spent = (
                True  # at once: many guesses may have been made ready side by side, and one counts
            )
            self._closing(line)

    def _closing(self, line: Uplink) -> None:
        task = asyncio.get_running_loop().create_task(line.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def state(self) -> str:
        """The best of all lines: whether this machine can be reached from elsewhere."""
        return max(
            (line.state for line in self._lines.values()),
            key=lambda state: ("refused", "connecting", "registered").index(state),
            default="none",
        )

    def facts(self) -> list[dict[str, Any]]:
        return [line.facts() for line in self._lines.values()]

    def elsewhere(self) -> dict[str, Any] | None:
        """How who knows nothing of this machine yet can reach it: for the link of an invitation. None: it cannot."""
        doors = [
            [url, base64url.encode(line.route)]
            for url, line in self._doors()
            if line.state == "registered"
        ]
        return (
            {
                "key": base64url.encode(self._machine.public),
                "static": base64url.encode(agreement.public(keys.static(self._machine))),
                "doors": doors,
            }
            if doors
            else None
        )

    def ways(self, key: bytes) -> dict[str, Any]:
        """How the holder of this key comes here from elsewhere."""
        signed = static.sign(self._machine.secret())
        return {
            "machine": signing.show(self._machine.public),
            "static": {"statement": signed.statement.decode(), "signature": signed.signature.hex()},
            "ways": [
                {
                    "url": url,
                    "route": base64url.encode(line.route),
                    "pass": base64url.encode(self._pass(name(url), key)),
                }
                for url, line in self._doors()
            ],
        }

    def _doors(self) -> list[tuple[str, Uplink]]:
        """In the order in which a client should try: everybody can speak WebSocket, gRPC is an extra."""
        return sorted(self._lines.items(), key=lambda one: parsed(one[0]).scheme in GRPC)

    def _pass(self, relay: str, key: bytes) -> bytes:
        return agreement.derive(self._machine.secret(), PASS + relay.encode() + b"\0" + key)

    def _passes(self, relay: str) -> tuple[bytes, ...]:
        """The newest keys first, if there are more than a relay takes; who is invited before all."""
        known = [
            *self._invited(),
            *(self._pass(relay, key) for key in self._authority.living_keys(time.time())),
        ]
        return tuple(sorted({route.digest(one) for one in known[:PASSES_MAX]}))

    def changed(self) -> None:
        """Who may come through the lines is different now."""
        for line in self._lines.values():
            line.passes_changed()
        for id in (self._passwords.keys() | self._meetings.keys()) - set(self._met()):
            self._burnt(id)

    async def close(self) -> None:
        for line in [
            *self._lines.values(),
            *(line for lines in self._meetings.values() for line in lines.values()),
        ]:
            await line.close()


def _the_same(passes: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return passes


# ------------------------------------------------------------ operations


async def ways(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    return ops.engine.uplinks.ways(conn.key)


async def lines(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    return {"relays": ops.engine.uplinks.facts(), "trouble": ops.engine.uplinks.trouble}


async def relays_changed(
    ops: Ops, conn: Connection, number: int, q: dict[str, Any]
) -> dict[str, Any]:
    """Somebody changed the list of relays: an act, though the list is a file of this account, for it opens or closes a way in."""
    await ops.engine.door.clear(q["act!"], number, "relays", wait_s=q["hold"] or 0.0)
    await q["act!"].intend()
    await ops.engine.uplinks.reload()
    return {
        "relays": ops.engine.uplinks.facts(),
        "trouble": ops.engine.uplinks.trouble,
        "outcome": {"relays": [one["url"] for one in ops.engine.uplinks.facts()]},
    }
