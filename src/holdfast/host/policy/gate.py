"""The gate at input depth: turns an act into a decision, in time and off the event loop.

An act without text (a key of a person, a resize) is decided at once by rules alone, in
microseconds, if there are no plug-ins to ask. Every other act goes to a thread: the parser is a
process, links are followed on the file system, plug-ins are processes (host/policy/plugins.py). The
loop waits JUDGE_S for the answer. After that the act is refused, and a blocked thread is left
behind. Each operator has a quota of threads per session (host/runtime/threads.py). While all these
threads are blocked, the operator's acts in that session are refused at once. An error means refuse,
and the reason names the error.

Before every act the policy file's identity is checked (inode, size, times), and a changed file is
read again. A file that is unreadable or invalid, or that other accounts can write, refuses every
act except seize, halt and looking. Without a file the default policy is in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import stat
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NoReturn

from holdfast.core.originators.originators import Shaped
from holdfast.core.originators.shell_authors import View
from holdfast.core.policy import execution, policy_file
from holdfast.core.policy import policy as policies
from holdfast.core.policy.act_facts import TEXT_ACTS, facts_of
from holdfast.core.policy.approvals import state_digest
from holdfast.core.policy.approved_commands import NOTHING, Cleared, patterns
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.execution import for_each
from holdfast.core.policy.policy import UNGATED, Decision, Policy, Verdict, combine
from holdfast.core.policy.policy_file import BadPolicy
from holdfast.core.prometheus_text import Histogram
from holdfast.core.shellcode.facts import Facts
from holdfast.core.shellcode.programs import programs
from holdfast.host.policy.links import links_followed, links_inside, real
from holdfast.host.policy.plugins import Plugin, Worker
from holdfast.host.policy.shfmt import Parser
from holdfast.host.runtime.threads import Quota, Stuck, Threads
from holdfast.model.errors import Unavailable

JUDGE_S: Final = 8.0  # for a whole judgement; the parser and the plug-ins have shorter limits
SHELL_ACTS: Final = ("run", "line", "paste")  # acts with a text that uses the state of a shell
JUDGING_EACH: Final = 4  # acts judged at a time per operator and session
JUDGING_ALL: Final = 12  # ... per operator in all sessions
EXECS_KEPT: Final = 4096
MOUNTS_S: Final = 2.0  # how long the list of mounted devices is believed
CEDAR_FILE: Final = "policy.cedar"
CEDAR_TARGET: Final = "holdfast.host.policy.cedar:judge"
_PARTITION: Final = re.compile(
    r"(/dev/(?:sd[a-z]+|vd[a-z]+|xvd[a-z]+|hd[a-z]+))\d+$"
    r"|(/dev/(?:nvme\d+n\d+|mmcblk\d+|loop\d+|nbd\d+))p\d+$"
)
UsedState = Callable[[Request, Facts | None, View | None], tuple[Shaped, ...]]
Prepare = Callable[[], Request | Decision]


class Gate:
    """One per host, on the loop's thread.

    A plug-in's worker process dies with the thread that started it. The threads of the pool stay.
    """

    def __init__(
        self,
        policy_file: str | None,
        plugins: Sequence[Plugin] = (),
        parser: Parser | None = None,
        judge_s: float = JUDGE_S,
        worker: Callable[[Plugin], Worker] = Worker,
        on_policy: Callable[[str], None] | None = None,
        private: tuple[str, ...] = (),
        used_state: UsedState = lambda request, facts, view: request.shaped,
    ) -> None:
        """`on_policy` is called on the loop with the version of a changed policy.

        `private`: directories that hold keys. `used_state` returns the state that an act would use
        and that an operator changed; the gate calls it in a thread.
        """
        programs()  # parsed now (17 ms), not while the loop judges the first act
        self.policy_file = policy_file
        self.parser = parser or Parser()
        self.judge_s = judge_s
        self.private = private
        self.on_policy, self.used_state = on_policy, used_state
        self._make_worker = worker
        self._workers = {p: worker(p) for p in plugins}
        self._threads = Threads("gate")
        self._file_identity: tuple[int, ...] | None = None
        self._policy: Policy | None = None
        self._version = ""
        self._mounted: tuple[float, tuple[str, ...]] = (-1e9, ())
        self.decisions: Counter[tuple[str, str]] = Counter()  # by act and verdict
        self.took = Histogram()
        self._index: tuple[Policy, execution.Index] | None = None
        # Decisions on execs that depend only on the key.
        self._execs: OrderedDict[tuple[object, ...], Decision] = OrderedDict()
        for made in self._workers.values():
            self._threads.pool.submit(made.start)

    # ------------------------------------------------------------ policy

    @property
    def policy(self) -> Policy:
        """The policy in force, read again if the policy file changed."""
        identity = _identity(self.policy_file)
        if self._policy is not None and identity == self._file_identity:
            return self._policy
        before, self._file_identity = self._version, identity
        self._policy = load(self.policy_file)
        self._update_cedar()
        plugins = (f"{p.name} {p.target} {p.version}" for p in self._workers)
        text = "\0".join([self._policy.version, *plugins])
        self._version = policies.fingerprint(text.encode())
        if before not in ("", self._version) and self.on_policy is not None:
            self.on_policy(self._version)
        return self._policy

    @property
    def version(self) -> str:
        """The version of the rules and plug-ins, to which approvals are bound. Checks the file."""
        _ = self.policy
        return self._version

    @property
    def _in_force(self) -> tuple[Policy, str, list[Worker]]:
        """The policy, its version and the plug-ins, as they are now."""
        return self.policy, self._version, list(self._workers.values())

    def _update_cedar(self) -> None:
        """Cedar is a plug-in if CEDAR_FILE is in the directory of the policy file."""
        path = _sibling(self.policy_file, CEDAR_FILE)
        wanted = (
            Plugin("cedar", CEDAR_TARGET, str(_identity(path)))
            if path is not None and os.path.lexists(path)
            else None
        )
        for old in [p for p in self._workers if p.target == CEDAR_TARGET and p != wanted]:
            self._threads.pool.submit(self._workers.pop(old).close)
        if wanted is not None and wanted not in self._workers:
            self._workers[wanted] = self._make_worker(wanted)
            self._threads.pool.submit(self._workers[wanted].start)

    # ------------------------------------------------------------ judging

    def quick(self, request: Request) -> Decision | None:
        """The decision, if neither parser nor plug-ins are needed; else None: call `judge`."""
        if request.act in UNGATED:
            return Decision(
                Verdict.ALLOW, "", "only the grant decides about it", request.act, "gate"
            )
        policy = self.policy
        if self._workers or (
            request.act in TEXT_ACTS and (request.content or request.act != "new")
        ):
            return None
        return replace(policy.decide(request, facts_of(request, _no_parser)), version=self._version)

    async def judge(self, request: Request) -> Decision:
        """The decision. A defect of the act, the policy or a plug-in is a refusal, no exception."""
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
                    shares = _quotas(request.actor.operator, request.session)
                    decision = await self._threads.do(shares, self._work, request, *self._in_force)
            return decision
        except Exception as e:
            return self._refuse(self._failed(e))

    async def facts_in_thread(self, request: Request) -> Facts | None:
        """The facts about an act. Raises Unavailable if they cannot be found in time."""
        try:
            async with asyncio.timeout(self.judge_s):
                return await self._threads.do(
                    _quotas(request.actor.operator, request.session), self.facts, request
                )
        except OSError as e:  # a TimeoutError too
            raise Unavailable(
                self._failed(e), "check the file systems that it names: `holdfast graph`"
            ) from e

    def _failed(self, error: Exception) -> str:
        if isinstance(error, Stuck):
            return (
                "all threads of the gate for this session wait for a file system or a parser "
                "that does not answer"
            )
        if isinstance(error, TimeoutError):
            return f"the gate did not decide within {self.judge_s:g} s"
        return f"the gate failed: {type(error).__name__}: {error}"[:300]

    # ------------------------------------------------------------ at exec depth

    @property
    def index(self) -> execution.Index | None:
        """The programs that no rule concerns; None while plug-ins are asked about every program."""
        found = self._index_of(self.policy)
        return None if self._workers else found

    def _index_of(self, policy: Policy) -> execution.Index:
        known = self._index
        if known is None or known[0] is not policy:
            known = self._index = (policy, execution.Index(policy))
        return known[1]

    def quick_exec(
        self, request: Request, approved: Cleared, actors: Sequence[Actor]
    ) -> tuple[Request, Decision] | None:
        """As `judge_exec`, if neither parser, plug-ins nor file system are needed; else None."""
        policy = self.policy
        if self._workers:
            return None
        try:
            return for_each(request, actors, lambda each: self._quick(policy, each, approved))
        except _NeedsThread:
            return None

    def _quick(self, policy: Policy, request: Request, approved: Cleared) -> Decision:
        key = (
            request.actor,
            request.session,
            request.content,
            tuple(request.details.items()),
            request.cwd,
            request.shaped,
            request.walls,
            approved,
            self._version,
        )
        if (known := self._execs.get(key)) is not None:
            self._execs.move_to_end(key)
            return known
        request = replace(request, mounted=self._mounts(), private=self.private)
        facts = facts_of(request, _parser_needed, _links_needed) or Facts()
        decision = execution.decide(policy, request, facts, approved)
        decision = self._execs[key] = replace(decision, version=self._version)
        if len(self._execs) > EXECS_KEPT:
            self._execs.popitem(last=False)
        return decision

    async def judge_exec(
        self, prepare: Prepare, approved: Cleared, actors: Sequence[Actor], session: str
    ) -> tuple[Request | None, Decision]:
        """The judged request and the decision on an exec.

        `prepare` runs in a thread, may wait for file systems, and returns the request, or a
        decision if no judgement is needed. `approved`: the answers to the act behind the exec.
        `actors` are all operators behind the exec. The exec is judged for each of them, and the
        strictest decision is returned with its request.
        """
        try:
            async with asyncio.timeout(self.judge_s):
                shares = _quotas(actors[0].operator, session)
                return await self._threads.do(
                    shares, self._work_exec, prepare, approved, actors, *self._in_force
                )
        except Exception as e:
            return None, self._refuse(self._failed(e))

    def _work_exec(
        self,
        prepare: Prepare,
        approved: Cleared,
        actors: Sequence[Actor],
        policy: Policy,
        version: str,
        workers: list[Worker],
    ) -> tuple[Request | None, Decision]:
        request = prepare()
        if isinstance(request, Decision):
            return None, request
        return for_each(
            request, actors, lambda each: self._work(each, policy, version, workers, approved)
        )

    def facts(self, request: Request) -> Facts | None:
        """In a thread: the facts about an act. Links are followed as the session sees them.

        For a contained session that is still to be made no link is followed.
        """
        if not request.contained:
            return facts_of(request, self.parser, links_followed())
        if request.first is None or request.act not in TEXT_ACTS:
            return facts_of(request, self.parser)
        with links_inside(*request.first, request.cwd) as real:
            return facts_of(request, self.parser, real)

    def shaped(self, request: Request, view: View) -> tuple[Shaped, ...]:
        """In a thread: the state in `view` that a text would use and that operators shaped."""
        return self.used_state(request, self.facts(request), view)

    def _work(
        self,
        request: Request,
        policy: Policy,
        version: str,
        workers: list[Worker],
        approved: Cleared = NOTHING,
    ) -> Decision:
        """In a thread, with the policy that was in force when the act came."""
        if request.act in TEXT_ACTS and not request.mounted:
            request = replace(request, mounted=self._mounts(), private=self.private)
        facts = self.facts(request)
        if request.session and (
            request.act in SHELL_ACTS
            or (
                request.act == execution.ACT
                and (workers or self._index_of(policy).looks(request.actor))
            )
        ):
            request = replace(request, shaped=self.used_state(request, facts, None))
        others = list[Decision]()
        if workers and not policy.broken:
            question = describe(
                request, facts, os.path.dirname(self.policy_file) if self.policy_file else ""
            )
            others = [worker.judge(question, version) for worker in workers]
        if request.act == execution.ACT:
            decision = replace(
                execution.decide(policy, request, facts or Facts(), approved, others),
                version=version,
            )
        else:
            opinions = [replace(o, version=version) for o in policy.opinions(request, facts)]
            decision = combine(opinions, others)
        said = seen_facts(facts, request.shaped)
        return replace(
            decision,
            seen=state_digest(said) if said else b"",
            seen_facts=said if decision.verdict is Verdict.ASK else "",
            commands=patterns(facts, request.cwd, request.directory)
            if decision.verdict is Verdict.ASK
            else (),
            shaped=request.shaped,
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
        """Ends the workers. Blocked threads are not waited for."""
        for running in self._workers.values():
            running.close()
        self._threads.close()


# ---------------------------------------------------------------- the policy file


def load(path: str | None) -> Policy:
    """The policy of this file. No file: the default policy. Unusable: a policy that refuses."""
    if path is None:
        return policy_file.default()
    try:
        with open(path, "rb") as f:
            info = os.fstat(f.fileno())
            data = f.read(policy_file.POLICY_BYTES_MAX + 1)
    except FileNotFoundError:
        return policy_file.default()
    except OSError as e:
        return policies.broken(f"{path}: {e.strerror}", "file")
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return policies.broken(
            f"{path}: other accounts can write it (chmod go-w)", "file", policies.fingerprint(data)
        )
    try:
        return policy_file.parse(data.decode(), path)
    except UnicodeDecodeError:
        return policies.broken(f"{path}: it is not UTF-8", "file", policies.fingerprint(data))
    except BadPolicy as e:
        return policies.broken(e.message, "file", policies.fingerprint(data))


def _identity(path: str | None) -> tuple[int, ...]:
    """Changes when the policy file or the Cedar file in the same directory changes."""
    if path is None:
        return ()
    found = list[int]()
    for name in (path, _sibling(path, CEDAR_FILE) or path):
        try:
            info = os.stat(name)
            found += [
                info.st_ino,
                info.st_dev,
                info.st_size,
                info.st_mtime_ns,
                info.st_ctime_ns,
                info.st_mode,
                info.st_uid,
            ]
        except OSError as e:
            found.append(e.errno or 0)
    return tuple(found)


@functools.cache
def _sibling(path: str | None, name: str) -> str | None:
    return None if path is None else os.path.join(os.path.dirname(path), name)


# ---------------------------------------------------------------- files and devices


def mounted(file: str = "/proc/self/mounts") -> tuple[str, ...]:
    """Devices with a mounted file system, and the disks of mounted partitions."""
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
    """Fingerprint of the files that an act names, behind links, and of the files' authors.

    An approval is for these files and authors. Later the same text may mean other files.
    """
    return state_digest(said) if (said := seen_facts(facts, shaped)) else b""


def seen_facts(facts: Facts | None, shaped: Sequence[Shaped] = ()) -> str:
    """The text behind that fingerprint; empty if the act names no file and uses no state."""
    if facts is None and not shaped:
        return ""
    named = [] if facts is None else [(c.name, c.paths, c.writes) for c in facts.commands]
    return repr((named, sorted(map(repr, shaped))))


def _quotas(operator: str, session: str) -> tuple[Quota, ...]:
    return Quota((operator, session), JUDGING_EACH), Quota(operator, JUDGING_ALL)


class _NeedsThread(BaseException):
    """A parser or the file system is needed. Not an Exception, which the walk may catch."""


def _parser_needed(text: str, dialect: str) -> NoReturn:
    raise _NeedsThread


def _links_needed(path: str) -> NoReturn:
    raise _NeedsThread


def _no_parser(text: str, dialect: str) -> NoReturn:
    raise AssertionError("an act without a text has nothing to parse")


def describe(request: Request, facts: Facts | None, config: str) -> dict[str, object]:
    """The description of an act for plug-ins. Keys may be added, never renamed."""
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
