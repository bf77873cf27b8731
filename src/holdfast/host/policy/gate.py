"""The gate at input depth, as the host runs it: an act in, a decision out, never later than a limit, never on the host's loop.

What has no text and no plug-ins to ask (a key of a person, a size) is decided at once, by rules alone: that is microseconds.
Everything else goes to a thread: the parser is a process, links are followed on the file system, plug-ins are processes
(host/plugins.py). The loop waits for the answer for JUDGE_S; a thread that is still stuck then is left behind, and the act is
refused. Threads are shared out by operator and session (host/threads.py): where all of a share are stuck everything is refused
at once, there. Error means refuse, and the reason says which.

The policy file is looked at before every act, by what the kernel says of it (inode, size, times), and read again when that
changed. A file that cannot be read or used, or that others could have written, refuses everything but seizing, halting and
looking. Without a file the default policy is in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import re
import stat
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from holdfast.core import execution
from holdfast.core import policy as policies
from holdfast.core.conditions import Request
from holdfast.core.exposition import Histogram
from holdfast.core.facts import Facts
from holdfast.core.gate import TEXT_ACTS, facts_of
from holdfast.core.originators import Shaped
from holdfast.core.places import same
from holdfast.core.policy import UNGATED, BadPolicy, Decision, Policy, Verdict, combine
from holdfast.core.shaping import View
from holdfast.host.parse import Parser
from holdfast.host.plugins import Plugin, Worker
from holdfast.host.threads import Share, Stuck, Threads
from holdfast.model.errors import Unavailable

JUDGE_S: Final = 8.0  # for the whole: the parser and the plug-ins have limits of their own below it
LOOKED_AT: Final = ("run", "line", "paste")  # acts whose text meets the state of a shell
JUDGING_EACH: Final = 4  # at a time, of one operator in one session
JUDGING_ALL: Final = 12  # ... in all sessions
EXECS_KEPT: Final = 4096
MOUNTS_S: Final = 2.0  # how long the list of mounted devices is believed
CEDAR_FILE: Final = "policy.cedar"
CEDAR_TARGET: Final = "holdfast.host.cedar:judge"
_PARTITION: Final = re.compile(
    r"(/dev/(?:sd[a-z]+|vd[a-z]+|xvd[a-z]+|hd[a-z]+))\d+$|(/dev/(?:nvme\d+n\d+|mmcblk\d+|loop\d+|nbd\d+))p\d+$"
)


class Gate:
    """One per host. It belongs to the loop's thread, where `on_policy` is called too. A worker dies with the thread that started it: threads of the pool stay."""

    def __init__(
        self,
        policy_file: str | None,
        plugins: Sequence[Plugin] = (),
        parser: Parser | None = None,
        judge_s: float = JUDGE_S,
        worker: Callable[[Plugin], Worker] = Worker,
        on_policy: Callable[[str], None] | None = None,
        private: tuple[str, ...] = (),
    ) -> None:
        self.policy_file = policy_file
        self.parser = parser or Parser()
        self.judge_s = judge_s
        self.private = private  # where keys are kept
        self.on_policy = on_policy
        self.touched: Callable[[Request, Facts | None, View | None], tuple[Shaped, ...]] = (
            lambda request, facts, view: request.shaped
        )  # in a thread
        self._make = worker
        self._workers = {p: worker(p) for p in plugins}
        self._threads = Threads("gate")
        self._seen: tuple[Any, ...] | None = None
        self._policy: Policy | None = None
        self._version = ""
        self._mounted: tuple[float, tuple[str, ...]] = (-1e9, ())
        self.decisions: Counter[tuple[str, str]] = Counter()  # by act and verdict
        self.took = Histogram()
        self._index: tuple[Policy, execution.Index] | None = None
        self._execs: OrderedDict[tuple[Any, ...], Decision] = (
            OrderedDict()
        )  # decisions on execs that depend on nothing else
        for w in self._workers.values():
            self._threads.pool.submit(w.start)

    # ------------------------------------------------------------ policy

    @property
    def policy(self) -> Policy:
        """The policy in force, read again if its file changed."""
        mark = _mark(self.policy_file)
        if self._policy is not None and mark == self._seen:
            return self._policy
        before, self._seen = self._version, mark
        self._policy = load(self.policy_file)
        self._cedar()
        self._version = policies.fingerprint(
            "\0".join(
                [self._policy.version, *(f"{p.name} {p.target} {p.version}" for p in self._workers)]
            ).encode()
        )
        if before not in ("", self._version) and self.on_policy is not None:
            self.on_policy(self._version)
        return self._policy

    @property
    def version(self) -> str:
        """What approvals are bound to: the rules, and who else is asked. Looking at it looks at the file."""
        _ = self.policy
        return self._version

    def _cedar(self) -> None:
        """Cedar speaks when there is a file for it beside the policy."""
        path = _beside(self.policy_file, CEDAR_FILE)
        wanted = (
            Plugin("cedar", CEDAR_TARGET, str(_mark(path)))
            if path is not None and os.path.lexists(path)
            else None
        )
        for old in [p for p in self._workers if p.target == CEDAR_TARGET and p != wanted]:
            self._threads.pool.submit(self._workers.pop(old).close)
        if wanted is not None and wanted not in self._workers:
            self._workers[wanted] = self._make(wanted)
            self._threads.pool.submit(self._workers[wanted].start)

    # ------------------------------------------------------------ judging

    def quick(self, request: Request) -> Decision | None:
        """The decision, if it needs neither parser nor plug-ins; else None: ask `judge`."""
        if request.act in UNGATED:
            return Decision(
                Verdict.ALLOW, "", "it answers to the envelope alone", request.act, "gate"
            )
        policy = self.policy
        if self._workers or (
            request.act in TEXT_ACTS and (request.content or request.act != "new")
        ):
            return None
        return replace(policy.decide(request, facts_of(request, _no_parser)), version=self._version)

    async def judge(self, request: Request) -> Decision:
        """The decision. Does not raise because of the act, the policy or a plug-in."""
        began = time.monotonic()
        decision = await self._judge(request)
        self.took.add(time.monotonic() - began)
        self.decisions[request.act, decision.verdict.value] += 1
        return decision

    async def _judge(self, request: Request) -> Decision:
        try:
            decision = self.quick(request)
            if decision is None:
                async with asyncio.timeout(self.judge_s):
                    shares = _shares(request.actor.operator, request.session)
                    decision = await self._threads.do(
                        shares,
                        self._work,
                        request,
                        self.policy,
                        self._version,
                        list(self._workers.values()),
                    )
            return decision
        except Exception as e:
            return self._refuse(self._failed(e))

    async def facts_beside(self, request: Request) -> Facts | None:
        """What an act is made of, for whoever has a loop."""
        try:
            async with asyncio.timeout(self.judge_s):
                return await self._threads.do(
                    _shares(request.actor.operator, request.session), self.facts, request
                )
        except TimeoutError as e:
            raise Unavailable(
                self._failed(e), "look at the file systems that it speaks of: `holdfast graph`"
            ) from e

    def _failed(self, error: Exception) -> str:
        if isinstance(error, Stuck):
            return "the gate's threads for this session still wait for a file system or a parser that does not answer"
        if isinstance(error, TimeoutError):
            return f"the gate did not decide within {self.judge_s:g} s"
        return f"the gate failed: {type(error).__name__}: {error}"[:300]

    # ------------------------------------------------------------ at exec depth

    @property
    def index(self) -> execution.Index | None:
        """Which programs no rule speaks of; None while plug-ins are asked about every one."""
        found = self._index_of(self.policy)
        return None if self._workers else found

    def _index_of(self, policy: Policy) -> execution.Index:
        known = self._index
        if known is None or known[0] is not policy:
            known = self._index = (policy, execution.Index(policy))
        return known[1]

    def quick_exec(self, request: Request, passed: frozenset[str]) -> Decision | None:
        """The decision on an exec, if neither parser, plug-ins nor the file system has to be asked."""
        policy = self.policy
        if self._workers:
            return None
        key = (
            request.actor,
            request.session,
            request.content,
            tuple(request.details.items()),
            request.cwd,
            request.shaped,
            passed,
            self._version,
        )
        if (known := self._execs.get(key)) is not None:
            self._execs.move_to_end(key)
            return known
        request = replace(request, mounted=self._mounts(), private=self.private)
        try:
            decision = replace(
                execution.decide(
                    policy, request, facts_of(request, _asks_parser) or Facts(), passed
                ),
                version=self._version,
            )
        except _NeedsParser:
            return None
        self._execs[key] = decision
        if len(self._execs) > EXECS_KEPT:
            self._execs.popitem(last=False)
        return decision

    async def judge_exec(
        self,
        prepare: Callable[[], Request | Decision],
        passed: frozenset[str],
        operator: str,
        session: str,
    ) -> tuple[Request | None, Decision]:
        """The same with everybody asked, in a thread, where `prepare` may look at files, and find that nothing has to be judged; and what was judged."""
        try:
            async with asyncio.timeout(self.judge_s):
                return await self._threads.do(
                    _shares(operator, session),
                    self._work_exec,
                    prepare,
                    passed,
                    self.policy,
                    self._version,
                    list(self._workers.values()),
                )
        except Exception as e:
            return None, self._refuse(self._failed(e))

    def _work_exec(
        self,
        prepare: Callable[[], Request | Decision],
        passed: frozenset[str],
        policy: Policy,
        version: str,
        workers: list[Worker],
    ) -> tuple[Request | None, Decision]:
        request = prepare()
        if isinstance(request, Decision):
            return None, request
        return request, self._work(request, policy, version, workers, passed)

    def decide(self, request: Request) -> Decision:
        """The same, for whoever has no loop and may wait."""
        return self.quick(request) or self._work(
            request, self.policy, self._version, list(self._workers.values())
        )

    def facts(self, request: Request) -> Facts | None:
        return facts_of(request, self.parser, same if request.contained else real)

    def shaped(self, request: Request, view: View) -> tuple[Shaped, ...]:
        """What a text would touch of a shell as it was then, for whoever only wants to know. In a thread."""
        return self.touched(request, self.facts(request), view)

    def _work(
        self,
        request: Request,
        policy: Policy,
        version: str,
        workers: list[Worker],
        passed: frozenset[str] = frozenset(),
    ) -> Decision:
        """In a thread, on what was in force when the act came."""
        if request.act in TEXT_ACTS and not request.mounted:
            request = replace(request, mounted=self._mounts(), private=self.private)
        facts = self.facts(request)
        if request.session and (
            request.act in LOOKED_AT
            or (
                request.act == execution.ACT
                and (workers or self._index_of(policy).looks(request.actor))
            )
        ):
            request = replace(request, shaped=self.touched(request, facts, None))
        others = list[Decision]()
        if workers and not policy.broken:
            question = describe(
                request, facts, os.path.dirname(self.policy_file) if self.policy_file else ""
            )
            others = [w.judge(question, version) for w in workers]
        if request.act == execution.ACT:
            return replace(
                execution.decide(policy, request, facts or Facts(), passed, others),
                version=version,
                seen=seen(facts, request.shaped),
                shaped=request.shaped,
            )
        opinions = [replace(o, version=version) for o in policy.opinions(request, facts)]
        return replace(
            combine(opinions, others), seen=seen(facts, request.shaped), shaped=request.shaped
        )

    def _refuse(self, why: str) -> Decision:
        return Decision(Verdict.REFUSE, "", why, "", "gate", self._version)

    def _mounts(self) -> tuple[str, ...]:
        at, known = self._mounted
        if time.monotonic() - at > MOUNTS_S:
            known = mounted()
            self._mounted = (time.monotonic(), known)
        return known

    def close(self) -> None:
        """Ends the workers. Threads that are stuck are not waited for."""
        for w in self._workers.values():
            w.close()
        self._threads.close()


# ---------------------------------------------------------------- the policy's file


def load(path: str | None) -> Policy:
    """The policy of this file; the default one if there is none; one that refuses if it cannot be used."""
    if path is None:
        return policies.default()
    try:
        with open(path, "rb") as f:
            info = os.fstat(f.fileno())
            data = f.read(policies.POLICY_BYTES_MAX + 1)
    except FileNotFoundError:
        return policies.default()
    except OSError as e:
        return policies.broken(f"{path}: {e.strerror}", "file")
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return policies.broken(
            f"{path}: others could have written it (chmod go-w)", "file", policies.fingerprint(data)
        )
    try:
        return policies.parse(data.decode(), path)
    except UnicodeDecodeError:
        return policies.broken(f"{path}: it is not UTF-8", "file", policies.fingerprint(data))
    except BadPolicy as e:
        return policies.broken(e.message, "file", policies.fingerprint(data))


def _mark(path: str | None) -> tuple[Any, ...]:
    if path is None:
        return ()
    marks: list[Any] = []
    for name in (path, _beside(path, CEDAR_FILE) or path):
        try:
            info = os.stat(name)
            marks += [
                info.st_ino,
                info.st_dev,
                info.st_size,
                info.st_mtime_ns,
                info.st_ctime_ns,
                info.st_mode,
                info.st_uid,
            ]
        except OSError as e:
            marks.append(e.errno)
    return tuple(marks)


@functools.cache
def _beside(path: str | None, name: str) -> str | None:
    return None if path is None else os.path.join(os.path.dirname(path), name)


# ---------------------------------------------------------------- the world


def real(path: str) -> str:
    """The path behind links, as far as it exists."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def mounted(file: str = "/proc/self/mounts") -> tuple[str, ...]:
    """Devices with a file system in use, and the disks they are parts of."""
    found: dict[str, None] = {}
    with contextlib.suppress(OSError), open(file, encoding="utf-8", errors="replace") as f:
        for line in f:
            source = line.split(" ", 1)[0]
            if source.startswith("/dev/"):
                for name in (source, real(source)):
                    found[name] = None
                    if m := _PARTITION.match(name):
                        found[m[1] or m[2]] = None
    return tuple(found)


def seen(facts: Facts | None, shaped: Sequence[Shaped] = ()) -> bytes:
    """Fingerprint of what an act names, behind links, and of what others made of it: an approval is for these files and these people's doing, not for whatever the same words mean later."""
    if facts is None and not shaped:
        return b""
    named = [] if facts is None else [(c.name, c.paths, c.writes) for c in facts.commands]
    return hashlib.blake2b(
        repr((named, sorted(map(repr, shaped)))).encode("utf-8", "replace"), digest_size=16
    ).digest()


def _shares(operator: str, session: str) -> tuple[Share, ...]:
    return Share((operator, session), JUDGING_EACH), Share(operator, JUDGING_ALL)


class _NeedsParser(BaseException):
    """Not an Exception: nobody on the way takes it for an answer."""


def _asks_parser(text: str, dialect: str) -> dict[str, Any]:
    raise _NeedsParser


def _no_parser(text: str, dialect: str) -> dict[str, Any]:
    raise AssertionError("an act without a text has nothing to parse")


def describe(request: Request, facts: Facts | None, config: str) -> dict[str, Any]:
    """An act as a plug-in is told of it. Keys are only added, never renamed."""
    return {
        "act": request.act,
        "operator": request.actor.operator,
        "kind": request.actor.kind,
        "attached": request.actor.attached,
        "key": request.actor.key,
        "session": request.session,
        "name": request.name,
        "epoch": request.epoch,
        "cwd": request.cwd,
        "project": request.project,
        "home": request.home,
        "shell": request.shell,
        "foreground": request.foreground,
        "contained": request.contained,
        "details": dict(request.details),
        "config": config,
        "text": request.content.decode("utf-8", "replace") if request.act in TEXT_ACTS else None,
        "shaped": [
            {"kind": s.kind, "name": s.name, "operator": s.actor, "sure": s.sure}
            for s in request.shaped
        ],
        "unresolvable": [{"code": r.code, "detail": r.detail} for r in facts.unresolvable]
        if facts is not None
        else [],
        "commands": []
        if facts is None
        else [
            {
                "name": c.name,
                "words": [w.text for w in c.words],
                "flags": sorted(c.flags),
                "paths": sorted({p.path for item in c.paths for p in item}),
                "writes": sorted({p.path for item in c.writes for p in item}),
                "network": c.network,
                "via": list(c.via),
                "fed_by": list(c.fed_by),
                "background": c.background,
                "inside": c.inside,
                "shown": c.shown,
            }
            for c in facts.commands
        ],
    }
