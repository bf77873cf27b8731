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

# The public names, by module: the imports below are for type checkers only.
_NAMES = {
    "model.errors": """
        Ambiguous Busy Changed Contradicted Fenced FromInside GateRefused Held HoldfastError
        Impossible Lost Nested NotAllowed NotFound NotListening OnceUsed OperatorStopped
        OutcomeUnknown PeerFault Refused Saved Stale TimedOut TurnHeld Unavailable
        Unfinished Usage WrongPin
    """,
    "sdk.attach": "Attachment",
    "sdk.branches": """
        Branch Clash Difference FileChange FileState Forked Kept Left NewBranch Program
        Remaining
    """,
    "sdk.client": "Approvals Client Machines Sessions Terminal connect",
    "sdk.drained": "Drained DrainedSession",
    "sdk.files": "Files",
    "sdk.forward": "Forward",
    "sdk.observed": """
        Change Entry Event Foreground Graph Lock OpenFile Process Socket TerminalState
    """,
    "sdk.operators": "Operators",
    "sdk.results": """
        Approval Attached Checkpoint Chunk Cursor Ended Envelope FileInfo FileMatch Found
        Granted Halted Listing Liveness LostConnection Machine Operator OperatorKey Output
        Preflight Question Range Resolved Restored RunResult Scope Screen Seized Sent
        SessionInfo Size Transferred TurnState Waited Waiting
    """,
    "sdk.running": "Running",
    "sdk.session": "Session Turn",
}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.errors import Ambiguous as Ambiguous
    from holdfast.model.errors import Busy as Busy
    from holdfast.model.errors import Changed as Changed
    from holdfast.model.errors import Contradicted as Contradicted
    from holdfast.model.errors import Fenced as Fenced
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
    from holdfast.model.errors import Saved as Saved
    from holdfast.model.errors import Stale as Stale
    from holdfast.model.errors import TimedOut as TimedOut
    from holdfast.model.errors import TurnHeld as TurnHeld
    from holdfast.model.errors import Unavailable as Unavailable
    from holdfast.model.errors import Unfinished as Unfinished
    from holdfast.model.errors import Usage as Usage
    from holdfast.model.errors import WrongPin as WrongPin
    from holdfast.sdk.attach import Attachment as Attachment
    from holdfast.sdk.branches import Branch as Branch
    from holdfast.sdk.branches import Clash as Clash
    from holdfast.sdk.branches import Difference as Difference
    from holdfast.sdk.branches import FileChange as FileChange
    from holdfast.sdk.branches import FileState as FileState
    from holdfast.sdk.branches import Forked as Forked
    from holdfast.sdk.branches import Kept as Kept
    from holdfast.sdk.branches import Left as Left
    from holdfast.sdk.branches import NewBranch as NewBranch
    from holdfast.sdk.branches import Program as Program
    from holdfast.sdk.branches import Remaining as Remaining
    from holdfast.sdk.client import Approvals as Approvals
    from holdfast.sdk.client import Client as Client
    from holdfast.sdk.client import Machines as Machines
    from holdfast.sdk.client import Sessions as Sessions
    from holdfast.sdk.client import Terminal as Terminal
    from holdfast.sdk.client import connect as connect
    from holdfast.sdk.drained import Drained as Drained
    from holdfast.sdk.drained import DrainedSession as DrainedSession
    from holdfast.sdk.files import Files as Files
    from holdfast.sdk.forward import Forward as Forward
    from holdfast.sdk.observed import Change as Change
    from holdfast.sdk.observed import Entry as Entry
    from holdfast.sdk.observed import Event as Event
    from holdfast.sdk.observed import Foreground as Foreground
    from holdfast.sdk.observed import Graph as Graph
    from holdfast.sdk.observed import Lock as Lock
    from holdfast.sdk.observed import OpenFile as OpenFile
    from holdfast.sdk.observed import Process as Process
    from holdfast.sdk.observed import Socket as Socket
    from holdfast.sdk.observed import TerminalState as TerminalState
    from holdfast.sdk.operators import Operators as Operators
    from holdfast.sdk.results import Approval as Approval
    from holdfast.sdk.results import Attached as Attached
    from holdfast.sdk.results import Checkpoint as Checkpoint
    from holdfast.sdk.results import Chunk as Chunk
    from holdfast.sdk.results import Cursor as Cursor
    from holdfast.sdk.results import Ended as Ended
    from holdfast.sdk.results import Envelope as Envelope
    from holdfast.sdk.results import FileInfo as FileInfo
    from holdfast.sdk.results import FileMatch as FileMatch
    from holdfast.sdk.results import Found as Found
    from holdfast.sdk.results import Granted as Granted
    from holdfast.sdk.results import Halted as Halted
    from holdfast.sdk.results import Listing as Listing
    from holdfast.sdk.results import Liveness as Liveness
    from holdfast.sdk.results import LostConnection as LostConnection
    from holdfast.sdk.results import Machine as Machine
    from holdfast.sdk.results import Operator as Operator
    from holdfast.sdk.results import OperatorKey as OperatorKey
    from holdfast.sdk.results import Output as Output
    from holdfast.sdk.results import Preflight as Preflight
    from holdfast.sdk.results import Question as Question
    from holdfast.sdk.results import Range as Range
    from holdfast.sdk.results import Resolved as Resolved
    from holdfast.sdk.results import Restored as Restored
    from holdfast.sdk.results import RunResult as RunResult
    from holdfast.sdk.results import Scope as Scope
    from holdfast.sdk.results import Screen as Screen
    from holdfast.sdk.results import Seized as Seized
    from holdfast.sdk.results import Sent as Sent
    from holdfast.sdk.results import SessionInfo as SessionInfo
    from holdfast.sdk.results import Size as Size
    from holdfast.sdk.results import Transferred as Transferred
    from holdfast.sdk.results import TurnState as TurnState
    from holdfast.sdk.results import Waited as Waited
    from holdfast.sdk.results import Waiting as Waiting
    from holdfast.sdk.running import Running as Running
    from holdfast.sdk.session import Session as Session
    from holdfast.sdk.session import Turn as Turn
else:

    def __getattr__(name: str) -> object:
        for module, names in _NAMES.items():
            if name in names.split():
                from importlib import import_module

                return getattr(import_module(f"holdfast.{module}"), name)
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted((*globals(), *" ".join(_NAMES.values()).split()))
