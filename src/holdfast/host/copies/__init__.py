"""Copies of sessions on other machines: sent, received, and taken over.

The decisions are in core/checkpoint/copies.py, and a process of its own (holdfast/courier) speaks
to the other machine. This room imports `checkpoints`, `leases`, `lifecycle`, `processes`, `relays`,
`runtime`, `session` and `storage`.
"""
