"""The walk over shfmt's tree: commands, possible directories, and pipes.

The walk follows the working directory like a shell, but for every outcome. `cd x; rm y` runs in x
or, if x does not exist, in the previous directory; `cd x && rm y` runs only in x. A subshell
changes nothing outside. After a loop or function that changes directories, the directory is
unknown. Unknown constructs are reasons, and so is every command that the walk did not visit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.core.shellcode import evaluated
from holdfast.core.shellcode.facts import Command, Facts, Parse, Redirect, Surroundings, Unparseable
from holdfast.core.shellcode.heredocs import ends_elsewhere
from holdfast.core.shellcode.places import Cwds, join, locate
from holdfast.core.shellcode.plain_grammar import is_plain
from holdfast.core.shellcode.programs import programs
from holdfast.core.shellcode.reasons import Reason
from holdfast.core.shellcode.simple_command import Moved, Simple, dangerous, hooked
from holdfast.core.shellcode.words import Known, Node, Word, read, subscript

DEPTH_MAX: Final = 60  # nested statements
TEXTS_MAX: Final = 16  # texts inside of the text (`sh -c '...'`)
COMMANDS_MAX: Final = 2000
_EXPANDED: Final = re.compile(r"(?<!\\)(?:[$`]|[<>=]\()")
_UNEXPANDED: Final = re.compile(r"[^$`\\]*")
_MOVES: Final = ("cd", "pushd", "popd")
_COMMENTS_ARE_AN_OPTION: Final = ("bash", "zsh")  # in a typed line: interactive_comments
_DIALECT_SHELL: Final = {"bash": "bash", "zsh": "zsh", "posix": "sh", "mksh": "mksh"}


class Out(NamedTuple):
    """Directories of the shell after a statement, for success and for failure."""

    ok: Cwds
    failed: Cwds

    @property
    def either(self) -> Cwds:
        return join(self.ok, self.failed)


class Context(NamedTuple):
    fed_by: tuple[str, ...] = ()
    background: bool = False
    inside: str = ""
    via: tuple[str, ...] = ()
    repeats: bool = False  # a loop, a function or a trap may run it more than once


class Walk:
    """A walk; all results are added to `facts`."""

    def __init__(self, facts: Facts, parse: Parse, around: Surroundings) -> None:
        self.facts = facts
        self.around = around
        self._parse = parse
        self._source = b""
        self._home = around.home
        self.shell = around.shell
        self._depth = 0
        self._quoted = 0  # double quotes around the present part of a word
        self._texts = 0
        self._seen: set[int] = set()
        self._trees: list[Node] = []  # kept, so that the ids of nodes stay unique

    # ------------------------------------------------------------ texts

    def text(self, text: str, dialect: str, cwds: Cwds, context: Context = Context()) -> None:
        self._texts += 1
        if self._texts > TEXTS_MAX:
            raise Unparseable("depth")
        tree = self._parse(text, dialect)
        self._trees.append(tree)
        self.facts.plain = self.facts.plain and is_plain(tree)
        before = self._source, self.shell
        self._source, self.shell = text.encode(), _DIALECT_SHELL[dialect]
        try:
            self._stmts(tree.get("Stmts"), cwds, context)
        finally:
            self._source, self.shell = before
        if any(id(node) not in self._seen for node in _acts(tree)):
            self.facts.reasons.append(Reason("construct", "a part was not visited"))
        if (len(text) - len(text.rstrip("\\"))) % 2:  # some shells drop it, some run a name with it
            self.facts.reasons.append(Reason("construct", "a backslash at the end"))
        # shfmt continues such a comment; the shells end it
        if any("Hash" in n and "\\" in str(n.get("Text", ""))[-2:] for n in _nodes(tree)):
            self.facts.reasons.append(Reason("construct", "a comment that ends with a backslash"))
        if (
            self.around.typed
            and dialect in _COMMENTS_ARE_AN_OPTION
            and any("Hash" in n and "Text" in n for n in _nodes(tree))
        ):
            self.facts.reasons.append(Reason("shell", "the shell may take a typed # for a word"))

    def argv(self, argv: Sequence[str], cwds: Cwds) -> None:
        Simple(self, cwds, Context(), (), ()).run([Word(a, a) for a in argv])

    # ------------------------------------------------------------ statements

    def _stmts(self, nodes: Any, cwds: Cwds, context: Context) -> Out:
        out = Out(cwds, cwds)
        for node in nodes or []:
            out = self._stmt(node, out.either, context)
        return out

    def _stmt(self, node: Node, cwds: Cwds, context: Context) -> Out:
        self._depth += 1
        if self._depth > DEPTH_MAX or len(self.facts.commands) > COMMANDS_MAX:
            raise Unparseable("depth" if self._depth > DEPTH_MAX else "size")
        try:
            return self._one(node, cwds, context)
        finally:
            self._depth -= 1

    def _one(self, node: Node, cwds: Cwds, context: Context) -> Out:
        away = bool(node.get("Background") or node.get("Coprocess") or node.get("Disown"))
        if away:
            self.facts.background = True
            context = context._replace(background=True)
        redirects = tuple(self._redirect(r, cwds, context) for r in node.get("Redirs") or [])
        command = node.get("Cmd")
        if command is None or command.get("Type") != "CallExpr":
            if redirects or command is None:
                self._bare(redirects, (), context, cwds, _shown(node, self._source))
                self._null_command(redirects, command)
            out = self._compound(command, cwds, context) if command is not None else Out(cwds, cwds)
        else:
            self._seen.add(id(command))
            out = self._call(command, redirects, cwds, context, _shown(node, self._source))
        if node.get("Negated"):
            out = Out(out.failed, out.ok)
        return Out(cwds, cwds) if away else out

    def _compound(self, node: Node, cwds: Cwds, context: Context) -> Out:
        self._seen.add(id(node))
        kind = node.get("Type")
        if kind == "BinaryCmd":
            return self._binary(node, cwds, context)
        if kind == "Block":
            return self._stmts(node.get("Stmts"), cwds, context)
        if kind == "Subshell":
            # bash reads `((x))` as arithmetic, also if it is called sh
            if self.shell == "sh" and _shown(node, self._source).startswith("(("):
                self.evaluates("a value in arithmetic")
            self._stmts(node.get("Stmts"), cwds, context)
            return Out(cwds, cwds)
        if kind == "IfClause":
            return self._if(node, cwds, context)
        if kind in ("WhileClause", "ForClause"):
            return self._loop(node, cwds, context)
        if kind == "CaseClause":
            self.expand(node.get("Word"), cwds, context)
            after = cwds
            for item in node.get("Items") or []:
                self.expand(item.get("Patterns"), cwds, context)
                after = join(after, self._stmts(item.get("Stmts"), after, context).either)
            return Out(after, after)
        if kind == "FuncDecl":
            return self._function(node, cwds, context)
        if kind in ("TimeClause", "CoprocClause"):
            self.expand(node.get("Name"), cwds, context)
            inner = node.get("Stmt")
            # bash and shfmt disagree about where the command of a coproc begins; inside of $( )
            # bash disagrees with itself
            if kind == "CoprocClause":
                self.facts.reasons.append(Reason("construct", "coproc"))
            out = self._stmt(inner, cwds, context) if inner else Out(cwds, cwds)
            return out if kind == "TimeClause" else Out(cwds, cwds)
        if kind == "DeclClause":
            return self._declare(node, cwds, context)
        if kind in ("ArithmCmd", "LetClause", "TestClause"):
            if kind != "TestClause":
                self.evaluates(evaluated.command(node))
            self.expand({k: v for k, v in node.items() if k != "Type"}, cwds, context)
            return Out(cwds, cwds)
        self.facts.reasons.append(Reason("construct", str(kind)[:40]))
        return Out(None, None)

    def _binary(self, node: Node, cwds: Cwds, context: Context) -> Out:
        op = node.get("Op")
        left, right = node.get("X"), node.get("Y")
        if (
            not isinstance(left, dict)
            or not isinstance(right, dict)
            or op not in ("&&", "||", "|", "|&")
        ):
            self.facts.reasons.append(Reason("construct", f"operator {op}"[:40]))
            return Out(None, None)
        if op in ("&&", "||"):
            first = self._stmt(left, cwds, context)
            second = self._stmt(right, first.ok if op == "&&" else first.failed, context)
            if op == "&&":
                return Out(second.ok, join(first.failed, second.failed))
            return Out(join(first.ok, second.ok), second.failed)
        before = len(self.facts.commands)
        self._stmt(left, cwds, context)
        fed = tuple(
            dict.fromkeys(
                [*context.fed_by, *(c.name for c in self.facts.commands[before:] if c.name)]
            )
        )
        last = self._stmt(right, cwds, context._replace(fed_by=fed))
        for side in (
            left,
            right,
        ):  # a | b | c is a single pipeline, however the tree groups the parts
            if (side.get("Cmd") or {}).get("Op") in ("|", "|&") and self.facts.pipelines:
                self.facts.pipelines.pop()
        self.facts.pipelines.append(tuple(c.name for c in self.facts.commands[before:]))
        after = join(cwds, last.either)  # some shells run the last part of a pipeline themselves
        return Out(after, after)

    def _if(self, node: Node, cwds: Cwds, context: Context) -> Out:
        condition = self._stmts(node.get("Cond"), cwds, context)
        yes = self._stmts(
            node.get("Then"), condition.ok if node.get("Cond") else cwds, context
        ).either
        other = node.get("Else")
        no = (
            self._if(other, condition.failed, context).either
            if isinstance(other, dict)
            else condition.failed
        )
        if isinstance(other, dict):
            self._seen.add(id(other))
        after = join(yes, no)
        return Out(after, after)

    def _loop(self, node: Node, cwds: Cwds, context: Context) -> Out:
        loop = node.get("Loop") or {}
        once, context = context, context._replace(repeats=True)
        self.expand(loop, cwds, once if loop.get("Type") == "WordIter" else context)
        self._assigned((loop.get("Name") or {}).get("Value"))
        items = [read(w, self._source, self._known(cwds)) for w in loop.get("Items") or []]
        # a rule about paths sees the values of the variable here, not where they are used
        if items:
            self._bare((), tuple(("", w) for w in items), once, cwds, _shown(loop, self._source))
        if any(n.get("Type") == "CallExpr" and self._may_move(n) for n in _nodes(node)):
            cwds = None
        self._stmts(node.get("Cond"), cwds, context)
        self._stmts(node.get("Do"), cwds, context)
        return Out(cwds, cwds)

    def _may_move(self, call: Node) -> bool:
        words = [read(w, self._source, self._known(None)) for w in (call.get("Args") or [])[:2]]
        return any(
            w.text is None
            or w.text in _MOVES
            or w.text in ("eval", "source", ".")
            or w.text in self.facts.functions
            for w in words[:1]
        ) or (bool(words) and words[0].text in ("command", "builtin") and words[-1].text in _MOVES)

    def _function(self, node: Node, cwds: Cwds, context: Context) -> Out:
        named = [node["Name"]] if isinstance(node.get("Name"), dict) else node.get("Names") or []
        names = [str(n.get("Value")) for n in named]
        self.facts.functions += names
        self.facts.reasons += [
            Reason("shaping", f"the function {name}"[:60])
            for name in names
            if hooked(name, self.shell)
        ]
        before = len(self.facts.commands)
        body = node.get("Body")
        if isinstance(body, dict):
            self._stmt(body, None, context._replace(inside="function", fed_by=(), repeats=True))
        called = {c.name for c in self.facts.commands[before:]}
        if called & set(names):
            self.facts.reasons.append(
                Reason("recursion", ", ".join(sorted(called & set(names)))[:80])
            )
        if not names:  # zsh runs an anonymous function at once
            return Out(None, None)
        return Out(cwds, cwds)

    # ------------------------------------------------------------ simple commands

    def _call(
        self, node: Node, redirects: tuple[Redirect, ...], cwds: Cwds, context: Context, shown: str
    ) -> Out:
        assigns = self._assigns(node.get("Assigns"), cwds, context)
        self.expand(node.get("Args"), cwds, context)
        words = [read(w, self._source, self._known(cwds)) for w in node.get("Args") or []]
        if not words:
            self._bare(redirects, assigns, context, cwds, shown)
            self._null_command(redirects, None)
            return Out(cwds, cwds)
        moved = Simple(self, cwds, context, redirects, assigns, shown).run(words)
        if moved is None:
            return Out(cwds, cwds)
        return Out(self._moved(moved, cwds), None if moved.anywhere else cwds)

    def _moved(self, moved: Moved, cwds: Cwds) -> Cwds:
        rest = [w for w in moved.words if w.text not in ("-P", "-L", "-e", "--")]
        if moved.anywhere or len(rest) > 1:
            return None
        if not rest:
            if not self._home or moved.name != "cd":
                return None
            self.facts.directories.add(self._home)
            return frozenset((self._home,))
        target = rest[0]
        if (
            target.text is None
            or target.glob
            or not target.text
            or target.text.startswith(("-", "+"))
        ):
            return None
        places = locate(target.text, -1, cwds, self.around.real)
        if places is None:
            return None
        # the shell itself computes `cd a/..`, so the result does not depend on links
        found = frozenset(p.path for p in places)
        self.facts.directories |= found
        return found

    def _bare(
        self,
        redirects: tuple[Redirect, ...],
        assigns: tuple[tuple[str, Word | None], ...],
        context: Context,
        cwds: Cwds,
        shown: str,
    ) -> None:
        Simple(self, cwds, context, redirects, assigns, shown).run([Word(":", ":")])

    def _null_command(self, redirects: tuple[Redirect, ...], command: Node | None) -> None:
        if self.shell == "zsh" and redirects and command is None:
            self.facts.reasons.append(Reason("shell", "zsh runs a program for a bare redirection"))

    def _declare(self, node: Node, cwds: Cwds, context: Context) -> Out:
        words, assigns = list[Word](), list[tuple[str, Word | None]]()
        for assign in node.get("Args") or []:
            if assign.get("Naked") and assign.get("Name") is None:
                words.append(read(assign.get("Value") or {}, self._source, self._known(cwds)))
                self.expand(assign.get("Value"), cwds, context)
            else:
                assigns += self._assigns([assign], cwds, context)
        variant = str((node.get("Variant") or {}).get("Value"))
        if any(w.text is None for w in words):
            self.facts.reasons.append(Reason("shaping", f"{variant} of an unknown variable"))
        Simple(self, cwds, context, (), tuple(assigns), _shown(node, self._source)).run(
            [Word(variant, variant), *words]
        )
        return Out(cwds, cwds)

    def _assigns(
        self, nodes: Any, cwds: Cwds, context: Context
    ) -> tuple[tuple[str, Word | None], ...]:
        found = list[tuple[str, Word | None]]()
        for node in nodes or []:
            self.expand({k: v for k, v in node.items() if k != "Name"}, cwds, context)
            name = str((node.get("Name") or {}).get("Value"))
            value = (
                read(node["Value"], self._source, self._known(cwds)) if node.get("Value") else None
            )
            if node.get("Naked"):
                continue
            if node.get("Append") or node.get("Array") or node.get("Index"):
                value = None
            elif value is None:  # `NAME=`
                value = Word("", "")
            if evaluated.assigned(name, value):
                self.evaluates(f"the value of {name}")
            found.append((name, value))
            self.facts.assignments.append(name)
            if name == "HOME":
                self._home = None
        return tuple(found)

    def _assigned(self, name: Any) -> None:
        """Note a variable that a loop or a builtin sets."""
        if isinstance(name, str):
            self.facts.assignments.append(name)
            self.facts.opened.add(name)
            if name == "HOME":
                self._home = None
            if dangerous(name, None):
                self.facts.reasons.append(Reason("shaping", name))
            if evaluated.assigned(name, None):
                self.evaluates(f"the value of {name}")

    def evaluates(self, what: str) -> None:
        """Note a value that is known only at run time and that the shell evaluates."""
        if what:
            self.facts.reasons.append(Reason("arithmetic", what))

    # ------------------------------------------------------------ words

    def _known(self, cwds: Cwds) -> Known:
        only = (
            next(iter(cwds))
            if cwds is not None and len(cwds) == 1 and "PWD" not in self.facts.assignments
            else None
        )
        return Known(self._home, only, self.shell)

    def _redirect(self, node: Node, cwds: Cwds, context: Context) -> Redirect:
        op = str(node.get("Op"))
        self.expand(node.get("Word"), cwds, context)
        self._quoted += 1  # a here-document is expanded like a text in double quotes
        self.expand(node.get("Hdoc"), cwds, context)
        self._quoted -= 1
        fd = str((node.get("N") or {}).get("Value", ""))
        if op.startswith("<<") and op != "<<<":
            self.facts.heredocs += 1
            if ends_elsewhere(node, self._source):
                self.facts.reasons.append(Reason("construct", "the end of a here-document"))
        target = read(node["Word"], self._source, self._known(cwds)) if node.get("Word") else None
        copies = (
            op in (">&", "<&")
            and target is not None
            and target.text is not None
            and target.text.rstrip("-").isdigit() | (target.text == "-")
        )
        writes = ">" in op and not copies
        places: tuple[Any, ...] | None = ()
        if not copies and not op.startswith("<<"):
            places = (
                locate(target.text, target.glob_at, cwds, self.around.real)
                if target is not None and target.text
                else None
            )
        if writes and target is not None and target.text in programs().names.harmless_files:
            writes = False
        redirect = Redirect(op, fd, target, places, writes)
        self.facts.redirects.append(redirect)
        # bash expands the word of `>&FILE` twice
        if op == ">&" and target is not None and not {*"$`"}.isdisjoint(target.text or ""):
            self.facts.reasons.append(Reason("eval", "a substitution in a redirection"))
        if "[" in fd:
            self.evaluates("a value in a subscript")
        if fd.startswith("{"):
            self._assigned(fd.strip("{}"))
        return redirect

    def expand(self, node: Any, cwds: Cwds, context: Context) -> None:
        """Walk the substitutions inside of a word, at any depth."""
        self._depth += 1
        if self._depth > DEPTH_MAX * 4:
            raise Unparseable("depth")
        try:
            if isinstance(node, list):
                for item in node:
                    self.expand(item, cwds, context)
            elif isinstance(node, dict):
                self._expand_one(node, cwds, context)
        finally:
            self._depth -= 1

    def _expand_one(self, node: Node, cwds: Cwds, context: Context) -> None:
        kind = node.get("Type")
        if kind in ("CmdSubst", "ProcSubst"):
            self._seen.add(id(node))
            self.facts.substitutions += 1
            if kind == "CmdSubst" and (node.get("TempFile") or node.get("ReplyVar")):
                self.facts.reasons.append(Reason("construct", "${ ...; }"))
            quoted, self._quoted = self._quoted, 0
            self._stmts(node.get("Stmts"), cwds, context._replace(inside="substitution", fed_by=()))
            self._quoted = quoted
            return
        if kind == "ParamExp" or "Param" in node:
            expansion = node.get("Exp") or {}
            op = str(expansion.get("Op", ""))
            if op == "@" or node.get("Flags") or node.get("GlobSubst"):
                self.facts.reasons.append(Reason("eval", "the value of a variable is expanded"))
            if "=" in op:
                self._assigned((node.get("Param") or {}).get("Value"))
        if self.shell == "zsh" and (
            kind == "ExtGlob"
            or (kind == "Lit" and "(" in str(node.get("Value", "")).replace("\\(", ""))
        ):
            self.facts.reasons.append(Reason("eval", "a pattern of zsh may run code"))
        self.evaluates(evaluated.part(node, self.shell))
        if kind == "DblQuoted" and node.get("Dollar"):
            self.facts.reasons.append(Reason("eval", "a translated text is expanded"))
        value = str(node.get("Value", ""))
        if kind in ("Lit", "SglQuoted") and subscript(value):
            self.facts.reasons.append(Reason("eval", "a substitution in a subscript"))
        # Text that shfmt takes as it is, and a shell may expand: a pattern, a quote that does not
        # quote in "${x:-'...'}", a process substitution in ${x:-<(...)}.
        if (
            (kind == "ExtGlob" and _EXPANDED.search(str(node.get("Pattern", {}).get("Value", ""))))
            or (kind == "SglQuoted" and self._quoted and not _UNEXPANDED.fullmatch(value))
            or (kind == "Lit" and not self._quoted and _EXPANDED.search(value))
        ):
            self.facts.reasons.append(Reason("eval", "a substitution in a pattern or a quote"))
        self._quoted += kind == "DblQuoted"
        try:
            for key, inner in node.items():
                if key not in ("Pos", "End") and isinstance(inner, dict | list):
                    self.expand(inner, cwds, context)
        finally:
            self._quoted -= kind == "DblQuoted"

    def add(self, command: Command) -> None:
        self.facts.commands.append(command)


def _shown(node: Node, source: bytes) -> str:
    try:
        return (
            source[node["Pos"]["Offset"] : node["End"]["Offset"]]
            .decode("utf-8", "replace")
            .rstrip(" ;&|\n")
        )
    except (KeyError, TypeError):
        return ""


def _nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _acts(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every node that runs a command or assigns."""
    return (
        n
        for n in _nodes(tree)
        if n.get("Type") in ("CallExpr", "CmdSubst", "ProcSubst", "DeclClause")
    )
