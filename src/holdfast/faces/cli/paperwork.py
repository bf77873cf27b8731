"""Help, completion and the manual page, all made from the table of commands and their parsers: they cannot drift."""

from __future__ import annotations

import difflib
from argparse import Action, ArgumentParser, _HelpAction
from typing import TYPE_CHECKING

from holdfast import __version__
from holdfast.faces.cli.main import COMMANDS, parser

if TYPE_CHECKING:
    from argparse import Namespace

ONE_SENTENCE = "Holdfast keeps a live execution alive and shared: sessions that outlive every client, and the daemon itself."
TAKES_SESSION = ("attach", "rename", "end", "forget", "run", "send", "wait", "turn", "seize", "halt", "resume", "view", "read", "who", "log", "events")
WAITS = ("idle", "input", "secret", "exit", "command", "text:", "port:")


def overview() -> str:
    lines = [ONE_SENTENCE, "", "usage: holdfast [--as NAME] COMMAND ..."]
    for group in dict.fromkeys(c.group for c in COMMANDS.values()):
        lines += ["", f"{group}:"]
        lines += [f"  {name:<11} {c.summary}" for name, c in COMMANDS.items() if c.group == group]
    lines += ["", "`holdfast COMMAND --help` explains one, with an example. Reading commands have --json.",
              "Exit codes: 0 ok, 2 usage, 3 no such thing, 4 refused, 5 unavailable, 6 lost, 7 cannot be done here, 124 timed out."]
    return "\n".join(lines) + "\n"


def did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, 1)
    return f"; did you mean {close[0]}?" if close else ""


# ---------------------------------------------------------------- completion

def completion_parser(p: ArgumentParser) -> None:
    p.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to print it for")
    p.epilog = ("example:\n  bash: source <(holdfast completion bash)\n  zsh:  source <(holdfast completion zsh)\n"
                "  fish: holdfast completion fish | source")


def completion(args: Namespace) -> int:
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](), end="")
    return 0


def _options(name: str) -> list[Action]:
    return [a for a in parser(name)._actions if a.option_strings and not isinstance(a, _HelpAction)]


def _long(name: str) -> list[str]:
    return [s for a in _options(name) for s in a.option_strings if s.startswith("--")]


_NAMES = "holdfast ls --json 2>/dev/null | sed -e 's/}, {\"id\"/}\\n{\"id\"/g' | sed -n 's/.*\"id\": \"[^\"]*\", \"name\": \"\\([^\"]*\\)\".*/\\1/p'"


def _bash() -> str:
    cases = "\n".join(f"    {name}) words='{' '.join(_long(name))}' ;;" for name in COMMANDS)
    return f"""# bash completion for holdfast
_holdfast() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} cmd=${{COMP_WORDS[1]}} words=
  COMPREPLY=()
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=( $(compgen -W '{' '.join(COMMANDS)} --help --version --as' -- "$cur") )
    return
  fi
  case $prev in
    --for) COMPREPLY=( $(compgen -W '{' '.join(WAITS)}' -- "$cur") ); return ;;
    --format) COMPREPLY=( $(compgen -W 'text ansi json' -- "$cur") ); return ;;
    --cwd) COMPREPLY=( $(compgen -d -- "$cur") ); return ;;
  esac
  case $cmd in
{cases}
  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=( $(compgen -W "$words" -- "$cur") )
  elif [[ ' {' '.join(TAKES_SESSION)} ' == *" $cmd "* ]]; then
    COMPREPLY=( $(compgen -W "$({_NAMES})" -- "$cur") )
  elif [[ $cmd == completion ]]; then
    COMPREPLY=( $(compgen -W 'bash zsh fish' -- "$cur") )
  fi
}}
complete -F _holdfast holdfast
"""


def _zsh() -> str:
    described = "\n".join(f"    '{name}:{c.summary.replace(chr(39), '')}'" for name, c in COMMANDS.items())
    cases = "\n".join(f"    {name}) opts=({' '.join(_long(name))}) ;;" for name in COMMANDS)
    return f"""#compdef holdfast
_holdfast() {{
  local -a commands opts names
  commands=(
{described}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $words[CURRENT-1] in
    --for) compadd -S '' -- {' '.join(WAITS)}; return ;;
    --format) compadd -- text ansi json; return ;;
    --cwd) _files -/; return ;;
  esac
  case $words[2] in
{cases}
  esac
  if [[ $words[CURRENT] == -* ]]; then
    compadd -- $opts
  elif [[ $words[2] == completion ]]; then
    compadd -- bash zsh fish
  elif (( ${{${{(z):-{' '.join(TAKES_SESSION)}}}[(Ie)$words[2]]}} )); then
    names=(${{(f)"$({_NAMES})"}})
    compadd -- $names
  fi
}}
if [[ $funcstack[1] == _holdfast ]]; then
  _holdfast "$@"
else
  (( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit -u }}
  compdef _holdfast holdfast
fi
"""


def _fish() -> str:
    lines = ["# fish completion for holdfast", f"function __holdfast_names; {_NAMES}; end", "complete -c holdfast -f"]
    for name, c in COMMANDS.items():
        lines.append(f"complete -c holdfast -n __fish_use_subcommand -a {name} -d '{c.summary.replace(chr(39), '')}'")
        for action in _options(name):
            for option in (s for s in action.option_strings if s.startswith("--")):
                needs = "" if action.nargs == 0 else " -r"
                about = (action.help or "").replace("'", "")
                lines.append(f"complete -c holdfast -n '__fish_seen_subcommand_from {name}' -l {option[2:]}{needs} -d '{about}'")
    lines.append(f"complete -c holdfast -n '__fish_seen_subcommand_from {' '.join(TAKES_SESSION)}' -a '(__holdfast_names)'")
    lines.append(f"complete -c holdfast -n '__fish_seen_subcommand_from wait' -l for -x -a '{' '.join(WAITS)}'")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- man

def man_parser(p: ArgumentParser) -> None:
    p.epilog = "example:\n  holdfast man | man -l -"


def man(args: Namespace) -> int:
    print(manual(), end="")
    return 0


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


def manual() -> str:
    out = [f'.TH HOLDFAST 1 "" "holdfast {__version__}" "User Commands"', ".SH NAME", f"holdfast \\- {_roff('keep a live execution alive and shared')}",
           ".SH SYNOPSIS", ".B holdfast", "[\\-\\-as NAME] COMMAND ...", ".SH DESCRIPTION", _roff(ONE_SENTENCE),
           "A session holds a process tree, its terminal, open files and local sockets. Clients attach to it and leave; it goes on.",
           ".SH COMMANDS"]
    for name, command in COMMANDS.items():
        p = parser(name)
        usage = p.format_usage().split(None, 1)[1].replace("\n", " ")
        out += [".TP", f".B {_roff(' '.join(usage.split()))}", _roff((p.description or command.summary).capitalize() + ".")]
        out += ["Example:", f".I {_roff(command.example)}"]
        for a in _options(name):
            if a.help:
                out += [".br", f".B {_roff(', '.join(a.option_strings))}{' ' + _roff(str(a.metavar)) if a.metavar else ''}", _roff(a.help)]
    out += [".SH KEYS WHILE ATTACHED", "The prefix key is C\\-\\e (option attach.prefix). After it:", ".TP", ".B d", "detach", ".TP", ".B ?", "help",
            ".TP", ".B s", "choose another session (n, p: next, previous; l: the last one)", ".TP", ".B t", "take the turn, whoever has it (g, x: give it to who asks, refuse)", ".TP", ".B H", "halt everything (R: resume)", ".TP", ".B r", "redraw",
            ".TP", ".B C\\-z", "suspend attach itself",
            ".SH EXIT STATUS",
            "0 ok; 2 usage; 3 no such thing; 4 refused; 5 unavailable; 6 lost (output rolled off); 7 cannot be done here; 124 timed out. "
            "\n.B run\nexits with the command's own code, 255 if there is none.",
            ".SH ENVIRONMENT", ".TP", ".B HOLDFAST_HOME", "all state and sockets of one installation", ".TP", ".B HOLDFAST_AS", "identity to act as",
            ".TP", ".B HOLDFAST_SESSION", "set inside a session: its id", ".SH FILES", ".TP", ".I ~/.config/holdfast/config.toml",
            "configuration; `holdfast config show` explains each option", ".TP", ".I ~/.local/state/holdfast", "state and sockets"]
    return "\n".join(out) + "\n"
