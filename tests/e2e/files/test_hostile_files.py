"""Programs of a session try to lead operations on files astray, or to block the host (T8)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.host.processes.process import read_stat
from holdfast.host.requests.files.session_root import Refusal, SessionRoot
from tests.support.exec_gate.silent_filesystem import SilentFilesystem, needs_fuse
from tests.support.installation import DEADLINE_S, Installation
from tests.support.ordinary_user import OrdinaryUser

TRIES = 300
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs chroot")


@pytest.fixture
def jail(tmp_path: Path) -> Iterator[tuple[Path, SessionRoot]]:
    """A process with a root of its own; a file `outside` lies beside that root."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_text("outside")
    code = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); print(flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline()
    facts = read_stat(child.pid)
    assert facts is not None
    yield root, SessionRoot(child.pid, facts.start)
    child.kill()
    child.communicate()


def content(root: SessionRoot, path: str) -> str:
    fd = root.readable(path)
    try:
        return os.read(fd, 100).decode()
    finally:
        os.close(fd)


@needs_root
def test_t8_no_path_and_no_link_leads_out_of_the_root(jail: tuple[Path, SessionRoot]) -> None:
    folder, root = jail
    (folder / "inside").write_text("inside")
    (folder / "up").symlink_to("../../outside")
    (folder / "absolute").symlink_to("/inside")
    for path in ("/../outside", "/up", "/../../../../outside"):
        with pytest.raises(FileNotFoundError):
            root.open(path, os.O_PATH)
    assert content(root, "/absolute") == "inside" == content(root, "/../../inside")
    with pytest.raises(Refusal, match="no path here"):
        root.absolute("inside")


@needs_root
def test_t8_a_directory_exchanged_for_a_link_leads_nowhere_else(
    jail: tuple[Path, SessionRoot],
) -> None:
    folder, root = jail
    (folder / "there" / "a").mkdir(parents=True)
    (folder / "there" / "outside").write_text("inside")
    (folder / "link").symlink_to("..")
    names, over = (folder / "there", folder / "other"), threading.Event()
    (folder / "other").symlink_to("../..")

    def swap() -> None:
        while not over.is_set():
            os.rename(names[0], folder / "spare")
            os.rename(names[1], names[0])
            os.rename(folder / "spare", names[1])

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(TRIES):
            try:
                assert content(root, "/there/a/../outside") == "inside"
            except (OSError, Refusal):
                pass
    finally:
        over.set()
        swapping.join()


def test_t8_magic_links_and_special_files_are_refused(hf: Installation) -> None:
    hf.ready("special")
    os.mkfifo(hf.user / "pipe")
    for path in ("/proc/self/exe", "/proc/self/root/etc/passwd", f"/proc/{os.getpid()}/cwd/x"):
        assert hf.attempt("files", "get", "special", path, "-").rc in (3, 4)
    for path in ("pipe", "/dev/null", "/dev/tty", "/etc"):
        assert hf.attempt("files", "get", "special", path, "-").rc == 7
    assert hf.attempt("files", "get", "special", "bad\0path", "-").rc == 2
    assert hf.attempt("files", "ls", "special", "x" * 5000).rc == 2


def test_t8_a_huge_directory_comes_in_pages(hf: Installation) -> None:
    folder = hf.user / "huge"
    folder.mkdir()
    for number in range(2500):
        (folder / f"{number:05}").touch()
    (folder / "\udcff\x1b[31m").touch()
    hf.ready("pages", f"--cwd={folder}")
    found = json.loads(hf.quick("files", "ls", "pages", "--json"))
    assert len(found["entries"]) == 2501 and not found["more"]
    some = json.loads(hf.quick("files", "ls", "pages", "--limit", "7", "--json"))
    assert [one["name"] for one in some["entries"]] == [f"{n:05}" for n in range(7)]
    assert some["more"]
    assert b"\x1b" not in hf.ok("files", "ls", "pages").raw
    refused = hf.attempt("files", "search", "pages", "*", "--limit", "5", "--json")
    assert refused.json["cut"] == "matches" and len(refused.json["matches"]) == 5


@needs_fuse
def test_t8_a_silent_file_system_blocks_nothing_else(hf: Installation, tmp_path: Path) -> None:
    hf.ready("dead")
    silent = SilentFilesystem(tmp_path / "silent")
    silent.silence()

    async def work() -> None:
        async with (
            asyncio.timeout(DEADLINE_S),
            holdfast.connect(operator="tester", home=str(hf.home)) as client,
        ):
            session = await client.sessions.get("dead")
            hanging = [
                asyncio.create_task(session.files.read_bytes(f"{silent.at}/{n}")) for n in range(3)
            ]
            other = await client.sessions.get("dead")
            for _ in range(3):
                assert (await other.view()).lines
            async with holdfast.connect(operator="tester", home=str(hf.home)) as second:
                there = await second.sessions.get("dead")
                assert await there.files.ls("/")
            assert not any(one.done() for one in hanging)
            for one in hanging:
                one.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)

    try:
        asyncio.run(work())
    finally:
        silent.close()


AS_USER = """
import os, subprocess, sys
hf = [sys.executable, "-m", "holdfast"]
def run(*args):
    return subprocess.run([*hf, *args], capture_output=True, text=True)
run("up")
try:
    made = run("new", "work", "--no-attach")
    assert made.returncode == 0, made
    open(os.path.expanduser("~/mine"), "w").write("mine")
    got = run("files", "get", "work", os.path.expanduser("~/mine"), "-")
    assert got.stdout == "mine", got
    refused = run("files", "get", "work", "/etc/shadow", "-")
    assert refused.returncode == 4 and not refused.stdout, refused
finally:
    run("end", "work")
    run("down")
print("held")
"""


def test_a5_an_ordinary_account_reads_only_its_own_files(user: OrdinaryUser) -> None:
    done = user.run([user.own_python("apsw"), "-c", AS_USER])
    if done is None:
        pytest.skip("no process of another account can start here")
    assert "held" in done.stdout, done
