"""The world of tests/support/simulation/world.py and its network behave as the tests rely on."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.simulation.virtual_net import GIVEN_UP_S, Listener, Net
from tests.support.simulation.world import World


def rests(seconds: float) -> None:
    """In the time of the world."""
    select.poll().poll(seconds * 1000)


def test_a_day_passes_for_a_sleeping_actor_and_no_time_outside() -> None:
    real = time.monotonic
    woke: list[float] = []
    with World(1) as world:

        def sleeper() -> None:
            rests(86400.0)
            woke.append(time.monotonic())

        world.actor("one").run(sleeper)
        assert not world.until(lambda: woke, 86000.0)
        assert world.until(lambda: woke, 1000.0)
    assert time.monotonic is real


def test_of_a_machine_that_slept_one_clock_stood_still() -> None:
    seen: list[tuple[float, float]] = []
    with World(1) as world:
        actor = world.actor("laptop")

        def looks() -> None:
            for _ in range(2):
                rests(10.0)
                seen.append((time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)))

        actor.run(looks)
        world.pass_(15.0)
        actor.sleep()
        world.pass_(3600.0)
        actor.wake()
        assert world.until(lambda: len(seen) == 2, 6.0), (
            "the rest of its sleep is the remaining time"
        )
    (before, before_boot), (after, after_boot) = seen
    assert round(after - before) == 10 and round(after_boot - before_boot) == 3610


def test_a_paused_actor_keeps_its_clock_and_a_killed_actor_runs_no_thread() -> None:
    did: list[str] = []
    with World(1) as world:
        paused, killed = world.actor("paused"), world.actor("killed")

        def counts(name: str) -> None:
            for _ in range(5):
                rests(1.0)
                did.append(name)

        paused.run(partial(counts, "paused"))
        killed.run(partial(counts, "killed"))
        world.pass_(1.5)
        paused.pause()
        killed.kill()
        world.pass_(100.0)
        assert did.count("paused") == did.count("killed") == 1
        paused.go_on()
        assert world.until(lambda: did.count("paused") == 2, 0.1)
        assert world.until(lambda: did.count("paused") == 5, 4.0)
        assert did.count("killed") == 1


def test_threads_and_conditions_wait_in_its_time() -> None:
    told: list[object] = []
    condition = threading.Condition()

    def waits() -> None:
        with condition:
            told.append(condition.wait(50.0))
            told.append(condition.wait(50.0))

    def main() -> None:
        thread = threading.Thread(target=waits)
        thread.start()
        rests(10.0)
        with condition:
            condition.notify()
        thread.join()
        told.append(round(time.monotonic() - 1000.0))

    with World(1) as world:
        world.actor("one").run(main)
        assert world.until(lambda: len(told) == 3, 100.0)
    assert told == [True, False, 60]


def test_a_spinning_thread_is_an_error() -> None:
    def spins() -> None:
        poll = select.poll()
        while True:
            poll.poll(0)

    with World(1) as world, pytest.raises(AssertionError) as failed:
        world.actor("one").run(spins)
        world.pass_(10.0)
    assert "spins" in str(failed.value.__cause__)


def talk(net: Net, says: Callable[[socket.socket], None]) -> tuple[list[bytes], list[OSError]]:
    """One actor sends to another that listens."""
    heard: list[bytes] = []
    broken: list[OSError] = []
    there = net.world.actor("there")
    listener = Listener(net, there, "there.example", 1)
    net.names["there.example"] = "there"
    net.link("here", "there")

    def hears() -> None:
        while not listener.waiting:
            rests(0.01)
        sock, _ = listener.waiting.popleft()
        sock.setblocking(True)
        while data := sock.recv(1000):
            heard.append(data)

    def main() -> None:
        try:
            says(socket.create_connection(("there.example", 1), timeout=None))
        except OSError as e:
            broken.append(e)

    there.run(hears)
    net.world.actor("here").run(main)
    return heard, broken


def test_data_sent_on_a_closed_way_arrives_when_it_is_open_again() -> None:
    def says(sock: socket.socket) -> None:
        rests(1.0)
        sock.sendall(b"hello")
        rests(10000.0)

    with World(3) as world, Net(world) as net:
        heard, broken = talk(net, says)
        world.pass_(0.5)
        way = net.link("here", "there").ways["here"]
        way.close("test")
        world.pass_(100.0)
        assert not heard
        way.reopen("test")
        assert world.until(lambda: heard == [b"hello"], 130.0)
        assert not broken


def test_a_kernel_gives_up_after_a_quarter_of_an_hour_and_the_other_side_learns_nothing() -> None:
    def says(sock: socket.socket) -> None:
        rests(1.0)
        sock.sendall(b"hello")
        sock.settimeout(None)
        sock.recv(1)

    with World(3) as world, Net(world) as net:
        heard, broken = talk(net, says)
        world.pass_(0.5)
        net.link("here", "there").forget()
        assert not world.until(lambda: broken, GIVEN_UP_S - 10.0)
        assert world.until(lambda: broken, 20.0) and isinstance(broken[0], TimeoutError)
        assert not heard and world.actors["there"].fibers


def test_a_dial_to_a_dead_machine_is_refused_or_times_out_on_a_closed_way() -> None:
    with World(3) as world, Net(world) as net:
        _, broken = talk(net, lambda sock: None)
        world.actors["there"].kill()
        assert world.until(lambda: broken, 1.0) and isinstance(broken[0], ConnectionRefusedError)
    with World(3) as world, Net(world) as net:
        _, broken = talk(net, lambda sock: None)
        net.link("here", "there").ways["there"].close("test")
        assert not world.until(lambda: broken, 120.0)
        assert world.until(lambda: broken, 20.0) and isinstance(broken[0], TimeoutError)
