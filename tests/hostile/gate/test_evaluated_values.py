"""Unknown text that a shell evaluates as code (P4, A5): arithmetic, subscripts, names of variables.

bash and zsh run the substitution in `a[$(...)]` when they evaluate such a value. So a program that
only prints the value (`cat`, `git log`) would decide what runs. The texts below do that in real
shells. The gate must call each of them unresolvable.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.shellcode.facts import Surroundings, analyse
from holdfast.host.policy.shfmt import Parser
from tests.support.installation import Installation, installation

PARSE = Parser(wait_s=60.0)
# What the file `notes` contains, with the name of an array that exists in the shell.
VALUES = {
    "bash": (
        "a[$(touch${IFS}RAN)]",
        "a[$(touch RAN)]",
        "($(touch RAN))",
        "-v a[$(touch${IFS}RAN)]",
    ),
    "zsh": ("path[$(touch RAN)]", "n*(e:touch RAN:)"),
}
BOTH = r"""
(( $(cat notes) ))
echo $(( $(cat notes) ))
x=$(cat notes); echo $((x))
x=$(cat notes); (( x )); ls
n=$(<notes); ((n++))
while read -r n; do (( n > 1 )); done < notes
for ((;$(cat notes);)); do break; done
case $(( $(<notes) )) in 1) ls;; esac
[[ $(cat notes) -eq 1 ]]
x=$(cat notes); [[ x -lt 1 ]]
[[ -v "$(cat notes)" ]]
test -v "$(cat notes)"
let "$(cat notes)"
let x="$(cat notes)"
typeset -i x="$(cat notes)"
typeset -i x; x=$(cat notes)
printf -v "$(cat notes)" x
printf -v a[$(cat notes)] x
read "$(cat notes)" <<< 1
unset "$(cat notes)"
a=(1); x=$(cat notes); echo ${a[x]}
a=(1); echo ${a[$(cat notes)]}
a=(1); a[$(cat notes)]=1
a=(1); x=$(cat notes); a[x]=1
y=abc; echo ${y:$(cat notes)}
y=abc; echo ${y:0:$(cat notes)}
RANDOM=$(cat notes)
OPTIND=$(cat notes)
export RANDOM=$(cat notes)
for RANDOM in "$(cat notes)"; do :; done
read RANDOM < notes
echo $[ $(cat notes) ]
getopts a "$(cat notes)" -a
command typeset -i x="$(cat notes)"
""".strip().splitlines()
ONLY = {
    "bash": r"""
x=$(cat notes); echo ${!x}
x=$(cat notes); echo "${!x@Q}"
declare -n r="$(cat notes)"; echo $r
a=([$(cat notes)]=1)
mapfile -t x < notes; (( x ))
exec {x[$(cat notes)]}>&1
k=$(cat notes); exec {x[k]}>&1
sleep 0 & wait -n -p "$(cat notes)"
SRANDOM=$(cat notes)
HISTCMD=$(cat notes)
declare -a x="$(cat notes)"
x=(); declare x="$(cat notes)"
readonly -a x="$(cat notes)"
f() { local x=(); local x="$(cat notes)"; }; f
declare -a x='($(touch RAN))'
[ $(cat notes) ]
[ $(cat notes) = 3 ]
printf $(cat notes) x
echo >&$(cat notes)
echo >&'$(touch RAN)'
[[ "$(cat notes)" =~ .* ]] && ls $((BASH_REMATCH))
ls nope "$(cat notes)"; ls $((_))
""".strip().splitlines(),
    "zsh": r"""
printf %d "$(cat notes)"
printf "%*s" "$(cat notes)" x
print -f %d "$(cat notes)"
shift "$(cat notes)"
exit "$(cat notes)"
f() { return "$(cat notes)"; }; f
for x in 1; do break "$(cat notes)"; done
[[ -t $(cat notes) ]]
[ -t "$(cat notes)" ]
read -t "$(cat notes)" x
HISTSIZE=$(cat notes)
SHLVL=$(cat notes)
integer x=$(cat notes)
x=$(cat notes); echo ${path[(e)$x]}
x=$(cat notes); echo ${~x}
x=$(cat notes); echo $~x
echo ${~"$(cat notes)"}
[[ "$(cat notes)" =~ .* ]] && ls $((MATCH))
""".strip().splitlines(),
}
CASES = [(shell, text) for shell in ("bash", "zsh") for text in (*BOTH, *ONLY[shell])]


def ran(shell: str, text: str, place: Path) -> bool:
    """Say whether the text runs a part of one of the values as a command."""
    start = [shell, "-f"] if shell == "zsh" else [shell, "--norc"]
    for value in VALUES[shell]:
        (place / "notes").write_text(value + "\n")
        subprocess.run(
            [*start, "-c", text], cwd=place, capture_output=True, stdin=subprocess.DEVNULL,
            timeout=30, check=False,
        )  # fmt: skip
        if (place / "RAN").exists():
            return True
    return False


@pytest.mark.parametrize(("shell", "text"), CASES)
def test_p4_a_value_that_runs_as_code_is_unresolvable(
    shell: str, text: str, tmp_path: Path
) -> None:
    assert analyse(text, PARSE, Surroundings("/", "/", shell)).unresolvable
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    if not ran(shell, text, tmp_path):
        pytest.skip(f"this {shell} does not run the value")


# ------------------------------------------------------------ live sessions

LOOKING = """version = 1
[[rule]]
name = "people"
verdict = "allow"
because = "they decide for themselves"
who = { kind = ["human"] }
when = { unresolvable = "any" }

[[rule]]
name = "looking"
verdict = "allow"
because = "it only reads"
who = { kind = ["agent"] }
when = { command = ["cat", "git log", "ls", ":"] }
"""
ATTEMPTS = (
    "(( $(cat notes) )); ls",
    '[[ 1 -eq "$(cat notes)" ]] || ls',
    "for ((;$(cat notes);)); do ls; done",
    "ls $((_))",
    "(( $(git log -1 --format='a%x5b%x24(touch RAN)%x5d') )); ls",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        work = made.user / "work"
        work.mkdir()
        (work / "notes").write_text("a[$(touch RAN)]\n")
        made.new("lab", "--contained", "--cwd", str(work), "--", "bash")
        assert made.get("lab")["gate"] == "exec"
        made.people("looker", rights="observe,run,turn.request", kind="agent")
        made.people("bot", rights="", kind="agent")
        limited = ("--rights", "observe,run,turn.request", "--session", "lab")
        made.ok("grant", "bot", *limited, "--commands", "cat,git,ls,touch")
        setup = (
            "git init -q . && git -c user.name=a -c user.email=a@b.c commit -q --allow-empty -m x"
        )
        made.ok("run", "lab", "--", setup)
        made.ok("turn", "lab", "release")
        yield made


@pytest.mark.parametrize("who", ["looker", "bot"])
@pytest.mark.parametrize("text", ATTEMPTS)
def test_p4_a5_an_allow_list_and_a_command_limit_refuse_evaluated_values(
    lab: Installation, text: str, who: str
) -> None:
    policy = lab.home / "policy.toml"
    if who == "looker":
        policy.write_text(LOOKING)
        policy.chmod(0o600)
    try:
        done = lab.cli("--as", who, "run", "lab", "--hold", "0.5", "--", text)
        lab.cli("--as", who, "turn", "lab", "release")
    finally:
        policy.unlink(missing_ok=True)
    assert done.rc != 0 and not (lab.user / "work" / "RAN").exists(), done
