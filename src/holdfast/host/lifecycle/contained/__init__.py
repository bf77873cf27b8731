"""The file tree of a contained session, on this machine: looks, makes directories, removes them.

`core/containment` decides. This package reads the machine for it and imports no other room but
`shell` and `runtime`.
"""
