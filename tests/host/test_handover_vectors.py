"""The state that one host leaves for the next, of any release, as in tests/vectors/handover.json.

Labels in a keeper's memory, files in a session's directory, rows and tables of the databases, the
files that a running shell still reads, and the messages to a policy in its own process.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import tempfile
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from holdfast.core.originators.lineage import Cause, Lineage
from holdfast.core.originators.shell_authors import Shape
from holdfast.core.originators.writers import Table
from holdfast.core.session.mark_tags import MarkKey
from holdfast.core.session.shell_marks import Shell, scanner_of
from holdfast.home import Home
from holdfast.host.lifecycle import prepare
from holdfast.host.lifecycle.prepare import NewSession
from holdfast.host.policy import plugin_worker
from holdfast.host.session import unfinished_line_file
from holdfast.host.shell import SessionDirectories, launch, run
from holdfast.host.storage import store
from holdfast.host.terminal.screen import Screen
from holdfast.host.terminal.view import View, stored
from holdfast.relay import store as relay_store
from holdfast.wire import snapshot, spawning
from tests.vectors import cases

FILE = "handover.json"
NONCE = "ab" * 16


def label(given: dict[str, Any]) -> dict[str, Any]:
    """The facts that a keeper, the store and the nursery get about a new session."""
    settings = SimpleNamespace(
        shell="", login_shell=False, gate="auto", ring_bytes=8 << 20, host_away_s=10.0
    )
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_hex", lambda count: NONCE)
        engine: Any = SimpleNamespace(
            home=Home(folder, f"{folder}/c", True), settings=settings, boot="boot", threads=None
        )
        record, found, spawn = asyncio.run(
            prepare.prepare(engine, "0123456789ab", "work", NewSession(**given["request"]), "ann")
        )
        row = store.body_of(record) | {"created": 0.0}
        assert json.loads(spawn.label) == found
        return {
            "label": spawn.label.decode(),
            "row": json.dumps(row),
            "gate": spawn.gate,
            "spawn": {
                name: cases.bare(getattr(spawn, name))
                for name in ("session", "epoch", "socket", "cols", "rows", "cwd", "umask")
            },
        }


def half(given: dict[str, Any]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        kept = unfinished_line_file.UnfinishedLineFile(folder)
        for note in given["notes"]:
            kept.write(unfinished_line_file.Note(*note))
        kept.close()
        return Path(folder, "halfline").read_bytes().hex()


def lineage(given: dict[str, Any]) -> str:
    found = Lineage(given["root"], Cause("ann", None), True)
    found.restore(given["saved"])
    return json.dumps(found.save())


def shape(given: dict[str, Any]) -> str:
    found = Shape(given["given"])
    found.restore(given["saved"])
    return json.dumps(found.save())


def writers(given: dict[str, Any]) -> list[str]:
    table = Table()
    table.restore(given["rows"], True)
    return [json.dumps(row) for row in table.save()]


def record(given: dict[str, Any]) -> str:
    return json.dumps(store.body_of(store.SessionRow(**given)))


def marks(given: dict[str, Any]) -> dict[str, Any]:
    """The marks that a scanner finds in pieces of output, and its state for the next host."""
    scanner = scanner_of(given.get("version", 0))(NONCE)
    at, found = 0, []
    for piece in given["pieces"]:
        data = bytes.fromhex(piece)
        for one in scanner.feed(at, data):
            found.append([one.start, one.end, one.seq, one.kind.value, one.run, one.exit])
        at += len(data)
    return {"marks": found, "saved": scanner.save()}


def shell(given: dict[str, Any]) -> str:
    return json.dumps(Shell.restore(given).save())


def notes(given: dict[str, Any]) -> dict[str, Any]:
    """The notes before a screen in a keeper's memory."""
    view: Any = SimpleNamespace(
        saved_notes=lambda: given["notes"],
        fed=given["fed"],
        screen=SimpleNamespace(pending=given["pending"]),
    )
    offset, head = View._place(view)
    return {"offset": offset, "head": head.hex()}


def screen(given: dict[str, Any]) -> dict[str, Any]:
    """A screen of a release with another emulator: its portable half is painted."""
    found = Screen.restore(bytes.fromhex(given["blob"]))
    return {"size": list(found.size), "text": found.text()}


def run_file(given: dict[str, Any]) -> dict[str, Any]:
    """The text typed to run a command, and the file that the shell then reads."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        directories = SessionDirectories.as_outside(folder, folder)
        typed = run.write_run(
            directories, given["shell"], given["id"], given["text"], given["rows"]
        )
        return {
            "typed": typed.hex(),
            "files": {
                one.name: one.read_bytes().replace(name.encode(), b"DIR").hex()
                for one in sorted(folder.iterdir())
            },
        }


def hooks(given: dict[str, Any]) -> dict[str, Any]:
    """How a shell is started, and the part before the hooks in the file that it reads."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as programs:
        os.chmod(name, 0o700)
        binary = Path(programs, given["program"])
        binary.touch(0o755)
        argv = [str(binary), *given["flags"]]
        own = Path(name, given.get("own", "."))
        own.mkdir(mode=0o700, exist_ok=True)
        directories = SessionDirectories.as_outside(Path(name), own)
        made = launch.prepare(argv, directories, NONCE, given["env"], given["login"])

        def plain(text: str) -> str:
            return text.replace(name, "DIR").replace(programs, "BIN")

        heads = {}
        for path in sorted(Path(name).rglob("*")):
            for body in ("bash.rc", "zsh.rc", "posix.sh"):
                hook = resources.files("holdfast.host.shell").joinpath(body).read_bytes()
                if path.is_file() and path.read_bytes().endswith(hook):
                    head = path.read_bytes().removesuffix(hook).decode()
                    heads[plain(str(path))] = [body, plain(head)]
        return {
            "argv": [plain(word) for word in made.argv],
            "kind": made.kind,
            "env": {key: plain(value) for key, value in made.env.items()},
            "heads": heads,
        }


def tags(given: dict[str, Any]) -> dict[str, Any]:
    """What the shell of a session reads to make marks, and the tags of some marks."""
    key = MarkKey(given["secret"])
    return {
        "start": key.start,
        "tags": [key.tag(seq, ord(kind), status) for seq, kind, status in given["marks"]],
    }


def policy(given: dict[str, Any]) -> dict[str, Any]:
    """A question to a policy and the answer, as they go between two processes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(bytes.fromhex(given["sent"]))
        question = plugin_worker._receive(theirs)
        assert question is not None
        said = dict(question)
        plugin_worker._send(theirs, plugin_worker._answer(lambda asked: given["says"], question))
        return {"question": said, "answer": ours.recv(1 << 16).hex()}


def tables(given: dict[str, Any]) -> dict[str, Any]:
    """The contents of a new database."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/db"
        made: Any = store.Store(path) if given["whose"] == "host" else relay_store.Store(path)
        made._db.close()
        db = apsw.Connection(path)
        rows = db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
        version = db.execute("PRAGMA user_version").fetchall()[0][0]
        db.close()
        return {"version": version, "tables": [list(row) for row in rows]}


MAKE = {
    "label": label,
    "tags": tags,
    "half a line": half,
    "lineage": lineage,
    "shape": shape,
    "writers": writers,
    "record": record,
    "marks": marks,
    "shell": shell,
    "notes": notes,
    "screen": screen,
    "run": run_file,
    "hooks": hooks,
    "policy": policy,
    "tables": tables,
}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_the_state_for_the_next_host_does_not_change(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "half a line"), ids=cases.name)
def test_half_a_line_of_another_host_is_known(case: cases.Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "halfline").write_bytes(bytes.fromhex(case["expected"]))
        found = unfinished_line_file.UnfinishedLineFile(folder)
        newest = case["input"]["notes"][-1]
        assert found.last(newest[0]) == tuple(newest)
        before = [tuple(note) for note in case["input"]["notes"][:-1] if note[0] < newest[0]]
        assert found.last(newest[0] - 1) == (before[-1] if before else None)


@pytest.mark.parametrize("of", ["lineage", "shape", "writers"])
def test_stored_state_is_read_and_written_again_unchanged(of: str) -> None:
    """State that a host restores and saves at once equals the state that the last host saved."""
    for case in cases.load(FILE, of):
        saved = case["input"].get("saved", case["input"].get("rows"))
        again = case["expected"]
        assert saved == (
            [json.loads(row) for row in again] if of == "writers" else json.loads(again)
        ), case["name"]


@pytest.mark.parametrize("case", cases.load(FILE, "notes"), ids=cases.name)
def test_notes_and_screen_of_another_host_are_found(case: cases.Case) -> None:
    fd = os.memfd_create("vectors")
    ring: Any = SimpleNamespace(start=0, head=1 << 62)
    try:
        head = bytes.fromhex(case["expected"]["head"])
        snapshot.store(fd, case["expected"]["offset"], head + b"screen")
        assert stored(fd, ring) == (b"screen", case["expected"]["offset"], case["input"]["notes"])
    finally:
        os.close(fd)


def test_a_label_fits_into_a_request_for_a_keeper() -> None:
    """The frozen label comes out of the nursery's request unchanged."""
    for case in cases.load(FILE, "label"):
        text = case["expected"]["label"].encode()
        asked = spawning.Spawn("0123456789ab", 1, "s", 80, 24, 4096, 1, text, (b"sh",))
        assert spawning.read_spawn(spawning.spawn(asked)[10:]).label == text
