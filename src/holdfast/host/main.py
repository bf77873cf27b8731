"""The host's composition root: the only module of this program that reads the environment.

    python -m holdfast.host.main

There is one host per home. The process itself holds an exclusive lock, so a stale file cannot
mislead. The host may be killed, stopped or replaced at any time; sessions do not notice. SIGTERM
and SIGINT stop the host. SIGHUP replaces the host in place, with the same pid, and hands the lock
on: otherwise a client that found no host for a moment would start a second host. A service manager
may run the host: host/service.py.
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
from holdfast.home import Home, config, cores, programs
from holdfast.home.settings import Settings
from holdfast.host.engine import Engine
from holdfast.host.lifecycle.host_program import HostProgram
from holdfast.host.requests.host import Host
from holdfast.host.runtime import threads
from holdfast.host.runtime.hot_loop import HotLoop
from holdfast.host.runtime.priority import short_slice, survive_memory
from holdfast.host.runtime.worker_programs import let_nursery_start
from holdfast.host.server import Server
from holdfast.host.service import Service, leave_stopped
from holdfast.host.storage.store import Store
from holdfast.host.telemetry.exporters import Telemetry
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.probe import probe
from holdfast.transport import unix

LOG_BYTES = 4 * 1024 * 1024
LOCK_WAIT_S = 1.0  # for the previous host to leave
STUCK_S = 1.0  # a thread that is still busy after this time hangs
log = logging.getLogger("holdfast.host")


def main() -> int:
    home = homes.resolve(os.environ)
    arm = os.environ.pop("HOLDFAST_PROBE", None)
    if arm:
        from holdfast.testing import probes

        probes.arm_from(arm)
        os.environ["HOLDFAST_PROBE_KEPT"] = arm
    # Popped: the socket is for this process only, not for its children.
    service = Service(os.environ.get("HOLDFAST_SERVICE", ""), os.environ.pop("NOTIFY_SOCKET", ""))
    try:
        homes.prepare(home)
        cores.forbid()
        inherited = _inherited(home)
        lock = inherited or _lock(home)
        if lock is None:
            print("another host serves this home", file=sys.stderr)
            return 3
        _logging(home)
        service.begin(home)
        if service.nursery:
            let_nursery_start(f"{home.run}/nursery.sock", os.environb)
        short_slice()
        survive_memory()
        with asyncio.Runner(loop_factory=HotLoop) as runner:
            return runner.run(_serve(home, lock, service, replaced=inherited is not None))
    except HoldfastError as e:
        print(f"holdfast host: {e.message}\n  {e.recover}", file=sys.stderr, flush=True)
        return e.exit_code
    except OSError as e:
        print(
            f"holdfast host: cannot use {home.state}: {e}\n"
            "  free disk space, make it writable, or set HOLDFAST_HOME to another directory",
            file=sys.stderr,
            flush=True,
        )
        return Unavailable.exit_code


def _inherited(home: Home) -> int | None:
    """The lock of the previous host, if this process replaces that host in place."""
    try:
        fd = int(os.environ.pop("HOLDFAST_LOCK", ""))
        if not os.path.samestat(os.fstat(fd), os.stat(f"{home.run}/host.lock")):
            return None
        os.set_inheritable(fd, False)
    except (ValueError, OSError):
        return None
    return _named(fd)


def _lock(home: Home) -> int | None:
    """None: a second host holds the lock, or the home was stopped while this process waited."""
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


def _is_held(home: Home, fd: int) -> bool:
    """Whether the lock file in this home is still the file that this process holds."""
    path = f"{home.run}/host.lock"
    return os.path.exists(path) and os.path.samestat(os.fstat(fd), os.stat(path))


def _named(fd: int) -> int:
    """Writes the pid into the lock file, for people; the lock works without the pid."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _logging(home: Home) -> None:
    """Logs operations only: never terminal content, command text or environment."""
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
    """Raises the limit of descriptors to the maximum; returns the previous limit.

    A host needs several for each session and client. Programs in sessions get the previous limit:
    more than 1024 breaks programs that use select.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


async def _serve(home: Home, lock: int, service: Service, replaced: bool) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, c: log.error("%s", c.get("message"), exc_info=c.get("exception"))
    )
    faulthandler.enable()
    stopping: asyncio.Future[str] = loop.create_future()
    signalled = False  # only then a "down" may be part of the machine's shutdown

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
        stop("again" if service.kind and await service.comes_back() else "down")

    def told() -> None:
        nonlocal signalled
        signalled = True
        asked.add(loop.create_task(ask()))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    loop.add_signal_handler(signal.SIGHUP, stop, "restart")
    settings = Settings.load(home)
    allowed = _descriptors()
    program = HostProgram(
        replaced=replaced,
        environment=dict(os.environ),
        nursery=service.nursery,
        descriptors=allowed,
        still_ours=lambda: _is_held(home, lock),
        superseded=lambda: stop("superseded"),
        replace=lambda: _replace(lock, allowed, service, in_place=False),
    )
    engine = Engine(home, settings, Store(home.database), program)
    loop.set_default_executor(threads.Pool(threads.THREADS, "host"))
    engine.store.start()
    if engine.store.put_aside:
        log.error(
            "the database was unreadable and is now %s; sessions are rebuilt from their keepers",
            engine.store.put_aside,
        )
    nursery = engine.nursery.look()
    await engine.rediscovery.begin()
    probe("host.adopted")
    host = Host(engine, stop)
    server = Server(engine, host, unix.listen(home.host_socket))
    engine.residency.begin(host.in_use)
    engine.rediscovery.reachable()
    await engine.uplinks.begin(server)
    telemetry = Telemetry(engine, settings)
    log.info("host %d serves %d sessions (term %d)", os.getpid(), len(engine.running), engine.term)
    service.ready(len(engine.running))
    probe("host.ready")
    try:
        if not nursery:
            await engine.nursery.warm()
    except HoldfastError as e:
        log.error("%s", e.message)
    adopting = loop.create_task(_adopted(engine))
    how = await stopping
    adopting.cancel()
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
        leave_stopped(home)  # before a client notices, and starts the next host
    server.close(how, messages[how])
    telemetry.close()
    if how == "again" or (how == "down" and not signalled):
        engine.near_end.interruptions.settle_all()
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


async def _adopted(engine: Engine) -> None:
    """Takes all objects that exist after the adoption out of the garbage collector's rounds."""
    await engine.adoptions.all()
    gc.collect()
    gc.freeze()


def _replace(lock: int, allowed: tuple[int, int], service: Service, in_place: bool) -> NoReturn:
    """Starts the next host: in this process, or in a new one if a thread is stuck in the kernel.

    An exec waits until every thread of the process has ended.
    """
    kept = os.environ.pop("HOLDFAST_PROBE_KEPT", None)
    if kept:
        os.environ["HOLDFAST_PROBE"] = kept
    resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
    os.set_inheritable(lock, True)
    os.environ["HOLDFAST_LOCK"] = str(lock)
    if service.address:
        os.environ["NOTIFY_SOCKET"] = service.address
    with cores.original_limit():
        command = programs.module("holdfast.host.main")
        if in_place:
            os.execv(sys.executable, command)
        log.error(
            "host %d: a thread is stuck in the kernel, "
            "which keeps this process until a file system answers",
            os.getpid(),
        )
        service.is_now(os.posix_spawn(sys.executable, command, os.environ, setsid=True))
    _vanish()


def _vanish() -> NoReturn:
    """Exits at once, with all descriptors closed.

    A thread that is stuck in a file system would otherwise keep the lock and the sockets open.
    """
    logging.shutdown()
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            if int(fd) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(fd))
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
