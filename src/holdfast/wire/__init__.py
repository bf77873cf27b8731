"""Wire formats: bytes to model and back. Programs share no code but this.

No I/O, no clock. It imports `model` only.
"""
