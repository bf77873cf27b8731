"""Completion for bash, zsh and fish, made from the table of commands and the parsers.

The scripts get the names of sessions, operators, approvals and invitations from the host with
`completion --names`. That command runs while a person types, so the command starts no host, asks
for no passphrase and prints no errors.
"""

from __future__ import annotations

import os
import re
from argparse import Action, _HelpAction
from typing import TYPE_CHECKING

from holdfast.core.contract.output import CONDITIONS
from holdfast.faces.cli.main import COMMANDS, parser
from holdfast.model import rights
from holdfast.model.errors import HoldfastError, Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

SHELLS = ("bash", "zsh", "fish")
WAITS = " ".join(re.sub(":.*", ":", one) for one in CONDITIONS)
KEYS = "Enter Escape Tab Up Down Left Right Home End PageUp PageDown BSpace C-c C-d C-z C-l"
SIGNALS = "TERM KILL INT HUP QUIT STOP CONT USR1 USR2 WINCH"
# Kind of name -> the request, the field of the answer, the field of each entry.
ASKED = {
    "sessions": ("ls", "sessions", "name"),
    "operators": ("operator.ls", "operators", "name"),
    "approvals": ("approvals", "approvals", "id"),
    "invitations": ("invite.ls", "invitations", "id"),
    "devices": ("device.ls", "devices", "name"),
}
NAMED = (*ASKED, "machines")  # machines are known locally, without a host
# The shell code that asks for the names of a kind.
_BASH_NAMES = '$(holdfast ${as:+--as "$as"} completion --names "$one" 2>/dev/null)'
_ZSH_NAMES = "$(holdfast ${as:+--as} ${as:+$as} completion --names $one 2>/dev/null)"
# The kind of a word: a member of NAMED, `files`, `directories`, or `=` and the possible words. The
# metavar decides, unless the command says otherwise.
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
    ("wait", "condition"): f"={WAITS}",
    ("send", "key"): f"={KEYS}",
    ("policy", "cwd"): "directories",
    ("machines", "machine"): "machines",
    ("signal", "signal"): f"={SIGNALS}",
}


# ---------------------------------------------------------------- the command


def completion_parser(p: ArgumentParser) -> None:
    p.add_argument("shell", nargs="?", choices=SHELLS, help="the shell to print the script for")
    p.add_argument(
        "--names",
        choices=NAMED,
        metavar="WHAT",
        help=f"print completion candidates instead, one per line ({', '.join(NAMED)})",
    )
    p.epilog = (
        "example:\n"
        "  bash: source <(holdfast completion bash)\n"
        "  zsh:  source <(holdfast completion zsh)\n"
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
        link = Link(homes.resolve(os.environ), operator_name(args), autostart=False)
        found = link.request(op)[where]
    except HoldfastError:
        return []
    return [str(one[field]) for one in found]


# ---------------------------------------------------------------- kinds of words by position


def options(name: str) -> list[Action]:
    return [a for a in parser(name)._actions if a.option_strings and not isinstance(a, _HelpAction)]


def _long(name: str) -> list[str]:
    return [s for a in options(name) for s in a.option_strings if s.startswith("--")]


def _valued(name: str) -> list[str]:
    return [s for a in options(name) if a.nargs != 0 for s in a.option_strings]


def source(name: str, action: Action) -> str:
    """The kind of value that this argument takes; empty if unknown."""
    if action.dest == "as_":
        return "operators"
    if action.dest == "rights":
        return "=" + " ".join((*rights.BUNDLES, *sorted(rights.RIGHTS)))
    if action.choices:
        return "=" + " ".join(map(str, action.choices))
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return BY_DEST.get((name, action.dest)) or BY_METAVAR.get(metavar, "")


def places(name: str) -> dict[str, str]:
    """The kind of value by option, or by position among the words (repeated: a pattern)."""
    found = {s: source(name, a) for a in options(name) if a.nargs != 0 for s in a.option_strings}
    words = [a for a in parser(name)._actions if not a.option_strings]
    if name == "log":
        words, found["0"], found["1"] = [], "sessions export verify", "sessions files"
    for place, action in enumerate(words):
        several = action.nargs in ("+", "*") and action.metavar == "SESSION"
        found["[0-9]*" if several else str(place)] = source(name, action)
    return {k: v for k, v in found.items() if v}


def _cases() -> str:
    """The lines of a shell's `case` that give the kind of a word."""
    return "\n".join(
        f"    {name}:{place}) what='{what}' ;;"
        for name in COMMANDS
        for place, what in places(name).items()
    )


def _takes(what: str) -> list[str]:
    def given(name: str) -> list[str]:
        return [w for place, w in places(name).items() if not place.startswith("-")]

    return [name for name in COMMANDS if any(what in one.split() for one in given(name))]


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
{_cases()}
  esac
  if [[ $what == =* ]]; then
    COMPREPLY=( $(compgen -W "${{what#=}}" -- "$cur") )
    return
  fi
  for one in $what; do
    case $one in
      files) COMPREPLY+=( $(compgen -f -- "$cur") ) ;;
      directories) COMPREPLY+=( $(compgen -d -- "$cur") ) ;;
      {"|".join(NAMED)}) found="$found {_BASH_NAMES}" ;;
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
{_cases()}
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
      {"|".join(NAMED)}) found+=(${{(f)"{_ZSH_NAMES}"}}) ;;
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
        summary = c.summary.replace("'", "")
        lines.append(f"complete -c holdfast -n __fish_use_subcommand -a {name} -d '{summary}'")
        for action in options(name):
            for option in (s for s in action.option_strings if s.startswith("--")):
                needs = "" if action.nargs == 0 else _fish_values(source(name, action))
                about = (action.help or "").replace("'", "")
                lines.append(
                    f"complete -c holdfast -n '__fish_seen_subcommand_from {name}' "
                    f"-l {option[2:]}{needs} -d '{about}'"
                )
        words = [
            one[1:]
            for place, one in places(name).items()
            if one.startswith("=") and not place.startswith("-")
        ]
        if words:
            lines.append(
                f"complete -c holdfast -n '__fish_seen_subcommand_from {name}' "
                f"-a '{' '.join(words)}'"
            )
    lines += [
        f"complete -c holdfast -n '__fish_seen_subcommand_from {' '.join(_takes(what))}' "
        f"-a '(__holdfast_names {what})'"
        for what in NAMED
    ]
    lines.append(
        f"complete -c holdfast -n '__fish_seen_subcommand_from {' '.join(_takes('files'))}' -F"
    )
    return "\n".join(lines) + "\n"


def _fish_values(what: str) -> str:
    if what in ("files", "directories"):
        return " -r -F"
    if not what:
        return " -r"
    return f" -x -a '{what[1:]}'" if what[0] == "=" else f" -x -a '(__holdfast_names {what})'"
