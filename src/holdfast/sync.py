"""The Python API without `await`: rendered by scripts/render_sync.py from holdfast.sdk.

    with holdfast.sync.connect() as client:
        print(client.sessions.get("main").run("git status").output)

Works in any thread, also in a thread with a running event loop.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Literal

from holdfast.sdk import attach as _attach
from holdfast.sdk import client as _client
from holdfast.sdk import files as _files
from holdfast.sdk import forward as _forward
from holdfast.sdk import operators as _operators
from holdfast.sdk import running as _running
from holdfast.sdk import session as _session
from holdfast.sdk.branches import Branch, Difference, Forked, Kept, Left
from holdfast.sdk.client import HERE
from holdfast.sdk.drained import Drained
from holdfast.sdk.observed import Change, Entry, Event, Graph
from holdfast.sdk.portal import Portal
from holdfast.sdk.results import (
    Approval,
    Checkpoint,
    Chunk,
    Ended,
    FileInfo,
    Found,
    Granted,
    Halted,
    Listing,
    Machine,
    OnHeld,
    Operator,
    Output,
    Preflight,
    Resolved,
    Restored,
    RunResult,
    Screen,
    Seized,
    Sent,
    SessionInfo,
    Transferred,
    TurnState,
    Waited,
)
from holdfast.sdk.session import TurnRule


class Running:
    """A command under way. The `ref` outlives this object and this process.

    Iterate for the output as it comes, or `wait` for the result. `leave` stops following; the
    command goes on, and `client.resolve(ref)` gives the exit code later.
    """

    def __init__(self, portal: Portal, it: _running.Running) -> None:
        self._portal, self._it = portal, it

    @property
    def ref(self) -> str | None:
        return self._it.ref

    @property
    def over(self) -> bool:
        return self._it.over

    def __iter__(self) -> Generator[Chunk, None, None]:
        return self._portal.iterate(self._it.__aiter__())

    def wait(self) -> RunResult:
        """The result, with all output so far."""
        return self._portal.run(self._it.wait())

    def leave(self) -> None:
        """Stops following. The command goes on."""
        self._portal.run(self._it.leave())


class Files:
    """The files of a session; every call needs the right `files` and is recorded."""

    def __init__(self, portal: Portal, it: _files.Files) -> None:
        self._portal, self._it = portal, it

    def acting(
        self,
        *,
        hold: float | None = None,
        intent: str | None = None,
        expects: str | None = None,
        on_held: OnHeld | None = None,
    ) -> Files:
        """The same files, with more facts in every call.

        `hold`: seconds to wait for an approval, if the policy asks for one. `on_held`: called when
        that wait begins. `intent` and `expects`: the purpose and the expected effect, for the
        record.
        """
        return Files(
            self._portal,
            self._it.acting(hold=hold, intent=intent, expects=expects, on_held=on_held),
        )

    def ls(self, path: str = ".", *, after: str = "", limit: int = 1000) -> list[FileInfo]:
        """The first entries of a directory by name; `after`: the entries behind this name."""
        return self._portal.run(self._it.ls(path, after=after, limit=limit))

    def walk(self, path: str = ".") -> Generator[FileInfo, None, None]:
        """All entries of a directory, page by page, however many there are."""
        return self._portal.iterate(self._it.walk(path))

    def stat(self, path: str) -> FileInfo:
        """The attributes of a file; a link at the end of the path is not followed."""
        return self._portal.run(self._it.stat(path))

    def search(self, pattern: str, path: str = ".", *, text: str = "", limit: int = 1000) -> Found:
        """Files below a directory with a name that matches a pattern like `*.py`.

        `text`: only lines that contain this text.
        """
        return self._portal.run(self._it.search(pattern, path, text=text, limit=limit))

    def get(
        self, path: str, local: str = ".", *, progress: Callable[[int, int], None] | None = None
    ) -> Transferred:
        """Copies a file of the session to a local file, or into a local directory.

        An interrupted copy continues where it stopped, if the file is unchanged. `progress` is
        called with the bytes so far and the size.
        """
        return self._portal.run(self._it.get(path, local, progress=progress))

    def stream(self, path: str) -> Generator[bytes, None, None]:
        """The content of a file, piece by piece; its hash is compared at the end."""
        return self._portal.iterate(self._it.stream(path))

    def read_bytes(self, path: str, *, limit: int = 64 << 20) -> bytes:
        """The content of a file of at most `limit` bytes."""
        return self._portal.run(self._it.read_bytes(path, limit=limit))

    def put(
        self,
        local: str,
        path: str = ".",
        *,
        parents: bool = False,
        progress: Callable[[int, int], None] | None = None,
        once: str | None = None,
    ) -> Transferred:
        """Copies a local file to a file of the session, or into a directory there.

        The file appears whole or not at all. An interrupted copy continues where it stopped, also
        by another process. `parents`: make missing directories. `once`: an idempotency key.
        """
        return self._portal.run(
            self._it.put(local, path, parents=parents, progress=progress, once=once)
        )

    def write_bytes(
        self,
        path: str,
        data: bytes,
        *,
        mode: int | None = None,
        parents: bool = False,
        once: str | None = None,
    ) -> Transferred:
        """Writes a file of the session, whole or not at all. `mode`: the permission bits."""
        return self._portal.run(
            self._it.write_bytes(path, data, mode=mode, parents=parents, once=once)
        )

    def rm(self, path: str, *, recursive: bool = False, once: str | None = None) -> None:
        """Removes a file, a link or an empty directory; `recursive`: with its content."""
        self._portal.run(self._it.rm(path, recursive=recursive, once=once))

    def mv(self, path: str, to: str, *, once: str | None = None) -> None:
        """Gives a file another path, or moves it into a directory; an existing file is replaced."""
        self._portal.run(self._it.mv(path, to, once=once))


class Forward:
    """A port of a session at a local address, for `with`."""

    def __init__(self, portal: Portal, it: _forward.Forward) -> None:
        self._portal, self._it = portal, it

    @property
    def port(self) -> int:
        return self._it.port

    @property
    def host(self) -> str:
        return self._it.host

    @property
    def local_port(self) -> int:
        return self._it.local_port

    def __enter__(self) -> Forward:
        self._portal.run(self._it.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where programs of this machine connect: `127.0.0.1:3000`."""
        return self._it.address

    @property
    def connections(self) -> int:
        """Connections that were accepted here so far."""
        return self._it.connections

    @property
    def over(self) -> bool:
        """Whether the forward has ended by itself: `wait` has the reason."""
        return self._it.over

    def wait(self) -> None:
        """Returns when the session has ended; raises `NotAllowed` when the right has ended."""
        self._portal.run(self._it.wait())

    def close(self) -> None:
        """Closes the address and every connection."""
        self._portal.run(self._it.close())


class Attachment:
    """A terminal of the session, for `with`; iterate for the output.

    The first output is the present screen. The stream survives the loss of the host: no byte is
    missing, and none comes twice.
    """

    def __init__(self, portal: Portal, it: _attach.Attachment) -> None:
        self._portal, self._it = portal, it

    def __enter__(self) -> Attachment:
        self._portal.run(self._it.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def read(self) -> Output | None:
        """The next output; None when the session has ended."""
        return self._portal.run(self._it.read())

    def __iter__(self) -> Generator[Output, None, None]:
        return self._portal.iterate(self._it.__aiter__())

    def write(self, data: bytes) -> None:
        """Types bytes, with the turn; returns when the session has taken them.

        A refusal of the turn or the policy is raised here.
        """
        self._portal.run(self._it.write(data))

    def resize(self, cols: int, rows: int) -> None:
        """Gives the terminal another size, if the turn is free or yours."""
        self._portal.run(self._it.resize(cols, rows))

    def close(self) -> None:
        """Detaches. The session goes on."""
        self._portal.run(self._it.close())


class Session:
    """A live session. The `id` is the same for every client, host and machine."""

    def __init__(self, portal: Portal, it: _session.Session) -> None:
        self._portal, self._it = portal, it
        self.turn = Turn(portal, it.turn)
        self.files = Files(portal, it.files)

    @property
    def id(self) -> str:
        return self._it.id

    @property
    def machine(self) -> str:
        return self._it.machine

    @property
    def name(self) -> str:
        return self._it.name

    @property
    def ref(self) -> str | None:
        """The reference to write into a transcript; `client.resolve` finds its meaning later."""
        return self._it.ref

    def __repr__(self) -> str:
        return self._it.__repr__()

    def info(self) -> SessionInfo:
        """The session as it is now."""
        return self._portal.run(self._it.info())

    def run(
        self,
        text: str,
        *,
        turn: TurnRule = "wait",
        timeout: float | None = None,
        hold: float | None = None,
        once: str | None = None,
        intent: str | None = None,
        expects: str | None = None,
        prompt: str | None = None,
        on_held: OnHeld | None = None,
    ) -> RunResult:
        """Runs a command in the session's shell; gives the output and the exit code.

        `turn`: `wait` for the turn and a free prompt, `fail` if there is none, or `seize` the turn.
        `timeout`: after so many seconds the result has the state `running`; the command goes on.
        `hold`: seconds to wait for an approval, if the policy asks for one. `once`: an idempotency
        key; any client that repeats the act with the key gets the outcome of the first. `on_held`:
        called when the act begins to wait for an approval. `intent` and `expects`: the purpose and
        the expected effect, for the record; `prompt`: a reference to the prompt behind the act.
        """
        return self._portal.run(
            self._it.run(
                text,
                turn=turn,
                timeout=timeout,
                hold=hold,
                once=once,
                intent=intent,
                expects=expects,
                prompt=prompt,
                on_held=on_held,
            )
        )

    def start(
        self,
        text: str,
        *,
        turn: TurnRule = "wait",
        timeout: float | None = None,
        hold: float | None = None,
        once: str | None = None,
        intent: str | None = None,
        expects: str | None = None,
        prompt: str | None = None,
        on_held: OnHeld | None = None,
    ) -> Running:
        """Starts a command and returns at once; the handle can stream, wait, or leave."""
        return Running(
            self._portal,
            self._portal.run(
                self._it.start(
                    text,
                    turn=turn,
                    timeout=timeout,
                    hold=hold,
                    once=once,
                    intent=intent,
                    expects=expects,
                    prompt=prompt,
                    on_held=on_held,
                )
            ),
        )

    def send(
        self,
        text: str = "",
        *,
        keys: Sequence[str] = (),
        enter: bool = False,
        paste: bool = False,
        hold: float | None = None,
        once: str | None = None,
        intent: str | None = None,
        prompt: str | None = None,
    ) -> Sent:
        """Types text, then named keys (`C-c`, `Up`, `Escape` …); `enter` presses Enter last."""
        return self._portal.run(
            self._it.send(
                text,
                keys=keys,
                enter=enter,
                paste=paste,
                hold=hold,
                once=once,
                intent=intent,
                prompt=prompt,
            )
        )

    def signal(self, pid: int, signal: str = "TERM", *, tree: bool = False) -> int:
        """Signals a process, or the process and all below; gives the number of processes."""
        return self._portal.run(self._it.signal(pid, signal, tree=tree))

    def seize(self, *, stop: bool = False) -> Seized:
        """Takes the turn at once, without the consent of its holder.

        `stop`: also stop the processes of the former holder, and refuse its further acts.
        """
        return self._portal.run(self._it.seize(stop=stop))

    def halt(self, *, operator: str | None = None) -> Halted:
        """Stops every process of the session.

        `operator`: only the processes that acts of this operator started; its further acts in the
        session are refused.
        """
        return self._portal.run(self._it.halt(operator=operator))

    def resume(self, *, operator: str | None = None) -> Halted:
        """Lets a halted session go on; `operator`: only the processes of this operator."""
        return self._portal.run(self._it.resume(operator=operator))

    def preflight(self) -> Preflight:
        """What `checkpoint` would save and lose; nothing stops."""
        return self._portal.run(self._it.preflight())

    def checkpoint(self, *, stop: bool = False, hold: float | None = None) -> Checkpoint:
        """Saves the session with its processes to disk; the session goes on.

        `stop`: the processes end once they are saved. Raises `Impossible` with the reasons if the
        session cannot be saved.
        """
        return self._portal.run(self._it.checkpoint(stop=stop, hold=hold))

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints of the session, oldest first."""
        return self._portal.run(self._it.checkpoints())

    def restore(
        self,
        checkpoint: str | None = None,
        *,
        fallback: bool | None = None,
        hold: float | None = None,
    ) -> Restored:
        """Brings the ended session back, from a checkpoint or from its newest.

        If that fails, it comes back without its memory, and the result says so; `fallback=False`
        raises `Impossible` instead.
        """
        return self._portal.run(self._it.restore(checkpoint, fallback=fallback, hold=hold))

    def can_fork(self, n: int = 1) -> Preflight:
        """Whether `fork` is possible, and what the branches would lack; nothing stops."""
        return self._portal.run(self._it.can_fork(n))

    def fork(
        self,
        n: int = 1,
        *,
        name: str | None = None,
        once: str | None = None,
        hold: float | None = None,
        on_held: OnHeld | None = None,
    ) -> Forked:
        """Makes live branches of the session, which goes on: each branch is a session.

        `name`: of a single branch; several are NAME-1, NAME-2 and so on.
        """
        return self._portal.run(self._it.fork(n, name=name, once=once, hold=hold, on_held=on_held))

    def branches(self) -> list[Branch]:
        """The branches that began with this session; of a branch, those of its fork."""
        return self._portal.run(self._it.branches())

    def diff(
        self, path: str | None = None, *, every: bool = False, texts: bool = True
    ) -> Difference:
        """The changes of this branch since the fork. `every`: home, /tmp and /run too."""
        return self._portal.run(self._it.diff(path, every=every, texts=texts))

    def keep(
        self,
        *,
        take: Sequence[str] = (),
        leave: Sequence[str] = (),
        others: bool = False,
        check: bool = False,
        hold: float | None = None,
        on_held: OnHeld | None = None,
    ) -> Kept:
        """Commits the files of this branch to its parent's directories; discards the others.

        With conflicts nothing is written, and `done` is False: `take` the file of the branch, or
        `leave` the file as it is. `others`: does not discard them. `check`: writes nothing.
        """
        return self._portal.run(
            self._it.keep(
                take=take, leave=leave, others=others, check=check, hold=hold, on_held=on_held
            )
        )

    def discard(self, *, hold: float | None = None, on_held: OnHeld | None = None) -> Left:
        """Ends this branch and removes its files; gives what left it."""
        return self._portal.run(self._it.discard(hold=hold, on_held=on_held))

    def reap(self, choice: Literal["default", "never", "evict", "end"]) -> None:
        """Chooses what the reaper may do with the session when it is idle."""
        self._portal.run(self._it.reap(choice))

    def rename(self, name: str) -> None:
        """Gives the session a new name; the id stays."""
        self._portal.run(self._it.rename(name))

    def end(self) -> Ended:
        """Ends every process of the session."""
        return self._portal.run(self._it.end())

    def attach(self, size: tuple[int, int] = (80, 24), *, observe: bool = False) -> Attachment:
        """A terminal attached to the session, within a `with` block; `observe`: without typing."""
        return Attachment(self._portal, self._it.attach(size, observe=observe))

    def forward(
        self,
        port: int,
        listen: str | None = None,
        *,
        expose: bool = False,
        intent: str | None = None,
        on_held: OnHeld | None = None,
    ) -> Forward:
        """A listening TCP port of the session at an address of this machine, within a `with` block.

        `listen`: ADDRESS, ADDRESS:PORT or PORT; by default 127.0.0.1 with the same port, or with a
        free port. `expose`: allow an address that other machines can reach. `intent`: the purpose,
        for the record. `on_held`: called when the forward waits for an approval.
        """
        return Forward(
            self._portal,
            self._it.forward(port, listen, expose=expose, intent=intent, on_held=on_held),
        )

    def view(self, *, history: int = 0) -> Screen:
        """The screen now; `history`: lines of scrollback."""
        return self._portal.run(self._it.view(history=history))

    def read(
        self, start: int | None = None, *, follow: bool = False
    ) -> Generator[Chunk, None, None]:
        """Raw output from an absolute offset, the oldest kept by default; `follow`: until the end.

        The iteration survives the death of the host: no byte is missing and none comes twice.
        """
        return self._portal.iterate(self._it.read(start, follow=follow))

    def wait(
        self, *conditions: str, timeout: float | None = None, since: int | str | None = None
    ) -> Waited:
        """Returns when one of the conditions holds; raises `TimedOut` after `timeout` seconds.

        Conditions: idle, input, secret, exit, command, `text:REGEX`, `port:NUMBER`. `since`: look
        for text in the output from there on, and not on the screen. An offset, a reference to a
        range of output, or the `ref` of a command that runs or has run.
        """
        return self._portal.run(self._it.wait(*conditions, timeout=timeout, since=since))

    def graph(self) -> Graph:
        """Processes with their operators, open files, sockets and the terminal."""
        return self._portal.run(self._it.graph())

    def changes(self) -> Generator[Change, None, None]:
        """Changes of the graph until the session ends; present processes and ports come first.

        The iteration survives the death of the host: an exit that no host saw comes with an unknown
        exit code, and no change comes twice.
        """
        return self._portal.iterate(self._it.changes())

    def log(self, after: int = 0, *, follow: bool = False) -> Generator[Entry, None, None]:
        """Entries of the record, the oldest first; `follow`: each new entry too.

        `after`: the number of an entry; a negative one begins with that many of the newest.
        """
        return self._portal.iterate(self._it.log(after, follow=follow))


class Turn:
    """The right to write now."""

    def __init__(self, portal: Portal, it: _session.Turn) -> None:
        self._portal, self._it = portal, it

    def state(self) -> TurnState | None:
        """The holder; None if the turn is free."""
        return self._portal.run(self._it.state())

    def request(self, wait: float = 0.0) -> TurnState | None:
        """Asks for the turn, and waits at most `wait` seconds."""
        return self._portal.run(self._it.request(wait))

    def release(self) -> TurnState | None:
        return self._portal.run(self._it.release())

    def hand(self, operator: str) -> TurnState | None:
        """Hands the turn to another operator."""
        return self._portal.run(self._it.hand(operator))


class Operators:
    """The people, agents and services that a machine knows, and the rights of each.

    Every act is signed with the key of this program. `machine`: a paired machine; the empty name is
    the machine here.
    """

    def __init__(self, portal: Portal, it: _operators.Operators) -> None:
        self._portal, self._it = portal, it

    def list(self, machine: str = "") -> builtins.list[Operator]:
        """All operators that are or were known."""
        return self._portal.run(self._it.list(machine))

    def show(self, name: str, machine: str = "") -> Operator:
        """An operator with its keys and envelopes."""
        return self._portal.run(self._it.show(name, machine))

    def add(
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
        return self._portal.run(self._it.add(name, kind=kind, key=key, hold=hold, machine=machine))

    def grant(
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
        return self._portal.run(
            self._it.grant(
                name,
                rights,
                session=session,
                expires=expires,
                commands=commands,
                rate=rate,
                own_key=own_key,
                hold=hold,
                machine=machine,
            )
        )

    def revoke(
        self, name: str, *, grants: bool = False, force: bool = False, machine: str = ""
    ) -> Operator:
        """Revokes an operator with all its keys, at once and for good.

        `grants`: also the rights that it gave. `force`: also the last operator with `manage`.
        """
        return self._portal.run(self._it.revoke(name, grants=grants, force=force, machine=machine))


class Client:
    """The sessions and machines that an operator can reach, for `with`."""

    def __init__(self, portal: Portal, it: _client.Client) -> None:
        self._portal, self._it = portal, it
        self.sessions = Sessions(portal, it.sessions)
        self.machines = Machines(portal, it.machines)
        self.approvals = Approvals(portal, it.approvals)
        self.operators = Operators(portal, it.operators)
        self.terminal = Terminal(portal, it.terminal)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves. Sessions go on."""
        self._portal.run(self._it.close())
        self._portal.close()

    def resolve(self, ref: str) -> Resolved:
        """The present meaning of a reference: live, ended with a code, or not known any more.

        Asks this machine first, then all known machines; `machine`: the one that knows.
        """
        return self._portal.run(self._it.resolve(ref))

    def events(self, after: int = 0, *, follow: bool = False) -> Generator[Event, None, None]:
        """Events of the machine, the oldest first; `follow`: each new event too."""
        return self._portal.iterate(self._it.events(after, follow=follow))


class Sessions:
    """The sessions of this machine, and with `MACHINE/NAME` of every paired machine."""

    def __init__(self, portal: Portal, it: _client.Sessions) -> None:
        self._portal, self._it = portal, it

    def list(self, machine: str | None = None, *, all: bool = False) -> Listing:
        """Running sessions of this and of all known machines; `all`: ended sessions too.

        `machine`: only of this machine; the empty name is the machine here. A machine that does not
        answer within three seconds is in `unreachable` of the result.
        """
        return self._portal.run(self._it.list(machine, all=all))

    def get(self, name: str) -> Session:
        """A session by its id, name or unique prefix; `MACHINE/NAME` on another machine.

        This machine comes first. If the session is not here, all known machines are asked for that
        id or whole name. `Ambiguous` lists the candidates; `NotFound` names silent machines.
        """
        return Session(self._portal, self._portal.run(self._it.get(name)))

    def new(
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
        return Session(
            self._portal,
            self._portal.run(
                self._it.new(
                    name,
                    command=command,
                    cwd=cwd,
                    env=env,
                    size=size,
                    contained=contained,
                    share=share,
                    net=net,
                    exist_ok=exist_ok,
                    machine=machine,
                    once=once,
                )
            ),
        )


class Machines:
    """The machines that this installation can reach through relays."""

    def __init__(self, portal: Portal, it: _client.Machines) -> None:
        self._portal, self._it = portal, it

    def list(self) -> builtins.list[Machine]:
        """Every known machine; `presence` says whether the machine has answered just now."""
        return self._portal.run(self._it.list())

    def drain(self, machine: str = HERE, *, notice: int = 60) -> Drained:
        """Saves every session within `notice` seconds; new sessions are refused from now on.

        `session.run` and the like bring a saved session back after `cancel_drain`.
        """
        return self._portal.run(self._it.drain(machine, notice=notice))

    def cancel_drain(self, machine: str = HERE) -> None:
        """Ends a drain, also a complete one: new sessions are admitted again."""
        self._portal.run(self._it.cancel_drain(machine))

    def known(self) -> builtins.list[Machine]:
        """Every known machine, without a request: `presence` is `unknown`."""
        return self._portal.run(self._it.known())


class Approvals:
    """Acts that wait for the decision of a second operator."""

    def __init__(self, portal: Portal, it: _client.Approvals) -> None:
        self._portal, self._it = portal, it

    def list(self, machine: str = HERE) -> list[Approval]:
        """The acts that wait, the oldest first. `counts`: whether your approval would count."""
        return self._portal.run(self._it.list(machine))

    def approve(self, id: str, machine: str = HERE) -> None:
        """Approves the act as it is shown: the facts are checked, then signed with your key."""
        self._portal.run(self._it.approve(id, machine))

    def deny(self, id: str, machine: str = HERE) -> None:
        """Denies the act."""
        self._portal.run(self._it.deny(id, machine))

    def withdraw(self, id: str, machine: str = HERE) -> None:
        """Withdraws an act of one's own."""
        self._portal.run(self._it.withdraw(id, machine))


class Terminal:
    """A command in a new session."""

    def __init__(self, portal: Portal, it: _client.Terminal) -> None:
        self._portal, self._it = portal, it

    def execute(
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
        return self._portal.run(
            self._it.execute(machine, command, timeout=timeout, contained=contained)
        )


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

        with holdfast.sync.connect() as client:
            session = client.sessions.get("main")
    """
    return Client(
        Portal(),
        _client.connect(
            credential,
            operator=operator,
            home=home,
            modality=modality,
            start=start,
            passphrase=passphrase,
        ),
    )
