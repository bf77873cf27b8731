"""Puts the text of a `run` where the live shell finds it, and returns the bytes to type.

The text is never typed: a terminal in canonical mode silently drops bytes beyond 4095 of a line,
and an editor may complete, expand or indent input. Only TRIGGER is typed; `$_hf` names the file
written here. `.` runs the file at the shell's top level, so the text's `cd`, variables, `declare`,
aliases and jobs are those of the live shell, and stdin is the terminal. TRIGGER starts with a space
(many people keep such lines out of the history) and quotes the dot, so that no alias is meant.

The file has three parts; the hooks (`bash.rc`, `zsh.rc`, `posix.sh`) define the outer two. Begin
shows the text to all viewers and ends with mark R; then comes the text; end starts with mark D. The
text is the argument of `eval`, so that a syntax error, an open quote or an unfinished heredoc
cannot swallow the end. If the text is cut short (Ctrl-C, `return`, an expansion error), zsh's
`always` still reaches the end. In bash and dash the mark P of the next prompt closes the run, so no
hook has to remember an open run.

A run that reads its client's input has a redirection from a FIFO behind `eval`. The bytes do not
pass the terminal, which would echo, edit and cut them. The FIFO needs no right to write in the
session's tree. If the host dies, the command reads the end of the input; the client then reports
that the input was cut off.

The terminal echoes the trigger on the prompt's line. Before begin shows the text, it moves up to
that line and erases it: people see `run> git status` instead of a prompt with the trigger
(docs/reference/shells.md says when it stays). Output in front of the prompt is not erased.

Why `eval` and not a second `.`: messages then contain no path of Holdfast's ("bash: eval: line 2:
..."), and two files cannot get out of step. Exception: zsh with several lines. Its `eval` parses
all lines before running the first, so an alias or option set in one line would not hold in the
next; there the text is a file.

Why `.` and not a typed `eval`: `return` then ends the text, where dash would end the shell and bash
complain. Differences to a typed line: bash announces no job number; a DEBUG trap neither fires
inside nor can be removed there; zsh numbers jobs from 4, because the nesting takes slots; $_ is not
kept beyond the run; under `set -e` a text that ends in a tolerated failure (`! true`) ends the
shell, because `eval` passes the status on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import Literal

from holdfast.core.session.shell_marks import RUN_ID
from holdfast.host.shell.directories import SessionDirectories
from holdfast.host.shell.files import encoded, quoted, write_private
from holdfast.model.errors import Usage

ShellKind = Literal["bash", "zsh", "posix"]

TRIGGER = b' \\. "$_hf"\r'
RUN = "run"  # the file that the trigger names
TEXT = "text"  # the text of the run alone, for a text of several lines in zsh
STDIN = "stdin"  # a FIFO: the input of a run that reads its client's input
BASH_LAST = "last"  # bash writes the last history entry here, to read it without a fork

ERASE = "\x1b[A\x1b[K"  # moves one line up and erases that line
ROWS_MAX = 8  # of a prompt and the trigger, in a very narrow terminal
SHOWN_LINES = 4  # of the text, for all viewers: enough to recognise, never a screenful
SHOWN_CHARS = 160  # of each line
REMEMBERED_CHARS = 4096  # for the history; a longer line could not have been typed either
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)


def rows_of_trigger(column: int, cols: int) -> int:
    """How many lines of the terminal the trigger takes if the prompt ends at that column."""
    return min(1 + (column + len(TRIGGER) - 2) // max(cols, 1), ROWS_MAX)


def write_run(
    directories: SessionDirectories,
    kind: ShellKind,
    run_id: str,
    text: str,
    rows: int = 1,
    kept: int = 0,
    stdin: bool = False,
) -> bytes:
    """Writes the command for the shell; returns the bytes to type at the empty prompt.

    `rows`: how many lines of the screen the typed bytes will take; 0: they stay there. `kept`:
    columns of unfinished output in front of the prompt, which stay there. `stdin`: the text reads
    the FIFO of `open_stdin` instead of the terminal. The caller has made sure that no other run is
    open. The text stays in its file until `clear_run` or the next run.
    """
    if not RUN_ID.fullmatch(run_id):
        raise Usage("a run id is up to 64 letters, digits, '.', '_' and '-'")
    text = text.rstrip("\n")
    single = "\n" not in text
    arguments = _arguments(text, rows, kept)
    remembered = text if single and len(text) <= REMEMBERED_CHARS else ""
    source = _make_stdin(directories) if stdin else ""
    if kind == "bash":
        script = _bash(run_id, remembered, quoted(text) + source, arguments)
    elif kind == "posix":
        script = _posix(run_id, quoted(text) + source, arguments)
    elif single:
        command = f'\\eval "${{_hfs[prefix]}}"{quoted(text)}{source}'
        script = _zsh(run_id, remembered, arguments, command)
    else:
        quoted(text)  # raises Usage for a NUL byte
        whole = encoded(f'\\eval "${{_hfs[prefix]}}"; {text}\n')
        write_private(directories.readable / TEXT, whole)
        inside = quoted(str(directories.readable_inside / TEXT))
        script = _zsh(run_id, remembered, arguments, f"\\builtin . {inside}{source}")
    write_private(directories.readable / RUN, encoded(script))
    return TRIGGER


def _make_stdin(directories: SessionDirectories) -> str:
    """Makes the FIFO of a run; returns the redirection that opens it."""
    clear_stdin(directories)
    os.mkfifo(directories.readable / STDIN, 0o600)
    return f" <{quoted(str(directories.readable_inside / STDIN))}"


def open_stdin(directories: SessionDirectories) -> int | None:
    """The end to write to; None while the shell has not opened the other end.

    The shell waits in its own `open` for this one, so no byte is written without a reader.
    """
    try:
        return os.open(
            directories.readable / STDIN,
            os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW,
        )
    except OSError as e:
        if e.errno == errno.ENXIO:
            return None
        raise


def clear_stdin(directories: SessionDirectories) -> None:
    """Removes the FIFO of a run, and releases a shell that waits in its `open` of it."""
    with contextlib.suppress(OSError):
        if (fd := open_stdin(directories)) is not None:
            os.close(fd)
    with contextlib.suppress(OSError):
        (directories.readable / STDIN).unlink()


def clear_run(directories: SessionDirectories) -> None:
    """Removes the text of the last run after its end. A shell that still reads it can go on."""
    for name in (RUN, TEXT):
        (directories.readable / name).unlink(missing_ok=True)
    clear_stdin(directories)
    with contextlib.suppress(OSError):  # a program may have put a directory there
        (directories.writable / BASH_LAST).unlink()


# Each script is a single line, so that line numbers in messages are those of the text. Also, after
# an open quote in an `eval`, bash no longer sees a `{` that begins the next line.


def _bash(run_id: str, remembered: str, command: str, arguments: str) -> str:
    return (
        f'{{ _hf_begin "$?" {run_id} {quoted(remembered)} {arguments} "$_"; }} 3>&2 2>/dev/null; '
        f'\\eval "${{_hfs[prefix]}}"{command}; '
        f'{{ _hf_end "$?" {run_id}; }} 3>&2 2>/dev/null\n'
    )


def _posix(run_id: str, command: str, arguments: str) -> str:
    return (
        f'{{ _hf_begin "$?" {run_id} {arguments}; }} 2>/dev/null; '
        f'\\eval "$_hf_prefix"{command}; '
        f'{{ _hf_end "$?" {run_id}; }} 3>&2 2>/dev/null\n'
    )


def _zsh(run_id: str, remembered: str, arguments: str, command: str) -> str:
    # XTRACE is local to every zsh function, so the pause in tracing is written out here.
    return (
        f'{{ _hf_begin "$?" {quoted(remembered)}; if [[ -o xtrace ]]; then _hfs[xtrace]=1; '
        f"_hfs[prefix]='_hfs[xtrace]=; set -x; '; set +x; fi; _hf_go {run_id} {arguments}; }} "
        "2>/dev/null; "
        f'{{ {command}; }} always {{ {{ _hf_end "$?" {run_id}; if [[ -n ${{_hfs[xtrace]}} ]]; '
        "then _hfs[xtrace]=; set -x; fi; } 2>/dev/null; }\n"
    )


def _arguments(text: str, rows: int, kept: int) -> str:
    """The lines to show. They begin with the erasure of the trigger and the prompt."""
    first, *others = shown(text)
    if rows and kept:  # the line of the unfinished output ends, and the text has the next line
        lines = [ERASE * (rows - 1) + f"\x1b[A\x1b[{kept + 1}G\x1b[K", first, *others]
    else:
        lines = [ERASE * rows + first, *others]
    return " ".join(quoted(line) for line in lines)


def shown(text: str) -> list[str]:
    """The first lines of the text for viewers, without control characters."""
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
