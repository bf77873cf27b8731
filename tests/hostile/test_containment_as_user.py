"""All attacks on contained sessions (T4, A4) again, on the host of an ordinary user."""

from __future__ import annotations

from pathlib import Path

from tests.support.ordinary_user import ordinary_user

HERE = Path(__file__)


def test_t4_all_attacks_as_an_ordinary_user() -> None:
    """In a home below /home: a session has its own /tmp, whatever the list of its files is."""
    files = sorted(str(p) for p in HERE.parent.glob("test_containment*.py") if p != HERE)
    with ordinary_user(Path("/home")) as user:
        python = user.own_python("pytest", "apsw")
        done = user.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files])
        assert done is not None and done.returncode == 0, done and done.stdout[-6000:]
        assert " passed" in done.stdout
