"""`holdfast drill`: provokes each failure mode on a real installation and reads its signature.

`stage` makes a throw-away installation and ends it; `checks` are the provocations, one function for
each promise; `report` runs them and renders the table. This package imports `sdk`, `home` and
`model`: a drill sees what any client sees, and judges by that alone.
"""
