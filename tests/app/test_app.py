"""`holdfast.app` without a session: the file of the token, the keys, and the watch (R3, R5)."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import app
from holdfast.host.lifecycle import token_file

BRANCH = {token_file.PARENT: "base00000001", token_file.BASE: "base00000001"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "token"
    monkeypatch.setenv(app.TOKEN_FILE, str(path))
    put(path, "base00000001", 1)
    return path


def put(path: Path, session: str, epoch: int, label: dict[str, Any] | None = None) -> None:
    fresh = path.with_name("new")
    fresh.write_bytes(token_file.content(session, epoch, 5.0, label or {}))
    fresh.replace(path)


def test_r2_every_token_has_the_same_size() -> None:
    """A restored program that has the file open gets the file of the new incarnation."""
    labels: tuple[dict[str, str], ...] = (
        {},
        {token_file.PARENT: "b" * 12, token_file.BASE: "c" * 12},
    )
    tokens = [
        token_file.content("a" * 12, epoch, since, label)
        for epoch in (1, 10**9)
        for since in (1e9, 1795060971.331)
        for label in labels
    ]
    assert {len(one) for one in tokens} == {token_file.BYTES}


def test_r3_each_call_reads_the_file(file: Path) -> None:
    first = app.token()
    assert first == app.Token("base00000001", 1, 5.0, None, "base00000001")
    assert not app.changed_since(first)
    put(file, "base00000001", 2)
    assert app.token().epoch == 2 and app.changed_since(first)


def test_outside_of_a_session_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(app.TOKEN_FILE, raising=False)
    assert not app.inside()
    for call in (app.token, lambda: app.idempotency_key("x")):
        with pytest.raises(app.OutsideSession, match="holdfast new"):
            call()


def test_r3_a_missing_or_damaged_file_is_an_error(file: Path) -> None:
    file.write_text("{}")
    with pytest.raises(app.TokenUnreadable, match="damaged"):
        app.token()
    file.write_text(json.dumps({"format": app.FORMAT + 1}))
    with pytest.raises(app.TokenUnreadable, match="reads up to"):
        app.token()
    file.unlink()
    with pytest.raises(app.TokenUnreadable, match="do not write"):
        app.token()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_token_or_an_error(data: bytes) -> None:
    try:
        app.decode(data)
    except app.TokenUnreadable:
        pass


@given(
    st.recursive(st.none() | st.integers() | st.floats() | st.text(), lambda s: st.lists(s)),
    st.sampled_from(["format", "session", "epoch", "since", "parent", "base"]),
)
def test_any_value_is_a_token_or_an_error(value: object, key: str) -> None:
    facts = json.loads(token_file.content("base00000001", 1, 5.0, {}))
    try:
        app.decode(json.dumps({**facts, key: value}).encode())
    except app.TokenUnreadable:
        pass


def test_r5_branches_inherit_the_keys_of_the_base(file: Path) -> None:
    """Whatever the incarnation: the base, its branch, and a branch of that branch."""
    key = app.idempotency_key("invoice 17")
    assert len(key) == 32 and key != app.idempotency_key("invoice 18")
    put(file, "base00000001", 7)
    assert app.idempotency_key("invoice 17") == key
    put(file, "branch000001", 1, BRANCH)
    assert app.idempotency_key("invoice 17") == key
    put(
        file,
        "branch000002",
        1,
        {token_file.PARENT: "branch000001", token_file.BASE: BRANCH["base"]},
    )
    assert app.token().parent == "branch000001"
    assert app.idempotency_key("invoice 17") == key
    put(file, "other0000001", 1)
    assert app.idempotency_key("invoice 17") != key


def test_r5_an_operation_begun_before_the_fork_has_one_key(file: Path) -> None:
    """And one that began after the fork has a key of its own in each branch."""
    before = app.token()
    key = app.idempotency_key("charge", begun=before)
    put(file, "branch000001", 1, BRANCH)
    assert app.idempotency_key("charge", begun=before) == key
    mine = app.token()
    assert app.idempotency_key("charge", begun=mine) != key
    put(file, "branch000001", 2, BRANCH)
    assert app.idempotency_key("charge", begun=app.token()) == app.idempotency_key(
        "charge", begun=mine
    )


def test_the_keys_are_fixed() -> None:
    """Other systems store keys: this value must never change."""
    token = app.Token("mx7a61fnm774", 3, 0.0, None, "mx7a61fnm774")
    assert app.idempotency_key("invoice 17", token) == "d0b3edf4eacf4bff055431ea7ffd0ba2"


def test_r2_a_new_incarnation_is_told_after_the_fact(file: Path) -> None:
    told, seen = list[tuple[int, int]](), threading.Event()

    def callback(before: app.Token, now: app.Token) -> None:
        told.append((before.epoch, now.epoch))
        seen.set()
        raise ValueError("the watch goes on")

    watch = app.on_new_incarnation(callback, 0.01)
    for epoch in (2, 3):
        seen.clear()
        put(file, "base00000001", epoch)
        assert seen.wait(60)
    watch.close()
    assert told == [(1, 2), (2, 3)]


def test_a_copy_of_the_file_needs_nothing_else(file: Path, tmp_path: Path) -> None:
    source = Path(app.__file__).read_text()
    (tmp_path / "copied.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
         "import copied; print(copied.token().epoch)"],
        env={app.TOKEN_FILE: str(file)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "1\n"
    ast.parse(source, feature_version=(3, 9))
    names = {n.module for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom)} | {
        a.name for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import) for a in n.names
    }
    assert names <= {"__future__", *sys.stdlib_module_names, "collections.abc"}
