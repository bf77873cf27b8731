"""Ways around the `commands` limit of an envelope (A5, P4), each tried for real at exec depth.

The agent `bot` may run a few programs, and each of them can start others. No text shows that.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.policy import command_limit
from tests.support.exec_gate.gated_session import LAYOUTS
from tests.support.installation import Installation, Result, eventually, installation

PYTHON = "/usr/bin/python3"
SETTINGS = """git config user.email a@b.c && git config user.name a &&
git config core.pager 'touch stolen;' && git commit -q --allow-empty -m first"""
NAMES = ("git", "tar", "sort", "awk", "sed", "find", "env", "cat", "true")
# A program that `bot` may not run. It leaves a trace.
STOLEN = "touch"


@pytest.fixture(scope="module", params=LAYOUTS)
def lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        file = made.home / "policy.toml"  # everything is allowed: only the envelope limits
        file.write_text(
            'version = 1\n[[rule]]\nname = "all"\nverdict = "allow"\nbecause = "a test"\n'
            'when = { unresolvable = "any" }\n'
        )
        file.chmod(0o600)
        made.new("lab", request.param, "--cwd", str(made.user), "--", "bash")
        assert made.get("lab")["gate"] == "exec"
        made.people("bot", rights="", kind="agent")
        grants(made, "bot", *NAMES)
        (made.user / "word").write_text("a\nb\n")
        done = attempt(made, f"cd {made.user} && git init -q . && {SETTINGS}", "tester")
        assert done.rc == 0, done
        prepare(made)
        yield made


def grants(hf: Installation, name: str, *programs: str, session: str = "lab") -> str:
    return hf.ok(
        "grant",
        name,
        "--rights",
        "observe,run,turn.request",
        "--session",
        session,
        "--commands",
        ",".join(programs),
    ).out


def refusals(hf: Installation, session: str = "lab") -> list[dict[str, Any]]:
    records = hf.ok("events", session, "--limit", "100000", "--json").records
    return [e for e in records if e["event"] == "exec.refused"]


def singly(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the events that only count: there are some after many refusals in a second."""
    return [e for e in events if "rule" in e]


def attempt(hf: Installation, text: str, who: str = "bot", session: str = "lab") -> Result:
    done = hf.cli("--as", who, "run", session, "--", text)
    hf.cli("--as", who, "turn", session, "release")
    return done


def stays_out(hf: Installation, text: str) -> None:
    """The text gets past the comparison of texts, and the program that it starts does not run."""
    trace = hf.user / "stolen"
    trace.unlink(missing_ok=True)
    before = len(refusals(hf))
    done = attempt(hf, text)
    assert done.rc != 255, f"refused as text, so the test shows nothing: {done}"
    new = eventually(lambda: refusals(hf)[before:], f"the report of the refusal; {done}")
    for e in singly(new):
        assert (e["rule"], e["operator"]) == (command_limit.RULE, "bot")
        assert "the grant of bot is only for" in e["because"]
    assert not trace.exists()


def script(hf: Installation, name: str, text: str) -> str:
    file = hf.user / name
    file.write_text(text)
    file.chmod(0o755)
    return str(file)


# sort executes its program without a shell
SORT = "sort -S 1k --compress-program={} big"
ESCAPES = {
    "git pager": "git -p log",
    "git hook": "git commit -q --allow-empty -m x",
    "git archive": "git archive --remote=. --exec='touch stolen; true' HEAD",
    "tar checkpoint": "tar -cf /dev/null --checkpoint=1 "
    "--checkpoint-action=exec='touch stolen' word",
    "tar compress": "tar -cf /dev/null --use-compress-program='touch stolen' word",
    "awk in a file": "awk -f prog.awk word",
    "sed in a file": "sed -f prog.sed word",
    "sort": SORT.format("touch"),
    "a script": SORT.format("./pack"),
    "a file with a listed name": SORT.format("./git"),
    "a link with a listed name": SORT.format("./true"),
    "a link to a listed program": SORT.format("./innocent"),
    "a script in a listed language": SORT.format("./sedscript"),
    "a listed program with a copy's path": SORT.format("/usr/bin/../../$PWD/true"),
    "in the background": "git -p log & true",
    "in a subshell": "(true; git -p log; true)",
    "a daemon": "tar -cf /dev/null --checkpoint=1 "
    "--checkpoint-action=exec='setsid touch stolen' word",
}


def prepare(hf: Installation) -> None:
    user = hf.user
    script(hf, ".git/hooks/pre-commit", "#!/bin/sh\ntouch stolen\n")
    script(hf, "pack", "#!/bin/sh\ntouch stolen\n")
    script(hf, "git", "#!/bin/sh\ntouch stolen\n")
    script(hf, "sedscript", "#!/usr/bin/sed -nf\n1e touch stolen\n")
    (user / "true").symlink_to("/usr/bin/touch")
    (user / "innocent").symlink_to("/usr/bin/true")
    (user / "big").write_text("".join(f"{n * 7919 % 100003}\n" for n in range(9_000)))
    (user / "prog.awk").write_text('BEGIN { system("touch stolen") }\n')
    (user / "prog.sed").write_text("1e touch stolen\n")


@pytest.mark.parametrize("how", ESCAPES)
def test_a5_a_listed_program_starts_another(lab: Installation, how: str) -> None:
    stays_out(lab, ESCAPES[how])


LOADERS = {
    "gconv": "GCONV_PATH={0} git --no-pager log --encoding=EVIL",
    "openssl": "OPENSSL_CONF={0}/x git status",
    "locale": "LOCPATH={0} LANG=evil git status",
    "a locale that is a path": "LANG=../../{0}/evil git status",
    "a zone that is a path": "TZ=:/{0} git status",
    "configuration": "XDG_CONFIG_HOME={0} git status",
    "options": "TAR_OPTIONS=--to-command=x tar -tf word",
    "by env": "env GCONV_PATH={0} git status",
    "by find": "find word -exec env GCONV_PATH={0} git status ;",
    "exported": "export GCONV_PATH={0}; git status",
    "by a loop": "for GCONV_PATH in {0}; do git status; done",
    "by an expansion": "git status ${{GCONV_PATH:={0}}}",
}
# The shell itself runs the substitution in the output of git: `a[$(touch stolen)]`.
COMPUTED = {
    "arithmetic": "git status -s $(( $(git config -f pay a.b) ))",
    "a comparison": '[[ 1 -eq "$(git config -f pay a.b)" ]] || git status -s',
    "a subscript": "git status -s ${x[$(git config -f pay a.b)]}",
    "a slice": "git status -s ${PWD:$(git config -f pay a.b)}",
    "a variable": "git status -s $((evil))",
}


@pytest.mark.parametrize("how", LOADERS)
def test_a5_a_text_sets_only_harmless_variables(lab: Installation, how: str) -> None:
    done = attempt(lab, LOADERS[how].format(lab.user))
    assert done.rc == 255 and "only for" in done.err, done


@pytest.mark.parametrize("how", COMPUTED)
def test_a5_the_shell_does_not_compute_with_unknown_text(lab: Installation, how: str) -> None:
    (lab.user / "pay").write_text('[a]\n\tb = "a[$(touch stolen)]"\n')
    (lab.user / "stolen").unlink(missing_ok=True)
    done = attempt(lab, COMPUTED[how])
    assert done.rc == 255 and "only for" in done.err, done
    assert not (lab.user / "stolen").exists()


def test_a5_harmless_variables_are_set(lab: Installation) -> None:
    before = len(singly(refusals(lab)))
    names = "LC_ALL=C.UTF-8 TZ=Europe/Berlin NO_COLOR=1 GIT_PAGER=cat GIT_AUTHOR_DATE='1 day ago'"
    done = attempt(lab, f"{names} git log -1 --format=%h; cat word")
    assert done.rc == 0 and done.out.endswith("a\nb\n"), done
    assert len(singly(refusals(lab))) == before


def test_a5_the_variables_of_every_program_are_judged(lab: Installation) -> None:
    """No text shows what a script sets. At exec depth the kernel's arguments do."""
    lab.people("scripts", rights="", kind="agent")
    grants(lab, "scripts", "sh", "cat", "git")
    script(lab, "load.sh", f"GCONV_PATH={lab.user} cat word\n")
    script(lab, "show.sh", "LANG=C NO_COLOR=1 cat word\ngit log -1 --format=%h > /dev/null\n")
    done = attempt(lab, "sh show.sh", "scripts")
    assert (done.rc, done.out) == (0, "a\nb\n"), done
    before = len(refusals(lab))
    assert "a\nb" not in attempt(lab, "sh load.sh", "scripts").out
    new = eventually(lambda: singly(refusals(lab)[before:]), "the refusal")
    assert all("variable GCONV_PATH" in e["because"] for e in new)
    # a list with a language allows any code already
    grants(lab, "scripts", "perl")
    assert attempt(lab, "sh load.sh", "scripts").out == "a\nb\n"


def test_a5_variables_that_the_session_has_are_given(lab: Installation) -> None:
    """A person's `export` counts, also with odd characters."""
    before = len(singly(refusals(lab)))
    odd = "$'a \\'b\\' \"c\" $d \\n\\001 é'"
    assert attempt(lab, f"export XDG_CONFIG_HOME={odd}", "tester").rc == 0
    done = attempt(lab, "cat word")
    assert (done.rc, done.out) == (0, "a\nb\n"), (done, refusals(lab)[-1:])
    assert attempt(lab, "unset XDG_CONFIG_HOME", "tester").rc == 0
    assert len(singly(refusals(lab))) == before


def test_a5_listed_programs_run_and_other_operators_are_free(lab: Installation) -> None:
    before = len(singly(refusals(lab)))
    done = attempt(lab, "git status --short > /dev/null; cat word | sort -r")
    assert (done.rc, done.out) == (0, "b\na\n"), done
    done = attempt(lab, "tac word; (tac word); echo $(tac word; true)", "tester")
    assert (done.rc, done.out) == (0, "b\na\nb\na\nb a\n"), done
    assert len(singly(refusals(lab))) == before


def test_a5_the_refusal_is_in_the_record_and_says_how_to_widen(lab: Installation) -> None:
    stays_out(lab, SORT.format("touch"))
    entries = [
        e
        for e in lab.ok("log", "lab", "--json").records
        if e["kind"] == "exec" and e["actor"] == "bot"
    ]
    assert {e["verdict"] for e in entries} == {"refuse"}
    assert all(command_limit.RULE in str(e["facts"]) for e in entries)
    advice = "holdfast grant bot --rights run --commands touch"
    assert any(advice in e["reason"] for e in entries)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh: it runs traps at its prompt")
def test_a5_the_shell_itself_is_free_and_its_programs_start_no_others(lab: Installation) -> None:
    """A shell that runs git at its prompt is common. The repository may tell git to run more."""
    layout = "--contained" if lab.get("lab")["layout"] == "contained" else "--plain"
    lab.new("zlab", layout, "--cwd", str(lab.user), "--", "zsh")
    grants(lab, "bot", *NAMES, session="zlab")
    shown = lab.user / "prompted"
    trap = f"trap 'touch {shown}; git status > /dev/null' USR1; git config core.fsmonitor ./pack"
    assert attempt(lab, trap, "tester", "zlab").rc == 0
    try:
        found = lab.ok("graph", "zlab", "--json").json["processes"]
        shell = next(one["pid"] for one in found if one["argv"][0] == "zsh")
        assert attempt(lab, "true", session="zlab").rc == 0
        lab.wait("zlab", "idle")
        (lab.user / "stolen").unlink(missing_ok=True)
        lab.ok("signal", "zlab", str(shell), "USR1")
        eventually(shown.exists, "a program of the shell")
        new = eventually(lambda: refusals(lab, "zlab"), "the refusal of a program of git")
        assert {e["rule"] for e in singly(new)} <= {command_limit.RULE}
        assert not (lab.user / "stolen").exists()
    finally:
        attempt(lab, "git config --unset core.fsmonitor", "tester", "zlab")
        lab.end("zlab")


def test_a5_a_list_outlives_the_grant(lab: Installation) -> None:
    """A revoked operator's job still runs. It must not become free by that."""
    lab.people("late", rights="", kind="agent")
    grants(lab, "late", "tar", "cat")
    fifo = lab.user / "go"
    attempt(lab, f"mkfifo {fifo}", "tester")
    pack = "--checkpoint=1 --checkpoint-action=exec='touch stolen'"
    done = attempt(lab, f"(cat {fifo}; tar -cf /dev/null {pack} word) &", "late")
    assert done.rc == 0, done
    lab.ok("operator", "revoke", "late")
    (lab.user / "stolen").unlink(missing_ok=True)
    before = len(refusals(lab))
    fifo.write_text("now")
    new = eventually(lambda: refusals(lab)[before:], "the refusal")
    assert all("the grant of late" in e["because"] for e in singly(new))
    assert not (lab.user / "stolen").exists()


def test_a5_a_second_grant_widens_the_list(lab: Installation) -> None:
    lab.people("wide", rights="", kind="agent")
    said = grants(lab, "wide", "sort")
    assert "gate = input" in said
    before = len(refusals(lab))
    (lab.user / "stolen").unlink(missing_ok=True)
    attempt(lab, SORT.format("touch"), "wide")
    eventually(lambda: refusals(lab)[before:], "the refusal")
    assert not (lab.user / "stolen").exists()
    grants(lab, "wide", "touch")
    before = len(singly(refusals(lab)))
    attempt(lab, SORT.format("touch"), "wide")
    assert len(singly(refusals(lab))) == before


def test_a5_a_session_of_an_operator_with_a_list(lab: Installation) -> None:
    """The program of the session is on the list, and starts no other."""
    lab.people("maker", rights="", kind="agent")
    lab.ok("grant", "maker", "--rights", "observe,run,new", "--commands", "tar")
    (lab.user / "stolen").unlink(missing_ok=True)
    made = lab.ok(
        *("--as", "maker", "new", "--json", "--no-attach", "--cwd", str(lab.user)),
        *("--", "tar", "-cf", "/dev/null", "--checkpoint=1"),
        *("--checkpoint-action=exec=touch stolen", "word"),
    ).json
    new = eventually(lambda: refusals(lab, made["id"]), "a refusal")
    assert {(e["rule"], e["operator"]) for e in new} == {(command_limit.RULE, "maker")}
    assert not (lab.user / "stolen").exists()


def test_a5_a_job_waits_for_the_order_of_another_operator(lab: Installation) -> None:
    """The job executes its last program in the place of the subshell, while tester's order runs."""
    go = lab.user / "go-on"
    attempt(lab, f"mkfifo {go}", "tester")
    pack = "--checkpoint=1 --checkpoint-action=exec='touch stolen'"
    done = attempt(lab, f"(cat {go}; tar -cf /dev/null {pack} word) &")
    assert done.rc == 0, done
    (lab.user / "stolen").unlink(missing_ok=True)
    before = len(refusals(lab))
    text = f"echo now > {go}; until [ -e done ]; do read -t 0.05 _; done; rm done"
    with lab.start("run", "lab", "--", text) as running:
        new = eventually(lambda: refusals(lab)[before:], "the refusal")
        (lab.user / "done").touch()
        assert running.wait() == 0
    attempt(lab, "true", "tester")
    assert all("the grant of bot" in e["because"] for e in singly(new))
    assert not (lab.user / "stolen").exists()
