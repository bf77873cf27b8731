"""Tells texts that start exactly one program, so that its exit code is the code of the text."""

from __future__ import annotations

import re
from typing import Final

# Words without expansions, operators, patterns and comments; quoted words without expansions.
_WORD = re.compile(r"""(?:[A-Za-z0-9_./@%+=:,-]|'[^'\n]*'|"[^"$`\\!\n]*")+""")
_WORDS = re.compile(rf"[ \t]*{_WORD.pattern}(?:[ \t]+{_WORD.pattern})*[ \t]*\n?")
_SET = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
_NAME = re.compile(r"[A-Za-z0-9_./@%+,-]+")

# Reserved words and builtins of bash, zsh and POSIX shells.
_OF_SHELLS: Final = """
! - . : [ [[ ]] { } alias autoload bg bind bindkey break builtin bye caller case cd chdir command
compadd comparguments compcall compctl compdescribe compfiles compgen compgroups complete compopt
compquote compset comptags comptry compvalues continue coproc declare dirs disable disown do done
echo echotc echoti elif else emulate enable end esac eval exec exit export false fc fg fi float for
foreach function functions getln getopts hash help history if in integer jobs kill let limit local
log logout mapfile nocorrect noglob popd print printf private pushd pushln pwd r read readarray
readonly rehash repeat return sched select set setopt shift shopt source suspend test then time
times trap true ttyctl type typeset ulimit umask unalias unfunction unhash unlimit unset unsetopt
until vared wait whence where which while zcompile zformat zle zmodload zparseopts zregexparse
zstyle
"""
OF_SHELLS: Final = frozenset(_OF_SHELLS.split())


def one_program(text: str) -> str | None:
    """The name of the program, if the text is a plain call of one program; None if it may not be.

    The caller makes sure that the name is neither an alias nor a function.
    """
    if _WORDS.fullmatch(text) is None:
        return None
    words = [word for word in _WORD.findall(text) if not _SET.fullmatch(word)]
    name = words[0] if words else ""
    return name if _NAME.fullmatch(name) and name not in OF_SHELLS else None
