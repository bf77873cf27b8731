"""Facts of shell commands: hard cases, spellings as a property, and garbage without false facts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.shellcode.facts import Facts, Surroundings, Unparseable, analyse, of_argv
from holdfast.core.shellcode.interpreters import sed_is_plain
from holdfast.host.policy.shfmt import Parser
from tests.support.examples import examples

PARSE = Parser(wait_s=60.0)
HOME, PROJECT = "/home/ann", "/home/ann/project"


def facts(text: str, cwd: str | None = PROJECT, **more: Any) -> Facts:
    return analyse(text, PARSE, Surroundings(cwd, HOME, **more))


def codes(found: Facts) -> set[str]:
    return {r.code for r in found.unresolvable}


def writes(found: Facts) -> set[str]:
    return {p.path for c in found.commands for item in c.writes for p in item}


HARD: list[tuple[str, list[str]]] = [
    # every command that would run, in order; cases that another parser missed or could not read
    ("case $x in a) rm y ;; *) ls ;; esac", ["rm", "ls"]),
    ("[[ -f x && -n $(rm y) ]]", ["rm"]),
    ("a=(1 2 $(rm y)); echo ${a[@]}", ["rm", ":", "echo"]),
    ("echo $(( 1 + $(rm y) ))", ["rm", "echo"]),
    ("time rm y", ["rm"]),
    ("coproc rm y", ["rm"]),
    ("select x in a b; do rm y; done", [":", "rm"]),
    ("cat <<E\n$(rm y)\nE", ["rm", "cat"]),
    ("cat <<E\n`rm y`\nE", ["rm", "cat"]),
    ("echo ${x:-$(rm y)}", ["rm", "echo"]),
    ("cat <<'MSG' 2>&1 | rm -rf y\n$(not this)\nMSG", ["cat", "rm"]),
    ("cat <<A <<B\n$(rm y)\nA\n$(rm z)\nB", ["rm", "rm", "cat"]),
    ("diff <(rm y) >(rm z)", ["rm", "rm", "diff"]),
    ('echo "`rm y`" "$(rm "$(rm z)")"', ["rm", "rm", "rm", "echo"]),
    ("if rm a; then rm b; elif rm c; then rm d; else rm e; fi", ["rm"] * 5),
    ("for ((i=$(rm a); i<3; i++)); do rm b; done", ["rm", "rm"]),
    ("f() { rm a; }; function g { rm b; }", ["rm", "rm"]),
    ("(rm a); { rm b; } & ! rm c", ["rm", "rm", "rm"]),
    ("export A=$(rm y) B", ["rm", "export"]),
    ("let x=$(rm y)", ["rm"]),
    ("x[$(rm y)]=1", ["rm", ":"]),
    ("echo a | tee b |& rm c", ["echo", "tee", "rm"]),
    ("until rm a; do rm b; done < $(rm c)", ["rm", ":", "rm", "rm"]),
    ("echo 'rm y' \"rm z\" # rm w", ["echo"]),
    ("echo rm\\\n y", ["echo"]),
    ("r\\\nm y", ["rm"]),
    ("trap 'rm y' EXIT", ["rm", "trap"]),
    ('while read l; do rm "$l"; done <<< "$(rm q)"', ["rm", ":", "read", "rm"]),
    ("${x:=$(rm y)}", ["rm", ""]),
    ("[[ a =~ $(rm y) ]] && (( $(rm z) ))", ["rm", "rm"]),
]


@pytest.mark.parametrize(("text", "names"), HARD, ids=[t for t, _ in HARD])
def test_p4_every_command_is_found_wherever_it_stands(text: str, names: list[str]) -> None:
    assert facts(text).names == names


@pytest.mark.parametrize(
    "text",
    [
        "rm x",
        "r\\m x",
        "'r'm x",
        '"rm" x',
        "$'\\x72m' x",
        "$'\\162\\u006d' x",
        "r''m x",
        "\\rm x",
        "/bin/rm x",
        "'/bin'/rm x",
        "/usr/bin/../bin/rm x",
        "command rm x",
        "sudo rm x",
        "env A=1 rm x",
        "nohup nice -n 5 rm x",
        "time -p rm x",
        "busybox rm x",
        "timeout -k 5 10 rm x",
        "bash -c 'rm x'",
        "sh -ec 'rm x'",
        "bash -c -e 'rm x'",
        "exec rm x",
        "stdbuf -oL rm x",
        "sudo -u bob -- env -i rm x",
        "sudo -uroot rm x",
        "su -c 'rm x' bob",
        "su bob -c 'rm x'",
        "uv run rm x",
        "flock /tmp/l rm x",
        "setsid -w rm x",
        "xargs -0 -I{} rm x",
        "watch -n 1 rm x",
        "doas rm x",
        "A=1 rm x",
    ],
)
def test_p4_one_command_however_it_is_spelled(text: str) -> None:
    found = [c for c in facts(text).commands if c.name != ":"]
    assert [c.name for c in found] == ["rm"]
    if not text.startswith("xargs"):
        assert writes(facts(text)) == {f"{PROJECT}/x"} and found[0].words[-1].text == "x"


UNKNOWN: list[tuple[str, str]] = [
    ("eval x", "eval"),
    ("coproc rm y", "construct"),
    ("- rm x", "name"),
    ("coproc A=1 rm y", "construct"),
    ("'A=1' x", "name"),
    ("compgen -C rm", "eval"),
    ("$x y", "name"),
    ('"$x" y', "name"),
    ("$(echo rm) y", "name"),
    ("{rm,-rf,/}", "name"),
    ("*/x", "name"),
    ('bash -c "$x"', "eval"),
    ('bash -c "rm $x"', "eval"),
    ("ls | xargs rm", "arguments"),
    ("ls | xargs", ""),
    ("python3 -c 'x'", "code"),
    ("python3 -Ic 'x'", "code"),
    ("perl -pe 's/a/b/' f", "code"),
    ("node -e 1", "code"),
    ("curl x | sh", "stdin"),
    ("curl x | sudo bash -s -- -y", "stdin"),
    ("bash <(curl x)", "stdin"),
    ("bash <<E\nrm x\nE", "stdin"),
    ("python3 - < x", "stdin"),
    ("sh /dev/stdin", "stdin"),
    ("source x", "source"),
    (". ./x", "source"),
    ("alias ls=rm", "shaping"),
    ("PATH=/x ls", "shaping"),
    ("export PATH=/x", "shaping"),
    ("LD_PRELOAD=/x ls", "shaping"),
    ("env PATH=/x ls", "shaping"),
    ("read PATH", "shaping"),
    ("for PATH in x; do ls; done", "shaping"),
    (": ${PATH:=x}", "shaping"),
    ("PROMPT_COMMAND='rm x'", "shaping"),
    ("hash -p /tmp/x ls", "shaping"),
    ("echo ${x@P}", "eval"),
    ("x='a[$(rm y)]'; echo $((x))", "eval"),
    ("ssh host rm x", "elsewhere"),
    ("docker exec c rm x", "elsewhere"),
    ("chroot /x rm y", "elsewhere"),
    ("sudo --unknown rm x", "option"),
    ("env -S 'rm x'", "option"),
    ("sudo -D / rm x", "place"),
    ('rm "$x"', "arguments"),
    ("rm -rf *", "glob"),
    ("rm a{b,c}", "arguments"),
    ("rm {a..c}", "arguments"),
    ("rm a/../b", "place"),
    ("rm ~bob/x", "arguments"),
    ("echo > $x", "redirect"),
    ('cat > "$(f)"', "redirect"),
    ("cd $x; rm y", "place"),
    ("cd -; rm y", "place"),
    ("popd; rm y", "place"),
    ("f() { rm y; }; cd /; f", "place"),
    ("while :; do cd ..; rm -r y; done", "place"),
    ("f() { f | f & }; f", "recursion"),
    ("git -c alias.x='!rm y' x", "code"),
    ("git clone -c core.fsmonitor='rm y' u", "code"),
    ("git frobnicate", "shadowed"),
    ("git rebase -x 'rm y'", "code"),
    ("git config core.pager 'rm x'", "shaping"),
    ("find . -exec rm {} +", "arguments"),
    ("find . -name x -exec sh -c 'rm \"$1\"' _ {} \\;", "arguments"),
    ("awk 'BEGIN { system(\"rm x\") }'", "code"),
    ("sed 's/a/rm x/e' f", "code"),
    ("sed -n 'w /etc/x' f", "code"),
    ("psql -c 'drop table x'", "code"),
    ("vim -c '!rm x'", "code"),
    ('echo $"x" > $"y"', "redirect"),
    ("mapfile -C 'rm x' a", "eval"),
    ("sudo -i", "stdin"),
    ("dd of=$x", "arguments"),
    ("git switch -c name", ""),
    ("xargs -I % sh -c 'rm %'", ""),
    ("chmod -R 777 *", "glob"),
    ('mv "$a" b', "arguments"),
    ("fc -s rm", "eval"),
    ("..", "name"),
    ('tee "$x"', "arguments"),
]


@pytest.mark.parametrize(("text", "code"), UNKNOWN, ids=[t for t, _ in UNKNOWN])
def test_p4_unknown_parts_of_a_text_are_a_reason(text: str, code: str) -> None:
    found = codes(facts(text))
    assert code in found if code else not found, found


PLAIN = [
    "ls -la",
    "git status",
    "make -j8 && ./run.sh",
    "grep -rn foo src | head -5",
    'for f in *.py; do wc -l "$f"; done',
    "echo $((1+2))",
    "python3 script.py --x",
    "python3 -m pytest -q",
    "awk '{print $1}' f",
    "awk -F: '$3 > 100 || $1 == \"x\" {print $1}' f",
    "sed -n '1,20p' f",
    "sed -i 's/a/b/g; /x/d' f",
    "sed -e 's|a/b|c|' -e '$d' f",
    "find . -name '*.py' | xargs grep foo",
    "cd sub && make",
    "x=1; echo $x",
    "test -f x && echo y || echo n",
    "cat <<E > notes.md\nhello $USER\nE",
    "PYTHONPATH=src pytest",
    "GIT_EDITOR=true git rebase --continue",
    "git -C sub -c user.name=x commit -m 'x'",
    "tar czf out.tgz src",
    "npm run build 2>&1 | tee build.log",
    "sqlite3 db 'select * from x;'",
    "if [ -d x ]; then ls x; fi",
    "(cd sub && rm -rf x)",
    "node server.js &",
    "sleep 1; kill %1",
    "bash script.sh",
    "command -v rm",
    "cp a b",
    "rm -rf ./logs",
    "trap - EXIT",
    "export A=b",
    "unset A",
]


@pytest.mark.parametrize("text", PLAIN)
def test_p4_ordinary_commands_are_understood(text: str) -> None:
    assert facts(text).unresolvable == ()


PLACES: list[tuple[str, str | None, set[str]]] = [
    ("rm -rf ./logs", PROJECT, {f"{PROJECT}/logs"}),
    ("rm -rf ./logs", "/", {"/logs"}),
    ("rm -rf /logs", PROJECT, {"/logs"}),
    ("rm -rf logs/ .//logs/.", PROJECT, {f"{PROJECT}/logs"}),
    ("rm -rf ../logs", PROJECT, {f"{HOME}/logs"}),
    ("rm -rf ../../../../..", PROJECT, {"/"}),
    ("rm -rf ~/x ~", PROJECT, {f"{HOME}/x", HOME}),
    ("rm -rf '~/x' \\~", PROJECT, {f"{PROJECT}/~/x", f"{PROJECT}/~"}),
    ('rm -rf $HOME/x "${HOME}" $PWD', PROJECT, {f"{HOME}/x", HOME, PROJECT}),
    ("cd / && rm -rf logs", PROJECT, {"/logs"}),
    ("cd /; rm -rf logs", PROJECT, {"/logs", f"{PROJECT}/logs"}),
    ("cd sub && cd deep || rm x", PROJECT, {f"{PROJECT}/x", f"{PROJECT}/sub/x"}),
    ("cd / || rm -rf logs", PROJECT, {f"{PROJECT}/logs"}),
    ("cd sub && cd ../other && rm x", PROJECT, {f"{PROJECT}/other/x"}),
    ("(cd /; true); rm logs", PROJECT, {f"{PROJECT}/logs"}),
    ("cd / & rm logs", PROJECT, {f"{PROJECT}/logs"}),
    ("cd && rm x", PROJECT, {f"{HOME}/x"}),
    ("sudo cd /; rm x", PROJECT, {f"{PROJECT}/x"}),
    ("builtin cd / && rm x", PROJECT, {"/x"}),
    ("cd cd && rm x", PROJECT, {f"{PROJECT}/cd/x"}),
    ("bash -c 'cd /; rm x'; rm y", PROJECT, {"/x", f"{PROJECT}/x", f"{PROJECT}/y"}),
    (
        "if cd /; then rm a; else rm b; fi; rm c",
        PROJECT,
        {"/a", f"{PROJECT}/b", "/c", f"{PROJECT}/c"},
    ),
    (
        "cp a /etc/x; mv b c; tee d < e >> f",
        PROJECT,
        {"/etc/x", f"{PROJECT}/b", f"{PROJECT}/c", f"{PROJECT}/d", f"{PROJECT}/f"},
    ),
    ("echo x > /dev/null 2>&1 >&2 &> log", PROJECT, {f"{PROJECT}/log"}),
    (
        "cp -t /etc a b; ln -s a /usr/x; dd if=a of=/dev/sda",
        PROJECT,
        {"/etc", "/usr/x", "/dev/sda"},
    ),
    (
        "sed -i.bak 's/a/b/' /etc/hosts; chmod 600 x; curl -o /etc/y http://z",
        PROJECT,
        {"/etc/hosts", f"{PROJECT}/x", "/etc/y"},
    ),
    ("tar xf a.tar -C /opt; unzip -d /srv a.zip; git clone u /x", PROJECT, {"/opt", "/srv", "/x"}),
    ("sort -k 2 -o /etc/x a; shuf --output=/y b", PROJECT, {"/etc/x", "/y"}),
    ("find /var -delete", PROJECT, {"/var"}),
    ("rm /x y", None, {"/x"}),
]


@pytest.mark.parametrize(
    ("text", "cwd", "expected"), PLACES, ids=[f"{t} in {c}" for t, c, _ in PLACES]
)
def test_p4_paths_are_told_apart_by_where_they_lead(
    text: str, cwd: str | None, expected: set[str]
) -> None:
    found = facts(text, cwd)
    assert writes(found) == expected
    assert ("place" in codes(found)) == (cwd is None)


def test_links_are_seen_if_the_caller_can_look() -> None:
    found = analyse(
        "rm -rf link/x; /tmp/tool y",
        PARSE,
        Surroundings(
            PROJECT,
            HOME,
            real=lambda p: p.replace(f"{PROJECT}/link", "/etc").replace("/tmp/tool", "/bin/rm"),
        ),
    )
    assert writes(found) == {f"{PROJECT}/link/x", "/etc/x", f"{PROJECT}/y"} and found.names == [
        "rm",
        "rm",
    ]


def test_a_program_of_that_name_elsewhere_is_another_program() -> None:
    assert facts("./rm x; /tmp/ls; ../git push").names == ["./rm", "/tmp/ls", "../git"]


def test_pipelines_background_and_the_source_of_each_input() -> None:
    found = facts("(curl a; wget b) | tr x y | { sh; } & echo c")
    assert found.pipelines == [("curl", "wget", "tr", "sh")] and found.background
    sh = next(c for c in found.commands if c.name == "sh")
    assert sh.fed_by == ("curl", "wget", "tr") and sh.background
    assert found.commands[-1].fed_by == () and not found.commands[-1].background


def test_other_facts() -> None:
    found = facts("A=1 B=$(c) d >> e <<X; f() { g; }\nx\nX\n")
    assert (
        found.assignments == ["A", "B"]
        and found.functions == ["f"]
        and found.heredocs == 1
        and found.substitutions == 1
    )
    assert [(r.op, r.writes) for r in found.redirects] == [(">>", True), ("<<", False)]
    assert [c.inside for c in found.commands] == ["substitution", "", "function"]
    assert facts("curl x; git push; git log; exec 3<>/dev/tcp/h/80").commands[0].network
    assert [
        c.network for c in facts("curl x; git push; git log; echo > /dev/tcp/h/80").commands
    ] == [True, True, False, True]


def test_typed_lines_go_through_an_editor() -> None:
    assert codes(facts("echo !x", typed=True)) == {"history"} and not codes(facts("echo !x"))
    assert not codes(facts("! true; [ a != b ]; echo \\!x", typed=True))
    assert codes(facts("ls\tx", typed=True)) == {"keys"}
    assert codes(facts("ls \x1b[A", typed=True)) == {"keys"}
    for shell in ("bash", "zsh"):  # an option decides whether a typed # begins a comment
        assert codes(facts("echo a # ; rm -rf x", typed=True, shell=shell)) == {"shell"}
        assert not codes(facts("echo a # b", shell=shell))
    assert not codes(facts("echo a#b '# c'", typed=True))
    assert not codes(facts("echo a # b", typed=True, shell="sh"))


def test_other_shells() -> None:
    assert codes(facts("ls", shell="fish")) == {"shell"}
    assert codes(facts("=rm x", shell="zsh")) == {"name"}
    assert "name" in codes(facts("$'rm' x", shell="sh")), "not every sh knows this quoting"
    assert facts("noglob rm x", shell="zsh").names == ["rm"]
    for text in (
        "ls *(e:'rm y':)",
        "ls x(+f)",
        "repeat 2 rm y",
        "foreach x (a b) rm y; end",
        "rm(){ls}; rm",
        "echo ${(e)x}",
    ):
        assert codes(facts(text, shell="zsh")), text
    assert not codes(facts("ls 'a(b)' \\(c; x=$(ls); [[ -n $x ]] && (ls)", shell="zsh"))
    assert codes(facts("diff <(a) b", shell="sh")) == {"parse"}


def test_names_that_stand_for_something_else_here() -> None:
    assert codes(facts("ls", shadowed=frozenset({"ls"}))) == {"shadowed"}


def test_argv_needs_no_shell() -> None:
    found = of_argv(["sudo", "rm", "-rf", "$x", "*"], PARSE, Surroundings("/tmp", HOME))
    assert (
        found.names == ["rm"] and writes(found) == {"/tmp/$x", "/tmp/*"} and not found.unresolvable
    )
    assert of_argv(["bash", "-c", "rm x"], PARSE, Surroundings("/tmp", HOME)).names == ["rm"]
    assert codes(of_argv([], PARSE, Surroundings("/tmp", HOME))) == {"name"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("rm 'x", "parse"),
        ("(", "parse"),
        ("a\0b", "control"),
        ("rm\r", "control"),
        ("a" * 200_000, "size"),
        ("( " * 70 + "a" + " )" * 70, "depth"),
        ("echo \ud800", "control"),
        ("if", "parse"),
        ("; ;", "parse"),
        ("rm x; bash -c '('", "parse"),
    ],
)
def test_p4_text_without_a_tree_has_no_facts_at_all(text: str, code: str) -> None:
    found = facts(text)
    assert codes(found) == {code} and found.commands == []


def test_p4_nesting_without_end_has_no_facts() -> None:
    for deep in ("$(" * 500 + "a" + ")" * 500, "(" * 20_000, "{ " * 3000, "`" * 999):
        found = facts(deep)
        assert (
            found.commands == []
            and codes(found) <= {"parse", "parser", "size", "depth"}
            and found.reasons
        )


def test_a_parser_that_is_missing_or_lies_gives_no_facts() -> None:
    def missing(text: str, dialect: str) -> Any:
        raise Unparseable("parser", "gone")

    assert codes(analyse("rm x", missing, Surroundings("/", "/"))) == {"parser"}
    odd: list[dict[str, Any]] = [
        {"Stmts": [{"Cmd": {"Type": "Novelty", "X": {"Type": "CallExpr", "Args": []}}}]},
        {"Stmts": [{"Cmd": {"Type": "Block", "Other": [{"Type": "CmdSubst", "Stmts": []}]}}]},
        {"Stmts": [{"Cmd": {"Type": "BinaryCmd", "Op": 11, "X": {}, "Y": {}}}]},
    ]
    for tree in odd:
        assert "construct" in codes(analyse("x", lambda *_, t=tree: t, Surroundings("/", "/")))


def test_sed_programs() -> None:
    for program in (
        "p",
        "1,5p",
        "$d",
        "/a\\/b/,/c/d",
        "s/a/b/",
        "s,a,b,gI2",
        "/x/!d",
        "1{p;q}",
        "y/ab/cd/",
        "a hello",
        "s/a/b/;s/c/d/",
    ):
        assert sed_is_plain(program), program
    for program in (
        "e rm x",
        "s/a/b/e",
        "s/a/b/w f",
        "w f",
        "1r f",
        "s/a",
        "s\na\nb\n",
        "\\cacp",
        "p e",
        "s/a/b/ge",
        "s/[/]/x/",
    ):
        assert not sed_is_plain(program), program


QUOTINGS = st.sampled_from(["{}", "\\{}", "'{}'", '"{}"', "$'{}'", "''{}"])


@given(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8), st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_spelling_does_not_change_a_name(name: str, data: st.DataObject) -> None:
    spelled = "".join(data.draw(QUOTINGS).format(c) for c in name)
    if all(f"\\{c}" not in spelled for c in name) or "$'" not in spelled:
        found = facts(f"zz{spelled} x")
        assert [c.name for c in found.commands] == [f"zz{name}"] and not found.reasons


PIECES = st.lists(
    st.sampled_from(
        [
            "rm",
            " ",
            "-rf",
            "/",
            "$(",
            ")",
            "`",
            "'",
            '"',
            "\\",
            "\n",
            ";",
            "|",
            "&",
            "<<E\n",
            "E\n",
            "{",
            "}",
            "(",
            "$x",
            "${x:-",
            "a",
            "if",
            "then",
            "fi",
            "case",
            "in",
            "esac",
            "[[",
            "]]",
            "((",
            "))",
            ">",
            "<",
            "*",
            "~",
            "#",
            "!",
            "=",
            "for",
            "do",
            "done",
            "é",
            "$'",
            "eval",
            "bash -c ",
            "f()",
            "time",
            "$((",
            "<(",
            "\t",
        ]
    ),
    max_size=14,
)


@given(PIECES.map("".join))
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_p4_garbage_never_raises_and_is_never_known_when_the_grammar_refuses(text: str) -> None:
    found = facts(text)
    try:
        PARSE(text, "bash")
    except Unparseable:
        assert found.commands == [] and found.reasons
    else:
        for command in found.commands:
            assert command.name or command.reasons


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.sampled_from(
            ["CallExpr", "Word", "Lit", "rm", "BinaryCmd", "|", "Block", "ParamExp", "CmdSubst"]
        ),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "Type",
                        "Stmts",
                        "Cmd",
                        "Args",
                        "Parts",
                        "Value",
                        "Op",
                        "X",
                        "Y",
                        "Redirs",
                        "Word",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
@settings(max_examples=examples(100), deadline=None)
def test_a_strange_tree_is_a_reason_not_a_crash(tree: Any) -> None:
    found = analyse("x", lambda *_: {"Stmts": tree}, Surroundings("/", "/"))
    assert isinstance(found, Facts)
