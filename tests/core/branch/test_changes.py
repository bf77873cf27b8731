"""What a branch changed, and how its files get into the parent's directory (R5).

Random directories and layers are compared with a model: a directory is a dict of its paths.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from holdfast.core.branch import changes, keeping
from holdfast.core.branch.changes import (
    ADDED,
    CHANGED,
    DIRECTORY,
    FILE,
    KIND,
    LINK,
    MODE,
    REMOVED,
    RENAMED,
    WHITEOUT,
    Entry,
    compare,
    over,
    parents,
    with_renames,
)

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
State = dict[str, Entry]


def file(text: str, mode: int = 0o644, layer: int = 0) -> Entry:
    """A file whose content is `text`: for these tests the field of a link has it."""
    return Entry(FILE, mode, len(text), text, layer)


LEAVES = st.one_of(
    st.builds(file, st.text("xy", max_size=2), st.sampled_from([0o644, 0o755])),
    st.builds(lambda text: Entry(LINK, 0o777, 1, text), st.text("xy", min_size=1, max_size=1)),
)


def tree(found: dict[str, Entry]) -> State:
    """A directory with these entries: directories above are made, and nothing is below a file."""
    made: State = {}
    for path, entry in sorted(found.items()):
        above = [*parents(path)]
        if any(one in made and made[one].kind != DIRECTORY for one in above):
            continue
        for one in above:
            made.setdefault(one, Entry(DIRECTORY, 0o755))
        made[path] = entry
    return made


STATES = st.dictionaries(PATHS, LEAVES, max_size=6).map(tree)


def same(path: str, old: Entry, new: Entry) -> bool:
    return old.text == new.text


def content(path: str, entry: Entry) -> str:
    return entry.text


def layer(before: State, after: State) -> State:
    """The upper layer that overlayfs has after programs changed one state to the other."""
    found: State = {}
    for path, entry in after.items():
        old = before.get(path)
        fresh = entry.kind == DIRECTORY and (old is None or old.kind != DIRECTORY)
        if old == entry and not fresh:
            continue
        found[path] = entry._replace(layer=1, opaque=fresh and old is not None)
        for above in parents(path):
            if above not in found:
                found[above] = after[above]._replace(layer=1)
    for path in before:
        if path in after or any(one not in after for one in parents(path)):
            continue
        if any(
            after[one].kind != DIRECTORY or found.get(one, after[one]).opaque
            for one in parents(path)
        ):
            continue
        found[path] = Entry(WHITEOUT, layer=1)
        for above in parents(path):
            found.setdefault(above, after[above]._replace(layer=1))
    return found


def plain(state: State) -> State:
    return {path: one._replace(layer=0, opaque=False) for path, one in state.items()}


@given(STATES, STATES)
def test_r5_a_layer_over_the_base_is_what_programs_see(before: State, after: State) -> None:
    assert plain(over(before, layer(before, after))) == after


@given(STATES, STATES)
def test_r5_the_changes_turn_the_base_into_the_branch(before: State, after: State) -> None:
    found = compare(before, over(before, layer(before, after)), same)
    assert compare(before, before, same) == []
    assert {one.path for one in found} == {
        path for path in {*before, *after} if before.get(path) != after.get(path)
    }
    for one in found:
        assert one.what in (ADDED, REMOVED, CHANGED, MODE, KIND)
        assert (one.before is None, one.after is None) == (one.what == ADDED, one.what == REMOVED)


@given(STATES, STATES)
def test_r5_renames_keep_every_change(before: State, after: State) -> None:
    found = compare(before, over(before, layer(before, after)), same)
    joined = with_renames(found, content)
    renamed = [one for one in joined if one.what == RENAMED]
    for one in renamed:
        assert one.before is not None and one.after is not None
        assert one.before.text == one.after.text and before[one.source].kind == FILE
        assert one.source not in after and one.path not in before
    assert len({one.source for one in renamed}) == len(renamed)
    assert len(joined) + len(renamed) == len(found)


@given(STATES, STATES)
def test_r5_keep_makes_the_directory_as_the_branch(before: State, after: State) -> None:
    found = compare(before, over(before, layer(before, after)), same)
    made = keeping.plan(found, before, before, same)
    assert not made.conflicts and not made.done
    assert plain(keeping.applied(before, made.steps)) == after


@given(STATES, STATES, STATES)
def test_r5_keep_never_overwrites_what_has_changed_since(
    before: State, after: State, now: State
) -> None:
    """Without a conflict, other paths stay, and changed ones are those of the branch."""
    found = compare(before, over(before, layer(before, after)), same)
    made = keeping.plan(found, before, now, same)
    touched = {one.path for one in found}
    for one in made.steps:
        assert now.get(one.path) == before.get(one.path), "it is as at the fork"
    if made.conflicts:
        return
    result = plain(keeping.applied(now, made.steps))
    for path in touched:
        assert result.get(path) == after.get(path)
    for path in {*now} - touched:
        assert result.get(path) == now[path]


@given(STATES, STATES, STATES)
def test_r5_every_conflict_can_be_decided(before: State, after: State, now: State) -> None:
    """And the steps of each decision can be carried out."""
    found = compare(before, over(before, layer(before, after)), same)
    conflicts = {one.path for one in keeping.plan(found, before, now, same).conflicts}
    left = keeping.plan(found, before, now, same, leave=conflicts)
    assert not {one.path for one in left.steps} & conflicts
    taken = keeping.plan(found, before, now, same, take=conflicts)
    assert not taken.conflicts
    result = plain(keeping.applied(now, taken.steps))
    assert {one.path: result.get(one.path) for one in found} == {
        one.path: after.get(one.path) for one in found
    }


@given(STATES, STATES, STATES, st.sets(PATHS, max_size=3), st.sets(PATHS, max_size=3))
def test_r5_a_path_that_the_operator_leaves_stays_whatever_is_taken(
    before: State, after: State, now: State, take: set[str], leave: set[str]
) -> None:
    found = compare(before, over(before, layer(before, after)), same)
    made = keeping.plan(found, before, now, same, take, leave)
    if made.conflicts:
        return
    result = plain(keeping.applied(now, made.steps))
    for path in now:
        if path in leave or any(above in leave for above in parents(path)):
            assert result.get(path) == now[path]


def test_r5_a_socket_of_the_parent_conflicts() -> None:
    """A fork does not copy it, so the branch does not know it."""
    base = {"d": Entry(DIRECTORY, 0o755), "d/a": file("x")}
    now = {**base, "d/s": Entry(changes.OTHER), "new": Entry(changes.OTHER)}
    found = compare(base, {"new": file("y")}, same)
    made = keeping.plan(found, base, now, same)
    assert {one.path for one in made.conflicts} == {"d", "new"}


@given(STATES, STATES, st.integers(0, 20))
def test_r5_keep_can_be_repeated_after_a_crash_at_any_step(
    before: State, after: State, count: int
) -> None:
    """The plan for a directory where some steps are done has exactly the other steps."""
    found = compare(before, over(before, layer(before, after)), same)
    made = keeping.plan(found, before, before, same)
    halfway = plain(keeping.applied(before, made.steps[:count]))
    again = keeping.plan(found, before, halfway, same, take={one.path for one in found})
    assert plain(keeping.applied(halfway, again.steps)) == after
    assert len(again.steps) <= len(made.steps)


def test_r5_words_of_changes() -> None:
    one = changes.Change("x", ADDED, None, file("x"))
    assert one.letter == "A"
    assert not compare({"d": Entry(DIRECTORY, 1)}, {"d": Entry(DIRECTORY, 1, layer=1)}, same)
    assert [*parents("a/b/c")] == ["a/b", "a"]
