"""The measures of latency and throughput. Memory, idling and survival are in standing.py.

A measure takes a tool and gives {metric: value}. None as a value means "not within the limit"; a
metric that is absent does not apply.

    echo              one byte typed into an attached client until its echo arrives
    bulk_KIND_N       a file of log lines printed to N viewers, until the last viewer saw the end;
                      N=0: until the program is done
    commands          processor time of the client process of list, run and attach-and-leave,
                      divided by that of `python -c pass`; the two alternate, so that both meet
                      the same machine
    create[_cold]     from the start of `create and attach` to a visible prompt; with the tool
                      running, or (cold) with no process of the tool
    reattach_KIND     a client returns to a full-screen program with 50,000 lines of history, until
                      first and last row are there
    stall             a flood to one viewer that reads, beside one that stopped reading

Besides times, a measure gives the processor time of the tool's own processes (clients, servers,
keepers; not the program, not the harness). Processor time hardly depends on other load, so it tells
two versions of one tool apart where times on a busy machine do not.

Known pitfalls. A viewer is only known to be attached when it has shown output typed after it came
(dtach does not repeat earlier output). A tool that re-renders sends about as many bytes as the
program wrote, so the number of bytes proves no delivery: the bytes themselves are compared. A
correct first and last row do not make the screen between them right: another emulator checks the
screen.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import processes, programs
from bench.peers import Peer
from bench.terminal import (
    COLS,
    ROWS,
    ClientEnded,
    Signal,
    Terminal,
    TooLong,
    deadline,
    read_until,
    read_until_quiet,
)

Values = dict[str, float | None]

ATTACH_S = 30.0  # a viewer that is not there by then never comes
ATTACH_EACH_S = 1.0  # ... of many clients that all start at once
GREET_EVERY_S = 0.2
FLOOD_S = 180.0
STALL_S = 30.0
SHOW_S = 30.0  # a screen that is not there by then is none
KEY_GAP_S = 0.001
REPEATS = 9  # of a command that takes milliseconds
ECHO_S = 15.0  # a slow tool is asked for fewer keys rather than waited for


@dataclass(frozen=True)
class Sizes:
    """The size of each load; a test uses tiny sizes."""

    mb: float = 50.0
    keys: int = 1000
    lines: int = 50_000
    viewers: int = 8
    sessions: int = 200
    kills: int = 100
    idle_s: float = 10.0
    away_s: float = 2.0
    settle_s: float = 3.0


@dataclass
class Bench:
    """The context of a measure besides the tool: sizes, a directory, the data to print."""

    sizes: Sizes
    dir: str
    _files: dict[tuple[bool, float], tuple[str, bytes]] = field(default_factory=dict)

    def data(self, ansi: bool, mb: float) -> tuple[str, int, bytes]:
        """(path, bytes a program prints, what a terminal shows of one block of it)."""
        block = programs.block(ansi, min(programs.BLOCK_BYTES, max(1, int(mb * 1e6))))
        copies = max(1, round(mb * 1e6 / len(block)))
        if (ansi, mb) not in self._files:
            path = os.path.join(self.dir, f"{'ansi' if ansi else 'plain'}{mb:g}")
            with open(path, "wb") as f:
                for _ in range(copies):
                    f.write(block)
            self._files[ansi, mb] = path, programs.as_shown(block)
        path, shown = self._files[ansi, mb]
        return path, copies * len(block), shown * copies

    def fifo(self, name: str) -> Signal:
        return Signal(os.path.join(self.dir, name))


@contextlib.contextmanager
def session(peer: Peer, argv: Sequence[str], viewers: int) -> Iterator[tuple[str, list[Terminal]]]:
    """A session with attached viewers; without a tool, the program itself."""
    name, terminals = f"b{uuid.uuid4().hex[:8]}", list[Terminal]()
    try:
        if peer.keeps_sessions:
            peer.start(name, argv)
            terminals += [peer.attach(name) for _ in range(viewers)]
        else:
            terminals.append(peer.create(name, argv))
        yield name, terminals
    finally:
        for terminal in terminals:
            terminal.close()
        if peer.keeps_sessions:
            peer.end(name)


def greet(terminals: Sequence[Terminal], typed: bytes, answer: bytes) -> None:
    """Type until every viewer has shown the answer, so that all are attached. Leaves them quiet."""
    allowed = max(ATTACH_S, len(terminals) * ATTACH_EACH_S)
    missing, end = list(terminals), time.perf_counter() + allowed
    while missing:
        terminals[0].send(typed)
        for terminal in list(missing):
            with contextlib.suppress(TooLong):
                read_until([terminal], [answer], GREET_EVERY_S)
                missing.remove(terminal)
        if time.perf_counter() > end:
            raise TooLong(
                f"{len(missing)} of {len(terminals)} viewers are not attached after {allowed:g} s"
            )
    read_until_quiet(terminals)


def own_cpu(peer: Peer) -> int:
    """Processor time so far of the tool's own processes and viewers, in ns.

    Programs inside the sessions do not count.
    """
    own = [pid for pid in processes.tagged([peer.tag]) if not processes.runs_in_session(pid)]
    return processes.cpu_ns(own)


# ---------------------------------------------------------------- echo


def echo(peer: Peer, bench: Bench) -> Values:
    ready = bench.fifo("ready")
    try:
        with session(peer, programs.echo(ready.path), 1) as (_, [terminal]):
            ready.wait(ATTACH_S)
            greet([terminal], b"~", b"~")
            before = own_cpu(peer)
            times = keystrokes(terminal, bench.sizes.keys)
            spent = own_cpu(peer) - before
    finally:
        ready.close()
    times.sort()
    # 10: least disturbed
    values: Values = {f"p{p}_us": times[len(times) * p // 100] * 1e6 for p in (10, 50, 90)}
    return values | ({"cpu_us": spent / 1e3 / len(times)} if peer.keeps_sessions else {})


def keystrokes(terminal: Terminal, count: int) -> list[float]:
    """Seconds from each key to the echo."""
    times, end = list[float](), time.perf_counter() + ECHO_S
    with deadline(2 * ECHO_S):
        for i in range(count):
            key = b"&|"[i % 2 : i % 2 + 1]
            begin = time.perf_counter()
            terminal.send(key)
            while key not in (data := terminal.read()):
                if not data:
                    raise ClientEnded("the client ended while typing")
            now = time.perf_counter()
            times.append(now - begin)
            if now > end:
                break
            time.sleep(KEY_GAP_S)
    return times


# ---------------------------------------------------------------- bulk


@dataclass(frozen=True)
class Flood:
    written: int  # bytes the program wrote
    done_s: float  # until the program was done
    seen_s: float | None  # until the last reading viewer saw the end; None without viewers
    # Of the output that a terminal would show, the smallest share that a viewer got
    received: float | None
    exact: bool | None  # whether every viewer got exactly that output, byte for byte
    cpu_s: float  # processor time of the tool's own processes


def flood(
    peer: Peer,
    bench: Bench,
    ansi: bool,
    mb: float,
    viewers: int,
    stopped: int = 0,
    seconds: float = FLOOD_S,
) -> Flood:
    path, written, expected = bench.data(ansi, mb)
    go_path = os.path.join(bench.dir, "go")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(go_path)
    os.mkfifo(go_path)
    done = bench.fifo("done")
    watched = viewers + stopped > 0
    try:
        argv = programs.flood(path, go_path, done.path, watched)
        with session(peer, argv, viewers + stopped) as (_, terminals):
            if watched:
                greet(terminals, b"\n", programs.READY)
                terminals[0].send(b"go\n")
                read_until_quiet(terminals)
            reading = terminals[stopped:]
            for terminal in reading:
                terminal.keep()
            before = own_cpu(peer)
            with open(go_path, "w") as fifo:
                begin = time.perf_counter()
                fifo.write("go\n")
            if not reading:
                done_s = done.wait(seconds) - begin
                return Flood(written, done_s, None, None, None, (own_cpu(peer) - before) / 1e9)
            seen_s = read_until(reading, [programs.END.encode()], seconds) - begin
            cpu_s = (own_cpu(peer) - before) / 1e9
            shown = [t.shown().partition(programs.END.encode())[0] for t in reading]
            least, exact = (
                min(len(s) for s in shown) / len(expected),
                all(s == expected for s in shown),
            )
            return Flood(written, done.wait(seconds) - begin, seen_s, least, exact, cpu_s)
    finally:
        done.close()
        os.unlink(go_path)


def bare_fan_out(bench: Bench, ansi: bool, mb: float, viewers: int) -> Values:
    """One program on many terminals without a tool: a copy into one pipe per viewer, and `cat`.

    Every tool that delivers all output must do at least this work.
    """
    path, written, expected = bench.data(ansi, mb)
    pipes = [os.path.join(bench.dir, f"pipe{i}") for i in range(viewers)]
    go_path, done = os.path.join(bench.dir, "go"), bench.fifo("done")
    for pipe in (*pipes, go_path):
        os.mkfifo(pipe)
    terminals = list[Terminal]()
    try:
        terminals += [Terminal(programs.reader(pipe), os.environ) for pipe in pipes]
        copier = Terminal(
            programs.fan_out(pipes, programs.flood(path, go_path, done.path, False)), os.environ
        )
        terminals.append(copier)
        for terminal in terminals[:viewers]:
            terminal.keep()
        with open(go_path, "w") as fifo:
            begin = time.perf_counter()
            fifo.write("go\n")
        seen_s = read_until(terminals[:viewers], [programs.END.encode()], FLOOD_S) - begin
        shown = [t.shown().partition(programs.END.encode())[0] for t in terminals[:viewers]]
        return {
            "MBps": written / 1e6 / seen_s,
            "received": min(len(s) for s in shown) / len(expected),
            "exact": float(all(s == expected for s in shown)),
        }
    finally:
        done.close()
        for terminal in terminals:
            terminal.close()
        for pipe in (*pipes, go_path):
            os.unlink(pipe)


def bulk(ansi: bool, viewers: int) -> Callable[[Peer, Bench], Values]:
    def run(peer: Peer, bench: Bench) -> Values:
        count = bench.sizes.viewers if viewers > 1 else viewers
        mb = bench.sizes.mb / 2 if viewers > 1 else bench.sizes.mb
        if viewers > 1 and not peer.keeps_sessions:
            return bare_fan_out(bench, ansi, mb, count)
        got = flood(peer, bench, ansi, mb, count if peer.keeps_sessions else 1)
        written = got.written / 1e6
        cost: Values = {"cpu_ms_per_MB": got.cpu_s * 1e3 / written} if peer.keeps_sessions else {}
        if viewers == 0:
            took = got.done_s if peer.keeps_sessions else got.seen_s
            return {"MBps": written / (took or got.done_s)} | cost
        assert got.seen_s is not None and got.received is not None
        return {
            "MBps": written / got.seen_s,
            "received": got.received,
            "exact": float(bool(got.exact)),
        } | cost

    return run


def stall(peer: Peer, bench: Bench) -> Values:
    """The same flood with and without a viewer that stopped reading."""
    if not peer.keeps_sessions:
        return {}
    mb = bench.sizes.mb / 2
    alone = flood(peer, bench, False, mb, 1)
    try:
        beside = flood(peer, bench, False, mb, 1, stopped=1, seconds=STALL_S)
    except TooLong:
        return {"held_up": 1.0, "seconds": None, "slowdown": None}
    assert alone.seen_s is not None and beside.seen_s is not None
    return {
        "held_up": 0.0,
        "seconds": beside.seen_s,
        "slowdown": beside.seen_s / alone.seen_s,
        "received": beside.received,
        "exact": float(bool(beside.exact)),
    }


# ---------------------------------------------------------------- commands


def commands(peer: Peer, bench: Bench) -> Values:
    """The figures of one round; a tool without a command has no figure for that command."""
    python = [sys.executable, "-c", "pass"]
    if not peer.keeps_sessions:
        return {"python_ms": _median(lambda: spent(python, peer.environ))}
    name, ready = f"b{uuid.uuid4().hex[:8]}", bench.fifo("ready")
    peer.start(name, programs.echo(ready.path))
    shell = f"s{name}"
    peer.start(shell, ["sh", "-i"])
    try:
        ready.wait(ATTACH_S)
        calls: dict[str, Callable[[], float]] = {"python": lambda: spent(python, peer.environ)}
        if (words := peer.list_argv()) is not None:
            calls["ls"] = lambda words=words: spent(words, peer.environ)  # type: ignore[misc]
        if (words := peer.run_argv(shell)) is not None:
            calls["run"] = lambda words=words: spent(words, peer.environ)  # type: ignore[misc]
        if peer.detach_keys:
            calls["attach"] = lambda: attached(peer, name)
        rounds = [{what: call() for what, call in calls.items()} for _ in range(REPEATS)]
    finally:
        peer.end(name)
        peer.end(shell)
        ready.close()
    return {
        f"{what}_x": statistics.median(one[what] / one["python"] for one in rounds)
        for what in calls
        if what != "python"
    }


def _median(call: Callable[[], float]) -> float:
    return statistics.median(call() for _ in range(REPEATS))


def spent(argv: Sequence[str], environ: Mapping[str, str]) -> float:
    """Milliseconds of processor time of one command that must succeed."""
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1)]
    pid = os.posix_spawnp(argv[0], list(argv), environ, file_actions=quiet)
    return _collected(pid, argv)


def attached(peer: Peer, name: str) -> float:
    """Milliseconds of processor time of a client that attaches, shows an echo and is detached."""
    terminal = Terminal(peer.attach_argv(name), peer.environ)
    try:
        greet([terminal], b"~", b"~")
        terminal.send(peer.detach_keys)
        with deadline(ATTACH_S):
            while terminal.read():
                pass
            return _collected(terminal.pid, peer.attach_argv(name))
    finally:
        terminal.close()


def _collected(pid: int, argv: Sequence[str]) -> float:
    _, status, used = os.wait4(pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{' '.join(argv)[:200]} ended with {code}")
    return (used.ru_utime + used.ru_stime) * 1e3


# ---------------------------------------------------------------- create, reattach


def create(peer: Peer, bench: Bench) -> Values:
    name = f"b{uuid.uuid4().hex[:8]}"
    before, begin = own_cpu(peer), time.perf_counter()
    terminal = peer.create(name, programs.prompt())
    try:
        ms = (read_until([terminal], [programs.PROMPT], ATTACH_S) - begin) * 1e3
        return {"ms": ms} | _spent(peer, before)
    finally:
        terminal.close()
        if peer.keeps_sessions:
            peer.end(name)


def create_cold(peer: Peer, bench: Bench) -> Values:
    fresh = peer.fresh()
    try:
        return create(fresh, bench)
    finally:
        fresh.close()


def reattach(mode: str) -> Callable[[Peer, Bench], Values]:
    marks = [programs.TOP.encode(), programs.END.encode()]

    def run(peer: Peer, bench: Bench) -> Values:
        if not peer.keeps_sessions:
            return _show_picture(peer, bench, marks)
        ready, name = bench.fifo("ready"), f"b{uuid.uuid4().hex[:8]}"
        argv = programs.screen(bench.sizes.lines, mode, ready.path)
        terminal = peer.create(name, argv)  # the first client gives the screen this size
        try:
            read_until([terminal], marks, ATTACH_S)
            ready.wait(ATTACH_S)
            terminal.close()
            time.sleep(bench.sizes.away_s)
            before, begin = own_cpu(peer), time.perf_counter()
            terminal = peer.attach(name)
            terminal.keep()
            try:
                ms = (read_until([terminal], marks, SHOW_S) - begin) * 1e3
            except TooLong:
                return {"ms": None, "correct": 0.0}
            spent = _spent(peer, before)
            read_until_quiet([terminal])
            return {"ms": ms, **_judge(terminal.shown()), **spent}
        finally:
            terminal.close()
            peer.end(name)
            ready.close()

    return run


def _spent(peer: Peer, before: int) -> Values:
    return {"cpu_ms": (own_cpu(peer) - before) / 1e6} if peer.keeps_sessions else {}


def _show_picture(peer: Peer, bench: Bench, marks: list[bytes]) -> Values:
    """The best a bare terminal can do: `cat` of the same screen."""
    path = os.path.join(bench.dir, "picture")
    with open(path, "w") as f:
        f.write(programs.paint(ROWS, COLS))
    begin = time.perf_counter()
    terminal = peer.create("picture", ["cat", path])
    terminal.keep()
    try:
        ms = (read_until([terminal], marks, SHOW_S) - begin) * 1e3
        return {"ms": ms, **_judge(terminal.shown())}
    finally:
        terminal.close()


def _judge(shown: bytes) -> Values:
    """Whether another emulator has the program's screen after these bytes.

    A tool may use the last row for its own status.
    """
    try:
        avt: Any = importlib.import_module("avt")
    except ImportError:
        return {}

    def rows_of(text: str) -> list[str]:
        emulator = avt.Vt(COLS, ROWS)
        emulator.feed_str(text)
        return [str(line.text).rstrip() for line in emulator.view()]

    got = rows_of(shown.decode("utf-8", "replace"))
    right = any(got[:n] == rows_of(programs.paint(n, COLS))[:n] for n in (ROWS, ROWS - 1))
    return {"correct": float(right)}
