"""The facts beside real shells: they contain every command that ran, or call the text unresolvable.

bash and zsh get an empty PATH and a handler for commands that are not found, so every command they
would run is written down and none is run. dash, which has no such handler, gets a PATH of
stand-ins.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.core.shellcode.facts import Surroundings, analyse
from holdfast.host.policy.shfmt import Parser
from tests.support.examples import examples

PARSE = Parser(wait_s=60.0)
NOTE = (
    """builtin printf '%s\\0' "$1" >> "$HF_LOG"; """
    """builtin printf '%s %s\\0' "$2" "$PWD" >> "$HF_LOG.where"; return "$((RANDOM % 2))";"""
)
SHELLS = {
    "bash": [
        "bash",
        "--norc",
        "--noprofile",
        "-c",
        f'command_not_found_handle() {{ {NOTE} }}\nPATH=/nonexistent\nbuiltin eval "$HF_TEXT"\n',
    ],
    "zsh": [
        "zsh",
        "-f",
        "-c",
        f'command_not_found_handler() {{ {NOTE} }}\npath=(/nonexistent)\nbuiltin eval "$HF_TEXT"\n',
    ],
    "dash": ["dash", "-c", 'PATH="$HF_STUBS"\neval "$HF_TEXT"\n'],
}


def ran(text: str, shell: str = "bash") -> list[str]:
    """The names of all programs that the shell would have run."""
    return run(text, shell)[0]


def run(text: str, shell: str = "bash") -> tuple[list[str], list[tuple[str, str]], str]:
    """The names, the first argument and directory of each, and the initial directory."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        directory = os.path.realpath(made)
        log, where, stubs, work = (
            Path(directory, name) for name in ("log", "log.where", "stubs", "work")
        )
        log.touch()
        where.touch()
        stubs.mkdir()
        (work / "sub" / "deep").mkdir(parents=True)
        (work / "other").mkdir()
        for name in ("aa", "bb", "cc", "dd", "rm", "cat") if shell == "dash" else ():
            (stubs / name).write_text(f"#!/bin/sh\nprintf '{name}\\0' >> {log}\n")
            (stubs / name).chmod(0o755)
        environment = {
            "HF_LOG": str(log),
            "HF_TEXT": text,
            "HF_STUBS": str(stubs),
            "HOME": str(work),
            "BASH_ENV": "",
        }
        child = subprocess.Popen(
            SHELLS[shell],
            env=environment,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # and its background processes
            child.wait()
        names = [n.decode("utf-8", "replace") for n in log.read_bytes().split(b"\0")[:-1]]
        places = [n.decode().partition(" ") for n in where.read_bytes().split(b"\0")[:-1]]
        return names, [(a, b) for a, _, b in places], str(work)


def missed(text: str, shell: str = "bash") -> set[str]:
    found = analyse(text, PARSE, Surroundings("/home/ann/p", "/home/ann", shell))
    if found.unresolvable:
        return set()
    return set(ran(text, shell)) - {name for c in found.commands for name in (*c.via, c.name)}


NAMES = st.sampled_from(["aa", "bb", "cc", "dd", "rm"])


@st.composite
def spelled(draw: st.DrawFn) -> str:
    return "".join(
        draw(st.sampled_from(["{}", "\\{}", "'{}'", '"{}"', "{}''"])).format(c) for c in draw(NAMES)
    )


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


WORDS = st.sampled_from(
    [
        "x",
        "-r",
        "'a b'",
        '"$HOME"',
        "$x",
        "*",
        "~",
        "a=b",
        "{p,q}",
        "\\;",
        "''",
        "$((1+1))",
        "${x:-y}",
        "#z",
        "!",
        "[",
        "--",
        ">&2",
        "2>/dev/null",
        "<<<w",
    ]
)


def inner(script: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    simple = st.builds(
        lambda pre, name, words: " ".join([*pre, name, *words]),
        st.lists(st.sampled_from(["A=1", "B=$x"]), max_size=1),
        spelled(),
        st.lists(WORDS, max_size=3),
    )
    one = script
    return st.one_of(
        simple,
        st.builds("{} $({})".format, simple, one),
        st.builds('{} "`{}`"'.format, simple, simple),
        st.builds("{} <({})".format, simple, one),
        st.builds("{} ${{x:-$({})}}".format, simple, one),
        st.builds("{} | {}".format, one, one),
        st.builds("{}; {}".format, one, one),
        st.builds("{} && {}".format, one, one),
        st.builds("{} || {}".format, one, one),
        st.builds("{}\n{}".format, one, one),
        st.builds("( {} )".format, one),
        st.builds("{{ {}; }}".format, one),
        st.builds("if {}; then {}; else {}; fi".format, one, one, one),
        st.builds("for i in 1 2; do {}; done".format, one),
        st.builds("case q in p) {};; *) {};; esac".format, one, one),
        st.builds("cat() {{ {}; }}; cat".format, one),
        st.builds("{} <<E\n$({})\n`{}`\nE\n".format, simple, simple, simple),
        st.builds("{} <<'E'\n$({})\nE\n".format, simple, simple),
        st.builds("! {}".format, one),
        st.builds("time {}".format, one),
        st.builds("x=$({})".format, one),
        st.builds("v=(1 $({}))".format, one),
        st.builds("[[ -n $({}) ]] && {}".format, one, one),
        st.builds("command {}".format, simple),
        st.builds("export Z=$({})".format, one),
        st.builds("echo $(( $({}) 1 ))".format, simple),
        st.builds(lambda t: f"trap {quoted(t)} EXIT", one),
        st.builds(lambda t: f"eval {quoted(t)}", one),
        st.builds("{} &\nwait".format, one),
        st.builds("until {}; do break; done".format, one),
        st.builds("while {}; do {}; break; done".format, one, one),
        st.builds("builtin echo {}".format, simple),
        st.builds("coproc {}".format, simple),
        st.builds("{} # {}".format, simple, simple),
    )


SCRIPTS = st.recursive(spelled(), inner, max_leaves=6)


@given(SCRIPTS)
@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_p4_nothing_that_bash_runs_is_missed(text: str) -> None:
    assert missed(text) == set(), text


@pytest.mark.parametrize("shell", ["zsh", "dash"])
def test_p4_nothing_that_other_shells_run_is_missed(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")

    @given(SCRIPTS)
    @settings(
        max_examples=examples(40),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    def compare(text: str) -> None:
        assert missed(text, shell) == set(), text

    compare()


TRICKS = [
    "a\\\na b",
    "'a''b'\"c\" x",
    "$'aa\\'bb' x",
    "aa#bb",
    "aa;#bb\ncc",
    "aa <<-E\n\t$(bb)\n\tE\ncc",
    "aa <<\\E\n$(bb)\nE\ncc",
    "aa <<E; bb\nx\nE\ncc",
    "aa <<A <<B\n$(bb)\nA\n$(cc)\nB\ndd",
    'aa "$(bb "$(cc)")"',
    "aa `bb \\`cc\\``",
    "aa ${x:-`bb`} ${x:+$(cc)} ${x=$(dd)}",
    "aa ${x/$(bb)/$(cc)}",
    'aa "${x:$(bb):1}"',
    "[[ $(aa) == $(bb) ]]",
    "(( $(aa) + 1 ))",
    "for ((i=0; i<1; i++)); do aa; done",
    "function f { aa; }; f",
    "f() (aa); f",
    "f() { aa; } > $(bb); f",
    "{ aa; bb; } 2>&1 | cc",
    "aa | { bb; } | (cc)",
    "select x in $(aa); do break; done",
    "case $(aa) in $(bb)) cc;; esac",
    "case x in x) aa ;& y) bb ;; esac",
    "aa&bb&&cc||dd",
    "aa>x&bb",
    "aa &>$(bb)",
    "aa {x}>$(bb)",
    "declare -a v=($(aa))",
    "local x=$(aa)",
    "readonly y=$(aa)",
    "v[$(aa)]=1",
    "echo ${v[$(aa)]}",
    "let z=$(aa)",
    "! ! aa",
    "if ! aa; then bb; fi",
    "time -p aa | bb",
    "coproc NAME { aa; }",
    "while read l; do aa; done < <(bb)",
    'aa <<< "$(bb)"',
    "echo a{$(aa),b}",
    "echo {aa,bb}",
    "$(echo aa) x",
    "x=aa; $x",
    "${x:-aa} b",
    '""aa',
    'aa""',
    "x= aa",
    "x=1 y=2 aa",
    ">f aa",
    "<<<x aa",
    "2>f >g aa bb",
    "aa 3<>f",
    "- aa",
    "\\aa \\bb",
    "aa\tbb",
    "aa\\ bb",
    "'aa bb' cc",
    "exec aa",
    "command -p aa",
    "builtin aa",
    "eval aa",
    "eval 'aa; bb'",
    "trap aa EXIT",
    "trap 'aa; bb' EXIT",
    "alias aa=bb; aa",
    "shopt -s expand_aliases; alias aa=bb\naa",
    'set -- aa; "$@"',
    "IFS=x; v=aaxbb; $v",
    "printf -v PATH x; aa",
    "echo $(<f) aa",
    "aa $(\nbb\n)",
    "aa \\\n  bb",
    "# aa\nbb",
    "aa '#' bb # cc",
    'aa "$(case x in x) bb;; esac)"',
    "aa $(( 1 << 2 )) b",
    "((x)) && aa",
    "$((aa))",
    "[ -f x ] || aa",
    "[[ x ]] || aa",
    "aa;;",
    "&& aa",
    "aa |",
    "((aa",
    "$(aa",
    "`aa",
    "<<E aa",
    "cat <<E\n$(aa",
    "mapfile -C aa -c 1 v <<< x",
    "hash -p /bin/true aa; aa",
    "enable -n echo; echo x",
    "unset -f command_not_found_handle; aa",
    ". /dev/stdin <<< aa",
    "source <(echo aa)",
    "compgen -C aa",
    "complete -C aa x",
    "declare -n r=x; r=$(aa)",
    "x='$(aa)'; echo ${x@P}",
    "x='a[$(aa)]'; echo $((x))",
    "x='a[$(aa)]'; [[ $x -eq 1 ]]",
    "declare -i n='a[$(aa)]'",
    "test -v 'a[$(aa)]'",
    "read 'a[$(aa)]' <<< 1",
    "unset 'a[$(aa)]'",
    "printf -v 'a[$(aa)]' x",
    "wait -p 'a[$(aa)]'",
    "echo ${x[$(aa)]:-1}",
    "let 'x[$(aa)]=1'",
    "let 'a[$(aa)]'",
    "echo $[ $(aa) ]",
    "PS4='$(aa)'; set -x; :",
    "PROMPT_COMMAND=aa",
    "coproc aa; wait",
    "aa |& bb",
    "time ! aa",
    "if aa; then :; elif bb; then :; fi",
    "((x = $(aa)))",
    "[[ $(aa) =~ x ]]",
    'echo "${x:-"$(aa)"}"',
    "echo ${x:-'$(aa)'}",
    "echo '${x:-$(aa)}'",
    "cat <<E\n${x:-$(aa)}\n\\$(bb)\nE",
    'cat <<"E"\n$(aa)\nE',
    "f() { aa; }; g() { f; }; g",
    "for f in $(aa); do $f; done",
    "for f in aa bb; do $f; done",
]


@pytest.mark.parametrize("text", TRICKS)
def test_p4_tricks(text: str) -> None:
    assert missed(text) == set()
    if (
        shutil.which("zsh") is not None and text != "time -p aa | bb"
    ):  # zsh runs a command named -p there
        assert missed(text, "zsh") == set()


# Texts that shfmt reads in another way than a shell. Each was found by comparing them.
DIFFERENTIALS = [
    "bb #\\\naa",
    "bb # x\\\n aa\n",
    "echo $(#\\\naa\n)",
    "shopt -s extglob\nbb @($(aa))",
    "shopt -s extglob\nbb !(a|`aa`)",
    "[[ x == @($(aa)) ]]",
    "case x in @($(aa))) ;; esac",
    "bb ${x:-<(aa)}",
    "echo \"${x:-'$(aa)'}\"",
    "echo \"${x:-'`aa`'}\"",
    "cat <<E\n\\\nE\naa\nE\n",
    "cat <<E\nx\n\\\nE\naa\nE\n",
    "cat <<-E\n\t\\\n\tE\naa\nE\n",
    "aa\\",
    "jobs -x aa",
    "builtin jobs -lx aa",
    "command jobs -x aa %1",
    "trap -- aa 0",
    "trap -- 'aa' EXIT",
    "compgen -W '$(aa)'",
    "compgen -X '$(aa)' -W x",
    "mapfile -c1 -tC aa v <<<x",
    "readarray -tC aa v <<< x",
    "zmodload zsh/sched; sched +0 aa; builtin sleep 1",
    "functions[x]=aa; x",
    "aliases[bb]=aa\nbb",
    ">x",
    "<x",
    "set -k; bb",
    "setopt ignorebraces\n{ aa }",
    "setopt cshjunkiequotes\nbb 'x\naa'",
]


@pytest.mark.parametrize("text", DIFFERENTIALS)
@pytest.mark.parametrize("shell", ["bash", "zsh", "dash"])
def test_p4_texts_that_parser_and_shell_read_differently(text: str, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert missed(text, shell) == set()


@pytest.mark.parametrize("text", ["sched +0 aa", "zstyle -e x y aa", "zpty x aa", "print -z aa"])
def test_p4_builtins_of_zsh_that_run_a_text_later(text: str) -> None:
    assert analyse(text, PARSE, Surroundings("/", "/", "zsh")).unresolvable


@pytest.mark.parametrize(
    "text",
    [
        "set -euo pipefail; aa",
        "set -- -k x; aa",
        "set -x\naa # a comment",
        "shopt -s nullglob globstar; aa",
        "aa <<E\nx \\\n  y\nE",
        "aa <<'E'\n\\\nE\n",
        "jobs -l; aa",
        "trap - EXIT; aa",
        "aa 'a <(b) $(c)' \"<(d)\"",
        "aa !(x|y) @(a|b)",
        "stat x; realpath y",
    ],
)
def test_p4_common_texts_stay_resolvable(text: str) -> None:
    assert not analyse(text, PARSE, Surroundings("/", "/", "bash")).unresolvable


# Pieces of texts, put together without a grammar: most are errors to every reader, and the rest is
# where readers differ.
PIECES = st.sampled_from(
    [
        *("aa", "bb", " ", "\n", ";", "&", "|", "&&", "(", ")", "{ ", "; }", "$(", "`", '"', "'"),
        *("$'", "\\", "\\\n", "#", " #", "<<E", "<<-E", "<<'E'", "\nE\n", "<<<", "<(", ">", "$(("),
        *("))", "[[ ", " ]]", "$x", "${x:-", "${x/", "}", "a[", "]=", "x=", "x=(", "! ", "time "),
        *("if aa; then ", "; fi", "for i in 1; do ", "; done", "case x in x) ", ";; esac", "f() "),
        *("@(", "*", "?", "~", "exec ", "command ", "eval ", "trap -- 'aa' 0", "echo ", "$(aa)"),
        *("`aa`", '"$(aa)"', "'$(aa)'", "\\$(aa)", "\naa", ";aa", "#'", '#"', "# )", "let ", "|&"),
    ]
)


@pytest.mark.parametrize("shell", ["bash", "zsh", "dash"])
def test_p4_nothing_is_missed_in_a_heap_of_pieces(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")

    @given(
        st.one_of(
            st.lists(PIECES, min_size=2, max_size=9).map("".join),
            st.builds(
                lambda text, piece, at: text[: at % (len(text) + 1)] + piece + text[at:],
                st.sampled_from([*TRICKS, *DIFFERENTIALS]),
                PIECES,
                st.integers(0, 30),
            ),
        )
    )
    @settings(
        max_examples=examples(300),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    def compare(text: str) -> None:
        assert missed(text, shell) & {"aa", "bb"} == set(), text

    compare()


MOVES = st.sampled_from(
    [
        "cd sub",
        "cd ..",
        "cd other",
        "cd nowhere",
        "cd",
        "cd ./sub/deep",
        "cd sub/../other",
        "cd ~/sub",
        'cd "$HOME"/other',
        "cd .",
        "cd -P sub",
        "command cd sub",
        "pushd sub",
        "popd",
        "cd -",
        "cd $x",
        "cd sub && cd deep",
        "f() { cd sub; }",
        "f",
        "sudo cd sub",
        "(cd sub)",
        "cd sub &",
        "cd sub | cd other",
        "x=$(cd sub)",
        "true",
        "false",
        "eval cd sub",
        "cd -- sub",
        "cd nowhere || cd other",
    ]
)
ACTS = st.just("rm @")


def moving(one: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{}; {}".format, one, one),
        st.builds("{} && {}".format, one, one),
        st.builds("{} || {}".format, one, one),
        st.builds("( {} )".format, one),
        st.builds("{{ {}; }}".format, one),
        st.builds("if {}; then {}; else {}; fi".format, one, one, one),
        st.builds("for i in 1 2 3; do {}; done".format, one),
        st.builds("{} | {}".format, one, one),
        st.builds("! {}".format, one),
        st.builds("x=$({})".format, one),
        st.builds("case q in q) {};; esac; {}".format, one, one),
        st.builds("g() {{ {}; }}; {}; g; {}".format, one, one, one),
        st.builds("while {}; do {}; break; done; {}".format, one, one, one),
        st.builds("{} &\nwait; {}".format, one, one),
        st.builds("time {}".format, one),
        st.builds("until {}; do {}; break; done; {}".format, one, one, one),
    )


@example("cd ..; cd ..; rm @")
@given(st.recursive(MOVES | ACTS, moving, max_leaves=8))
@settings(
    max_examples=examples(80),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_p4_a_command_runs_where_it_was_said_to_run(text: str) -> None:
    for n in range(text.count("@")):
        text = text.replace("@", f"w{n}", 1)
    _, places_of, work = run(text)
    found = analyse(text, PARSE, Surroundings(work, work))
    if any(r.code != "place" for r in found.unresolvable):
        return
    said = {
        c.words[0].text: (
            None
            if any(r.code == "place" for r in c.reasons)
            else {p.path for item in c.writes for p in item}
        )
        for c in found.commands
        if c.name == "rm"
    }
    for word, directory in places_of:
        if word in said and (places := said[word]) is not None:
            assert f"{directory.rstrip('/')}/{word}" in places, (text, directory, places)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_yardstick_can_fail(shell: str) -> None:
    """The shell really is asked: its commands are written down, also in corner cases."""
    if shutil.which(shell) is not None:
        assert set(ran("aa; x=$(bb); cat <<E\n`cc`\nE\n", shell)) == {"aa", "bb", "cc", "cat"}
