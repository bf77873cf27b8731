"""The guard of the shell's snapshots (P3): real processes open, map and replace the files."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.core.originators.lineage import Cause
from holdfast.host.originators import file_events
from holdfast.host.originators.shell_origins import ShellOrigins
from holdfast.host.originators.snapshot_guard import SnapshotGuard
from holdfast.host.session.session import Session
from holdfast.host.session.shell_state import ShellState
from holdfast.host.shell import SessionDirectories
from holdfast.host.shell.launch import SLOT, SLOTS

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="the kernel reports opened files only to root"
)


class Shell:
    """A process that writes on command, and its session."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for slot in range(SLOTS):
            (directory / f"{SLOT}{slot}").touch(0o600)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-u",
                "-c",
                "import sys\nfor line in sys.stdin:\n    open(line.strip(), 'r+').write('said')\n"
                "    print()",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.told: list[dict[str, Any]] = []
        lineage = SimpleNamespace(root=self.process.pid, of=lambda pid: Cause("eve", 7))
        self.session = cast(
            Session,
            SimpleNamespace(
                writable_directory=str(directory),
                host_only_directory=str(directory),
                commands=SimpleNamespace(lineage=lineage),
                ref="hf:s",
                event=lambda name, **facts: self.told.append({"event": name, **facts}),
            ),
        )

    def path(self, slot: int) -> Path:
        return self.directory / f"{SLOT}{slot}"

    def says(self, slot: int) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{self.path(slot)}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "\n"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.fixture
def witness(shell: Shell) -> Iterator[SnapshotGuard]:
    made = SnapshotGuard()
    made.begin(shell.session)
    yield made
    made.close()


def genuine(witness: SnapshotGuard, shell: Shell, slot: int, taken_for: int | None = None) -> bool:
    with open(shell.path(slot), "rb") as file:
        return witness.is_genuine(
            shell.session, slot if taken_for is None else taken_for, file.fileno()
        )


def other(code: str, path: Path) -> int:
    """Another program that acts on the file; its pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import mmap, os, sys\npath = sys.argv[1]\n{code}", str(path)]
    )
    assert process.wait() == 0
    return process.pid


def test_p3_the_shells_own_words_are_believed(shell: Shell, witness: SnapshotGuard) -> None:
    for slot in (1, 2, 1):
        shell.says(slot)
        assert genuine(witness, shell, slot)
    assert not genuine(witness, shell, 1, taken_for=2) and not shell.told, "one file is not another"


@pytest.mark.parametrize(
    "code",
    [
        "open(path).read()",
        "open(path, 'r+').write('forged')",
        "os.truncate(path, 0)",
        "mmap.mmap(os.open(path, os.O_RDWR), 4)[0:1] = b'x'",
        "os.link(path, path + 'x'); open(path + 'x', 'a').write('forged')",
        "os.chmod(path, 0o666)",
    ],
)
def test_p3_a_snapshot_that_another_program_opened_or_changed_is_not_believed(
    shell: Shell, witness: SnapshotGuard, code: str
) -> None:
    shell.says(3)
    pid = other(code, shell.path(3))
    assert not genuine(witness, shell, 3) and witness.doubted_slots(shell.session) == [3]
    assert [
        (one["event"], one["pid"], one["operator"], one["caused_by"]) for one in shell.told
    ] == [("originators.doubted", pid, "eve", "hf:s#7")]
    shell.says(4)
    other(code, shell.path(4))
    assert not genuine(witness, shell, 4) and len(shell.told) == 1, (
        "told once, until it is put right"
    )
    shell.says(2)
    assert genuine(witness, shell, 2), "the others are as good as they were"
    for slot in witness.doubted_slots(shell.session):
        witness.replace(shell.session, slot, lambda: True)
    assert not shell.path(3).read_text() and oct(shell.path(3).stat().st_mode & 0o777) == "0o600"
    shell.says(3)
    assert genuine(witness, shell, 3) and not witness.doubted_slots(shell.session)


@pytest.mark.parametrize(
    "code",
    [
        "os.replace(path + '.mine', path)",
        "os.unlink(path); open(path, 'w').write('x')",
        "os.unlink(path); os.symlink(path[:-1] + '2', path)",
    ],
)
def test_p3_another_file_in_the_place_of_a_snapshot_is_not_believed(
    shell: Shell, witness: SnapshotGuard, code: str
) -> None:
    Path(f"{shell.path(5)}.mine").write_text("forged")
    other(code, shell.path(5))
    shell.says(5)
    assert not genuine(witness, shell, 5)
    witness.replace(shell.session, 5, lambda: True)
    shell.says(5)
    assert genuine(witness, shell, 5)


def test_p3_a_file_that_the_shell_wrote_again_meanwhile_is_left(
    shell: Shell, witness: SnapshotGuard
) -> None:
    shell.says(1)
    witness.replace(shell.session, 1, lambda: False)
    assert shell.path(1).read_text() == "said" and genuine(witness, shell, 1)
    assert sorted(os.listdir(shell.directory)) == [f"{SLOT}{slot}" for slot in range(SLOTS)], (
        "nothing is left beside them"
    )


def test_p3_after_a_loss_of_events_no_snapshot_is_believed(
    shell: Shell, witness: SnapshotGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.says(1)
    monkeypatch.setattr(file_events, "parsed", lambda data, own: (1, [], True))
    assert not genuine(witness, shell, 1) and witness.doubted_slots(shell.session) == [
        *range(SLOTS)
    ]
    assert [(one["event"], one["operator"]) for one in shell.told] == [
        ("originators.doubted", "unknown")
    ]


HELD = """
held = os.open(path, os.O_RDWR)
data = mmap.mmap(held, 4)
os.close(held)
print(flush=True)
sys.stdin.readline()
data[0:4] = b"evil"
print(flush=True)
sys.stdin.readline()
"""


def test_p3_a_file_that_was_mapped_before_the_watch_is_not_believed(shell: Shell) -> None:
    """Writes by a mapping are not reported; the existence of a mapping is known."""
    for slot in range(SLOTS):
        shell.says(slot)
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import mmap, os, sys\npath = sys.argv[1]\n{HELD}",
            str(shell.path(3)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert (
            holder.stdin is not None
            and holder.stdout is not None
            and holder.stdout.readline() == "\n"
        )
        witness = SnapshotGuard()
        try:
            witness.begin(shell.session)
            assert [(one["event"], one["operator"]) for one in shell.told] == [
                ("originators.doubted", "unknown")
            ]
            shell.says(3)
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "\n" and shell.path(3).read_text() == "evil"
            assert (
                not genuine(witness, shell, 3)
                and witness.doubted_slots(shell.session) == [3]
                and genuine(witness, shell, 2)
            )
            witness.replace(shell.session, 3, lambda: True)
            shell.says(3)
            assert genuine(witness, shell, 3) and shell.path(3).read_text() == "said"
        finally:
            witness.close()
            holder.stdin.close()


@pytest.mark.parametrize(
    "code",
    ["os.mkdir(path + '.new')", "os.symlink('/', path + '.new')", "open(path + '.new', 'w')"],
)
def test_p3_a_fresh_snapshot_can_replace_a_tampered_one(
    shell: Shell, witness: SnapshotGuard, code: str
) -> None:
    other(code, shell.path(1))
    other("open(path)", shell.path(1))
    assert not genuine(witness, shell, 1)
    witness.replace(shell.session, 1, lambda: True)
    shell.says(1)
    assert genuine(witness, shell, 1)


def test_p3_failed_replacements_leave_no_trace(shell: Shell, witness: SnapshotGuard) -> None:
    """After any number of them: neither in memory nor beside the files.

    Nor of a session that ended meanwhile.
    """
    for _ in range(20):
        witness.replace(shell.session, 1, lambda: False)
    shell.path(2).unlink()
    shell.path(2).mkdir()
    for _ in range(20):
        with pytest.raises(OSError):
            witness.replace(shell.session, 2, lambda: True)
    assert len(witness._watched) == SLOTS and len(os.listdir(shell.directory)) == SLOTS
    witness.end(shell.session)
    witness.replace(shell.session, 1, lambda: True)
    assert not witness._watched and not witness._doubted


def test_p3_after_too_many_events_no_snapshot_is_believed(
    shell: Shell, witness: SnapshotGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.host.originators.snapshot_guard.READS_MAX", 1)
    shell.says(1)
    assert not genuine(witness, shell, 1)


def test_p3_a_host_that_cannot_watch_files_believes_no_snapshot(shell: Shell) -> None:
    """A program can use up the kernel's resources. A host that starts then trusts no snapshot."""
    shapes = ShellOrigins(lambda name: None, lambda session, names: (), lambda *a: False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shaping = ShellState(
        SessionDirectories.as_outside(shell.directory, shell.directory), "bash", {}
    )
    session = cast(Any, shell.session)
    session.commands.shell_state, session.id, session.turn = (
        shaping,
        "s",
        SimpleNamespace(begun=bytes),
    )
    session.spawn = None
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        shapes.open()
        shapes.begin(session)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    shell.says(1)
    with open(shell.path(1)) as file:
        assert not shaping.genuine(1, file.fileno()) and [
            (one["event"], one["operator"]) for one in shell.told
        ] == [("originators.doubted", "unknown")]
        shapes.begin(session)
        shell.says(1)
        assert shaping.genuine(1, file.fileno()), "as soon as it can be, it is told"
    shapes.close([])


def test_p3_an_ended_session_leaves_no_state(shell: Shell, witness: SnapshotGuard) -> None:
    other("open(path)", shell.path(1))
    witness.end(shell.session)
    assert (
        not genuine(witness, shell, 1)
        and not witness.doubted_slots(shell.session)
        and not shell.told
    )
