"""Sessions under load, with the histories that are needed to judge them afterwards."""

from __future__ import annotations

import random
from pathlib import Path

from holdfast.core.screen.filter import ViewerFilter
from tests.support import workload
from tests.support.checkers.history import (
    Fault,
    Kind,
    check_exits,
    check_input,
    check_output,
    check_processes,
)
from tests.support.clients import Attached, Lean
from tests.support.stage import Stage


def stripped(raw: bytes) -> bytes:
    """The part of a stream that viewers get, for a stream that begins here."""
    return bytes(ViewerFilter().feed(raw))


class Busy:
    """A session that floods and records, with viewers that type."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        code: int,
        burst: int = 16,
        pause_ms: int = 30,
        viewers: int = 2,
    ) -> None:
        self.stage, self.name, self.code = stage, name, code
        self.path = f"{stage.directory}/{name}.typed"
        stage.work(name, "busy", self.path, burst, pause_ms, code)
        self.viewers = [Lean(stage, name) for _ in range(viewers)]
        self.dead: list[Lean] = []
        for viewer in self.viewers:
            viewer.attached()
        self.identity = stage.identities(name)
        self.attached: Attached | None = None

    def type(self, rng: random.Random) -> None:
        """Type an input at a random client of the session."""
        viewer = rng.choice(self.viewers)
        size = rng.choice((8, 12, 40, 40, 200, 3000))
        viewer.type(workload.tagged(viewer.client, viewer.number + 1, size), ack=rng.random() < 0.3)

    def replace(self, viewer: Lean) -> Lean:
        """Kill that viewer and attach a new viewer."""
        viewer.kill()
        self.viewers.remove(viewer)
        self.dead.append(viewer)
        fresh = Lean(self.stage, self.name)
        self.viewers.append(fresh)
        return fresh

    def stop(self, may_skip: bool = False) -> list[Fault]:
        """End the program and judge the whole history.

        `may_skip`: the program floods faster than a busy machine lets the test read, and a viewer
        that is far behind is shown the newest screen.
        """
        stage = self.stage
        stage.pump.until(
            lambda: all(v.live for v in self.viewers), f"viewers of {self.name} are back"
        )
        faults = check_processes(self.identity, {self.name: stage.identity(self.name)})
        self.viewers[0].type(b"")  # a last input to acknowledge, behind all others
        for viewer in self.viewers:
            if viewer.number:
                viewer.type(workload.tagged(viewer.client, viewer.number + 1, 12))
        stage.pump.until(
            lambda: all(v.settled for v in self.viewers),
            lambda: f"all input of {self.name} is acknowledged: {self.unsettled()}",
        )
        stop = Lean(stage, self.name).attached()
        stop.type(workload.STOP)
        stage.pump.until(
            lambda: all(v.ended is not None or v.error for v in self.viewers),
            lambda: f"{self.name} ends: {self.unsettled()}",
        )
        stage.pump.until(
            lambda: Path(self.path + ".count").exists(),
            lambda: f"{self.name} has ended by itself: {self.unsettled()}",
        )
        received = Path(self.path).read_bytes()
        count = int(Path(self.path + ".count").read_text())
        raw = workload.flood(count)
        faults += check_input(
            [one for v in (*self.viewers, *self.dead) for one in v.history()], received
        )
        for viewer in self.viewers:
            faults += check_output(
                viewer.log, raw, strip=stripped, until=len(raw), may_skip=may_skip
            )
        for viewer in self.dead:
            faults += check_output(viewer.log, raw, strip=stripped, may_skip=may_skip)
        if (end := stage.session(self.name)["output"]["end"]) != len(raw):
            faults.append(
                Fault(
                    Kind.INCOMPLETE,
                    f"the session kept output up to {end} of {len(raw)}; "
                    f"its events {stage.events(self.name)[-4:]}",
                )
            )
        faults += check_exits({self.name: self.code}, {self.name: stage.exit_code(self.name)})
        stop.close()
        return faults

    def unsettled(self) -> list[str]:
        return [
            f"client {v.client}: live {v.live}, acked {v.acked} of {v.number}, "
            f"refused {sorted(v.refused)[:5]}, at {v.position}, error {v.error}, "
            f"ended {v.ended}"
            for v in self.viewers
        ]

    @property
    def shown(self) -> int:
        return sum(v.position or 0 for v in self.viewers)
