"""Approvals: acts that wait for the decision of a second operator."""

from __future__ import annotations

from holdfast.core.contract.message import message


@message
class Approvals:
    """`follow`: the list again after every change."""

    session: str | None = None
    id: str | None = None
    follow: bool = False


@message
class Bound:
    """Facts from which a client computes `binding` again, with those of the question.

    `content`: the exact bytes, in hex. `state_facts`: a text for each fingerprint in `state`; empty
    if they are too long.
    """

    epoch: int
    content: str
    details: dict[str, str]
    commitment: str
    policy: str
    state: str
    state_facts: tuple[str, ...]


@message
class Question:
    """An act that waits. `counts`: whether an approval by the caller would count.

    `bound`: null if the text is not whole, or if an earlier release asked the question.
    `caution`: what to know before the text is read: the command reads more, or the text can be
    exchanged. `key`: the key of the client that asks; empty for `exec`, where a program asks and no
    client does.
    `layout`: of the session, or of the one that a `new` makes.
    """

    id: str
    caution: str | None
    operator: str
    key: str
    session: str
    name: str
    act: str
    text: str
    whole: bool
    cwd: str | None
    because: str
    shaped: tuple[object, ...]
    rule: str
    by: tuple[str, ...]
    state: str
    asked: float
    expires: int
    expires_in: float
    needed: int
    given: tuple[str, ...]
    layout: str
    binding: str
    bound: Bound | None
    statement: str
    counts: bool
    why_not: str | None
    recover: str | None


@message
class ApprovalsReply:
    """The waiting acts, the oldest first."""

    approvals: tuple[Question, ...]


@message
class Decide:
    """An answer, signed over the question and the binding that was shown."""

    id: str
    binding: str
    signature: str


@message
class Decided:
    """`complete`: whether the approvals suffice."""

    id: str
    answer: str
    complete: bool
    needed: int
    given: tuple[str, ...]
