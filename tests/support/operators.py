"""Operators that work on one session at the same time, each in its own thread, and keep a history.

Each operator makes one request after the other, through the ordinary client: a request is repeated
with the same number when the host dies. `Typist` is attached and types keys; the others send lines,
run commands and move the turn. Their knowledge becomes a history for
`tests.support.checkers.linear`. An act that a crash may have applied twice, or half, is stated
there as unknown.
"""

from __future__ import annotations

import contextlib
import math
import random
import select
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.client.gone import HostGone
from holdfast.client.link import Link
from holdfast.model.errors import (
    HoldfastError,
    OutcomeUnknown,
    PeerFault,
    Refused,
    TurnHeld,
    Unavailable,
)
from holdfast.wire import frames
from tests.support.checkers.history import Outcome
from tests.support.checkers.linear import NOT_SAID, Act, Operation
from tests.support.stage import COLS, ROWS, Stage

PAUSE_S = 0.02  # at most, between two acts of one operator
# Without an answer to its keys in this time, the operator continues; the outcome is unknown
ANSWER_S = 60.0
TURN_ACTS = (Act.REQUEST, Act.HAND, Act.GRANT, Act.REFUSE, Act.RELEASE, Act.SEIZE, Act.SHOW)


class Operator(threading.Thread):
    """Sends lines and moves the turn."""

    def __init__(
        self,
        stage: Stage,
        session: str,
        name: str,
        names: list[str],
        seed: int,
        line: Callable[[str], str],
        weights: dict[Act, int],
        runs: bool = False,
    ) -> None:
        super().__init__(daemon=True, name=name)
        self.stage, self.session, self.names, self.line, self.weights, self.runs = (
            stage,
            session,
            names,
            line,
            weights,
            runs,
        )
        self.rng = random.Random(seed)
        self.link = Link(stage.home, name, "test", autostart=False)
        self.history: list[Operation] = []
        self.count = 0
        self.halt = threading.Event()
        self.broken: BaseException | None = None
        self.ran: set[str] = set()
        self._asked: list[str] = []

    def run(self) -> None:
        try:
            while not self.halt.wait(self.rng.uniform(0, PAUSE_S)):
                act = self.rng.choices(list(self.weights), list(self.weights.values()))[0]
                if act is Act.WRITE:
                    self.write()
                else:
                    self.move(act)
        except BaseException as e:
            self.broken = e
            raise

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask until there is an answer.

        While a host is away the outcome is not known, and the same act is requested again.
        """
        end = time.monotonic() + ANSWER_S
        while True:
            try:
                return self.link.request(op, **fields)
            except PeerFault:
                raise
            except (Unavailable, OutcomeUnknown):
                self.link.close()
                if time.monotonic() > end:
                    raise
                select.select([], [], [], PAUSE_S)

    # ------------------------------------------------------------ writing

    def write(self) -> None:
        self.count += 1
        text = f"{self.name}-{self.count}"
        running = self.runs and self.rng.random() < 0.4
        begun = time.monotonic()
        number, outcome, holder = 0, Outcome.ACKED, NOT_SAID
        # hold=0: an act of an agent that could not be judged in time, on a busy machine, would wait
        # for an approval that never comes
        try:
            if running:
                self.ran.add(text)
                answer = self.ask(
                    "run",
                    session=self.session,
                    text=self.line(text),
                    seq=self.link.next_sequence(),
                    timeout=ANSWER_S,
                    hold=0.0,
                )
                assert answer["exit_code"] == 0, answer
            else:
                number = self.ask(
                    "send",
                    session=self.session,
                    text=self.line(text) + "\n",
                    seq=self.link.next_sequence(),
                    hold=0.0,
                )["act"]
        except TurnHeld as e:
            outcome, holder = Outcome.REFUSED, str(e.facts.get("holder") or NOT_SAID)
        except Refused:
            outcome = Outcome.REFUSED
        except HoldfastError:
            outcome = Outcome.UNKNOWN
        self.wrote(text, begun, outcome, number, holder, running)

    def wrote(
        self,
        text: str,
        begun: float,
        outcome: Outcome,
        number: int = 0,
        holder: str = NOT_SAID,
        running: bool = False,
    ) -> None:
        ended = math.inf if outcome is Outcome.UNKNOWN else time.monotonic()
        self.history.append(
            Operation(self.name, Act.WRITE, begun, ended, outcome, text, number, holder=holder)
        )
        if (outcome is Outcome.REFUSED and holder == NOT_SAID) or (
            running and outcome is not Outcome.ACKED
        ):
            self.history.append(
                Operation(self.name, Act.WRITE, begun, ended, Outcome.UNKNOWN)
            )  # the act may have taken the turn

    # ------------------------------------------------------------ moving the turn

    def move(self, act: Act) -> None:
        to = ""
        if act is Act.HAND:
            to = self.rng.choice([name for name in self.names if name != self.name])
        elif act in (Act.GRANT, Act.REFUSE):
            others = [name for name in self._asked if name != self.name]
            if not others:
                return
            to = self.rng.choice(others)
        begun = time.monotonic()
        outcome, holder = Outcome.ACKED, NOT_SAID
        told: str | None = holder
        try:
            if act is Act.SEIZE:
                told = self.ask("seize", session=self.session)["previous"]
            else:
                turn = self.ask("turn", session=self.session, act=str(act), to=to or None)["turn"]
                self._asked = turn["waiting"] if turn else []
                if act in (Act.SHOW, Act.REQUEST):
                    told = turn["holder"] if turn else None
        except TurnHeld as e:
            outcome, told = Outcome.REFUSED, str(e.facts.get("holder") or NOT_SAID)
        except Refused:
            outcome = Outcome.REFUSED
        except HoldfastError:
            outcome, told = Outcome.UNKNOWN, NOT_SAID
        self.history.append(
            Operation(
                self.name,
                act,
                begun,
                math.inf if outcome is Outcome.UNKNOWN else time.monotonic(),
                outcome,
                to=to,
                holder=told,
            )
        )

    def release(self) -> None:
        self.move(Act.RELEASE)

    def close(self) -> None:
        self.link.close()


class Typist(Operator):
    """An attached operator that sends lines as keys.

    Reconnects when the host dies, and resends keys that were not taken.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._attached: object = None
        self._acked = 0

    def write(self) -> None:
        self.count += 1
        text, number = f"{self.name}-{self.count}", self.link.next_sequence()
        data = (self.line(text) + "\n").encode()
        begun = time.monotonic()
        outcome, holder, sent_on = Outcome.UNKNOWN, NOT_SAID, None
        try:
            while time.monotonic() < begun + ANSWER_S:
                try:
                    self._attach()
                    if self._acked >= number:
                        outcome = Outcome.ACKED
                        break
                    if sent_on is not self.link.sock:
                        sent_on = self.link.sock
                        self.link.send(frames.input_(number, data, frames.INPUT_ACK))
                    refusal = self._hear(number)
                    if refusal is not None:
                        outcome, holder = (
                            Outcome.REFUSED,
                            refusal.get("facts", {}).get("holder") or NOT_SAID,
                        )
                        break
                except HostGone:
                    self.link.close()
        except HoldfastError:
            pass
        self.wrote(text, begun, outcome, holder=holder)

    def _attach(self) -> None:
        if self.link.sock is None or self._attached is not self.link.sock:
            answer = self.ask("attach", session=self.session, cols=COLS, rows=ROWS, scrollback=0)
            self._attached, self._acked = self.link.sock, max(self._acked, answer["acked"])

    def _hear(self, number: int) -> dict[str, Any] | None:
        """Read a frame; return the frame if it refuses this input."""
        kind, payload = self.link.receive(ANSWER_S)
        if kind == frames.OUTPUT:
            self._acked = max(self._acked, frames.read_output(payload)[2])
        elif kind == frames.SCREEN:
            self._acked = max(self._acked, frames.read_screen(payload)[1])
        elif kind == frames.EVENT:
            event = frames.read_json(payload)
            if event["event"] == "refused" and event.get("number") == number:
                return event
        return None

    def move(self, act: Act) -> None:
        if act is not Act.LEAVE:
            return super().move(act)
        begun = (
            time.monotonic()
        )  # the connection drops; the host has noticed when it welcomes the next one, or has died
        self.link.close()
        with contextlib.suppress(HoldfastError):
            self._attach()
        self.history.append(
            Operation(self.name, Act.LEAVE, begun, time.monotonic(), Outcome.UNKNOWN)
        )


def history_of(operators: list[Operator], crashes: list[tuple[float, float]]) -> list[Operation]:
    """The whole history.

    A host that died may have applied the act under way; a turn given by that host died with the
    host.
    """
    history = [op for one in operators for op in one.history]
    for begun, dead in crashes:
        history.append(Operation("", Act.RESTART, begun, dead))
        for one in operators:
            for op in one.history:
                if (
                    op.invoked < dead
                    and op.returned > begun
                    and op.outcome is not Outcome.UNKNOWN
                    and op.act is not Act.SHOW
                ):
                    history.append(
                        Operation(op.operator, op.act, op.invoked, dead, Outcome.UNKNOWN, to=op.to)
                    )
                    if op.text in one.ran:  # a run that goes on takes the turn again
                        history.append(
                            Operation(op.operator, op.act, begun, op.returned, Outcome.UNKNOWN)
                        )
    return history
