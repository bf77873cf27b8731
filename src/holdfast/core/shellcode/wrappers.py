"""Commands that run another command: looked through, so that `sudo env A=b nice rm x` is judged as `rm x`.

A wrapper is looked through only if every word up to the inner command is understood. One unknown option, and nothing behind it
is certain: its value may be the word that looks like the command. That is a reason, not a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.core.reasons import Reason
from holdfast.core.words import Word


class Wrapper(NamedTuple):
    valued: str = ""  # options that take the next word
    bare: str = ""  # options that take none
    operands: int = 0  # words of its own before the command
    assigns: bool = False  # NAME=value words before the command
    query: str = ""  # options with which it runs nothing
    moves: str = ""  # options that change the directory or root of the command
    text: str = ""  # option whose value is a text for a shell
    more: bool = False  # it adds arguments that nobody knows
    alone: str = ""  # reason code if no command follows
    numbers: bool = False  # `-5` is an option


class Peeled(NamedTuple):
    rest: list[Word]  # the inner command; empty: there is none
    reasons: tuple[Reason, ...] = ()
    text: Word | None = None  # a text that a shell runs
    assigns: tuple[tuple[str, Word], ...] = ()
    more: bool = False


_RUN: Final = "-p --python --with --extra --group --project --directory --env-file --index-url --package --with-editable --with-requirements"
_RUN_BARE: Final = (
    "-q -v --quiet --verbose --frozen --locked --no-sync --no-project --isolated --all-extras --all-groups --dev --no-dev --active --offline "
    "--exact --no-env-file"
)
WRAPPERS: Final[dict[str, Wrapper]] = {
    "sudo": Wrapper(
        "-u --user -g --group -p --prompt -C --close-from -T --command-timeout -r --role -t --type",
        "-A --askpass -b --background -E --preserve-env -H --set-home -i --login -n --non-interactive -P --preserve-groups -S --stdin -s "
        "--shell -k --reset-timestamp -B --bell",
        assigns=True,
        query="-l --list -v --validate -K --remove-timestamp -V --version",
        moves="-D --chdir -R --chroot -h --host",
        alone="stdin",
    ),
    "doas": Wrapper("-u -a", "-n -s", query="-L", alone="stdin"),
    "env": Wrapper(
        "-u --unset",
        "-i - --ignore-environment -0 --null -v --debug",
        assigns=True,
        query="--version",
        moves="-C --chdir",
    ),
    "nohup": Wrapper(),
    "linux32": Wrapper(),
    "linux64": Wrapper(),
    "i386": Wrapper(),
    "i686": Wrapper(),
    "x86_64": Wrapper(),
    "rlwrap": Wrapper(),
    "ssh-agent": Wrapper("-a -t -P", "-c -s -d -D", query="-k"),
    "sg": Wrapper(operands=1, text="-c", alone="stdin"),
    "builtin": Wrapper(),
    "noglob": Wrapper(),
    "nocorrect": Wrapper(),
    "busybox": Wrapper(query="--list --help"),
    "toybox": Wrapper(),
    "setsid": Wrapper("", "-c --ctty -f --fork -w --wait"),
    "nice": Wrapper("-n --adjustment", numbers=True),
    "ionice": Wrapper("-c --class -n --classdata", "-t --ignore", query="-p --pid", numbers=True),
    "time": Wrapper(
        "-f --format -o --output", "-p --portability -v --verbose -a --append -q --quiet"
    ),
    "timeout": Wrapper(
        "-k --kill-after -s --signal", "--foreground --preserve-status -v --verbose", 1
    ),
    "stdbuf": Wrapper("-i --input -o --output -e --error"),
    "command": Wrapper("", "-p", query="-v -V"),
    "exec": Wrapper("-a", "-c -l"),
    "taskset": Wrapper("", "-c --cpu-list -a --all-tasks", 1, query="-p --pid"),
    "chrt": Wrapper(
        "", "-b -f -i -o -r -d -R --batch --fifo --idle --other --rr", 1, query="-p --pid -m --max"
    ),
    "flock": Wrapper(
        "-w --timeout -E --conflict-exit-code",
        "-n --nonblock -x -e --exclusive -s --shared -u --unlock -o --close -F --no-fork --verbose",
        1,
        text="-c --command",
    ),
    "strace": Wrapper(
        "-o -e -s -P -I -a -O -S -X",
        "-f -ff -F -t -tt -ttt -T -v -y -yy -c -C -q -qq -r -x -xx -i -k -d",
        query="-p -V",
    ),
    "xargs": Wrapper(
        "-I -n --max-args -L --max-lines -P --max-procs -s --max-chars -d --delimiter -a --arg-file -E",
        "-0 --null -r --no-run-if-empty -t --verbose -p --interactive -x --exit -o --open-tty",
        query="--help --version",
        more=True,
    ),
    "watch": Wrapper(
        "-n --interval",
        "-d --differences -t --no-title -b --beep -e --errexit -g --chgexit -c --color -p --precise -x --exec",
        text="*",
    ),
    "su": Wrapper(
        "-g --group -G --supp-group -s --shell -w --whitelist-environment",
        "-l --login - -m -p --preserve-environment -P --pty -f --fast",
        1,
        text="-c --command --session-command",
        alone="stdin",
    ),
    "runuser": Wrapper(
        "-u --user -g --group -G --supp-group -s --shell",
        "-l --login - -m -p --preserve-environment -P --pty -f",
        text="-c --command",
        alone="stdin",
    ),
    "script": Wrapper(
        "-T --log-timing -O --log-out -I --log-in -B --log-io -E --echo -m -o --output-limit",
        "-a --append -e --return -f --flush -q --quiet",
        1,
        text="-c --command",
        alone="stdin",
    ),
    "uv run": Wrapper(_RUN, _RUN_BARE, query="--help"),
    "poetry run": Wrapper(),
    "pipenv run": Wrapper(),
    "bundle exec": Wrapper("", "--keep-file-descriptors"),
    "hatch run": Wrapper(),
    "rye run": Wrapper(),
    "pdm run": Wrapper("-p --project", "-s --site-packages"),
    "direnv exec": Wrapper("", "", 1),
    "dbus-run-session": Wrapper(),
    "xvfb-run": Wrapper(
        "-n --server-num -e --error-file -f --auth-file -s --server-args -w --wait",
        "-a --auto-servernum -l",
    ),
    "caffeinate": Wrapper("-t -w", "-d -i -m -s -u"),
    "setarch": Wrapper("", "-R --addr-no-randomize -v", 1),
    "systemd-inhibit": Wrapper("", ""),
}
ELSEWHERE: Final = frozenset(
    (
        "ssh",
        "mosh",
        "chroot",
        "unshare",
        "nsenter",
        "bwrap",
        "firejail",
        "proot",
        "fakeroot",
        "fakechroot",
        "systemd-nspawn",
        "machinectl",
        "lxc",
        "distrobox",
        "toolbox",
        "vagrant",
        "parallel",
        "tmux",
        "screen",
        "systemd-run",
        "at",
        "batch",
        "expect",
        "nix-shell",
    )
)
ELSEWHERE_SUB: Final = frozenset(
    (
        "docker exec",
        "docker run",
        "podman exec",
        "podman run",
        "kubectl exec",
        "kubectl run",
        "docker compose exec",
        "docker compose run",
        "docker-compose exec",
        "docker-compose run",
        "ip netns",
        "flatpak run",
        "nix develop",
        "nix run",
        "nix shell",
    )
)
_ASSIGN: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)


def find(name: str, words: Sequence[Word]) -> tuple[str, Wrapper, Sequence[Word]] | None:
    """The wrapper this command is, with the words that follow its name."""
    if name in WRAPPERS:
        return name, WRAPPERS[name], words
    if words and words[0].text is not None:
        both = f"{name} {words[0].text}"
        if both in WRAPPERS:
            return both, WRAPPERS[both], words[1:]
    return None


def elsewhere(name: str, words: Sequence[Word]) -> bool:
    if name in ELSEWHERE:
        return True
    plain = [w.text or "" for w in words if w.text is None or not w.text.startswith("-")]
    return any(f"{name} {' '.join(plain[:n])}" in ELSEWHERE_SUB for n in (1, 2))


def peel(name: str, wrapper: Wrapper, words: Sequence[Word]) -> Peeled:
    """What is inside."""
    valued, bare, at = wrapper.valued.split(), wrapper.bare.split(), 0
    assigns: list[tuple[str, Word]] = []
    reasons: list[Reason] = []
    script: Word | None = None
    operands = wrapper.operands
    while at < len(words):
        text = words[at].text
        if text is None:
            break
        option, given, value = text.partition("=") if text.startswith("--") else (text, "", "")
        if text == "--":
            at += 1
            break
        if option in wrapper.query.split():
            return Peeled([])
        if option in wrapper.text.split():
            if given:
                script = Word(value, value)
            elif at + 1 < len(words):
                at += 1
                script = words[at]
        elif option in wrapper.moves.split() or any(
            text.startswith(m)
            for m in wrapper.moves.split()
            if len(m) == 2 and len(text) > 2 and not text.startswith("--")
        ):
            reasons.append(Reason("place", f"{name} {option}"))
            at += 0 if given or (len(text) > 2 and not text.startswith("--")) else 1
        elif option in valued:
            at += 0 if given else 1
        elif (
            option in bare
            or (option.startswith("--") and given and option in bare)
            or (wrapper.numbers and re.fullmatch(r"-\d+", text))
        ):
            pass
        elif (
            text.startswith("-")
            and not text.startswith("--")
            and (takes := _cluster(text, valued, bare)) is not None
        ):
            at += takes
        elif text.startswith("-") and text != "-":
            return Peeled([], (Reason("option", f"{name} {text[:40]}"),))
        elif wrapper.assigns and (m := _ASSIGN.fullmatch(text)):
            assigns.append((m[1], Word(m[2], m[2])))
        elif operands:
            operands -= 1
        else:
            break
        at += 1
    rest = list(words[at:])
    while operands and rest and wrapper.text != "*":
        rest.pop(0)
        operands -= 1
    if wrapper.text == "*":
        return _joined(name, rest, reasons)
    if script is not None:
        return Peeled([], tuple(reasons), script, tuple(assigns))
    if not rest and wrapper.alone:
        reasons.append(Reason(wrapper.alone, name))
    return Peeled(rest, tuple(reasons), None, tuple(assigns), wrapper.more)


def _cluster(text: str, valued: list[str], bare: list[str]) -> int | None:
    """`-nE`, `-n5`: how many further words these letters take; None if one of them is not known."""
    for at, c in enumerate(text[1:], 1):
        if f"-{c}" in valued:
            return 1 if at == len(text) - 1 else 0
        if f"-{c}" not in bare:
            return None
    return 0 if len(text) > 1 else None


def _joined(name: str, rest: list[Word], reasons: list[Reason]) -> Peeled:
    """`watch a b` gives `a b` to a shell."""
    if any(w.text is None for w in rest):
        return Peeled([], (*reasons, Reason("eval", name)))
    text = " ".join(w.text or "" for w in rest)
    return Peeled([], tuple(reasons), Word(text, text) if text else None)
