"""Terminal bytes without a terminal: filtering, plain text, letterboxing and skimming of output.

This room imports no other room of `core`.
"""
