"""One simple command: through its wrappers to the name that counts, then what is known of that name.

The order matters: a wrapper is taken off before the name is looked up; an interpreter's text is walked like the command itself;
only then come the builtins that change the shell (`cd`, `alias`, `trap`) and the table of effects. A name is compared bare only
if it is looked up in PATH or stands in a directory of the system: `./rm` and `/tmp/ls` are programs of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core import effects, interpreters, wrappers
from holdfast.core.facts import Command, Redirect
from holdfast.core.places import Cwds, Place, locate
from holdfast.core.reasons import Reason
from holdfast.core.words import Word

if TYPE_CHECKING:
    from holdfast.core.shelltree import Context, Walk

WRAPPERS_MAX: Final = 12
SYSTEM_BINS: Final = frozenset(
    (
        "/bin",
        "/sbin",
        "/usr/bin",
        "/usr/sbin",
        "/usr/local/bin",
        "/usr/local/sbin",
        "/opt/homebrew/bin",
        "/snap/bin",
    )
)
HARMLESS_FILES: Final = frozenset(
    (
        "/dev/null",
        "/dev/tty",
        "/dev/stdout",
        "/dev/stderr",
        "/dev/fd/1",
        "/dev/fd/2",
        "/dev/full",
        "/dev/zero",
    )
)
# Variables that decide what a name means or what a shell does by itself.
SHAPING: Final = frozenset(
    (
        "PATH",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
        "BASH_ENV",
        "ENV",
        "PROMPT_COMMAND",
        "PS0",
        "PS1",
        "PS2",
        "PS4",
        "SHELLOPTS",
        "BASHOPTS",
        "IFS",
        "CDPATH",
        "HOME",
        "PWD",
        "OLDPWD",
        "FPATH",
        "ZDOTDIR",
        "SHELL",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "GIT_EXTERNAL_DIFF",
        "GIT_PROXY_COMMAND",
        "GIT_EXEC_PATH",
        "GIT_DIR",
        "GIT_WORK_TREE",
        "precmd",
        "preexec",
        "chpwd",
    )
)
_SHAPING_BEGINS: Final = ("BASH_FUNC_", "GIT_CONFIG", "DYLD_", "LD_")
_PROGRAMS: Final = frozenset(
    (
        "EDITOR",
        "VISUAL",
        "PAGER",
        "GIT_EDITOR",
        "GIT_PAGER",
        "GIT_SEQUENCE_EDITOR",
        "GIT_ASKPASS",
        "SSH_ASKPASS",
        "SUDO_ASKPASS",
        "MANPAGER",
        "LESSOPEN",
        "LESSCLOSE",
        "BROWSER",
        "DIFF",
        "RSYNC_RSH",
        "SUDO_EDITOR",
    )
)
_TAME: Final = frozenset(
    (
        "",
        "true",
        ":",
        "cat",
        "less",
        "more",
        "vi",
        "vim",
        "nvim",
        "nano",
        "emacs",
        "code --wait",
        "false",
    )
)
_SETS: Final = frozenset(
    (
        "read",
        "printf",
        "unset",
        "getopts",
        "mapfile",
        "readarray",
        "let",
        "vared",
        "readonly",
        "export",
        "declare",
        "typeset",
        "local",
    )
)
_SHAPERS: Final = frozenset(
    (
        "alias",
        "unalias",
        "enable",
        "bind",
        "bindkey",
        "zle",
        "complete",
        "compopt",
        "compdef",
        "autoload",
        "zmodload",
        "emulate",
        "add-zsh-hook",
        "unfunction",
        "functions",
        "disable",
    )
)
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[|\+?=)")
_ZSH_WORDS: Final = frozenset(
    ("repeat", "foreach", "end", "always")
)  # reserved words that shfmt takes for commands
_EVAL: Final = frozenset(("eval", "fc", "r", "coproc"))
_GIT_RUNS: Final = frozenset(
    (
        "bisect run",
        "submodule foreach",
        "filter-branch",
        "rebase -x",
        "rebase --exec",
        "difftool",
        "mergetool",
        "for-each-repo",
        "instaweb",
        "send-email",
    )
)
_GIT_TAME: Final = (
    "user.",
    "color.",
    "init.defaultBranch",
    "commit.gpgsign",
    "tag.gpgsign",
    "advice.",
    "log.",
    "core.quotepath",
    "core.autocrlf",
    "push.default",
    "pull.rebase",
    "merge.conflictstyle",
    "rerere.",
    "gc.auto",
    "protocol.version",
    "fetch.",
    "safe.directory",
    "http.version",
    "column.",
    "status.",
    "diff.renames",
)
_GIT_KNOWN: Final = frozenset(
    [
        "add",
        "am",
        "annotate",
        "apply",
        "archive",
        "bisect",
        "blame",
        "branch",
        "bundle",
        "cat-file",
        "check-attr",
        "check-ignore",
        "cherry",
        "cherry-pick",
        "clean",
        "clone",
        "commit",
        "commit-graph",
        "commit-tree",
        "config",
        "count-objects",
        "describe",
        "diff",
        "diff-files",
        "diff-index",
        "diff-tree",
        "difftool",
        "fetch",
        "filter-branch",
        "for-each-ref",
        "format-patch",
        "fsck",
        "gc",
        "grep",
        "hash-object",
        "help",
        "init",
        "log",
        "ls-files",
        "ls-remote",
        "ls-tree",
        "maintenance",
        "merge",
        "merge-base",
        "merge-file",
        "merge-tree",
        "mergetool",
        "mv",
        "name-rev",
        "notes",
        "pack-refs",
        "prune",
        "pull",
        "push",
        "range-diff",
        "rebase",
        "reflog",
        "remote",
        "repack",
        "replace",
        "request-pull",
        "rerere",
        "reset",
        "restore",
        "rev-list",
        "rev-parse",
        "revert",
        "rm",
        "send-email",
        "shortlog",
        "show",
        "show-branch",
        "show-ref",
        "sparse-checkout",
        "stash",
        "status",
        "stripspace",
        "submodule",
        "switch",
        "symbolic-ref",
        "tag",
        "update-index",
        "update-ref",
        "var",
        "verify-commit",
        "verify-tag",
        "version",
        "whatchanged",
        "worktree",
        "write-tree",
        "lfs",
        "checkout",
    ]
)


class Moved(NamedTuple):
    """The shell itself may be in another directory afterwards."""

    name: str
    words: list[Word]
    anywhere: bool = False


def dangerous(name: str, value: Word | None) -> bool:
    """Whether setting this variable changes what later words mean."""
    if name in SHAPING or name.startswith(_SHAPING_BEGINS):
        return True
    return name in _PROGRAMS and (value is None or value.text not in _TAME)


class Simple:
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
        self.via = list(context.via)
        self.reasons = [
            Reason("shaping", name) for name, value in assigns if dangerous(name, value)
        ]
        self.more = False
        self.called: dict[str, str] = {}

    def run(self, words: list[Word]) -> Moved | None:
        for _ in range(WRAPPERS_MAX):
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
            self.reasons += [Reason("shaping", n) for n, v in inner.assigns if dangerous(n, v)]
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

    # ------------------------------------------------------------ names

    def _name(self, word: Word) -> str:
        """The name that counts; empty if it cannot be known."""
        text = word.text
        # an assignment in the place of a name: shfmt reads `coproc A=1 x` so, where bash runs x
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
            if above in SYSTEM_BINS and base:
                return base
        return ""

    # ------------------------------------------------------------ what is inside

    def _text(self, label: str, text: Word, dialect: str) -> None:
        """A text that a shell runs, walked like the command itself."""
        if text.text is None:
            self.reasons.append(Reason("eval", label))
            self._add(label, [])
            return
        if self.reasons or self.redirects or self.assigns:
            self._add(":", [])
        context = self.context._replace(inside="text", via=(*self.via, label))
        cwds = None if any(r.code == "place" for r in self.reasons) else self.cwds
        self.walk.inner(text.text, dialect, cwds, context)

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
        if name in ("cd", "pushd", "popd", "chdir"):
            outside = set(self.via[len(self.context.via) :]) - {
                "command",
                "builtin",
                "noglob",
                "nocorrect",
                "time",
            }  # `sudo cd` moves nobody
            return (
                None if outside else Moved("cd" if name == "chdir" else name, words, name == "popd")
            )
        if name in _EVAL:
            self.reasons.append(Reason("eval", name))
            return Moved(name, [], True)
        if name in ("source", "."):
            self.reasons.append(Reason("source", (words[0].shown if words else "")[:60]))
            return Moved(name, [], True)
        if (name in _SHAPERS and words) or (
            name == "hash" and any((w.text or "-p").startswith("-") for w in words)
        ):
            self.reasons.append(Reason("shaping", name))
        if name == "trap" and words and words[0].text not in ("-", "", "-p", "-l", "--"):
            self._trap(words[0])
        if name in _SETS:
            self._sets(name, words)
        if name in ("mapfile", "readarray", "compgen") and any(
            w.text is None or w.text.startswith(("-C", "-F")) for w in words
        ):
            self.reasons.append(Reason("eval", name))
        return Moved(name, [], True) if name in self.walk.facts.functions else None

    def _trap(self, text: Word) -> None:
        if text.text is None:
            self.reasons.append(Reason("eval", "trap"))
        else:
            self.walk.inner(
                text.text,
                "bash",
                None,
                self.context._replace(inside="text", via=(*self.via, "trap")),
            )

    def _sets(self, name: str, words: Sequence[Word]) -> None:
        for word in words:
            bare = (word.text or "").partition("=")[0].partition("[")[0]
            if word.text is None and name not in ("printf", "let"):
                self.reasons.append(Reason("shaping", f"{name} of a name that is not known"))
            elif (
                bare
                and dangerous(bare, None)
                and name not in ("export", "declare", "typeset", "local", "readonly")
            ):
                self.reasons.append(Reason("shaping", bare))

    def _find(self, words: list[Word]) -> None:
        """`-exec cmd {} ;` and its like: commands of their own, with names that nobody knows yet."""
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
        given = effects.operands(words, effects.SUB_VALUED["git"])
        for option, value in given.values:
            if option in ("-c", "--config-env", "--exec-path") and not (
                value.text or ""
            ).startswith(_GIT_TAME):
                self.reasons.append(Reason("code", f"git {option} {value.shown[:40]}"))
        subs = [w.text or "" for w in given.plain]
        has = effects.flags(words)
        options = [f for f in ("-x", "--exec") if f in has]
        if (
            {" ".join(subs[:1]), " ".join(subs[:2]), *(f"{subs[0]} {o}" for o in options if subs)}
            & _GIT_RUNS
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
            and any(
                s.startswith(
                    (
                        "alias.",
                        "core.",
                        "diff.",
                        "filter.",
                        "credential.",
                        "url.",
                        "include",
                        "ssh.",
                        "gpg.",
                    )
                )
                for s in subs[1:]
            )
            and len(subs) > 2
        ):
            self.reasons.append(Reason("shaping", "git config"))
        if given.plain and given.plain[0].text is None:
            self.reasons.append(Reason("name", "git"))
        elif subs and subs[0] not in _GIT_KNOWN:
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
            written or effects.spec(name) is not None or name == "dd"
        ):
            self.reasons.append(Reason("arguments", name))
        for word in written:
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
        elif word.text not in HARMLESS_FILES:
            writes.append(places)
            if not all(p.sure for p in places) and effects.spoils(name, has):
                self.reasons.append(Reason("place", word.shown[:60]))

    def _redirect(
        self, redirect: Redirect, paths: list[tuple[Place, ...]], writes: list[tuple[Place, ...]]
    ) -> bool:
        """Adds where it leads; whether that is the network."""
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
