"""The host's composition root: the only place of this program that reads the world's settings.

    python -m holdfast.host.main

One host per home: an exclusive lock says so, held by the process itself, so no stale file can lie. It may be killed, stopped or
replaced at any time; sessions do not notice. SIGTERM and SIGINT stop it, SIGHUP replaces it in place: same pid, and the lock is
handed on, or a client that finds nobody for a moment would start another host in between. A service manager may run it: host/service.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import fcntl
import gc
import logging
import os
import resource
import signal
import sys
import time
from typing import NoReturn

from holdfast import home as homes
from holdfast.home import Home, config, cores
from holdfast.host import threads
from holdfast.host.engine import Engine
from holdfast.host.hurry import short_slice
from holdfast.host.ops import Ops
from holdfast.host.selector import HotLoop
from holdfast.host.server import Server
from holdfast.host.service import Service, leave_stopped
from holdfast.host.store import Store
from holdfast.host.telemetry import Telemetry
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.probe import probe
from holdfast.transport import unix

LOG_BYTES = 4 * 1024 * 1024
LOCK_WAIT_S = 1.0  # for a host that is just leaving
STUCK_S = 1.0  # until a thread that is still at work is one that hangs
log = logging.getLogger("holdfast.host")


def main() -> int:
    home = homes.resolve(os.environ)
    arm = os.environ.pop("HOLDFAST_PROBE", None)
    if arm:
        from holdfast.testing import probes

        probes.arm_from(arm)
        os.environ["HOLDFAST_PROBE_KEPT"] = arm
    service = Service(
        os.environ.get("HOLDFAST_SERVICE", ""), os.environ.pop("NOTIFY_SOCKET", "")
    )  # the address is ours, not our children's
    try:
        homes.prepare(home)
        cores.forbid()
        lock = _inherited(home) or _lock(home)
        if lock is None:
            print("another host serves this home", file=sys.stderr)
            return 3
        _logging(home)
        service.begin(home)
        short_slice()
        with asyncio.Runner(loop_factory=HotLoop) as runner:
            return runner.run(_serve(home, lock, service))
    except HoldfastError as e:
        print(f"holdfast host: {e.message}\n  {e.recover}", file=sys.stderr, flush=True)
        return e.exit_code
    except OSError as e:
        print(
            f"holdfast host: cannot use {home.state}: {e}\n  free disk space, make it writable, or set HOLDFAST_HOME to another directory",
            file=sys.stderr,
            flush=True,
        )
        return Unavailable.exit_code


def _inherited(home: Home) -> int | None:
    """The lock of the host we were, if we replace one in place."""
    try:
        fd = int(os.environ.pop("HOLDFAST_LOCK", ""))
        if not os.path.samestat(os.fstat(fd), os.stat(f"{home.run}/host.lock")):
            return None
        os.set_inheritable(fd, False)
    except (ValueError, OSError):
        return None
    return _named(fd)


def _lock(home: Home) -> int | None:
    """None: another host has it. Who had to wait and was stopped meanwhile does not start after all."""
    fd = os.open(f"{home.run}/host.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_WAIT_S
    waited = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            waited = True
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
    if (waited and os.path.exists(home.stopped)) or time.monotonic() > deadline:
        os.close(fd)
        return None
    return _named(fd)


def _named(fd: int) -> int:
    """For people; the lock itself needs no contents, and the disk may be full."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _logging(home: Home) -> None:
    """Operations only: never terminal content, command text or environment."""
    try:
        if os.path.getsize(home.log) > LOG_BYTES:
            os.replace(home.log, home.log + ".1")
    except OSError:
        pass
    old = os.umask(0o177)
    try:
        handler: logging.Handler = logging.FileHandler(home.log)
    except OSError:
        handler = logging.StreamHandler()
    finally:
        os.umask(old)
    logging.basicConfig(
        level=logging.INFO,
        handlers=[handler],
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )


def _descriptors() -> tuple[int, int]:
    """As many as the machine allows: a host needs some for every session and client. Gives the limit as it was, which is what
    programs in sessions get: more than 1024 breaks those that use select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


async def _serve(home: Home, lock: int, service: Service) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, c: log.error("%s", c.get("message"), exc_info=c.get("exception"))
    )
    faulthandler.enable()
    stopping: asyncio.Future[str] = loop.create_future()

    def stop(how: str) -> None:
        if how == "restart":
            try:
                config.load(home.config)
            except HoldfastError as e:
                log.error("not replaced: the next host could not start: %s", e.message)
                return
        if not stopping.done():
            stopping.set_result(how)

    asked: set[asyncio.Task[None]] = set()

    async def ask() -> None:
        stop("again" if await service.comes_back() else "down")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(
            number,
            (lambda: asked.add(loop.create_task(ask())))
            if service.kind
            else (lambda: stop("down")),
        )
    loop.add_signal_handler(signal.SIGHUP, stop, "restart")
    settings = config.settings(config.load(home.config))
    engine = Engine(home, settings, Store(home.database))
    engine.still_ours = lambda: (
        os.path.exists(f"{home.run}/host.lock")
        and os.path.samestat(os.fstat(lock), os.stat(f"{home.run}/host.lock"))
    )
    engine.on_superseded = lambda: stop("superseded")
    engine.nursery.descriptors = allowed = _descriptors()
    engine.nursery.apart = service.nursery
    engine.execgate.held_up.replace = lambda: _replace(lock, allowed, service, in_place=False)
    loop.set_default_executor(threads.Pool(threads.THREADS, "host"))
    engine.store.start(loop)
    if engine.store.put_aside:
        log.error(
            "the database was unreadable and is now %s; sessions are rebuilt from their keepers",
            engine.store.put_aside,
        )
    nursery = engine.nursery.look()
    await engine.adopt_all()
    probe("host.adopted")
    server = Server(engine, Ops(engine, stop), unix.listen(home.host_socket))
    engine.reachable()
    await engine.uplinks.begin(server)
    telemetry = Telemetry(engine, settings)
    log.info("host %d serves %d sessions (term %d)", os.getpid(), len(engine.sessions), engine.term)
    service.ready(len(engine.sessions))
    probe("host.ready")
    try:
        if not nursery:
            await engine.nursery.warm()
    except HoldfastError as e:
        log.error("%s", e.message)
    gc.collect()
    gc.freeze()
    how = await stopping
    messages = {
        "down": "stopped by `holdfast down`; sessions keep running",
        "restart": "the host is being replaced",
        "again": "the host is being restarted",
        "superseded": "another host has this home now",
    }
    probe("host.stopping")
    if how == "restart":
        service.replaced()
    else:
        service.stopping()
    if how == "down" and service.kind:
        leave_stopped(home)  # before anybody hears of it, and would start the next one
    server.close(how, messages[how])
    telemetry.close()
    await engine.close()
    if how == "down":
        engine.nursery.dismiss()
    log.info("host %d: %s", os.getpid(), how)
    if how == "restart":
        probe("host.replacing")
        deadline = time.monotonic() + STUCK_S
        while threads.at_work() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        _replace(lock, allowed, service, in_place=not threads.at_work())
    _vanish()


def _replace(lock: int, allowed: tuple[int, int], service: Service, in_place: bool) -> NoReturn:
    """The next host: this process, with the same pid; or another one, if a thread is stuck in the kernel: the kernel waits for all of them before it makes a process another program."""
    kept = os.environ.pop("HOLDFAST_PROBE_KEPT", None)
    if kept:
        os.environ["HOLDFAST_PROBE"] = kept
    resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
    os.set_inheritable(lock, True)
    os.environ["HOLDFAST_LOCK"] = str(lock)
    if service.address:
        os.environ["NOTIFY_SOCKET"] = service.address
    with cores.as_before():
        if in_place:
            os.execv(sys.executable, [sys.executable, "-m", "holdfast.host.main"])
        log.error(
            "host %d: a thread is stuck in the kernel, which keeps this process until a file system answers",
            os.getpid(),
        )
        service.is_now(
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "holdfast.host.main"],
                os.environ,
                setsid=True,
            )
        )
    _vanish()


def _vanish() -> NoReturn:
    """At once, and with nothing left in anybody's hands: a thread that is stuck in a file system would keep the lock and the sockets of a process that is gone."""
    logging.shutdown()
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            if int(fd) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(fd))
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
