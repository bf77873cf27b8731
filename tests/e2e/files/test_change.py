"""Files of a session are written, removed and moved: whole, once, attributed (T8)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.sync
from holdfast.client import transfers
from holdfast.client.engine.wire import Exchange
from tests.support.commands.programs import client, together
from tests.support.installation import Installation, eventually

HEAVY = 32 << 20


@pytest.fixture(scope="module")
def there(hf: Installation) -> Path:
    """A session `change` whose shell is in this directory."""
    folder = hf.user / "there"
    folder.mkdir()
    hf.ready("change", f"--cwd={folder}")
    return folder


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("local") / "heavy"
    path.write_bytes(os.urandom(HEAVY))
    return path


def parts(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".hf-part")]


def test_t8_a_file_is_written_moved_and_removed(hf: Installation, there: Path, heavy: Path) -> None:
    heavy.chmod(0o740)
    done = hf.ok("files", "put", "change", str(heavy), "--json").json
    assert done["path"] == f"{there}/heavy" and not done["replaced"]
    assert (there / "heavy").read_bytes() == heavy.read_bytes()
    assert done["sha256"] == hashlib.sha256(heavy.read_bytes()).hexdigest()
    assert (there / "heavy").stat().st_mode & 0o7777 == 0o740
    assert not parts(there)
    hf.ok("files", "mv", "change", "heavy", "moved")
    assert os.listdir(there) == ["moved"]
    hf.ok("files", "rm", "change", "moved")
    assert hf.cli("files", "rm", "change", "moved").rc == 3
    hf.ok("files", "put", "change", "-", "deep/er/file", "--parents", stdin=b"text")
    assert (there / "deep" / "er" / "file").read_bytes() == b"text"
    assert hf.cli("files", "rm", "change", "deep").rc == 4
    hf.ok("files", "rm", "-r", "change", "deep")
    assert os.listdir(there) == []


def test_t8_a_directory_is_copied_with_all_regular_files(
    hf: Installation, there: Path, tmp_path: Path
) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "a").write_text("a")
    (tmp_path / "tree" / "sub" / "b").write_text("b")
    (tmp_path / "tree" / "link").symlink_to("a")
    done = hf.ok("files", "put", "-r", "change", str(tmp_path / "tree"), "--json").json
    assert done["skipped"] == ["link"] and len(done["files"]) == 2
    assert (there / "tree" / "sub" / "b").read_text() == "b"
    assert hf.cli("files", "put", "change", str(tmp_path / "tree")).rc == 2


def test_a9_a_key_has_one_effect(hf: Installation, there: Path, tmp_path: Path) -> None:
    local = tmp_path / "keyed"
    local.write_text("one")
    for _ in range(2):
        hf.ok("files", "put", "change", str(local), "--once", "k-put")
        (there / "keyed").write_text("another program wrote")
    assert (there / "keyed").read_text() == "another program wrote"
    for _ in range(2):
        hf.ok("files", "rm", "change", "keyed", "--once", "k-rm")
    (there / "keyed").write_text("new")
    hf.ok("files", "rm", "change", "keyed", "--once", "k-rm")
    assert (there / "keyed").exists()
    local.write_text("two")
    assert hf.cli("files", "put", "change", str(local), "--once", "k-put").rc == 4
    assert hf.attempt("files", "ls", "change", "--once", "k").rc == 2


def test_s4_an_upload_continues_after_the_death_of_the_host(
    hf: Installation, there: Path, heavy: Path
) -> None:
    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("change")
            begins: list[int] = []
            killed: list[int] = []

            def progress(done: int, size: int) -> None:
                if killed and len(begins) < 1:
                    begins.append(done)
                if done > HEAVY // 2 and not killed:
                    os.kill(hf.host_pid, signal.SIGKILL)
                    killed.append(done)

            done = await session.files.put(str(heavy), "survives", progress=progress)
            assert killed and begins[0] > 0, "the second request continued in the middle"
            assert done.size == HEAVY

    together(work())
    assert (there / "survives").read_bytes() == heavy.read_bytes()
    assert not parts(there)


class Killed(Exception):
    """Stands for the death of the client."""


def test_s3_an_upload_continues_after_the_death_of_the_client(
    hf: Installation, there: Path, heavy: Path
) -> None:
    async def attempt(die: bool) -> list[int]:
        begins: list[int] = []

        def progress(done: int, size: int) -> None:
            begins.append(done)
            if die and done > HEAVY // 2:
                raise Killed

        async with client(hf) as c:
            session = await c.sessions.get("change")
            if not die:
                await session.files.put(str(heavy), "again", progress=progress)
            else:
                with pytest.raises(Killed):
                    await session.files.put(str(heavy), "again", progress=progress)
        return begins

    together(attempt(True))
    eventually(lambda: parts(there), "the part is kept")
    assert not (there / "again").exists()
    assert together(attempt(False))[0] > 0
    assert (there / "again").read_bytes() == heavy.read_bytes()
    assert not parts(there)


def test_t8_an_upload_of_other_bytes_than_announced_changes_nothing(
    hf: Installation, there: Path
) -> None:
    (there / "kept").write_text("old")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("change")

            async def lie(exchange: Exchange) -> None:
                await exchange.send(b"lies")
                await exchange.send(b"")

            digest = hashlib.sha256(b"true").hexdigest()
            fields: dict[str, Any] = {"size": 4, "sha256": digest, "path": "kept"}
            parts = c.engine("").stream("files.put", 60, feed=lie, session=session.id, **fields)
            with pytest.raises(holdfast.Changed):
                async for _ in parts:
                    pass

    together(work())
    assert (there / "kept").read_text() == "old" and not parts(there)


def test_a4_a_halted_session_keeps_its_files(hf: Installation, there: Path) -> None:
    hf.ready("frozen", f"--cwd={there}")
    (there / "still").write_text("still")
    hf.ok("halt", "frozen")
    try:
        assert hf.cli("files", "put", "frozen", "-", "new", stdin=b"x").rc == 4
        assert hf.cli("files", "rm", "frozen", "still").rc == 4
        assert hf.cli("files", "mv", "frozen", "still", "moved").rc == 4
        assert hf.cli("files", "get", "frozen", "still", "-").raw == b"still"
    finally:
        hf.ok("resume", "frozen")
    assert (there / "still").exists() and not (there / "new").exists()


def test_t8_a_link_is_replaced_and_a_special_file_refused(hf: Installation, there: Path) -> None:
    outside = hf.base / "outside"
    outside.write_text("outside")
    (there / "link").symlink_to(outside)
    hf.ok("files", "put", "change", "-", "link", stdin=b"new")
    assert outside.read_text() == "outside" and (there / "link").read_text() == "new"
    os.mkfifo(there / "fifo")
    assert hf.cli("files", "put", "change", "-", "fifo", stdin=b"new").rc == 4
    (there / "loop").symlink_to(hf.base)
    hf.ok("files", "rm", "-r", "change", "loop")
    assert outside.exists()
    assert hf.cli("files", "rm", "-r", "change", "..").rc == 2


def test_p3_the_uploader_of_a_script_is_an_originator(hf: Installation, there: Path) -> None:
    """An agent uploads a script, a person runs it: the record names the agent."""
    hf.people("robot", rights="execute,plain", kind="agent")
    hf.ok(
        *("--as", "robot", "files", "put", "change", "-", "script", "--mode", "755"),
        stdin=b"#!/bin/sh\necho ran\n",
    )
    assert "ran" in hf.ok("run", "change", "--", "./script").out
    entry = [one for one in hf.ok("log", "change", "--json").records if one["kind"] == "command"]
    assert "robot" in entry[0]["originators"], entry[0]
    wrote = json.loads(hf.quick("graph", "change", "--wrote", f"{there}/script", "--json"))
    assert "robot" in json.dumps(wrote["wrote"])


def test_m_bytes_are_written_and_read(hf: Installation, there: Path) -> None:
    with holdfast.sync.connect(operator="tester", home=str(hf.home)) as c:
        files = c.sessions.get("change").files
        done = files.write_bytes("made/of/bytes", b"\0\1\2", mode=0o600, parents=True)
        assert (done.size, done.mode, done.replaced) == (3, 0o600, False)
        assert files.read_bytes("made/of/bytes") == b"\0\1\2"
        assert files.write_bytes("made/of/bytes", b"").replaced
        files.mv("made/of/bytes", "made")
        assert [one.name for one in files.ls("made")] == ["bytes", "of"]
        files.rm("made", recursive=True)
        with pytest.raises(holdfast.NotFound):
            files.stat("made")


def test_a9_a_long_upload_is_not_taken_for_a_silent_host(
    hf: Installation, there: Path, heavy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "ANSWER_S", 0.0)
    with holdfast.sync.connect(operator="tester", home=str(hf.home)) as c:
        c.sessions.get("change").files.put(str(heavy), "long")
    assert (there / "long").stat().st_size == HEAVY


def test_s5_uploads_of_many_clients_do_not_mix(hf: Installation, there: Path) -> None:
    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("change")
            data = [os.urandom(1 << 20) for _ in range(6)]
            await asyncio.gather(
                *(session.files.write_bytes("contested", one) for one in data),
                *(session.files.write_bytes(f"own-{n}", one) for n, one in enumerate(data)),
            )
            assert (there / "contested").read_bytes() in data
            for number, one in enumerate(data):
                assert (there / f"own-{number}").read_bytes() == one

    together(work())
    assert not parts(there)


def test_t8_a_terminal_shows_the_progress(hf: Installation, there: Path, heavy: Path) -> None:
    """Of both directions, in one line that is rewritten; a pipe and --json get none."""
    put = ("files", "put", "change", str(heavy), "shown")
    get = ("files", "get", "change", "shown", str(heavy.parent / "copy"))
    for words, name in ((put, "heavy"), (get, "copy")):
        terminal = hf.spawn([*map(str, hf.argv(words))])
        assert terminal.wait() == 0
        drawn = [
            line.decode() for line in bytes(terminal.output).split(b"\r\x1b[K") if b"%" in line
        ]
        assert all(line.startswith(f"{name}  ") for line in drawn), drawn
        shares = [int(line.split()[1].rstrip("%")) for line in drawn]
        assert shares == sorted(shares) and shares[-1] == 100, shares
        assert "32.0M of 32.0M" in drawn[-1], drawn[-1]
    assert (heavy.parent / "copy").read_bytes() == heavy.read_bytes()
    assert "%" not in hf.ok(*put).err
