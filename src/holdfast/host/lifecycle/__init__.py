"""The beginning and the end of a session: name, environment, layout, keeper, and kept remains.

It imports `exec_gate`, `session`, `processes`, `shell`, `storage`, `doctor` and `runtime`.
"""
