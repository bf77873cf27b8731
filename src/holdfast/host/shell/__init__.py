"""The live shell of a session: how it is started and how one discrete command is run in it.

A session's shell is the user's own bash, zsh or POSIX sh, started so that it reads the user's own files
and then reports, by marks in its output (`core/commands.py` has their grammar), when it shows a prompt,
when a typed command starts, and exactly where the output of a `run` begins and ends. No rc file is
touched.

`prepare` changes the argv and environment of a shell that is about to be started. `write_run` puts a
command where the shell will find it and returns the few bytes to type. `clear_run` removes it afterwards.
"""

from holdfast.host.shell.launch import Launch, prepare
from holdfast.host.shell.run import ShellKind, clear_run, write_run

__all__ = ["Launch", "ShellKind", "clear_run", "prepare", "write_run"]
