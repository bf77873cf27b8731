"""The beginning and the end of a session: its name, environment, layout, keeper and what is kept
afterwards.

It imports `exec_gate`, `session`, `shell`, `storage`, `doctor` and `runtime`.
"""
