"""The checkpointer: the program that drives CRIU, and what a restore shares with it.

CRIU runs inside the session's namespaces, so that an image has no namespace. `dump.py` saves a
running session; the host starts it as a process for each checkpoint. The launcher of a keeper
restores (keeper/thaw.py): it makes the namespaces anew and starts CRIU in them.

Contents: CRIU's requests (criu.py, rpc.py, protobuf.py), edits of its images (images.py), files of
memory file systems (memory.py), files open for writing (written.py) and the library that CRIU is
loaded with (shim.py). Imports wire and model only: like the keeper, it knows no operators.
"""
