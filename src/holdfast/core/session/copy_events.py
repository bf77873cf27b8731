"""The events of restores, copies and takeovers: a part of the table in events.py."""

from __future__ import annotations

from typing import Final

TABLE: Final = """\
session.restoring  the session is being restored
    +before
    +who
    checkpoint text  the id of the checkpoint; empty: the session comes back without memory
session.restore_failed  the restore failed; the session is on the disk as before
    +before
    +who
    checkpoint text  as of `session.restoring`
    reason text  in words
session.restored  the session is back with its processes
    +who
    checkpoint text  the id of the checkpoint
    at number  the moment that its memory is from
    epoch number  the new incarnation
    root_pid number  the session's first process
    in_flight list  acts that the checkpoint caught in the middle; they go on there. Each is a
        reference, or "entry N of hf:SESSION@EPOCH" of the record
    later list  the newest acts that came after; the memory does not know of them
    halted yes*  it was halted when it was saved, and still is
session.copied  another machine has a copy of the session now
    machine text  its name
    checkpoint text  the id of the checkpoint
    bytes number  the size of the copy
    sent number  the bytes that had to travel
    took_ms number  how long that took
session.copy_failed  a copy did not arrive; the checkpoint here stays
    machine text  the name of the other machine
    checkpoint text  the id of the checkpoint; empty if none was made
    reason text  in words
session.taken_over  the session of another machine goes on here
    from text  the name of that machine
    machine text  its key
    at number  the moment that its memory is from
    epoch number  the new incarnation
    was number  the saved incarnation
    act number  the last act that is in its memory
    head text  the hash of the last entry of its record at that moment
    lost yes  whether an operator stated that the other machine is lost
    files list*  of each shared place: `path` in the session, `place` here, and `changed`
session.files_stay  the session is forgotten; the files that came with it from a machine stay
    path text  their directory, which the account may remove
session.moved  the session goes on at another machine; its incarnation here has ended
    machine text  the name of that machine
    key text  its key
    epoch number  the incarnation there
    reason text  in words
"""
