"""The authors of files (P3): with real processes and file events, and without file events."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.originators.originators import UNKNOWN, Shaped
from holdfast.core.shellcode.facts import Surroundings, analyse
from holdfast.core.shellcode.implied import implied
from holdfast.host.originators import file_events, path_writers, timers
from holdfast.host.originators import writers as module
from holdfast.host.originators.lineage import Lineages
from holdfast.host.originators.writers import Writers
from holdfast.host.policy.shfmt import Parser
from holdfast.host.processes import process
from holdfast.host.session.commands import Commands
from holdfast.host.shell import SessionDirectories
from tests.support.kernel import silent_about_files, silent_about_processes
from tests.support.ordinary_user import ordinary_user

NONCE = "n" * 16
ROOT = os.geteuid() == 0
SILENT = silent_about_files() or silent_about_processes()
told = pytest.mark.skipif(
    bool(SILENT), reason=f"the kernel does not report who writes files: {SILENT}"
)


class Room:
    """A session with a real shell. The test itself gives its lines and marks, in an exact order."""

    def __init__(
        self, lineages: Lineages, directory: Path, id: str = "s", created: float | None = None
    ) -> None:
        directory.mkdir(exist_ok=True)
        loop = asyncio.get_running_loop()
        self.shell = subprocess.Popen(
            ["bash", "--norc", "-s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=directory,
            process_group=0,
        )
        self.commands = Commands(
            {"shell": "bash", "nonce": NONCE, "by": "ann"},
            SessionDirectories.as_outside(directory, directory),
            str(directory),
            {},
            root=self.shell.pid,
        )
        self.sequence = 0
        facts = process.read_stat(self.shell.pid)
        assert facts is not None
        record = SimpleNamespace(
            root_pid=self.shell.pid,
            root_start=facts.start,
            created=time.time() if created is None else created,
        )
        session: Any = SimpleNamespace(
            id=id,
            loop=loop,
            keeper_pid=self.shell.pid,
            commands=self.commands,
            writable_directory=str(directory),
            host_only_directory=str(directory),
            record=record,
            ended=loop.create_future(),
            spawn=loop.create_task,
            ring=SimpleNamespace(accepted=0),
        )
        self.session = session
        self.lineages = lineages
        lineages.begin(self.session)
        self._mark("P;0")

    def _mark(self, body: str) -> None:
        self.sequence += 1
        self.commands.feed(
            self.sequence * 1000, memoryview(f"\x1b]7717;{NONCE};{self.sequence};{body}\a".encode())
        )

    def run(self, actor: str, act: int, text: str) -> None:
        """Enters a line and waits until the shell has run it.

        The shell has no integration: its marks are given here.
        """
        assert self.shell.stdin is not None and self.shell.stdout is not None
        self.commands.typed(actor, text.encode() + b"\r", act, 0)
        self._mark("C")
        self.shell.stdin.write(f"{text}\necho done\n".encode())
        self.shell.stdin.flush()
        while (line := self.shell.stdout.readline()) != b"done\n":
            assert line
        self._mark("P;0")

    def close(self) -> None:
        self.lineages.end(self.session)
        if self.shell.poll() is None:
            os.killpg(self.shell.pid, signal.SIGKILL)
            self.shell.communicate()
        self.commands.close()


@asynccontextmanager
async def host(
    directory: Path, *ids: str, created: float | None = None
) -> AsyncIterator[tuple[Writers, list[Room]]]:
    """A host with sessions, once the kernel reports processes and files."""
    lineages = Lineages()
    state = directory / "state"
    state.mkdir(exist_ok=True)
    writers = Writers(lineages, str(state))
    lineages.wire(observers=(writers,), changed=(writers.process_changed,))
    lineages.open()
    rooms = list[Room]()
    try:
        rooms += [Room(lineages, directory / id, id, created) for id in ids or ("s",)]
        await marked(writers)
        while lineages._events is not None and not lineages.told:
            await asyncio.sleep(0)
        yield writers, rooms
    finally:
        for room in rooms:
            room.close()
        lineages.close()


def authors(writers: Writers, session: Any, path: str) -> tuple[Shaped, ...]:
    return writers.authors_blocking(session, [path])


def author(writers: Writers, session: Any, path: str) -> Shaped | None:
    """The first author; None: the file has none in any session."""
    return next(iter(authors(writers, session, path)), None)


async def marked(writers: Writers) -> None:
    """Until the file systems of all sessions are marked."""
    await writers._tasks.wait(30)


def go(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


def outside(*argv: str) -> None:
    """Run a process that belongs to no session."""
    subprocess.run(argv, check=True)


@told
def test_p3_the_last_writer_of_a_file_is_its_author_by_any_way_of_writing(tmp_path: Path) -> None:
    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            session = room.session
            at = f"{tmp_path}/s"
            ways = {
                "builtin": "echo x > builtin",
                "program": "cp /etc/passwd program",
                "append": "touch append; (sleep 0; echo y >> append)",
                "tee": "echo z | tee tee >/dev/null",
                "dd": "dd if=/dev/zero of=dd bs=1 count=1 2>/dev/null",
                "truncated": "truncate -s 5 truncated",
                "directory": "mkdir directory",
                "fifo": "mkfifo fifo",
                "python": 'python3 -c \'open("python", "w").write("x")\'',
            }
            for number, (name, line) in enumerate(ways.items()):
                room.run("ann", number, line)
                assert author(writers, session, f"{at}/{name}") == Shaped(
                    "file", f"{at}/{name}", "ann", number
                ), line
            room.run("bob", 50, "echo more >> program")
            assert authors(writers, session, f"{at}/program") == (
                Shaped("file", f"{at}/program", "bob", 50),
            )
            assert author(writers, session, f"{at}/builtin") == Shaped(
                "file", f"{at}/builtin", "ann", 0
            )
            assert author(writers, session, "/usr/bin/env") is None, (
                "the machine's: older than every session"
            )
            assert (
                author(writers, session, f"{at}/nothing") is None
                and author(writers, session, "/dev/null") is None
                and author(writers, session, "/proc/cpuinfo") is None
            )
            assert authors(writers, session, "relative") == (Shaped("file", "relative", UNKNOWN),)

    go(main())


@told
def test_p3_a_file_that_was_put_in_the_place_of_another_is_its_writers_and_its_movers(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            session, at = room.session, f"{tmp_path}/s"

            def who(name: str) -> list[tuple[str, int | None]]:
                return [(one.actor, one.act) for one in authors(writers, session, f"{at}/{name}")]

            room.run("ann", 1, "echo a > script")
            room.run("bob", 2, "echo b > other")
            room.run("bob", 3, "mv other script")
            assert who("script") == [("bob", 2), ("bob", 3)]
            room.run("cat", 4, "mv script moved")
            assert who("moved") == [("bob", 2), ("bob", 3), ("cat", 4)] and who("script") == []
            room.run("ann", 5, "ln moved linked")
            assert ("ann", 5) in who("linked") and ("bob", 2) in who("linked")
            room.run("ann", 6, "echo new > fresh; mv fresh moved")  # as editors save
            assert who("moved") == [("ann", 6)]
            room.run("bob", 7, "ln -s moved link")
            assert who("link") == [("ann", 6), ("bob", 7)], "the link's own author counts too"
            room.run("bob", 8, "echo through > link")
            assert who("moved") == [("bob", 8)]
            room.run("ann", 9, "chmod +x moved")
            assert who("moved") == [("bob", 8), ("ann", 9)]
            room.run("ann", 10, "mkdir in; echo x > in/it")
            room.run("bob", 11, "mkdir out; echo y > out/it; mv in old; mv out in")
            assert (
                who("in/it") == [("bob", 11)]
                and ("bob", 11) in who("old/it")
                and ("ann", 10) in who("old/it")
            )
            room.run("cat", 12, "ln -s in way; ln -s way/it far")
            assert who("far")[0] == ("bob", 11) and ("cat", 12) in who("far")

    go(main())


@told
def test_p3_files_that_a_command_reads_implicitly_are_found_with_their_writers(
    tmp_path: Path,
) -> None:
    """A Makefile, a hook, a configuration, an npm script, a conftest.py: from command to author."""
    if shutil.which("shfmt") is None:
        pytest.skip("needs shfmt")

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            at, session = f"{tmp_path}/s", room.session
            room.run("bob", 1, "git init -q . 2>/dev/null; mkdir -p deep/er")
            room.run(
                "ann",
                2,
                "printf 'all:\\n\\ttrue\\n' > Makefile; echo 'exit 0' > .git/hooks/pre-commit; "
                "chmod +x .git/hooks/pre-commit; echo '{}' > package.json; echo > conftest.py",
            )
            room.run("ann", 3, "git config core.fsmonitor ./evil; echo 'echo x' > run.sh")

            async def who(line: str, cwd: str) -> set[tuple[str, str]]:
                facts = analyse(line, Parser(), Surroundings(cwd, "/nonexistent"))
                found = await writers.authors(
                    session,
                    [path for one in facts.commands for path in implied(one, cwd, "/nonexistent")],
                )
                return {
                    (one.name.removeprefix(f"{at}/"), one.actor)
                    for one in found
                    if one.name.startswith(at)
                }

            assert await who("make -j2", at) == {("Makefile", "ann")}
            assert {(".git/hooks/pre-commit", "ann"), (".git/config", "ann")} <= await who(
                "git commit -qm x", f"{at}/deep/er"
            )
            assert (".git/config", "ann") in await who("cd .. && git status", f"{at}/deep/er")
            assert await who("npm test", f"{at}/deep") == {("package.json", "ann")}
            assert await who("sudo -u nobody python3 -m pytest -q", at) == {("conftest.py", "ann")}
            assert (
                await who("bash ./run.sh", at) == await who(". ./run.sh", at) == {("run.sh", "ann")}
            )
            assert await who("make -C deep", at) == set()
            room.run("bob", 4, "echo 'all:' > Makefile")
            assert await who("make", at) == {("Makefile", "bob")}

    go(main())


@told
def test_p3_the_writes_of_a_daemon_belong_to_its_own_operator(tmp_path: Path) -> None:
    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            session, at = room.session, f"{tmp_path}/s"
            room.run(
                "ann",
                1,
                "mkfifo go; (setsid sh -c 'read line <go; echo evil >Makefile; "
                "echo x >go' >/dev/null 2>&1 &)",
            )
            room.run("bob", 2, "echo mine > Makefile; echo now >go; read line <go")
            assert author(writers, session, f"{at}/Makefile") == Shaped(
                "file", f"{at}/Makefile", "ann", 1
            )

    go(main())


@told
def test_p3_a_file_of_another_session_has_its_author_but_no_act_of_this_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with host(tmp_path, "one", "two") as (writers, (one, two)):
            one.run("ann", 1, "echo x > shared")
            name = f"{tmp_path}/one/shared"
            assert author(writers, one.session, name) == Shaped("file", name, "ann", 1)
            assert author(writers, two.session, name) == Shaped("file", name, "ann", None)

    go(main())


@told
def test_p3_the_writes_of_a_process_outside_are_unknown(tmp_path: Path) -> None:
    """Cron, at, a container engine: the writing process belongs to no session."""

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            room.run("ann", 1, "echo x > file")
            outside("sh", "-c", f"cd {tmp_path}/s; echo y > file; echo z > new")
            for name in ("file", "new"):
                path = f"{tmp_path}/s/{name}"
                assert authors(writers, room.session, path) == (Shaped("file", path, UNKNOWN),)
            room.run("bob", 2, "echo x > file")
            assert author(writers, room.session, f"{tmp_path}/s/file") == Shaped(
                "file", f"{tmp_path}/s/file", "bob", 2
            )

    go(main())


@told
def test_p3_after_a_loss_only_proven_authors_count(tmp_path: Path) -> None:
    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            at = f"{tmp_path}/s"
            room.run("ann", 1, "echo x > kept; echo x > changed; echo x > unsettled")
            while not await settled(writers):
                pass
            room.run("bob", 2, "echo y > unsettled")
            writers.table.lost()
            (tmp_path / "s" / "changed").write_text("z")
            assert author(writers, room.session, f"{at}/kept") == Shaped(
                "file", f"{at}/kept", "ann", 1
            )
            assert author(writers, room.session, f"{at}/changed") == Shaped(
                "file", f"{at}/changed", UNKNOWN
            )
            assert author(writers, room.session, f"{at}/unsettled") == Shaped(
                "file", f"{at}/unsettled", UNKNOWN
            )
            room.run("bob", 3, "echo y > unsettled")
            assert author(writers, room.session, f"{at}/unsettled") == Shaped(
                "file", f"{at}/unsettled", "bob", 3
            )

    go(main())


async def settled(writers: Writers) -> bool:
    """Saves the table; returns whether every entry is settled."""
    await writers._save()
    return not writers.table.unsettled(1)


@told
def test_p3_more_than_the_kernels_queue_holds_is_a_loss_that_is_noticed(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/fanotify/max_queued_events").read_text())

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            at = f"{tmp_path}/s"
            room.run("ann", 1, "echo x > before")
            assert (
                author(writers, room.session, f"{at}/before") is not None
                and writers._events is not None
            )
            code = (
                f'import os; os.mkdir("many"); [os.close(os.open(f"many/{{n}}", os.O_CREAT | '
                f"os.O_WRONLY)) for n in range({limit + 2000})]"
            )
            room.run("bob", 2, f"python3 -c '{code}'; echo y > after")
            while not writers._events.lost:
                writers.catch_up()
            assert author(writers, room.session, f"{at}/before") == Shaped(
                "file", f"{at}/before", UNKNOWN
            )
            room.run("ann", 3, "echo z > before; echo z > after")
            assert author(writers, room.session, f"{at}/before") == Shaped(
                "file", f"{at}/before", "ann", 3
            )

    go(main())


@told
def test_p3_the_next_host_knows_the_authors_of_unchanged_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            room.run(
                "ann", 1, "echo x > kept; echo x > changed; echo x > replaced; ln -s kept link"
            )
            while not await settled(writers):
                pass
        (tmp_path / "s" / "changed").write_text("y")
        (tmp_path / "s" / "other").write_text("x")
        os.rename(tmp_path / "s" / "other", tmp_path / "s" / "replaced")
        async with host(tmp_path) as (writers, (room,)):
            for name, actor in {
                "kept": "ann",
                "changed": UNKNOWN,
                "replaced": UNKNOWN,
                "link": "ann",
            }.items():
                path = f"{tmp_path}/s/{name}"
                assert authors(writers, room.session, path) == (
                    Shaped("file", path, actor, 1 if actor == "ann" else None),
                ), name

    go(main())


def test_s4_a_corrupt_file_of_the_last_host_is_ignored(tmp_path: Path) -> None:
    async def main() -> None:
        state = tmp_path / "state"
        state.mkdir()
        for text in (
            "",
            "[" * 100_000,
            "\0",
            '["b", false]\n{}',
            '["b", false]\n[0, 0, 0]\n["zz", 0, [], [], 1, 1]',
            '["b", false]\n[0,0,0]\n["00", 7, [], [], 1, 1]',
            "[1]\n[2]",
        ):
            (state / "writers").write_text(text)
            async with host(tmp_path) as (writers, _):
                assert not len(writers.table) or writers.kernel_reports
        (state / "writers").unlink()
        os.mkfifo(state / "writers")
        async with host(tmp_path) as (writers, _):
            pass

    go(main())


@told
def test_s4_a_host_that_leaves_does_not_wait_for_a_file_system_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        hold = threading.Event()
        monkeypatch.setattr(module, "LEAVE_S", 0.05)
        try:
            async with host(tmp_path) as (writers, (room,)):
                monkeypatch.setattr(writers, "_stamps", lambda *_: hold.wait(600) and {})
                room.run("ann", 1, "echo x > kept")
                writers.catch_up()
                assert writers._wanted(writers.table.unsettled(1)), "there is something to ask for"
        finally:
            hold.set()

    go(main())


@told
def test_p3_many_at_once_and_a_file_system_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            room.run("ann", 1, "echo x > a; echo x > b")
            names = [f"{tmp_path}/s/{name}" for name in ("a", "b", "nothing")]
            assert [one.actor for one in await writers.authors(room.session, names)] == [
                "ann",
                "ann",
            ]
            assert await writers.authors(room.session, []) == ()
            hold, real = threading.Event(), path_writers._pieces

            def look(root: int, path: str, missing: set[str]) -> list[path_writers.Piece]:
                if path == "/dead":
                    hold.wait(30)
                return real(root, path, missing)

            monkeypatch.setattr(path_writers, "_pieces", look)
            monkeypatch.setattr(module, "LOOK_S", 0.2)
            for _ in range(module.LOOKERS):
                found = await writers.authors(room.session, [names[0], "/dead"])
                assert [(one.name, one.actor) for one in found] == [
                    (names[0], "ann"),
                    ("/dead", UNKNOWN),
                ]
            assert [one.actor for one in await writers.authors(room.session, names[:1])] == [
                UNKNOWN
            ], "all threads of the session are blocked"
            hold.set()
            while writers._threads._used:
                await asyncio.sleep(0)
            assert [one.actor for one in await writers.authors(room.session, names[:1])] == ["ann"]

    go(main())


@told
def test_p3_from_a_thread_as_from_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            room.run("ann", 1, "echo x > a")
            assert await asyncio.to_thread(
                author, writers, room.session, f"{tmp_path}/s/a"
            ) == Shaped("file", f"{tmp_path}/s/a", "ann", 1)

    go(main())


@told
def test_p3_a_remounted_file_system_must_prove_its_known_authors(
    tmp_path: Path,
) -> None:
    disk, there = tmp_path / "disk", tmp_path / "there"
    there.mkdir()
    with disk.open("wb") as file:
        file.truncate(8 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", str(disk)], capture_output=True)
    if (
        made.returncode
        or subprocess.run(
            ["mount", "-o", "loop", str(disk), str(there)], capture_output=True
        ).returncode
    ):
        pytest.skip("no file system can be mounted here")

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            room.run("ann", 1, f"echo x > {there}/a; echo x > {there}/b")
            assert author(writers, room.session, f"{there}/a") == Shaped(
                "file", f"{there}/a", "ann", 1
            )
            while not await settled(writers):
                pass
            outside("umount", str(there))
            outside("mount", "-o", "loop", str(disk), str(there))
            (there / "b").write_text("somebody")
            assert author(writers, room.session, f"{there}/a") == Shaped(
                "file", f"{there}/a", "ann", 1
            ), "its change time proves it"
            assert author(writers, room.session, f"{there}/b") == Shaped(
                "file", f"{there}/b", UNKNOWN
            )
            for n in (2, 3):  # however often
                await marked(writers)
                room.run("bob", n, f"echo x > {there}/b")
                assert author(writers, room.session, f"{there}/b") == Shaped(
                    "file", f"{there}/b", "bob", n
                )
                outside("umount", str(there))
                outside("mount", "-o", "loop", str(disk), str(there))
                outside("sh", "-c", f"echo {n} > {there}/b")
                assert author(writers, room.session, f"{there}/b") == Shaped(
                    "file", f"{there}/b", UNKNOWN
                )

    try:
        go(main())
    finally:
        subprocess.run(["umount", str(there)], check=True)


@told
def test_p3_a_file_system_mounted_later_is_watched_after_the_first_question(
    tmp_path: Path,
) -> None:
    there = tmp_path / "there"
    there.mkdir()

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            if subprocess.run(  # noqa: ASYNC221
                ["mount", "-t", "tmpfs", "none", str(there)], capture_output=True
            ).returncode:
                pytest.skip("no file system can be mounted here")
            try:
                room.run("ann", 1, f"echo x > {there}/a")
                assert author(writers, room.session, f"{there}/a") == Shaped(
                    "file", f"{there}/a", UNKNOWN
                )
                await marked(writers)
                room.run("ann", 2, f"echo x > {there}/a")
                assert author(writers, room.session, f"{there}/a") == Shaped(
                    "file", f"{there}/a", "ann", 2
                )
            finally:
                outside("umount", str(there))

    go(main())


@told
def test_p3_files_on_an_overlay_are_told_too_or_unknown(tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower" / "old").write_text("x")
    layers = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    if subprocess.run(
        ["mount", "-t", "overlay", "none", "-o", layers, str(tmp_path / "there")],
        capture_output=True,
    ).returncode:
        pytest.skip("no overlay here")

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            room.run("ann", 1, f"echo x > {tmp_path}/there/new; echo y >> {tmp_path}/there/old")
            for name in ("new", "old"):
                path = f"{tmp_path}/there/{name}"
                assert {one.actor for one in authors(writers, room.session, path)} <= {
                    "ann",
                    UNKNOWN,
                } and author(writers, room.session, path) is not None

    try:
        go(main())
    finally:
        outside("umount", str(tmp_path / "there"))


@told
def test_p3_after_the_last_session_the_watch_ends_and_proven_authors_stay(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with host(tmp_path, "one", "two") as (writers, (one, two)):
            one.run("ann", 1, "echo x > kept; echo x > changed")
            while not await settled(writers):
                pass
            for room in (one, two):
                room.lineages.end(room.session)
            writers._rest()
            assert writers._events is not None and not writers._events.marked()
            outside("sh", "-c", f"echo y > {tmp_path}/one/changed")
            one.lineages.begin(one.session)
            await marked(writers)
            assert author(writers, one.session, f"{tmp_path}/one/kept") == Shaped(
                "file", f"{tmp_path}/one/kept", "ann", 1
            )
            assert author(writers, one.session, f"{tmp_path}/one/changed") == Shaped(
                "file", f"{tmp_path}/one/changed", UNKNOWN
            )

    go(main())


@told
def test_p3_names_that_are_exchanged_all_the_time_never_have_a_wrong_author(tmp_path: Path) -> None:
    code = (
        'import os\nfor n in range(400):\n for to in ("ann", "bob"):\n'
        '  os.link(to, "fresh"); os.rename("fresh", "name")'
    )

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            at = tmp_path / "s"
            room.run("ann", 1, "echo ann > ann")
            room.run("bob", 2, "echo bob > bob; cp bob name")
            room.run("cat", 3, f"python3 -c '{code}' & echo $! > pid")
            pid = int((at / "pid").read_text())
            while process.state_of(pid) not in ("", "Z", "X"):
                named = {one.actor for one in await writers.authors(room.session, [f"{at}/name"])}
                assert named & {"ann", "bob"} or named == {UNKNOWN}, (
                    "an observed file may be gone when the question is answered"
                )
            last = (at / "name").read_text().strip()
            found = authors(writers, room.session, f"{at}/name")
            assert found[0].actor == last and {"cat"} <= {one.actor for one in found}

    go(main())


@told
def test_p3_deleted_files_are_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            room.run(
                "ann", 1, "for n in 1 2 3 4 5 6 7 8 9; do echo x > temp$n; done; echo x > stays"
            )
            before = len(writers.table)
            room.run("ann", 2, "rm temp*")
            assert (
                len(writers.table) <= before - 9
                and author(writers, room.session, f"{tmp_path}/s/stays") is not None
            )

    go(main())


@told
def test_p3_a_file_that_is_written_through_a_mapping_is_its_writers_when_it_is_closed(
    tmp_path: Path,
) -> None:
    code = (
        'import mmap\nwith open("mapped", "r+b") as f:\n m = mmap.mmap(f.fileno(), 0)\n'
        'm[0:1] = b"X"; m.close()'
    )

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            room.run("ann", 1, "echo x > mapped")
            room.run("bob", 2, f"python3 -c '{code}'")
            assert author(writers, room.session, f"{tmp_path}/s/mapped") == Shaped(
                "file", f"{tmp_path}/s/mapped", "bob", 2
            )

    go(main())


# ------------------------------------------------------------ without file events


def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(1, "not permitted")

    monkeypatch.setattr(file_events, "Events", refused)


def test_p3_without_file_events_a_new_file_is_of_the_only_operator_that_ran_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf(monkeypatch)

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            assert (
                not writers.kernel_reports and author(writers, room.session, "/usr/bin/env") is None
            )
            if not room.lineages.told:
                pytest.skip("the kernel does not tell of processes here")
            monkeypatch.setattr("holdfast.core.originators.activity.SLACK_S", 0.0)
            # The times of files come from a coarse clock, which may be some milliseconds behind:
            # the write must come a moment after the act began.
            room.run("ann", 1, "sleep 0.05; echo x > file; sleep 0.05")
            path = f"{tmp_path}/s/file"
            assert authors(writers, room.session, path) == (
                Shaped("file", path, "ann", 1, sure=False),
            )
            room.run("ann", 2, "sleep 1000 &")
            room.run("bob", 3, "sleep 0.05; echo y > file; sleep 0.05")
            assert authors(writers, room.session, path) == (Shaped("file", path, UNKNOWN),), (
                "two had something running"
            )
            room.lineages.end(room.session)
            assert not writers._running and not writers._orders
            room.lineages.begin(room.session)  # as the next host finds it
            room.run("bob", 4, "sleep 0.05; echo z > file; sleep 0.05")
            assert authors(writers, room.session, path) == (Shaped("file", path, UNKNOWN),), (
                "ann's is still there"
            )
            room.run("bob", 5, "kill %1; wait")
            found: tuple[Shaped, ...] = ()
            # On a busy machine the kernel drops process events: the author is unknown until a scan.
            for act in range(6, 40):
                room.run("bob", act, "sleep 0.05; echo z > file; sleep 0.05")
                found = authors(writers, room.session, path)
                if found != (Shaped("file", path, UNKNOWN),):
                    break
                await asyncio.sleep(0)
            assert found == (Shaped("file", path, "bob", act, sure=False),)

    go(main())


def test_p3_without_file_events_unwritable_files_have_no_author_unless_an_account_changed(
    tmp_path: Path,
) -> None:
    """As an ordinary user: the machine is updated during sessions, perhaps by one with sudo."""
    if ROOT:
        pytest.skip("it is run as an ordinary user below")

    async def main() -> None:
        async with host(tmp_path, created=1.0) as (writers, (room,)):
            assert not writers.kernel_reports and writers.table.horizon == 1.0
            if not room.lineages.told:
                pytest.skip("the kernel does not tell of processes here")
            assert author(writers, room.session, "/usr/bin/env") is None, (
                "newer than the first session, and not writable by any operator here"
            )
            room.lineages._other_account(room.shell.pid)
            assert author(writers, room.session, "/usr/bin/env") == Shaped(
                "file", "/usr/bin/env", UNKNOWN
            )

    go(main())


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_all_of_this_as_an_ordinary_user() -> None:
    with ordinary_user() as user:
        python = user.python("pytest")
        done = user.run(
            [
                python,
                "-m",
                "pytest",
                "-q",
                "-c",
                os.devnull,
                "-p",
                "no:cacheprovider",
                "--import-mode=importlib",
                "-k",
                "without or anything",
                "--rootdir",
                str(Path(__file__).parents[3]),
                __file__,
            ]
        )
        assert done is not None and done.returncode == 0, (
            (done.stdout[-3000:] + done.stderr[-1000:]) if done else "it did not run"
        )
        assert " passed" in done.stdout


@told
def test_p3_the_last_writes_of_a_shell_belong_to_its_author(tmp_path: Path) -> None:
    async def main() -> None:
        async with host(tmp_path, "s", "t") as (writers, (room, other)):
            room.commands.typed("bob", b"echo x > file; exit\r", 3, 0)
            room._mark("C")
            room.shell.communicate(b"echo x > file; exit\n")
            room.lineages.catch_up()
            assert room.shell.pid not in room.lineages._owner
            assert author(writers, other.session, f"{tmp_path}/s/file") == Shaped(
                "file", f"{tmp_path}/s/file", "bob"
            )

    go(main())


def test_p3_a_directory_that_does_not_answer_takes_no_more_than_a_few_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a home on a dead file server: the rest of the host needs threads too."""
    released, asked = threading.Event(), list[str]()

    def candidates(where: str) -> list[str]:
        asked.append(where)
        released.wait()
        return []

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            monkeypatch.setattr(timers, "candidates", candidates)
            monkeypatch.setattr(module, "LOOK_S", 0.01)
            try:
                for _ in range(2 * module.LOOKERS + 2):
                    assert await timers.timers(writers, room.session) == []
                assert len(asked) <= module.LOOKERS
                assert await asyncio.to_thread(lambda: True)
            finally:
                released.set()

    go(main())


def test_p3_the_marks_stay_for_the_whole_pause_after_the_last_of_several_sessions(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            loop: Any = writers._loop
            waiting = list[Any]()
            real = loop.call_later

            def later(delay: float, work: Any, *args: Any) -> Any:
                timer = real(delay, work, *args)
                if work == writers._rest:
                    waiting.append(timer)
                return timer

            loop.call_later = later
            for _ in range(3):
                writers.end(room.session)
                writers.begin(room.session)
            writers.end(room.session)
            assert [one for one in waiting if not one.cancelled()] == waiting[-1:]

    go(main())


def test_p3_without_file_events_noting_when_commands_run_does_not_speed_up_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session sends output faster while a client waits for its marks (`watchers`)."""
    deaf(monkeypatch)

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            assert not room.commands.watchers
            room.commands.typed("ann", b"make\r", 1, 0)
            room._mark("C")
            assert [who.cause.actor for who in writers._orders.values()] == ["ann"]
            room._mark("P;0")
            assert not writers._orders

    go(main())


@told
def test_p3_a_kernel_that_tells_no_more_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fd: int, size: int) -> bytes:
        raise OSError(5, "broken")

    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            room.run("ann", 1, "echo x > file; sleep 1000 &")
            path = f"{tmp_path}/s/file"
            assert writers.kernel_reports and author(writers, room.session, path) == Shaped(
                "file", path, "ann", 1
            )
            with monkeypatch.context() as broken:
                broken.setattr(os, "read", fails)
                writers.catch_up()
            room.run("bob", 2, "echo y > file")
            assert not writers.kernel_reports and author(writers, room.session, path) == Shaped(
                "file", path, UNKNOWN
            )
            assert author(writers, room.session, "/etc/passwd") is None, (
                "older than all sessions, still"
            )
            room.run("bob", 3, "kill %1; wait")
            room.lineages.catch_up()
            assert not room.lineages._gone, "no request will follow"

    go(main())


@told
def test_p3_a_clock_that_is_set_back_and_forth_between_two_questions_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with host(tmp_path) as (writers, (room,)):
            author(writers, room.session, "/etc/passwd")
            horizon, real = writers.table.horizon, time.time
            with monkeypatch.context() as back:
                back.setattr(time, "time", lambda: real() - 3600)
                room.run("bob", 2, "echo y > file")
                writers.catch_up()
            author(writers, room.session, "/etc/passwd")
            assert writers.table.horizon < horizon - 3000

    go(main())
