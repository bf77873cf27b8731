"""Why a connection to a host ended, or could not be made."""

from __future__ import annotations

from holdfast.model.errors import HoldfastError, NotAllowed, PeerFault, Unavailable, WrongPin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.jsontext import Json


class HostGone(Unavailable):
    """The connection ended. `reason`: as given by the host, if any."""

    def __init__(self, message: str, reason: str = "lost", recover: str | None = None) -> None:
        super().__init__(message, recover)
        self.reason = reason

    @property
    def stays(self) -> bool:
        """Whether the host is down until somebody starts it: one request does not wait for that."""
        return self.reason == "down"


class NotRunning(HostGone):
    """No host runs here, and this client may not start one; `attach` and `--follow` wait."""

    def __init__(self) -> None:
        super().__init__("the host is not running")

    @property
    def stays(self) -> bool:
        return True


class NoRoute(NotAllowed):
    """A relay does not admit this client to the machine; a later attempt may succeed."""


class Offline(Unavailable):
    """A relay reports that the machine is not connected to the relay."""


class WrongRelayKey(HostGone):
    """A relay does not have the key that its address pins; another way or moment may do."""

    name, retry_safe = WrongPin.name, WrongPin.retry_safe


def parting_error(body: Json) -> HoldfastError:
    """The error for a BYE frame, with the host's reason."""
    reason, message = str(body.get("reason")), str(body.get("message"))
    if reason in ("protocol", "version"):
        return PeerFault(f"the host refused the connection: {message}")
    return (
        NotAllowed(message, str(body.get("recover") or ""))
        if reason == "admission"
        else HostGone(message, reason)
    )
