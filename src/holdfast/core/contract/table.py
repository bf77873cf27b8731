"""Every operation of the host: name, right, request, reply and rules.

The host's dispatch, the client's calls, the signatures over acts and docs/reference come from this
table. Every command imports the table, so the table is light: a row names the classes of request
and reply, and their modules are imported on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

MACHINE: Final = "machine"  # where acts on the machine are recorded: no session has this name
SESSION: Final = "session"  # the session that the request names
KNOWN: Final = "known"  # every operator that the machine knows may
HANDLER: Final = "handler"  # the handler decides, from the request


class Operation:
    """A row of the table.

    - `right`: needed on the session that the request names, else on the machine. Empty: `who` is
      KNOWN or HANDLER.
    - `place`: for an act, where it takes effect and is recorded: SESSION or MACHINE.
    - `kind`: for an act, the kind in the record.
    - `repeatable`: a client asks again after a lost connection.
    - `harmless`: the operation changes nothing, so a lost answer leaves nothing unknown. An act may
      be harmless and recorded: it reads a file.
    - `same_number`: the keeper applies the act and recognises a repeat by the number.
    - `streams`: events by name, or DATA and GAP frames, that come before the reply.
    """

    __slots__ = (
        "_reply",
        "_request",
        "harmless",
        "help",
        "kind",
        "name",
        "place",
        "repeatable",
        "right",
        "same_number",
        "streams",
        "who",
    )

    def __init__(
        self,
        name: str,
        may: str,
        request: str,
        reply: str,
        help: str,
        place: str = "",
        kind: str = "",
        repeatable: bool = False,
        harmless: bool = False,
        same_number: bool = False,
        streams: tuple[str, ...] = (),
    ) -> None:
        """`may`: a right, KNOWN or HANDLER; `request`, `reply`: module and class."""
        self.name, self.help = name, help
        self.right, self.who = ("", may) if may in (KNOWN, HANDLER) else (may, "right")
        self.place, self.kind, self.streams = place, kind, streams
        self.repeatable, self.harmless, self.same_number = repeatable, harmless, same_number
        self._request, self._reply = request, reply

    @property
    def act(self) -> bool:
        """Whether the operation is signed and recorded; showing the turn is not."""
        return bool(self.kind)

    @property
    def request(self) -> type:
        """The class of the request."""
        return _class(self._request)

    @property
    def reply(self) -> type:
        """The class of the reply; the reply to an act also has the fields of Acknowledgement."""
        return _class(self._reply)


_classes: dict[str, type] = {}


def _class(path: str) -> type:
    if path not in _classes:
        from importlib import import_module

        module, name = path.split(".")
        _classes[path] = getattr(import_module(f"holdfast.core.contract.{module}"), name)
    return _classes[path]


def _look(
    name: str, may: str, request: str, reply: str, help: str, streams: tuple[str, ...] = ()
) -> Operation:
    """An operation that changes nothing and can be repeated."""
    return Operation(
        name, may, request, reply, help, repeatable=True, harmless=True, streams=streams
    )


def _act(
    place: str,
    name: str,
    kind: str,
    may: str,
    request: str,
    reply: str,
    help: str,
    judged: bool = False,
    repeatable: bool = False,
    same_number: bool = False,
    harmless: bool = False,
    streams: tuple[str, ...] = (),
) -> Operation:
    """An act. `judged`: the policy is asked, so the act may have to wait for an approval."""
    streams = (*(("held",) if judged else ()), *streams)
    return Operation(
        name, may, request, reply, help, place, kind, repeatable, harmless, same_number, streams
    )


# fmt: off
_ROWS: Final = (
    # ------------------------------------------------------------ the host
    _look("ping", KNOWN, "message.Nothing", "host.Pong",
        "Says that the host is there."),
    _act(MACHINE, "down", "down", "manage", "host.Down", "host.GoingDown",
        "Stops or replaces the host; sessions keep running."),
    _look("stats", KNOWN, "message.Nothing", "host.Stats",
        "Gives counters, without names or contents."),
    _look("metrics", "observe", "host.Metrics", "host.MetricsReply",
        "Gives the host's numbers for Prometheus."),
    _look("events", "observe", "record.Events", "record.EventsReply",
        "Lists what happened, and follows it.", streams=("happened",)),
    # ------------------------------------------------------------ sessions
    _act(MACHINE, "new", "spawn", "new", "sessions.New", "sessions.Created",
        "Starts a program in a new session.", judged=True, repeatable=True),
    _look("ls", HANDLER, "sessions.Ls", "sessions.Listed",
        "Lists the sessions that the caller may observe."),
    _look("get", "observe", "message.SessionNamed", "sessions.Summary",
        "Describes one session."),
    _act(SESSION, "rename", "rename", "end", "sessions.Rename", "sessions.Named",
        "Gives a session another name.", judged=True, repeatable=True),
    _act(SESSION, "end", "end", "end", "sessions.End", "sessions.Ended",
        "Ends every process of a session.", judged=True, repeatable=True),
    _act(SESSION, "signal", "signal", "signal", "input.Signal", "input.Signalled",
        "Signals one process of a session, or it and all below it.", judged=True),
    _act(MACHINE, "forget", "forget", "end", "sessions.Forget", "sessions.Forgotten",
        "Removes an ended session from the list; its record stays.", judged=True),
    _act(SESSION, "checkpoint", "save", "checkpoint", "checkpoints.Checkpoint",
        "checkpoints.CheckpointReply", "Saves a session with its processes to disk.",
        judged=True, streams=("progress",)),
    _act(SESSION, "restore", "restore", "checkpoint", "checkpoints.Restore",
        "checkpoints.Restored", "Brings a saved session back with its processes.",
        judged=True, streams=("progress",)),
    _act(SESSION, "checkpoint.remove", "save", "checkpoint", "checkpoints.RemoveCheckpoint",
        "checkpoints.CheckpointRemoved", "Removes a checkpoint of a session.", judged=True),
    _act(SESSION, "fork", "fork", "fork", "branches.Fork", "branches.ForkReply",
        "Makes branches of a live session, which goes on.", judged=True, streams=("progress",)),
    _look("branches", HANDLER, "branches.Branches", "branches.BranchesReply",
        "Lists branches of sessions."),
    _look("diff", "files", "branches.Diff", "branches.DiffReply",
        "Shows what a branch has changed since the fork."),
    _act(SESSION, "keep", "keep", "fork", "branches.Keep", "branches.Kept",
        "Commits the files of a branch to its parent's directories, and discards the others.",
        judged=True, streams=("progress",)),
    _act(SESSION, "discard", "discard", "fork", "branches.Discard", "branches.Discarded",
        "Ends a branch and removes its files.", judged=True),
    _act(SESSION, "rehome", "rehome", "rehome", "checkpoints.Rehome", "checkpoints.Rehomed",
        "Lets another machine take a session over, or pins the session.", judged=True,
        repeatable=True),
    _look("lease", HANDLER, "message.SessionNamed", "checkpoints.LeaseReply",
        "Says which machine may have a session."),
    _act(MACHINE, "lease.invalidate", "invalidate", "rehome", "checkpoints.InvalidateLease",
        "checkpoints.LeaseReply", "Ends the lease of a session without its machine.", judged=True),
    _look("checkpoints", HANDLER, "checkpoints.Checkpoints", "checkpoints.CheckpointsReply",
        "Lists the checkpoints of sessions."),
    _act(SESSION, "reap", "reap", "end", "drain.Reap", "drain.Choice",
        "Chooses what the reaper may do with a session.", judged=True, repeatable=True),
    _look("reaper", HANDLER, "message.Nothing", "drain.Reaper",
        "Shows the limits of the reaper and the sessions as it saw them last."),
    _act(MACHINE, "drain", "drain", "manage", "drain.Drain", "drain.Drained",
        "Saves every session of the machine within a notice.", judged=True,
        streams=("progress",)),
    _act(SESSION, "checkpoint.every", "save", "checkpoint", "copies.Schedule",
        "copies.Scheduled", "Sends copies of a session to another machine in a period.",
        judged=True),
    _act(SESSION, "move", "move", "checkpoint", "copies.Move", "copies.Moved",
        "Lets a session go on at another machine.", judged=True, streams=("progress",)),
    # ------------------------------------------------------------ copies at other machines
    _act(MACHINE, "copies.take", "copy", "store", "copies.TakeCopy", "copies.TakenOver",
        "Lets a session go on here from the copy with which it ended."),
    _act(MACHINE, "copies.withdraw", "copy", "store", "copies.TakeCopy", "copies.TakenOver",
        "Withdraws the copies of a session, unless it was taken over.", repeatable=True),
    _act(MACHINE, "machines.trust", "trust", "manage", "copies.Trust", "copies.Trusted",
        "Lets a machine keep sessions of this machine and take them over.", judged=True),
    _look("machines.trusted", KNOWN, "message.Nothing", "copies.Trusted",
        "Lists the machines that may take sessions of this machine over."),
    _look("copies.check", "store", "copies.CheckCopy", "copies.CopyChecked",
        "Says whether a session of another machine could go on here."),
    _act(MACHINE, "copies.offer", "copy", "store", "copies.OfferCopy", "copies.CopyNamed",
        "Offers a copy of a session, which the machine is to keep.", repeatable=True),
    _look("copies.missing", "store", "copies.Lacking", "copies.LackingReply",
        "Lists the contents of an offered copy that are not here."),
    Operation("copies.put", "store", "copies.CopyNamed", "copies.Put",
        "Takes contents of an offered copy, each with its hash, place and length.",
        harmless=True, streams=("began",)),
    _act(MACHINE, "copies.commit", "copy", "store", "copies.CommitCopy", "copies.CopyKept",
        "Keeps a copy of which every content is here.", repeatable=True),
    _look("copies.taken", "store", "copies.SessionGone", "copies.TakenOver",
        "Says whether a session of the caller's machine was taken over here."),
    _look("who", "observe", "message.SessionNamed", "sessions.WhoReply",
        "Shows who is attached and who holds the turn."),
    _look("resolve", HANDLER, "sessions.Resolve", "sessions.Resolved",
        "Says what a reference means today."),
    _look("place", HANDLER, "message.SessionNamed", "sessions.ActTarget",
        "Says what an act on a session or on the machine is to be signed for."),
    # ------------------------------------------------------------ input
    _act(SESSION, "send", "line", "input", "input.Send", "input.Sent",
        "Types text and keys into a session.", judged=True, repeatable=True, same_number=True),
    _act(SESSION, "run", "command", "run", "input.Run", "input.Ran",
        "Runs a command in the session's shell and gives its output and exit code.",
        judged=True, repeatable=True, same_number=True, streams=("began", "DATA", "GAP")),
    Operation("cover", HANDLER, "input.Cover", "input.Covered",
        "Signs the keys that this client typed.", repeatable=True),
    # ------------------------------------------------------------ files
    _act(SESSION, "files.ls", "files", "files", "files.FilesLs", "files.FilesListed",
        "Lists a directory of a session, page by page.",
        judged=True, repeatable=True, harmless=True),
    _act(SESSION, "files.stat", "files", "files", "files.FilesStat", "files.FileInfo",
        "Describes a file of a session.", judged=True, repeatable=True, harmless=True),
    _act(SESSION, "files.get", "files", "files", "files.FilesGet", "files.FilesGot",
        "Sends the content of a file of a session.",
        judged=True, repeatable=True, harmless=True, streams=("began", "DATA")),
    _act(SESSION, "files.search", "files", "files", "files.FilesSearch", "files.FilesFound",
        "Searches names, or lines of files, below a directory of a session.",
        judged=True, repeatable=True, harmless=True),
    _act(SESSION, "files.put", "files", "files", "files.FilesPut", "files.FilesWritten",
        "Writes a file of a session, whole or not at all.",
        judged=True, repeatable=True, streams=("began",)),
    _act(SESSION, "files.rm", "files", "files", "files.FilesRm", "files.FilesRemoved",
        "Removes a file or a directory of a session.", judged=True),
    _act(SESSION, "files.mv", "files", "files", "files.FilesMv", "files.FilesMoved",
        "Gives a file of a session another path.", judged=True),
    # ------------------------------------------------------------ the record
    _look("log", HANDLER, "record.Log", "record.LogReply",
        "Lists entries of a record, and follows it.", streams=("recorded",)),
    Operation("log.export", HANDLER, "message.SessionNamed", "record.Exported",
        "Sends a whole record, which verifies without the host.", harmless=True, streams=("DATA",)),
    _act(MACHINE, "log.redact", "redact", "manage", "record.Redact", "record.Redacted",
        "Drops the content of entries of a record, which still verifies.", repeatable=True),
    # ------------------------------------------------------------ output and state
    _look("wait", "observe", "output.Wait", "output.Waited",
        "Returns when a condition of the live session holds."),
    _look("attention", HANDLER, "output.Attention", "output.AttentionReply",
        "Says what sessions wait for, and follows it.", streams=("attention", "over", "missed")),
    _look("view", "observe", "output.View", "output.Viewed",
        "Shows the screen of a session."),
    _look("graph", "observe", "output.Graph", "output.GraphReply",
        "Shows processes, open files and sockets of a session; follows changes.",
        streams=("present", "changed")),
    _look("read", "observe", "output.Read", "output.ReadReply",
        "Sends the output of a session, and follows it.", streams=("DATA", "GAP")),
    Operation("attach", "observe", "attach.Attach", "attach.AttachReply",
        "Attaches this connection to a session as a terminal."),
    Operation("detach", KNOWN, "message.Nothing", "message.Nothing",
        "Ends the attachment of this connection."),
    Operation("send_away", HANDLER, "attach.SendAway", "attach.SentAway",
        "Detaches clients of a session; those of other operators need the right `turn.seize`."),
    Operation("refresh", KNOWN, "message.Nothing", "message.Nothing",
        "Paints the screen of this attachment again."),
    # ------------------------------------------------------------ the turn
    _act(SESSION, "turn", "turn", HANDLER, "turn.Turn", "turn.TurnReply",
        "Shows the turn, or asks for it, releases it or hands it over.",
        judged=True, repeatable=True),
    _act(SESSION, "seize", "seize", "turn.seize", "turn.Seize", "turn.Seized",
        "Takes the turn at once and discards the unread input of its holder.", repeatable=True),
    _act(SESSION, "halt", "halt", "halt", "turn.Halt", "turn.Halted",
        "Stops every process of a session, or those of one operator."),
    _act(SESSION, "resume", "resume", "halt", "turn.Resume", "turn.Resumed",
        "Lets a halted session or a stopped operator go on.", judged=True),
    # ------------------------------------------------------------ ports
    _act(SESSION, "forward", "forward", "forward", "ports.Forward", "ports.Forwarded",
        "Opens a listening TCP port of a session to the caller, until the caller leaves.",
        judged=True, repeatable=True, streams=("began",)),
    Operation("forward.connect", "forward", "ports.Connect", "ports.Connected",
        "Connects to an open forward; DATA and STDIN without bytes end a direction.",
        streams=("began", "DATA")),
    # ------------------------------------------------------------ operators
    _act(MACHINE, "operator.add", "operator", HANDLER, "operators.AddOperator",
        "operators.Operator", "Makes an operator and its key known.", judged=True),
    _look("operator.ls", KNOWN, "message.Nothing", "operators.Operators",
        "Lists the operators."),
    _look("operator.show", KNOWN, "operators.OperatorNamed", "operators.Operator",
        "Describes one operator."),
    _act(MACHINE, "operator.revoke", "revoke", HANDLER, "operators.RevokeOperator",
        "operators.Operator", "Revokes an operator with all its keys, at once."),
    _act(MACHINE, "recovery.off", "operator", "manage", "message.MachineAct",
        "operators.Recovery", "Switches `operator recover` off for good.", judged=True),
    _look("envelopes", KNOWN, "message.Nothing", "operators.Envelopes",
        "Gives the caller's own envelopes."),
    _act(MACHINE, "grant", "grant", HANDLER, "operators.Grant", "operators.Granted",
        "Gives rights to an operator.", judged=True),
    # ------------------------------------------------------------ devices
    _look("device.ls", HANDLER, "devices.DeviceOwner", "devices.Devices",
        "Lists the devices of an operator."),
    _act(MACHINE, "device.add", "operator", HANDLER, "devices.AddDevice", "devices.Device",
        "Adds a device by its key.", judged=True),
    _act(MACHINE, "device.rename", "operator", HANDLER, "devices.RenameDevice",
        "devices.DeviceRenamed", "Gives a device another name.", judged=True),
    _act(MACHINE, "device.revoke", "revoke", HANDLER, "devices.RevokeDevice",
        "devices.DeviceRevoked", "Revokes one device, at once."),
    # ------------------------------------------------------------ invitations
    _act(MACHINE, "invite", "invite", HANDLER, "invitations.Invite", "invitations.Invited",
        "Invites a new operator or device with a one-time code.", judged=True, repeatable=True),
    _look("invite.ls", HANDLER, "message.Nothing", "invitations.Invitations",
        "Lists invitations."),
    _act(MACHINE, "invite.revoke", "invite", HANDLER, "invitations.InvitationNamed",
        "invitations.Invitation", "Ends an invitation.", repeatable=True),
    _act(MACHINE, "invite.decide", "invite", HANDLER, "invitations.DecideInvitation",
        "invitations.Invitation", "Lets the key that waits in, or sends it away.", repeatable=True),
    _look("invite.wait", HANDLER, "invitations.WaitInvitation", "invitations.Invitation",
        "Returns when an invitation has changed."),
    # ------------------------------------------------------------ approvals
    _look("approvals", HANDLER, "approvals.Approvals", "approvals.ApprovalsReply",
        "Lists acts that wait for approval, and follows the list.", streams=("approvals",)),
    Operation("approve", HANDLER, "approvals.Decide", "approvals.Decided",
        "Approves an act that waits."),
    Operation("deny", HANDLER, "approvals.Decide", "approvals.Decided",
        "Denies an act that waits."),
    Operation("withdraw", HANDLER, "approvals.Decide", "approvals.Decided",
        "Withdraws an act of one's own that waits."),
    # ------------------------------------------------------------ relays
    _look("ways", KNOWN, "message.Nothing", "relays.Ways",
        "Says how the caller reaches this machine through relays."),
    _look("relays", "manage", "message.Nothing", "relays.Relays",
        "Lists the relays that this host dials."),
    _act(MACHINE, "relays.changed", "relays", "manage", "message.MachineAct", "relays.Relays",
        "Reads the list of relays again.", judged=True),
)
# fmt: on

OPERATIONS: Final = {row.name: row for row in _ROWS}
