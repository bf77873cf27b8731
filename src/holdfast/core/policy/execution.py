"""The gate at exec depth (P4): what a policy says of a program that is about to run, whoever caused it and however deep. Pure.

At input depth a text is judged, and much of it cannot be known; here the kernel says what will run, word by word. So the same rules speak, read more plainly:

1. Rules that refuse or ask speak of an exec as of the same command typed (command, flags, paths, writes ...). What no rule speaks of is allowed: the act that caused it was judged before it began.
   Rules that allow say nothing here, for nothing has to be allowed.
2. A rule that asks must be met for certain. `sh -c 'rm "$x"'` may mean anything, but its `rm` is an exec of its own a moment later, with its words. For the same reason rules about what cannot be
   known (`unresolvable`) are for input depth. Words that could not be read are the exception: then whatever may be meant is asked about, or refused. Of a program whose very name cannot be
   read nothing is let through.
3. A rule that names the act `exec` is for this depth alone; one that names other acts is not for it.
4. What counts is the file that is executed, not what it is told its name is. A name that differs is judged too (programs like busybox go by it), and so is the program that is given to the
   dynamic linker, and the one in the first line of a script (`#!`), which the kernel runs without another exec. A copy under another name is another program: rules about its paths still speak of it, rules about its name do not.
5. Text in the arguments of a shell (`sh -c`) is judged with it: a redirection or a builtin in it never becomes an exec.

`Index` answers one question before all this, in microseconds: whether any rule could speak of that program at all, for that kind of actor.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from holdfast.core import effects, originators, wrappers
from holdfast.core.conditions import Actor, Look, Request, meets
from holdfast.core.facts import Facts, Parse, Surroundings, of_argv
from holdfast.core.interpreters import SHELLS
from holdfast.core.policy import Decision, Policy, Rule, Verdict, strictest, units
from holdfast.core.reasons import Reason
from holdfast.core.words import Word

ACT: Final = "exec"
ALLOWED: Final = "no rule speaks of it"
FILE: Final = "file"  # of details: what the path leads to, if it is a link
SCRIPT: Final = "script"  # of details: its first line says that this runs it, as it is named there
SCRIPT_FILE: Final = "script_file"  # of details: what that leads to, if it is a link
UNREAD: Final = "unread"  # of details: its words could not be read, and why
_BINS: Final = ("/usr/bin/", "/bin/", "/usr/sbin/", "/sbin/", "/usr/local/bin/", "/usr/local/sbin/")
SYSTEM: Final = (
    *_BINS,
    "/usr/lib/",
    "/usr/lib64/",
    "/usr/libexec/",
    "/lib/",
    "/lib64/",
)  # where links are the machine's own
_LINKERS: Final = ("ld-linux", "ld-musl", "ld.so", "ld64.so")
_LINKER_VALUED: Final = frozenset(
    (
        "--library-path",
        "--preload",
        "--argv0",
        "--audit",
        "--inhibit-rpath",
        "--glibc-hwcaps-prepend",
        "--glibc-hwcaps-mask",
    )
)
_WRITERS: Final = frozenset(
    (*effects.SPECS, "dd", "sed", "find", "tar", "git", "perl", "sort", "tee", "zip", "7z", "ar")
)
_BUILTINS: Final = frozenset(
    (
        "kill",
        "cd",
        "echo",
        "printf",
        "exec",
        "eval",
        "source",
        ".",
        "trap",
        "ulimit",
        "umask",
        "set",
        "export",
        "alias",
    )
)
_NEED_TEXT: Final = (
    "via",
    "fed_by",
    "assigns",
    "background",
)  # met only by what is written in a wrapper's or a shell's arguments
_MORE: Final = Word(None, "...", why="more")
_NEED_WRITES: Final = ("writes", "writes_under")
_SHAPED: Final = ("shaped", "shaped_known", "shaped_by")


class Program(NamedTuple):
    """What is about to run, as the kernel has it."""

    path: str  # the file, as it was named by whoever executes it, made absolute
    argv: tuple[str, ...]
    unread: str = ""  # why its words are not known
    way: str = ""  # by which this process can open what the kernel would: a path with links and dots in it may lead elsewhere when it is tidied, and a descriptor's may lead nowhere

    @property
    def argv0(self) -> str:
        return self.argv[0] if self.argv else ""

    @property
    def content(self) -> bytes:
        """As a request has it: the file, then the arguments."""
        return "\0".join((self.path, *self.argv[1:])).encode("utf-8", "surrogateescape")

    @property
    def details(self) -> dict[str, str]:
        found = (
            {"argv0": legible(self.argv0)}
            if self.argv and _base(self.argv0) != _base(self.path)
            else {}
        )
        return {**found, UNREAD: self.unread} if self.unread else found


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def legible(text: str) -> str:
    """Bytes that are no text, escaped."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def name_of(path: str) -> str:
    """What rules know it by: bare if it stands in a directory of the system, else the path."""
    head, slash, tail = path.rpartition("/")
    return tail if head + slash in _BINS else path


def show(content: bytes, details: Mapping[str, str]) -> str:
    """For people, to be escaped: the exact words."""
    words = content.decode("utf-8", "surrogateescape").split("\0")
    more = [f"called {details['argv0']}"] if "argv0" in details else []
    more += [f"which is {details[FILE]}"] if FILE in details else []
    more += [f"a script that {details[SCRIPT]} runs"] if SCRIPT in details else []
    more += [f"and words that are not known: {details[UNREAD]}"] if UNREAD in details else []
    return shlex.join(words) + (f" ({'; '.join(more)})" if more else "")


# ---------------------------------------------------------------- facts


def facts(content: bytes, details: Mapping[str, str], parse: Parse, around: Surroundings) -> Facts:
    """Of the file with its arguments, and of whatever else these words may stand for."""
    words = content.decode("utf-8", "backslashreplace").split(
        "\0"
    )  # one word that is no text makes nothing unknown of the others
    found = of_argv(words, parse, around)
    for other in (
        *_others(words, _called(words[0], details), details.get(FILE, "")),
        *_scripts(words, details),
    ):
        found.commands += of_argv(other, parse, around).commands
    if UNREAD in details:
        found.commands = [
            replace(c, words=(_MORE,), open_paths=True, reasons=(*c.reasons, Reason("arguments")))
            for c in found.commands
        ]
        found.reasons.append(Reason("size", details[UNREAD]))
    return found


def _called(path: str, details: Mapping[str, str]) -> str:
    """The name that it is told is its own, if that is another than its file's: also that of a link to a program that goes by its name. (A script is told its path.)"""
    if "argv0" in details:
        return _base(details["argv0"]).lstrip("-")
    name = _base(path)
    return (
        name
        if FILE in details
        and SCRIPT not in details
        and name not in (_base(details[FILE]), name_of(path))
        else ""
    )


def _others(words: Sequence[str], name: str, file: str) -> list[list[str]]:
    found = [[file, *words[1:]]] if file else []
    if name:
        found.append([name, *words[1:]])
    if _base(words[0]).startswith(_LINKERS):
        at = 1
        while at < len(words) and words[at].startswith("-"):
            at += 2 if words[at] in _LINKER_VALUED else 1
        if at < len(words):
            found.append(list(words[at:]))
    return found


def _scripts(words: Sequence[str], details: Mapping[str, str]) -> list[list[str]]:
    by = shlex.split(details.get(SCRIPT, ""))
    return (
        [
            [name, *by[1:], *words]
            for name in dict.fromkeys((by[0], details.get(SCRIPT_FILE, by[0])))
        ]
        if by
        else []
    )


# ---------------------------------------------------------------- rules


def speaks(rule: Rule) -> bool:
    """Whether it is for this depth."""
    if rule.verdict not in (Verdict.ASK, Verdict.REFUSE):
        return False
    if "act" in rule.when:
        return ACT in rule.when["act"]
    return rule.when.get("unresolvable", "any") in ("any", False)


def _matches(rule: Rule, look: Look) -> bool:
    if not _is_for(rule, look.request.actor):
        return False
    answer = meets(rule.when, look)
    unread = UNREAD in look.request.details
    if rule.verdict is Verdict.ASK:
        met = answer.maybe if unread or "act" in rule.when else answer.sure
    else:
        met = (
            answer.maybe
            if unread and "command" in rule.when and not look.unit.unread
            else answer.sure
        )
    if not met:
        return False
    return not any(meets(table, look).all for table in rule.unless)


def _is_for(rule: Rule, actor: Actor) -> bool:
    return not (
        (rule.kinds and actor.kind not in rule.kinds)
        or (rule.operators and actor.operator not in rule.operators)
        or (rule.attached is not None and actor.attached is not rule.attached)
    )


def decide(
    policy: Policy,
    request: Request,
    found: Facts,
    passed: frozenset[str] = frozenset(),
    others: Sequence[Decision] = (),
) -> Decision:
    """The verdict. `passed`: rules that ask and were approved for the act that caused this; `others`: what plug-ins say."""
    if policy.broken:
        return Decision(
            Verdict.REFUSE,
            "",
            f"the policy cannot be used: {policy.broken}",
            ACT,
            policy.source,
            policy.version,
        )
    if request.content == b"?":
        return Decision(
            Verdict.REFUSE,
            "",
            f"it cannot be seen what it would run: {request.details.get(UNREAD, '')}",
            ACT,
            policy.source,
            policy.version,
        )
    said = [
        d
        for d in others
        if d.verdict in (Verdict.ASK, Verdict.REFUSE)
        and not (d.verdict is Verdict.ASK and d.rule in passed)
    ]
    rules = [
        rule
        for rule in policy.rules
        if speaks(rule) and not (rule.verdict is Verdict.ASK and rule.name in passed)
    ]
    for unit in units(request, found):
        look = Look(request, unit)
        said += [
            Decision(
                rule.verdict,
                rule.name,
                rule.because,
                unit.shown,
                rule.source,
                policy.version,
                tuple(str(r) for r in unit.reasons),
                rule.by,
                rule.approvals,
            )
            for rule in rules
            if _matches(rule, look)
        ]
    if not said:
        return Decision(Verdict.ALLOW, "", ALLOWED, ACT, policy.source, policy.version)
    return replace(strictest(said), version=policy.version)


# ---------------------------------------------------------------- which programs no rule speaks of


class _Words(NamedTuple):
    """Of the rules for one actor."""

    any: bool  # one may be met by any program
    names: frozenset[str]
    begins: tuple[str, ...]
    writes: bool  # one is met by whatever writes something
    text: bool  # one is met only by what stands in the arguments of a wrapper or a shell
    shaped: frozenset[str]  # kinds of state that rules ask about, if others shaped it


class Index:
    """Of one policy: which programs its rules could speak of."""

    def __init__(self, policy: Policy) -> None:
        self.broken = bool(policy.broken)
        self._rules = tuple(rule for rule in policy.rules if speaks(rule))
        self._of = functools.lru_cache(256)(self._words)

    def silent(self, actor: Actor, path: str, argv: Sequence[str]) -> bool:
        """Whether no rule speaks of it, whatever its words are: then nothing more has to be known."""
        words = self._of(actor.kind, actor.operator, actor.attached)
        if self.broken or words.any:
            return False
        name = name_of(path)
        base = _base(argv[0]).lstrip("-") if argv else ""
        for one in (name, base) if base and base != name.rpartition("/")[2] else (name,):
            if (
                one in words.names
                or one.startswith(words.begins)
                or (words.writes and (one in _WRITERS or one.startswith("mkfs")))
            ):
                return False
            if one in SHELLS:
                if (
                    words.text
                    or not words.names.isdisjoint(_BUILTINS)
                    or (words.writes and any(">" in word for word in argv[1:]))
                ):
                    return False
            elif one in wrappers.WRAPPERS:
                return False
        return not _base(path).startswith(_LINKERS)

    def silent_on_script(self, actor: Actor, by: Sequence[str], file: str) -> bool:
        """The same of what runs a script: `by`, which is `file`. What `env` finds for it is an exec of its own."""
        found = (
            by[1]
            if _base(by[0]) == "env"
            and len(by) == 2
            and not by[1].startswith("-")
            and "=" not in by[1]
            else by[0]
        )
        return (
            self.silent(actor, found, (found,))
            and (found is not by[0] or self.silent(actor, file, (file,)))
            and self._unnamed(actor, _base(by[0]))
        )

    def _unnamed(self, actor: Actor, name: str) -> bool:
        words = self._of(actor.kind, actor.operator, actor.attached)
        return name not in words.names and not (words.begins and name.startswith(words.begins))

    def looks(self, actor: Actor, kinds: Collection[str] = originators.KINDS) -> bool:
        """Whether a rule asks who shaped what it runs on, and others have shaped something of these kinds."""
        return not self._of(actor.kind, actor.operator, actor.attached).shaped.isdisjoint(kinds)

    def _words(self, kind: str, operator: str, attached: bool) -> _Words:
        actor, names, begins, anything, writes, text = (
            Actor(operator, "", kind, attached),
            set[str](),
            list[str](),
            False,
            False,
            False,
        )
        shaped = set[str]()
        for rule in self._rules:
            if not _is_for(rule, actor):
                continue
            when: Mapping[str, Any] = rule.when
            asked = [key for key in _SHAPED if key in when]
            shaped |= {
                kind
                for key in asked
                for kind in (when[key] if key != "shaped_by" else originators.KINDS)
            }
            written = any(
                when.get(key) for key in _NEED_TEXT
            )  # `background = false` is true of every program
            text = text or written
            if "command" in when:
                for entry in when["command"]:
                    name = entry.split()[0]
                    if name.endswith("*"):
                        begins.append(name[:-1])
                    else:
                        names.add(name)
            elif any(key in when for key in _NEED_WRITES):
                writes = True
            elif not asked and not written:
                anything = True
        return _Words(anything, frozenset(names), tuple(begins), writes, text, frozenset(shaped))
