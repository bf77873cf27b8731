"""Analysis of one simple command: wrappers are removed, then the table is asked about the name.

The order matters. A wrapper is removed before the name is looked up. The text for an interpreter
is walked like the command itself. Then follow the builtins that change the shell (`cd`, `alias`,
`trap`) and the table of effects.

A name is compared without the directory only if the shell searches PATH, or if the directory
belongs to the system or to tools that are read-only in this session: `./rm` and `/tmp/ls` are
separate programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core.shellcode import effects, evaluated, interpreters, wrappers
from holdfast.core.shellcode.facts import Command, Redirect
from holdfast.core.shellcode.places import Cwds, Place, locate, under
from holdfast.core.shellcode.programs import Builtin, programs
from holdfast.core.shellcode.reasons import Reason
from holdfast.core.shellcode.words import Word

if TYPE_CHECKING:
    from holdfast.core.shellcode.syntax_tree import Context, Walk

WRAPPERS_MAX: Final = 12
_TOOLS: Final = ("/bin", "/sbin", "/shims")  # directories of programs in a tree of tools
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[|\+?=)")
# Reserved words that shfmt takes for commands.
_ZSH_WORDS: Final = frozenset(("repeat", "foreach", "end", "always"))
# Values of variables for files that switch something on or off and name no file.
_SWITCH: Final = re.compile(r"\d*|true|false|yes|no|on|off", re.I)
_SET_PLAIN: Final = re.compile(r"[-+][abCeEhmnTuvxo]+")
_SET_VALUED: Final = re.compile(r"[-+][a-zA-Z]*o")


class Moved(NamedTuple):
    """The shell itself may be in another directory after this command."""

    name: str
    words: list[Word]
    anywhere: bool = False


def dangerous(name: str, value: Word | None) -> bool:
    """Say whether setting this variable changes the meaning of later words."""
    names = programs().names
    if name in names.shaping_variables or name.startswith(names.shaping_prefixes):
        return True
    if names_a_file(name):
        return value is None
    harmless = value is not None and value.text in names.harmless_values
    return name in names.program_variables and not harmless


def names_a_file(variable: str) -> bool:
    """Say whether the value of this variable names a file that will be written."""
    names = programs().names
    return variable in names.written_variables or variable.startswith(names.written_prefixes)


def builtin(name: str, shell: str) -> Builtin | None:
    """Return the row of a builtin of this shell; `sh` may be bash, and mksh has those of both."""
    row = programs().builtins.get(name)
    if row is None or row.only in ("", shell) or shell == "mksh":
        return row
    return row if row.only == "bash" and shell == "sh" else None


def hooked(function: str, shell: str) -> bool:
    """Say whether a definition of this function changes what later words mean.

    The shell calls some functions by itself. A function with the name of a builtin, or of a program
    with known effects, makes the rest of this analysis wrong.
    """
    table = programs()
    names = table.names
    return (
        function in names.hook_functions
        or function.startswith(names.hook_prefixes)
        or builtin(function, shell) is not None
        or effects.effect(function) is not None
        or any(
            function in known
            for known in (
                table.wrappers,
                table.shells,
                table.databases,
                table.option_values,
                names.writers,
                names.network,
                names.elsewhere,
            )
        )
    )


class Simple:
    """The analysis of a simple command; `run` adds the result to the facts of the walk."""

    def __init__(
        self,
        walk: Walk,
        cwds: Cwds,
        context: Context,
        redirects: tuple[Redirect, ...],
        assigns: tuple[tuple[str, Word | None], ...],
        shown: str = "",
    ) -> None:
        self.walk, self.cwds, self.context, self.redirects, self.shown = (
            walk,
            cwds,
            context,
            redirects,
            shown,
        )
        self.assigns = [name for name, _ in assigns if name]
        self.values = [value for _, value in assigns if value is not None]
        self._note(assigns)
        self.via = list(context.via)
        self.reasons: list[Reason] = []
        self.more = False
        self.called: dict[str, str] = {}
        self.written: list[Word] = []  # files that a variable or a wrapper names
        for name, value in assigns:
            self._assigned(name, value)

    def _note(self, assigns: Iterable[tuple[str, Word | None]]) -> None:
        self.walk.facts.settings += [
            (name, None if value is None or value.glob else value.text)
            for name, value in assigns
            if name
        ]

    def run(self, words: list[Word]) -> Moved | None:
        for _ in range(WRAPPERS_MAX):
            words = wrappers.as_git(words)
            name = self._name(words[0])
            if not name:
                self._add("", words[1:])
                return Moved("", [], True)
            found = wrappers.find(name, words[1:])
            if found is None:
                return self._final(name, words[1:])
            label, wrapper, rest = found
            inner = wrappers.peel(label, wrapper, rest)
            self.reasons += inner.reasons
            self.assigns += [n for n, _ in inner.assigns]
            self._note(inner.assigns)
            for variable, value in inner.assigns:
                self._assigned(variable, value)
            self._written_by(label, inner.writes)
            self.more |= inner.more
            if inner.text is not None:
                self._text(label, inner.text, "posix")
                return None
            if not inner.rest or (label == "exec" and inner.rest[0].text is None):
                self._add(name, list(rest))
                return Moved("", [], True) if inner.rest else None
            self.via.append(label)
            words = inner.rest
        self.reasons.append(Reason("depth"))
        self._add("", words[1:])
        return None

    def _assigned(self, name: str, value: Word | None) -> None:
        """Note that a variable is set, if that changes later words or names a written file."""
        if not names_a_file(name):
            if dangerous(name, value):
                self.reasons.append(Reason("shaping", name))
        elif value is None or value.text is None:
            self.reasons.append(Reason("redirect", name))
        elif value.text.startswith("/"):
            self.written.append(value)
        elif not _SWITCH.fullmatch(value.text):
            # A shell opens the file when it exits, wherever it is then.
            self.reasons.append(Reason("redirect", name))

    def _written_by(self, label: str, files: Sequence[Word]) -> None:
        for word in files:
            if word.text is None:
                self.reasons.append(Reason("redirect", f"{label} {word.shown[:40]}"))
            elif word.text.startswith(("|", "!")):  # strace runs this as a command
                self.reasons.append(Reason("code", label))
            else:
                self.written.append(word)

    # ------------------------------------------------------------ names

    def _name(self, word: Word) -> str:
        """Return the name that rules know; empty if the name is unknown."""
        text = word.text
        # A word like an assignment: shfmt reads `coproc A=1 x` so, where bash runs x.
        if (
            not text
            or word.glob
            or text == ".."
            or text.endswith("/")
            or text.startswith(("-", "{"))
            or _ASSIGNMENT.match(text)
        ):
            self.reasons.append(Reason("name", word.shown[:60]))
            return ""
        if self.walk.shell == "zsh" and text in _ZSH_WORDS:
            self.reasons.append(Reason("shell", text))
            return ""
        name = text
        if "/" in text:
            name = self._system_name(text) or text
            self.called[name] = text
        around = self.walk.around
        if name in around.shadowed:
            self.reasons.append(Reason("shadowed", name[:60]))
        return name

    def _system_name(self, text: str) -> str:
        for place in locate(text, -1, self.cwds, self.walk.around.real) or ():
            above, _, base = place.path.rpartition("/")
            if above in programs().names.system_directories and base:
                return base
            tools = self.walk.around.tools
            if base and above.endswith(_TOOLS) and any(under(above, tree) for tree in tools):
                return base
        return ""

    # ------------------------------------------------------------ inner programs

    def _text(self, label: str, text: Word, dialect: str) -> None:
        """Walk a text that a shell runs, like the command itself."""
        if text.text is None:
            self.reasons.append(Reason("eval", label))
            self._add(label, [])
            return
        if self.reasons or self.redirects or self.assigns or self.written:
            self._add(":", [])
        context = self.context._replace(
            inside="text",
            via=(*self.via, label),
            repeats=self.context.repeats or self.more or label == "watch",
        )
        cwds = None if any(r.code == "place" for r in self.reasons) else self.cwds
        self.walk.text(text.text, dialect, cwds, context)

    def _final(self, name: str, words: list[Word]) -> Moved | None:
        if self.more:
            words = [
                Word(None, w.shown, why="more") if w.text is not None and "{}" in w.text else w
                for w in words
            ]
            words.append(Word(None, "...", why="more"))
        program = interpreters.inspect(name, words)
        if program is not None:
            self.reasons += program.reasons
            if program.text is not None:
                self._text(name, program.text, program.dialect)
                return None
        if wrappers.elsewhere(name, words):
            self.reasons.append(Reason("elsewhere", name))
        if name == "find":
            self._find(words)
        if name == "git":
            self._git(words)
        moved = self._builtin(name, words)
        self._add(name, words)
        return moved

    def _builtin(self, name: str, words: list[Word]) -> Moved | None:
        row = None if name in self.called else builtin(name, self.walk.shell)
        if name == "coproc":
            row = Builtin(why="eval", alone=True)
        if row is not None:
            self._changes(name, row, words)
        if name not in self.called:
            shell = self.walk.shell
            self.walk.evaluates(evaluated.builtin(name, words, self.values, shell))
        if name in ("cd", "pushd", "popd", "chdir"):
            # `sudo cd` does not move the shell
            same_shell = {"command", "builtin", "noglob", "nocorrect", "time"}
            outside = set(self.via[len(self.context.via) :]) - same_shell
            anywhere = name == "popd" or name in self.walk.facts.functions
            return None if outside else Moved("cd" if name == "chdir" else name, words, anywhere)
        runs = row is not None and row.alone  # a text that is not known
        return Moved(name, [], True) if runs or name in self.walk.facts.functions else None

    def _changes(self, name: str, row: Builtin, words: list[Word]) -> None:
        """Add the reasons if this builtin changes what later words mean, or runs a text."""
        if row.judge == "options":
            self._options(name, words)
        elif row.judge == "trap":
            self._trap(words[1:] if words and words[0].text == "--" else words)
        elif row.judge == "declares":
            self._declares(name, words)
        if row.sets:
            self._sets(name, row, words)
        if row.why and (
            row.alone
            or any(w.text is None or not re.fullmatch(row.plain, w.text, re.S) for w in words)
        ):
            detail = (words[0].shown if words else "") if row.why == "source" else name
            self.reasons.append(Reason(row.why, detail[:60]))

    def _options(self, name: str, words: Sequence[Word]) -> None:
        """A changed option may make the shell read the rest of the text in another way."""
        for at, word in enumerate(words):
            text = word.text
            before = words[at - 1].text if at else ""
            if text is None:
                self.reasons.append(Reason("shaping", name))
            elif name == "set" and text in ("--", "-"):
                return
            elif (
                name == "set"
                and not _SET_VALUED.fullmatch(before or "")
                and text[:1] not in ("-", "+")
            ):
                return  # parameters
            elif text[:1] in ("-", "+") and not text.startswith("--"):
                if name != "shopt" and not (name == "set" and _SET_PLAIN.fullmatch(text)):
                    self.reasons.append(Reason("shaping", f"{name} {text[:20]}"))
            else:
                option = text.lower().replace("_", "")
                plain = programs().names.plain_options
                if option not in plain and option.removeprefix("no") not in plain:
                    self.reasons.append(Reason("shaping", f"{name} {text[:20]}"))

    def _trap(self, words: Sequence[Word]) -> None:
        """A trap runs its text later, at a moment that no text shows."""
        if not words or words[0].text in ("-", "", "-p", "-P", "-l"):
            return
        self.reasons.append(Reason("shaping", "trap"))
        text = words[0]
        if text.text is None or text.text.startswith("-"):
            self.reasons.append(Reason("eval", "trap"))
        else:
            self.walk.text(
                text.text,
                "bash",
                None,
                self.context._replace(inside="text", via=(*self.via, "trap"), repeats=True),
            )

    def _declares(self, name: str, words: Sequence[Word]) -> None:
        """Judge the attributes and assignments of `declare`, `export` and the like.

        A name reference (`-n`) and a tied variable (`-T` in zsh) set a variable under another name.
        `-f` with one of `ukUz` loads a function from a file.
        """
        options = set[str]()
        for word in words:
            if word.text is None:
                self.reasons.append(Reason("shaping", f"{name} of an unknown variable"))
            elif word.text[:1] in ("-", "+"):
                options.update(word.text[1:])
            else:
                variable, given, value = word.text.partition("=")
                if given:
                    assigned = None if variable.endswith("+") else Word(value, value)
                    self._note([(variable.rstrip("+"), assigned)])
                    self._assigned(variable.rstrip("+"), assigned)
        refers = options & ({"T"} if self.walk.shell == "zsh" else {"n"})
        if refers and name != "export":
            self.reasons.append(Reason("shaping", f"{name} -{min(refers)}"))
        if "f" in options and options & {"u", "k", "U", "z"}:
            self.reasons.append(Reason("shaping", f"{name} -f"))

    def _sets(self, name: str, row: Builtin, words: Sequence[Word]) -> None:
        """Judge the variables that a builtin sets."""
        if "*" not in row.sets:
            words = [value for _, value in effects.operands(words, row.sets).values]
        for word in words:
            bare = (word.text or "").partition("=")[0].partition("[")[0]
            if bare and name in ("read", "unset", "getopts", "vared"):
                self.walk.facts.opened.add(bare)
            if word.text is None and name not in ("printf", "let"):
                self.reasons.append(Reason("shaping", f"{name} of an unknown variable"))
            elif name == "unset" and names_a_file(bare):
                continue  # then no file is written
            elif bare and dangerous(bare, None):
                self.reasons.append(Reason("shaping", bare))

    def _find(self, words: list[Word]) -> None:
        """Analyse `-exec cmd {} ;` as a command whose arguments are not known yet."""
        at = 0
        while at < len(words):
            if words[at].text in ("-exec", "-execdir", "-ok", "-okdir"):
                end = next(
                    (
                        n
                        for n in range(at + 1, len(words))
                        if words[n].text == ";"
                        or (words[n].text == "+" and words[n - 1].text == "{}")
                    ),
                    len(words),
                )
                inner = Simple(
                    self.walk,
                    self.cwds if "dir" not in (words[at].text or "") else None,
                    self.context._replace(via=(*self.via, "find")),
                    (),
                    (),
                )
                inner.more = True
                if end > at + 1:
                    inner.run(words[at + 1 : end])
                at = end
            elif words[at].text in ("-fprint", "-fprintf", "-fls", "-fprint0"):
                self.reasons.append(Reason("redirect", words[at].text or ""))
            elif words[at].text is None:
                self.reasons.append(Reason("arguments", "find"))
            at += 1

    def _git(self, words: list[Word]) -> None:
        names = programs().names
        values = programs().option_values["git"]
        given = effects.operands(words, values)
        for option, value in effects.operands(_git_own(words, given.plain), values).values:
            if option in ("-c", "--config-env", "--exec-path") and not (
                value.text or ""
            ).startswith(names.git_harmless_settings):
                self.reasons.append(Reason("code", f"git {option} {value.shown[:40]}"))
        subs = [w.text or "" for w in given.plain]
        has = effects.flags(words)
        options = [f for f in ("-x", "--exec") if f in has]
        if (
            {" ".join(subs[:1]), " ".join(subs[:2]), *(f"{subs[0]} {o}" for o in options if subs)}
            & names.git_runs
            or "--upload-pack" in has
            or "--receive-pack" in has
            or (subs[:1] == ["clone"] and "-u" in has)
            or (
                subs[:1] == ["grep"]
                and any(f.startswith(("-O", "--open-files-in-pager")) for f in has)
            )
        ):
            self.reasons.append(Reason("code", f"git {subs[0]}"))
        if (
            subs
            and subs[0] == "config"
            and any(s.startswith(names.git_shaping_settings) for s in subs[1:])
            and len(subs) > 2
        ):
            self.reasons.append(Reason("shaping", "git config"))
        if given.plain and given.plain[0].text is None:
            self.reasons.append(Reason("name", "git"))
        elif subs and subs[0] not in names.git_commands:
            self.reasons.append(Reason("shadowed", f"git {subs[0][:40]}"))

    # ------------------------------------------------------------ effects

    def _add(self, name: str, words: list[Word]) -> None:
        has = effects.flags(words)
        real = self.walk.around.real
        paths, writes = list[tuple[Place, ...]](), list[tuple[Place, ...]]()
        open_paths = any(w.text is None for w in words)
        for word in (*effects.path_words(name, words), *effects.path_words("=", self.values)):
            places = locate(word.text or "", word.glob_at, self.cwds, real)
            if places is None:
                open_paths = True
            else:
                paths.append(places)
        written = effects.written(name, words, has)
        if any(w.text is None for w in words) and (
            written or effects.effect(name) is not None or name == "dd"
        ):
            self.reasons.append(Reason("arguments", name))
        for word in (*written, *self.written):
            self._writes(name, word, has, writes)
        net = effects.network(name, words)
        for redirect in self.redirects:
            net |= self._redirect(redirect, paths, writes)
            open_paths |= redirect.places is None
        self.walk.add(
            Command(
                name=name,
                words=tuple(words),
                flags=has,
                paths=tuple(paths),
                writes=tuple(writes),
                open_paths=open_paths,
                network=net,
                via=tuple(self.via),
                fed_by=self.context.fed_by,
                assigns=tuple(self.assigns),
                redirects=self.redirects,
                background=self.context.background,
                inside=self.context.inside,
                reasons=tuple(dict.fromkeys(self.reasons)),
                shown=self.shown or " ".join([name, *(w.shown for w in words)]),
                called=tuple(self.called.items()),
                cwds=None if any(r.code == "place" for r in self.reasons) else self.cwds,
                repeats=self.context.repeats or self.more,
            )
        )

    def _writes(
        self, name: str, word: Word, has: frozenset[str], writes: list[tuple[Place, ...]]
    ) -> None:
        if word.text is None:
            return
        if word.glob and effects.spoils(name, has):
            self.reasons.append(Reason("glob", word.shown[:60]))
        places = locate(word.text, word.glob_at, self.cwds, self.walk.around.real)
        if places is None:
            self.reasons.append(Reason("place", word.shown[:60]))
        elif word.text not in programs().names.harmless_files:
            writes.append(places)
            if not all(p.sure for p in places) and effects.spoils(name, has):
                self.reasons.append(Reason("place", word.shown[:60]))

    def _redirect(
        self, redirect: Redirect, paths: list[tuple[Place, ...]], writes: list[tuple[Place, ...]]
    ) -> bool:
        """Add the places of a redirection; return whether a place is on the network."""
        if redirect.places is None:
            if redirect.writes:
                text = redirect.target.text if redirect.target is not None else None
                self.reasons.append(
                    Reason(
                        "redirect" if text is None else "place",
                        (redirect.target.shown if redirect.target else "")[:60],
                    )
                )
            return False
        if redirect.places:
            paths.append(redirect.places)
            if redirect.writes:
                writes.append(redirect.places)
                if redirect.target is not None and redirect.target.glob:
                    self.reasons.append(Reason("redirect", redirect.target.shown[:60]))
        return any(p.path.startswith(("/dev/tcp/", "/dev/udp/")) for p in redirect.places)


def _git_own(words: list[Word], plain: Sequence[Word]) -> list[Word]:
    """The options of git itself, before the subcommand. `clone -c` sets the same settings."""
    at = next((n for n, word in enumerate(words) if plain and word is plain[0]), len(words))
    return words if plain and plain[0].text == "clone" else words[:at]
