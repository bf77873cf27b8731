"""Branches: what a branch has changed, and how its files get into the directory of its parent.

Pure: entries of directories are values, and the host reads and writes the files
(host/branches). This room imports `checkpoint` only.
"""
