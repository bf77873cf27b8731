"""The live shell of a session: how to start it, and how to run a single command in it.

A session's shell is the user's bash, zsh or POSIX sh. The host starts it so that it reads the
user's files and then reports by marks in the output (grammar: `core/session/shell_marks.py`): when
a prompt is shown, when a typed command starts, and exactly where the output of a `run` begins and
ends. No rc file is touched.

`prepare` changes the argv and environment of a shell before the start. `write_run` puts a command
where the shell will find it and returns the few bytes to type. `clear_run` removes that file.

This room imports no other room of the host.
"""

from holdfast.host.shell.directories import SessionDirectories
from holdfast.host.shell.launch import Launch, prepare
from holdfast.host.shell.run import ShellKind, clear_run, write_run

__all__ = ["Launch", "SessionDirectories", "ShellKind", "clear_run", "prepare", "write_run"]
