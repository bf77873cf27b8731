"""The operators of a machine and their rights, as far as the rights of this program go."""

from __future__ import annotations

import asyncio
import builtins
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.client.engine.engine import Engine
from holdfast.home import Home, keys
from holdfast.model import rights as every_right
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, NotFound, OutcomeUnknown, Usage
from holdfast.sdk.results import Granted, Operator, read


class Operators:
    """The people, agents and services that a machine knows, and the rights of each.

    Every act is signed with the key of this program. `machine`: a paired machine; the empty name is
    the machine here.
    """

    def __init__(self, engine: Callable[[str], Engine], home: Home | None) -> None:
        self._engine, self._home = engine, home

    async def list(self, machine: str = "") -> builtins.list[Operator]:
        """All operators that are or were known."""
        found = (await self._engine(machine).ask("operator.ls"))["operators"]
        return [read(Operator, one) for one in found]

    async def show(self, name: str, machine: str = "") -> Operator:
        """An operator with its keys and envelopes."""
        return read(Operator, await self._engine(machine).ask("operator.show", name=name))

    async def add(
        self,
        name: str,
        *,
        kind: str = "human",
        key: str | None = None,
        hold: float | None = None,
        machine: str = "",
    ) -> Operator:
        """Makes an operator known, without rights; needs the right `manage`.

        `kind`: human, agent or service. `key`: a public key that was made elsewhere. Without it a
        new key is stored in this home, for `connect(operator=name)`. `hold`: seconds to wait for an
        approval, if the policy asks for one.
        """
        fields: dict[str, Any] = {"name": name, "kind": kind, "hold": hold}
        if key is not None:
            return await self._add(machine, key=key, **fields)
        home = self._home
        if home is None or machine:
            raise Usage("a new operator elsewhere needs a key", "make the key there, and give key=")
        made = await asyncio.to_thread(keys.make, home, name, kind, time.time())
        try:
            text, device = signing.show(made.public), os.uname().nodename
            return await self._add(machine, key=text, device=device, **fields)
        except HoldfastError as e:
            if not isinstance(e, OutcomeUnknown):  # then the host may know the key
                await asyncio.to_thread(keys.remove, home, name)
            raise

    async def _add(self, machine: str, **fields: Any) -> Operator:
        return read(Operator, await self._engine(machine).ask("operator.add", None, **fields))

    async def grant(
        self,
        name: str,
        rights: str,
        *,
        session: str | None = None,
        expires: float | None = None,
        commands: Sequence[str] = (),
        rate: tuple[int, int] | None = None,
        own_key: bool = False,
        hold: float | None = None,
        machine: str = "",
    ) -> Granted:
        """Gives some of your own rights to an operator, never more than you have.

        `rights`: read, execute, admin, or single rights, separated by commas. `session`: only on
        this session. `expires`: after so many seconds. `commands`: only programs of these names,
        with `run` and `new`. `rate`: at most so many acts in so many seconds. `own_key`: sign the
        grant with your key; then it needs the right `grant` only, and ends with your rights.
        """
        wanted = sorted(
            every_right.parse(rights) - (every_right.MACHINE_WIDE if session else frozenset())
        )
        fields: dict[str, Any] = {
            "rights": wanted,
            "session": session,
            "expires": None if expires is None else int(time.time() + expires),
            "commands": sorted(commands) or None,
            "rate": rate,
        }
        engine = self._engine(machine)
        if not own_key:
            body = await engine.ask("grant", None, name=name, hold=hold, **fields)
            return read(Granted, body)
        for text in await _signed(engine, name, **fields):  # one for each device
            body = await engine.ask("grant", None, envelope=text, hold=hold)
        return read(Granted, body)

    async def revoke(
        self, name: str, *, grants: bool = False, force: bool = False, machine: str = ""
    ) -> Operator:
        """Revokes an operator with all its keys, at once and for good.

        `grants`: also the rights that it gave. `force`: also the last operator with `manage`.
        """
        engine = self._engine(machine)
        body = await engine.ask("operator.revoke", name=name, grants=grants, force=force)
        return read(Operator, body)


async def _signed(
    engine: Engine,
    name: str,
    rights: list[str],
    session: str | None,
    expires: int | None,
    commands: list[str] | None,
    rate: tuple[int, int] | None,
) -> list[str]:
    """A grant for each device of an operator, signed with the key of this program."""
    from holdfast.core.people import envelope

    held = (await engine.ask("envelopes"))["envelopes"]
    shown = await engine.ask("operator.show", name=name)
    devices = [signing.read(one["key"]) for one in shown["keys"] if not one["revoked"]]
    if not devices or engine.link.identity is None:
        raise NotFound(f"{name} has no valid device", "operators.show() has its keys")
    if session is not None:
        session = str((await engine.ask("get", session=session))["id"])
    limits = None if commands is None else frozenset(commands)
    scope = envelope.Scope(session=session, expires=expires, commands=limits, rate=rate)
    secret, nonce = engine.link.identity.secret(), os.urandom(envelope.NONCE_BYTES)
    return envelope.delegate_to(secret, held, devices, rights, scope, nonce)
