"""All lines of this host: dialled relays, admitted keys, and the way back for remote operators.

A client reaches this machine from anywhere with the machine's static key, its route at a relay, and
a pass of that client (`ways`). All three follow from keys, so the host stores none of them. A pass
follows from the machine's secret, the relay and the operator's key. The relay gets the hashes of
the passes that are valid now, so the loss of a database closes the line to no client. The pass of a
revoked key stays valid for REVOKED_TOLD_S: the host disconnects that key at once, and each later
attempt that proves the key gets the reason. The relay alone could tell no reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.core.contract.message import Json
from holdfast.core.contract.relays import Line, StaticKey, Way, Ways
from holdfast.core.sealed import channel_key, route
from holdfast.home import codes, generation, keys, relays
from holdfast.host.people import key_passes
from holdfast.host.processes.process import boot_id
from holdfast.host.runtime.tasks import Tasks
from holdfast.model import agreement, base64url, signing
from holdfast.model.address import GRPC, name, on_loopback, parsed
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import PASSES_MAX

if TYPE_CHECKING:
    from holdfast.core.sealed.channel import Channel
    from holdfast.home import Home
    from holdfast.home.keys import Identity
    from holdfast.host.people.authority import Authority
    from holdfast.host.relays.uplink import Admits, Uplink

PASS: Final = b"pass/1\0"
REGISTER_WAIT_S: Final = 3.0  # before an invitation says that no relay leads here


class Uplinks:
    def __init__(
        self,
        home: Home,
        machine: Identity,
        authority: Authority,
        invited: Callable[[], list[bytes]],
        met: Callable[[], list[str]],
    ) -> None:
        """`invited` returns the passes of invitation links, `met` the codes still valid."""
        self._home, self._machine, self._authority = home, machine, authority
        self._invited, self._met = invited, met
        self._passwords: dict[str, bytes] = {}  # of codes that may still be typed
        # The lines that wait for the holder of a code, by code id and by address of the relay.
        self._meetings: dict[str, dict[str, Uplink]] = {}
        self._tasks = Tasks("closing a line to a relay")
        self._server: Admits | None = None
        self._lines: dict[str, Uplink] = {}  # by address
        self.trouble = ""  # why the file with the relays cannot be used
        authority.on_change.append(self.changed)

    async def begin(self, server: Admits) -> None:
        self._server = server
        awaited = set(self._met())
        for id, password in codes.listing(self._home, boot_id()).items():
            if id in awaited:
                self._passwords[id] = password
            else:
                codes.drop(self._home, id)
        await self.reload()

    async def reload(self) -> None:
        """Dials exactly the relays in the file; an unreadable file changes no line."""
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
            # Loads the code for sealing and framing, which only a host with relays needs.
            from holdfast.host.relays.uplink import Uplink

            for url, one in wanted.items():
                if url in self._lines:
                    continue
                try:
                    known_as = name(url)
                except HoldfastError as e:  # edited by hand; the other relays still work
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
        from holdfast.core.sealed import channel

        return channel.responder(at, keys.static(self._machine), time.monotonic())

    # ------------------------------------------------------------ meeting the holder of a code

    def meet(self, id: str, password: bytes) -> None:
        """Waits at every relay for the holder of this code.

        The wait ends with the invitation, or when a client tries a wrong code. It includes relays
        that connect later. It survives a restart of the host, unless a client tried a code before.
        """
        if id not in self._passwords:
            codes.keep(self._home, id, password, boot_id())
            self._passwords[id] = password
            self._meet()

    def _meet(self) -> None:
        """Waits at exactly the relays that have a line now."""
        for at in self._meetings.values():
            for url in [
                url
                for url, line in at.items()
                if url not in self._lines or self._lines[url].relay != line.relay
            ]:
                self._tasks.spawn(at.pop(url).close())
        if not self._lines or not self._passwords or self._server is None:
            return
        from holdfast.core.sealed import meeting
        from holdfast.host.relays.uplink import Uplink

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
        """A client tries a code, right or wrong: the next host must not offer the code again.

        That holds even if this host dies before it answers.
        """
        if not codes.drop(self._home, id):
            self._burnt(id)  # the file remains, so no client may get an answer

    def _burnt(self, id: str) -> None:
        """Stops offering this code, after a wrong guess or the end of the invitation.

        The link stays valid, because it holds a longer secret than the code.
        """
        if self._passwords.pop(id, None) is not None:
            codes.drop(self._home, id)
        for line in self._meetings.pop(id, {}).values():
            # At once: a client may have prepared many guesses in parallel, and only one counts.
            line.spent = True
            self._tasks.spawn(line.close())

    @property
    def state(self) -> str:
        """The best of all lines: whether this machine can be reached from elsewhere."""
        return max(
            (line.state for line in self._lines.values()),
            key=lambda state: ("refused", "connecting", "registered").index(state),
            default="none",
        )

    def facts(self) -> tuple[Line, ...]:
        return tuple(line.facts() for line in self._lines.values())

    async def tried(self) -> None:
        """Waits at most REGISTER_WAIT_S until no first answer of a relay is missing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REGISTER_WAIT_S):
                for line in self._all():
                    await line.tried.wait()

    def elsewhere(self) -> Json | None:
        """The address of this machine for the link of an invitation; None if it has no relay.

        A relay on loopback is named only if there is no other: it leads other machines nowhere.
        """
        here = [(url, line) for url, line in self._doors() if line.state == "registered"]
        afar = [one for one in here if not on_loopback(one[0])]
        doors = [[url, base64url.encode(line.route)] for url, line in afar or here]
        if doors:
            return {
                "key": base64url.encode(self._machine.public),
                "static": base64url.encode(agreement.public(keys.static(self._machine))),
                "doors": doors,
            }
        return None

    def ways(self, key: bytes) -> Ways:
        """How the holder of this key reaches this machine from elsewhere."""
        signed = channel_key.sign(self._machine.secret())
        return Ways(
            machine=signing.show(self._machine.public),
            static=StaticKey(statement=signed.statement.decode(), signature=signed.signature.hex()),
            ways=tuple(
                Way(
                    url=url,
                    route=base64url.encode(line.route),
                    pass_=base64url.encode(self._pass(name(url), key)),
                )
                for url, line in self._doors()
            ),
        )

    def _doors(self) -> list[tuple[str, Uplink]]:
        """In the order for clients to try: every client has WebSocket, gRPC is an extra.

        Relays on loopback come last: only clients on this machine reach them.
        """
        return sorted(
            self._lines.items(),
            key=lambda one: (on_loopback(one[0]), parsed(one[0]).scheme in GRPC),
        )

    def _pass(self, relay: str, key: bytes) -> bytes:
        return agreement.derive(self._machine.secret(), PASS + relay.encode() + b"\0" + key)

    def _passes(self, relay: str) -> tuple[bytes, ...]:
        """Passes of invitations, then of the newest keys, up to the limit of a relay.

        Keys that lost their rights come last: the host refuses them, with the reason.
        """
        now = time.time()
        keys = [*key_passes.living(self._authority, now), *key_passes.ended(self._authority, now)]
        known = [*self._invited(), *(self._pass(relay, key) for key in keys)]
        return tuple(sorted({route.digest(one) for one in known[:PASSES_MAX]}))

    def changed(self) -> None:
        """Updates the relays after the set of admitted keys has changed."""
        for line in self._lines.values():
            line.passes_changed()
        for id in (self._passwords.keys() | self._meetings.keys()) - set(self._met()):
            self._burnt(id)

    async def close(self) -> None:
        for line in self._all():
            await line.close()

    def _all(self) -> list[Uplink]:
        """The lines of this machine, and the lines that wait for the holder of a code."""
        waiting = [line for lines in self._meetings.values() for line in lines.values()]
        return [*self._lines.values(), *waiting]


def _the_same(passes: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return passes
