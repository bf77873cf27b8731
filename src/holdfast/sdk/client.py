"""Connect to an installation, and find or make sessions on its machines."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast import home as homes
from holdfast.client.engine.engine import Engine
from holdfast.client.environ import CREDENTIAL, for_session, handed_on
from holdfast.client.everywhere import SEARCH_S, Found, best, decide, went
from holdfast.client.identity import operator_name
from holdfast.client.link import Link
from holdfast.home import Home, machines
from holdfast.model.errors import HoldfastError, NotAllowed, NotFound
from holdfast.sdk.drained import Drained
from holdfast.sdk.observed import Event
from holdfast.sdk.operators import Operators
from holdfast.sdk.recovery import advice, for_programs
from holdfast.sdk.results import (
    Approval,
    Listing,
    Machine,
    Resolved,
    RunResult,
    SessionInfo,
    read,
)
from holdfast.sdk.session import Session, entries

if TYPE_CHECKING:
    from holdfast.client.credential import Credential
    from holdfast.core.policy.approvals import Answer

T = TypeVar("T")
HERE: Final = ""  # the name of this machine
DRAIN_GRACE_S: Final = 30.0  # beyond the notice: for the answer
EVENT_KEYS: Final = ("number", "time", "session", "event")  # before the facts


def connect(
    credential: str | os.PathLike[str] | None = None,
    *,
    operator: str | None = None,
    home: str | None = None,
    modality: str = "sdk",
    start: bool = True,
    passphrase: Callable[[str], str] | None = None,
) -> Client:
    """A client of the installation in `home` (default: HOLDFAST_HOME, else the XDG directories).

    `credential`: the text or file of a credential, which reaches one machine without a home
    (default: HOLDFAST_CREDENTIAL, unless `home` or `operator` is given). `operator`: the identity
    to act as (default: HOLDFAST_AS, else the login name). `start`: start the host if none runs.
    `passphrase`: called with the name of an identity whose key is sealed.

        async with holdfast.connect() as client:
            session = await client.sessions.get("main")
    """
    if credential is None and home is None and operator is None:
        credential = os.environ.get(CREDENTIAL)
    if credential:
        from holdfast.client.credential import NOWHERE, load

        with advice():
            loaded = load(os.fspath(credential))
        return Client(NOWHERE, operator, modality, start, passphrase, loaded)
    environ = os.environ if home is None else {**os.environ, "HOLDFAST_HOME": home}
    return Client(homes.resolve(environ), operator, modality, start, passphrase)


class Client:
    """The sessions and machines that an operator can reach, for `async with`."""

    def __init__(
        self,
        home: Home,
        operator: str | None,
        modality: str,
        start: bool,
        passphrase: Callable[[str], str] | None,
        credential: Credential | None = None,
    ) -> None:
        self._credential = credential
        self._home, self._given = home, operator
        self._modality, self._start, self._passphrase = modality, start, passphrase
        self._engines: dict[str, Engine] = {}  # by the name of the machine
        self.sessions: Final = Sessions(self)
        self.machines: Final = Machines(self)
        self.approvals: Final = Approvals(self)
        self.operators: Final = Operators(self.engine, None if credential else home)
        self.terminal: Final = Terminal(self)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Client]:
        return self.__aenter__().__await__()

    async def close(self) -> None:
        """Leaves. Sessions go on."""
        engines, self._engines = list(self._engines.values()), {}
        await asyncio.gather(*(engine.close() for engine in engines))

    async def resolve(self, ref: str) -> Resolved:
        """The present meaning of a reference: live, ended with a code, or not known any more.

        Asks this machine first, then all known machines; `machine`: the one that knows.
        """
        body = await self.engine(HERE).ask("resolve", ref=ref)
        if not body["known"] or went(body):
            answers, _ = await self.everywhere(lambda engine: engine.ask("resolve", ref=ref))
            if (found := best(answers, body)) is not None:
                return read(Resolved, found[1], machine=found[0])
        return read(Resolved, body)

    async def events(self, after: int = 0, *, follow: bool = False) -> AsyncGenerator[Event, None]:
        """Events of the machine, the oldest first; `follow`: each new event too."""
        found = entries(self.engine(HERE), "events", "events", "happened", follow, after)
        async with contextlib.aclosing(found):
            async for event in found:
                facts = {key: event[key] for key in event if key not in EVENT_KEYS}
                yield read(Event, event, facts=facts)

    async def everywhere(
        self, question: Callable[[Engine], Awaitable[T]], wait_s: float = SEARCH_S
    ) -> tuple[dict[str, T], dict[str, str]]:
        """The answers of all known machines but this one, and why a machine gave none."""
        answers, silent = dict[str, T](), dict[str, str]()

        async def ask(name: str) -> None:
            try:
                async with asyncio.timeout(wait_s):
                    answers[name] = await question(self.engine(name))
            except TimeoutError:
                silent[name] = "no answer in time"
            except HoldfastError as e:
                silent[name] = e.message

        names = [one.name for one in await self.machines.known()]
        await asyncio.gather(*(ask(name) for name in names))
        return {name: answers[name] for name in names if name in answers}, silent

    def engine(self, machine: str) -> Engine:
        """The connections to a machine; opened with the first request."""
        if machine not in self._engines:
            with advice():
                self._engines[machine] = Engine(lambda: self._link(machine), for_programs)
        return self._engines[machine]

    def _link(self, machine: str) -> Link:
        if (held := self._credential) is not None:
            if machine not in (HERE, held.machine.name):
                raise NotFound(
                    f"the credential is for {held.machine.name}, not for {machine[:80]!a}",
                    "connect() without a credential reaches every machine of a home",
                )
            from holdfast.client.credential import link as link_of

            return link_of(held, self._modality, self._start, handed_on(os.environ))
        away = machines.find(self._home, machine, self._given) if machine else None
        operator = away.operator if away is not None else operator_name(self._given, os.environ)
        link = Link(self._home, operator, self._modality, self._start, self._passphrase, away)
        if self._home.explicit:
            link.host_environ = {**handed_on(os.environ), "HOLDFAST_HOME": self._home.state}
        return link


class Sessions:
    """The sessions of this machine, and with `MACHINE/NAME` of every paired machine."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self, machine: str | None = None, *, all: bool = False) -> Listing:
        """Running sessions of this and of all known machines; `all`: ended sessions too.

        `machine`: only of this machine; the empty name is the machine here. A machine that does not
        answer within three seconds is in `unreachable` of the result.
        """
        client = self._client
        if machine is not None:
            return Listing(await self._of(client.engine(machine), machine, all))
        ask = asyncio.create_task(self._of(client.engine(HERE), HERE, all))
        try:
            answers, silent = await client.everywhere(lambda one: self._of(one, "", all))
            found = Listing(await ask)
        finally:
            ask.cancel()
        for name, some in answers.items():
            found += (replace(one, machine=name) for one in some)
        found.unreachable = silent
        return found

    async def _of(self, engine: Engine, machine: str, all: bool) -> builtins.list[SessionInfo]:
        body = await engine.ask("ls", all=all)
        listed = (read(SessionInfo, one) for one in body["sessions"])
        return [replace(one, machine=machine) for one in listed]

    async def get(self, name: str) -> Session:
        """A session by its id, name or unique prefix; `MACHINE/NAME` on another machine.

        This machine comes first. If the session is not here, all known machines are asked for that
        id or whole name. `Ambiguous` lists the candidates; `NotFound` names silent machines.
        """
        machine, _, session = name.rpartition("/")
        try:
            return await self._get(machine, session)
        except NotFound:
            if machine or not await self._client.machines.known():
                raise
        answers, silent = await self._client.everywhere(lambda one: _found(one, session))
        found = [one._replace(machine=at) for at, one in answers.items() if one is not None]
        with advice():
            chosen = decide(session, found, silent)
        return await self._get(chosen.machine, chosen.id)

    async def _get(self, machine: str, session: str) -> Session:
        engine = self._client.engine(machine)
        info = read(SessionInfo, await engine.ask("get", session=session))
        return Session(engine, replace(info, machine=machine))

    async def new(
        self,
        name: str | None = None,
        *,
        command: Sequence[str] = (),
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        size: tuple[int, int] | None = None,
        contained: bool | None = None,
        share: Sequence[str] = (),
        net: str | None = None,
        exist_ok: bool = False,
        machine: str = HERE,
        once: str | None = None,
    ) -> Session:
        """Starts a program (the shell of this account by default) in a new session.

        `env` is added to the environment of this process; on a remote machine only to language
        and time zone, and `cwd` is a directory there. `contained`: behind walls; the default
        for agents and services. `exist_ok`: give the running session of that name, if there is one.
        """
        given = dict(env or {})
        engine = self._client.engine(machine)
        away = engine.link.away is not None
        fields: dict[str, Any] = {
            "name": name,
            "argv": list(command),
            "cwd": (cwd or "") if away else _absolute(cwd),
            "env": for_session({**os.environ, **given}, given, away),
            "given": sorted(given),
            "size": list(size) if size else None,
            "existing": exist_ok,
            "contained": contained,
        }
        fields |= {"once": once} if once else {"token": os.urandom(16).hex()}
        fields |= {"share": list(share)} if share else {}
        fields |= {"net": net} if net else {}
        return Session(engine, read(SessionInfo, await engine.ask("new", **fields)))


def _absolute(path: str | None) -> str:
    return os.getcwd() if path is None else os.path.abspath(path)


async def _found(engine: Engine, word: str) -> Found | None:
    """The session of that name or id on a machine."""
    try:
        body = await engine.ask("get", session=word)
    except NotFound:
        return None
    return Found("", str(body["id"]), str(body["name"]))


class Machines:
    """The machines that this installation can reach through relays."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> builtins.list[Machine]:
        """Every known machine; `presence` says whether the machine has answered just now."""
        answers, silent = await self._client.everywhere(lambda one: one.ask("ping"))
        return [
            replace(one, presence="online", sessions=answers[one.name].get("sessions"))
            if one.name in answers
            else replace(one, why=silent.get(one.name, ""))
            for one in await self.known()
        ]

    async def drain(self, machine: str = HERE, *, notice: int = 60) -> Drained:
        """Saves every session within `notice` seconds; new sessions are refused from now on.

        `session.run` and the like bring a saved session back after `cancel_drain`.
        """
        engine = self._client.engine(machine)
        return read(Drained, await engine.ask("drain", notice + DRAIN_GRACE_S, notice=notice))

    async def cancel_drain(self, machine: str = HERE) -> None:
        """Ends a drain, also a complete one: new sessions are admitted again."""
        await self._client.engine(machine).ask("drain", cancel=True)

    async def known(self) -> builtins.list[Machine]:
        """Every known machine, without a request: `presence` is `unknown`."""
        client = self._client
        if client._credential is not None:
            return []
        listed = await asyncio.to_thread(machines.listing, client._home)
        given = client._given or os.environ.get("HOLDFAST_AS")
        mine = {one.name: one for one in listed if given in (None, "", one.operator)}
        return [Machine(one.name, one.operator) for one in mine.values()]


class Approvals:
    """Acts that wait for the decision of a second operator."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self, machine: str = HERE) -> list[Approval]:
        """The acts that wait, the oldest first. `counts`: whether your approval would count."""
        body = await self._client.engine(machine).ask("approvals")
        return [read(Approval, one) for one in body["approvals"]]

    async def approve(self, id: str, machine: str = HERE) -> None:
        """Approves the act as it is shown: the facts are checked, then signed with your key."""
        await self._decide(id, "approve", machine)

    async def deny(self, id: str, machine: str = HERE) -> None:
        """Denies the act."""
        await self._decide(id, "deny", machine)

    async def withdraw(self, id: str, machine: str = HERE) -> None:
        """Withdraws an act of one's own."""
        await self._decide(id, "withdraw", machine)

    async def _decide(self, id: str, answer: Answer, machine: str) -> None:
        engine = self._client.engine(machine)
        found = (await engine.ask("approvals", id=id))["approvals"]
        if not found:
            raise NotFound(f"no act {id} waits for approval", "approvals.list() has those that do")
        from holdfast.client import questions

        fields = questions.answer(engine.link, found[0], answer)
        await engine.ask(fields.pop("op"), None, **fields)


class Terminal:
    """A command in a new session."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def execute(
        self,
        machine: str,
        command: str,
        *,
        timeout: float | None = None,
        contained: bool | None = None,
    ) -> RunResult:
        """Runs a command on a machine in a new session, and ends the session afterwards.

        The session, the act and the output are recorded like any other.
        """
        session = await self._client.sessions.new(machine=machine, contained=contained)
        try:
            return await session.run(command, timeout=timeout)
        finally:
            try:
                await session.end()
            except NotFound:  # the command ended the session
                pass
            except NotAllowed:  # without the right `end`: the shell ends as with its terminal
                await session.signal((await session.info()).pid or 0, "HUP")
