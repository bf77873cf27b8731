"""The Python blocks of docs/guides/write-a-program.md run as printed (M)."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.commands import guide
from tests.support.installation import DEADLINE_S, Installation, eventually, installation

GUIDE = guide.section("write-a-program.md")
PORT = "3000"  # in the guide
# A block without an import is a part of a program that has a client and a session.
AROUND = """
import asyncio

import holdfast


async def main() -> None:
    async with holdfast.connect() as client:
        session = await client.sessions.get({name!r})
{block}

asyncio.run(main())
"""
# A text of each block that a test here runs.
RUN = (
    *("asyncio.run", "uptime", "ci.credential", "since=", "changes()", "operators", "attach("),
    "forward(",
)


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("guide")) as made:
        yield made


def blocks(language: str = "python") -> list[str]:
    return guide.blocks(GUIDE, language)


def block(part: str) -> str:
    """The only block of the guide that has this text."""
    assert part in RUN
    (found,) = [one for one in blocks() if part in one]
    return found


def begin(hf: Installation, program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        env=hf.env,
        cwd=hf.user,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    return out


def inside(hf: Installation, name: str, text: str) -> subprocess.Popen[str]:
    """A part of a program, begun in a session of that name."""
    hf.ready(name)
    return begin(hf, AROUND.format(name=name, block=textwrap.indent(text, " " * 8)))


def test_m_the_first_programs(hf: Installation) -> None:
    assert output(begin(hf, block("asyncio.run"))).startswith("0 Linux")
    assert "load average" in output(begin(hf, block("uptime")))


def test_m_a_program_with_a_credential(hf: Installation) -> None:
    (grant,) = [one for one in blocks("sh") if "--credential" in one]
    hf.ok(*shlex.split(grant)[1:])
    (hf.user / "Makefile").write_text("test:\n\tfalse\n")
    assert output(begin(hf, block("ci.credential"))) == "2\n"
    token = {"HOLDFAST_CREDENTIAL": str(hf.user / "ci.credential")}
    assert hf.cli("run", "--on", "", "--", "(exit 5)", env=token).rc == 5
    eventually(lambda: {one["name"] for one in hf.ls()} <= {"build"}, "the sessions to end")


def test_m_a_program_waits_for_a_line(hf: Installation) -> None:
    serve = "serve:\n\t@echo ready on port 8000; cat\n"
    (hf.user / "Makefile").write_text(serve)
    assert output(inside(hf, "waits", block("since="))) == "ready on port 8000\n"
    assert hf.view("waits")["waiting"]["for"] == "input", "the server goes on"


def test_m_a_program_watches_processes(hf: Installation) -> None:
    watcher = inside(hf, "watched", block("changes()"))
    hf.under_way("graph", 1)
    assert hf.attempt("run", "watched", "--", "sh -c 'exit 7'").rc == 7
    assert watcher.stdout is not None and watcher.stdout.readline().endswith("ended with 7\n")
    hf.end("watched")
    output(watcher)


def test_m_a_program_gives_rights(hf: Installation) -> None:
    output(inside(hf, "given", block("operators")))
    assert "REVOKED" in hf.ok("operator", "show", "helper").out


def test_m_a_program_drives_a_screen(hf: Installation) -> None:
    shown = output(inside(hf, "screen", block("attach("))).splitlines()
    assert shown[0].endswith("True"), "the first output is the present screen"
    hf.wait("screen", "idle")


def test_m_a_program_takes_a_port(hf: Installation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    hf.ready("server", "--", "bash")
    hf.quick("send", "server", f"python3 -m http.server --bind 127.0.0.1 {port}", "--enter")
    hf.wait("server", f"port:{port}")
    text = AROUND.format(
        name="server", block=textwrap.indent(block("forward(").replace(PORT, port), " " * 8)
    )
    program = begin(hf, text)
    assert program.stdout is not None
    with closing(urllib.request.urlopen(program.stdout.readline().strip())) as answer:
        assert answer.status == 200
    hf.end("server")
    output(program)
    eventually(lambda: program.poll() is not None, "the program to end")


def test_m_every_block_of_the_guide_is_run() -> None:
    assert sorted(map(block, RUN)) == sorted(blocks())
