"""The gate at exec depth (P4): the verdict of a policy on a program that is about to run. Pure.

It does not matter which act caused the exec, or through how many processes. At input depth a text
is judged, and a large part cannot be known. Here the kernel names the program, word by word. So
the same rules apply, with a simpler reading:

1. Rules that refuse or ask apply to an exec as to the same command typed (command, flags, paths,
   writes ...). A program that no rule covers is allowed, because the causing act was judged
   before it began. Rules that allow have no effect here.
2. A rule that asks must apply for certain. `sh -c 'rm "$x"'` may mean anything, but the `rm`
   becomes a separate exec a moment later, with all words. For the same reason, rules about
   `unresolvable` are for input depth. Words that could not be read are the exception: then a rule
   that may apply asks or refuses. A program whose very name cannot be read is refused.
3. A rule that names the act `exec` is for this depth alone. A rule that names other acts is not.
4. The executed file counts, not the name that it is given. A differing name is judged too, because
   programs like busybox act on it. Also judged are the program given to the dynamic linker and the
   program in the first line of a script (`#!`), which the kernel runs without another exec. A copy
   under a new name is a different program: rules about paths apply, rules about the name do not.
5. Text in the arguments of a shell (`sh -c`) is judged with the shell, because a redirection or a
   builtin in it never becomes an exec.
6. The `commands` of the causing operator's envelope come first (`command_limit.py`). No rule and no
   approval widens them.

`Index` answers one question before all this, in microseconds: whether any rule could cover that
program at all, for that kind of actor.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from holdfast.core.originators import originators
from holdfast.core.policy import command_limit
from holdfast.core.policy.approved_commands import NOTHING, Cleared
from holdfast.core.policy.command_limit import BINS
from holdfast.core.policy.conditions import EXEC, Actor, Look, Request, meets
from holdfast.core.policy.policy import Decision, Policy, Rule, Verdict, strictest, units
from holdfast.core.shellcode.facts import Command, Facts, Parse, Surroundings, of_argv
from holdfast.core.shellcode.interpreters import is_shell
from holdfast.core.shellcode.places import Place
from holdfast.core.shellcode.programs import programs
from holdfast.core.shellcode.reasons import Reason
from holdfast.core.shellcode.words import Word

ACT: Final = EXEC
ALLOWED: Final = "no rule covers it"
# Keys of `Request.details`:
FILE: Final = "file"  # the file behind the path, if the path is a link
SCRIPT: Final = "script"  # the interpreter, as the first line of the script names it
SCRIPT_FILE: Final = "script_file"  # the file behind that interpreter, if it is a link
UNREAD: Final = "unread"  # why the words could not be read
ENVIRONMENT: Final = "environment"  # the variables that may redirect the program, for display
_LINKERS: Final = ("ld-linux", "ld-musl", "ld.so", "ld64.so")
# Conditions that only the text in the arguments of a wrapper or a shell can meet.
_NEED_TEXT: Final = ("via", "fed_by", "assigns", "background")
_QUOTES: Final = {ord(c): None for c in "'\"\\\n"}
_MORE: Final = Word(None, "...", why="more")
_NEED_WRITES: Final = ("writes", "writes_under")
_SHAPED: Final = ("shaped", "shaped_known", "shaped_by")


class Program(NamedTuple):
    """A program that is about to run, as the kernel describes it."""

    path: str  # the file as the caller of exec named it, made absolute
    argv: tuple[str, ...]
    unread: str = ""  # why its words are not known
    # The path by which this process can open the same file as the kernel. Normalising a path with
    # links and dots may lead elsewhere, and the path of a descriptor may lead nowhere.
    way: str = ""

    @property
    def argv0(self) -> str:
        return self.argv[0] if self.argv else ""

    @property
    def content(self) -> bytes:
        """The content of a request: the file, then the arguments."""
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
    """Escape bytes that are not text."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def name_of(path: str) -> str:
    """Return the name that rules use: bare in a directory of the system, else the path."""
    head, slash, tail = path.rpartition("/")
    return tail if head + slash in BINS else path


def show(content: bytes, details: Mapping[str, str]) -> str:
    """Return the exact words for display; the caller escapes them.

    Every part that the caller of exec chose is quoted: no name can look like another part.
    """
    words = content.decode("utf-8", "surrogateescape").split("\0")
    more = [f"called {shlex.quote(details['argv0'])}"] if "argv0" in details else []
    more += [f"which is {shlex.quote(details[FILE])}"] if FILE in details else []
    more += [f"a script that {details[SCRIPT]} runs"] if SCRIPT in details else []
    more += [f"with {details[ENVIRONMENT]}"] if ENVIRONMENT in details else []
    more += [f"and arguments that are not known: {details[UNREAD]}"] if UNREAD in details else []
    return shlex.join(words) + (f" ({'; '.join(more)})" if more else "")


# ---------------------------------------------------------------- facts


def facts(content: bytes, details: Mapping[str, str], parse: Parse, around: Surroundings) -> Facts:
    """Return the facts about the file with its arguments, and about other readings of the words."""
    # escaped, so that a word that is not text leaves the other words known
    words = content.decode("utf-8", "backslashreplace").split("\0")
    found = of_argv(words, parse, around)
    for other in (
        *_others(words, _called(words[0], details), details.get(FILE, "")),
        *_scripts(words, details),
    ):
        found.commands += of_argv(other, parse, around).commands
    # What a shell evaluates is judged when it starts a program, which is an exec of its own.
    found.reasons = [r for r in found.reasons if r.code != "arithmetic"]
    found.commands = [_without_dots(command) for command in found.commands]
    if UNREAD in details:
        found.commands = [
            replace(c, words=(_MORE,), open_paths=True, reasons=(*c.reasons, Reason("arguments")))
            for c in found.commands
        ]
        found.reasons.append(Reason("size", details[UNREAD]))
    return found


def _without_dots(command: Command) -> Command:
    """Take `a/..` as the directory of `a`, which is certain unless `a` is a link.

    At exec depth only a certain place is asked about; a name and `..` must not evade that.
    """

    def certain(items: tuple[tuple[Place, ...], ...]) -> tuple[tuple[Place, ...], ...]:
        return tuple(tuple(replace(place, sure=True) for place in item) for item in items)

    if all(place.sure for item in (*command.paths, *command.writes) for place in item):
        return command
    return replace(command, paths=certain(command.paths), writes=certain(command.writes))


def _called(path: str, details: Mapping[str, str]) -> str:
    """Return the name by which the program was called, or "" if the file has the same name.

    A program with several links (busybox) acts on this name. A script gets its path instead.
    """
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
            at += 2 if words[at] in programs().names.linker_values else 1
        if at < len(words):
            found.append(list(words[at:]))
    return found


def _scripts(words: Sequence[str], details: Mapping[str, str]) -> list[list[str]]:
    by = shlex.split(details.get(SCRIPT, ""))
    names = dict.fromkeys((by[0], details.get(SCRIPT_FILE, by[0]))) if by else ()
    return [[name, *by[1:], *words] for name in names]


# ---------------------------------------------------------------- rules


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


def _outside(request: Request) -> str:
    """Say why an envelope's limit refuses the program; "" if none does."""
    if not request.limits:
        return ""
    path = request.content.decode("utf-8", "backslashreplace").split("\0")[0]
    file = request.details.get(FILE, "")
    shown = f"{name_of(path)} ({file})" if file else name_of(path)
    names = () if UNREAD in request.details else request.names
    return command_limit.refusal(
        request.limits, names, shown, request.variables, request.other_files
    )


def decide(
    policy: Policy,
    request: Request,
    found: Facts,
    cleared: Cleared = NOTHING,
    others: Sequence[Decision] = (),
) -> Decision:
    """Return the verdict.

    `cleared`: what was approved for the causing act; `others` are decisions of plug-ins.
    """
    if policy.broken:
        return policy.unusable(ACT)
    if request.content == b"?":
        why = f"the program could not be read: {request.details.get(UNREAD, '')}"
        return policy.says(Verdict.REFUSE, why, ACT)
    if (why := _outside(request)) != "":
        return Decision(
            Verdict.REFUSE, command_limit.RULE, why, ACT, command_limit.SOURCE, policy.version
        )
    parts = units(request, found)
    silent, uses = cleared.cover(parts, request)
    covered = all(silent)
    said = [
        d
        for d in others
        if d.verdict in (Verdict.ASK, Verdict.REFUSE)
        and not (covered and d.verdict is Verdict.ASK and d.rule in cleared.rules)
    ]
    rules = [rule for rule in policy.rules if rule.at_exec]
    for unit, answered in zip(parts, silent, strict=True):
        look = Look(request, unit)
        said += [
            policy.of(rule, unit)
            for rule in rules
            if not (answered and rule.verdict is Verdict.ASK and rule.name in cleared.rules)
            and _matches(rule, look)
        ]
    if not said:
        return replace(policy.says(Verdict.ALLOW, ALLOWED, ACT), covered=covered, uses=uses)
    return replace(strictest(said), version=policy.version)


# ---------------------------------------------------------------- several operators


def for_each(
    request: Request, actors: Sequence[Actor], judge: Callable[[Request], Decision]
) -> tuple[Request, Decision]:
    """Judge an exec as a request of each operator behind it.

    Return the strictest decision with the request that it is about. The host cannot tell whose line
    an inner interpreter works on, so each of these operators may have ordered the exec. The rights
    of one operator do not extend the rights of another.
    """
    each = [replace(request, actor=actor) for actor in actors]
    judged = [(one, judge(one)) for one in each]
    worst = max((d.verdict for _, d in judged), key=lambda verdict: verdict.strictness)
    request = next(request for request, d in judged if d.verdict is worst)
    return request, strictest([d for _, d in judged])


# ---------------------------------------------------------------- programs that no rule covers


def _text_may_write(text: str) -> bool:
    """Say whether a shell that runs this text may itself write a file, and not a program of it.

    The test is quick, because it is made for every shell that starts. The text is not parsed.
    """
    bare = text.translate(_QUOTES)
    return ">" in bare or "$'" in text or any(word in bare for word in _writing_words())


@functools.cache
def _writing_words() -> tuple[str, ...]:
    """Return the builtins that write files, and the variables that name a written file."""
    table = programs()
    builtins = table.builtins.keys() & table.effects.keys()
    return (*builtins, *table.names.written_variables, *table.names.written_prefixes)


def _may_write(name: str) -> bool:
    return name in programs().effects or name in programs().names.writers or name.startswith("mkfs")


class _Words(NamedTuple):
    """A summary of the rules for one actor."""

    any: bool  # any program may meet a rule
    names: frozenset[str]
    begins: tuple[str, ...]
    writes: bool  # any program that writes may meet a rule
    text: bool  # text in the arguments of a wrapper or a shell may meet a rule
    shaped: frozenset[str]  # kinds of state that rules ask about, if other operators shaped it


class Index:
    """The programs that the rules of one policy could cover."""

    def __init__(self, policy: Policy) -> None:
        self.broken = bool(policy.broken)
        self._rules = tuple(rule for rule in policy.rules if rule.at_exec)
        self._of = functools.lru_cache(256)(self._words)

    def silent(self, actor: Actor, path: str, argv: Sequence[str]) -> bool:
        """Say whether no rule can cover the program, for any arguments."""
        words = self._of(actor.kind, actor.operator, actor.attached)
        if self.broken or words.any:
            return False
        # The bare name too: a program of a read-only tool directory is known by it.
        called = _base(argv[0]).lstrip("-") if argv else ""
        # `git-clean` is judged as `git clean`.
        git = "git" if _base(path)[4:] in programs().names.git_commands else ""
        for one in dict.fromkeys(filter(None, (name_of(path), _base(path), called, git))):
            if (
                one in words.names
                or one.startswith(words.begins)
                or (words.writes and _may_write(one))
            ):
                return False
            if is_shell(one):
                if (
                    words.text
                    or not words.names.isdisjoint(programs().builtins)
                    or (words.writes and any(_text_may_write(word) for word in argv[1:]))
                ):
                    return False
            elif one in programs().wrappers:
                return False
        return not _base(path).startswith(_LINKERS)

    def silent_on_script(self, actor: Actor, by: Sequence[str], file: str) -> bool:
        """Say the same about the interpreter `by` of a script, which is `file`.

        The program that `env` finds is an exec of its own.
        """
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
        """Say whether a rule asks about the authors of state, and these kinds of state exist."""
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
            when = rule.when
            asked = [key for key in _SHAPED if key in when]
            shaped |= {
                kind
                for key in asked
                for kind in (when[key] if key != "shaped_by" else originators.KINDS)
            }
            # every program meets `background = false`, so a false value does not count
            written = any(when.get(key) for key in _NEED_TEXT)
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
