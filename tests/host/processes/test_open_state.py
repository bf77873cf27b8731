"""Open credentials of real processes, by name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from holdfast.core.session.inheritance import credentials
from holdfast.host.processes import open_state


def test_a6_variables_agents_and_open_secret_files_are_found_without_their_values(
    short_path: Path,
) -> None:
    secret, listening, stale = short_path / ".aws" / "credentials", "listening", "stale"
    secret.parent.mkdir()
    secret.write_text("hunter2")
    code = f"f = open({str(secret)!r}); print('ready', flush=True); input()"
    with (
        socket.socket(socket.AF_UNIX) as agent,
        socket.socket(socket.AF_UNIX) as gone,
    ):
        agent.bind(str(short_path / listening))
        agent.listen()
        gone.bind(str(short_path / stale))
        for name, reachable in ((listening, True), (stale, False)):
            given = {"SSH_AUTH_SOCK": str(short_path / name), "DEPLOY_TOKEN": "hunter2"}
            with subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                env={"PATH": os.environ["PATH"], **given},
            ) as child:
                assert child.stdout is not None and child.stdout.readline() == b"ready\n"
                found = open_state.read(os.getpid(), child.pid)
                child.kill()
            kinds = {(one.kind, one.name) for one in found.secrets if one.pid == child.pid}
            assert ("variable", "DEPLOY_TOKEN") in kinds
            assert (("agent", str(short_path / name)) in kinds) == reachable
            files = {one.name for one in credentials(found.graph, child.pid) if one.kind == "file"}
            assert str(secret) in files
            assert "hunter2" not in repr(found)
