"""The variables that may redirect an approved program (P4)."""

from __future__ import annotations

from hashlib import blake2b

import pytest

from holdfast.core.originators.shell_state import environment_digest, read, sealed
from holdfast.core.policy import execution
from holdfast.core.policy.environment import Changes, changes, counted, fingerprint, shown


def short(value: bytes) -> bytes:
    return blake2b(value, digest_size=8).digest()


KNOWN = {"HOME": short(b"/home/u"), "EDITOR": short(b"vi")}


@pytest.mark.parametrize(
    ("now", "found"),
    [
        ([("HOME", b"/home/u"), ("EDITOR", b"vi")], ()),
        ([("HOME", b"/tmp"), ("EDITOR", b"vi")], (("HOME", "/tmp"),)),
        ([("HOME", b"/home/u")], (("EDITOR", None),)),
        ([("HOME", b"/home/u"), ("EDITOR", b"vi"), ("A", b"b=c")], (("A", "b=c"),)),
        ([("HOME", b"/home/u"), ("EDITOR", b"vi"), ("HOME", b"/tmp")], (("HOME", "/tmp"),)),
        ([("HOME", b"/home/u"), ("EDITOR", b"vi"), ("odd", b"")], (("odd", ""),)),
        ([("HOME", b"/home/u"), ("EDITOR", b"vi"), ("A", b"\xff")], (("A", "\\xff"),)),
    ],
)
def test_changes_since_the_first_prompt(now: list[tuple[str, bytes]], found: Changes) -> None:
    assert changes(now, KNOWN, short) == found


def test_what_counts_depends_on_the_program() -> None:
    every: Changes = (("GIT_DIR", "/x"), ("LC_ALL", "C"), ("LD_PRELOAD", "/y"), ("PATH", "/z"))
    assert [name for name, _ in counted(every, "git")] == ["GIT_DIR", "LD_PRELOAD"]
    assert [name for name, _ in counted(every, "rm")] == ["LD_PRELOAD"]
    assert [name for name, _ in counted(every, "/tmp/rm")] == ["GIT_DIR", "LD_PRELOAD"]


def test_values_that_may_be_secrets_are_not_shown() -> None:
    assert shown((("A", "/srv/a"), ("TOKEN", "s3cret"), ("HOME", None))) == (
        "A=/srv/a, TOKEN, without HOME"
    )
    text = execution.show(b"/usr/bin/git\0clean", {execution.ENVIRONMENT: "GIT_DIR=/x"})
    assert text == "/usr/bin/git clean (with GIT_DIR=/x)"


def test_p4_no_variable_is_pushed_out_of_sight() -> None:
    """The agent chooses names and values: many names, a long value, a name like another part."""
    junk: Changes = tuple((f"A{n}", "x") for n in range(500))
    lost: Changes = tuple((f"B{n}", None) for n in range(500))
    far = f"/srv/build{'/.' * 3000}/../victim"
    said = shown((*junk, *lost, ("GIT_WORK_TREE", far)))
    assert said.endswith(", without B499") and f", GIT_WORK_TREE={far}, without B0," in said
    assert shown((("A, without LD_PRELOAD", "x"), ("B", "/x; which is /bin/ls"))) == (
        "'A, without LD_PRELOAD', 'B=/x; which is /bin/ls'"
    )


def test_p4_values_that_are_not_shown_count_too() -> None:
    first, other = ((("KEY", one),) for one in ("color.ui", "core.worktree"))
    assert shown(first) == shown(other)
    assert fingerprint(first, short) != fingerprint(other, short)


def test_p4_programs_that_start_programs_are_not_told_everything_by_arguments() -> None:
    """`split --filter` starts the program that SHELL names."""
    assert counted((("SHELL", "/srv/x"),), "split") == (("SHELL", "/srv/x"),)


@pytest.mark.parametrize(
    "data",
    [
        b'hf1\0bash\x001\0declare -x A="a \\"b\\" \\$c"\ndeclare -- B="x"\n\0\0 \0?\0?\0?\0?\0'
        b"end 1\0",
        b"hf1\0posix\x001\0A='a \"b\" $c'\nB='x'\n\0export A='a \"b\" $c'\n\0\0\0\0end 1\0",
    ],
)
def test_a_snapshot_has_the_exported_values(data: bytes) -> None:
    found = read(data)
    assert found is not None and found.environment == {"A": b'a "b" $c'}
    key = b"k" * 32
    assert sealed(found, key).environment == {"A": environment_digest(b'a "b" $c', key)}
