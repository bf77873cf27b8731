"""A client that attaches to a session, looks, types and leaves."""

from __future__ import annotations

from holdfast.core.contract.message import ABSENT, Absent, message
from holdfast.core.contract.sessions import Summary


@message
class Attach:
    """The client's terminal, and the wanted view of the session.

    `resume`: the offset that the client has. `direct`: a client on this machine reads the output
    buffer directly; the descriptors come with the reply. `clipboard`: programs may write to the
    clipboard of the client's terminal, if the session allows this too.
    """

    session: str
    cols: int
    rows: int
    observe: bool = False
    scrollback: int | None = None
    resume: int | None = None
    agent: str | None = None
    direct: bool = False
    clipboard: bool | Absent = ABSENT


@message
class SendAway:
    """The clients to detach from a session: one by its id, or all but the caller's own.

    Without `client` and `others`: the caller's own clients. Of several own clients `others` keeps
    the one that typed last. `client` may be a unique prefix.
    """

    session: str
    client: str | None = None
    others: bool = False


@message
class SentAway:
    """The clients that were detached, by operator; the session goes on."""

    id: str
    name: str
    detached: tuple[str, ...]


@message
class AttachReply(Summary):
    """The session. `acked`: the last input of this client that was taken.

    `clipboard`: session and client both allow programs to write to the clipboard. `lost`: the epoch
    of the incarnation whose memory was lost before this one began anew.
    """

    acked: int
    resume: int | None
    observe: bool
    seen: str | None
    direct: bool
    clipboard: bool | Absent = ABSENT
    lost: int | Absent = ABSENT
