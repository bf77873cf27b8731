"""Why the meaning of a command cannot be known from its text. The codes are what a policy may name; the sentences are for people."""

from __future__ import annotations

from typing import Final, NamedTuple

CODES: Final[dict[str, str]] = {
    "parse": "the shell's grammar does not accept it",
    "size": "it is too large to be looked at",
    "parser": "it could not be looked at",
    "control": "it has control characters or bytes that are no text",
    "shell": "this shell's grammar is not known",
    "depth": "it is nested too deeply",
    "construct": "it uses a construct that is not known",
    "name": "the name of the command is only known when it runs",
    "eval": "it runs text that is only known when it runs",
    "code": "it runs a program that is written in its arguments",
    "stdin": "it runs what it reads",
    "source": "it runs a file in the shell itself",
    "elsewhere": "it runs on another machine or in another root directory",
    "arguments": "what it changes is only known when it runs",
    "glob": "a pattern decides what it destroys",
    "place": "the directory it works in is not known",
    "redirect": "the file it writes to is only known when it runs",
    "shaping": "it changes what later commands mean",
    "shadowed": "its name stands for something else in this shell",
    "recursion": "it calls itself",
    "option": "an option is not known, so neither is what follows it",
    "history": "the shell would replace a part of it from its history",
    "keys": "keys do what the program that reads them makes of them",
    "typed": "the program that reads it decides what it means",
}


class Reason(NamedTuple):
    code: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{CODES[self.code]} ({self.detail})" if self.detail else CODES[self.code]
