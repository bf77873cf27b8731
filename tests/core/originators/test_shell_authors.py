"""Authors of shell state (P3): random changes, with snapshots that arrive or are missed."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.core.originators.lineage import Cause
from holdfast.core.originators.originators import UNKNOWN
from holdfast.core.originators.shell_authors import CWD, Shape
from holdfast.core.originators.shell_state import Piece, Snapshot
from tests.support.examples import examples

ACTORS = ("ann", "bob", "eve")
PIECES: list[Piece] = [
    ("variable", "x"),
    ("variable", "PROMPT_COMMAND"),
    ("alias", "ls"),
    ("option", "noglob"),
    ("trap", "INT"),
    CWD,
    ("function", "f"),
    ("function", "g"),
]


def snap(
    seq: int,
    values: dict[Piece, bytes],
    path: tuple[str, ...] = ("/bin",),
    functions: bool = True,
    traps: bool = True,
) -> Snapshot:
    kept = {
        p: v
        for p, v in values.items()
        if (p[0] != "function" or functions) and (p[0] != "trap" or traps)
    }
    return Snapshot(seq, kept, path, "/", frozenset(), {}, {}, functions, traps)


class People(RuleBasedStateMachine):
    """Compare with a reference: value, last author, and author of the last seen value.

    A change that is undone before the next snapshot does not count.
    """

    @initialize()
    def start(self) -> None:
        self.shape, self.seq, self.act = Shape(), 1, 0
        self.base: dict[Piece, bytes] = {("variable", "x"): b"0", ("function", "f"): b"0"}
        self.now = dict(self.base)
        self.path: tuple[str, ...] = ("/bin",)
        self.last: dict[Piece, str] = {}
        self.seen, self.maker = dict(self.now), dict[Piece, str]()
        self.path_by: dict[str, str] = {}
        self.unseen = False
        self.shape.snapshot(snap(1, self.now))

    @rule(
        who=st.sampled_from(ACTORS),
        changes=st.dictionaries(
            st.sampled_from(PIECES), st.sampled_from([None, b"0", b"1", b"2"]), max_size=3
        ),
        missed=st.booleans(),
        listed=st.booleans(),
        path=st.permutations(["/bin", "/evil", "/usr"]).flatmap(
            lambda p: st.integers(1, 3).map(lambda n: tuple(p[:n]))
        ),
        moves=st.booleans(),
    )
    def command(
        self,
        who: str,
        changes: dict[Piece, bytes | None],
        missed: bool,
        listed: bool,
        path: tuple[str, ...],
        moves: bool,
    ) -> None:
        self.act += 1
        defines = any(p[0] == "function" for p in changes)
        self.shape.began(Cause(who, self.act), self.seq + 1, defines)
        for piece, value in changes.items():
            if self.now.get(piece) != value:
                self.last[piece] = who
            self.now.pop(piece, None)
            if value is not None:
                self.now[piece] = value
        if moves:
            for entry in path:
                before = set(self.path[: self.path.index(entry)]) if entry in self.path else None
                if before is None or before - set(path[: path.index(entry)]):
                    self.path_by[entry] = who
            self.path = path
        self.seq += 2
        if missed:
            self.shape.missed(self.seq)
            self.unseen = True
        else:
            self.shape.snapshot(snap(self.seq, self.now, self.path, functions=listed or defines))
            self.unseen = False
            for piece in PIECES:
                if (piece[0] != "function" or listed or defines) and self.seen.get(
                    piece
                ) != self.now.get(piece):
                    self.maker[piece] = self.last[piece]
                    self.seen = {p: v for p, v in self.seen.items() if p != piece} | (
                        {piece: self.now[piece]} if piece in self.now else {}
                    )

    @rule()
    def next_host(self) -> None:
        saved = json.loads(json.dumps(self.shape.save()))
        self.shape = Shape()
        self.shape.restore(saved)
        assert (
            self.shape.save() == json.loads(json.dumps(saved))
            or json.loads(json.dumps(self.shape.save())) == saved
        )

    @rule()
    def repeat(self) -> None:
        """Repeated marks have no effect."""
        before = json.dumps(self.shape.save())
        self.shape.snapshot(snap(self.seq, {}))
        self.shape.missed(self.seq)
        self.shape.began(Cause("eve", 99), self.seq)
        assert json.dumps(self.shape.save()) == before

    @invariant()
    def every_possible_author_is_named(self) -> None:
        view = self.shape.view
        if self.unseen:
            assert view.blind
            return
        assert not view.blind
        for piece in PIECES:
            hands = view.authors.get(piece)
            if piece[0] == "function" and not view.functions:
                continue
            if self.now.get(piece) == self.base.get(piece):
                assert hands is None
            else:
                assert hands is not None and {self.maker[piece], UNKNOWN} & {
                    hand.actor for hand in hands
                }, (piece, hands)
                sure = [hand.actor for hand in hands if hand.sure]
                assert sure in ([], [self.maker[piece]])
        if self.path == ("/bin",):
            assert not [p for p in view.authors if p[0] == "path"]
        else:
            for entry in self.path:
                if entry in self.path_by and ("path", entry) in view.authors:
                    assert {hand.actor for hand in view.authors["path", entry]} & {*ACTORS, UNKNOWN}


TestPeople = People.TestCase
TestPeople.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)


def test_p3_one_command_between_two_looks_is_the_author_for_certain() -> None:
    shape = Shape()
    shape.snapshot(snap(1, {}))
    shape.began(Cause("eve", 7, ("bob",)), 2)
    shape.snapshot(snap(3, {("alias", "ls"): b"1"}, ("/evil", "/bin")))
    for piece in (("alias", "ls"), ("path", "/evil")):
        assert [tuple(hand) for hand in shape.view.authors[piece]] == [
            ("eve", 7, True),
            ("bob", None, False),
        ]
    assert ("path", "/bin") not in shape.view.authors and shape.view.shadowed("bob") == {"ls"}


def test_p3_after_a_missed_snapshot_every_actor_is_possible_and_none_certain() -> None:
    shape = Shape()
    shape.snapshot(snap(1, {}))
    shape.began(Cause("eve", 1), 2)
    shape.missed(3)
    assert shape.view.blind
    shape.began(Cause("bob", 2), 4)
    shape.snapshot(snap(5, {("alias", "ls"): b"1"}))
    assert [tuple(hand) for hand in shape.view.authors["alias", "ls"]] == [
        ("eve", 1, False),
        ("bob", 2, False),
    ] and not shape.view.blind


def test_p3_a_change_without_a_command_has_no_certain_author() -> None:
    shape = Shape()
    shape.snapshot(snap(1, {}))
    shape.snapshot(snap(2, {("variable", "x"): b"1"}))
    assert {hand.actor for hand in shape.view.authors["variable", "x"]} == {UNKNOWN}
    shape.began(Cause("eve", 1), 3)
    shape.snapshot(snap(4, {("variable", "x"): b"1", ("variable", "PROMPT_COMMAND"): b"1"}))
    shape.snapshot(snap(5, {("variable", "x"): b"2", ("variable", "PROMPT_COMMAND"): b"1"}))
    assert {hand.actor for hand in shape.view.authors["variable", "x"]} == {"eve", UNKNOWN}


def test_p3_an_ended_command_without_a_snapshot_leaves_the_authors_uncertain() -> None:
    shape = Shape()
    shape.snapshot(snap(1, {}))
    shape.began(Cause("eve", 1), 2, over=True)
    assert shape.view.blind and not shape.quiet
    shape.began(Cause("bob", 2), 3)
    shape.snapshot(snap(4, {("alias", "ls"): b"1"}))
    assert [(hand.actor, hand.sure) for hand in shape.view.authors["alias", "ls"]] == [
        ("eve", False),
        ("bob", False),
    ]


def test_p3_a_baseline_that_came_late_leaves_something_unknown() -> None:
    shape = Shape()
    shape.snapshot(snap(4, {}))
    assert "its start" in shape.view.blind


@given(st.text())
def test_any_text_can_be_asked_about(text: str) -> None:
    shape = Shape()
    assert shape.may_define(text)
    shape.snapshot(snap(1, {("function", "f"): b""})._replace(aliases={"l": ("ls",)}))
    assert isinstance(shape.may_define(text), bool)


def test_p3_texts_that_may_define_functions() -> None:
    shape = Shape()
    shape.snapshot(snap(1, {("function", "f"): b""})._replace(aliases={"l": ("ls",)}))
    for text in (
        "ls -l",
        "git status | head -3; X=1 make -j2",
        "echo $(date) ${x:-y}",
        "cd /tmp && ls",
        "x=1",
    ):
        assert not shape.may_define(text), text
    for text in (
        "g() { :; }",
        "function g { :; }",
        "eval x",
        ". file",
        "source file",
        "f",
        "l",
        "x=1 f",
        "true; f",
        "ls | while read x; do f; done",
        "declare -f",
        "unset -f f",
        "!!",
        "ls\t",
        "\\f",
        "echo a\nf",
        "builtin eval x",
        "jobs -x . file",
        "compgen -F f",
        "- . file",
        "'ls'",
        "$x",
        "{ f; }",
        "(f)",
        "cat <<E\nE",
        "a=(1) f",
    ):
        assert shape.may_define(text), text


def test_p3_the_author_of_a_function_is_a_command_that_may_define_some() -> None:
    for defines, wanted in (
        ("", {("ann", False), ("bob", False)}),
        ("ann", {("ann", True)}),
        ("ann bob", {("ann", False), ("bob", False)}),
    ):
        shape = Shape()
        shape.snapshot(snap(1, {}))
        for seq, actor in ((2, "bob"), (4, "ann")):
            shape.began(Cause(actor, seq), seq, defines=actor in defines)
            shape.snapshot(snap(seq + 1, {("function", "f"): b""}, functions=actor == "ann"))
        hands = shape.view.authors["function", "f"]
        assert {(hand.actor, hand.sure) for hand in hands} == wanted, defines


def test_p3_the_authors_of_the_state_that_a_text_uses() -> None:
    shape = Shape()
    shape.snapshot(snap(1, {}))
    shape.began(Cause("eve", 1), 2)
    shape.snapshot(snap(3, {("alias", "ls"): b"1", ("function", "f"): b"1"}))
    assert [
        shape.through(text) for text in ("ls -l", "true; f", "x=$(ls)", "echo fls", "make")
    ] == [("eve",), ("eve",), ("eve",), (), ()]
    assert all(
        shape.through(text) == ("eve",)
        for text in (None, "$x", "true; $x", "eval y", "\\l\\s", ". file", "`x`")
    )
    shape.began(Cause("bob", 2), 4, through=shape.through("make"))
    shape.snapshot(
        snap(5, {("alias", "ls"): b"1", ("function", "f"): b"1", ("variable", "y"): b"1"})
    )
    assert [hand.actor for hand in shape.view.authors["variable", "y"]] == ["bob"]
    shape.began(Cause("bob", 3), 6, through=shape.through("ls"))
    shape.snapshot(
        snap(7, {("alias", "ls"): b"1", ("function", "f"): b"1", ("variable", "y"): b"2"})
    )
    assert [(hand.actor, hand.sure) for hand in shape.view.authors["variable", "y"]] == [
        ("bob", True),
        ("eve", False),
    ]


def test_p3_files_that_a_shell_may_source() -> None:
    shape = Shape()
    shape.snapshot(snap(1, {})._replace(aliases={"act": (".",), "l": ("ls",)}))
    for text in (
        None,
        ". file",
        "cd x && . file",
        "source file",
        "if . file; then ls; fi",
        "eval x",
        "act",
        "true; act",
        "\\. file",
        "'source' file",
        "$x file",
        "builtin . file",
        "{ . file; }",
    ):
        assert shape.reads_in(text), text
    for text in ("ls .", "l -l", "find . -name x", "cp a .", "./run.sh", "x=1", "git add ."):
        assert not shape.reads_in(text), text


def test_p3_aliases_that_count_for_any_word_are_run_through_as_well() -> None:
    """zsh: `alias -g G=...`, and `alias -s txt=...` for names that end so."""
    shape = Shape()
    shape.snapshot(snap(1, {}))
    shape.began(Cause("eve", 1), 2)
    shape.snapshot(
        snap(3, {("alias", "G"): b"; . /evil", ("alias", ".txt"): b"source"})._replace(
            anywhere=frozenset(("G", ".txt"))
        )
    )
    for text in ("echo a G", "notes.txt", "true; ./notes.txt"):
        assert (
            shape.through(text) == ("eve",) and shape.may_define(text) and shape.reads_in(text)
        ), text
    for text in ("echo a g", "txt", "make"):
        assert (
            shape.through(text) == () and not shape.may_define(text) and not shape.reads_in(text)
        ), text


def test_p3_the_initial_state_of_a_session_belongs_to_its_spawner() -> None:
    shape = Shape({"TARGET": "eve", "PATH": "eve", "GONE": "eve"})
    shape.snapshot(snap(1, {("variable", "TARGET"): b"1", ("variable", "x"): b"1"}))
    assert (
        set(shape.view.authors) == {("variable", "TARGET"), ("path", "/bin")}
        and not shape.view.blind
    )
    shape.began(Cause("bob", 1), 2)
    shape.snapshot(snap(3, {("variable", "TARGET"): b"2", ("variable", "x"): b"1"}))
    assert [hand.actor for hand in shape.view.authors["variable", "TARGET"]] == ["bob"]
