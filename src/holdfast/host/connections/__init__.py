"""TCP connections of sessions to peers outside: those that a session holds, and those that it lost.

The decisions are in core/session/connections.py. This room imports `processes`,
`runtime`, `session` and `storage`.
"""
