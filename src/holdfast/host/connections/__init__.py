"""TCP connections of sessions to peers outside: open connections and lost connections.

The decisions are in core/session/connections.py. This room imports `processes`,
`runtime`, `session` and `storage`.
"""
