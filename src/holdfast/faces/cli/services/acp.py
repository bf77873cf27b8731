"""acp: an editor's agent, with its terminals in sessions."""

from __future__ import annotations

import os

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import operator_name
from holdfast.model.errors import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

acp_parser = usage("""
    run a coding agent for an editor by the Agent Client Protocol on stdin and stdout. The agent's
    terminals are commands in a session, by the operator that --as names. Everything else passes
    between editor and agent.

    --session SESSION  where the commands run, one after the other (default: new sessions of the
        agent's own, contained)
    --inside  run the agent's program itself in the contained session --session, with its own shell
        and its own file tools
    --json  print errors of this command as JSON
    command=[CMD...]  after --: the agent's program and its arguments
""")


def acp(args: Namespace) -> int:
    import asyncio

    from holdfast.faces.acp.proxy import serve
    from holdfast.faces.mcp.text import secrets
    from holdfast.sdk.client import connect

    if not args.command:
        raise Usage("acp needs the agent's command", "holdfast acp --as AGENT -- CMD...")
    if args.operator is None and "HOLDFAST_AS" not in os.environ:
        raise Usage("acp needs the agent's operator", "holdfast acp --as AGENT -- CMD...")
    if args.inside and args.session is None:
        raise Usage(
            "--inside needs a session", "holdfast acp --as AGENT --session S --inside -- CMD..."
        )
    # Programs that this process starts must not write between the messages.
    stdin, stdout = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    async def main() -> int:
        async with connect(operator=operator_name(args), modality="acp") as client:
            hide = secrets(os.environ)
            return await serve(client, args.session, args.inside, hide, args.command, stdin, stdout)

    return asyncio.run(main())
