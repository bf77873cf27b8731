"""Holdfast keeps a live execution alive and shared.

    import holdfast

    async with holdfast.connect() as client:
        session = await client.sessions.get("main")
        print((await session.run("git status")).output)

`holdfast.sync` has the same names without `await`. Names are loaded on first use, because every
command of the command line imports this package.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.errors import Ambiguous as Ambiguous
    from holdfast.model.errors import Busy as Busy
    from holdfast.model.errors import Changed as Changed
    from holdfast.model.errors import Contradicted as Contradicted
    from holdfast.model.errors import FromInside as FromInside
    from holdfast.model.errors import GateRefused as GateRefused
    from holdfast.model.errors import Held as Held
    from holdfast.model.errors import HoldfastError as HoldfastError
    from holdfast.model.errors import Impossible as Impossible
    from holdfast.model.errors import Lost as Lost
    from holdfast.model.errors import Nested as Nested
    from holdfast.model.errors import NotAllowed as NotAllowed
    from holdfast.model.errors import NotFound as NotFound
    from holdfast.model.errors import NotListening as NotListening
    from holdfast.model.errors import OnceUsed as OnceUsed
    from holdfast.model.errors import OperatorStopped as OperatorStopped
    from holdfast.model.errors import OutcomeUnknown as OutcomeUnknown
    from holdfast.model.errors import PeerFault as PeerFault
    from holdfast.model.errors import Refused as Refused
    from holdfast.model.errors import Stale as Stale
    from holdfast.model.errors import TimedOut as TimedOut
    from holdfast.model.errors import TurnHeld as TurnHeld
    from holdfast.model.errors import Unavailable as Unavailable
    from holdfast.model.errors import Unfinished as Unfinished
    from holdfast.model.errors import Usage as Usage
    from holdfast.model.errors import WrongPin as WrongPin
    from holdfast.sdk.client import Client as Client
    from holdfast.sdk.client import connect as connect
else:

    def __getattr__(name: str) -> object:
        """Errors by their names, and the entrance to the API."""
        from importlib import import_module

        where = "sdk.client" if name in ("Client", "connect") else "model.errors"
        module = import_module(f"holdfast.{where}") if not name.startswith("_") else None
        if module is None or not hasattr(module, name):
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        return getattr(module, name)
