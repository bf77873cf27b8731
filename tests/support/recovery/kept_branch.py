"""A branch whose layer a test fills, and the directory of its parent."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.host.branches import apply as applying
from holdfast.host.branches import keep
from holdfast.host.branches.parts import own_layer
from holdfast.host.branches.snapshot import Snapshot
from holdfast.host.branches.store import FILES, Branch, Fork, Forks, Tree

BRANCH, INSIDE = "branch", "/work"


class Stage:
    """A parent's directory, and a branch of it whose layer the test fills."""

    def __init__(self, top: Path) -> None:
        self.now = top / "now"
        (self.now / "deep").mkdir(parents=True)
        for name in ("file", "gone", "deep/a", "deep/b"):
            (self.now / name).write_text(f"{name}\n")
        self.forks = Forks(str(top))
        fork = self.forks.begin()
        base = self.forks.place(fork) / "base/0"
        copy = Snapshot(str(self.now), str(base))
        copy.first()
        copy.finish()
        tree = Tree(0, INSIDE, str(self.now), FILES, (str(base),))
        self.fork = Fork(fork, 1.0, "ann", "p", "p", 1, 1, "", [tree], [Branch(BRANCH, "b")])
        self.fork.attributes = not copy.lacks
        self.forks.commit(self.fork)
        self.layers = self.forks.layers(fork, BRANCH)
        self.upper = Path(own_layer(str(self.layers), tree), "upper")
        self.upper.mkdir(parents=True)
        self.upper.chmod(self.now.stat().st_mode)

    def decide(self, take: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> keep.Decided:
        decided = keep.decide(
            self.fork,
            str(self.layers),
            [f"{INSIDE}/{one}" for one in take],
            [f"{INSIDE}/{one}" for one in leave],
        )
        assert decided.conflicts == []
        return decided

    def stage(self, take: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> None:
        keep.stage(self.forks, self.fork, BRANCH, self.decide(take, leave))

    def apply(self) -> set[str]:
        """Return the paths that were left."""
        return {*self.left()}

    def left(self) -> dict[str, str]:
        """Apply the keep; return the paths that were left, with the reasons."""
        left = applying.apply(self.forks, self.fork).left
        assert not [*self.now.rglob(f"{applying.TEMPORARY}*")]
        assert not applying.pending(self.forks, self.fork)
        return {one.path.removeprefix(f"{INSIDE}/"): one.why for one in left}

    def removed(self, name: str) -> None:
        """The branch removed an entry."""
        path = self.upper / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, 0o20000, os.makedev(0, 0))
