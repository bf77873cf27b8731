"""`holdfast drill`: provokes each failure mode on a real installation and reads the signature.

`stage` makes and ends a throw-away installation; `checks` has a function for each promise, which
provokes the failure; `agent` is a client of `holdfast mcp`; `report` runs the checks and renders
the table. This package imports `sdk`, `home` and `model`: a drill judges only by facts that every
client can see.
"""
