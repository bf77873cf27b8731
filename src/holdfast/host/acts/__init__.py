"""The door for writes: every act is judged, recorded and applied here, and nowhere else.

It joins rights, policy, approvals, the turn and the record. It imports `session`, `people`,
`policy`, `storage`, `processes` and `runtime`.
"""
