"""The host's composition root: the only place of this program that reads the world's settings.

    python -m holdfast.host.main

One host per home: an exclusive lock says so, held by the process itself, so no stale file can lie. It may be killed, stopped or
replaced at any time; sessions do not notice. SIGTERM and SIGINT stop it, SIGHUP replaces it in place (same pid).
"""

from __future__ import annotations

import asyncio
import faulthandler
import fcntl
import gc
import logging
import os
import signal
import sys
import time

from holdfast import home as homes
from holdfast.home import Home, config
from holdfast.host.engine import Engine
from holdfast.host.ops import Ops
from holdfast.host.selector import HotLoop
from holdfast.host.server import Server
from holdfast.host.store import Store
from holdfast.model.errors import HoldfastError
from holdfast.model.probe import probe
from holdfast.transport import unix

LOG_BYTES = 4 * 1024 * 1024
log = logging.getLogger("holdfast.host")


def main() -> int:
    home = homes.resolve(os.environ)
    arm = os.environ.pop("HOLDFAST_PROBE", None)
    if arm:
        from holdfast.testing import probes

        probes.arm_from(arm)
        os.environ["HOLDFAST_PROBE_KEPT"] = arm
    try:
        homes.prepare(home)
        lock = _lock(home)
        if lock is None:
            print("another host serves this home", file=sys.stderr)
            return 3
        _logging(home)
        with asyncio.Runner(loop_factory=HotLoop) as runner:
            return runner.run(_serve(home))
    except HoldfastError as e:
        print(f"holdfast host: {e.message}\n  {e.recover}", file=sys.stderr, flush=True)
        return e.exit_code


def _lock(home: Home) -> int | None:
    fd = os.open(f"{home.run}/host.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + 1.0
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                return None
            time.sleep(0.02)
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
    logging.basicConfig(level=logging.INFO, handlers=[handler], format="%(asctime)s %(levelname)s %(name)s %(message)s")


async def _serve(home: Home) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, c: log.error("%s", c.get("message"), exc_info=c.get("exception")))
    faulthandler.enable()
    stopping: asyncio.Future[str] = loop.create_future()

    def stop(how: str) -> None:
        if not stopping.done():
            stopping.set_result(how)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, "down")
    loop.add_signal_handler(signal.SIGHUP, stop, "restart")
    settings = config.settings(config.load(home.config))
    engine = Engine(home, settings, Store(home.database))
    engine.store.start(loop)
    if engine.store.put_aside:
        log.error("the database was unreadable and is now %s; sessions are rebuilt from their keepers", engine.store.put_aside)
    await engine.adopt_all()
    probe("host.adopted")
    server = Server(engine, Ops(engine, stop), unix.listen(home.host_socket))
    log.info("host %d serves %d sessions (term %d)", os.getpid(), len(engine.sessions), engine.term)
    probe("host.ready")
    try:
        await engine.nursery.warm()
    except HoldfastError as e:
        log.error("%s", e.message)
    gc.collect()
    gc.freeze()
    how = await stopping
    messages = {"down": "stopped by `holdfast down`; sessions keep running", "restart": "the host is being replaced"}
    server.close(how, messages[how])
    await engine.close()
    log.info("host %d: %s", os.getpid(), how)
    if how == "restart":
        kept = os.environ.pop("HOLDFAST_PROBE_KEPT", None)
        if kept:
            os.environ["HOLDFAST_PROBE"] = kept
        os.execv(sys.executable, [sys.executable, "-m", "holdfast.host.main"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
