"""Completion for bash, zsh and fish, made from the table of commands and their parsers, so it cannot drift.

What there is to complete (sessions, operators, questions, invitations) is asked of the host with `completion --names`, which starts no host, asks for no
passphrase and says nothing when something is wrong: it runs while somebody types.
"""

from __future__ import annotations

import os
from argparse import Action, _HelpAction
from typing import TYPE_CHECKING

from holdfast.faces.cli.main import COMMANDS, parser
from holdfast.model import rights
from holdfast.model.errors import HoldfastError, Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

SHELLS = ("bash", "zsh", "fish")
WAITS = ("idle", "input", "secret", "exit", "command", "text:", "port:")
KEYS = (
    "Enter",
    "Escape",
    "Tab",
    "Up",
    "Down",
    "Left",
    "Right",
    "Home",
    "End",
    "PageUp",
    "PageDown",
    "BSpace",
    "C-c",
    "C-d",
    "C-z",
    "C-l",
)
SIGNALS = ("TERM", "KILL", "INT", "HUP", "QUIT", "STOP", "CONT", "USR1", "USR2", "WINCH")
ASKED = {
    "sessions": ("ls", "sessions", "name"),
    "operators": ("operator.ls", "operators", "name"),
    "approvals": ("approvals", "approvals", "id"),
    "invitations": ("invite.ls", "invitations", "id"),
    "devices": ("device.ls", "devices", "name"),
}  # request, where in its answer, which field
NAMED = (*ASKED, "machines")  # those that are known here need no host
# What a word may be: one of NAMED, `files`, `directories`, or `=` and the words themselves. By metavar, unless the command says otherwise.
BY_METAVAR = {
    "SESSION": "sessions",
    "OPERATOR": "operators",
    "FILE": "files",
    "DIR": "directories",
    "FILE|TEXT": "files",
}
BY_DEST = {
    ("operator", "name"): "operators",
    ("device", "name"): "devices",
    ("grant", "name"): "operators",
    ("approve", "id"): "approvals",
    ("deny", "id"): "approvals",
    ("invite", "id"): "invitations",
    ("wait", "condition"): f"={' '.join(WAITS)}",
    ("send", "key"): f"={' '.join(KEYS)}",
    ("policy", "cwd"): "directories",
    ("machines", "machine"): "machines",
    ("signal", "signal"): f"={' '.join(SIGNALS)}",
}


# ---------------------------------------------------------------- the command


def completion_parser(p: ArgumentParser) -> None:
    p.add_argument("shell", nargs="?", choices=SHELLS, help="the shell to print it for")
    p.add_argument(
        "--names",
        choices=NAMED,
        metavar="WHAT",
        help=f"instead: what there is to complete, one in a line ({', '.join(NAMED)})",
    )
    p.epilog = (
        "example:\n  bash: source <(holdfast completion bash)\n  zsh:  source <(holdfast completion zsh)\n"
        "  fish: holdfast completion fish | source"
    )


def completion(args: Namespace) -> int:
    if args.names:
        for name in _names(args):
            print(name)
        return 0
    if args.shell is None:
        raise Usage("completion for which shell?", f"one of {', '.join(SHELLS)}")
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](), end="")
    return 0


def _names(args: Namespace) -> list[str]:
    from holdfast import home as homes
    from holdfast.client.link import Link
    from holdfast.faces.cli.connect import operator_name
    from holdfast.home import machines

    try:
        if args.names == "machines":
            return [machine.name for machine in machines.listing(homes.resolve(os.environ))]
        op, where, field = ASKED[args.names]
        found = Link(homes.resolve(os.environ), operator_name(args), autostart=False).request(op)[
            where
        ]
    except HoldfastError:
        return []
    return [str(one[field]) for one in found]


# ---------------------------------------------------------------- what may stand where


def options(name: str) -> list[Action]:
    return [a for a in parser(name)._actions if a.option_strings and not isinstance(a, _HelpAction)]


def _long(name: str) -> list[str]:
    return [s for a in options(name) for s in a.option_strings if s.startswith("--")]


def _valued(name: str) -> list[str]:
    return [s for a in options(name) if a.nargs != 0 for s in a.option_strings]


def source(name: str, action: Action) -> str:
    """What the value of this argument may be; empty if nobody can say."""
    if action.dest == "as_":
        return "operators"
    if action.dest == "rights":
        return "=" + " ".join((*rights.BUNDLES, *sorted(rights.RIGHTS)))
    if action.choices:
        return "=" + " ".join(map(str, action.choices))
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return BY_DEST.get((name, action.dest)) or BY_METAVAR.get(metavar, "")


def places(name: str) -> dict[str, str]:
    """By option, or by place among the words (a pattern for those that repeat): what may stand there."""
    found = {s: source(name, a) for a in options(name) if a.nargs != 0 for s in a.option_strings}
    if name == "log":
        return {
            k: v
            for k, v in {**found, "0": "sessions export verify", "1": "sessions files"}.items()
            if v
        }
    for place, action in enumerate(a for a in parser(name)._actions if not a.option_strings):
        found[
            "[0-9]*" if action.nargs in ("+", "*") and action.metavar == "SESSION" else str(place)
        ] = source(name, action)
    return {k: v for k, v in found.items() if v}


def _cases(line: str, indent: str) -> str:
    made = [
        indent + line.format(name=name, place=place, what=what)
        for name in COMMANDS
        for place, what in places(name).items()
    ]
    return "\n".join(made)


def _takes(what: str) -> list[str]:
    return [
        name
        for name in COMMANDS
        if any(
            not place.startswith("-") and what in one.split() for place, one in places(name).items()
        )
    ]


# ---------------------------------------------------------------- the shells


def _bash() -> str:
    known = "\n".join(
        f"        {name}) opts='{' '.join(_long(name))}' valued='{' '.join(_valued(name))}' ;;"
        for name in COMMANDS
    )
    return f"""# bash completion for holdfast
_holdfast() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} cmd= as= n=0 i word last= opts= valued= what= one found=
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${{COMP_WORDS[i]}}
    if [[ $last ]]; then
      [[ $last == --as ]] && as=$word
      last=
    elif [[ -z $cmd ]]; then
      case $word in
        --as) last=--as ;;
        -*) ;;
        *) cmd=$word ;;
      esac
      case $cmd in
{known}
      esac
    elif [[ $word == -- ]]; then
      return
    elif [[ " $valued " == *" $word "* ]]; then
      last=$word
    elif [[ $word != -* ]]; then
      n=$((n + 1))
    fi
  done
  if [[ -z $cmd && -z $last ]]; then
    COMPREPLY=( $(compgen -W '{" ".join(COMMANDS)} --help --version --as' -- "$cur") )
    return
  elif [[ -z $last && $cur == -* ]]; then
    COMPREPLY=( $(compgen -W "$opts" -- "$cur") )
    return
  fi
  case $cmd:${{last:-$n}} in
    :--as) what=operators ;;
{_cases("{name}:{place}) what='{what}' ;;", "    ")}
  esac
  if [[ $what == =* ]]; then
    COMPREPLY=( $(compgen -W "${{what#=}}" -- "$cur") )
    return
  fi
  for one in $what; do
    case $one in
      files) COMPREPLY+=( $(compgen -f -- "$cur") ) ;;
      directories) COMPREPLY+=( $(compgen -d -- "$cur") ) ;;
      {"|".join(NAMED)}) found="$found $(holdfast ${{as:+--as "$as"}} completion --names "$one" 2>/dev/null)" ;;
      *) found="$found $one" ;;
    esac
  done
  COMPREPLY+=( $(compgen -W "$found" -- "$cur") )
}}
complete -F _holdfast holdfast
"""


def _zsh() -> str:
    described = "\n".join(
        f"    '{name}:{c.summary.replace(chr(39), '')}'" for name, c in COMMANDS.items()
    )
    known = "\n".join(
        f"        {name}) opts=({' '.join(_long(name))}) valued=({' '.join(_valued(name))}) ;;"
        for name in COMMANDS
    )
    return f"""#compdef holdfast
_holdfast() {{
  local -a commands opts valued found
  local cmd= as= last= what= one= word=
  local -i n=0 i
  commands=(
{described}
  )
  for ((i = 2; i < CURRENT; i++)); do
    word=$words[i]
    if [[ -n $last ]]; then
      [[ $last == --as ]] && as=$word
      last=
    elif [[ -z $cmd ]]; then
      case $word in
        --as) last=--as ;;
        -*) ;;
        *) cmd=$word ;;
      esac
      case $cmd in
{known}
      esac
    elif [[ $word == -- ]]; then
      return
    elif (( ${{valued[(Ie)$word]}} )); then
      last=$word
    elif [[ $word != -* ]]; then
      n=$((n + 1))
    fi
  done
  if [[ -z $cmd && -z $last ]]; then
    _describe command commands
    return
  elif [[ -z $last && $words[CURRENT] == -* ]]; then
    compadd -- $opts
    return
  fi
  case $cmd:${{last:-$n}} in
    :--as) what=operators ;;
{_cases("{name}:{place}) what='{what}' ;;", "    ")}
  esac
  if [[ $what == "="* ]]; then
    found=(${{=what#=}})
    if [[ $last == --for ]]; then compadd -S '' -- $found; else compadd -- $found; fi
    return
  fi
  for one in ${{=what}}; do
    case $one in
      files) _files ;;
      directories) _files -/ ;;
      {"|".join(NAMED)}) found+=(${{(f)"$(holdfast ${{as:+--as}} ${{as:+$as}} completion --names $one 2>/dev/null)"}}) ;;
      *) found+=($one) ;;
    esac
  done
  (( $#found )) && compadd -- $found
}}
if [[ $funcstack[1] == _holdfast ]]; then
  _holdfast "$@"
else
  (( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit -u }}
  compdef _holdfast holdfast
fi
"""


def _fish() -> str:
    lines = [
        "# fish completion for holdfast",
        "function __holdfast_names; holdfast completion --names $argv[1] 2>/dev/null; end",
        "complete -c holdfast -f",
        "complete -c holdfast -n __fish_use_subcommand -l as -x -a '(__holdfast_names operators)'",
    ]
    for name, c in COMMANDS.items():
        lines.append(
            f"complete -c holdfast -n __fish_use_subcommand -a {name} -d '{c.summary.replace(chr(39), '')}'"
        )
        for action in options(name):
            for option in (s for s in action.option_strings if s.startswith("--")):
                needs = "" if action.nargs == 0 else _fish_values(source(name, action))
                about = (action.help or "").replace("'", "")
                lines.append(
                    f"complete -c holdfast -n '__fish_seen_subcommand_from {name}' -l {option[2:]}{needs} -d '{about}'"
                )
        words = [
            one[1:]
            for place, one in places(name).items()
            if one.startswith("=") and not place.startswith("-")
        ]
        if words:
            lines.append(
                f"complete -c holdfast -n '__fish_seen_subcommand_from {name}' -a '{' '.join(words)}'"
            )
    lines += [
        f"complete -c holdfast -n '__fish_seen_subcommand_from {' '.join(_takes(what))}' -a '(__holdfast_names {what})'"
        for what in NAMED
    ]
    lines.append(
        f"complete -c holdfast -n '__fish_seen_subcommand_from {' '.join(_takes('files'))}' -F"
    )
    return "\n".join(lines) + "\n"


def _fish_values(what: str) -> str:
    if what in ("files", "directories"):
        return " -r -F"
    return (
        f" -x -a '{what[1:]}'"
        if what.startswith("=")
        else f" -x -a '(__holdfast_names {what})'"
        if what
        else " -r"
    )
