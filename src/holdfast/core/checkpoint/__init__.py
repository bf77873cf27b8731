"""Checkpoints: the preflight decides about a session; the manifest describes a saved session.

Pure: the facts and the files are read by host/checkpoints. This room imports no other room.
"""
