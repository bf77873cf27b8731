"""The file tree of a contained session: which entries it has, and who decides.

The functions here read the machine only through `Files`, so tests give them a small table instead.
This room imports no other room of `core`.
"""
