"""Which connections were lost, decided from two looks at the kernel's tables (R4)."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.session.connection_losses import Change, Namespace, Row, Table

SILENT_S = 30.0


def row(inode: int, state: str = "established", stuck: bool = False, unacked: int = 0) -> Row:
    return Row("tcp", f"10.0.0.1:{inode}", "10.0.0.2:80", state, inode, unacked, stuck)


def finishing(inode: int) -> Row:
    """What the kernel lists of a connection that its program has closed."""
    return row(inode, "closed")._replace(inode=0)


class Story:
    def __init__(self, *inodes: int) -> None:
        self.namespace, self.now, self.resets, self.timeouts = Namespace(SILENT_S), 0.0, 100, 7
        self.look([row(one) for one in inodes])
        for one in inodes:
            self.namespace.track(row(one))
        self.look([row(one) for one in inodes])

    def look(
        self,
        rows: Iterable[Row],
        held: Iterable[int] = (),
        resets: int = 0,
        timeouts: int = 0,
        after: float = 2.0,
    ) -> list[Change]:
        self.now += after
        self.resets += resets
        self.timeouts += timeouts
        table = Table(tuple(rows), self.resets, self.timeouts)
        held = set(held) & self.namespace.missing(table)
        return self.namespace.looked(table, held, self.now)


def kinds(changes: Iterable[Change]) -> list[str]:
    return [one.kind for one in changes]


def test_r4_a_reset_that_the_program_has_not_noticed() -> None:
    assert Story(5).look([], held=[5], resets=1) == [Change(5, "reset", 0)]


def test_r4_a_reset_that_the_program_noticed_at_once() -> None:
    assert Story(5).look([], resets=1) == [Change(5, "reset", 0)]


def test_r4_an_orderly_close_is_no_loss() -> None:
    story = Story(5, 6, 7, 8)
    now = story.look([finishing(5), row(6, "closing"), row(7), row(8, "close-wait")])
    assert now == [Change(5, "closed", 0)]
    assert kinds(story.look([finishing(5), finishing(6)])) == ["closed"] * 3, "not 5 again"
    assert not story.namespace.tracked


def test_r4_a_reset_elsewhere_makes_it_unsure() -> None:
    """Two connections are gone, and one was reset. 9 is of another program."""
    story = Story(5)
    story.look([row(5), row(9)])
    assert story.look([], resets=1) == [Change(5, "reset", 0, sure=False)]


def test_r4_both_ends_here_are_one_connection() -> None:
    story = Story(5)
    other = Row("tcp6", "[::ffff:10.0.0.2]:80", "[::ffff:10.0.0.1]:5", "established", 9, 0, False)
    story.look([row(5), other])
    assert story.look([], resets=1) == [Change(5, "reset", 0)]


def test_r4_a_silent_peer_is_told_once_and_may_recover() -> None:
    story = Story(5)
    stuck = row(5, stuck=True, unacked=17)
    assert story.look([stuck]) == []
    assert story.look([stuck], after=SILENT_S) == [Change(5, "silent", 17)]
    assert story.look([stuck], after=SILENT_S) == []
    assert story.look([row(5)]) == [Change(5, "recovered", 0)]
    assert story.look([row(5)]) == []


def test_r4_the_kernel_gives_a_silent_peer_up() -> None:
    story = Story(5)
    stuck = row(5, stuck=True, unacked=17)
    story.look([stuck])
    story.look([stuck], after=SILENT_S)
    assert story.look([], held=[5], resets=1, timeouts=1) == [Change(5, "timeout", 17)]


def test_r4_a_silent_peer_that_answers_with_a_reset() -> None:
    story = Story(5)
    story.look([row(5, stuck=True, unacked=17)])
    assert story.look([], held=[5], resets=1) == [Change(5, "reset", 17)]


STATES = st.sampled_from(["established", "close-wait", "closing", "gone", "finishing", "stuck"])


@given(
    st.lists(
        st.tuples(
            st.lists(STATES, min_size=3, max_size=3), st.sets(st.integers(1, 3)), st.integers(0, 3)
        ),
        max_size=12,
    )
)
def test_r4_each_loss_is_told_at_most_once_and_only_with_a_reason(
    looks: list[tuple[list[str], set[int], int]],
) -> None:
    story, lost = Story(1, 2, 3), dict[int, str]()
    for states, held, resets in looks:
        rows = list[Row]()
        for inode, state in enumerate(states, 1):
            if state == "finishing":
                rows.append(finishing(inode))
            elif state == "stuck":
                rows.append(row(inode, stuck=True))
            elif state != "gone":
                rows.append(row(inode, state))
        listed = {one.inode for one in rows}
        before = set(story.namespace.tracked)
        for change in story.look(rows, held, resets):
            assert change.inode in before
            if change.kind in ("reset", "timeout"):
                assert change.inode not in lost and change.inode not in listed
                assert change.inode in held or resets > 0
                lost[change.inode] = change.kind
            elif change.kind == "closed":
                assert change.inode not in lost and change.inode not in listed
            else:
                assert change.inode in listed
        assert set(story.namespace.tracked) == before & listed
