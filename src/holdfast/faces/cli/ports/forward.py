"""forward."""

from __future__ import annotations

import sys

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import ask, link
from holdfast.faces.cli.output import put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.link import Link

forward_parser = usage("""
    bring a TCP port on which a process of the session listens to an address of this machine, until
    Ctrl-C. New connections work again after a restart of the host or the relay.

    SESSION
    port=PORT  the port in the session
    --listen ADDR  ADDRESS, ADDRESS:PORT or PORT (default: 127.0.0.1 with the same port or a free
        one)
    --expose  allow an address that other machines can reach; they connect without any right
    --json  one object with the address
""")


def forward(args: Namespace) -> int:
    import asyncio
    import contextlib

    from holdfast.client.engine.engine import Engine
    from holdfast.client.engine.forward import Forwarding, listener

    first: list[Link] = [link(args)]
    like = first[0]

    def another() -> Link:
        return first.pop() if first else _copy(like)

    async def work() -> None:
        engine = Engine(another)
        await engine.connect()
        at = listener(args.listen, args.port, args.expose)
        host, port = at.getsockname()[:2]
        forwarding = Forwarding(engine, args.session, args.port, at)
        running = asyncio.create_task(forwarding.run())
        opening = asyncio.create_task(forwarding.opened())
        try:
            await asyncio.wait({opening, running}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                _say(args, host, port)
            await running
        finally:
            opening.cancel()
            running.cancel()
            with contextlib.suppress(BaseException):
                await running
            await engine.close()

    asyncio.run(work())
    print(f"holdfast: session {args.session} has ended, and the forward with it", file=sys.stderr)
    return 0


def _copy(like: Link) -> Link:
    from holdfast.client.link import Link

    made = Link(like.home, like.operator, like.modality, like.autostart, ask, like.away)
    made.on_held, made.on_recovered = like.on_held, like.on_recovered
    return made


def _say(args: Namespace, host: str, port: int) -> None:
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    shown = {"session": args.session, "port": args.port, "address": at}
    words = f"port {args.port} of {args.session} is at {at} (Ctrl-C ends)"
    put(args, {**shown, "host": host, "local_port": port}, words)
    sys.stdout.flush()
