"""Checkpoint and restore of contained sessions with CRIU.

CRIU runs inside the session's namespaces, so that the image has no namespace. A restore makes them
anew with keeper/contain.py, and CRIU restores hf-root (process 2) and its tree below a new init.
checkpoint.py is the entry. scripts/criu fetches CRIU into .cache/criu.
"""
