"""Branches of live sessions: snapshots of files, the fork itself, differences, keep and discard.

The decisions are in core/branch and core/checkpoint; the engine begins the branches. This room
imports `checkpoints`, `connections`, `lifecycle`, `processes`, `runtime`, `session`, `storage` and
`terminal`.
"""
