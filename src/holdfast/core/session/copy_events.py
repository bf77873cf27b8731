"""The events of copies at other machines and of takeovers: a part of the table in events.py."""

from __future__ import annotations

from typing import Final

TABLE: Final = """\
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
session.files_stay  the session is forgotten; the files that came with it from a machine stay
    path text  their directory, which the account may remove
session.moved  the session goes on at another machine; its incarnation here has ended
    machine text  the name of that machine
    key text  its key
    epoch number  the incarnation there
    reason text  in words
"""
