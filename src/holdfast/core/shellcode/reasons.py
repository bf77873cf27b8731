"""Reasons why the meaning of a command cannot be known from its text.

Policies name the codes. The sentences are for operators.
"""

from __future__ import annotations

from typing import Final, NamedTuple

CODES: Final[dict[str, str]] = {
    "parse": "the shell's grammar does not accept the text",
    "size": "the command is too large to analyse",
    "parser": "the parser failed",
    "control": "the command contains control characters or bytes that are not text",
    "shell": "the grammar of this shell is not supported",
    "depth": "the command is nested too deeply",
    "construct": "the command uses a construct that is not supported",
    "name": "the name of the program is known only at run time",
    "eval": "the command runs text that is known only at run time",
    "arithmetic": "the shell evaluates a value that is known only at run time",
    "code": "the command runs a program that is written in its arguments",
    "stdin": "the command runs its input as a program",
    "source": "the command runs a file in the shell itself",
    "elsewhere": "the command runs on another machine or in another root directory",
    "arguments": "the files that the command changes are known only at run time",
    "glob": "a pattern decides which files are destroyed",
    "place": "the directory of the command is not known",
    "redirect": "the file that the command writes is known only at run time",
    "shaping": "the command changes the meaning of later commands",
    "shadowed": "the name has another meaning in this shell",
    "recursion": "the function calls itself",
    "option": "an option is not known, so the words after it are not known either",
    "history": "the shell would replace a part of the line from its history",
    "keys": "the program that reads the keys decides what they do",
    "typed": "the program that reads the line decides what it means",
}


class Reason(NamedTuple):
    code: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{CODES[self.code]} ({self.detail})" if self.detail else CODES[self.code]
