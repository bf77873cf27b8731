"""Checkpoints: examine a session, save the session to disk, and prepare a restore.

The decisions are in core/checkpoint; the engine begins restored sessions. This room imports
`connections`, `leases`, `lifecycle`, `processes`, `runtime`, `session`, `storage` and `terminal`.
"""
