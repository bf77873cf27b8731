"""The beginning and the end of a session: name, environment, layout, keeper, and kept remains.

It imports `exec_gate`, `leases`, `session`, `processes`, `shell`, `storage`, `doctor` and
`runtime`.
"""
