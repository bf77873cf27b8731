"""A question for approval: the lines that a person reads before deciding, and the signed answer.

`holdfast approve` and `attach` show the same lines and sign the same bytes: the question's id, the
binding that came with the shown question, and the answer. The binding is a digest. Before the
question is shown and before an approval is signed, the client computes the digest again from the
shown facts, so that a host cannot show one act and have another signed. A denial lets nothing
happen, so it needs no such check and is possible with a partial view.
"""

from __future__ import annotations

from holdfast.model.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.client.link import Link
    from holdfast.core.policy.approvals import Answer
    from holdfast.model.jsontext import Json

BLANKS_MAX = 8  # blanks in a row that are shown as they are
TYPED = ("run", "line", "paste", "exec", "keys")  # acts that happen in a directory


def lines(p: Json) -> list[str]:
    """All details of the act that is to be decided.

    The host has escaped the text of the act. Characters that could still control the terminal or
    reorder the text are escaped here, and so are long runs of blanks: they would push the rest of a
    text out of sight. The directory is quoted: code in the session may have chosen its name.
    """
    from shlex import quote

    from holdfast.core.people.scope import span
    from holdfast.core.policy.shown import foreign

    where = (
        f"session {p['name'] or p['session']}" + (f" ({p['layout']})" if p["layout"] else "")
        if p["session"]
        else "this machine"
    )
    directory = f", in {quote(p['cwd'])}" if p["cwd"] else ""
    if not directory and p["act"] in TYPED:
        directory = ", in a directory that is not known"
    others = f"approved by {', '.join(p['given'])}; " if p["given"] else ""
    found = [
        f"{p['operator']} asks to {p['act']} on {where}{directory}",
        "",
        f"  {p['text']}",
        "",
        f"because {p['because']} (rule {p['rule']!a})",
        f"{others}{p['needed'] - len(p['given'])} of {p['needed']} still needed, "
        f"{span(p['expires_in'])} left",
    ]
    if p.get("shaped"):
        found.insert(5, f"it runs on {', '.join(p['shaped'])}")
    if foreign(p["text"]):
        found.insert(3, "  (it has letters of other alphabets, which may look like those you know)")
    if p.get("caution"):
        found[:0] = [p["caution"], ""]
    return [_in_order(printable(_visible_blanks(line))) for line in found]


def _in_order(line: str) -> str:
    """Write letters and digits that run from right to left as `\\u{...}`.

    Terminals reorder the words between them: of `mv A B` with Hebrew names A and B, some show B
    first.
    """
    from unicodedata import bidirectional

    if line.isascii():
        return line
    return "".join(
        f"\\u{{{ord(c):x}}}" if bidirectional(c) in ("R", "AL", "AN") else c for c in line
    )


def _visible_blanks(line: str) -> str:
    """Write a run of more than BLANKS_MAX blanks as `\\u{20*N}`. The indent of the act stays.

    No act looks like that by itself, because the host writes a backslash before `u{` as `\\u{5c}`.
    """
    import re

    indent = "  " if line.startswith("  ") else ""
    rest = line[len(indent) :]
    return indent + re.sub(f" {{{BLANKS_MAX + 1},}}", lambda run: f"\\u{{20*{len(run[0])}}}", rest)


def own(p: Json, operator: str) -> bool:
    """Whether this operator asked the question, and so can withdraw but not deny the act."""
    return bool(p["operator"] == operator)


def fault(p: Json) -> str:
    """Say why the shown facts are not those that the binding covers; empty if they are."""
    from holdfast.core.policy.approvals import Binding, Evidence, discrepancy

    if (b := p.get("bound")) is None:
        return ""
    try:
        binding = Binding(
            p["session"],
            b["epoch"],
            p["operator"],
            p["key"],
            p["act"],
            b["commitment"],
            p["cwd"] or "",
            b["policy"],
            b["state"],
        )
        known = Evidence(b["content"], b["details"], tuple(b["state_facts"]))
        return discrepancy(binding, p["binding"], p["text"], known)
    except (ValueError, KeyError, TypeError, AttributeError):
        return "the facts cannot be read"


def obstacle(p: Json) -> tuple[str, str] | None:
    """Why an approval of this user is of no use, and how to recover; None if it is."""
    if not p["counts"]:
        return f"your approval would not count: {p['why_not']}", p["recover"]
    if p.get("bound") is None:
        return (
            "the host does not send the facts that your signature would cover",
            "its release is older, or the question is: update the host (`holdfast up`), "
            "and have the act asked for again",
        )
    return None


def check(p: Json) -> None:
    """Raise PeerFault if the question is not what its binding covers."""
    from holdfast.model.errors import PeerFault

    if why := fault(p):
        raise PeerFault(
            f"the host shows another act than the one to be signed: {why}",
            "decide nothing through this host, and find out who runs it",
        )


def answer(link: Link, p: Json, what: Answer) -> Json:
    """The request that decides the shown question; an approval after a check of its digest."""
    from holdfast.model.errors import GateRefused

    if what == "approve":
        check(p)
        if p.get("bound") is None and (why := obstacle(p)) is not None:
            raise GateRefused(*why)
    return signed(link, p, what)


def signed(link: Link, p: Json, what: Answer) -> Json:
    """The request that decides a question, signed with the link's own key."""
    from holdfast.core.policy.approvals import DOMAIN, statement

    signature = link.sign(
        DOMAIN, lambda key: statement(p["id"], p["binding"], key, what, p["expires"])
    )
    return {"op": what, "id": p["id"], "binding": p["binding"], "signature": signature}
