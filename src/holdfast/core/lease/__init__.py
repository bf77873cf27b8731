"""Leases: which machine may have the attachable incarnation of a session, and until when (R3).

`rules` has the times and what a successor must wait for; `records` the two kinds of records in the
store; `owner` keeps a machine's lease; `changes` decides every other change of a record. Pure: the
store and the clock are in host/leases. This room imports no other room.
"""
