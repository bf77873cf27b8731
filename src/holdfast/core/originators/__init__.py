"""Originators of an act: authors of shell state, writers of files, lineage of processes.

This room imports `shellcode` only.
"""
