"""Texts that only call programs. Pure.

A shell is a language of its own: arithmetic, subscripts, loops and expansions can run code that no
word of the text shows. A grant for certain commands therefore accepts only the constructs of PLAIN,
with exactly these fields. The names are those of shfmt's tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.model.words import names_of

Node = Mapping[str, Any]

_ANYWHERE: Final = names_of("Type Pos End")
# The fields of each construct. "" stands for the nodes without a type: statements, words,
# redirections, assignments, positions and comments.
PLAIN: Final = {
    name: _ANYWHERE | names_of(fields)
    for name, fields in {
        "": "Background Cmd Col Comments Cond Else FiPos Hash Hdoc Line N Name Negated Offset Op "
        "OpPos Parts Position Redirs Semicolon Text Then ThenPos Value ValueEnd ValuePos Word",
        "File": "Stmts Last",
        "BinaryCmd": "Op OpPos X Y",
        "Block": "Lbrace Rbrace Stmts",
        "CallExpr": "Args Assigns",
        "CmdSubst": "Backquotes Left Right Stmts",
        "DblQuoted": "Dollar Left Parts Right",
        "IfClause": "Cond Else FiPos Position Then ThenPos",
        "Lit": "Value ValueEnd ValuePos",
        "ParamExp": "Dollar Param Rbrace Short",
        "ProcSubst": "Op OpPos Rparen Stmts",
        "SglQuoted": "Dollar Left Right Value",
        "Subshell": "Lparen Rparen Stmts",
        "TimeClause": "Stmt Time",
    }.items()
}


def is_plain(tree: object) -> bool:
    """Say whether the text consists of calls of programs with plain words."""
    return all(
        node.keys() <= PLAIN.get(str(node.get("Type", "")), frozenset()) for node in _nodes(tree)
    )


def _nodes(tree: object) -> Iterator[Node]:
    stack = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
