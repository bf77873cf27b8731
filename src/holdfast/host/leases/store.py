"""What a coordination store must be able to do, for both implementations.

A store is a linearizable map from keys to values. Each commit has a revision of its own, higher
than all before; a key has the revision of the commit that wrote it last. Both functions block and
are called in a thread. They raise Unavailable within their time if no answer comes; a commit may
then have taken effect, or take effect later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.lease.records import Commit, Stored
from holdfast.model.errors import Unavailable


class StoreDenied(Unavailable):
    """The store answers, but this machine's access to it is wrong: a retry alone does not help.

    The fact `cause` is `server_certificate`, `client_certificate`, `password`, `token` or
    `permission`.
    """

    retry_safe = False

    def __init__(self, cause: str, message: str, recover: str) -> None:
        super().__init__(message, recover, cause=cause)


class LeaseStore(Protocol):
    shared: bool  # whether it can be reached from other machines

    def read(self, keys: Sequence[str], within_s: float) -> dict[str, Stored]:
        """The values of these keys; the first key is read first."""
        ...

    def commit(self, wanted: Commit, within_s: float) -> int:
        """Write all values, if all expected revisions are still right: the revision; else 0."""
        ...

    def close(self) -> None: ...
