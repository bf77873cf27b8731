"""`run` in the live shell (bash, zsh, dash): same cwd, variables, jobs; exact output and code."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.session.mark_tags import MarkKey
from holdfast.host.shell.launch import SLOT
from holdfast.host.shell.run import TRIGGER
from tests.support.shell_session import ARGV, MARKS, NONCE, ShellSession

SHELLS = ["bash", "zsh", "dash"]


@pytest.fixture(params=SHELLS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shell(name: str, tmp_path: Path) -> Iterator[ShellSession]:
    session = ShellSession(ARGV[name], tmp_path / "session", tmp_path / "home")
    yield session
    session.close()


def test_s8_exact_range_and_exit_code(shell: ShellSession) -> None:
    for code in (0, 1, 37, 255):
        result = shell.run(f"echo out; (exit {code})")
        assert (result.exit, result.output, result.cut_short) == (code, b"out\n", False)
    assert shell.run("printf 'no newline'").output == b"no newline"
    assert shell.run("").output == b""
    assert shell.run(":").exit == 0


def test_the_text_of_a_run_is_shown_before_its_output(shell: ShellSession) -> None:
    shell.run("echo '\x1b[31mred'\necho b\necho c\necho d\necho e\necho f")
    stream = MARKS.sub(b"", bytes(shell.stream))
    for shown in (rb"run> echo '\x1b[31mred'", b"   > echo d", b"   > ... 2 more lines"):
        assert shown in stream
    assert b"   > echo e" not in stream


def test_state_of_the_live_shell_persists(shell: ShellSession, tmp_path: Path) -> None:
    work = tmp_path / "a dir with 'quotes' and $dollars"
    work.mkdir()
    shell.run(f"cd {tmp_path}/a*; greeting='hello  world'; alias hi='echo aliased'")
    shell.run('greet() { echo "$greeting, $1"; }')
    assert shell.run("pwd").output.rstrip() == str(work).encode()
    assert shell.run('greet "you  there"').output == b"hello  world, you  there\n"
    assert shell.run("hi").output == b"aliased\n"
    assert b"hello  world" in shell.line('echo "$greeting"')
    shell.line("typed=by-hand")
    assert shell.run('echo "$typed"').output == b"by-hand\n"


def test_jobs_of_the_live_shell(shell: ShellSession) -> None:
    shell.run("sleep 1000 &")
    assert b"sleep 1000" in shell.run("jobs").output
    shell.run("kill -9 %sleep; wait")  # a fresh child of dash ignores TERM until its exec
    assert b"sleep" not in shell.run("jobs").output


def test_status_is_handed_on(shell: ShellSession) -> None:
    shell.run("(exit 7)")
    assert shell.run("echo $?").output == b"7\n"
    shell.line("(exit 9)")
    assert shell.run("echo $?").output == b"9\n"
    shell.run("(exit 11)")
    assert b":11:" in shell.line("echo :$?:")


def test_declarations_are_global(name: str, shell: ShellSession) -> None:
    if name == "dash":
        pytest.skip("dash has no declare")
    shell.run(
        "declare -A table; table[key]='a value'\ndeclare -i number=3+4; typeset list=(one two)"
    )
    assert shell.run('echo "${table[key]} $number ${list[@]}"').output == b"a value 7 one two\n"


def test_heredoc_multiline_and_quotes(shell: ShellSession) -> None:
    text = "\n".join(
        [
            "cat <<'END'",
            'it\'s "quoted" $HOME `date` \\n \\\\ !!',
            "END",
            "if true; then",
            "  for i in 1 2; do",
            '    echo "i is $i"',
            "  done",
            "fi",
            "# a comment with 'one quote",
            "cat <<END",
            "sum $((1 + 2))",
            "END",
        ]
    )
    assert (
        shell.run(text).output
        == b'it\'s "quoted" $HOME `date` \\n \\\\ !!\ni is 1\ni is 2\nsum 3\n'
    )
    quotes = "echo 'a'\"'\"'b' \"c\\\"d\" e\\'f '$x' \"`echo sub`\""
    assert shell.run(quotes).output == b"a'b c\"d e'f $x sub\n"
    assert shell.run("echo trailing \\").output.startswith(b"trailing")


def test_later_lines_see_what_earlier_lines_changed(shell: ShellSession) -> None:
    assert shell.run("alias later='echo from an alias'\nlater").output == b"from an alias\n"


def test_every_byte_value_in_the_text(shell: ShellSession) -> None:
    letters = "".join(chr(c) for c in range(1, 256) if chr(c) not in "'\n\r")
    raw = letters.encode("latin-1").decode("utf-8", "surrogateescape")
    result = shell.run(f"printf %s '{raw}' | od -An -v -tx1 | tr -d ' \\n'")
    assert result.output.decode() == letters.encode("latin-1").hex()


def test_large_script(shell: ShellSession) -> None:
    lines = [
        f"v{n}='value {n} with some text behind it to make the line long'" for n in range(1900)
    ]
    text = "\n".join([*lines, 'echo "$v0/$v1899"'])
    assert len(text) > 100_000
    rest = "with some text behind it to make the line long"
    assert shell.run(text).output == f"value 0 {rest}/value 1899 {rest}\n".encode()
    one_line = "echo " + "x" * 120_000 + " | wc -c"
    assert shell.run(one_line).output.split() == [b"120001"]


def test_binary_output_is_byte_exact(shell: ShellSession, tmp_path: Path) -> None:
    every = bytes(range(256)) * 3 + b"\r\n\r\r\n\n\r"
    (tmp_path / "every").write_bytes(every)
    assert shell.run(f"cat {tmp_path}/every").output == every
    noise = random.Random(7).randbytes(1 << 20)
    (tmp_path / "noise").write_bytes(noise)
    result = shell.run(f"cat {tmp_path}/noise")
    assert hashlib.sha256(result.output).digest() == hashlib.sha256(noise).digest()


def test_command_not_found_and_not_executable(shell: ShellSession, tmp_path: Path) -> None:
    result = shell.run("no-such-command-here")
    assert result.exit == 127
    assert b"not found" in result.output
    (tmp_path / "plain").write_text("")
    assert shell.run(f"{tmp_path}/plain").exit == 126


@pytest.mark.parametrize(
    "text", ["if fi", "echo 'open", "echo $(", "for x in", "cat <<END\nno end", "echo a\necho b; )"]
)
def test_syntax_error_leaves_a_usable_shell(shell: ShellSession, text: str) -> None:
    result = shell.run(text)
    if not text.startswith("cat"):
        assert result.exit != 0
    assert b"_hf" not in result.output
    assert shell.run("echo usable").output == b"usable\n"


def test_return(shell: ShellSession) -> None:
    result = shell.run("echo before; return 5; echo after")
    assert (result.exit, result.output) == (5, b"before\n")
    result = shell.run("echo before\nreturn 6\necho after")
    assert (result.exit, result.output) == (6, b"before\n")
    assert shell.run("echo usable").output == b"usable\n"


def test_errors_that_abandon_the_command(shell: ShellSession) -> None:
    result = shell.run("unset nothing; echo a; echo ${nothing?is not set}; echo b")
    assert result.exit != 0
    assert result.output.startswith(b"a\n")
    assert b"\nb\n" not in result.output
    assert shell.run("echo usable").output == b"usable\n"


def test_exit_ends_the_shell(shell: ShellSession) -> None:
    shell.start("echo bye; exit 3")
    assert shell.exit_code() == 3
    assert b"bye" in shell.stream


def test_exec_replaces_the_shell(shell: ShellSession) -> None:
    shell.start("exec sh -c 'echo replaced $$; exit 4'")
    assert shell.exit_code() == 4
    assert f"replaced {shell.pid}".encode() in shell.stream


def test_failed_exec_in_bash_is_survived(tmp_path: Path) -> None:
    session = ShellSession(["bash"], tmp_path / "session", tmp_path / "home")
    try:
        assert session.run("exec /no/such/program").exit in (126, 127)
        assert session.run("shopt execfail | cat; exec /no/such/program").exit in (126, 127)
        assert b"off" in session.line("shopt execfail")
    finally:
        session.close()


def test_ctrl_c_ends_the_run_with_130(shell: ShellSession) -> None:
    run = shell.start("echo started; sleep 1000; echo not reached")
    shell.in_foreground("sleep")
    shell.send(b"\x03")
    result = shell.finish(run)
    assert result.exit == 130
    assert b"not reached" not in result.output
    assert shell.run("echo usable").output == b"usable\n"


def test_ctrl_z_stops_the_job(shell: ShellSession) -> None:
    run = shell.start("echo started; sleep 1000")
    shell.in_foreground("sleep")
    shell.send(b"\x1a")
    result = shell.finish(run)
    assert result.exit == 148
    assert b"sleep 1000" in shell.run("jobs").output
    shell.run("kill -9 %sleep")


def test_hooks_removed_by_a_command_come_back(shell: ShellSession) -> None:
    for text in (
        "PS1='changed> '",
        "unset PROMPT_COMMAND PS0; PS1=",
        "PROMPT_COMMAND='true'; PS0=x",
        "precmd_functions=; preexec_functions=",
        "trap 'true' USR1",
    ):
        assert shell.run(text).exit == 0, text
        assert shell.run("echo again").output == b"again\n", text


@pytest.mark.parametrize(
    "option",
    [
        "set -x",
        "set -u",
        "set -e; true",
        "set -f",
        "set -C",
        "set -a",
        "set -o noglob",
        "set -eux",
        "set -b",
        "IFS=0123456789",
        "IFS=abcdefR_",
    ],
)
def test_options_do_not_disturb_the_marks(shell: ShellSession, option: str) -> None:
    shell.run(option)
    result = shell.run("echo one two")
    assert result.exit == 0
    if "x" in option and "IFS" not in option:
        assert re.fullmatch(rb"(\++|\+\S*> ?)\s?echo one two\none two\n", result.output), (
            result.output
        )
    else:
        assert result.output == b"one two\n"
    shell.line("true")
    assert shell.run("echo three").output.endswith(b"three\n")


def test_tracing_stays_as_the_text_leaves_it(shell: ShellSession) -> None:
    shell.run("set -x")
    shell.run("if fi")
    assert b"echo" in shell.run("echo traced").output.replace(b"traced", b"")
    assert b"_hf" not in shell.run("true; false").output
    shell.run("set +x")
    assert shell.run("echo quiet").output == b"quiet\n"


def test_errexit_with_a_status_left_over(shell: ShellSession) -> None:
    shell.run("set -e; true")
    shell.line("! true")
    assert shell.shell.last_exit == 1
    assert shell.run("echo alive").output == b"alive\n"
    assert shell.run("echo alive").output == b"alive\n"
    shell.start("false")
    assert shell.exit_code() == 1


def test_redirected_output_goes_to_the_file_and_marks_do_not(
    shell: ShellSession, tmp_path: Path
) -> None:
    result = shell.run(f"exec >{tmp_path}/log 2>&1; echo into the file")
    assert (result.exit, result.output) == (0, b"")
    assert shell.run("echo more; echo error >&2").exit == 0
    shell.run("exec >/dev/tty 2>&1")
    assert shell.run("echo back").output == b"back\n"
    written = (tmp_path / "log").read_bytes()
    assert written.startswith(b"into the file\n")
    assert NONCE.encode() not in written


def test_command_reads_from_the_terminal(shell: ShellSession) -> None:
    run = shell.start('echo ask; read -r answer; echo "got:$answer"; test -t 0')
    shell.expect(b"ask\r\n")
    shell.send(b"some input\r")
    result = shell.finish(run)
    assert result.exit == 0
    assert result.output.endswith(b"got:some input\n")
    run = shell.start("echo ask; cat")
    shell.expect(b"ask\r\n")
    shell.send(b"a line\r\x04")
    assert shell.finish(run).output.endswith(b"a line\na line\n")


def test_forged_and_replayed_marks_do_not_end_a_run(shell: ShellSession, tmp_path: Path) -> None:
    shell.run("true")
    genuine = [bytes(shell.stream[mark.start : mark.end]) for mark in shell.marks]
    tags = [mark.split(b";")[1] for mark in genuine]
    assert len(set(tags)) == len(tags)
    replayed = b"".join(genuine)
    last = shell.marks[-1].seq
    forged = b"".join(
        b"\x1b]7717;%s;%d;%s\x07" % (value, seq, kind)
        for value in (b"", b"x" * 20, b"0", NONCE.encode(), *tags)
        for seq in (*range(last + 1, last + 5), 999999)
        for kind in (b"D;r2;0", b"P;0", b"C", b"R;r2")
    )
    (tmp_path / "evil").write_bytes(replayed + forged + b"\x1b]7717;" + tags[0])
    result = shell.run(f"cat {tmp_path}/evil; echo end; (exit 3)")
    assert result.exit == 3
    assert result.output == replayed + forged + b"\x1b]7717;" + tags[0] + b"end\n"
    assert shell.scanner.forged >= 64
    assert shell.run("echo next").output == b"next\n"


def _key(nonce: str) -> list[bytes]:
    """The numbers whose knowledge makes marks: four, and some of them are negative."""
    return [word.strip("-").encode() for word in MarkKey(nonce).start.split()]


def test_the_key_is_not_in_the_environment_a_file_or_behind_a_descriptor(
    shell: ShellSession, name: str
) -> None:
    shell.run("set -a")
    shell.run("true")
    shell.line(":")
    environment = shell.run("env; cat /proc/self/environ | tr '\\0' '\\n'").output
    assert not re.search(rb"_hf_[abcd]=-?[1-9]", environment)
    environ = Path(f"/proc/{shell.pid}/environ").read_bytes()
    assert b"HOME=" in environ
    files = [path for path in shell.directory.rglob("*") if path.is_file()]
    snapshots = [path for path in files if path.name.startswith(SLOT) and path.stat().st_size]
    assert snapshots
    written = b"".join(path.read_bytes() for path in files)
    command_line = Path(f"/proc/{shell.pid}/cmdline").read_bytes()
    for word in (*_key(NONCE), NONCE.encode()):
        assert word not in environment + environ + command_line + written + shell.stream
    script = (
        "import os; d='/proc/self/fd/'; "
        "print(*[os.readlink(d+f) for f in os.listdir(d) if os.path.exists(d+f)])"
    )
    listed = shell.run(f'/usr/bin/python3 -c "{script}"').output.split()
    assert len(listed) == 3, listed
    assert {entry[:9] for entry in listed} == {b"/dev/pts/"}
    variables = shell.run("env").output
    assert b"ENV=" not in variables
    assert b"ZDOTDIR=" not in variables


def test_files_are_closed_to_others(shell: ShellSession) -> None:
    shell.start("sleep 0")
    assert shell.directory.stat().st_mode & 0o077 == 0
    for path in shell.directory.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or path.name == "last", (
            path
        )  # made by bash, with its umask


def test_typed_commands_are_marked(name: str, shell: ShellSession) -> None:
    shell.line("true")
    shell.line("(exit 6)")
    assert shell.shell.last_exit == 6
    assert shell.shell.commands == 2
    shell.line("")
    assert shell.shell.commands == (3 if name == "dash" else 2)  # dash cannot tell an empty line
    kinds = "".join(mark.kind for mark in shell.marks)
    assert kinds == ("PPPP" if name == "dash" else "PCPCPP")
    assert [mark.seq for mark in shell.marks] == list(range(1, len(shell.marks) + 1))


def test_standard_marks_for_terminals(name: str, shell: ShellSession) -> None:
    shell.line("(exit 6)")
    assert b"\x1b]133;D;6\x07\x1b]133;A\x07" in shell.stream
    shell.wait(lambda: shell.stream.count(b"\x1b]133;B\x07") >= 2, "end of prompt")
    if name != "dash":
        assert b"\x1b]133;C\x07" in shell.stream


def test_only_a_short_trigger_is_typed(shell: ShellSession) -> None:
    shell.run("echo " + "y" * 5000)
    assert len(TRIGGER) < 20
    assert shell.stream.count(b"y" * 1000) == 5
