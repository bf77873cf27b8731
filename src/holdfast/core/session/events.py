"""The events of a host: names, meanings and facts in one table.

`holdfast events --json` prints one object per event: `number`, `time`, `when`, `session` (empty:
the machine itself), `event`, and the facts below. Names and facts are only added, never renamed,
and keep their types. `docs/reference/events.md` is rendered from here. A test fails when the host
emits an event that is not in the table, or when no code emits an event of the table.

1. Facts are for people and programs that may observe the session. They may name operators, never
   the text of a command, the content of a terminal, or a secret. The reason of a rule is the text
   of the policy.
2. Metrics and traces get only the name of the event and facts with few possible values (how a
   client left, how the turn moved).
3. An event that a client can cause at will (a refused key) is emitted once until the state changes;
   counters have the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from holdfast.core.session import copy_events

KEYS: Final = ("number", "time", "when", "session", "event")  # of every event, before its facts
OF_SESSION, OF_MACHINE = "session", "machine"
TYPES: Final[dict[str, tuple[type, ...]]] = {
    "text": (str,),
    "number": (int, float),
    "yes": (bool,),
    "list": (list,),
    "object": (dict,),
}


class Fact(NamedTuple):
    kind: str  # one of TYPES; with "?" null is allowed, with "*" the fact is optional
    says: str


class Event(NamedTuple):
    means: str
    facts: dict[str, Fact]
    of: str = OF_SESSION
    since: str = "0.1"
    planned: bool = False  # the name is reserved; this release does not emit it


# A group of facts (+name) or an event (name, "machine" if it is the machine's, meaning), then its
# facts: name, kind and meaning, or groups. A line that is indented by 8 continues the line above.
_TABLE: Final = """
+before
    before text  the state before
    after text  the state after
+who
    operator text  the operator who acted
+root
    root_pid number  the session's first process: the same before and after a gap
+where
    +root
    output number  the absolute offset of the output at that time
+question
    id text  the id of the question
    operator text  the operator whose act waits
    act text  the kind of act
    rule text  the policy's rule that asks
    because text  the reason, in the policy's words
    needed number  the number of approvals it needs
    given list  the operators who have approved it
    expires number  when it expires, in seconds since 1970
+exec
    operator text*  the operator whose act caused it
    originators list*  the operators who shaped the state it would run on
    program text*  the file
    pid number*  of the process
    rule text*  the policy's rule; empty if none
    caused_by text?*  the reference of the act that caused it
    because text  the reason, in the policy's words
    count number*  how many refusals this event stands for, if more than one
+closed
    +question
    why text*  in words
+answered
    by text*  the operator who answered
    key text*  the key of the answer
    signature text*  over the statement
    statement text*  the signed bytes, in hex
+known
    operator text  the name of the operator
    kind text  human, agent or service
    key text  the public key
    by text  the operator who admitted it
+rights
    link text  the envelope's id
    rights list  the rights it gives
    scope object  the limits of these rights
+invitation
    invitation text  its id
    by text  the inviter
+modality
    modality text  the kind of client
+limit
    resource text  `disk`, `processes` or `free space`, which is that of the home's file system
    used number  bytes, or processes; of free space: what is left
    limit number  the limit; of free space: the reserve

# the life of a session
session.started  the session was made, and its program runs
    +before +who +root
session.attached  the first client attached to the session
    +before +who +modality
    root_pid number*  the session's first process
    output number*  the absolute offset of the output at that time
session.left  the last client left the session, or was lost; the execution continues
    +before +who +modality
    how text  `lost`, `detached`, `switched` or `ended`
    +where
session.adopted  a host found the session again, after its own restart or death
    term number  the term of the host; higher than the last one
    +root
    output list  the range of output that was found
session.reclaimed  the link to the keeper broke, and was restored or abandoned
    term number  the term of the host
session.halted  every process of the session was stopped
    +before +who
    how text  the mechanism
    took_ms number  the time until all processes stood still
    complete yes  whether all processes are stopped
    act number  the last act that was committed before
    because text*  why the host itself halted the session; the operator is then `host`
session.resumed  the session continues after a halt
    +before +who
    how text  the mechanism
    took_ms number  the time it took
operator.stopped  the processes that acts of one operator started were stopped; its further acts in
        this session are refused
    operator text  the stopped operator
    by text  the operator who stopped it
    how text  the mechanism
    complete yes  whether all its processes are stopped
    processes number  how many are stopped
    took_ms number  the time until they stood still
operator.resumed  the processes of a stopped operator continue
    operator text  the stopped operator
    by text  the operator who resumed it
process.exited  a process that outlived its command has exited: a server in the background, a daemon
    pid number  of the process
    program text  its name; empty if it lived too briefly
    exit_code number?  its exit code
    signal text?  the signal that ended it
    actor text  the operator who started it
    act text?  the reference of the act that started it
    untold number*  further exits that were not reported, because of their number
process.killed_for_memory  the kernel killed a process because memory ran out
    pid number?  of the process; null if it is not known
    program text  its name; empty if it lived too briefly
    actor text  the operator who started it
    act text?  the reference of the act that started it
    limit number?  the session's limit in bytes; null if the whole machine ran out of memory
    sure yes  false if the kernel does not say which of several killed processes it was
limit.near  a session has used most of a limit
    +limit
limit.reached  the host halted a session that is above a limit
    +limit
limit.unmeasured  the host cannot measure a part of a session; the limit counts the rest
    resource text  `disk`
    path text  a directory that the host cannot read
session.network_lost  the session's own network is cut off: the program that connects it ended
    exit_code number?  its exit code
    signal text?  the signal that ended it
shell.forged  the output had marks that the session's shell did not write; they had no effect
    count number  of these marks, since the last such event
    actor text?  the operator whose command ran at that time
    act text?  the reference of that command
shell.contradicted  the shell said that a program succeeded, and the kernel that it failed
    shell_exit number  the exit code by the shell's word
    kernel_exit number  the exit code of the program
    actor text?  the operator who ran it
    act text?  the reference of the act
session.renamed  the session was renamed
    name text  the new name
session.end_asked  an operator ends the session
    +who
session.exited  the session's program ended
    +before
    exit_code number?  null if it could not be learned
    reason text  in words
    survivors number  processes of the session that still ran
    ended_by text*  the operator whose act ended the program, or "unknown"
    perhaps list*  other operators who may have had a part in that
    act text?*  the reference of the act that ended it
    asked yes*  whether an operator ended the session with `end`
session.tool_files  a contained session changed files in its workspace that people's tools execute
        later, such as .git/config, .envrc or editor tasks
    changed list  the paths
session.lost  the keeper died or the machine was restarted: the programs on the terminal are gone
    before text*  the state before
    after text*  the state after
    exit_code number?*  null
    reason text  in words
    survivors number*  processes of the session that still ran
    ended_by text*  "unknown"
    perhaps list*  empty
    act text?*  null
    asked yes*  whether an operator ended the session with `end`
session.interrupted  memory, programs and terminal are lost; the next incarnation is being started
    +before
    reason text  in words
session.re_established  a new incarnation has started; memory and programs of the last are lost
    from number  the epoch of the lost incarnation
    reason text  in words
    seen number?  when the host last looked at the session, in seconds since 1970
    running list  the programs that ran then: argv, operator and act of each
    in_flight list  acts with an unknown outcome, each as "entry N of hf:SESSION@EPOCH" of the
        record
    halted yes  whether the lost incarnation was halted
    notes list  what could not be brought back, in words
session.saved  the session was saved to disk, and goes on
    +who
    checkpoint text  the id of the checkpoint
    bytes number  its size
    rule text*  the rule of the policy that wanted it before an act
session.checkpoint_removed  an operator removed a checkpoint of the session
    name text  its name
    checkpoint text  the id of the checkpoint
    bytes number  the bytes that are free now
session.rehomable  an operator made the session re-homable, or pinned it
    +who
    on yes  whether other machines may take it over
session.fence  the session lost its lease; all its processes are stopped, and no input is taken
    +before
    why text  what happened to the lease
    epoch number  this incarnation
session.unfenced  the lease is back, and no other machine took the session: it goes on
    +before
    epoch number  this incarnation
session.lease_invalidated  an operator ended the lease of a session, which may live elsewhere
    +who
    wait_s number  no machine takes the session before this time has passed
session.checkpointed  the session was saved to disk, and its processes ended
    +before
    exit_code number?  null
    reason text  in words, with the id of the checkpoint
    survivors number  processes of the session that still ran
    ended_by text*  the operator of the save, or "host"; "unknown" if a later host found
        the killed session
    perhaps list*  empty
    act text?*  null
    asked yes*  whether an operator ended the session with `end`
session.forked  branches of the session began; it goes on
    +who
    fork text  the id of the fork
    branches list  the ids of the branches
    frozen_ms number  how long the session stood still
session.kept  the files of a branch were committed to the parent's directories
    +who
    steps number  files that were written or removed
session.discarded  a branch ended, and its files were removed
    +who
    connections list  connections that it had to the outside
connection.lost  a TCP connection of a program to a peer outside of the session is lost
    kind text  `reset`: the peer reset it; `timeout`: the kernel gave it up; `silent`: the peer does
        not acknowledge; `closed_by_restore`, `closed_by_move` or `closed_by_fork`: it did not
        survive that
    protocol text  `tcp` or `tcp6`
    local text  the address and port of this end
    remote text  the address and port of the peer
    pid number  of the process that held it
    program text  its name
    actor text  the operator who started the process
    act text?  the reference of the act that started the process
    unacked number  bytes that the peer had not acknowledged
    sure yes*  false if it may be another connection of the machine that was reset
connection.recovered  a connection that was told as silent works again
    protocol text  `tcp` or `tcp6`
    local text  the address and port of this end
    remote text  the address and port of the peer
    pid number  of the process that held it
    program text  its name
    actor text  the operator who started the process
    act text?  the reference of the act that started the process
    unacked number  bytes that the peer has not acknowledged
session.reap_warned  the session is idle, and will leave the memory unless it becomes active
    because text  why
    at number  when, in seconds since 1970
session.reap_withdrawn  a warned session stays: it is in use again
    because text  why
session.reap_left  the session should leave the memory, and stays
    because text  why it should
    cannot text  why it stays
session.reap_chosen  an operator chose what the reaper may do with the session
    +who
    choice text  `default`, `never`, `evict` or `end`
session.evicted  the session was saved to disk and has left the memory; the next attach restores it
    checkpoint text  the id of the checkpoint
    bytes number  its size
    because text  why
session.reaped  the reaper ended the session, which could not be saved
    +before
    because text  why
    cannot text  why it could not be saved
session.output_rolled  the host itself missed output that had rolled off
    start number  the first missed offset
    end number  the next offset
session.keeper_malformed  the keeper sent a message that this host does not understand
    detail text  the message

# clients
client.attached  a client attached, whether or not other clients are attached
    +who
    kind text  human, agent or service
    +modality
    observe yes  whether it only observes
    +where
client.left  a client left, or was lost; the execution continues
    +who
    kind text  human, agent or service
    +modality
    how text  `lost`, `detached`, `switched` or `ended`
    +where
client.sent_away  an operator detached a client of another operator, or its own
    +who
    of text  the operator of the client
    client text  the id of the client

forward.opened  an operator opened a listening port of the session to its client
    +who
    port number  the TCP port
    pid number  the process that listens
forward.closed  a forward ended
    +who
    port number  the TCP port
    connections number  connections that were made through it
    sent number  bytes to the server
    received number  bytes from the server

# the machine is drained
drain.began machine  an operator drains the machine: all sessions are saved, new ones are refused
    +who
    notice number  seconds until the end of the drain
    sessions number  how many run
drain.ended machine  every session is saved, or named in `left`
    +who
    saved number  how many sessions are saved
    left list  the names of the others
drain.cancelled machine  the drain is over; new sessions are admitted again
    +who

# the turn
turn.taken  an operator got the turn
    holder text  the operator who has it now
    previous text?  the operator who had it before
    how text  `write`, `request`, `grant`, `hand` or `seize`
turn.asked  an operator requests the turn
    +who
    holder text  the present holder
turn.withdrawn  a request for the turn ended
    +who
    why text  in words
turn.freed  the turn became free
    previous text  the operator who had it
turn.refused  two operators wanted to write at once: an input was refused. Emitted once per refused
        operator, until the turn moves
    +who
    holder text  the holder of the turn, or the typist of the unfinished line
    why text  `held` or `unfinished`
turn.policy_failed  the plug-in of `turn.policy` gave no valid answer, and a request joined the end
        of the queue. Emitted once per reason, until the plug-in answers
    +who
    plugin text  the name of the plug-in
    why text  in words

# the gate
gate.refused  the policy or an approver refused an act, which had no effect. The same refusal is
        emitted at most once a second
    +who
    kind text  human, agent or service
    act text  the kind of act
    rule text  the policy's rule; empty if none
    originators list  the operators who shaped the state it would run on
originators.foreign  an act was about to run on state of other operators, and the gate was told
    +who
    act text  the kind of act
    originators list  the operators who shaped it
    kinds list  kinds of state: alias, path, file ...
    verdict text  the verdict of the gate
originators.doubted  a program other than the shell opened a file in which the shell reports its
        state: the state is unknown until the next report. Root's sessions only
    +who
    pid number*  of that program
    caused_by text?*  the reference of the act that started it
    because text  in words
exec.refused  a program was about to run inside the session, and the policy refused it. Many
        refusals in a short time become one event with a count
    +exec
exec.mismatch  the program that ran inside the session was not the judged one: its words or its file
        were changed in between
    +exec
    shown text*  the program that had been judged
    killed yes*  whether it was killed for that

# approvals
approval.asked  an act waits for the decision of another operator
    +question
approval.given  an operator approved the act, completely or as one of several
    +question +answered
approval.used  the act took effect by this approval, once
    +closed
approval.denied  an operator denied the act
    +closed +answered
approval.withdrawn  the requester withdrew the act
    +closed +answered
approval.expired  no operator decided in time
    +closed
approval.void  the approval is void, because the circumstances of the act changed
    +closed

# operators
operator.first machine  the first operator of this machine
    +known
operator.added machine  an operator was added
    +known
operator.admitted machine  an operator was admitted by an envelope that a known operator signed
    +known
    link text  the envelope's id
operator.joined machine  an operator joined by an invitation
    +known
    device text  its name
    +rights
    invitation text*  its id
operator.recovered machine  an operator was admitted again by the machine's own key
    operator text  the name of the operator
    key text  the public key
    kind text*  human, agent or service
    by text*  the machine
recovery.off machine  the machine's own key admits no operator any more, for good
    by text  the operator who switched it off
operator.key_added machine  an operator has a further device
    operator text  the owner of the device
    key text  the public key
    device text  its name
    by text  the operator who added it
    links list  ids of its envelopes
    invitation text*  its id
device.renamed machine  a device was renamed
    operator text  the owner of the device
    key text  the public key
    device text  the new name
    was text  the old name
    by text  the operator who renamed it
envelope.given machine  rights were handed on
    operator text  the recipient
    by text  the giver
    +rights
    links list*  ids of all envelopes, one per device
revoked machine  an operator, a device or an envelope was revoked
    what text  in words
    by text  the operator who revoked it
    subjects list  pairs of kind and id
invitation.made machine  an invitation was made
    +invitation
    kind text  human, agent or service
    rights list  the rights it gives
    scope object  the limits of these rights
    confirm yes  whether the inviter is asked first
    expires number  in seconds since 1970
    of text*  the operator whose new device it is for
    device text*  that device's name
invitation.guessed machine  a client came with a wrong code
    +invitation
    state text  the resulting state of the invitation
    guesses number  the number of wrong codes so far
invitation.ended machine  an invitation ended
    +invitation
    state text  how
    why text  in words

# failures
record.damaged  the record of a session differs from what this machine signed
spool.failed machine  the disk did not take the output of a session that is kept for a cold start;
        it is tried again. Emitted once, until every session is stored again
    detail text  the error of the disk
store.failed  the final state of an ended session could not be stored yet
    detail text  the error of the disk
"""


def _read() -> dict[str, Event]:
    found: dict[str, Event] = {}
    groups: dict[str, dict[str, Fact]] = {}
    facts: dict[str, Fact] = {}
    for line in re.sub(r"\n {8}", " ", _TABLE + copy_events.TABLE).splitlines():
        left, _, says = line.strip().partition("  ")
        match line[:1], left.split():
            case "+", [name]:
                facts = groups[name] = {}
            case " ", [fact, kind] if says:
                facts[fact] = Fact(kind, says)
            case " ", names:
                for name in names:
                    facts |= groups[name]
            case start, [name, *of] if start != "#":
                facts = {}
                found[name] = Event(says, facts, OF_MACHINE if of else OF_SESSION)
    return found


EVENTS: Final = _read()


def faults(name: str, facts: Mapping[str, object]) -> list[str]:
    """Return the deviations of an event from the table."""
    event = EVENTS.get(name)
    if event is None:
        return [f"{name} is not in the table"]
    unknown = facts.keys() - event.facts.keys()
    found = [f"{name} has {fact!a}, which the table does not know" for fact in unknown]
    for fact, (kind, _) in event.facts.items():
        if fact not in facts:
            found += [] if kind.endswith("*") else [f"{name} lacks {fact}"]
        elif facts[fact] is None:
            found += [] if "?" in kind else [f"{name}: {fact} is null"]
        elif type(facts[fact]) not in TYPES[kind.rstrip("?*")]:
            found.append(f"{name}: {fact} is a {type(facts[fact]).__name__}, not a {kind}")
    return found


def page() -> str:
    """Return the table of docs/reference/events.md."""
    rows = []
    for name, event in EVENTS.items():
        facts = "; ".join(
            f"`{fact}` {_kind(kind)}: {says}" for fact, (kind, says) in event.facts.items()
        )
        since = "planned" if event.planned else event.since
        rows.append(f"| `{name}` | {event.of} | {event.means} | {facts or 'none'} | {since} |")
    return "\n".join(["| event | of | means | facts | since |", "|---|---|---|---|---|", *rows])


def _kind(kind: str) -> str:
    words = {"yes": "true or false"}.get(kind.rstrip("?*"), kind.rstrip("?*"))
    return words + (" or null" if "?" in kind else "") + (", optional" if "*" in kind else "")
