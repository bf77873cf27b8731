"""Completion in the shells themselves, and the manual page through the program that shows it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.people import devices
from holdfast.faces.cli.main import COMMANDS, parser
from tests.support.installation import Installation, installation


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.new("alpha", "--", "cat")
        made.new("alphabet", "--", "cat")
        bin_ = made.base / "bin"
        bin_.mkdir()
        (bin_ / "holdfast").write_text(
            "#!/bin/sh\nexec " + " ".join(str(a) for a in made.argv(())) + ' "$@"\n'
        )
        (bin_ / "holdfast").chmod(0o755)
        made.env["PATH"] = f"{bin_}:{made.env['PATH']}"
        for shell in ("bash", "zsh", "fish"):
            (made.base / shell).write_bytes(made.ok("completion", shell).raw)
        yield made


def complete(hf: Installation, *words: str) -> set[str]:
    """The completions of a real bash for the last word."""
    script = (
        f'source {hf.base / "bash"}; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _holdfast; '
        f'printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", "holdfast", *words],
        env=hf.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_options_sessions_and_values(hf: Installation) -> None:
    assert complete(hf, "") >= set(COMMANDS)
    assert complete(hf, "att") == {"attach", "attention"} and complete(hf, "atta") == {"attach"}
    assert complete(hf, "attach", "") == {"alpha", "alphabet"}
    assert complete(hf, "attach", "alphab") == {"alphabet"}
    assert complete(hf, "attach", "nothere") == set()
    assert complete(hf, "attach", "--ob") == {"--observe"}
    assert complete(hf, "wait", "alpha", "--for", "") == {
        "idle",
        "input",
        "secret",
        "exit",
        "command",
        "text:",
        "port:",
    }
    assert complete(hf, "view", "alpha", "--format", "j") == {"json"}
    assert complete(hf, "completion", "z") == {"zsh"}
    assert complete(hf, "new", "--cwd", "/us") == {"/usr"}
    for name in COMMANDS:
        options = {
            s
            for a in parser(name)._actions
            for s in a.option_strings
            if s.startswith("--") and s != "--help"
        }
        assert complete(hf, name, "--") == options, name


def test_bash_completes_names_where_they_apply(hf: Installation) -> None:
    hf.people("ann", rights="admin")
    hf.people("bot", rights="execute", kind="agent")
    (hf.home / "policy.toml").write_text(
        'version = 1\nextends = "default"\n[[rule]]\nname = "asked"\nverdict = "ask"\n'
        'because = "it is shared"\n'
        'when = { act = ["end"] }\nwho = { operators = ["bot"] }\n'
    )
    hf.ok("grant", "bot", "--rights", "end")
    assert hf.cli("--as", "bot", "end", "alpha", "--hold", "0").rc == 4
    [question] = hf.ok("approvals", "--json").json
    invitation = hf.ok("invite", "--no-wait", "--json").json["id"]
    people = {"tester", "ann", "bot"}
    for words, expected in (
        (("--as", ""), people),
        (("--as", "ann", "atta"), {"attach"}),
        (("--as", "ann", "attach", ""), {"alpha", "alphabet"}),
        (("attach", "--as", ""), people),
        (("end", "alpha", ""), {"alpha", "alphabet"}),
        (("attach", "--scrollback", "7", ""), {"alpha", "alphabet"}),
        (("approvals", ""), {"alpha", "alphabet"}),
        (("approve", ""), {question["id"]}),
        (("deny", ""), {question["id"]}),
        (("--as", "bot", "deny", "q"), {question["id"]}),
        (("operator", ""), {"add", "ls", "show", "revoke", "recover", "lock", "unlock"}),
        (("operator", "show", ""), people),
        (("operator", "revoke", "--force", "a"), {"ann"}),
        (("operator", "add", "x", "--kind", ""), {"human", "agent", "service"}),
        (("grant", "b"), {"bot"}),
        (("grant", "bot", "--session", ""), {"alpha", "alphabet"}),
        (("grant", "bot", "--rights", "ex"), {"execute"}),
        (("device", ""), {"ls", "add", "rename", "revoke"}),
        (("device", "revoke", ""), {devices.plain(os.uname().nodename)}),
        (("invite", "--session", ""), {"alpha", "alphabet"}),
        (("invite", "revoke", ""), {invitation}),
        (("turn", "alpha", "ha"), {"hand"}),
        (("turn", "alpha", "hand", ""), people),
        (("log", "al"), {"alpha", "alphabet"}),
        (("log", "export", ""), {"alpha", "alphabet"}),
        (("log", "e"), {"export"}),
        (("policy", "t"), {"test", "try"}),
        (("send", "alpha", "--key", "Pa"), {"PageUp", "PageDown"}),
        (("run", "alpha", "--", ""), set()),
        (("wait", "--for", "exit", ""), {"alpha", "alphabet"}),
    ):
        offered = complete(hf, *words)
        assert offered == expected or (words[:2] == ("log", "export") and offered >= expected), (
            words,
            offered,
        )
    hf.ok("down")
    assert complete(hf, "attach", "") == set() and not hf.peer("host.sock"), (
        "no host is started by a key"
    )
    hf.ok("up", "--detach")


def test_bash_registers_the_completion(hf: Installation) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", f"source {hf.base / 'bash'}; complete -p holdfast"],
        env=hf.env,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "complete -F _holdfast holdfast"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_parses_loads_and_completes(hf: Installation) -> None:
    subprocess.run(["zsh", "-n", str(hf.base / "zsh")], check=True)
    script = f"""
    autoload -Uz compinit; compinit -u -d {hf.base}/zcompdump; source {hf.base / "zsh"}
    print -r -- "registered ${{_comps[holdfast]}}"
    compadd() {{
      while [[ $1 == -* && $1 != -- ]]; do [[ $1 == -S ]] && shift; shift; done; shift
      print -r -- "offer $*"
    }}
    _describe() {{ print -r -- "commands ${{(P)#2}}" }}
    for line in 'holdfast ' 'holdfast attach ' 'holdfast attach --' 'holdfast wait alpha --for ' \\
      'holdfast completion '; do
      words=("${{(@s: :)line}}"); CURRENT=$#words; print -r -- "> $line"; _holdfast
    done"""
    done = subprocess.run(["zsh", "-f", "-c", script], env=hf.env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done
    assert "registered _holdfast" in done.stdout and f"commands {len(COMMANDS)}" in done.stdout
    offers = re.findall(r"^offer (.*)$", done.stdout, re.M)
    assert (
        offers[0] == "alpha alphabet"
        and "--observe" in offers[1]
        and offers[2].startswith("idle input")
        and offers[3] == "bash zsh fish"
    )


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_parses_the_completion(hf: Installation) -> None:
    subprocess.run(["fish", "-n", str(hf.base / "fish")], check=True)


def test_fish_names_every_command_and_option(hf: Installation) -> None:
    text = (hf.base / "fish").read_text()
    for name in COMMANDS:
        assert f"-a {name} " in text
        for action in parser(name)._actions:
            for option in (
                s for s in action.option_strings if s.startswith("--") and s != "--help"
            ):
                assert f"'__fish_seen_subcommand_from {name}' -l {option[2:]}" in text, (
                    name,
                    option,
                )
    assert all(line.count("'") % 2 == 0 for line in text.splitlines())


def test_the_manual_page_renders(hf: Installation, tmp_path: Path) -> None:
    page = hf.ok("man").out
    (tmp_path / "holdfast.1").write_text(page)
    for name, command in COMMANDS.items():
        assert f".B holdfast {name}" in page.replace("\\-", "-"), name
        assert command.example.replace("\\", "\\e").replace("-", "\\-") in page
    assert not re.search(r"(?<!\\)\\[^e&\-]", page), "an unintended escape"
    if shutil.which("groff"):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-rHY=0", str(tmp_path / "holdfast.1")],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and done.stderr == "", done.stderr
        plain = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
        for section in (
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "COMMANDS",
            "KEYS WHILE ATTACHED",
            "EXIT STATUS",
            "ENVIRONMENT",
            "FILES",
        ):
            assert re.search(rf"^{section}$", plain, re.M), section
        for code in ("0 ok", "2 usage", "124 timed out", "255"):
            assert code in " ".join(plain.split()), code
    if shutil.which("man"):
        done = subprocess.run(
            ["man", "-l", str(tmp_path / "holdfast.1")],
            capture_output=True,
            text=True,
            env={**hf.env, "MANWIDTH": "100", "PAGER": "cat"},
        )
        assert "minimized" in done.stdout or (done.returncode == 0 and "holdfast" in done.stdout)
