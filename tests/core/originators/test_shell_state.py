"""Snapshots of a shell: exact for real shells, and never an exception for any bytes (P3)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.originators.shell_state import CWD, SNAPSHOT_BYTES, Snapshot, read, sealed
from tests.support.examples import examples

KEY = b"k" * 32


def written(tmp_path: Path, shell: str, text: str, bodies: bool = True) -> bytes:
    """Return the snapshot that a real shell writes after this text."""
    rc = (
        Path(__file__).parents[3]
        / "src/holdfast/host/shell"
        / ("bash.rc" if shell == "bash" else "zsh.rc")
    ).read_text()
    functions = "".join(
        rc[at : rc.index("\n}\n", at) + 3]
        for name in ("_hf_shape() {", "_hf_list() {", "_hf_said() {")
        if (at := rc.find(name)) >= 0
    )
    if bodies:
        (tmp_path / "bodies").touch()
    if shell == "bash":
        script = (
            f"_hf_after() {{ :; }}\n{functions}\n_hf={tmp_path}/run\n"
            f"declare -A _hfs=([seq]=6 [dir]={tmp_path})\n"
            f"{text}\n"
            '{ _hf_shape && trap -p >&4 && _hf_said >&4; } 4<>"${_hfs[dir]}/shape.7"\n'
        )
    else:
        script = (
            f"{functions}\n_hf={tmp_path}/run\n"
            f"typeset -gAH _hfs; _hfs=(seq 6 dir {tmp_path})\n{text}\n_hf_shape\n"
        )
    file = tmp_path / "script"
    file.write_text(script)
    subprocess.run(
        [shell, "--norc" if shell == "bash" else "-f", str(file)],
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/"},
        cwd="/",
        timeout=60,
    )
    found = (tmp_path / "shape.7").read_bytes()
    (tmp_path / "shape.7").unlink()
    return found


def said(tmp_path: Path, shell: str, text: str, bodies: bool = True) -> Snapshot:
    found = read(written(tmp_path, shell, text, bodies))
    assert found is not None
    return found


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_p3_a_real_shell_is_read_exactly(tmp_path: Path, shell: str) -> None:
    odd = (
        "x=$'a\\nb\"c`d\\'e'; export E='q\"uo`te\\'; alias q=\"it's\"; alias two='cat s3cret | "
        "grep -x'; f() { cat <<'END'\n}\ng ()\n{\nEND\n}; g() { :; }; trap 'echo \"hi\n"
        "there\"' INT; PATH=/my:$PATH"
    )
    found = said(tmp_path, shell, odd)
    assert found.seq == 7 and found.functions and found.traps and found.cwd == "/"
    assert (
        found.path[:2] == ("/my", "/usr/bin")
        and {"E", "PATH"} <= found.exported
        and "x" not in found.exported
    )
    assert {
        ("variable", "x"),
        ("variable", "E"),
        ("alias", "q"),
        ("function", "f"),
        ("function", "g"),
        ("trap", "INT"),
        CWD,
    } <= set(found.values)
    assert found.aliases["two"] == ("cat", "grep") and found.aliases["q"] == ("it's",)
    assert (
        not [name for _, name in found.values if name.startswith("_hf")]
        and ("variable", "RANDOM") not in found.values
    )


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("one", "other", "piece"),
    [
        ("x=1", "x=2", ("variable", "x")),
        ("x=1", "export x=1", ("variable", "x")),
        ("x=1", "x=(1)", ("variable", "x")),
        ("x=''", "unset x", ("variable", "x")),
        ("x=$'a\\nb'", "x='a b'", ("variable", "x")),
        ("alias l=a", "alias l=b", ("alias", "l")),
        ("alias l=a", ":", ("alias", "l")),
        ("f() { a; }", "f() { b; }", ("function", "f")),
        ("trap a INT", "trap b INT", ("trap", "INT")),
        ("set -o noglob", ":", ("option", "noglob")),
        ("cd /usr", "cd /", CWD),
    ],
)
def test_p3_exactly_the_changed_pieces_differ(
    tmp_path: Path, shell: str, one: str, other: str, piece: tuple[str, str]
) -> None:
    before, after = (
        sealed(said(tmp_path, shell, one), KEY).values,
        sealed(said(tmp_path, shell, other), KEY).values,
    )
    assert {p for p in {*before, *after} if before.get(p) != after.get(p)} == {piece}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_p3_a_prompt_counts_as_active_if_it_runs_a_command(tmp_path: Path, shell: str) -> None:
    assert (
        "PS1" in said(tmp_path, shell, "PS1='$(evil) $ '").active
        and "PS1" in said(tmp_path, shell, "PS1='`evil`'").active
    )
    assert "PS1" not in said(tmp_path, shell, "PS1='$ $((1+1)) (x) '").active


@pytest.mark.parametrize(
    ("shell", "told"),
    [
        ("bash", "hash -p /evil/ls ls"),
        ("zsh", "hash ls=/evil/ls; rehash; : ${(k)commands}; hash ls=/evil/ls"),
    ],
)
def test_p3_a_program_whose_place_the_shell_was_told_is_seen(
    tmp_path: Path, shell: str, told: str
) -> None:
    found = said(tmp_path, shell, told)
    assert (
        found.hashed.get("ls") == "/evil/ls"
        and ("hash", "ls") in found.values
        and len(found.hashed) < 20
    )


def test_p3_aliases_of_zsh_that_count_anywhere(tmp_path: Path) -> None:
    found = said(tmp_path, "zsh", "alias -g G='| evil'; alias -s txt=evil; alias l=ls")
    assert (
        found.anywhere == {"G", ".txt"}
        and {("alias", "G"), ("alias", ".txt"), ("alias", "l")} <= set(found.values)
        and "l" in found.aliases
    )


def test_p3_unlisted_state_is_not_taken_for_gone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert not said(tmp_path / "a", "bash", "f() { :; }", bodies=False).functions


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_r1_an_exported_array_is_no_variable_of_programs(tmp_path: Path, shell: str) -> None:
    """Else its listing would be the text of PROMPT_COMMAND in the next incarnation."""
    found = said(tmp_path, shell, "export A; typeset -ax A=(one two); export B=three")
    assert "A" not in found.environment and found.environment["B"] == b"three"


def test_nothing_is_kept_of_a_value(tmp_path: Path) -> None:
    found = sealed(
        said(
            tmp_path,
            "bash",
            "export PASSWORD=hunter2; alias db='mysql -phunter2'; f() { echo hunter2; }; "
            "trap 'echo hunter2' INT; declare -A m=([a]=hunter2)",
        ),
        KEY,
    )
    assert "hunter2" not in repr(found) and found.values != sealed(found, b"o" * 32).values


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_partial_snapshot_is_not_read(tmp_path: Path, shell: str) -> None:
    """A disk that was full, a host that was early."""
    whole = written(tmp_path, shell, "f() { :; }; alias a=b; x=1")
    assert read(whole) is not None
    assert all(read(whole[:end]) is None for end in range(len(whole)))
    assert read(whole + b"declare -- of=an\0end 6\0") == read(
        whole
    )  # the rest of an earlier, longer snapshot


@settings(max_examples=examples(400), deadline=None)
@given(st.binary(max_size=400))
def test_reading_is_total(data: bytes) -> None:
    read(data)
    read(b"hf1\0bash\x001\0" + data)
    read(b"hf1\0zsh\x001\0" + data)
    read(b"hf1\0posix\x001\0" + data)


_BITS = st.sampled_from(
    [
        b"declare -x ",
        b"typeset -g ",
        b"export -T PATH path=( ",
        b"x=",
        b'"',
        b"'",
        b"$'",
        b"\\",
        b"\n",
        b"\0",
        b"?",
        b"end",
        b"(",
        b")",
        b"alias ",
        b"trap -- ",
        b"INT",
        b"1",
        b"f () \n{",
        b" ",
        b"a",
    ]
)


@settings(max_examples=examples(600), deadline=None)
@given(st.sampled_from([b"bash", b"zsh", b"posix"]), st.lists(_BITS, max_size=60))
def test_reading_is_total_near_the_real_thing(shell: bytes, bits: list[bytes]) -> None:
    found = read(b"hf1\0" + shell + b"\x005\0" + b"".join(bits) + b"\0end 5\0")
    assert found is None or found.seq == 5


def test_a_snapshot_that_is_too_large_is_not_read() -> None:
    assert read(b"hf1\0bash\x001\0" + b"x" * SNAPSHOT_BYTES) is None


def test_quotes_without_end_take_no_time() -> None:
    for text in (
        b"declare -- x=" + b'"\\' * 200_000,
        b"declare -- x=" + b"$'" * 200_000,
        b"alias x=" + b"'" * 400_001,
    ):
        assert read(b"hf1\0bash\x001\0" + text + b"\0\0\0?\0?\0?\0\0end 1\0") is None


def test_an_array_with_a_quote_that_has_no_end_takes_no_time() -> None:
    """A search that restarts at every byte would block the host for hours."""
    text = b"declare -- PATH=(/a " + b"b" * 400_000 + b'"c"\n'
    found = read(b"hf1\0bash\x001\0" + text + b"\0\0 \0?\0?\0?\0?\0end 1\0")
    assert found is not None and found.path[0] == "/a"


def test_functions_that_are_named_and_not_shown_are_one_text_not_many() -> None:
    """Each function would get the size of all; digesting that takes minutes."""
    names = b"\n".join(b"f%d" % n for n in range(10_000))
    for bodies in (b"x" * 400_000, b"f1 () \n{\n}\n" + b"x" * 400_000):
        found = read(b"hf1\0bash\x001\0\0\0 \0" + names + b"\0" + bodies + b"\0\0?\0end 1\0")
        assert found is not None and len(found.values) == 10_000
        assert sum(map(len, found.values.values())) < 2_000_000


def test_a_changed_listing_changes_every_function_that_is_not_found() -> None:
    one, other = (
        read(b"hf1\0bash\x001\0\0\0 \0f\0" + bodies + b"\0\0?\0end 1\0")
        for bodies in (b"odd", b"other")
    )
    assert (
        one is not None
        and other is not None
        and one.values["function", "f"] != other.values["function", "f"]
    )
