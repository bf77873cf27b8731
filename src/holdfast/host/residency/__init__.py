"""The sessions in memory: their activity and cost, the reaper, the drain, and the way back.

The decisions are in core/reaper. This room imports `runtime`, `processes`, `session`, `storage`,
`lifecycle`, `checkpoints` and `acts`.
"""
