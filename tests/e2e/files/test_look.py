"""Files of a session are listed, described, copied and searched (T8), as the session sees them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

import holdfast
import holdfast.sync
from holdfast.client import transfers
from holdfast.sdk.session import Session
from tests.support.commands.programs import client, together
from tests.support.installation import SHARE_PYTHON, Installation

BIG = 8 << 20


@pytest.fixture(scope="module")
def files(hf: Installation) -> Path:
    """A session `look` whose shell is in this directory."""
    there = hf.user / "there"
    (there / "sub").mkdir(parents=True)
    (there / "small").write_bytes(b"hello\n")
    (there / "small").chmod(0o751)
    (there / "link").symlink_to("/etc/passwd")
    (there / "sub" / "note.txt").write_text("first\nneedle here\n")
    (there / "big").write_bytes(os.urandom(BIG))
    os.mkfifo(there / "fifo")
    hf.ready("look", f"--cwd={there}")
    return there


def test_t8_a_directory_is_listed_and_a_file_described(hf: Installation, files: Path) -> None:
    found = json.loads(hf.quick("files", "ls", "look", "--json"))
    assert found["path"] == str(files) and not found["more"]
    kinds = {one["name"]: one["type"] for one in found["entries"]}
    assert kinds["sub"] == "directory" and kinds["fifo"] == "fifo" and kinds["link"] == "link"
    small = next(one for one in found["entries"] if one["name"] == "small")
    assert (small["size"], small["mode"], small["owner"]) == (6, 0o751, os.getuid())
    about = json.loads(hf.quick("files", "stat", "look", "link", "--json"))
    assert (about["type"], about["target"]) == ("link", "/etc/passwd")
    assert "-rwxr-x--x" in hf.quick("files", "ls", "look", "small")


def test_t8_a_relative_path_begins_in_the_directory_of_the_shell(
    hf: Installation, files: Path
) -> None:
    hf.ready("moves", f"--cwd={files}")
    hf.quick("run", "moves", "--", "cd sub")
    assert hf.cli("files", "get", "moves", "note.txt", "-").raw == b"first\nneedle here\n"
    assert hf.cli("files", "get", "moves", "../small", "-").raw == b"hello\n"


def test_t8_a_search_finds_names_and_lines(hf: Installation, files: Path) -> None:
    assert hf.quick("files", "search", "look", "*.txt").strip() == "sub/note.txt"
    found = json.loads(hf.quick("files", "search", "look", "*", "--text", "needle", "--json"))
    assert [(one["path"], one["line"]) for one in found["matches"]] == [("sub/note.txt", 2)]


def test_t8_a_copy_has_the_content_and_the_mode(
    hf: Installation, files: Path, tmp_path: Path
) -> None:
    done = hf.ok("files", "get", "look", "big", str(tmp_path), "--json").json
    assert (tmp_path / "big").read_bytes() == (files / "big").read_bytes()
    assert done["sha256"] == hashlib.sha256((files / "big").read_bytes()).hexdigest()
    hf.ok("files", "get", "look", "small", str(tmp_path / "other"))
    assert (tmp_path / "other").stat().st_mode & 0o7777 == 0o751
    assert sorted(os.listdir(tmp_path)) == ["big", "other"]
    hf.ok("files", "get", "-r", "look", "sub", str(tmp_path))
    assert (tmp_path / "sub" / "note.txt").read_text() == "first\nneedle here\n"


def test_p1_reading_a_file_is_recorded_with_its_hash(hf: Installation, files: Path) -> None:
    hf.ok("files", "get", "look", "small", "-")
    entries = hf.ok("log", "look", "--json").records
    done = [one for one in entries if one["kind"] == "files" and one["phase"] == "outcome"][-1]
    wanted = hashlib.sha256(b"hello\n").hexdigest()
    assert done["facts"]["path"] == f"{files}/small" and done["facts"]["sha256"] == wanted
    assert done["actor"] == "tester"
    assert "files: get small -> allowed, applied" in hf.ok("log", "look").out
    assert hf.cli("log", "verify", "look").rc == 0


def test_a5_files_need_a_right_of_their_own(hf: Installation, files: Path) -> None:
    hf.people("reader", rights="read")
    for words in (["ls", "look"], ["stat", "look", "small"], ["get", "look", "small", "-"]):
        refused = hf.attempt("--as", "reader", "files", *words)
        assert refused.rc == 4 and "files" in refused.err


def test_p4_the_policy_judges_the_command_with_the_same_effect(hf: Installation) -> None:
    """The default rule for agents about keys and passwords holds for `files get` too."""
    hf.people("robot", rights="execute,plain", kind="agent")
    keys = hf.account / ".ssh"
    keys.mkdir(exist_ok=True)
    (keys / "id_ed25519").write_text("secret")
    refused = hf.attempt(
        *("--as", "robot", "files", "get", "look", f"{keys}/id_ed25519", "-", "--hold", "0")
    )
    assert refused.rc == 4 and "approv" in refused.err
    assert hf.attempt("--as", "robot", "files", "ls", "look").rc == 0


def test_s4_a_download_continues_after_the_death_of_the_host(
    hf: Installation, files: Path, tmp_path: Path
) -> None:
    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("look")
            killed: list[int] = []

            def progress(done: int, size: int) -> None:
                if 0 < done < size and not killed:
                    os.kill(hf.host_pid, signal.SIGKILL)
                    killed.append(done)

            done = await session.files.get("big", str(tmp_path), progress=progress)
            assert killed and done.size == BIG
            assert await session.files.read_bytes("big") == (tmp_path / "big").read_bytes()

    together(work())
    assert (tmp_path / "big").read_bytes() == (files / "big").read_bytes()
    begins = [
        one["facts"]["from"]
        for one in hf.ok("log", "look", "--json").records
        if one["kind"] == "files" and "from" in one.get("facts", {})
    ]
    assert any(begins), "the second request continued in the middle"


class Killed(Exception):
    """Stands for the death of the client."""


def test_s3_a_download_continues_after_the_death_of_the_client(
    hf: Installation, files: Path, tmp_path: Path
) -> None:
    async def part(session: Session) -> None:
        def progress(done: int, size: int) -> None:
            if done > BIG // 2:
                raise Killed

        with pytest.raises(Killed):
            await session.files.get("big", str(tmp_path), progress=progress)

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("look")
            await part(session)
            assert len(os.listdir(tmp_path)) == 1
            began: list[int] = []
            await session.files.get("big", str(tmp_path), progress=lambda n, _: began.append(n))
            assert began[0] > BIG // 2
            assert (tmp_path / "big").read_bytes() == (files / "big").read_bytes()
            (tmp_path / "big").unlink()
            await part(session)
            (files / "big").write_bytes(changed := os.urandom(BIG))
            await session.files.get("big", str(tmp_path))
            assert (tmp_path / "big").read_bytes() == changed
            assert os.listdir(tmp_path) == ["big"]

    together(work())


def test_m_the_synchronous_api_has_the_same_names(hf: Installation, files: Path) -> None:
    with holdfast.sync.connect(operator="tester", home=str(hf.home)) as c:
        found = c.sessions.get("look").files
        assert found.read_bytes("small") == b"hello\n"
        assert {one.name for one in found.walk("sub")} == {"note.txt"}
        assert found.stat("small").size == 6
        assert [one.path for one in found.search("*.txt").matches] == ["sub/note.txt"]
        with pytest.raises(holdfast.NotFound):
            found.read_bytes("absent")


def test_t8_a_contained_session_has_its_own_root(hf: Installation) -> None:
    hf.ready("walls", "--contained", *SHARE_PYTHON)
    hf.quick("run", "walls", "--", "cd; echo inside > mine; ln -s / top; ln -s ../../../.. up")
    assert hf.cli("files", "get", "walls", "mine", "-").raw == b"inside\n"
    secret = hf.base / "secret"
    secret.write_text("outside")
    for path in (f"{secret}", f"top{secret}", f"up{secret}", f"/proc/1/root{secret}"):
        refused = hf.attempt("files", "get", "walls", path, "-")
        assert refused.rc in (3, 4) and "outside" not in refused.out


def test_a_part_of_a_file_is_not_taken_for_the_file(tmp_path: Path) -> None:
    assert transfers.local_target(str(tmp_path), "/a/b") == str(tmp_path / "b")
    with pytest.raises(holdfast.Impossible):
        transfers.local_target(str(tmp_path), "/a/..")
