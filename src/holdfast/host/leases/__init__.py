"""Leases: which machine may have a session, and the fences of sessions on this machine (R3).

The decisions are in core/lease. `sqlite` and `etcd` are the stores; `ownership` asks the store and
keeps this machine's lease; `fences` gives keepers their deadlines, freezes and thaws. This room
imports `processes`, `runtime`, `session` and `storage`.
"""
