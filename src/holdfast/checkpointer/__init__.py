"""The checkpointer drives CRIU to save sessions; a restore shares parts of this package.

CRIU runs inside the session's namespaces, so that an image has no namespace. `dump.py` saves a
running session; the host starts the program for each checkpoint. The launcher of a keeper restores
a session in new namespaces (keeper/thaw.py).

Contents: requests to CRIU (criu.py, rpc.py), edits of images (images.py), files that
CRIU does not save (memory.py, mapped_files.py) and the library that is loaded into CRIU (shim.py).
Imports wire and model only: like the keeper, the checkpointer knows no operators.
"""
