"""Puts the text of a `run` where the live shell finds it, and says what to type.

Text is never typed: a terminal in canonical mode silently drops what exceeds 4095 bytes of a line, and an
editor may complete, expand or indent what it is given. Only TRIGGER is typed; `$_hf` names the file
written here. `.` runs it at the shell's top level, so the text's `cd`, variables, `declare`, aliases and
jobs are those of the live shell, and its stdin is the terminal. TRIGGER starts with a space (many keep
such lines out of the history) and quotes the dot, so that nobody's alias is meant.

The file has three parts, the outer two defined by the hooks (`bash.rc`, `zsh.rc`, `posix.sh`): begin
shows to all viewers what is about to run and ends with mark R; the text; end starts with mark D. The text
is the argument of `eval`, so that a syntax error, an open quote or an unfinished heredoc in it cannot
swallow the end. If the text is cut short anyhow (Ctrl-C, `return`, an expansion error), zsh's `always`
still reaches the end; in bash and dash the mark P of the next prompt closes the run, which is why no hook
has to remember that one is open.

The trigger itself was echoed on the prompt's line. Before begin shows the text it goes up to that line and erases it, so that what people
see is `run> git status` instead of a prompt with something that nobody typed (docs/shells.md says when it stays).

`eval` rather than a second `.`: messages then have no path of ours in them ("bash: eval: line 2: ..."),
and one file cannot be torn from the other. Except zsh and more than one line: its `eval` parses
everything before it runs anything, so an alias or option set in one line would not hold in the next;
there the text is a file.

`.` rather than a typed `eval`: `return` then ends the text, where dash would end the shell and bash
complain. What `.` and `eval` make different from a typed line: bash announces no job number, and a DEBUG
trap neither fires inside nor can be removed there; zsh numbers jobs from 4, because the nesting takes
slots; $_ is not kept beyond the run; under `set -e` a text that ends in a tolerated failure (`! true`)
ends the shell, because `eval` hands the status on.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from holdfast.core.commands import RUN_ID
from holdfast.host.shell.files import encoded, quoted, write_private
from holdfast.model.errors import Usage

ShellKind = Literal["bash", "zsh", "posix"]

TRIGGER = b' \\. "$_hf"\r'
RUN = "run"  # the file that the trigger names
TEXT = "text"  # zsh, several lines: the text by itself
BASH_LAST = "last"  # bash writes the last history entry here to look at it without a fork

ERASE = "\x1b[A\x1b[K"  # one line up, and away with what is on it
ROWS_MAX = 8  # of a prompt and the trigger, in a very narrow terminal
SHOWN_LINES = 4  # of the text, to all viewers: enough to recognise it, never a screenful
SHOWN_CHARS = 160  # of each line
REMEMBERED_CHARS = 4096  # a longer line could not have been typed either
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)


def rows_of_trigger(column: int, cols: int) -> int:
    """How many lines of the terminal the trigger takes if the prompt ends at that column."""
    return min(1 + (column + len(TRIGGER) - 2) // max(cols, 1), ROWS_MAX)


def write_run(directory: Path, kind: ShellKind, run_id: str, text: str, rows: int = 1) -> bytes:
    """Writes the command for the shell and returns the bytes to type at its empty prompt. `rows`: how many lines of the screen they will take.

    The caller has seen to it that no other run is open. The text stays in the directory until `clear_run` or
    the next run.
    """
    if not RUN_ID.fullmatch(run_id):
        raise Usage("a run id is up to 64 letters, digits, '.', '_' and '-'")
    text = text.rstrip("\n")
    single = "\n" not in text
    remembered = text if single and len(text) <= REMEMBERED_CHARS else ""
    if kind == "bash":
        script = _bash(run_id, text, remembered, rows)
    elif kind == "posix":
        script = _posix(run_id, text, rows)
    elif single:
        script = _zsh(run_id, text, remembered, rows, f'\\eval "${{_hfs[prefix]}}"{quoted(text)}')
    else:
        quoted(text)  # the same refusal of NUL
        write_private(directory / TEXT, encoded(f'\\eval "${{_hfs[prefix]}}"; {text}\n'))
        script = _zsh(
            run_id, text, remembered, rows, f"\\builtin . {quoted(str(directory / TEXT))}"
        )
    write_private(directory / RUN, encoded(script))
    return TRIGGER


def clear_run(directory: Path) -> None:
    """Removes the text of the last run; for when it is done. (A shell that still reads it keeps reading.)"""
    for name in (RUN, TEXT, BASH_LAST):
        (directory / name).unlink(missing_ok=True)


# Each script is one line, so that line numbers in messages are those of the text; and bash, after an open
# quote in an `eval`, no longer sees a `{` that begins the next line.


def _bash(run_id: str, text: str, remembered: str, rows: int) -> str:
    return (
        f'{{ _hf_begin "$?" {run_id} {quoted(remembered)} {_arguments(text, rows)} "$_"; }} 3>&2 2>/dev/null; '
        f'\\eval "${{_hfs[prefix]}}"{quoted(text)}; '
        f'{{ _hf_end "$?" {run_id}; }} 3>&2 2>/dev/null\n'
    )


def _posix(run_id: str, text: str, rows: int) -> str:
    return (
        f'{{ _hf_begin "$?" {run_id} {_arguments(text, rows)}; }} 2>/dev/null; '
        f'\\eval "$_hf_prefix"{quoted(text)}; '
        f'{{ _hf_end "$?" {run_id}; }} 3>&2 2>/dev/null\n'
    )


def _zsh(run_id: str, text: str, remembered: str, rows: int, command: str) -> str:
    # XTRACE is local to every zsh function, so the pause in tracing is written out here.
    return (
        f'{{ _hf_begin "$?" {quoted(remembered)}; if [[ -o xtrace ]]; then _hfs[xtrace]=1; '
        f"_hfs[prefix]='_hfs[xtrace]=; set -x; '; set +x; fi; _hf_go {run_id} {_arguments(text, rows)}; }} "
        "2>/dev/null; "
        f'{{ {command}; }} always {{ {{ _hf_end "$?" {run_id}; if [[ -n ${{_hfs[xtrace]}} ]]; '
        "then _hfs[xtrace]=; set -x; fi; } 2>/dev/null; }\n"
    )


def _arguments(text: str, rows: int) -> str:
    first, *others = shown(text)
    return " ".join(quoted(line) for line in (ERASE * rows + first, *others))


def shown(text: str) -> list[str]:
    """What viewers see of the text before its output: its first lines, with nothing in them that acts."""
    lines = text.split("\n")
    kept = [_visible(line) for line in lines[:SHOWN_LINES]]
    if len(lines) > SHOWN_LINES:
        kept.append(f"... {len(lines) - SHOWN_LINES} more lines")
    return [f"{'run>' if number == 0 else '   >'} {line}" for number, line in enumerate(kept)]


def _visible(line: str) -> str:
    cut = line[:SHOWN_CHARS]
    return _CONTROL.sub(
        lambda found: (
            f"\\x{ord(found[0]) & 0xFF:02x}"
            if ord(found[0]) < 0xA0 or 0xDC80 <= ord(found[0]) <= 0xDCFF
            else f"\\u{ord(found[0]):04x}"
        ),
        cut.replace("\t", "    "),
    ) + ("..." if len(line) > SHOWN_CHARS else "")
